//! The object behind an address, in order of precedence: Service, Pod, host port of a Pod, ExternalWorkload.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tonic::Code;

use super::{MESHED, at, ip, phase, routes, workload_at};
use crate::discovery::{
    Rig,
    objects::{KEPT, Object, but, pod, service},
};

/// A Pod with a host port.
fn on_host(name: &str, host_port: u16) -> Object {
    let port = json!({"name": "http", "containerPort": 80, "hostPort": host_port});
    pod(name).with(json!({"spec": {"containers": [{"name": "app", "image": "app", "ports": [port]}]}}))
}

fn host(ip: &str) -> Value {
    json!({"hostIP": ip, "hostIPs": [{ "ip": ip }]})
}

#[tokio::test]
async fn the_first_object_in_the_order_wins_and_open_streams_follow() -> Result<()> {
    let rig = Rig::start("order").await?;
    let ip = ip();
    let mut open = rig.opens_with(&at(&ip, 8080), "address").await?;
    let vm = format!("external_workload vm {MESHED}");
    rig.put(workload_at("vm", &[&ip])).await?;
    open.becomes(&vm).await?;
    rig.put_with_status(on_host("host-1", 8080), but(phase("Running"), host(&ip))).await?;
    open.becomes("pod host-1").await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    open.becomes("pod web-1").await?;
    // The other ports of the address belong only to the Pod.
    let mut other = rig.opens_with(&at(&ip, 81), "pod web-1").await?;
    rig.delete("Pod", "web-1").await?;
    open.becomes("pod host-1").await?;
    rig.delete("Pod", "host-1").await?;
    open.becomes(&vm).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    open.becomes("address").await?;
    open.has_received(7).await?;
    other.becomes("address").await?;
    other.has_received(2).await
}

#[tokio::test]
async fn a_service_takes_precedence_over_all_others() -> Result<()> {
    let rig = Rig::start("service").await?;
    let ip = rig.put_service(service("web")).await?;
    rig.put_all([workload_at("vm", &[&ip]), rig.profile("web", routes(&["a"]))]).await?;
    rig.put_with_status(on_host("host-1", 80), but(phase("Running"), host(&ip))).await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    for kind in ["Pod", "ExternalWorkload"] {
        rig.catches_up(kind).await?;
    }
    let mut open = rig.opens_with(&at(&ip, 80), "service web with routes a").await?;
    // The Service also wins on a port that it does not declare.
    rig.opens_with(&at(&ip, 8080), "empty").await?;
    open.has_received(1).await?;
    // Two Pods with the address of a Service do not conflict.
    rig.run(pod("web-2"), &[&ip]).await?;
    rig.catches_up("Pod").await?;
    open.is_quiet().await?;
    open.matches_new_stream().await
}

#[tokio::test]
async fn a_service_has_the_same_profile_by_address_as_by_name() -> Result<()> {
    let rig = Rig::start("profile").await?;
    let client = Rig::start("client").await?;
    let ip = rig.put_service(service("web")).await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    let token = e2e::discovery::token(client.name(), "node");
    rig.opens_with(&at(&ip, 80), "service web with routes backup").await?;
    let mut open = rig.open_with(&at(&ip, 80), &token).await?;
    open.becomes("service web with routes primary").await?;
    let profile = open.stream.last()?;
    assert_eq!(profile.fully_qualified_name, rig.full_name("web"));
    client.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.becomes("service web with routes backup").await
}

#[tokio::test]
async fn ended_pods_have_no_address() -> Result<()> {
    let rig = Rig::start("ended").await?;
    let ip = ip();
    // As in the tests of Linkerd: one running Pod among ended and terminating ones.
    rig.run(pod("succeeded"), &[&ip]).await?;
    rig.set_status("Pod", "succeeded", phase("Succeeded")).await?;
    rig.run(pod("failed"), &[&ip]).await?;
    rig.set_status("Pod", "failed", phase("Failed")).await?;
    rig.run(pod("terminating").with(json!({"metadata": {"finalizers": [KEPT]}})), &[&ip]).await?;
    rig.terminate("terminating").await?;
    rig.run(pod("name2"), &[&ip]).await?;
    let mut open = rig.opens_with(&at(&ip, 8080), "pod name2").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    rig.delete("Pod", "succeeded").await?;
    rig.delete("Pod", "failed").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    open.is_quiet().await
}

#[tokio::test]
async fn a_new_conflict_ends_the_stream_and_a_resolved_one_is_forgotten() -> Result<()> {
    let rig = Rig::start("conflict").await?;
    let (of_pods, of_hosts, of_workloads) = (ip(), ip(), ip());
    let refused = Code::FailedPrecondition;

    rig.run(pod("a"), &[&of_pods]).await?;
    let open = rig.opens_with(&at(&of_pods, 8080), "pod a").await?;
    rig.run(pod("b"), &[&of_pods]).await?;
    open.ends_and_then_is_refused(refused, "found 2 pods with a conflicting pod network IP").await?;
    // A terminating or ended Pod does not conflict.
    rig.terminate("a").await?;
    let mut open = rig.opens_with(&at(&of_pods, 8080), "pod b").await?;
    rig.delete("Pod", "a").await?;
    rig.catches_up("Pod").await?;
    open.matches_new_stream().await?;
    open.has_received(1).await?;

    rig.put_with_status(on_host("c", 7777), but(phase("Running"), host(&of_hosts))).await?;
    let open = rig.opens_with(&at(&of_hosts, 7777), "pod c").await?;
    rig.put_with_status(on_host("d", 7777), but(phase("Running"), host(&of_hosts))).await?;
    open.ends_and_then_is_refused(refused, "found 2 pods with a conflicting host network endpoint").await?;
    rig.set_status("Pod", "d", phase("Failed")).await?;
    rig.opens_with(&at(&of_hosts, 7777), "pod c").await?;

    rig.put(workload_at("e", &[&of_workloads])).await?;
    let path = at(&of_workloads, 8080);
    let open = rig.opens_with(&path, &format!("external_workload e {MESHED}")).await?;
    rig.put(workload_at("f", &[&of_workloads])).await?;
    open.ends_and_then_is_refused(refused, "found 2 externalworkloads with a conflicting ip").await?;
    // A Pod takes precedence over both.
    rig.run(pod("g"), &[&of_workloads]).await?;
    let open = rig.opens_with(&path, "pod g").await?;
    rig.delete("Pod", "g").await?;
    open.ends_and_then_is_refused(refused, "found 2 externalworkloads").await?;
    rig.delete("ExternalWorkload", "e").await?;
    rig.opens_with(&path, &format!("external_workload f {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn pending_pods_hold_their_address_and_conflict() -> Result<()> {
    let rig = Rig::start("pending").await?;
    let ip = ip();
    let path = at(&ip, 8080);
    rig.put(workload_at("vm", &[&ip])).await?;
    rig.opens_with(&path, &format!("external_workload vm {MESHED}")).await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    rig.set_status("Pod", "web-1", phase("Pending")).await?;
    // The pending Pod still takes precedence over the ExternalWorkload.
    let mut open = rig.opens_with(&path, "address").await.context("a pending Pod")?;
    rig.set_status("Pod", "web-1", phase("Running")).await?;
    open.becomes("pod web-1").await?;
    rig.set_status("Pod", "web-1", phase("Pending")).await?;
    open.becomes("address").await?;
    rig.run(pod("web-2"), &[&ip]).await?;
    rig.set_status("Pod", "web-2", phase("Pending")).await?;
    open.ends_and_then_is_refused(Code::FailedPrecondition, "found 2 pods").await?;
    rig.delete("Pod", "web-1").await?;
    rig.delete("Pod", "web-2").await?;
    rig.opens_with(&path, &format!("external_workload vm {MESHED}")).await.map(drop)
}
