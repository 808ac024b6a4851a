//! Changes of Pods that are reached at a port of their node, on open streams.

use anyhow::Result;
use serde_json::{Value, json};

use super::{MESHED, at, ip, phase};
use crate::discovery::{
    Rig,
    objects::{KEPT, Object, field, meshed, pod, proxy, server},
};

/// A meshed Pod at a host port of its node, where nothing forwards the inbound port of the proxy.
const FORWARDED: &str = "with h2 identity http2";

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
