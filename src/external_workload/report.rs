//! What a plan means to people: which workloads appear, disappear or turn, and what is wrong with them. Pure.
//!
//! Transitions are the difference that a write made to the slices, so a restart or a change of leaders repeats none, and what
//! was not written is not told.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ObjectReference;

use super::endpoint;
use crate::{
    api::{EXTERNAL_WORKLOAD_KIND, NamespacedName, endpoint_slice::EndpointSlice},
    cluster::kinds::{external_workload::ExternalWorkload, service::Service},
    events::{Notice, Reason},
};

/// A workload whose place in the Service's slices changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub workload: Arc<str>,
    uid: String,
    addresses: Vec<String>,
    pub change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Published { ready: bool },
    Unpublished,
    BecameReady,
    BecameUnready,
}

/// Something about a workload that its owner has to mend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Finding {
    workload: NamespacedName,
    uid: Arc<str>,
    reason: Reason,
    text: String,
}

/// What stands in slices for one workload, over both families.
struct Seen {
    /// In every slice.
    ready: bool,
    uid: String,
    addresses: Vec<String>,
}

/// The difference between what the Service's slices held `before` and what they hold `after`.
pub(super) fn transitions(
    service: &Service,
    before: &[Arc<EndpointSlice>],
    after: &[Arc<EndpointSlice>],
) -> Vec<Transition> {
    let mut before = seen(service, before);
    let mut transitions = Vec::new();
    let mut push = |workload: &str, seen: Seen, change| {
        let Seen { uid, addresses, .. } = seen;
        transitions.push(Transition { workload: workload.into(), uid, addresses, change });
    };
    for (workload, now) in seen(service, after) {
        let change = match before.remove(workload) {
            None => Change::Published { ready: now.ready },
            Some(then) if then.ready == now.ready => continue,
            Some(_) if now.ready => Change::BecameReady,
            Some(_) => Change::BecameUnready,
        };
        push(workload, now, change);
    }
    for (workload, then) in before {
        push(workload, then, Change::Unpublished);
    }
    transitions
}

fn seen<'a>(service: &Service, slices: &'a [Arc<EndpointSlice>]) -> BTreeMap<&'a str, Seen> {
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    let ours = slices.iter().filter(|slice| slice.is_owned_by(&service.uid) && !slice.is_terminating());
    for endpoint in ours.flat_map(|slice| &slice.endpoints) {
        let Some(workload) = endpoint::workload(service, endpoint) else { continue };
        let entry = seen.entry(workload).or_insert_with(|| Seen {
            ready: true,
            uid: endpoint.target_ref.as_ref().and_then(|target| target.uid.clone()).unwrap_or_default(),
            addresses: Vec::new(),
        });
        entry.ready &= endpoint.is_ready();
        entry.addresses.extend(endpoint.addresses.iter().cloned());
    }
    seen
}

// === impl Transition ===

impl Transition {
    pub(super) fn notice(&self, service: &Service) -> Notice {
        let name = &service.key.name;
        let addresses = self.addresses.join(" and ");
        let (reason, note) = match self.change {
            Change::Published { ready: true } => {
                (Reason::Published, format!("Published as an endpoint of Service {name}: {addresses}, ready"))
            }
            Change::Published { ready: false } => (
                Reason::Published,
                format!(
                    "Published as an endpoint of Service {name}: {addresses}, not ready, so it receives no traffic yet"
                ),
            ),
            Change::Unpublished => {
                (Reason::Unpublished, format!("No longer an endpoint of Service {name}: {addresses}"))
            }
            Change::BecameReady => {
                (Reason::BecameReady, format!("Ready: Service {name} sends it traffic at {addresses}"))
            }
            Change::BecameUnready => {
                (Reason::BecameUnready, format!("Not ready: Service {name} sends it no more traffic at {addresses}"))
            }
        };
        let workload = NamespacedName::new(Arc::clone(&service.key.namespace), Arc::clone(&self.workload));
        Notice { reason, regarding: workload_reference(&workload, &self.uid), related: Some(reference(service)), note }
    }
}

// === impl Finding ===

impl Finding {
    pub(super) fn new(workload: &ExternalWorkload, reason: Reason, text: String) -> Self {
        Self { workload: workload.key.clone(), uid: Arc::clone(&workload.uid), reason, text }
    }

    pub(super) fn notice(&self, service: &Service) -> Notice {
        let note = format!("As an endpoint of Service {}: {}", service.key.name, self.text);
        Notice {
            reason: self.reason,
            regarding: workload_reference(&self.workload, &self.uid),
            related: Some(reference(service)),
            note,
        }
    }
}

/// The Service, as the object of an Event.
pub(super) fn reference(service: &Service) -> ObjectReference {
    object_reference("v1", "Service", &service.key, &service.uid)
}

fn workload_reference(workload: &NamespacedName, uid: &str) -> ObjectReference {
    object_reference("workload.linkerd.io/v1beta1", EXTERNAL_WORKLOAD_KIND, workload, uid)
}

fn object_reference(api_version: &str, kind: &str, key: &NamespacedName, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
