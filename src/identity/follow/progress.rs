//! When the files are read, and when an issuer that cannot be used is tried again. Pure.
//!
//! In: stamps, contents and results. Out: whether to read, and whether to load. Always holds: a change of the files is
//! loaded at once; contents that cannot be used are tried again while they differ from what is in use, because another
//! file or the time may make them usable.

use std::time::Duration;

use tokio::time::Instant;

use super::files::{ContentHash, FileStamp};

/// How often the contents are read, although the stamp is the same.
const FULL_READ: Duration = Duration::from_secs(30);
/// The first and the longest delay after contents that cannot be used.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What was read last, and what is in use.
#[derive(Default)]
pub(super) struct FollowProgress {
    stamp: Option<FileStamp>,
    read: Option<Instant>,
    in_use: Option<ContentHash>,
    failed: Option<FailedLoad>,
}

/// Contents that cannot be used, or read.
struct FailedLoad {
    /// `None` if the files cannot be read.
    contents: Option<ContentHash>,
    retry: Instant,
    failures: u32,
}

/// What a step does with the contents of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowStep {
    Load,
    /// They are in use, and were written again or have replaced others that cannot be used.
    Unchanged,
    Nothing,
}

// === impl FollowProgress ===

impl FollowProgress {
    /// Returns whether the files must be read now.
    pub(super) fn must_read(&mut self, stamp: FileStamp, now: Instant) -> bool {
        let is_new = self.stamp.as_ref() != Some(&stamp);
        let is_due = self.read.is_none_or(|last| now - last >= FULL_READ);
        let is_retry = self.failed.as_ref().is_some_and(|failed| now >= failed.retry);
        if is_new || is_due {
            self.read = Some(now);
        }
        self.stamp = Some(stamp);
        is_new || is_due || is_retry
    }

    /// Returns what to do with these contents. `must_reload` demands a load although they are in use.
    pub(super) fn next_step(&mut self, contents: ContentHash, must_reload: bool, now: Instant) -> FollowStep {
        if self.in_use == Some(contents) && !must_reload {
            return if self.failed.take().is_some() { FollowStep::Unchanged } else { FollowStep::Nothing };
        }
        let waits = |failed: &FailedLoad| failed.contents == Some(contents) && now < failed.retry;
        if self.failed.as_ref().is_some_and(waits) { FollowStep::Nothing } else { FollowStep::Load }
    }

    /// Whether another issuer than that of these contents is in use.
    pub(super) fn replaces_issuer(&self, contents: ContentHash) -> bool {
        self.in_use.is_some_and(|in_use| in_use.issuer != contents.issuer)
    }

    /// Lets contents that could not be used be tried again at once.
    pub(super) fn retry_now(&mut self, now: Instant) {
        if let Some(failed) = &mut self.failed {
            failed.retry = now;
        }
    }

    /// Returns what changed of what is in use: the issuer, the trust anchors.
    pub(super) fn loaded(&mut self, contents: ContentHash) -> (bool, bool) {
        let before = self.in_use.replace(contents);
        self.failed = None;
        before.map_or((true, true), |before| {
            (before.issuer != contents.issuer, before.trust_roots != contents.trust_roots)
        })
    }

    /// Records a failure. `delay` is that after so many failures with the same contents.
    pub(super) fn failed(&mut self, contents: Option<ContentHash>, delay: impl FnOnce(u32) -> Duration, now: Instant) {
        let failures = match &self.failed {
            Some(failed) if failed.contents == contents => failed.failures + 1,
            _ => 0,
        };
        self.failed = Some(FailedLoad { contents, retry: now + delay(failures), failures });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn contents(issuer: u8, trust_roots: u8) -> ContentHash {
        ContentHash { issuer: [issuer; 32], trust_roots: [trust_roots; 32] }
    }

    fn stamp(of: i128) -> FileStamp {
        FileStamp::of_versions([of; 2])
    }

    #[test]
    fn files_are_read_when_their_stamp_changes_and_every_thirty_seconds() {
        let (mut progress, now) = (FollowProgress::default(), Instant::now());
        assert!(progress.must_read(stamp(1), now));
        progress.loaded(contents(1, 1));
        assert!(!progress.must_read(stamp(1), now + SECOND));
        assert!(progress.must_read(stamp(2), now + SECOND));
        assert!(!progress.must_read(stamp(2), now + 30 * SECOND));
        assert!(progress.must_read(stamp(2), now + 31 * SECOND));
    }

    #[test]
    fn contents_that_cannot_be_used_are_tried_again_with_longer_delays() {
        let (mut progress, now) = (FollowProgress::default(), Instant::now());
        progress.must_read(stamp(1), now);
        let delay = |failures| SECOND * 2u32.pow(failures);
        for (failures, at) in [(0, 0), (1, 1), (2, 3)] {
            let at = now + at * SECOND;
            assert_eq!(progress.next_step(contents(2, 1), false, at), FollowStep::Load, "{failures}");
            progress.failed(Some(contents(2, 1)), delay, at);
            let early = at + SECOND / 2;
            assert!(!progress.must_read(stamp(1), early));
            assert_eq!(progress.next_step(contents(2, 1), false, early), FollowStep::Nothing);
            assert!(progress.must_read(stamp(1), at + delay(failures)));
        }
    }

    #[test]
    fn a_refused_issuer_is_loaded_at_once_when_its_root_arrives() {
        let (mut progress, now) = (FollowProgress::default(), Instant::now());
        assert_eq!(progress.loaded(contents(1, 1)), (true, true));
        progress.failed(Some(contents(2, 1)), |_| 60 * SECOND, now);
        assert_eq!(progress.next_step(contents(2, 2), false, now), FollowStep::Load);
        assert_eq!(progress.loaded(contents(2, 2)), (true, true));
        assert_eq!(progress.loaded(contents(2, 3)), (false, true));
    }

    #[test]
    fn contents_that_could_not_be_used_are_tried_again_at_once_on_demand() {
        let (mut progress, now) = (FollowProgress::default(), Instant::now());
        assert!(!progress.replaces_issuer(contents(1, 1)), "no issuer is in use");
        progress.must_read(stamp(1), now);
        progress.loaded(contents(1, 1));
        assert!(!progress.replaces_issuer(contents(1, 2)) && progress.replaces_issuer(contents(2, 1)));
        progress.failed(Some(contents(2, 1)), |_| 60 * SECOND, now);
        assert!(!progress.must_read(stamp(1), now));
        progress.retry_now(now);
        assert!(progress.must_read(stamp(1), now));
        assert_eq!(progress.next_step(contents(2, 1), false, now), FollowStep::Load);
    }

    #[test]
    fn contents_in_use_are_loaded_again_only_on_demand() {
        let (mut progress, now) = (FollowProgress::default(), Instant::now());
        progress.loaded(contents(1, 1));
        assert_eq!(progress.next_step(contents(1, 1), false, now), FollowStep::Nothing);
        assert_eq!(progress.next_step(contents(1, 1), true, now), FollowStep::Load);
        progress.failed(None, |_| SECOND, now);
        assert_eq!(progress.next_step(contents(1, 1), false, now), FollowStep::Unchanged);
    }
}
