//! The times at which the operator overwrote other writers. They decide whether it pauses, and whether another writer
//! keeps undoing its writes.
//!
//! Always holds: the size is bounded; a document that an installer writes for the first time is an installation, which
//! slows the operator down but is no contest.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::{retry::backoff, text::sha256};

/// More overwrites than this within [`WINDOW`] suspend further ones. An installer that runs in a loop causes them too.
const MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(600);
const BACKOFF_BASE: Duration = Duration::from_secs(10);
const BACKOFF_CAP: Duration = Duration::from_secs(300);
/// The number of documents of installers that are remembered.
const MAX_INSTALLED: usize = 10;

/// The overwrites of one ConfigMap.
#[derive(Default)]
pub(in crate::linkerd_config) struct RevertHistory {
    /// The times at which we overwrote a writer that had undone our write.
    reverts: Times,
    /// The times at which we overwrote a document that an installer wrote for the first time.
    installations: Times,
    /// The SHA-256 of the last documents that installers wrote.
    installed: VecDeque<String>,
}

#[derive(Default)]
struct Times(VecDeque<Instant>);

// === impl RevertHistory ===

impl RevertHistory {
    /// Notes that we overwrote another writer. `installed` is the document of an installer that differs from the base.
    pub(in crate::linkerd_config) fn note(&mut self, installed: Option<&str>) {
        let hash = installed.map(sha256);
        match hash.filter(|hash| !self.installed.contains(hash)) {
            Some(hash) => {
                self.installed.push_back(hash);
                if self.installed.len() > MAX_INSTALLED {
                    self.installed.pop_front();
                }
                self.installations.note();
            }
            None => self.reverts.note(),
        }
    }

    /// Returns the remaining suspension of overwrites.
    pub(in crate::linkerd_config) fn backoff(&mut self) -> Option<Duration> {
        self.reverts.backoff().max(self.installations.backoff())
    }

    /// Returns how long the ConfigMap still counts as contested: until no revert was necessary for [`WINDOW`], which is
    /// longer than any backoff. `None` if no writer keeps undoing our writes.
    pub(in crate::linkerd_config) fn contested_for(&mut self) -> Option<Duration> {
        let reverts = self.reverts.recent();
        let left = WINDOW.saturating_sub(reverts.back()?.elapsed());
        (reverts.len() > MAX).then_some(left)
    }
}

// === impl Times ===

impl Times {
    fn note(&mut self) {
        let times = self.recent();
        times.push_back(Instant::now());
        if times.len() > 10 * MAX {
            times.pop_front();
        }
    }

    /// Returns the times that count. Once there are more than [`MAX`], all count until the last one is older than
    /// [`WINDOW`], so that the backoff does not start again when the first ones become old.
    fn recent(&mut self) -> &mut VecDeque<Instant> {
        let is_old = |time: Option<&Instant>| time.is_some_and(|time| time.elapsed() >= WINDOW);
        let times = &mut self.0;
        if is_old(times.back()) {
            times.clear();
        }
        while times.len() <= MAX && is_old(times.front()) {
            times.pop_front();
        }
        times
    }

    fn backoff(&mut self) -> Option<Duration> {
        let times = self.recent();
        let more = times.len().checked_sub(MAX + 1)?;
        let pause = backoff(u32::try_from(more).unwrap_or(u32::MAX), BACKOFF_BASE, BACKOFF_CAP);
        pause.checked_sub(times.back()?.elapsed()).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn six_reverts_in_ten_minutes_suspend_reverts_and_the_backoff_grows() {
        let mut history = RevertHistory::default();
        for _ in 0..5 {
            history.note(None);
            assert_eq!(history.backoff(), None);
        }
        history.note(None);
        let first = history.backoff().unwrap();
        assert!(first <= BACKOFF_BASE && first > BACKOFF_BASE / 2, "{first:?}");
        sleep(BACKOFF_BASE).await;
        assert_eq!(history.backoff(), None, "reverts are resumed");
        history.note(None);
        assert!(history.backoff().unwrap() > first);
        sleep(WINDOW + BACKOFF_BASE).await;
        assert_eq!(history.backoff(), None);
        history.note(None);
        assert_eq!(history.backoff(), None, "old reverts no longer count");
    }

    #[tokio::test(start_paused = true)]
    async fn a_config_map_is_contested_until_no_revert_was_necessary_for_ten_minutes() {
        let mut history = RevertHistory::default();
        for _ in 0..6 {
            assert_eq!(history.contested_for(), None);
            history.note(None);
        }
        assert_eq!(history.contested_for(), Some(WINDOW));
        // The other writer undoes every revert after the pause. The pause grows to its cap, and stays there.
        for _ in 0..20 {
            sleep(BACKOFF_CAP).await;
            assert_eq!(history.backoff(), None);
            history.note(None);
            assert_eq!(history.contested_for(), Some(WINDOW));
        }
        assert!(history.backoff().unwrap() > BACKOFF_CAP.mul_f64(0.8));
        sleep(WINDOW - Duration::from_secs(1)).await;
        assert_eq!(history.contested_for(), Some(Duration::from_secs(1)));
        sleep(Duration::from_secs(1)).await;
        assert_eq!((history.contested_for(), history.backoff()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn rare_reverts_are_no_contest() {
        let mut history = RevertHistory::default();
        for _ in 0..30 {
            history.note(None);
            assert_eq!((history.contested_for(), history.backoff()), (None, None));
            sleep(WINDOW / 5).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_documents_of_installers_are_no_contest_and_two_that_alternate_are() {
        let mut history = RevertHistory::default();
        for number in 0..20 {
            history.note(Some(&number.to_string()));
        }
        assert_eq!(history.contested_for(), None);
        assert!(history.backoff().is_some(), "an installer in a loop is slowed down");
        let mut history = RevertHistory::default();
        for number in 0..8 {
            assert_eq!(history.contested_for(), None);
            history.note(Some(if number % 2 == 0 { "a" } else { "b" }));
        }
        assert_eq!(history.contested_for(), Some(WINDOW));
    }

    #[tokio::test(start_paused = true)]
    async fn the_history_is_bounded() {
        let mut history = RevertHistory::default();
        for number in 0..1000 {
            history.note(Some(&number.to_string()));
            history.note(None);
        }
        assert_eq!((history.reverts.0.len(), history.installations.0.len(), history.installed.len()), (50, 50, 10));
    }
}
