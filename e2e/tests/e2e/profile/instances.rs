//! Changes of single Pods of a Service that are requested by hostname, such as `web-0.web`, on open streams.

use anyhow::Result;
use serde_json::{Value, json};
use tonic::Code;

use super::{MESHED, OPAQUE, at, ip, phase, pods::address, running, workload_at};
use crate::discovery::{
    Rig,
    objects::{address as plain, but, meshed, of_pod, of_workload, opaque_server, service, slice, target},
};

/// Sets the hostname of an endpoint.
fn named(hostname: &str, endpoint: Value) -> Value {
    but(endpoint, json!({ "hostname": hostname }))
}

#[tokio::test]
async fn changes_of_the_instances_pod_are_followed() -> Result<()> {
    let rig = Rig::start("live").await?;
    let ip = ip();
    rig.put(slice("web", "web", &[named("web-0", of_pod(&ip, "web-0"))])).await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    let mut open = rig.opens_with(&rig.path("web-0.web:8080"), &format!("pod web-0 {MESHED}")).await?;
    rig.put(opaque_server("web", json!(8080))).await?;
    open.becomes(&format!("opaque pod web-0 {OPAQUE}")).await?;
    rig.delete("Server", "web").await?;
    open.becomes(&format!("pod web-0 {MESHED}")).await?;
    rig.set_status("Pod", "web-0", phase("Pending")).await?;
    open.becomes("address").await?;
    rig.set_status("Pod", "web-0", phase("Running")).await?;
    open.becomes(&format!("pod web-0 {MESHED}")).await?;
    open.has_received(5).await
}

#[tokio::test]
async fn an_instance_follows_its_pod_to_another_address_and_its_hostname_to_another_pod() -> Result<()> {
    let rig = Rig::start("follow").await?;
    let (first, second) = (ip(), ip());
    rig.put(slice("web", "web", &[named("db-0", of_pod(&first, "db-0"))])).await?;
    rig.run(meshed("db-0"), &[&first]).await?;
    let mut open = rig.opens_with(&rig.path("db-0.web:8080"), &format!("pod db-0 {MESHED}")).await?;
    let is_at = |ip: &str| {
        let expected = at(ip, 8080);
        move |profile: &_| address(profile).is_ok_and(|address| address == expected)
    };
    open.shows("its address", is_at(&first)).await?;
    // The address in the Pod's status is used, not that of the slice.
    rig.set_status("Pod", "db-0", running(&[&second])).await?;
    open.shows("its next address", is_at(&second)).await?;
    open.becomes(&format!("pod db-0 {MESHED}")).await?;
    rig.run(meshed("other"), &[&first]).await?;
    rig.catches_up("Pod").await?;
    rig.set_endpoints("web", &[named("db-0", of_pod(&first, "other"))]).await?;
    open.becomes(&format!("pod other {MESHED}")).await?;
    open.shows("the address of the other Pod", is_at(&first)).await?;
    // The former Pod no longer affects the stream.
    rig.delete("Pod", "db-0").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    open.has_received(3).await
}

#[tokio::test]
async fn a_hostname_without_an_endpoint_ends_the_stream() -> Result<()> {
    let rig = Rig::start("ends").await?;
    let ip = ip();
    let endpoint = || named("web-0", of_pod(&ip, "web-0"));
    rig.put_all([service("web"), slice("web", "web", &[endpoint()])]).await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    let path = rig.path("web-0.web:8080");
    let open = rig.opens_with(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.set_endpoints("web", &[of_pod(&ip, "web-0")]).await?;
    open.ends_and_then_is_refused(Code::NotFound, "no pod found in EndpointSlices of Service").await?;
    // One of two slices with the hostname is enough.
    rig.set_endpoints("web", &[endpoint()]).await?;
    rig.put(slice("more", "web", &[endpoint()])).await?;
    let mut open = rig.opens_with(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.delete("EndpointSlice", "web").await?;
    rig.catches_up("Pod").await?;
    open.is_quiet().await?;
    open.matches_new_stream().await?;
    // The Service need not exist.
    rig.delete("Service", "web").await?;
    open.is_quiet().await?;
    rig.delete("EndpointSlice", "more").await?;
    open.ends_and_then_is_refused(Code::NotFound, "no pod found in EndpointSlices of Service").await
}

#[tokio::test]
async fn an_instance_without_its_pod_is_unknown() -> Result<()> {
    let rig = Rig::start("missing").await?;
    let ip = ip();
    rig.put(slice("web", "web", &[named("web-0", of_pod(&ip, "web-0"))])).await?;
    let path = rig.path("web-0.web:8080");
    rig.is_refused(&path, Code::Unknown, "").await?;
    rig.run(meshed("web-0"), &[&ip]).await?;
    let open = rig.opens_with(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.delete("Pod", "web-0").await?;
    open.ends_and_then_is_refused(Code::Unknown, "").await
}

#[tokio::test]
async fn a_recreated_pod_is_unknown_until_the_slice_has_its_uid() -> Result<()> {
    let rig = Rig::start("uid").await?;
    let ip = ip();
    let endpoint =
        |uid: &Option<String>| named("web-0", target(&ip, json!({"kind": "Pod", "name": "web-0", "uid": uid})));
    let uid = rig.create(meshed("web-0")).await?.metadata.uid;
    rig.set_status("Pod", "web-0", running(&[&ip])).await?;
    rig.put(slice("web", "web", &[endpoint(&uid)])).await?;
    let path = rig.path("web-0.web:8080");
    let open = rig.opens_with(&path, &format!("pod web-0 {MESHED}")).await?;
    rig.delete("Pod", "web-0").await?;
    open.ends_and_then_is_refused(Code::Unknown, "").await?;
    let uid = rig.create(meshed("web-0")).await?.metadata.uid;
    rig.set_status("Pod", "web-0", running(&[&ip])).await?;
    rig.catches_up("Pod").await?;
    rig.is_refused(&path, Code::Unknown, "").await?;
    rig.set_endpoints("web", &[endpoint(&uid)]).await?;
    rig.opens_with(&path, &format!("pod web-0 {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn changes_at_the_address_of_an_instance_are_followed() -> Result<()> {
    let rig = Rig::start("address").await?;
    let (vm, bare, moved) = (ip(), ip(), ip());
    let endpoints = |bare: &str| [named("vm-0", of_workload(&vm, "vm")), named("bare-0", plain(bare))];
    let known = format!("external_workload vm {MESHED}");
    rig.put_all([workload_at("vm", &[&vm]), slice("web", "web", &endpoints(&bare))]).await?;
    let mut of_vm = rig.opens_with(&rig.path("vm-0.web:8080"), &known).await?;
    let mut of_bare = rig.opens_with(&rig.path("bare-0.web:8080"), "address").await?;
    // A changed address ends the stream; a new stream has the new address.
    rig.set_endpoints("web", &endpoints(&moved)).await?;
    of_bare.stream.ended().await?;
    let mut of_bare = rig.opens_with(&rig.path("bare-0.web:8080"), "address").await?;
    assert_eq!(address(of_bare.stream.last()?)?, at(&moved, 8080));
    rig.annotate("ExternalWorkload", "vm", "config.linkerd.io/opaque-ports", Some("8080")).await?;
    of_vm.becomes(&format!("opaque external_workload vm {OPAQUE}")).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    of_vm.becomes("address").await?;
    rig.put(workload_at("vm", &[&vm])).await?;
    of_vm.becomes(&known).await?;
    rig.run(meshed("late"), &[&moved]).await?;
    of_bare.becomes(&format!("pod late {MESHED}")).await?;
    rig.delete("Pod", "late").await?;
    of_bare.becomes("address").await?;
    // A change from an address to a Pod, or back, also ends the stream.
    rig.run(meshed("web-1"), &[&bare]).await?;
    rig.catches_up("Pod").await?;
    rig.set_endpoints("web", &[named("bare-0", of_pod(&bare, "web-1"))]).await?;
    of_bare.stream.ended().await?;
    let of_pod = rig.opens_with(&rig.path("bare-0.web:8080"), &format!("pod web-1 {MESHED}")).await?;
    rig.set_endpoints("web", &endpoints(&moved)).await?;
    of_pod.ends_and_then_becomes("address").await
}
