//! Checks whether the injectors use the written configuration: each ready replica is probed until its answer shows it.
//!
//! ```text
//!   reconcile ──ProbeRequest──▶ prober ──AdmissionReview──▶ replicas of the proxy injector
//!       ▲                         │ ProbeAnswers (and an annotation on the Pod of a replica that lags)
//!       └────────WorkQueue────────┘
//! ```
//!
//! In: the written configuration, from a reconcile. Out: whether the injectors use it. Always holds: only the answer of
//! a replica shows which configuration it injects, because Linkerd's injector reads the ConfigMap from a mounted file
//! that the kubelet refreshes at any time; the controller never waits for an answer, because a replica may hang: the
//! prober queues the resource when an answer changes.

mod admission_review;
mod answers;
mod prober;
mod registration;
mod replica;
mod sync_status;
mod webhook_certificate;
mod webhook_client;

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub(crate) use admission_review::ExpectedInjection;
use admission_review::{ProbeAnswer, Stale};
pub(crate) use answers::CanaryProbe;
use answers::ProbeRequest;
pub(crate) use prober::Injectors;
use replica::{Replica, replicas, templates};
use sync_status::{SyncInput, evaluate};
pub(crate) use sync_status::{SyncReason, SyncStatus};

use crate::{
    api::{INJECTORS_CONFIG_MAP, linkerd_config::InjectorSyncMethod},
    cluster::{
        Cluster, State,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    },
};

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// The program of the ready injectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InjectorKind {
    /// Not all ready replicas have answered, or none is ready.
    Unknown,
    Operators,
    /// The name of a replica that is not the operator's.
    Other(String),
}

/// Whether the injectors use the document for the canary namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CanaryAdoption {
    Waiting,
    Adopted,
    /// The name of a replica that does not use it in time.
    Refused(String),
}

/// The inputs of the check whether the injectors use a configuration.
pub(crate) struct SyncRequest<'a> {
    pub(crate) config: &'a LinkerdConfig,
    /// When the injectors last came closer to the configuration, as far as the status shows it.
    pub(crate) advanced: Timestamp,
    pub(crate) live: Option<&'a ConfigMap>,
    pub(crate) expected: ExpectedInjection,
    pub(crate) canary: Option<CanaryProbe>,
    /// Whether this reconcile has written the ConfigMap.
    pub(crate) written: bool,
    /// Whether all injectors have accepted the document before.
    pub(crate) is_proven: bool,
    pub(crate) now: Timestamp,
}

impl Injectors {
    /// Returns the ready replicas of the injectors that read the ConfigMaps of this namespace.
    fn replicas(&self, state: &State, namespace: &Arc<str>) -> Vec<Replica> {
        let services = self.services();
        replicas(state, services.all(namespace))
    }

    /// Returns the Pod templates of the ready replicas; `None` if one of them is unknown.
    pub(crate) fn ready_templates(&self, state: &State, namespace: &Arc<str>) -> Option<BTreeSet<Arc<str>>> {
        templates(state, self.replicas(state, namespace).iter())
    }

    /// Returns the program of the ready replicas.
    pub(crate) fn kind(&self, cluster: &Cluster, namespace: &Arc<str>) -> InjectorKind {
        let replicas = self.replicas(&cluster.read(), namespace);
        let answers = self.answers.lock();
        let are_operators: Vec<_> = replicas.iter().map(|replica| answers.is_operators(replica)).collect();
        match are_operators.iter().position(|is_operators| *is_operators == Some(false)) {
            Some(other) => InjectorKind::Other(replicas.get(other).map(Replica::name).unwrap_or_default()),
            None if replicas.is_empty() || are_operators.contains(&None) => InjectorKind::Unknown,
            None => InjectorKind::Operators,
        }
    }

    /// Returns whether the ready replicas use the configuration with this injection hash for the canary namespaces.
    /// `is_late` is whether the timeout of the injectors has passed.
    pub(crate) fn canary_adoption(
        &self,
        cluster: &Cluster,
        namespace: &Arc<str>,
        injection_hash: &str,
        is_late: bool,
    ) -> CanaryAdoption {
        let replicas = self.replicas(&cluster.read(), namespace);
        let answers = self.answers.lock();
        let of = |replica: &Replica| answers.about_canary(replica, injection_hash);
        let refuses = |replica: &&Replica| of(replica) == Some(&ProbeAnswer::Stale(Stale::Canary));
        match replicas.iter().find(refuses).filter(|_| is_late) {
            Some(refusing) => CanaryAdoption::Refused(refusing.name()),
            None if !replicas.is_empty() && replicas.iter().all(|it| of(it) == Some(&ProbeAnswer::Current)) => {
                CanaryAdoption::Adopted
            }
            None => CanaryAdoption::Waiting,
        }
    }

    /// Evaluates the answers so far, and makes the prober probe the replicas that are not current.
    pub(crate) fn sync_status(&self, cluster: &Cluster, request: SyncRequest<'_>) -> SyncStatus {
        let SyncRequest { config, advanced, live, expected, canary, written, is_proven, now } = request;
        let spec = &config.spec.injector_sync;
        if *config.target.name != *INJECTORS_CONFIG_MAP {
            return SyncStatus::unread();
        }
        let written_at = live.and_then(|live| live.writers.first()?.time).filter(|_| !written);
        if spec.method == InjectorSyncMethod::Delay {
            self.stop(&config.name);
            let since = if written { now } else { written_at.unwrap_or(Timestamp::UNIX_EPOCH) };
            return evaluate(&SyncInput { spec, answers: &[], since, now, is_proven });
        }
        if written {
            return SyncStatus::just_written();
        }
        let replicas = self.replicas(&cluster.read(), &config.target.namespace);
        let answers = self.request_probes(ProbeRequest {
            config: Arc::clone(&config.name),
            target: config.target.clone(),
            expected,
            canary,
            written: written_at,
            replicas,
            spec: spec.clone(),
        });
        // The timeout starts with the last progress, or with a later write.
        let since = written_at.map_or(advanced, |written| written.max(advanced));
        // These times are whole seconds, rounded down. A timeout must not begin before the write.
        let since = if since == now { now } else { since.saturating_add(SECOND).unwrap_or(now) };
        let status = evaluate(&SyncInput { spec, answers: &answers, since, now, is_proven });
        if !status.is_denied {
            return status;
        }
        let denying = answers.iter().filter(|(_, answer)| answer.as_ref().is_some_and(answers::denies));
        let denied_by = templates(&cluster.read(), denying.map(|(replica, _)| replica));
        SyncStatus { denied_by: denied_by.unwrap_or_default(), ..status }
    }
}
