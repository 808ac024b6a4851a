//! Follows the issuer and the trust anchors.
//!
//! In: their files, or the Secret and the ConfigMap. Out: the issuer in use, and why it is not that of the files. Always
//! holds: issuer and trust anchors are evaluated together; a pair that cannot be used leaves the last good one in use,
//! also if the files disappear; a call that has begun finishes with the issuer that it began with; an issuer that is
//! held is never used because of the time alone.

mod expiry;
pub(super) mod files;
pub(super) mod objects;
mod progress;
pub(super) mod trust_guard;

use std::{
    iter, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{error, info, warn};

use self::{
    files::{ContentHash, FileStamp, IssuerFileContents, IssuerFiles},
    objects::IssuerObjects,
    progress::{FollowProgress, FollowStep, RETRY},
    trust_guard::TrustGuard,
};
use super::{
    events::IdentityEvents,
    issuer::Issuer,
    metrics::{IdentityMetrics, LABELS, Reload, label},
    username::IdentityDomain,
};
use crate::{
    retry::backoff,
    text::{self, counted},
    x509::anchors::AnchorBundle,
};

/// How often the stamp of the files is compared.
const POLL: Duration = Duration::from_millis(250);

/// The issuer in use, for those who serve.
pub struct FollowedIssuer {
    current: watch::Sender<Option<Arc<LoadedIssuer>>>,
    /// Why the issuer in use is not that of the files.
    problem: RwLock<Option<String>>,
    /// Why changes of the files may be unknown.
    watch_problem: RwLock<Option<String>>,
    /// Whether proxies should renew their certificates soon, because a rotation waits for it.
    is_rotating: AtomicBool,
}

/// An issuer with the trust anchors that it was evaluated with.
pub(super) struct LoadedIssuer {
    pub(super) issuer: Issuer,
    /// The text of its file.
    certificates: Vec<u8>,
    anchors: AnchorBundle,
    at: Timestamp,
}

/// Where the contents come from. What is said of files holds for both.
pub(super) enum IssuerSource {
    Files(IssuerFiles),
    Objects(IssuerObjects),
}

/// The task that follows the files.
pub(super) struct IssuerFollower {
    source: IssuerSource,
    domain: IdentityDomain,
    followed: Arc<FollowedIssuer>,
    metrics: Arc<IdentityMetrics>,
    events: IdentityEvents,
    progress: FollowProgress,
    /// The number of announcements of the issuer's end that were made.
    announced: usize,
    /// Whether the end of the trust anchors was reported for the pair in use.
    has_reported_anchor: bool,
    /// `None` if LinkerdTrusts are not watched.
    guard: Option<TrustGuard>,
    /// The pair with an issuer that is held.
    held: Option<ContentHash>,
    /// Why it was held when that was reported last.
    reported_hold: Option<String>,
    /// Whether an issuer is held although the one in use ends soon.
    is_urgent: bool,
}

// === impl FollowedIssuer ===

impl FollowedIssuer {
    pub(super) fn new() -> Arc<Self> {
        let problem = RwLock::new(Some("its files were not read yet".to_owned()));
        let (current, watch_problem, is_rotating) = Default::default();
        Arc::new(Self { current, problem, watch_problem, is_rotating })
    }

    /// Whether there is an issuer. It stays when its files cannot be used, and when it expires.
    pub fn is_ready(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Returns why there is no issuer, or not that of the files, for `/ready`.
    pub fn problem(&self) -> Option<String> {
        let problem = self.problem.read().clone().or_else(|| self.watch_problem.read().clone());
        let why = problem.as_deref();
        match self.current() {
            None => Some(format!("no issuer of certificates is loaded: {}", why.unwrap_or("its files are being read"))),
            Some(loaded) if loaded.issuer.not_after() <= Timestamp::now() => {
                let (end, what) = (loaded.issuer.not_after(), why.unwrap_or("replace it"));
                Some(format!("the issuer of certificates expired at {end}: {what}"))
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

    /// Whether a rotation waits for the certificates of proxies, or will.
    pub(super) fn is_rotating(&self) -> bool {
        self.is_rotating.load(Ordering::Relaxed)
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

// === impl IssuerSource ===

impl IssuerSource {
    fn stamp(&self) -> FileStamp {
        match self {
            Self::Files(files) => files.stamp(),
            Self::Objects(objects) => objects.stamp(),
        }
    }

    fn read(&self) -> Result<IssuerFileContents, String> {
        match self {
            Self::Files(files) => files.read(),
            Self::Objects(objects) => objects.read(),
        }
    }

    fn problem(&self) -> Option<String> {
        match self {
            Self::Files(_) => None,
            Self::Objects(objects) => objects.problem(),
        }
    }
}

impl From<IssuerFiles> for IssuerSource {
    fn from(files: IssuerFiles) -> Self {
        Self::Files(files)
    }
}

// === impl IssuerFollower ===

impl IssuerFollower {
    pub(super) fn new(
        source: impl Into<IssuerSource>,
        domain: IdentityDomain,
        followed: &Arc<FollowedIssuer>,
        metrics: &Arc<IdentityMetrics>,
        events: IdentityEvents,
    ) -> Self {
        let (followed, metrics) = (Arc::clone(followed), Arc::clone(metrics));
        let (source, progress) = (source.into(), FollowProgress::default());
        Self {
            source,
            domain,
            followed,
            metrics,
            events,
            progress,
            announced: 0,
            has_reported_anchor: false,
            guard: None,
            held: None,
            reported_hold: None,
            is_urgent: false,
        }
    }

    /// Follows the LinkerdTrust in effect, too.
    pub(super) fn guarded_by(self, guard: Option<TrustGuard>) -> Self {
        Self { guard, ..self }
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
        *self.followed.watch_problem.write() = self.source.problem();
        if let Some(guard) = &mut self.guard
            && guard.has_changed()
        {
            self.followed.is_rotating.store(guard.is_rotating(), Ordering::Relaxed);
            if self.held.is_some() {
                self.progress.retry_now(now);
            }
        }
        if self.progress.must_read(self.source.stamp(), now) || must_reload {
            match self.source.read() {
                Ok(contents) => self.evaluate(&contents, must_reload, now, time),
                Err(why) => self.skip(None, &why, now),
            }
        }
        if let Some(in_use) = self.followed.current() {
            let has_expired_anchor = in_use.has_expired_anchor(time);
            self.metrics.time(in_use.issuer.expires(), has_expired_anchor, time);
            self.announce_end(&in_use, time);
            self.announce_held(in_use.issuer.expires(), time);
            if has_expired_anchor && !self.has_reported_anchor {
                self.has_reported_anchor = true;
                self.report_anchor();
            }
        } else {
            // Without an issuer in use, no proxy gets a certificate.
            self.metrics.held(self.held.is_some(), self.held.is_some());
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
                Ok(loaded) => match self.refusal(contents, hash, time) {
                    Some(why) => self.hold(&loaded.issuer, &why, hash, now),
                    None => self.use_from_now_on(loaded, hash),
                },
                Err(why) => self.skip(Some(hash), &why, now),
            },
        }
    }

    fn load(&self, contents: &IssuerFileContents, time: Timestamp) -> Result<LoadedIssuer, String> {
        let anchors = AnchorBundle::parse(&contents.trust_roots).map_err(|why| format!("the trust anchors: {why}"))?;
        let issuer = Issuer::load(&contents.certificates, &contents.key, &anchors, &self.domain, time)
            .map_err(|problem| problem.to_string())?;
        Ok(LoadedIssuer { issuer, certificates: contents.certificates.clone(), anchors, at: time })
    }

    /// Returns why this issuer is held. If it is the first one of a process, no proxy gets a certificate meanwhile; but then
    /// this replica is not ready, so that a rolling restart keeps the one before, which has the last issuer.
    fn refusal(&self, contents: &IssuerFileContents, hash: ContentHash, time: Timestamp) -> Option<String> {
        let guard = self.guard.as_ref()?;
        let Some(in_use) = self.followed.current() else { return guard.refusal(None, contents, time) };
        if !self.progress.replaces_issuer(hash) {
            return None;
        }
        // Once the present one has ended, there is nothing to lose by a new one.
        let is_held = self.held == Some(hash);
        guard
            .refusal(Some(&in_use.certificates), contents, time)
            .filter(|_| is_held || in_use.issuer.not_after() > time)
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

    fn skip(&mut self, contents: Option<ContentHash>, why: &str, now: Instant) {
        if contents.is_some() {
            self.held = None;
        }
        if !self.keep(Reload::Invalid, contents, why, now) {
            return;
        }
        let note = match self.followed.is_ready() {
            true => format!("Skipping issuer update as certs could not be read from disk: {why}"),
            false => format!("No certificates are issued, because there is no issuer that can be used: {why}"),
        };
        warn!("{note}");
        // The files of a new process may only be late.
        if self.followed.is_ready() || contents.is_some() {
            self.events.issuer_update_skipped(&note);
        }
    }

    fn hold(&mut self, issuer: &Issuer, why: &str, contents: ContentHash, now: Instant) {
        self.held = Some(contents);
        let roots: Vec<_> = issuer.roots().iter().map(|root| label(&text::hex(root)).to_owned()).collect();
        let why = format!("the new issuer, of the root {}, is held: {why}", roots.join(", "));
        let is_new = self.keep(Reload::Held, Some(contents), &why, now);
        if is_new || self.reported_hold.as_ref() != Some(&why) {
            let note = match self.followed.is_ready() {
                true => format!("The last issuer stays in use: {why}"),
                false => format!(
                    "This replica issues no certificates: {why}. Put the previous issuer back into the Secret; or delete the \
                     LinkerdTrust, and the issuer is used although proxies refuse it"
                ),
            };
            // The first reason may be that the status is not about the present bundle yet.
            if is_new {
                warn!("{note}");
            } else {
                self.reported_hold = Some(why);
                self.events.issuer_held(&note);
            }
        }
    }

    /// Keeps the pair in use. Returns whether the reason is another one than before.
    fn keep(&mut self, result: Reload, contents: Option<ContentHash>, why: &str, now: Instant) -> bool {
        self.metrics.reload(result);
        self.progress.failed(contents, |failures| backoff(failures, RETRY.0, RETRY.1), now);
        self.metrics.differs(self.followed.is_ready());
        let before = self.followed.problem.write().replace(why.to_owned());
        before.as_deref() != Some(why)
    }

    fn clear_problem(&mut self) {
        (self.held, self.reported_hold) = (None, None);
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

    fn announce_held(&mut self, end: Timestamp, time: Timestamp) {
        let is_held = self.held.is_some();
        let is_urgent = is_held && self.guard.as_ref().is_some_and(|guard| guard.is_near(end, time));
        self.metrics.held(is_held, is_urgent);
        if !mem::replace(&mut self.is_urgent, is_urgent) && is_urgent {
            let note = format!(
                "The certificate of the issuer expires at {end}, and the next issuer is held: restart the Pods whose \
                 proxies do not trust its root, or add a certificate of its root that the last root signed to its file"
            );
            error!("{note}");
            self.events.issuer_expires_soon(&note);
        }
    }
}

#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod tests;
