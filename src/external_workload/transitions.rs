//! The workloads that a write to the slices of a Service published, unpublished, or made ready or unready. Pure.
//!
//! Transitions are the difference that the write made to the slices. A restart or a new leader therefore repeats none,
//! and a failed write causes none.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    endpoint,
    findings::{service_reference, workload_reference},
};
use crate::{
    api::{
        NamespacedName,
        endpoint_slice::{Endpoint, EndpointSlice},
    },
    cluster::kinds::service::Service,
    events::{Notice, Reason},
};

/// A change of a workload in the Service's slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub workload: Arc<str>,
    uid: String,
    addresses: Vec<String>,
    pub kind: TransitionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransitionKind {
    Published(PublishedReadiness),
    Unpublished,
    Became(PublishedReadiness),
}

/// The readiness of a workload in the slices of a Service. The worst one of all slices counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PublishedReadiness {
    /// The workload has none of the ports of the Service.
    WithoutPort,
    Unready,
    /// Not ready, but clients receive it because of `publishNotReadyAddresses`.
    UnreadyWithTraffic,
    Ready,
}

/// The endpoints of one workload in all families.
struct Placement {
    readiness: PublishedReadiness,
    uid: String,
    addresses: Vec<String>,
}

/// Returns the difference between the Service's slices `before` and `after` a write.
pub(super) fn transitions(
    service: &Service,
    before: &[Arc<EndpointSlice>],
    after: &[Arc<EndpointSlice>],
) -> Vec<Transition> {
    let mut before = placements(service, before);
    let mut transitions = Vec::new();
    let mut push = |workload: &str, placement: Placement, kind| {
        let Placement { uid, addresses, .. } = placement;
        transitions.push(Transition { workload: workload.into(), uid, addresses, kind });
    };
    for (workload, now) in placements(service, after) {
        let kind = match before.remove(workload) {
            None => TransitionKind::Published(now.readiness),
            Some(then) if then.readiness == now.readiness => continue,
            Some(_) => TransitionKind::Became(now.readiness),
        };
        push(workload, now, kind);
    }
    for (workload, then) in before {
        push(workload, then, TransitionKind::Unpublished);
    }
    transitions
}

fn placements<'a>(service: &Service, slices: &'a [Arc<EndpointSlice>]) -> BTreeMap<&'a str, Placement> {
    let mut placements: BTreeMap<&str, Placement> = BTreeMap::new();
    let ours = slices.iter().filter(|slice| slice.is_owned_by(&service.uid) && !slice.is_terminating());
    let endpoints = ours.flat_map(|slice| slice.endpoints.iter().map(move |endpoint| (slice, endpoint)));
    for (slice, endpoint) in endpoints {
        let Some(workload) = endpoint::workload(service, endpoint) else { continue };
        let entry = placements.entry(workload).or_insert_with(|| Placement {
            readiness: PublishedReadiness::Ready,
            uid: endpoint.target_ref.as_ref().and_then(|target| target.uid.clone()).unwrap_or_default(),
            addresses: Vec::new(),
        });
        entry.readiness = entry.readiness.min(PublishedReadiness::of(service, slice, endpoint));
        entry.addresses.extend(endpoint.addresses.iter().cloned());
    }
    placements
}

// === impl PublishedReadiness ===

impl PublishedReadiness {
    fn of(service: &Service, slice: &EndpointSlice, endpoint: &Endpoint) -> Self {
        // A headless Service may have no ports at all.
        if slice.ports.is_empty() && !service.all_ports.is_empty() {
            return Self::WithoutPort;
        }
        match (endpoint.is_ready(), endpoint.conditions.serving) {
            (false, _) => Self::Unready,
            (true, Some(false)) => Self::UnreadyWithTraffic,
            (true, _) => Self::Ready,
        }
    }
}

// === impl Transition ===

impl Transition {
    pub(super) fn notice(&self, service: &Service) -> Notice {
        let name = &service.key.name;
        let addresses = self.addresses.join(" and ");
        let without_tcp = match service.all_ports.is_empty() || service.tcp_ports().next().is_some() {
            true => "",
            false => "; the Service has no TCP port, and proxies forward nothing else",
        };
        let (reason, note) = match self.kind {
            TransitionKind::Published(readiness) => {
                let readiness = match readiness {
                    PublishedReadiness::WithoutPort => "which receives no traffic, because it has none of its ports",
                    PublishedReadiness::Ready => "ready",
                    PublishedReadiness::Unready => "not ready, so it receives no traffic yet",
                    PublishedReadiness::UnreadyWithTraffic => {
                        "not ready, but it receives traffic because of publishNotReadyAddresses"
                    }
                };
                let note = format!("Published as an endpoint of Service {name}: {addresses}, {readiness}{without_tcp}");
                (Reason::Published, note)
            }
            TransitionKind::Unpublished => {
                (Reason::Unpublished, format!("No longer an endpoint of Service {name}: {addresses}"))
            }
            TransitionKind::Became(PublishedReadiness::Ready) => {
                let note = format!("Ready: Service {name} sends it traffic at {addresses}{without_tcp}");
                (Reason::BecameReady, note)
            }
            TransitionKind::Became(PublishedReadiness::Unready) => {
                (Reason::BecameUnready, format!("Not ready: Service {name} no longer sends it traffic at {addresses}"))
            }
            TransitionKind::Became(PublishedReadiness::WithoutPort) => {
                let note =
                    format!("Without traffic: the workload has none of the ports of Service {name}: {addresses}");
                (Reason::BecameUnready, note)
            }
            TransitionKind::Became(PublishedReadiness::UnreadyWithTraffic) => {
                let note = format!(
                    "Not ready: Service {name} sends it traffic at {addresses} because of publishNotReadyAddresses"
                );
                (Reason::BecameUnready, note)
            }
        };
        let workload = NamespacedName::new(Arc::clone(&service.key.namespace), Arc::clone(&self.workload));
        Notice {
            reason,
            regarding: workload_reference(&workload, &self.uid),
            related: Some(service_reference(service)),
            note,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::service;

    #[test]
    fn traffic_of_a_service_without_a_tcp_port_is_not_that_of_proxies() {
        let note = |ports: serde_json::Value, kind| {
            let transition = Transition {
                workload: "vm".into(),
                uid: "uid".to_owned(),
                addresses: vec!["192.0.2.5".to_owned()],
                kind,
            };
            transition.notice(&service(&json!({ "ports": ports }))).note
        };
        let (udp, tcp) = (json!([{"port": 80, "protocol": "UDP"}]), json!([{"port": 80}]));
        let (published, became) =
            (TransitionKind::Published(PublishedReadiness::Ready), TransitionKind::Became(PublishedReadiness::Ready));
        let end = "; the Service has no TCP port, and proxies forward nothing else";
        let sentences = [
            (published, "Published as an endpoint of Service legacy: 192.0.2.5, ready"),
            (became, "Ready: Service legacy sends it traffic at 192.0.2.5"),
        ];
        for (kind, sentence) in sentences {
            assert_eq!(note(udp.clone(), kind), format!("{sentence}{end}"));
            for ports in [&tcp, &json!([{"port": 53, "protocol": "UDP"}, {"port": 53}]), &json!([])] {
                assert_eq!(note(ports.clone(), kind), sentence, "{ports}");
            }
        }
    }
}
