//! Servers: which Pods and machines they make opaque at which ports, and how their changes reach open streams.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{MESHED, OPAQUE, at, ip, machine};
use crate::discovery::{
    Rig,
    objects::{but, container, field, meshed, opaque_server, proxy, server},
};

fn of_pods(selector: Value) -> Value {
    but(json!({"port": 8080, "proxyProtocol": "opaque"}), field("podSelector", selector))
}

fn of_machines(selector: Value, port: Value) -> Value {
    let of = but(json!({"proxyProtocol": "opaque"}), field("externalWorkloadSelector", selector));
    but(of, field("port", port))
}

fn pod_look(name: &str, opaque: bool) -> String {
    if opaque { format!("opaque pod {name} {OPAQUE}") } else { format!("pod {name} {MESHED}") }
}

fn machine_look(name: &str, opaque: bool) -> String {
    if opaque {
        format!("opaque external_workload {name} {OPAQUE}")
    } else {
        format!("external_workload {name} {MESHED}")
    }
}

#[tokio::test]
async fn a_server_makes_opaque_what_it_selects_and_nothing_stays_of_it() -> Result<()> {
    let rig = Rig::start("select").await?;
    let (pod_ip, machine_ip) = (ip(), ip());
    rig.run(meshed("web-1").labelled("tier", "front"), &[&pod_ip]).await?;
    rig.put(machine("vm", &[&machine_ip])).await?;
    let mut pod = rig.hears(&at(&pod_ip, 8080), &pod_look("web-1", false)).await?;
    let mut vm = rig.hears(&at(&machine_ip, 8080), &machine_look("vm", false)).await?;
    let web = json!({"matchLabels": {"app": "web"}});
    let of_app = json!({"matchLabels": {"app": "vm"}});
    let by = |operator: &str, values: Value| {
        of_pods(json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}))
    };
    let on_port = |port: Value, protocol: &str| json!({"podSelector": web, "port": port, "proxyProtocol": protocol});
    for (spec, of_pod, of_machine) in [
        (of_pods(web.clone()), true, false),
        (of_pods(json!({})), true, false),
        (of_pods(json!({"matchLabels": {"app": "nobody"}})), false, false),
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
        // What cannot be a selector selects nothing.
        (by("In", json!([])), false, false),
        (on_port(json!("http"), "opaque"), true, false),
        (on_port(json!("grpc"), "opaque"), false, false),
        (on_port(json!("8080"), "opaque"), false, false),
        (on_port(json!(80), "opaque"), false, false),
        (on_port(json!(8080), "Opaque"), false, false),
        (on_port(json!(8080), "HTTP/1"), false, false),
        (on_port(json!(8080), "unknown"), false, false),
        (of_machines(json!({}), json!(8080)), false, true),
        (of_machines(of_app.clone(), json!(8080)), false, true),
        (of_machines(of_app.clone(), json!("http")), false, true),
        (of_machines(of_app.clone(), json!("grpc")), false, false),
        (of_machines(of_app.clone(), json!(80)), false, false),
        (of_machines(web.clone(), json!(8080)), false, false),
    ] {
        rig.put(server("one", spec.clone())).await?;
        if !of_pod && !of_machine {
            rig.seen("Server").await?;
        }
        pod.looks(&pod_look("web-1", of_pod)).await.with_context(|| spec.to_string())?;
        vm.looks(&machine_look("vm", of_machine)).await.with_context(|| spec.to_string())?;
        rig.delete("Server", "one").await?;
        pod.looks(&pod_look("web-1", false)).await.with_context(|| format!("without {spec}"))?;
        vm.looks(&machine_look("vm", false)).await.with_context(|| format!("without {spec}"))?;
    }
    // Two messages for each that made one of them opaque, and one at the beginning.
    pod.has_told(1 + 2 * 5).await?;
    vm.has_told(1 + 2 * 3).await
}

#[tokio::test]
async fn an_edit_of_a_server_is_told_in_both_directions() -> Result<()> {
    let rig = Rig::start("flip").await?;
    let (pod_ip, machine_ip) = (ip(), ip());
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    rig.put_all([
        machine("vm", &[&machine_ip]),
        server("pods", of_pods(json!({"matchLabels": {"app": "web"}}))),
        server("machines", of_machines(json!({"matchLabels": {"app": "vm"}}), json!("http"))),
    ])
    .await?;
    let mut pod = rig.hears(&at(&pod_ip, 8080), &pod_look("web-1", true)).await?;
    let mut vm = rig.hears(&at(&machine_ip, 8080), &machine_look("vm", true)).await?;
    for (patch, opaque) in [
        (json!({"proxyProtocol": "HTTP/2"}), false),
        (json!({"proxyProtocol": "opaque"}), true),
        (json!({"port": 9999}), false),
        (json!({"port": 8080}), true),
    ] {
        for name in ["pods", "machines"] {
            rig.patch("Server", name, json!({ "spec": patch })).await?;
        }
        pod.looks(&pod_look("web-1", opaque)).await.with_context(|| patch.to_string())?;
        vm.looks(&machine_look("vm", opaque)).await.with_context(|| patch.to_string())?;
    }
    let selecting = |kind: &str, app: &str| json!({"spec": field(kind, json!({"matchLabels": {"app": app}}))});
    for (web, of_vm, opaque) in [("nobody", "nobody", false), ("web", "vm", true)] {
        rig.patch("Server", "pods", selecting("podSelector", web)).await?;
        rig.patch("Server", "machines", selecting("externalWorkloadSelector", of_vm)).await?;
        pod.looks(&pod_look("web-1", opaque)).await?;
        vm.looks(&machine_look("vm", opaque)).await?;
    }
    // Of two, one is enough.
    rig.put(opaque_server("more", json!("http"))).await?;
    rig.seen("Server").await?;
    rig.delete("Server", "pods").await?;
    rig.delete("Server", "machines").await?;
    vm.looks(&machine_look("vm", false)).await?;
    pod.has_told(7).await?;
    rig.delete("Server", "more").await?;
    pod.looks(&pod_look("web-1", false)).await?;
    pod.has_told(8).await?;
    vm.has_told(8).await
}

#[tokio::test]
async fn labels_bring_workloads_under_a_server_and_from_under_it() -> Result<()> {
    let rig = Rig::start("labels").await?;
    let (pod_ip, machine_ip) = (ip(), ip());
    rig.run(meshed("web-1"), &[&pod_ip]).await?;
    let selector = || json!({"matchLabels": {"opaque": "yes"}});
    rig.put_all([
        machine("vm", &[&machine_ip]),
        server("pods", of_pods(selector())),
        server("machines", of_machines(selector(), json!(8080))),
    ])
    .await?;
    let mut pod = rig.hears(&at(&pod_ip, 8080), &pod_look("web-1", false)).await?;
    let mut vm = rig.hears(&at(&machine_ip, 8080), &machine_look("vm", false)).await?;
    for (value, opaque) in [(Some("yes"), true), (Some("no"), false), (Some("yes"), true), (None, false)] {
        rig.label("Pod", "web-1", "opaque", value).await?;
        rig.label("ExternalWorkload", "vm", "opaque", value).await?;
        pod.looks(&pod_look("web-1", opaque)).await?;
        vm.looks(&machine_look("vm", opaque)).await?;
    }
    pod.has_told(5).await?;
    vm.has_told(5).await
}

#[tokio::test]
async fn a_server_adds_to_what_is_opaque_and_takes_nothing_away() -> Result<()> {
    let rig = Rig::start("adds").await?;
    for (name, annotation) in [("annotated", "8080"), ("emptied", "")] {
        let ip = ip();
        rig.run(meshed(name).annotated("config.linkerd.io/opaque-ports", annotation), &[&ip]).await?;
        let mut open = rig.hears(&at(&ip, 8080), &pod_look(name, !annotation.is_empty())).await?;
        rig.put(server("http", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "HTTP/2"}))).await?;
        rig.seen("Server").await?;
        open.has_told(1).await?;
        open.agrees().await?;
        rig.put(opaque_server("opaque", json!(8080))).await?;
        open.looks(&pod_look(name, true)).await?;
        rig.delete("Server", "opaque").await?;
        open.looks(&pod_look(name, !annotation.is_empty())).await?;
        rig.delete("Server", "http").await?;
    }
    Ok(())
}

#[tokio::test]
async fn only_the_workloads_of_its_namespace_are_a_servers() -> Result<()> {
    let (rig, elsewhere) = (Rig::start("ours").await?, Rig::start("elsewhere").await?);
    let (ours, theirs) = (ip(), ip());
    rig.run(meshed("web-1"), &[&ours]).await?;
    elsewhere.run(meshed("web-1"), &[&theirs]).await?;
    let mut open = rig.hears(&at(&ours, 8080), &pod_look("web-1", false)).await?;
    elsewhere.put(opaque_server("web", json!(8080))).await?;
    elsewhere.hears(&at(&theirs, 8080), &pod_look("web-1", true)).await?;
    open.has_told(1).await
}

#[tokio::test]
async fn named_ports_are_those_of_native_sidecars_too() -> Result<()> {
    let rig = Rig::start("native").await?;
    let ip = ip();
    let always = |container: Value| but(container, json!({"restartPolicy": "Always"}));
    let inits = json!([always(proxy("0.0.0.0:4143")), always(container("app", 80))]);
    let object =
        meshed("native").with(json!({"spec": {"initContainers": inits, "containers": [container("main", 1)]}}));
    rig.run(object, &[&ip]).await?;
    let mut open = rig.hears(&at(&ip, 80), &pod_look("native", false)).await?;
    rig.put(opaque_server("by-name", json!("http"))).await?;
    open.looks(&pod_look("native", true)).await?;
    // The port of that name, in each of them.
    rig.hears(&at(&ip, 1), &pod_look("native", true)).await?;
    rig.hears(&at(&ip, 8080), &pod_look("native", false)).await?;
    rig.delete("Server", "by-name").await?;
    open.looks(&pod_look("native", false)).await
}

#[tokio::test]
async fn of_an_address_that_nobody_has_and_a_pod_that_does_not_run_no_server_speaks() -> Result<()> {
    let rig = Rig::start("nobody").await?;
    let (unknown, pending) = (ip(), ip());
    rig.run(meshed("web-1"), &[&pending]).await?;
    rig.set_status("Pod", "web-1", super::phase("Pending")).await?;
    rig.put_all([
        server("all", json!({"podSelector": {}, "port": 8080, "proxyProtocol": "opaque"})),
        server("machines", of_machines(json!({}), json!(8080))),
    ])
    .await?;
    for kind in ["Pod", "Server"] {
        rig.seen(kind).await?;
    }
    rig.hears(&at(&unknown, 8080), "nobody").await?;
    let mut open = rig.hears(&at(&pending, 8080), "nobody").await?;
    rig.set_status("Pod", "web-1", super::phase("Running")).await?;
    open.looks(&pod_look("web-1", true)).await
}
