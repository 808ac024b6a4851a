//! Pods, by their addresses: what is told when they run, end, go, come back and change.

use anyhow::{Context, Result};
use e2e::discovery::socket_address;
use linkerd2_proxy_api::destination::{DestinationProfile, WeightedAddr};
use serde_json::json;

use super::{MESHED, OPAQUE, at, default_budget, ip, phase, running};
use crate::discovery::{
    Rig,
    objects::{KEPT, Object, but, container, field, meshed, pod, proxy},
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// Where the one endpoint is.
pub(super) fn address(profile: &DestinationProfile) -> Result<String> {
    let endpoint = profile.endpoint.as_ref().with_context(|| format!("no endpoint: {profile:?}"))?;
    Ok(socket_address(endpoint.addr.as_ref().context("no address")?)?.to_string())
}

fn kept(object: Object) -> Object {
    object.with(json!({"metadata": {"finalizers": [KEPT]}}))
}

/// A Pod that declares only its proxy's port 4191, in the way of upstream's tests.
fn proxied(name: &str, native: bool) -> Object {
    let port = json!({"ports": [{"name": "linkerd-admin", "containerPort": 4191}]});
    let proxy = but(proxy("0.0.0.0:4143"), port);
    let app = json!({"name": "app", "image": "app"});
    if native {
        let proxy = but(proxy, json!({"restartPolicy": "Always"}));
        return meshed(name).with(json!({"spec": {"initContainers": [proxy], "containers": [app]}}));
    }
    meshed(name).with(json!({"spec": {"containers": [app, proxy]}}))
}

#[tokio::test]
async fn an_address_that_nothing_has_is_told_as_it_is_until_something_has_it() -> Result<()> {
    let rig = Rig::start("unknown").await?;
    let ip = ip();
    let mut open = rig.hears(&at(&ip, 8080), "nobody").await?;
    let bare = DestinationProfile {
        retry_budget: default_budget(),
        endpoint: Some(WeightedAddr {
            addr: open.stream.last()?.endpoint.as_ref().and_then(|endpoint| endpoint.addr),
            weight: 10_000,
            ..WeightedAddr::default()
        }),
        ..DestinationProfile::default()
    };
    assert_eq!((open.stream.last()?, address(open.stream.last()?)?), (&bare, at(&ip, 8080)));
    rig.hears(&at(&ip, 3306), "opaque nobody").await?;
    open.has_told(1).await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.looks(&format!("pod web-1 {MESHED}")).await?;
    rig.delete("Pod", "web-1").await?;
    open.tells(&bare).await?;
    open.has_told(3).await
}

#[tokio::test]
async fn a_pod_is_told_of_once_it_runs_ready_or_not() -> Result<()> {
    let rig = Rig::start("phases").await?;
    for (name, native) in [("sidecar", false), ("native", true)] {
        let ip = ip();
        rig.put_with_status(proxied(name, native), running(&[&ip])).await?;
        rig.set_status("Pod", name, phase("Pending")).await?;
        rig.seen("Pod").await?;
        let mut declared = rig.ask(&at(&ip, 4191)).await?;
        let mut other = rig.ask(&at(&ip, 9999)).await?;
        declared.looks("nobody").await?;
        other.looks("nobody").await?;
        declared.has_told(1).await?;
        for (status, runs) in [
            (json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}), true),
            (phase("Pending"), false),
            (phase("Running"), true),
            (phase("Unknown"), false),
            (phase("Running"), true),
            (phase("Succeeded"), false),
            (phase("Running"), true),
            (phase("Failed"), false),
        ] {
            rig.set_status("Pod", name, status.clone()).await?;
            // The port of the proxy itself is reached without opaque transport.
            let expected = if runs { format!("pod {name} with h2 identity http2") } else { "nobody".to_owned() };
            declared.looks(&expected).await.with_context(|| format!("{name}: {status}"))?;
            let expected = if runs { format!("pod {name} {MESHED}") } else { "nobody".to_owned() };
            other.looks(&expected).await.with_context(|| format!("{name}: {status}"))?;
        }
        // It runs, ready or not.
        rig.set_status("Pod", name, phase("Running")).await?;
        declared.looks(&format!("pod {name} with h2 identity http2")).await?;
        rig.set_status("Pod", name, json!({"conditions": [{"type": "Ready", "status": "True"}]})).await?;
        rig.set_status("Pod", name, json!({"conditions": [{"type": "Ready", "status": "False"}]})).await?;
        rig.seen("Pod").await?;
        declared.agrees().await?;
        declared.has_told(10).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_terminating_pod_keeps_its_address_until_another_has_it() -> Result<()> {
    let rig = Rig::start("terminating").await?;
    let ip = ip();
    rig.run(kept(meshed("old")), &[&ip]).await?;
    let mut open = rig.hears(&at(&ip, 8080), &format!("pod old {MESHED}")).await?;
    rig.terminate("old").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    open.has_told(1).await?;
    rig.run(meshed("new"), &[&ip]).await?;
    open.looks(&format!("pod new {MESHED}")).await?;
    rig.delete("Pod", "new").await?;
    open.looks(&format!("pod old {MESHED}")).await?;
    // It has ended, and is still there.
    rig.set_status("Pod", "old", phase("Succeeded")).await?;
    open.looks("nobody").await?;
    rig.set_status("Pod", "old", phase("Running")).await?;
    open.looks(&format!("pod old {MESHED}")).await?;
    rig.delete("Pod", "old").await?;
    rig.patch("Pod", "old", json!({"metadata": {"finalizers": null}})).await?;
    open.looks("nobody").await?;
    open.has_told(6).await
}

#[tokio::test]
async fn two_pods_that_are_both_to_go_are_no_conflict() -> Result<()> {
    let rig = Rig::start("both").await?;
    let ip = ip();
    rig.run(meshed("a"), &[&ip]).await?;
    rig.terminate("a").await?;
    rig.run(meshed("b"), &[&ip]).await?;
    let mut open = rig.hears(&at(&ip, 8080), &format!("pod b {MESHED}")).await?;
    rig.terminate("b").await?;
    rig.seen("Pod").await?;
    open.stream.settle(crate::discovery::QUIET).await?;
    open.agrees().await?;
    rig.delete("Pod", "b").await?;
    open.looks(&format!("pod a {MESHED}")).await?;
    rig.delete("Pod", "a").await?;
    open.looks("nobody").await
}

#[tokio::test]
async fn an_address_goes_from_pod_to_pod_on_every_port() -> Result<()> {
    let rig = Rig::start("replaced").await?;
    let ip = ip();
    let mut declared = rig.hears(&at(&ip, 8080), "nobody").await?;
    let mut other = rig.hears(&at(&ip, 9999), "nobody").await?;
    for _ in 0..2 {
        for name in ["web-1", "web-2"] {
            rig.run(meshed(name), &[&ip]).await?;
            declared.looks(&format!("pod {name} {MESHED}")).await?;
            other.looks(&format!("pod {name} {MESHED}")).await?;
            rig.delete("Pod", name).await?;
            declared.looks("nobody").await?;
            other.looks("nobody").await?;
        }
    }
    // The same name, another Pod: with the first still to be forgotten, or at once.
    rig.run(meshed("web-1"), &[&ip]).await?;
    declared.looks(&format!("pod web-1 {MESHED}")).await?;
    rig.delete("Pod", "web-1").await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    declared.looks("pod web-1").await?;
    other.looks("pod web-1").await
}

#[tokio::test]
async fn a_completed_pod_is_no_matter_to_who_has_its_address_now() -> Result<()> {
    let rig = Rig::start("completed").await?;
    let ip = ip();
    let batch = |name: &str| meshed(name).with(json!({"spec": {"restartPolicy": "Never"}}));
    rig.run(batch("job"), &[&ip]).await?;
    let mut open = rig.hears(&at(&ip, 8080), &format!("pod job {MESHED}")).await?;
    rig.set_status("Pod", "job", phase("Succeeded")).await?;
    open.looks("nobody").await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.looks(&format!("pod web-1 {MESHED}")).await?;
    rig.label("Pod", "job", "touched", Some("once")).await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    rig.delete("Pod", "job").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    open.has_told(3).await
}

#[tokio::test]
async fn a_pod_that_gets_another_address_takes_its_profile_along() -> Result<()> {
    let rig = Rig::start("moved").await?;
    let (before, after) = (ip(), ip());
    rig.run(meshed("web-1"), &[&before]).await?;
    let mut left = rig.hears(&at(&before, 8080), &format!("pod web-1 {MESHED}")).await?;
    let mut right = rig.hears(&at(&after, 8080), "nobody").await?;
    rig.set_status("Pod", "web-1", running(&[&after])).await?;
    left.looks("nobody").await?;
    right.looks(&format!("pod web-1 {MESHED}")).await
}

#[tokio::test]
async fn what_changes_of_a_pod_that_runs_is_told() -> Result<()> {
    let rig = Rig::start("changes").await?;
    let ip = ip();
    rig.run(meshed("web-1"), &[&ip]).await?;
    let mut declared = rig.hears(&at(&ip, 8080), &format!("pod web-1 {MESHED}")).await?;
    let mut other = rig.hears(&at(&ip, 9999), &format!("pod web-1 {MESHED}")).await?;
    rig.annotate("Pod", "web-1", OPAQUE_PORTS, Some("8080,9999")).await?;
    for open in [&mut declared, &mut other] {
        open.looks(&format!("opaque pod web-1 {OPAQUE}")).await?;
    }
    rig.annotate("Pod", "web-1", OPAQUE_PORTS, Some("http")).await?;
    other.looks(&format!("pod web-1 {MESHED}")).await?;
    rig.annotate("Pod", "web-1", OPAQUE_PORTS, None).await?;
    declared.looks(&format!("pod web-1 {MESHED}")).await?;
    rig.annotate("Pod", "web-1", "config.linkerd.io/skip-inbound-ports", Some("8080")).await?;
    declared.looks("pod web-1").await?;
    rig.annotate("Pod", "web-1", "config.linkerd.io/skip-inbound-ports", None).await?;
    declared.looks(&format!("pod web-1 {MESHED}")).await?;
    rig.label("Pod", "web-1", "linkerd.io/control-plane-ns", Some("other")).await?;
    declared.looks("pod web-1 with h2 4143 http2").await?;
    rig.label("Pod", "web-1", "linkerd.io/control-plane-ns", None).await?;
    declared.looks("pod web-1").await?;
    rig.label("Pod", "web-1", "pod-template-hash", Some("5d4c")).await?;
    let hash = |profile: &DestinationProfile| {
        profile.endpoint.as_ref().is_some_and(|endpoint| endpoint.metric_labels.contains_key("pod_template_hash"))
    };
    declared.shows("the hash", hash).await?;
    declared.is_quiet().await
}

#[tokio::test]
async fn named_ports_are_those_of_all_containers() -> Result<()> {
    let rig = Rig::start("named").await?;
    let ip = ip();
    let mut sidecar = container("sidecar", 8081);
    sidecar["ports"][0]["name"] = json!("sidecar");
    let containers = json!([container("app", 8080), proxy("0.0.0.0:4143")]);
    let object = meshed("web-1")
        .with(field("spec", json!({"initContainers": [sidecar], "containers": containers})))
        .annotated(OPAQUE_PORTS, "sidecar,http");
    rig.run(object, &[&ip]).await?;
    for port in [8080, 8081] {
        rig.hears(&at(&ip, port), &format!("opaque pod web-1 {OPAQUE}")).await?;
    }
    // Only what the annotation names: it replaces the default.
    rig.hears(&at(&ip, 3306), &format!("pod web-1 {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn many_streams_of_one_address_hear_the_same() -> Result<()> {
    let rig = Rig::start("many").await?;
    let ip = ip();
    let mut streams = Vec::new();
    for number in 0..10 {
        let token = e2e::discovery::token(if number % 2 == 0 { rig.name() } else { "" }, "node");
        streams.push(rig.ask_with(&at(&ip, 8080), &token).await?);
    }
    rig.run(meshed("web-1"), &[&ip]).await?;
    for open in &mut streams {
        open.looks(&format!("pod web-1 {MESHED}")).await?;
    }
    streams.truncate(3);
    rig.delete("Pod", "web-1").await?;
    for open in &mut streams {
        open.looks("nobody").await?;
    }
    // One more, of whom all the others know nothing.
    rig.run(meshed("web-2"), &[&ip]).await?;
    rig.hears(&at(&ip, 8080), &format!("pod web-2 {MESHED}")).await.map(drop)
}
