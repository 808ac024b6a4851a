//! Servers: the Pods, ExternalWorkloads and ports that they make opaque, and how their changes reach open streams.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, ip, workload_at};
use crate::discovery::{
    Rig,
    objects::{but, container, field, meshed, opaque_server, proxy, server},
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
async fn a_server_makes_the_selected_ports_opaque_until_it_is_deleted() -> Result<()> {
    let rig = Rig::start("select").await?;
    let (pod_ip, workload_ip) = (ip(), ip());
    rig.run(meshed("web-1").labelled("tier", "front"), &[&pod_ip]).await?;
    rig.put(workload_at("vm", &[&workload_ip])).await?;
    let mut pod = rig.opens_with(&at(&pod_ip, 8080), &pod_summary("web-1", false)).await?;
    let mut vm = rig.opens_with(&at(&workload_ip, 8080), &workload_summary("vm", false)).await?;
    let web = json!({"matchLabels": {"app": "web"}});
    let of_app = json!({"matchLabels": {"app": "vm"}});
    let by = |operator: &str, values: Value| {
        of_pods(json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}))
    };
    let on_port = |port: Value, protocol: &str| json!({"podSelector": web, "port": port, "proxyProtocol": protocol});
    for (spec, of_pod, of_workload) in [
        (of_pods(web.clone()), true, false),
        (of_pods(json!({})), true, false),
        (of_pods(json!({"matchLabels": {"app": "no-match"}})), false, false),
        (of_pods(json!({"matchLabels": {"app": "web", "tier": "back"}})), false, false),
        (by("In", json!(["web", "x"])), true, false),
        (by("NotIn", json!(["web"])), false, false),
        (of_pods(json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]})), true, false),
        (of_pods(json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})), false, false),
        (
            of_pods(json!({"matchLabels": {"app": "web"},
                    "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})),
            false,
            false,
        ),
        // An invalid selector matches no object.
        (by("In", json!([])), false, false),
        (on_port(json!("http"), "opaque"), true, false),
        (on_port(json!("grpc"), "opaque"), false, false),
        (on_port(json!("8080"), "opaque"), false, false),
        (on_port(json!(80), "opaque"), false, false),
        (on_port(json!(8080), "Opaque"), false, false),
        (on_port(json!(8080), "HTTP/1"), false, false),
        (on_port(json!(8080), "unknown"), false, false),
        (of_workloads(json!({}), json!(8080)), false, true),
        (of_workloads(of_app.clone(), json!(8080)), false, true),
        (of_workloads(of_app.clone(), json!("http")), false, true),
        (of_workloads(of_app.clone(), json!("grpc")), false, false),
        (of_workloads(of_app.clone(), json!(80)), false, false),
        (of_workloads(web.clone(), json!(8080)), false, false),
    ] {
        rig.put(server("one", spec.clone())).await?;
        if !of_pod && !of_workload {
            rig.catches_up("Server").await?;
        }
        pod.becomes(&pod_summary("web-1", of_pod)).await.with_context(|| spec.to_string())?;
        vm.becomes(&workload_summary("vm", of_workload)).await.with_context(|| spec.to_string())?;
        rig.delete("Server", "one").await?;
        pod.becomes(&pod_summary("web-1", false)).await.with_context(|| format!("without {spec}"))?;
        vm.becomes(&workload_summary("vm", false)).await.with_context(|| format!("without {spec}"))?;
    }
    // The first message, and two for each Server that made the port opaque.
    pod.has_received(1 + 2 * 5).await?;
    vm.has_received(1 + 2 * 3).await
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
async fn a_server_only_adds_opaque_ports() -> Result<()> {
    let rig = Rig::start("adds").await?;
    for (name, annotation) in [("annotated", "8080"), ("emptied", "")] {
        let ip = ip();
        rig.run(meshed(name).annotated("config.linkerd.io/opaque-ports", annotation), &[&ip]).await?;
        let mut open = rig.opens_with(&at(&ip, 8080), &pod_summary(name, !annotation.is_empty())).await?;
        rig.put(server("http", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "HTTP/2"}))).await?;
        rig.catches_up("Server").await?;
        open.has_received(1).await?;
        open.matches_new_stream().await?;
        rig.put(opaque_server("opaque", json!(8080))).await?;
        open.becomes(&pod_summary(name, true)).await?;
        rig.delete("Server", "opaque").await?;
        open.becomes(&pod_summary(name, !annotation.is_empty())).await?;
        rig.delete("Server", "http").await?;
    }
    Ok(())
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
async fn port_names_of_native_sidecars_count() -> Result<()> {
    let rig = Rig::start("native").await?;
    let ip = ip();
    let always = |container: Value| but(container, json!({"restartPolicy": "Always"}));
    let inits = json!([always(proxy("0.0.0.0:4143")), always(container("app", 80))]);
    let object =
        meshed("native").with(json!({"spec": {"initContainers": inits, "containers": [container("main", 1)]}}));
    rig.run(object, &[&ip]).await?;
    let mut open = rig.opens_with(&at(&ip, 80), &pod_summary("native", false)).await?;
    rig.put(opaque_server("by-name", json!("http"))).await?;
    open.becomes(&pod_summary("native", true)).await?;
    // The port with that name in each container.
    rig.opens_with(&at(&ip, 1), &pod_summary("native", true)).await?;
    rig.opens_with(&at(&ip, 8080), &pod_summary("native", false)).await?;
    rig.delete("Server", "by-name").await?;
    open.becomes(&pod_summary("native", false)).await
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
