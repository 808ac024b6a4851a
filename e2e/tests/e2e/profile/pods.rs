//! Profiles of Pods by address: as they start, end, terminate, are recreated and change.

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

/// The address of the endpoint.
pub(super) fn address(profile: &DestinationProfile) -> Result<String> {
    let endpoint = profile.endpoint.as_ref().with_context(|| format!("no endpoint: {profile:?}"))?;
    Ok(socket_address(endpoint.addr.as_ref().context("no address")?)?.to_string())
}

fn kept(object: Object) -> Object {
    object.with(json!({"metadata": {"finalizers": [KEPT]}}))
}

/// A Pod that declares only port 4191 of its proxy, as in the tests of Linkerd.
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
async fn an_unused_address_is_a_plain_endpoint_until_a_pod_has_it() -> Result<()> {
    let rig = Rig::start("unknown").await?;
    let ip = ip();
    let mut open = rig.opens_with(&at(&ip, 8080), "address").await?;
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
    rig.opens_with(&at(&ip, 3306), "opaque address").await?;
    open.has_received(1).await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.delete("Pod", "web-1").await?;
    open.becomes_exactly(&bare).await?;
    open.has_received(3).await
}

#[tokio::test]
async fn a_pod_is_sent_while_it_runs_ready_or_not() -> Result<()> {
    let rig = Rig::start("phases").await?;
    for (name, native) in [("sidecar", false), ("native", true)] {
        let ip = ip();
        rig.put_with_status(proxied(name, native), running(&[&ip])).await?;
        rig.set_status("Pod", name, phase("Pending")).await?;
        rig.catches_up("Pod").await?;
        let mut declared = rig.open(&at(&ip, 4191)).await?;
        let mut other = rig.open(&at(&ip, 9999)).await?;
        declared.becomes("address").await?;
        other.becomes("address").await?;
        declared.has_received(1).await?;
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
            // The admin port of the proxy has no opaque transport.
            let expected = if runs { format!("pod {name} with h2 identity http2") } else { "address".to_owned() };
            declared.becomes(&expected).await.with_context(|| format!("{name}: {status}"))?;
            let expected = if runs { format!("pod {name} {MESHED}") } else { "address".to_owned() };
            other.becomes(&expected).await.with_context(|| format!("{name}: {status}"))?;
        }
        // Readiness does not matter.
        rig.set_status("Pod", name, phase("Running")).await?;
        declared.becomes(&format!("pod {name} with h2 identity http2")).await?;
        rig.set_status("Pod", name, json!({"conditions": [{"type": "Ready", "status": "True"}]})).await?;
        rig.set_status("Pod", name, json!({"conditions": [{"type": "Ready", "status": "False"}]})).await?;
        rig.catches_up("Pod").await?;
        declared.matches_new_stream().await?;
        declared.has_received(10).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_terminating_pod_keeps_its_address_until_another_has_it() -> Result<()> {
    let rig = Rig::start("terminating").await?;
    let ip = ip();
    rig.run(kept(meshed("old")), &[&ip]).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("pod old {MESHED}")).await?;
    rig.terminate("old").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    open.has_received(1).await?;
    rig.run(meshed("new"), &[&ip]).await?;
    open.becomes(&format!("pod new {MESHED}")).await?;
    rig.delete("Pod", "new").await?;
    open.becomes(&format!("pod old {MESHED}")).await?;
    // The Pod has ended and still exists.
    rig.set_status("Pod", "old", phase("Succeeded")).await?;
    open.becomes("address").await?;
    rig.set_status("Pod", "old", phase("Running")).await?;
    open.becomes(&format!("pod old {MESHED}")).await?;
    rig.delete("Pod", "old").await?;
    rig.patch("Pod", "old", json!({"metadata": {"finalizers": null}})).await?;
    open.becomes("address").await?;
    open.has_received(6).await
}

#[tokio::test]
async fn two_terminating_pods_do_not_conflict() -> Result<()> {
    let rig = Rig::start("both").await?;
    let ip = ip();
    rig.run(meshed("a"), &[&ip]).await?;
    rig.terminate("a").await?;
    rig.run(meshed("b"), &[&ip]).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("pod b {MESHED}")).await?;
    rig.terminate("b").await?;
    rig.catches_up("Pod").await?;
    open.stream.settle(crate::discovery::QUIET).await?;
    open.matches_new_stream().await?;
    rig.delete("Pod", "b").await?;
    open.becomes(&format!("pod a {MESHED}")).await?;
    rig.delete("Pod", "a").await?;
    open.becomes("address").await
}

#[tokio::test]
async fn an_address_passes_from_pod_to_pod_on_every_port() -> Result<()> {
    let rig = Rig::start("replaced").await?;
    let ip = ip();
    let mut declared = rig.opens_with(&at(&ip, 8080), "address").await?;
    let mut other = rig.opens_with(&at(&ip, 9999), "address").await?;
    for _ in 0..2 {
        for name in ["web-1", "web-2"] {
            rig.run(meshed(name), &[&ip]).await?;
            declared.becomes(&format!("pod {name} {MESHED}")).await?;
            other.becomes(&format!("pod {name} {MESHED}")).await?;
            rig.delete("Pod", name).await?;
            declared.becomes("address").await?;
            other.becomes("address").await?;
        }
    }
    // Another Pod with the same name, created immediately after the first was deleted.
    rig.run(meshed("web-1"), &[&ip]).await?;
    declared.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.delete("Pod", "web-1").await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    declared.becomes("pod web-1").await?;
    other.becomes("pod web-1").await
}

#[tokio::test]
async fn a_completed_pod_does_not_affect_the_next_pod_with_its_address() -> Result<()> {
    let rig = Rig::start("completed").await?;
    let ip = ip();
    let batch = |name: &str| meshed(name).with(json!({"spec": {"restartPolicy": "Never"}}));
    rig.run(batch("job"), &[&ip]).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), &format!("pod job {MESHED}")).await?;
    rig.set_status("Pod", "job", phase("Succeeded")).await?;
    open.becomes("address").await?;
    rig.run(meshed("web-1"), &[&ip]).await?;
    open.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.label("Pod", "job", "touched", Some("once")).await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    rig.delete("Pod", "job").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    open.has_received(3).await
}

#[tokio::test]
async fn a_pod_with_a_changed_address_is_found_at_the_new_one() -> Result<()> {
    let rig = Rig::start("moved").await?;
    let (before, after) = (ip(), ip());
    rig.run(meshed("web-1"), &[&before]).await?;
    let mut old = rig.opens_with(&at(&before, 8080), &format!("pod web-1 {MESHED}")).await?;
    let mut new = rig.opens_with(&at(&after, 8080), "address").await?;
    rig.set_status("Pod", "web-1", running(&[&after])).await?;
    old.becomes("address").await?;
    new.becomes(&format!("pod web-1 {MESHED}")).await
}

#[tokio::test]
async fn changes_of_a_running_pod_are_sent() -> Result<()> {
    let rig = Rig::start("changes").await?;
    let ip = ip();
    rig.run(meshed("web-1"), &[&ip]).await?;
    let mut declared = rig.opens_with(&at(&ip, 8080), &format!("pod web-1 {MESHED}")).await?;
    let mut other = rig.opens_with(&at(&ip, 9999), &format!("pod web-1 {MESHED}")).await?;
    rig.annotate("Pod", "web-1", OPAQUE_PORTS, Some("8080,9999")).await?;
    for open in [&mut declared, &mut other] {
        open.becomes(&format!("opaque pod web-1 {OPAQUE}")).await?;
    }
    rig.annotate("Pod", "web-1", OPAQUE_PORTS, Some("http")).await?;
    other.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.annotate("Pod", "web-1", OPAQUE_PORTS, None).await?;
    declared.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.annotate("Pod", "web-1", "config.linkerd.io/skip-inbound-ports", Some("8080")).await?;
    declared.becomes("pod web-1").await?;
    rig.annotate("Pod", "web-1", "config.linkerd.io/skip-inbound-ports", None).await?;
    declared.becomes(&format!("pod web-1 {MESHED}")).await?;
    rig.label("Pod", "web-1", "linkerd.io/control-plane-ns", Some("other")).await?;
    declared.becomes("pod web-1 with h2 4143 http2").await?;
    rig.label("Pod", "web-1", "linkerd.io/control-plane-ns", None).await?;
    declared.becomes("pod web-1").await?;
    rig.label("Pod", "web-1", "pod-template-hash", Some("5d4c")).await?;
    let hash = |profile: &DestinationProfile| {
        profile.endpoint.as_ref().is_some_and(|endpoint| endpoint.metric_labels.contains_key("pod_template_hash"))
    };
    declared.shows("the hash", hash).await?;
    declared.is_quiet().await
}

#[tokio::test]
async fn port_names_of_all_containers_count() -> Result<()> {
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
        rig.opens_with(&at(&ip, port), &format!("opaque pod web-1 {OPAQUE}")).await?;
    }
    // The annotation replaces the default ports.
    rig.opens_with(&at(&ip, 3306), &format!("pod web-1 {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn all_streams_of_an_address_receive_the_same() -> Result<()> {
    let rig = Rig::start("many").await?;
    let ip = ip();
    let mut streams = Vec::new();
    for number in 0..10 {
        let token = e2e::discovery::token(if number % 2 == 0 { rig.name() } else { "" }, "node");
        streams.push(rig.open_with(&at(&ip, 8080), &token).await?);
    }
    rig.run(meshed("web-1"), &[&ip]).await?;
    for open in &mut streams {
        open.becomes(&format!("pod web-1 {MESHED}")).await?;
    }
    streams.truncate(3);
    rig.delete("Pod", "web-1").await?;
    for open in &mut streams {
        open.becomes("address").await?;
    }
    // A new stream works after most of the others were closed.
    rig.run(meshed("web-2"), &[&ip]).await?;
    rig.opens_with(&at(&ip, 8080), &format!("pod web-2 {MESHED}")).await.map(drop)
}
