//! Changes while a stream is open: which messages they cause, and which changes cause none.
//!
//! The random clusters have the other changes: `oracle.rs` on a real API server, and `src/destination/oracle_tests.rs`
//! for any order of events. Unit tests of snapshots hold that a message has only what changed.

use anyhow::Result;
use e2e::discovery::Endpoints;
use serde_json::json;

use super::{
    QUIET, Served, add, brings,
    objects::{
        address, hinted, meshed, node, of_pod, of_workload, opaque_server, pod, server, service, slice, slice_v6,
        workload,
    },
    received::{self, traits},
    remove,
};

const A: &str = "192.0.2.1:8080";
const B: &str = "192.0.2.2:8080";
const C: &str = "192.0.2.3:8080";

/// Creates a Service `web` with one slice of these addresses, and returns a stream that has received them.
async fn web(rig: &Served, addresses: &[&str]) -> Result<Endpoints> {
    let endpoints: Vec<_> = addresses.iter().filter_map(|at| at.split(':').next()).map(address).collect();
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    rig.shows("web:80", addresses).await
}

#[tokio::test]
async fn slices_are_added_changed_and_deleted() -> Result<()> {
    let rig = Served::start("slices").await?;
    let mut stream = web(&rig, &[A]).await?;
    rig.put(slice("second", "web", &[address("192.0.2.2")])).await?;
    brings(&mut stream, &[add(&[B])?]).await?;
    rig.set_endpoints("second", &[address("192.0.2.2"), address("192.0.2.3")]).await?;
    brings(&mut stream, &[add(&[C])?]).await?;
    rig.set_endpoints("second", &[address("192.0.2.3")]).await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    rig.set_endpoints("second", &[address("192.0.2.2")]).await?;
    brings(&mut stream, &[add(&[B])?, remove(&[C])?]).await?;
    // Endpoints of the other slices stay when one slice is deleted.
    rig.delete("EndpointSlice", "web").await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    rig.patch("EndpointSlice", "second", json!({"endpoints": [], "ports": []})).await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    rig.delete("EndpointSlice", "second").await?;
    rig.put(slice("web", "web", &[address("192.0.2.1")])).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn a_target_may_be_created_after_its_slice_deleted_and_recreated() -> Result<()> {
    let rig = Served::start("after").await?;
    let endpoints = [address("192.0.2.1"), of_pod("192.0.2.2", "web-1"), of_workload("192.0.2.3", "vm")];
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    let mut stream = rig.shows("web:80", &[A]).await?;
    rig.put(meshed("web-1")).await?;
    brings(&mut stream, &[add(&[B])?]).await?;
    rig.put(workload("vm")).await?;
    brings(&mut stream, &[add(&[C])?]).await?;
    rig.delete("Pod", "web-1").await?;
    brings(&mut stream, &[remove(&[B])?]).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    brings(&mut stream, &[remove(&[C])?]).await?;
    // A new object with the same name is used, with its own traits.
    rig.put_all([pod("web-1"), workload("vm")]).await?;
    let expected = [(A, ""), (B, ""), (C, "h2 4143 identity http2")];
    received::wait_for(&mut stream, traits, expected.map(|(at, traits)| (at, traits.to_owned()))).await
}

#[tokio::test]
async fn a_deleted_service_empties_its_stream_and_a_recreated_one_fills_it() -> Result<()> {
    let rig = Served::start("again").await?;
    let mut stream = web(&rig, &[A, B]).await?;
    for _ in 0..2 {
        rig.delete("Service", "web").await?;
        brings(&mut stream, &[remove(&[A, B])?]).await?;
        let (code, text) = rig.discovery.refusal(&rig.path("web"), "").await?;
        assert_eq!((code, text), (tonic::Code::NotFound, format!("Service web.{} not found", rig.name())));
        // The slices have not changed, so they cause no watch event.
        rig.put(service("web")).await?;
        brings(&mut stream, &[add(&[A, B])?]).await?;
    }
    // A change while the Service is absent takes effect.
    rig.delete("Service", "web").await?;
    brings(&mut stream, &[remove(&[A, B])?]).await?;
    rig.set_endpoints("web", &[address("192.0.2.3")]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.put(service("web").with(json!({"spec": {"ports": [{"name": "other", "port": 80}]}}))).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.patch("Service", "web", json!({"spec": {"ports": [{"name": "http", "port": 80}]}})).await?;
    brings(&mut stream, &[add(&[C])?]).await
}

#[tokio::test]
async fn changes_that_a_client_cannot_observe_cause_no_message() -> Result<()> {
    let rig = Served::start("nothing").await?;
    let elsewhere = Served::start("nothing-elsewhere").await?;
    let zone_node = format!("{}-node", rig.name());
    rig.put_all([
        service("web"),
        service("other"),
        meshed("web-1"),
        workload("vm"),
        node(&zone_node, Some("zone-1")),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_workload("192.0.2.2", "vm")]),
        slice("other", "other", &[address("192.0.2.8")]),
    ])
    .await?;
    let mut anywhere = rig.shows("web:80", &[A, B]).await?;
    let mut on_node = rig.get_from("web:80", &zone_node).await?;
    on_node.shows(&[A, B]).await?;
    let note = json!({"metadata": {"annotations": {"note": "touched"}, "labels": {"note": "touched"}}});
    for (kind, name) in [
        ("Service", "web"),
        ("EndpointSlice", "web"),
        ("Pod", "web-1"),
        ("ExternalWorkload", "vm"),
        ("Node", &zone_node),
    ] {
        rig.patch(kind, name, note.clone()).await?;
    }
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let (params, patch) = (kube::api::PatchParams::default(), kube::api::Patch::Merge(&ready));
    rig.api("Pod").patch_status("web-1", &params, &patch).await?;
    rig.api("ExternalWorkload").patch_status("vm", &params, &patch).await?;
    rig.patch(
        "Service",
        "web",
        json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": 1}], "type": "NodePort"}}),
    )
    .await?;
    rig.set_endpoints("other", &[address("192.0.2.9")]).await?;
    rig.put_all([
        opaque_server("port", json!(9999)),
        server("http", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "HTTP/1"})),
        slice("empty", "web", &[]),
        // IPv6 addresses of Pods are not served, and this stream does not use ports with another name.
        slice_v6("v6", "web", &[of_pod("2001:db8::1", "web-1")]),
        slice("admin", "web", &[address("192.0.2.7")]).with(json!({"ports": [{"name": "admin", "port": 9990}]})),
        // No endpoint refers to these objects.
        pod("stranger"),
        workload("stranger"),
        slice("missing", "web", &[of_pod("192.0.2.6", "missing")]),
    ])
    .await?;
    elsewhere
        .put_all([service("web"), opaque_server("web", json!(8080)), slice("web", "web", &[address("192.0.2.5")])])
        .await?;
    elsewhere.shows("web:80", &["192.0.2.5:8080"]).await?;
    rig.delete("EndpointSlice", "empty").await?;
    rig.patch("Server", "http", note.clone()).await?;
    anywhere.is_quiet_for(QUIET).await?;
    on_node.is_quiet_for(QUIET).await?;
    // The streams still work, and their next message contains only this change.
    rig.put(slice("last", "web", &[address("192.0.2.3")])).await?;
    brings(&mut anywhere, &[add(&[C])?]).await?;
    brings(&mut on_node, &[add(&[C])?]).await
}

#[tokio::test]
async fn a_later_stream_begins_with_one_full_add_and_the_others_receive_nothing() -> Result<()> {
    let rig = Served::start("joiner").await?;
    let here = format!("{}-here", rig.name());
    rig.put(node(&here, Some("here"))).await?;
    let mut first = web(&rig, &[A, B]).await?;
    let mut second = rig.get("web:80").await?;
    brings(&mut second, &[add(&[A, B])?]).await?;
    first.is_quiet_for(QUIET).await?;
    // A stream of another zone has separate endpoints, and closing a stream does not affect the others.
    let mut local = rig.get_from("web:80", &here).await?;
    brings(&mut local, &[add(&[A, B])?]).await?;
    drop(first);
    rig.set_endpoints("web", &[hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"])])
        .await?;
    local.shows(&[A]).await?;
    rig.set_endpoints("web", &[address("192.0.2.3")]).await?;
    second.shows(&[C]).await?;
    local.shows(&[C]).await?;
    assert!(!second.messages.contains(&remove(&[B])?), "the hints apply to node {here} only: {:?}", second.messages);
    Ok(())
}
