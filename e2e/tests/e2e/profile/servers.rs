//! Changes of Servers, and of the labels that they select, on open streams.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, ip, workload_at};
use crate::discovery::{
    Rig,
    objects::{but, field, meshed, opaque_server, server},
};

fn of_pods(selector: Value) -> Value {
    but(json!({"port": 8080, "proxyProtocol": "opaque"}), field("podSelector", selector))
}

fn of_workloads(selector: Value, port: Value) -> Value {
    let of = but(json!({"proxyProtocol": "opaque"}), field("externalWorkloadSelector", selector));
    but(of, field("port", port))
}

fn pod_summary(name: &str, opaque: bool) -> String {
    if opaque { format!("opaque pod {name} {OPAQUE}") } else { format!("pod {name} {MESHED}") }
}

fn workload_summary(name: &str, opaque: bool) -> String {
    if opaque {
        format!("opaque external_workload {name} {OPAQUE}")
    } else {
        format!("external_workload {name} {MESHED}")
    }
}

#[tokio::test]
async fn edits_of_a_server_that_set_and_unset_opaque_are_sent() -> Result<()> {
    let rig = Rig::start("flip").await?;
    let (pod_ip, workload_ip) = (ip(), ip());
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    rig.put_all([
        workload_at("vm", &[&workload_ip]),
        server("pods", of_pods(json!({"matchLabels": {"app": "web"}}))),
        server("workloads", of_workloads(json!({"matchLabels": {"app": "vm"}}), json!("http"))),
    ])
    .await?;
    let mut pod = rig.opens_with(&at(&pod_ip, 8080), &pod_summary("web-1", true)).await?;
    let mut vm = rig.opens_with(&at(&workload_ip, 8080), &workload_summary("vm", true)).await?;
    for (patch, opaque) in [
        (json!({"proxyProtocol": "HTTP/2"}), false),
        (json!({"proxyProtocol": "opaque"}), true),
        (json!({"port": 9999}), false),
        (json!({"port": 8080}), true),
    ] {
        for name in ["pods", "workloads"] {
            rig.patch("Server", name, json!({ "spec": patch })).await?;
        }
        pod.becomes(&pod_summary("web-1", opaque)).await.with_context(|| patch.to_string())?;
        vm.becomes(&workload_summary("vm", opaque)).await.with_context(|| patch.to_string())?;
    }
    let selecting = |kind: &str, app: &str| json!({"spec": field(kind, json!({"matchLabels": {"app": app}}))});
    for (web, of_vm, opaque) in [("no-match", "no-match", false), ("web", "vm", true)] {
        rig.patch("Server", "pods", selecting("podSelector", web)).await?;
        rig.patch("Server", "workloads", selecting("externalWorkloadSelector", of_vm)).await?;
        pod.becomes(&pod_summary("web-1", opaque)).await?;
        vm.becomes(&workload_summary("vm", opaque)).await?;
    }
    // One of two Servers is enough.
    rig.put(opaque_server("more", json!("http"))).await?;
    rig.catches_up("Server").await?;
    rig.delete("Server", "pods").await?;
    rig.delete("Server", "workloads").await?;
    vm.becomes(&workload_summary("vm", false)).await?;
    pod.has_received(7).await?;
    rig.delete("Server", "more").await?;
    pod.becomes(&pod_summary("web-1", false)).await?;
    pod.has_received(8).await?;
    vm.has_received(8).await
}

#[tokio::test]
async fn changed_labels_add_workloads_to_a_server_and_remove_them() -> Result<()> {
    let rig = Rig::start("labels").await?;
    let (pod_ip, workload_ip) = (ip(), ip());
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    let selector = || json!({"matchLabels": {"opaque": "yes"}});
    rig.put_all([
        workload_at("vm", &[&workload_ip]),
        server("pods", of_pods(selector())),
        server("workloads", of_workloads(selector(), json!(8080))),
    ])
    .await?;
    let mut pod = rig.opens_with(&at(&pod_ip, 8080), &pod_summary("web-1", false)).await?;
    let mut vm = rig.opens_with(&at(&workload_ip, 8080), &workload_summary("vm", false)).await?;
    for (value, opaque) in [(Some("yes"), true), (Some("no"), false), (Some("yes"), true), (None, false)] {
        rig.label("Pod", "web-1", "opaque", value).await?;
        rig.label("ExternalWorkload", "vm", "opaque", value).await?;
        pod.becomes(&pod_summary("web-1", opaque)).await?;
        vm.becomes(&workload_summary("vm", opaque)).await?;
    }
    pod.has_received(5).await?;
    vm.has_received(5).await
}

#[tokio::test]
async fn a_server_applies_only_to_its_own_namespace() -> Result<()> {
    let (rig, elsewhere) = (Rig::start("ours").await?, Rig::start("elsewhere").await?);
    let (ours, theirs) = (ip(), ip());
    rig.run(meshed("web-1"), &[&ours]).await?;
    elsewhere.run(meshed("web-1"), &[&theirs]).await?;
    let mut open = rig.opens_with(&at(&ours, 8080), &pod_summary("web-1", false)).await?;
    elsewhere.put(opaque_server("web", json!(8080))).await?;
    elsewhere.opens_with(&at(&theirs, 8080), &pod_summary("web-1", true)).await?;
    open.has_received(1).await
}

#[tokio::test]
async fn servers_do_not_apply_to_unused_addresses_and_pending_pods() -> Result<()> {
    let rig = Rig::start("unresolved").await?;
    let (unknown, pending) = (ip(), ip());
    rig.run(meshed("web-1"), &[&pending]).await?;
    rig.set_status("Pod", "web-1", super::phase("Pending")).await?;
    rig.put_all([
        server("all", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "opaque"})),
        server("workloads", of_workloads(json!({}), json!(8080))),
    ])
    .await?;
    for kind in ["Pod", "Server"] {
        rig.catches_up(kind).await?;
    }
    rig.opens_with(&at(&unknown, 8080), "address").await?;
    let mut open = rig.opens_with(&at(&pending, 8080), "address").await?;
    rig.set_status("Pod", "web-1", super::phase("Running")).await?;
    open.becomes(&pod_summary("web-1", true)).await
}
