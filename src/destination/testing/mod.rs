//! Test fixtures of the destination server.

#[cfg(test)]
pub(super) mod rig;

use std::{cell::RefCell, time::Duration};

use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{
    get::members::Members,
    settings::{DestinationLimits, DestinationSettings, Http2Params, TransportMode},
};
use crate::{
    api::NamespacedName,
    cluster::{Kind, Problems, kinds::port_ranges::PortRanges, testing::Feed},
    memory::MemoryBudget,
};

/// The settings of upstream's tests.
pub(super) fn settings() -> DestinationSettings {
    DestinationSettings {
        controller_namespace: "linkerd".into(),
        cluster_domain: "mycluster.local".into(),
        identity_trust_domain: "trust.domain".into(),
        default_opaque_ports: PortRanges::parse("25,443,587,3306,5432,11211", [], &mut Problems::default()),
        outbound_transport_mode: TransportMode::Transparent,
        enable_h2_upgrade: true,
        enable_ipv6: true,
        ext_endpoint_zone_weights: false,
        meshed_http2_client_params: Http2Params::default(),
        strict_upstream_parity: false,
        limits: DestinationLimits {
            connections: 10,
            streams: 100,
            streams_per_connection: 100,
            memory: MemoryBudget::UNLIMITED,
            stream_wait: Duration::from_millis(1_500),
            stream_stall_timeout: Duration::from_secs(60),
        },
    }
}

/// The members of the Service `ns/web`, which has no ports and no selector, in a cluster with these objects. Their
/// namespace is `ns`, unless they set another.
pub(super) fn members(objects: impl IntoIterator<Item = (Kind, Value)>) -> Members {
    let web = (Kind::Service, json!({"metadata": {"name": "web"}}));
    members_of(std::iter::once(web).chain(objects))
}

/// The members of `ns/web`. The Service is one of the objects, or does not exist.
pub(super) fn members_of(objects: impl IntoIterator<Item = (Kind, Value)>) -> Members {
    let mut feed = Feed::default();
    for (kind, mut object) in objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        if kind != Kind::Node {
            metadata.entry("namespace").or_insert("ns".into());
        }
        feed.apply(kind, Event::Apply(object));
    }
    Members::of(&feed.cluster.read(), &NamespacedName::new("ns", "web"))
}

/// A slice of `ns/web`.
pub(super) fn slice(name: &str, ports: &Value, endpoints: &[Value]) -> (Kind, Value) {
    let metadata = json!({"name": name, "labels": {"kubernetes.io/service-name": "web"}});
    (Kind::EndpointSlice, json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}))
}

/// An endpoint with a targetRef.
pub(super) fn endpoint(address: &str, kind: &str, name: &str) -> Value {
    json!({"addresses": [address], "targetRef": {"kind": kind, "name": name}})
}

thread_local! {
    static INTERLEAVED: RefCell<Option<Box<dyn FnMut()>>> = RefCell::default();
}

/// Runs `body`. Meanwhile, `step` is called on this thread wherever a stream has read something that another thread may
/// change before the stream reads the next thing.
pub(super) fn interleaved<R>(step: impl FnMut() + 'static, body: impl FnOnce() -> R) -> R {
    INTERLEAVED.set(Some(Box::new(step)));
    let result = body();
    INTERLEAVED.set(None);
    result
}

/// A place where other threads may run between two reads of a stream.
pub(super) fn interleave() {
    // Taken while it runs: what the step calls is not interleaved itself.
    if let Some(mut step) = INTERLEAVED.take() {
        step();
        INTERLEAVED.set(Some(step));
    }
}
