//! The endpoints that each client receives: hostnames, internalTrafficPolicy, zone hints, and zone labels.

use anyhow::Result;
use e2e::discovery::{Message, token};
use serde_json::{Value, json};

use super::{
    QUIET, Rig, add, brings,
    objects::{address, but, hinted, meshed, node, of_pod, of_workload, service, slice, workload},
    received, remove,
};

const A: &str = "192.0.2.1:8080";
const B: &str = "192.0.2.2:8080";
const C: &str = "192.0.2.3:8080";

/// Creates a node for this test. Its name includes the namespace, because nodes are cluster-scoped.
async fn client_in(rig: &Rig, zone: Option<&str>) -> Result<String> {
    let name = format!("{}-{}", rig.name(), zone.unwrap_or("nowhere"));
    rig.put(node(&name, zone)).await?;
    Ok(name)
}

fn named(endpoint: Value, hostname: &str) -> Value {
    but(endpoint, json!({ "hostname": hostname }))
}

fn local(service: super::objects::Object) -> super::objects::Object {
    service.with(json!({"spec": {"internalTrafficPolicy": "Local"}}))
}

#[tokio::test]
async fn an_instance_follows_its_hostname_to_another_endpoint() -> Result<()> {
    let rig = Rig::start("instance").await?;
    let endpoints = [named(of_pod("192.0.2.1", "db-0"), "db-0"), named(of_pod("192.0.2.2", "db-1"), "db-1")];
    rig.put_all([service("db"), meshed("db-0"), meshed("db-1"), slice("db", "db", &endpoints)]).await?;
    let mut stream = rig.shows("db-0.db:80", &[A]).await?;
    rig.set_endpoints("db", &[named(of_pod("192.0.2.2", "db-1"), "db-1")]).await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    rig.set_endpoints("db", &[named(of_pod("192.0.2.2", "db-1"), "db-0")]).await?;
    brings(&mut stream, &[add(&[B])?]).await
}

#[tokio::test]
async fn changed_hints_are_followed_without_intermediate_endpoints() -> Result<()> {
    let rig = Rig::start("change").await?;
    let client = client_in(&rig, Some("here")).await?;
    let (here, there) = (hinted(address("192.0.2.1"), &["here"]), hinted(address("192.0.2.2"), &["there"]));
    rig.put_all([service("web"), slice("web", "web", &[here.clone(), there.clone()])]).await?;
    rig.begins_with("web", &token("", &client), &[A]).await?;
    let mut stream = rig.get_from("web", &client).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    // A change of an endpoint that the client does not have causes no message.
    rig.set_endpoints("web", std::slice::from_ref(&here)).await?;
    rig.set_endpoints("web", &[here.clone(), there.clone()]).await?;
    // An endpoint without hints in any slice disables the hints; its deletion restores them.
    rig.put(slice("plain", "web", &[address("192.0.2.3")])).await?;
    brings(&mut stream, &[add(&[B, C])?]).await?;
    rig.delete("EndpointSlice", "plain").await?;
    brings(&mut stream, &[remove(&[B, C])?]).await?;
    // The hints of the zone move to another endpoint.
    let (moved, away) = (hinted(address("192.0.2.2"), &["here"]), hinted(address("192.0.2.1"), &["there"]));
    rig.set_endpoints("web", &[moved, away]).await?;
    stream.shows(&[B]).await?;
    assert_eq!(
        stream.messages.last(),
        Some(&remove(&[A])?),
        "the new endpoint must be added before the old one is removed"
    );
    // Without an endpoint for the zone, the client receives those of other zones.
    rig.set_endpoints("web", &[hinted(address("192.0.2.1"), &["there"])]).await?;
    stream.shows(&[A]).await?;
    rig.set_endpoints("web", &[]).await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn the_zone_of_the_clients_node_may_be_set_late_and_change() -> Result<()> {
    let rig = Rig::start("node").await?;
    let client = format!("{}-client", rig.name());
    let endpoints = [
        hinted(but(of_pod("192.0.2.1", "web-1"), json!({"zone": "one"})), &["one"]),
        hinted(but(of_pod("192.0.2.2", "web-2"), json!({"zone": "two"})), &["two"]),
    ];
    rig.put_all([service("web"), meshed("web-1"), meshed("web-2"), slice("web", "web", &endpoints)]).await?;
    let locality =
        |endpoint: &linkerd2_proxy_api::destination::WeightedAddr| endpoint.metric_labels["zone_locality"].clone();
    let mut stream = rig.get_from("web", &client).await?;
    let unknown = [(A, "unknown".to_owned()), (B, "unknown".to_owned())];
    received::wait_for(&mut stream, locality, unknown.clone()).await?;
    rig.put(node(&client, Some("one"))).await?;
    received::wait_for(&mut stream, locality, [(A, "local".to_owned())]).await?;
    let zone = |zone: Option<&str>| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    rig.patch("Node", &client, zone(Some("two"))).await?;
    received::wait_for(&mut stream, locality, [(B, "local".to_owned())]).await?;
    rig.patch("Node", &client, zone(Some("three"))).await?;
    received::wait_for(&mut stream, locality, [(A, "remote".to_owned()), (B, "remote".to_owned())]).await?;
    rig.patch("Node", &client, zone(None)).await?;
    received::wait_for(&mut stream, locality, unknown.clone()).await?;
    rig.patch("Node", &client, zone(Some("one"))).await?;
    received::wait_for(&mut stream, locality, [(A, "local".to_owned())]).await?;
    rig.delete("Node", &client).await?;
    received::wait_for(&mut stream, locality, unknown).await
}

#[tokio::test]
async fn with_local_policy_only_changes_on_the_clients_node_are_sent() -> Result<()> {
    let rig = Rig::start("local").await?;
    let (here, there) = (client_in(&rig, Some("here")).await?, client_in(&rig, Some("there")).await?);
    let on = |name: &str, node: &str| meshed(name).with(json!({"spec": {"nodeName": node}}));
    let endpoints = [
        of_pod("192.0.2.1", "here-1"),
        of_pod("192.0.2.2", "there-1"),
        address("192.0.2.3"),
        of_workload("192.0.2.4", "vm"),
    ];
    rig.put_all([local(service("web")), on("here-1", &here), on("there-1", &there), workload("vm")]).await?;
    rig.put(slice("web", "web", &endpoints)).await?;
    rig.begins_with("web", &token("", &here), &[A]).await?;
    let mut stream = rig.get_from("web", &here).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    rig.set_endpoints("web", &[endpoints[0].clone(), endpoints[3].clone()]).await?;
    stream.is_quiet_for(QUIET).await?;
    rig.set_endpoints("web", &endpoints[1..]).await?;
    brings(&mut stream, &[remove(&[A])?]).await?;
    rig.set_endpoints("web", &endpoints).await?;
    brings(&mut stream, &[add(&[A])?]).await?;
    stream.is_quiet_for(QUIET).await
}

#[tokio::test]
async fn a_changed_traffic_policy_sends_only_the_difference() -> Result<()> {
    let rig = Rig::start("flip").await?;
    let here = client_in(&rig, Some("here")).await?;
    let on_here = meshed("here-1").with(json!({"spec": {"nodeName": here}}));
    let endpoints = [of_pod("192.0.2.1", "here-1"), of_pod("192.0.2.2", "else-1"), address("192.0.2.3")];
    rig.put_all([local(service("web")), on_here, meshed("else-1"), slice("web", "web", &endpoints)]).await?;
    rig.begins_with("web", &token("", &here), &[A]).await?;
    let (mut inside, mut anywhere) = (rig.get_from("web", &here).await?, rig.get("web").await?);
    brings(&mut inside, &[add(&[A])?]).await?;
    brings(&mut anywhere, &[Message::NoEndpoints { exists: true }]).await?;
    let policy = |policy: &str| json!({"spec": {"internalTrafficPolicy": policy}});
    for _ in 0..2 {
        rig.patch("Service", "web", policy("Cluster")).await?;
        brings(&mut inside, &[add(&[B, C])?]).await?;
        brings(&mut anywhere, &[add(&[A, B, C])?]).await?;
        rig.patch("Service", "web", policy("Local")).await?;
        brings(&mut inside, &[remove(&[B, C])?]).await?;
        brings(&mut anywhere, &[remove(&[A, B, C])?]).await?;
    }
    // The policy still applies after a removal and a change of externalTrafficPolicy.
    rig.set_endpoints("web", &endpoints[..2]).await?;
    rig.patch("Service", "web", json!({"spec": {"type": "NodePort", "externalTrafficPolicy": "Cluster"}})).await?;
    inside.is_quiet_for(QUIET).await
}
