//! Host ports: Pods that are reached at the address of their node.

use anyhow::Result;
use serde_json::{Value, json};

use super::{MESHED, at, ip, phase};
use crate::discovery::{
    Rig,
    objects::{KEPT, Object, field, meshed, pod, proxy, server},
};

/// A meshed Pod at a host port of its node, where nothing forwards the inbound port of the proxy.
const FORWARDED: &str = "with h2 identity http2";
/// The same on an opaque port.
const OPAQUE_FORWARDED: &str = "with opaque identity http2";
const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// Adds a container with port 80 and this host port.
fn with_port(object: Object, host_port: u16, name: &str) -> Object {
    let port = json!({"name": name, "containerPort": 80, "hostPort": host_port});
    let mut containers = vec![json!({"name": "app", "image": "app", "ports": [port]})];
    if object.value.pointer("/metadata/labels/linkerd.io~1control-plane-ns").is_some() {
        containers.push(proxy("0.0.0.0:4143"));
    }
    object.with(field("spec", field("containers", Value::Array(containers))))
}

fn runs_on(host: &str) -> Value {
    json!({"phase": "Running", "hostIP": host, "hostIPs": [{ "ip": host }]})
}

#[tokio::test]
async fn open_streams_follow_pods_on_a_host_port() -> Result<()> {
    let rig = Rig::start("mapping").await?;
    let host = ip();
    rig.put_with_status(with_port(pod("hostport-mapping"), 7777, "nginx-7777"), runs_on(&host)).await?;
    let mut open = rig.opens_with(&at(&host, 7777), "pod hostport-mapping").await?;
    let address = super::pods::address(open.stream.last()?)?;
    assert_eq!(address, at(&host, 7777));
    rig.opens_with(&at(&host, 80), "address").await?;
    rig.opens_with(&at(&host, 3306), "opaque address").await?;
    rig.delete("Pod", "hostport-mapping").await?;
    open.becomes("address").await?;
    let second = with_port(pod("hostport-mapping-2").labelled("app", "hostport-mapping-2"), 7777, "nginx-7777");
    rig.put_with_status(second, runs_on(&host)).await?;
    open.becomes("pod hostport-mapping-2").await?;
    let selector = json!({"matchLabels": {"app": "hostport-mapping-2"}});
    let spec = json!({"podSelector": selector, "port": "nginx-7777", "proxyProtocol": "opaque"});
    rig.put(server("nginx", spec)).await?;
    open.becomes("opaque pod hostport-mapping-2").await?;
    // A Server matches the port number on the host, and that of the container.
    for (port, opaque) in [(1, false), (80, true), (2, false), (7777, true), (3, false)] {
        rig.patch("Server", "nginx", json!({"spec": { "port": port }})).await?;
        let expected = if opaque { "opaque pod hostport-mapping-2" } else { "pod hostport-mapping-2" };
        open.becomes(expected).await?;
    }
    rig.delete("Server", "nginx").await?;
    rig.catches_up("Server").await?;
    open.matches_new_stream().await?;
    open.has_received(9).await
}

#[tokio::test]
async fn host_ports_of_all_containers_and_protocols_count() -> Result<()> {
    let rig = Rig::start("containers").await?;
    let host = ip();
    let port = |number: u16, protocol: &str| json!({"containerPort": number, "hostPort": number, "protocol": protocol});
    let container = |name: &str, ports: Value| json!({"name": name, "image": name, "ports": ports});
    let pinned = json!({"containerPort": 9, "hostPort": 22348, "hostIP": "192.0.2.1"});
    let object = pod("all").with(json!({"spec": {
        "initContainers": [container("init", json!([port(22344, "TCP")]))],
        "containers": [container("one", json!([port(22345, "TCP"), port(22346, "UDP")])),
            container("two", json!([port(22347, "TCP"), pinned]))],
    }}));
    rig.put_with_status(object, runs_on(&host)).await?;
    for number in 22344..=22348 {
        rig.opens_with(&at(&host, number), "pod all").await?;
    }
    rig.opens_with(&at(&host, 12347), "address").await?;
    rig.opens_with(&at(&host, 9), "address").await.map(drop)
}

#[tokio::test]
async fn opaque_and_skipped_ports_are_matched_by_the_host_port_and_by_the_container_port() -> Result<()> {
    let rig = Rig::start("opaque").await?;
    let host = ip();
    for (name, port, annotation, expected) in [
        ("plain", 7001, None, format!("pod plain {FORWARDED}")),
        ("of-host", 7002, Some("7002"), format!("opaque pod of-host {OPAQUE_FORWARDED}")),
        ("of-container", 7003, Some("80"), format!("opaque pod of-container {OPAQUE_FORWARDED}")),
        ("of-another", 7006, Some("81"), format!("pod of-another {FORWARDED}")),
        // Port names refer to container ports.
        ("named", 7004, Some("http"), format!("opaque pod named {OPAQUE_FORWARDED}")),
        ("default", 3306, None, format!("opaque pod default {OPAQUE_FORWARDED}")),
        ("emptied", 9300, Some(""), format!("pod emptied {FORWARDED}")),
    ] {
        let object = with_port(meshed(name), port, "http");
        let object = annotation.iter().fold(object, |object, text| object.annotated(OPAQUE_PORTS, text));
        rig.put_with_status(object, runs_on(&host)).await?;
        rig.opens_with(&at(&host, port), &expected).await?;
    }
    for (name, port, skipped) in [("skips-host", 7005, "7005"), ("skips-container", 7007, "80")] {
        let skipping = with_port(meshed(name), port, "http");
        let skipping = skipping.annotated("config.linkerd.io/skip-inbound-ports", skipped);
        rig.put_with_status(skipping, runs_on(&host)).await?;
        rig.opens_with(&at(&host, port), &format!("pod {name}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn pod_phases_and_termination_are_followed_on_host_ports() -> Result<()> {
    let rig = Rig::start("phases").await?;
    let host = ip();
    let mut open = rig.opens_with(&at(&host, 7777), "address").await?;
    let object = with_port(meshed("web-1"), 7777, "http").with(json!({"metadata": {"finalizers": [KEPT]}}));
    rig.put_with_status(object, runs_on(&host)).await?;
    open.becomes(&format!("pod web-1 {FORWARDED}")).await?;
    for name in ["Pending", "Succeeded", "Failed"] {
        rig.set_status("Pod", "web-1", phase(name)).await?;
        open.becomes("address").await?;
        rig.set_status("Pod", "web-1", phase("Running")).await?;
        open.becomes(&format!("pod web-1 {FORWARDED}")).await?;
    }
    rig.terminate("web-1").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    // The address passes to the next Pod while the terminating one still exists.
    rig.put_with_status(with_port(pod("web-2"), 7777, "http"), runs_on(&host)).await?;
    open.becomes("pod web-2").await?;
    rig.patch("Pod", "web-1", json!({"metadata": {"finalizers": null}})).await?;
    rig.delete("Pod", "web-1").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    open.has_received(9).await
}

#[tokio::test]
async fn a_host_network_pod_is_sent_only_on_its_declared_ports() -> Result<()> {
    let rig = Rig::start("network").await?;
    let host = ip();
    let agent = meshed("agent").with(json!({"spec": {"hostNetwork": true}}));
    let status = json!({"phase": "Running", "hostIP": host, "hostIPs": [{ "ip": host }], "podIP": host,
        "podIPs": [{ "ip": host }]});
    let mut undeclared = rig.opens_with(&at(&host, 9999), "address").await?;
    let mut declared = rig.opens_with(&at(&host, 8080), "address").await?;
    rig.put_with_status(agent, status).await?;
    declared.becomes(&format!("pod agent {MESHED}")).await?;
    undeclared.has_received(1).await?;
    rig.delete("Pod", "agent").await?;
    declared.becomes("address").await?;
    undeclared.matches_new_stream().await
}
