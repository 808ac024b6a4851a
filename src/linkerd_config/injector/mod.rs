//! Checks whether the injectors use the written configuration: each ready replica is probed until its answer shows it.
//!
//! ```text
//!   reconcile ──ProbeRequest──▶ prober ──AdmissionReview──▶ replicas of the proxy injector
//!       ▲                         │ ProbeAnswers (and an annotation on the Pod of a replica that lags)
//!       └────────WorkQueue────────┘
//! ```
//!
//! Each replica reads the ConfigMap from a mounted file on every request, and its kubelet refreshes that file at any
//! time. So only an answer shows which configuration a replica injects. A probe takes time, and a replica may hang. So
//! the controller does not wait for answers: the prober queues the resource when an answer changes.

mod admission_review;
mod answers;
mod prober;
mod registration;
mod sync_status;
mod webhook_certificate;
mod webhook_client;

use std::{
    collections::{BTreeSet, HashSet},
    net::SocketAddr,
    sync::Arc,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub(super) use admission_review::ExpectedInjection;
use admission_review::{ProbeAnswer, Stale};
pub(super) use answers::CanaryProbe;
use answers::ProbeRequest;
pub(super) use prober::Injectors;
use registration::InjectorOwner;
use sync_status::{SyncInput, evaluate};
pub(super) use sync_status::{SyncReason, SyncStatus};

use super::canary::{CanaryAdoption, InjectorKind};
use crate::{
    api::{
        INJECTORS_CONFIG_MAP, LinkerdConfigStatus, NamespacedName, POD_TEMPLATE_HASH_LABEL,
        linkerd_config::{ConditionType, InjectorSyncMethod},
    },
    cluster::{
        Cluster, State,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    },
};

/// The name of the one port that injectors serve on.
const PORT: &str = "proxy-injector";
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// A replica of the proxy injector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Replica {
    injector: InjectorOwner,
    /// The namespace of its Service and its Pod.
    namespace: Arc<str>,
    /// `None` if its EndpointSlice does not name a Pod.
    pub(super) pod: Option<Arc<str>>,
    pub(super) address: SocketAddr,
}

// === impl Replica ===

impl Replica {
    /// Returns the name of the replica in messages.
    pub(super) fn name(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.address.to_string(), |pod| format!("Pod {pod}"))
    }
}

/// Returns the ready replicas of these Services, sorted, each once even if it has several addresses.
fn replicas(state: &State, services: impl Iterator<Item = (InjectorOwner, NamespacedName)>) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for (injector, service) in services {
        for slice in state.slices.ready_of_service(&service) {
            let ports = slice.ports.as_deref().unwrap_or_default();
            let port = ports.iter().find(|port| &*port.name == PORT).or(ports.first());
            let Some(port) = port.and_then(|port| port.number) else { continue };
            for endpoint in &slice.endpoints {
                let Some(address) = endpoint.addresses.first() else { continue };
                let (namespace, pod) = (Arc::clone(&service.namespace), endpoint.target.pod().cloned());
                replicas.push(Replica { injector, namespace, pod, address: SocketAddr::new(*address, port) });
            }
        }
    }
    replicas.sort();
    let mut seen = HashSet::new();
    let mut is_first = |replica: &Replica| {
        let pod = replica.pod.as_ref();
        pod.is_none_or(|pod| seen.insert((Arc::clone(&replica.namespace), Arc::clone(pod))))
    };
    replicas.retain(|replica| is_first(replica));
    replicas
}

/// Returns the Pod templates of these replicas, by the label that Deployments set; `None` if one of them is unknown.
fn templates<'a>(state: &State, mut replicas: impl Iterator<Item = &'a Replica>) -> Option<BTreeSet<Arc<str>>> {
    let template = |replica: &Replica| {
        let pod = state.pods.find(&replica.namespace, replica.pod.as_ref()?)?;
        pod.labels.get(POD_TEMPLATE_HASH_LABEL).cloned()
    };
    replicas.try_fold(BTreeSet::new(), |mut found, replica| {
        found.insert(template(replica)?);
        Some(found)
    })
}

/// The inputs of the check whether the injectors use a configuration.
pub(super) struct SyncRequest<'a> {
    pub(super) config: &'a LinkerdConfig,
    /// The status that was written last.
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) live: Option<&'a ConfigMap>,
    pub(super) expected: ExpectedInjection,
    pub(super) canary: Option<CanaryProbe>,
    /// Whether this reconcile has written the ConfigMap.
    pub(super) written: bool,
    /// Whether all injectors have accepted the document before.
    pub(super) is_proven: bool,
    pub(super) now: Timestamp,
}

impl Injectors {
    /// Returns the ready replicas of the injectors that read the ConfigMaps of this namespace.
    fn replicas(&self, state: &State, namespace: &Arc<str>) -> Vec<Replica> {
        let services = self.services();
        replicas(state, services.all(namespace))
    }

    /// Returns the Pod templates of the ready replicas; `None` if one of them is unknown.
    pub(super) fn ready_templates(&self, state: &State, namespace: &Arc<str>) -> Option<BTreeSet<Arc<str>>> {
        templates(state, self.replicas(state, namespace).iter())
    }

    /// Returns the program of the ready replicas.
    pub(super) fn kind(&self, cluster: &Cluster, namespace: &Arc<str>) -> InjectorKind {
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
    pub(super) fn canary_adoption(
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
    pub(super) fn sync_status(&self, cluster: &Cluster, request: SyncRequest<'_>) -> SyncStatus {
        let SyncRequest { config, before, live, expected, canary, written, is_proven, now } = request;
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
        let condition = before.condition(ConditionType::InjectorSynced).filter(|it| it.status == "False");
        // The timeout starts with the last progress: the write, a change of the counts, or the time when the condition
        // became False.
        let waiting = condition.map_or(now, |condition| condition.last_transition_time.0);
        let counted = before.injector.as_ref().and_then(|injector| Some(injector.last_probe_time.as_ref()?.0));
        let since = [written_at, counted].into_iter().flatten().fold(waiting, Timestamp::max);
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
