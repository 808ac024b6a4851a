//! Whether the injectors use what was written: each ready replica is asked until it proves it.
//!
//! ```text
//!   reconcile ──Question──▶ prober ──AdmissionReview──▶ replicas of the proxy-injector
//!       ▲                     │ Answers (a nudge to who lags)
//!       └─────WorkQueue────────┘
//! ```
//!
//! Each replica reads the ConfigMap from a mounted file on every request, and the kubelet refreshes that when it likes. So
//! nothing but an answer proves what a replica injects. Asking takes time, and a replica may hang: the controller does not
//! wait for answers, it is told when there are new ones.

mod answers;
mod barrier;
mod connection;
mod prober;
mod review;

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use k8s_openapi::jiff::Timestamp;

use answers::Question;
pub(super) use barrier::{Barrier, Reason};
use barrier::{Input, judge};
pub(super) use prober::Injectors;
pub(super) use review::Expected;

use crate::{
    api::{INJECTOR, INJECTORS_CONFIG_MAP, LinkerdConfigStatus, NamespacedName, linkerd_config::InjectorSyncMethod},
    cluster::{
        Cluster, State,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    },
};

/// The name of the one port that injectors serve on.
const PORT: &str = "proxy-injector";

/// One that is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Replica {
    /// `None` where its EndpointSlice does not say.
    pub(super) pod: Option<Arc<str>>,
    pub(super) address: SocketAddr,
}

// === impl Replica ===

impl Replica {
    /// As people find it.
    pub(super) fn name(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.address.to_string(), |pod| format!("Pod {pod}"))
    }
}

/// The ready replicas in this namespace, each once whatever its addresses. Sorted.
fn replicas(state: &State, namespace: &Arc<str>) -> Vec<Replica> {
    let service = NamespacedName::new(Arc::clone(namespace), INJECTOR);
    let mut replicas = Vec::new();
    for slice in state.slices.ready_of_service(&service) {
        let ports = slice.ports.as_deref().unwrap_or_default();
        let port = ports.iter().find(|port| &*port.name == PORT).or(ports.first());
        let Some(port) = port.and_then(|port| port.number) else { continue };
        for endpoint in &slice.endpoints {
            let Some(address) = endpoint.addresses.first() else { continue };
            replicas.push(Replica { pod: endpoint.target.pod().cloned(), address: SocketAddr::new(*address, port) });
        }
    }
    replicas.sort();
    let mut seen = HashSet::new();
    replicas.retain(|replica| replica.pod.as_ref().is_none_or(|pod| seen.insert(Arc::clone(pod))));
    replicas
}

/// What the injectors shall prove, and to whom.
pub(super) struct Wanted<'a> {
    pub(super) config: &'a LinkerdConfig,
    /// Its status as it was written last.
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) live: Option<&'a ConfigMap>,
    pub(super) expected: Expected,
    /// Just now.
    pub(super) written: bool,
    /// The document was seen to work.
    pub(super) is_proven: bool,
    pub(super) now: Timestamp,
}

impl Injectors {
    /// How things stand with the injectors; they are asked what is not known.
    pub(super) fn barrier(&self, cluster: &Cluster, wanted: Wanted<'_>) -> Barrier {
        let Wanted { config, before, live, expected, written, is_proven, now } = wanted;
        let spec = &config.spec.injector_sync;
        if *config.target.name != *INJECTORS_CONFIG_MAP {
            return Barrier::unread();
        }
        let written_at = live.and_then(|live| live.writers.first()?.time).filter(|_| !written);
        if spec.method == InjectorSyncMethod::Delay {
            self.rest(&config.name);
            let since = if written { now } else { written_at.unwrap_or(Timestamp::UNIX_EPOCH) };
            return judge(&Input { spec, answers: &[], since, now, is_proven });
        }
        if written {
            return Barrier::just_written();
        }
        let replicas = replicas(&cluster.read(), &config.target.namespace);
        let answers = self.ask(Question {
            config: Arc::clone(&config.name),
            target: config.target.clone(),
            expected,
            written: written_at,
            replicas,
            spec: spec.clone(),
        });
        let condition = before.conditions.iter().find(|it| it.type_ == "InjectorSynced" && it.status == "False");
        // Without progress: one that came later, or again, has its time from when it was noticed.
        let waiting = condition.map_or(now, |condition| condition.last_transition_time.0);
        let counted = before.injector.as_ref().and_then(|injector| Some(injector.last_probe_time.as_ref()?.0));
        let since = [written_at, counted].into_iter().flatten().fold(waiting, Timestamp::max);
        judge(&Input { spec, answers: &answers, since, now, is_proven })
    }
}
