//! Ports of hosts: Pods that are reached at the address of their node.

use anyhow::Result;
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, ip, phase};
use crate::discovery::{
    Rig,
    objects::{KEPT, Object, field, meshed, pod, proxy, server},
};

const OPAQUE_PORTS: &str = "config.linkerd.io/opaque-ports";

/// With this port on its host, and 80 in the container.
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
async fn a_pod_that_comes_and_goes_on_a_port_of_its_host_is_told() -> Result<()> {
    let rig = Rig::start("mapping").await?;
    let host = ip();
    rig.put_with_status(with_port(pod("hostport-mapping"), 7777, "nginx-7777"), runs_on(&host)).await?;
    let mut open = rig.hears(&at(&host, 7777), "pod hostport-mapping").await?;
    let address = super::pods::address(open.stream.last()?)?;
    assert_eq!(address, at(&host, 7777));
    rig.hears(&at(&host, 80), "nobody").await?;
    rig.hears(&at(&host, 3306), "opaque nobody").await?;
    rig.delete("Pod", "hostport-mapping").await?;
    open.looks("nobody").await?;
    let second = with_port(pod("hostport-mapping-2").labelled("app", "hostport-mapping-2"), 7777, "nginx-7777");
    rig.put_with_status(second, runs_on(&host)).await?;
    open.looks("pod hostport-mapping-2").await?;
    let selector = json!({"matchLabels": {"app": "hostport-mapping-2"}});
    let spec = json!({"podSelector": selector, "port": "nginx-7777", "proxyProtocol": "opaque"});
    rig.put(server("nginx", spec)).await?;
    open.looks("opaque pod hostport-mapping-2").await?;
    // And by its number, which is that of the host.
    for (port, opaque) in [(80, false), (7777, true), (1, false)] {
        rig.patch("Server", "nginx", json!({"spec": { "port": port }})).await?;
        let expected = if opaque { "opaque pod hostport-mapping-2" } else { "pod hostport-mapping-2" };
        open.looks(expected).await?;
    }
    rig.delete("Server", "nginx").await?;
    rig.seen("Server").await?;
    open.agrees().await?;
    open.has_told(7).await
}

#[tokio::test]
async fn all_containers_and_protocols_count() -> Result<()> {
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
        rig.hears(&at(&host, number), "pod all").await?;
    }
    rig.hears(&at(&host, 12347), "nobody").await?;
    rig.hears(&at(&host, 9), "nobody").await.map(drop)
}

#[tokio::test]
async fn what_is_opaque_is_looked_up_by_the_port_of_the_host() -> Result<()> {
    let rig = Rig::start("opaque").await?;
    let host = ip();
    for (name, port, annotation, expected) in [
        ("plain", 7001, None, format!("pod plain {MESHED}")),
        ("of-host", 7002, Some("7002"), format!("opaque pod of-host {OPAQUE}")),
        ("of-container", 7003, Some("80"), format!("pod of-container {MESHED}")),
        // A name is that of a container's port.
        ("named", 7004, Some("http"), format!("pod named {MESHED}")),
        ("default", 3306, None, format!("opaque pod default {OPAQUE}")),
        ("emptied", 9300, Some(""), format!("pod emptied {MESHED}")),
    ] {
        let object = with_port(meshed(name), port, "http");
        let object = annotation.iter().fold(object, |object, text| object.annotated(OPAQUE_PORTS, text));
        rig.put_with_status(object, runs_on(&host)).await?;
        rig.hears(&at(&host, port), &expected).await?;
    }
    let skipping = with_port(meshed("skipping"), 7005, "http");
    let skipping = skipping.annotated("config.linkerd.io/skip-inbound-ports", "7005");
    rig.put_with_status(skipping, runs_on(&host)).await?;
    rig.hears(&at(&host, 7005), "pod skipping").await.map(drop)
}

#[tokio::test]
async fn phases_and_ends_are_followed_on_a_host_too() -> Result<()> {
    let rig = Rig::start("phases").await?;
    let host = ip();
    let mut open = rig.hears(&at(&host, 7777), "nobody").await?;
    let object = with_port(meshed("web-1"), 7777, "http").with(json!({"metadata": {"finalizers": [KEPT]}}));
    rig.put_with_status(object, runs_on(&host)).await?;
    open.looks(&format!("pod web-1 {MESHED}")).await?;
    for name in ["Pending", "Succeeded", "Failed"] {
        rig.set_status("Pod", "web-1", phase(name)).await?;
        open.looks("nobody").await?;
        rig.set_status("Pod", "web-1", phase("Running")).await?;
        open.looks(&format!("pod web-1 {MESHED}")).await?;
    }
    rig.terminate("web-1").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    // On to the next one, while the first is still there.
    rig.put_with_status(with_port(pod("web-2"), 7777, "http"), runs_on(&host)).await?;
    open.looks("pod web-2").await?;
    rig.patch("Pod", "web-1", json!({"metadata": {"finalizers": null}})).await?;
    rig.delete("Pod", "web-1").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    open.has_told(9).await
}

#[tokio::test]
async fn a_pod_of_the_hosts_network_is_told_by_its_ports_alone() -> Result<()> {
    let rig = Rig::start("network").await?;
    let host = ip();
    let agent = meshed("agent").with(json!({"spec": {"hostNetwork": true}}));
    let status = json!({"phase": "Running", "hostIP": host, "hostIPs": [{ "ip": host }], "podIP": host,
        "podIPs": [{ "ip": host }]});
    let mut undeclared = rig.hears(&at(&host, 9999), "nobody").await?;
    let mut declared = rig.hears(&at(&host, 8080), "nobody").await?;
    rig.put_with_status(agent, status).await?;
    declared.looks(&format!("pod agent {MESHED}")).await?;
    undeclared.has_told(1).await?;
    rig.delete("Pod", "agent").await?;
    declared.looks("nobody").await?;
    undeclared.agrees().await
}
