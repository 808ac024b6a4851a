//! Follows the files of the issuer and of the trust anchors.
//!
//! In: the files. Out: the issuer in use, and why it is not that of the files. Always holds: issuer and trust anchors
//! are evaluated together; a pair that cannot be used leaves the last good one in use, also if the files disappear; a
//! call that has begun finishes with the issuer that it began with.

mod expiry;
pub(super) mod files;
mod progress;

use std::{iter, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{info, warn};

use self::{
    files::{ContentHash, IssuerFileContents, IssuerFiles},
    progress::{FollowProgress, FollowStep, RETRY},
};
use super::{
    anchors::AnchorBundle,
    events::IdentityEvents,
    issuer::Issuer,
    metrics::{IdentityMetrics, LABELS, Reload, label},
    username::IdentityDomain,
};
use crate::{
    retry::backoff,
    text::{self, counted},
};

/// How often the stamp of the files is compared.
const POLL: Duration = Duration::from_millis(250);

/// The issuer in use, for those who serve.
pub struct FollowedIssuer {
    current: watch::Sender<Option<Arc<LoadedIssuer>>>,
    /// Why the issuer in use is not that of the files.
    problem: RwLock<Option<String>>,
}

/// An issuer with the trust anchors that it was evaluated with.
pub(super) struct LoadedIssuer {
    pub(super) issuer: Issuer,
    anchors: AnchorBundle,
    at: Timestamp,
}

/// The task that follows the files.
pub(super) struct IssuerFollower {
    files: IssuerFiles,
    domain: IdentityDomain,
    followed: Arc<FollowedIssuer>,
    metrics: Arc<IdentityMetrics>,
    events: IdentityEvents,
    progress: FollowProgress,
    /// The number of announcements of the issuer's end that were made.
    announced: usize,
    /// Whether the end of the trust anchors was reported for the pair in use.
    has_reported_anchor: bool,
}

// === impl FollowedIssuer ===

impl FollowedIssuer {
    pub(super) fn new() -> Arc<Self> {
        let problem = RwLock::new(Some("its files were not read yet".to_owned()));
        Arc::new(Self { current: watch::Sender::default(), problem })
    }

    /// Whether there is an issuer. It stays when its files cannot be used, and when it expires.
    pub fn is_ready(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Returns why there is no issuer, or not that of the files, for `/ready`.
    pub fn problem(&self) -> Option<String> {
        let problem = self.problem.read();
        let why = problem.as_deref();
        match self.current() {
            None => Some(format!("no issuer of certificates is loaded: {}", why.unwrap_or("its files are being read"))),
            Some(loaded) if loaded.issuer.not_after() <= Timestamp::now() => {
                Some(format!("the issuer of certificates expired at {}: replace it", loaded.issuer.not_after()))
            }
            Some(_) => why.map(|why| format!("the last issuer of certificates stays in use: {why}")),
        }
    }

    /// Returns when the issuer's certificate and the trust anchors expire, each with its name; the issuer comes first. A
    /// time is absent if there is no issuer, or if the date of a trust anchor is unreadable.
    pub fn expiries(&self) -> Vec<(String, Option<Timestamp>)> {
        let current = self.current();
        let issuer = current.as_ref().map(|loaded| loaded.issuer.expires());
        let anchors = current.iter().flat_map(|loaded| loaded.anchors.roots());
        let anchors = anchors.map(|root| (format!("trust anchor {}", label(&text::hex(root.sha256))), root.not_after));
        iter::once(("issuer of proxies".to_owned(), issuer)).chain(anchors.take(LABELS)).collect()
    }

    /// Returns a receiver of the issuers that are loaded.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<LoadedIssuer>>> {
        self.current.subscribe()
    }

    pub(super) fn current(&self) -> Option<Arc<LoadedIssuer>> {
        self.current.borrow().clone()
    }
}

// === impl LoadedIssuer ===

impl LoadedIssuer {
    /// Whether all trust anchors that leaves reach have expired, which proxies ignore. A root may have a renewed twin with
    /// the same key.
    fn has_expired_anchor(&self, now: Timestamp) -> bool {
        let reached = self.anchors.roots().iter().filter(|root| self.issuer.roots().contains(&root.sha256));
        reached.filter_map(|root| root.not_after).max().is_some_and(|end| end <= now)
    }
}

// === impl IssuerFollower ===

impl IssuerFollower {
    pub(super) fn new(
        files: IssuerFiles,
        domain: IdentityDomain,
        followed: &Arc<FollowedIssuer>,
        metrics: &Arc<IdentityMetrics>,
        events: IdentityEvents,
    ) -> Self {
        let (followed, metrics) = (Arc::clone(followed), Arc::clone(metrics));
        let progress = FollowProgress::default();
        Self { files, domain, followed, metrics, events, progress, announced: 0, has_reported_anchor: false }
    }

    /// Follows the files, forever.
    pub(super) async fn follow(mut self) {
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            poll.tick().await;
            self.step(Instant::now(), Timestamp::now());
        }
    }

    fn step(&mut self, now: Instant, time: Timestamp) {
        let in_use = self.followed.current();
        // At the end of its chain, an issuer may lose a certificate that it does not need.
        let must_reload =
            in_use.as_ref().is_some_and(|it| it.issuer.not_after() <= time && it.at < it.issuer.not_after());
        if self.progress.must_read(self.files.stamp(), now) || must_reload {
            match self.files.read() {
                Ok(contents) => self.evaluate(&contents, must_reload, now, time),
                Err(why) => self.skip(None, why, now),
            }
        }
        if let Some(in_use) = self.followed.current() {
            let has_expired_anchor = in_use.has_expired_anchor(time);
            self.metrics.time(in_use.issuer.expires(), has_expired_anchor, time);
            self.announce_end(&in_use, time);
            if has_expired_anchor && !self.has_reported_anchor {
                self.has_reported_anchor = true;
                self.report_anchor();
            }
        }
    }

    fn evaluate(&mut self, contents: &IssuerFileContents, must_reload: bool, now: Instant, time: Timestamp) {
        let hash = contents.hash();
        match self.progress.next_step(hash, must_reload, now) {
            FollowStep::Nothing => {}
            FollowStep::Unchanged => {
                self.metrics.reload(Reload::Unchanged);
                self.clear_problem();
            }
            FollowStep::Load => match self.load(contents, time) {
                Ok(loaded) => self.use_from_now_on(loaded, hash),
                Err(why) => self.skip(Some(hash), why, now),
            },
        }
    }

    fn load(&self, contents: &IssuerFileContents, time: Timestamp) -> Result<LoadedIssuer, String> {
        let anchors = AnchorBundle::parse(&contents.trust_roots).map_err(|why| format!("the trust anchors: {why}"))?;
        let issuer = Issuer::load(&contents.certificates, &contents.key, &anchors, &self.domain, time)
            .map_err(|problem| problem.to_string())?;
        Ok(LoadedIssuer { issuer, anchors, at: time })
    }

    fn use_from_now_on(&mut self, loaded: LoadedIssuer, hash: ContentHash) {
        let is_first = !self.followed.is_ready();
        let (is_new_issuer, are_new_anchors) = self.progress.loaded(hash);
        self.metrics.reload(Reload::Loaded);
        self.metrics.loaded(&loaded.issuer, &loaded.anchors, loaded.at);
        self.clear_problem();
        if is_new_issuer {
            self.announced = 0;
            let (end, now) = (loaded.issuer.expires(), loaded.at);
            info!(
                invalid_after = %end,
                process_clock_time = %now,
                ttl_seconds = end.duration_since(now).as_secs(),
                key = loaded.issuer.key_id(),
                "Issuer cert loaded"
            );
        }
        if is_new_issuer && !is_first {
            info!("Updated identity issuer");
            self.events.issuer_updated();
        }
        if are_new_anchors {
            for warning in loaded.anchors.warnings() {
                warn!("{warning}");
            }
            let count = counted(loaded.anchors.roots().len(), "trust anchor");
            info!("{count} loaded");
            if !is_first {
                self.events.trust_anchors_updated(&count);
            }
        }
        self.has_reported_anchor = false;
        if loaded.issuer.is_trust_anchor() {
            let note = "The issuer is a trust anchor itself, so its key is the key of the root: use an issuer that the \
                        root has signed";
            warn!("{note}");
            self.events.issuer_is_trust_anchor(note);
        }
        self.followed.current.send_replace(Some(Arc::new(loaded)));
    }

    /// Reports what proxies accept and Linkerd's identity does not.
    fn report_anchor(&self) {
        let note = "The trust anchor of the issuer has expired. Proxies do not look at its end, so certificates are \
                    still issued; Linkerd's own identity service would refuse the issuer";
        warn!("{note}");
        self.events.trust_anchor_expired(note);
    }

    fn skip(&mut self, contents: Option<ContentHash>, why: String, now: Instant) {
        self.metrics.reload(Reload::Invalid);
        self.progress.failed(contents, |failures| backoff(failures, RETRY.0, RETRY.1), now);
        let has_issuer = self.followed.is_ready();
        self.metrics.differs(has_issuer);
        let mut problem = self.followed.problem.write();
        if problem.as_ref() == Some(&why) {
            return;
        }
        if has_issuer {
            warn!("Skipping issuer update as certs could not be read from disk: {why}");
            self.events.issuer_update_skipped(&why);
        } else {
            warn!("waiting for an issuer of certificates: {why}");
        }
        *problem = Some(why);
    }

    fn clear_problem(&self) {
        self.metrics.differs(false);
        *self.followed.problem.write() = None;
    }

    fn announce_end(&mut self, in_use: &LoadedIssuer, time: Timestamp) {
        let end = in_use.issuer.expires();
        let due = expiry::announcements(end.duration_since(in_use.at), end.duration_since(time));
        if due > self.announced {
            self.announced = due;
            let note = format!("The certificate of the issuer expires at {end}: replace it before");
            warn!("{note}");
            self.events.issuer_expires_soon(&note);
        }
    }
}

#[cfg(test)]
mod tests;
