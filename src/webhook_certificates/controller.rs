//! Reads, plans and writes, while this process leads.
//!
//! In: the Secret and the webhook configurations, which each pass reads from the API server; a watch only starts a pass.
//! Out: their new versions, Events and metrics. Always holds: leadership is checked immediately before each write; a
//! write replaces only the version that was read, so two leaders cannot issue two authorities for one Secret; passes
//! that write again and again become slower.

use std::{sync::Arc, time::Duration};

use futures::future::join3;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::watcher::{self, Event},
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    issue,
    metrics::CertificateMetrics,
    plan::{NextStep, Observation, Plan},
    registration::{BundlePatch, Registration, RegistrationKind},
    secret::{SecretChange, SecretState},
    x509::TrustCertificate,
};
use crate::{
    api::{FIELD_MANAGER, MANAGED_CERTIFICATE_LABEL, NamespacedName},
    client::watched,
    contain::{Panicked, Work, contain_future},
    events::{Events, Notice, Reason, object_reference},
    lease::{Fence, Leadership},
    retry::{backoff, jittered},
    write::WriteError,
};

/// The shortest pause between two passes.
const PAUSE: Duration = Duration::from_millis(100);
const BACKOFF_BASE: Duration = Duration::from_millis(200);
const BACKOFF_CAP: Duration = Duration::from_secs(30);
/// Without a write for this time, the next one is not delayed.
const CALM: Duration = Duration::from_secs(60);
/// The number of `caBundle` writes within [`CALM`] that are not delayed.
const BURST: u32 = 5;
/// The maximum number of configurations of a kind that are read.
const CONFIGURATIONS: u32 = 100;

pub(super) struct CertificateController {
    pub(super) client: Client,
    pub(super) secret: NamespacedName,
    pub(super) service: NamespacedName,
    /// The DNS names of the leaf.
    pub(super) names: Vec<String>,
    pub(super) leadership: Leadership,
    pub(super) fence: Fence,
    pub(super) events: Events,
    pub(super) metrics: CertificateMetrics,
    pub(super) contest: BundleContest,
}

/// The state of a leader between two passes.
#[derive(Default)]
struct LeaderMemory {
    /// The newest authority, and since when it has been in each `caBundle`.
    published: Option<(TrustCertificate, Instant)>,
    /// The number of consecutive failed passes.
    failures: u32,
    /// The number of `caBundle` writes without a calm time between them, and the time of the last one.
    writes: u32,
    wrote: Option<Instant>,
    /// The last problem that was logged.
    problem: Option<String>,
    /// The last contest of a `caBundle` that was logged.
    contest: Option<String>,
}

/// Another client that resets a `caBundle`, as this leader saw it last.
#[derive(Clone, Default)]
pub struct BundleContest(Arc<Mutex<Option<(String, Instant)>>>);

// === impl BundleContest ===

impl BundleContest {
    fn set(&self, contest: &str) {
        *self.0.lock() = Some((contest.to_owned(), Instant::now()));
    }

    /// Returns a sentence about the contest, for `/ready`, until no reset was seen for `CALM`.
    pub fn problem(&self) -> Option<String> {
        let contest = self.0.lock();
        contest.as_ref().filter(|(_, seen)| seen.elapsed() < CALM).map(|(contest, _)| contest.clone())
    }
}

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("could not read {0}: {1}")]
    Read(&'static str, String),
    #[error("could not make a step: {0}")]
    Panicked(Panicked),
    #[error("could not issue a certificate: {0:#}")]
    Issue(anyhow::Error),
    #[error("could not write {0}: {1}")]
    Write(String, WriteError),
    #[error(
        "Secret {0} exists without the label {MANAGED_CERTIFICATE_LABEL}: \"true\", so it is not changed: delete it, or add the label"
    )]
    Foreign(NamespacedName),
}

// === impl CertificateController ===

impl CertificateController {
    /// Acts in each term of this process, until `stop` is cancelled. A pass under way is finished.
    pub(super) async fn run(self, stop: CancellationToken) {
        let (mut leadership, mut term) = (self.leadership.clone(), 0);
        loop {
            tokio::select! {
                next = leadership.next_term(term) => term = next,
                () = stop.cancelled() => return,
            }
            let changed = Notify::new();
            tokio::select! {
                () = self.lead(&changed, &stop) => {}
                () = self.watch(&changed) => {}
                () = leadership.ended() => {}
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// Begins a pass with each change of the Secret and of the configurations.
    async fn watch(&self, changed: &Notify) {
        fn notify<K>(changed: &Notify) -> impl FnMut(Result<Event<K>, watcher::Error>) {
            |event| {
                // Reads fail for the same reason as a watch, and report it.
                if event.is_ok() {
                    changed.notify_one();
                }
            }
        }
        let secret = watcher::Config::default().fields(&format!("metadata.name={}", self.secret.name));
        let labeled = watcher::Config::default().labels(&label());
        join3(
            watched(self.secrets(), secret, notify(changed)),
            watched(Api::<MutatingWebhookConfiguration>::all(self.client.clone()), labeled.clone(), notify(changed)),
            watched(Api::<ValidatingWebhookConfiguration>::all(self.client.clone()), labeled, notify(changed)),
        )
        .await;
    }

    async fn lead(&self, changed: &Notify, stop: &CancellationToken) {
        let mut memory = LeaderMemory::default();
        loop {
            let passed = contain_future(Work::Certifying, self.pass(&mut memory)).await;
            let wait = match passed.unwrap_or_else(|panicked| Err(PassError::Panicked(panicked))) {
                Ok(wait) => {
                    (memory.failures, memory.problem) = (0, None);
                    wait
                }
                Err(error) => {
                    self.report(&mut memory, &error);
                    memory.failures = memory.failures.saturating_add(1);
                    backoff(memory.failures, BACKOFF_BASE, BACKOFF_CAP)
                }
            };
            let pause = memory.pause();
            let next = async {
                sleep(pause).await;
                tokio::select! {
                    () = changed.notified() => {}
                    () = sleep(jittered(wait)) => {}
                }
            };
            tokio::select! {
                () = next => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Makes one step. Returns the time until the next one.
    async fn pass(&self, memory: &mut LeaderMemory) -> Result<Duration, PassError> {
        let secret = self.secrets().get_opt(&self.secret.name).await;
        let secret = secret.map_err(|error| PassError::Read("the Secret", crate::client::describe(&error)))?;
        let state = SecretState::read(secret.as_ref());
        let registrations = self.registrations().await?;
        let published_for = memory.published_for(&state, &registrations);
        let observation = Observation {
            secret: &state,
            registrations: &registrations,
            names: &self.names,
            now: Timestamp::now(),
            published_for,
        };
        let Plan { patches, step } = observation.plan();
        let mut failed = None;
        let is_publishing = !patches.is_empty();
        for patch in patches {
            memory.note_write();
            self.note_contest(memory, &patch);
            failed = self.publish(&patch).await.err().or(failed);
        }
        let now = Timestamp::now();
        let wait = match step {
            NextStep::Refuse => return Err(PassError::Foreign(self.secret.clone())),
            NextStep::IssueAuthority { kept, why } => {
                let new = issue::authority(now).map_err(PassError::Issue)?;
                self.write(secret, &SecretChange::Authority { new, kept }, why).await?;
                Duration::ZERO
            }
            NextStep::IssueLeaf { authority, why } => {
                let pair = issue::leaf(&authority, &self.names, now).map_err(PassError::Issue)?;
                self.write(secret, &SecretChange::Leaf(pair), why).await?;
                Duration::ZERO
            }
            NextStep::Wait(wait) => wait,
        };
        match failed {
            Some(failed) => Err(failed),
            None if is_publishing => Ok(Duration::ZERO),
            None => Ok(wait),
        }
    }

    /// Reads the configurations with our label.
    async fn registrations(&self) -> Result<Vec<Registration>, PassError> {
        let params = ListParams::default().labels(&label()).limit(CONFIGURATIONS);
        let failed =
            |error: kube::Error| PassError::Read("the webhook configurations", crate::client::describe(&error));
        let mutating =
            Api::<MutatingWebhookConfiguration>::all(self.client.clone()).list(&params).await.map_err(failed)?;
        let validating =
            Api::<ValidatingWebhookConfiguration>::all(self.client.clone()).list(&params).await.map_err(failed)?;
        let mutating = mutating.items.into_iter().filter_map(|it| Registration::of_mutating(it, &self.service));
        let validating = validating.items.into_iter().filter_map(|it| Registration::of_validating(it, &self.service));
        Ok(mutating.chain(validating).collect())
    }

    async fn publish(&self, patch: &BundlePatch) -> Result<(), PassError> {
        let result = match patch.kind {
            RegistrationKind::Mutating => self.patch::<MutatingWebhookConfiguration>(patch).await,
            RegistrationKind::Validating => self.patch::<ValidatingWebhookConfiguration>(patch).await,
        };
        self.metrics.published(&result);
        match result {
            Ok(()) => {
                info!(configuration = %patch, "wrote the caBundle");
                Ok(())
            }
            // It was deleted meanwhile.
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(PassError::Write(patch.to_string(), error)),
        }
    }

    async fn patch<K>(&self, patch: &BundlePatch) -> Result<(), WriteError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let json = Patch::<()>::Json(patch.patch.clone());
        self.fence.send(api.patch(&patch.name, &params, &json)).await.map(drop)
    }

    /// Writes the Secret that was read, with a change.
    async fn write(&self, read: Option<Secret>, change: &SecretChange, why: &'static str) -> Result<(), PassError> {
        let exists = read.is_some();
        let secret = change.applied_to(read, &self.secret);
        let (api, params) =
            (self.secrets(), PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() });
        let result = match exists {
            true => self.fence.send(api.replace(&self.secret.name, &params, &secret)).await,
            false => self.fence.send(api.create(&params, &secret)).await,
        };
        let part = change.part();
        self.metrics.rotated(part, &result);
        let written = result.map_err(|error| PassError::Write(format!("Secret {}", self.secret), error))?;
        info!(secret = %self.secret, part, why, "issued a certificate for the webhooks");
        let uid = written.metadata.uid.unwrap_or_default();
        self.notify(Reason::WebhookCertificateIssued, &uid, format!("Issued a new {part} for the webhooks: {why}"));
        Ok(())
    }

    /// Reports that another client resets the `caBundle` again and again.
    fn note_contest(&self, memory: &mut LeaderMemory, patch: &BundlePatch) {
        if memory.writes <= BURST {
            memory.contest = None;
            return;
        }
        let by = patch.other_writer.as_ref().map_or("another client".to_owned(), |manager| format!("{manager:?}"));
        let contest = format!(
            "{by} resets the caBundle of {patch} again and again, so API servers do not trust the webhooks: remove what \
             writes it"
        );
        self.contest.set(&contest);
        if memory.contest.as_ref() != Some(&contest) {
            warn!("{contest}");
            self.notify(Reason::WebhookBundleContested, "", contest.clone());
            memory.contest = Some(contest);
        }
    }

    fn report(&self, memory: &mut LeaderMemory, error: &PassError) {
        let is_expected = match error {
            PassError::Write(_, WriteError::NotLeading) => true,
            // The object changed since it was read.
            PassError::Write(_, error) => error.is_conflict(),
            _ => false,
        };
        let problem = error.to_string();
        if is_expected || memory.problem.as_ref() == Some(&problem) {
            return;
        }
        warn!(problem, "could not renew the certificate of the webhooks, retrying");
        self.notify(Reason::WebhookCertificateFailed, "", problem.clone());
        memory.problem = Some(problem);
    }

    fn notify(&self, reason: Reason, uid: &str, note: String) {
        let regarding = object_reference("v1", "Secret", &self.secret, uid);
        self.events.publish(Notice { reason, regarding, related: None, note });
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.secret.namespace)
    }
}

fn label() -> String {
    format!("{MANAGED_CERTIFICATE_LABEL}=true")
}

// === impl LeaderMemory ===

impl LeaderMemory {
    /// Returns for how long the newest authority has been in each `caBundle`.
    fn published_for(&mut self, state: &SecretState, registrations: &[Registration]) -> Option<Duration> {
        let newest = match state {
            SecretState::Ours(content) => content.signing.as_ref().map(|it| &it.certificate),
            _ => None,
        };
        let newest = newest.filter(|newest| Observation::is_published(registrations, newest));
        self.published = newest.map(|newest| match self.published.take() {
            Some((known, since)) if known == *newest => (known, since),
            _ => (newest.clone(), Instant::now()),
        });
        self.published.as_ref().map(|(_, since)| since.elapsed())
    }

    fn note_write(&mut self) {
        if self.wrote.replace(Instant::now()).is_some_and(|wrote| wrote.elapsed() > CALM) {
            self.writes = 0;
        }
        self.writes = self.writes.saturating_add(1);
    }

    /// Returns the pause until the next pass. It grows while another client resets what we write.
    fn pause(&self) -> Duration {
        match self.writes.checked_sub(BURST) {
            Some(excess) if self.wrote.is_some_and(|wrote| wrote.elapsed() < CALM) => {
                backoff(excess, BACKOFF_BASE, BACKOFF_CAP)
            }
            _ => PAUSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_contest_is_a_problem_until_it_ends() {
        let contest = BundleContest::default();
        assert_eq!(contest.problem(), None);
        contest.set("x");
        sleep(CALM - Duration::from_secs(1)).await;
        assert_eq!(contest.problem().as_deref(), Some("x"));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(contest.problem(), None);
    }
}
