//! The ready replicas of the proxy injector. Pure.
//!
//! In: the EndpointSlices and Pods in the state. Out: the [`Replica`]s, each once. Always holds: they are sorted, so
//! that the same state gives the same order.

use std::{
    collections::{BTreeSet, HashSet},
    net::SocketAddr,
    sync::Arc,
};

use super::registration::InjectorOwner;
use crate::{
    api::{NamespacedName, POD_TEMPLATE_HASH_LABEL},
    cluster::State,
};

/// The name of the one port that injectors serve on.
const PORT: &str = "proxy-injector";

/// A replica of the proxy injector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Replica {
    pub(super) injector: InjectorOwner,
    /// The namespace of its Service and its Pod.
    pub(super) namespace: Arc<str>,
    /// `None` if its EndpointSlice does not name a Pod.
    pub(crate) pod: Option<Arc<str>>,
    pub(crate) address: SocketAddr,
}

// === impl Replica ===

impl Replica {
    /// Returns the name of the replica in messages.
    pub(crate) fn name(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.address.to_string(), |pod| format!("Pod {pod}"))
    }
}

/// Returns the ready replicas of these Services, sorted, each once even if it has several addresses.
pub(super) fn replicas(state: &State, services: impl Iterator<Item = (InjectorOwner, NamespacedName)>) -> Vec<Replica> {
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
pub(super) fn templates<'a>(
    state: &State,
    mut replicas: impl Iterator<Item = &'a Replica>,
) -> Option<BTreeSet<Arc<str>>> {
    let template = |replica: &Replica| {
        let pod = state.pods.find(&replica.namespace, replica.pod.as_ref()?)?;
        pod.labels.get(POD_TEMPLATE_HASH_LABEL).cloned()
    };
    replicas.try_fold(BTreeSet::new(), |mut found, replica| {
        found.insert(template(replica)?);
        Some(found)
    })
}
