//! Names of single Pods behind a Service: `web-0.web`.

use anyhow::Result;
use serde_json::{Value, json};
use tonic::Code;

use super::{MESHED, OPAQUE, at, ip, machine, phase, pods::address, running};
use crate::discovery::{
    Rig,
    objects::{address as plain, but, meshed, of_pod, of_workload, opaque_server, service, slice, target},
};

/// An endpoint of this hostname.
fn named(hostname: &str, endpoint: Value) -> Value {
    but(endpoint, json!({ "hostname": hostname }))
}

async fn not_found(rig: &Rig, instance: &str, service: &str) -> Result<()> {
    let text = format!("no pod found in EndpointSlices of Service {}/{service} for hostname {instance}", rig.name());
    rig.is_refused(&rig.path(&format!("{instance}.{service}:80")), Code::NotFound, &text).await
}

#[tokio::test]
async fn a_name_is_the_pod_of_that_hostname_at_the_port_asked_for() -> Result<()> {
    let rig = Rig::start("instance").await?;
    let ips = [ip(), ip()];
    let endpoints = [plain(&ip()), named("web-0", of_pod(&ips[0], "web-0")), named("web-1", of_pod(&ips[1], "web-1"))];
    rig.put_all([service("web"), slice("web", "web", &endpoints)]).await?;
    for (name, ip) in ["web-0", "web-1"].iter().zip(&ips) {
        rig.run(meshed(name), &[ip]).await?;
        // The Service's ports do not matter, nor does its own annotation.
        for port in [80, 8080, 9999] {
            let mut open = rig.hears(&rig.path(&format!("{name}.web:{port}")), &format!("pod {name} {MESHED}")).await?;
            assert_eq!(address(open.stream.last()?)?, at(ip, port));
            assert_eq!(open.stream.last()?.fully_qualified_name, "");
            if port == 80 {
                open.has_told(1).await?;
            }
        }
        rig.hears(&rig.path(&format!("{name}.web:3306")), &format!("opaque pod {name} {OPAQUE}")).await?;
    }
    not_found(&rig, "web-2", "web").await?;
    not_found(&rig, "WEB-0", "web").await
}

#[tokio::test]
async fn neither_the_service_nor_readiness_matter() -> Result<()> {
    let rig = Rig::start("neither").await?;
    let (ip, other) = (ip(), ip());
    let unready = but(named("web-0", of_pod(&ip, "web-0")), json!({"conditions": {"ready": false, "serving": false}}));
    let ending =
        but(named("web-1", of_pod(&other, "web-1")), json!({"conditions": {"ready": false, "terminating": true}}));
    // No Service, and no ports in the slice.
    rig.put(slice("gone", "gone", &[unready, ending]).with(json!({"ports": []}))).await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    rig.run(meshed("web-1"), &[&other]).await?;
    rig.terminate("web-1").await?;
    for name in ["web-0", "web-1"] {
        rig.hears(&rig.path(&format!("{name}.gone:80")), &format!("pod {name} {MESHED}")).await?;
    }
    not_found(&rig, "web-0", "nothing").await
}

#[tokio::test]
async fn what_becomes_of_the_pod_is_told() -> Result<()> {
    let rig = Rig::start("live").await?;
    let ip = ip();
    rig.put(slice("web", "web", &[named("web-0", of_pod(&ip, "web-0"))])).await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    let mut open = rig.hears(&rig.path("web-0.web:8080"), &format!("pod web-0 {MESHED}")).await?;
    rig.put(opaque_server("web", json!(8080))).await?;
    open.looks(&format!("opaque pod web-0 {OPAQUE}")).await?;
    rig.delete("Server", "web").await?;
    open.looks(&format!("pod web-0 {MESHED}")).await?;
    rig.set_status("Pod", "web-0", phase("Pending")).await?;
    open.looks("nobody").await?;
    rig.set_status("Pod", "web-0", phase("Running")).await?;
    open.looks(&format!("pod web-0 {MESHED}")).await?;
    open.has_told(5).await
}

#[tokio::test]
async fn the_name_is_followed_to_the_pods_next_address_and_to_another_pod() -> Result<()> {
    let rig = Rig::start("follow").await?;
    let (first, second) = (ip(), ip());
    rig.put(slice("web", "web", &[named("db-0", of_pod(&first, "db-0"))])).await?;
    rig.run(meshed("db-0"), &[&first]).await?;
    let mut open = rig.hears(&rig.path("db-0.web:8080"), &format!("pod db-0 {MESHED}")).await?;
    let is_at = |ip: &str| {
        let expected = at(ip, 8080);
        move |profile: &_| address(profile).is_ok_and(|address| address == expected)
    };
    open.shows("its address", is_at(&first)).await?;
    // The Pod's own address counts, not that of the slice.
    rig.set_status("Pod", "db-0", running(&[&second])).await?;
    open.shows("its next address", is_at(&second)).await?;
    open.looks(&format!("pod db-0 {MESHED}")).await?;
    rig.run(meshed("other"), &[&first]).await?;
    rig.seen("Pod").await?;
    rig.set_endpoints("web", &[named("db-0", of_pod(&first, "other"))]).await?;
    open.looks(&format!("pod other {MESHED}")).await?;
    open.shows("the other's address", is_at(&first)).await?;
    // Who has left is no longer its concern.
    rig.delete("Pod", "db-0").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    open.has_told(3).await
}

#[tokio::test]
async fn a_name_that_nobody_has_any_more_ends_the_stream() -> Result<()> {
    let rig = Rig::start("ends").await?;
    let ip = ip();
    let endpoint = || named("web-0", of_pod(&ip, "web-0"));
    rig.put_all([service("web"), slice("web", "web", &[endpoint()])]).await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    let path = rig.path("web-0.web:8080");
    let open = rig.hears(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.set_endpoints("web", &[of_pod(&ip, "web-0")]).await?;
    open.ends_and_then_is_refused(Code::NotFound, "no pod found in EndpointSlices of Service").await?;
    // Of two slices that have it, one is enough.
    rig.set_endpoints("web", &[endpoint()]).await?;
    rig.put(slice("more", "web", &[endpoint()])).await?;
    let mut open = rig.hears(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.delete("EndpointSlice", "web").await?;
    rig.seen("Pod").await?;
    open.is_quiet().await?;
    open.agrees().await?;
    // The Service is no matter.
    rig.delete("Service", "web").await?;
    open.is_quiet().await?;
    rig.delete("EndpointSlice", "more").await?;
    open.ends_and_then_is_refused(Code::NotFound, "no pod found in EndpointSlices of Service").await
}

#[tokio::test]
async fn a_name_whose_pod_is_not_there_is_unknown() -> Result<()> {
    let rig = Rig::start("missing").await?;
    let ip = ip();
    rig.put(slice("web", "web", &[named("web-0", of_pod(&ip, "web-0"))])).await?;
    let path = rig.path("web-0.web:8080");
    rig.is_refused(&path, Code::Unknown, "").await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    let open = rig.hears(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.delete("Pod", "web-0").await?;
    open.ends_and_then_is_refused(Code::Unknown, "").await
}

#[tokio::test]
async fn a_name_of_something_else_than_a_pod_is_its_address() -> Result<()> {
    let rig = Rig::start("other").await?;
    let (vm, bare) = (ip(), ip());
    let endpoints = [
        named("vm-0", of_workload(&vm, "vm")),
        named("bare-0", plain(&bare)),
        named("node-0", target(&bare, json!({"kind": "Node", "name": "node-a"}))),
    ];
    rig.put_all([machine("vm", &[&vm]), slice("web", "web", &endpoints)]).await?;
    for (instance, ip, expected) in
        [("vm-0", &vm, "external_workload vm"), ("bare-0", &bare, "nobody"), ("node-0", &bare, "nobody")]
    {
        let mut open = rig.ask_for(&format!("{instance}.web:8080")).await?;
        open.shows(expected, |profile| super::look(profile).starts_with(expected)).await?;
        assert_eq!(address(open.stream.last()?)?, at(ip, 8080));
    }
    rig.hears(&rig.path("bare-0.web:3306"), "opaque nobody").await.map(drop)
}

#[tokio::test]
async fn what_becomes_of_the_address_of_a_name_is_told() -> Result<()> {
    let rig = Rig::start("address").await?;
    let (vm, bare, moved) = (ip(), ip(), ip());
    let endpoints = |bare: &str| [named("vm-0", of_workload(&vm, "vm")), named("bare-0", plain(bare))];
    let known = format!("external_workload vm {MESHED}");
    rig.put_all([machine("vm", &[&vm]), slice("web", "web", &endpoints(&bare))]).await?;
    let mut of_vm = rig.hears(&rig.path("vm-0.web:8080"), &known).await?;
    let mut of_bare = rig.hears(&rig.path("bare-0.web:8080"), "nobody").await?;
    // Another address is for a new stream.
    rig.set_endpoints("web", &endpoints(&moved)).await?;
    of_bare.stream.ended().await?;
    let mut of_bare = rig.hears(&rig.path("bare-0.web:8080"), "nobody").await?;
    assert_eq!(address(of_bare.stream.last()?)?, at(&moved, 8080));
    rig.annotate("ExternalWorkload", "vm", "config.linkerd.io/opaque-ports", Some("8080")).await?;
    of_vm.looks(&format!("opaque external_workload vm {OPAQUE}")).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    of_vm.looks("nobody").await?;
    rig.put(machine("vm", &[&vm])).await?;
    of_vm.looks(&known).await?;
    rig.run(meshed("late"), &[&moved]).await?;
    of_bare.looks(&format!("pod late {MESHED}")).await?;
    rig.delete("Pod", "late").await?;
    of_bare.looks("nobody").await?;
    // And so is a Pod by name in its place, or the other way round.
    rig.run(meshed("web-1"), &[&bare]).await?;
    rig.seen("Pod").await?;
    rig.set_endpoints("web", &[named("bare-0", of_pod(&bare, "web-1"))]).await?;
    of_bare.stream.ended().await?;
    let of_pod = rig.hears(&rig.path("bare-0.web:8080"), &format!("pod web-1 {MESHED}")).await?;
    rig.set_endpoints("web", &endpoints(&moved)).await?;
    of_pod.ends_and_then_looks("nobody").await
}
