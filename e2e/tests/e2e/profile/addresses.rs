//! Who is behind an address: a Service before a Pod, before a port of a host, before a machine, before nobody.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tonic::Code;

use super::{MESHED, at, ip, look, machine, phase, routes, running};
use crate::discovery::{
    Rig,
    objects::{KEPT, Object, but, pod, service},
};

/// A Pod with a port on its host.
fn on_host(name: &str, host_port: u16) -> Object {
    let port = json!({"name": "http", "containerPort": 80, "hostPort": host_port});
    pod(name).with(json!({"spec": {"containers": [{"name": "app", "image": "app", "ports": [port]}]}}))
}

fn host(ip: &str) -> Value {
    json!({"hostIP": ip, "hostIPs": [{ "ip": ip }]})
}

#[tokio::test]
async fn whoever_comes_first_in_the_order_answers_and_open_streams_follow() -> Result<()> {
    let rig = Rig::start("order").await?;
    let ip = ip();
    let mut open = rig.hears(&at(&ip, 8080), "nobody").await?;
    let vm = format!("external_workload vm {MESHED}");
    rig.put(machine("vm", &[&ip])).await?;
    open.looks(&vm).await?;
    rig.put_with_status(on_host("host-1", 8080), but(phase("Running"), host(&ip))).await?;
    open.looks("pod host-1").await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    open.looks("pod web-1").await?;
    // The other ports of the address are the Pod's alone.
    let mut other = rig.hears(&at(&ip, 81), "pod web-1").await?;
    rig.delete("Pod", "web-1").await?;
    open.looks("pod host-1").await?;
    rig.delete("Pod", "host-1").await?;
    open.looks(&vm).await?;
    rig.delete("ExternalWorkload", "vm").await?;
    open.looks("nobody").await?;
    open.has_told(7).await?;
    other.looks("nobody").await?;
    other.has_told(2).await
}

#[tokio::test]
async fn a_service_comes_before_everybody_else() -> Result<()> {
    let rig = Rig::start("service").await?;
    let ip = rig.put_service(service("web")).await?;
    rig.put_all([machine("vm", &[&ip]), rig.profile("web", routes(&["a"]))]).await?;
    rig.put_with_status(on_host("host-1", 80), but(phase("Running"), host(&ip))).await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    for kind in ["Pod", "ExternalWorkload"] {
        rig.seen(kind).await?;
    }
    let mut open = rig.hears(&at(&ip, 80), "service web with routes a").await?;
    // Also on a port that it does not have.
    rig.hears(&at(&ip, 8080), "nothing").await?;
    open.has_told(1).await?;
    // Two Pods of one address, behind a Service: none of its concern.
    rig.run(pod("web-2"), &[&ip]).await?;
    rig.seen("Pod").await?;
    open.is_quiet().await?;
    open.agrees().await
}

#[tokio::test]
async fn by_its_address_a_service_has_the_profile_that_its_name_has() -> Result<()> {
    let rig = Rig::start("profile").await?;
    let client = Rig::start("client").await?;
    let ip = rig.put_service(service("web")).await?;
    rig.put(rig.profile("web", routes(&["backup"]))).await?;
    client.put(rig.profile("web", routes(&["primary"]))).await?;
    let token = e2e::discovery::token(client.name(), "node");
    rig.hears(&at(&ip, 80), "service web with routes backup").await?;
    let mut open = rig.ask_with(&at(&ip, 80), &token).await?;
    open.looks("service web with routes primary").await?;
    let told = open.stream.last()?;
    assert_eq!(told.fully_qualified_name, rig.full_name("web"));
    client.delete("ServiceProfile", &rig.full_name("web")).await?;
    open.looks("service web with routes backup").await
}

#[tokio::test]
async fn addresses_that_services_have_outside_the_cluster_are_nobodys() -> Result<()> {
    let rig = Rig::start("outside").await?;
    let (external, balanced) = (ip(), ip());
    rig.put_with_status(
        service("web").with(json!({"spec": {"type": "LoadBalancer", "externalIPs": [external]}})),
        json!({"loadBalancer": {"ingress": [{ "ip": balanced }]}}),
    )
    .await?;
    rig.seen("Service").await?;
    for ip in [external, balanced] {
        rig.hears(&at(&ip, 80), "nobody").await?;
    }
    Ok(())
}

#[tokio::test]
async fn pods_that_have_ended_have_no_address() -> Result<()> {
    let rig = Rig::start("ended").await?;
    let ip = ip();
    // Upstream's: one that runs, among those that do not count.
    rig.run(pod("succeeded"), &[&ip]).await?;
    rig.set_status("Pod", "succeeded", phase("Succeeded")).await?;
    rig.run(pod("failed"), &[&ip]).await?;
    rig.set_status("Pod", "failed", phase("Failed")).await?;
    rig.run(pod("terminating").with(json!({"metadata": {"finalizers": [KEPT]}})), &[&ip]).await?;
    rig.terminate("terminating").await?;
    rig.run(pod("name2"), &[&ip]).await?;
    let mut open = rig.hears(&at(&ip, 8080), "pod name2").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    rig.delete("Pod", "succeeded").await?;
    rig.delete("Pod", "failed").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    open.is_quiet().await
}

#[tokio::test]
async fn a_pod_in_the_hosts_network_is_found_by_the_ports_that_it_declares() -> Result<()> {
    let rig = Rig::start("host-network").await?;
    let ip = ip();
    let object = pod("agent").with(json!({"spec": {"hostNetwork": true}}));
    rig.put_with_status(object, but(running(&[&ip]), host(&ip))).await?;
    rig.hears(&at(&ip, 8080), "pod agent").await?;
    rig.hears(&at(&ip, 80), "nobody").await?;
    // As many as the host has ports for share its address.
    let other = pod("other").with(json!({"spec": {"hostNetwork": true, "containers": [
        {"name": "app", "image": "app", "ports": [{"containerPort": 9090}]}]}}));
    rig.put_with_status(other, but(running(&[&ip]), host(&ip))).await?;
    rig.hears(&at(&ip, 9090), "pod other").await?;
    rig.hears(&at(&ip, 8080), "pod agent").await.map(drop)
}

#[tokio::test]
async fn a_machine_is_found_by_the_ports_that_it_declares() -> Result<()> {
    let rig = Rig::start("machine").await?;
    let ip = ip();
    let ports = json!({"spec": {"ports": [{"name": "http", "port": 8080}, {"name": "linkerd-proxy", "port": 4143}]}});
    rig.put(machine("vm", &[&ip]).with(ports)).await?;
    for (port, expected) in [(8080, true), (4143, true), (80, false), (8081, false)] {
        let mut open = rig.ask(&at(&ip, port)).await?;
        let found = |profile: &_| look(profile).starts_with("external_workload vm") == expected;
        open.shows(&format!("{port}"), found).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_conflict_that_appears_ends_the_stream_and_one_that_goes_is_forgotten() -> Result<()> {
    let rig = Rig::start("conflict").await?;
    let (of_pods, of_hosts, of_machines) = (ip(), ip(), ip());
    let refused = Code::FailedPrecondition;

    rig.run(pod("a"), &[&of_pods]).await?;
    let open = rig.hears(&at(&of_pods, 8080), "pod a").await?;
    rig.run(pod("b"), &[&of_pods]).await?;
    open.ends_and_then_is_refused(refused, "found 2 pods with a conflicting pod network IP").await?;
    // One that is to go, or has ended, is not in the way.
    rig.terminate("a").await?;
    let mut open = rig.hears(&at(&of_pods, 8080), "pod b").await?;
    rig.delete("Pod", "a").await?;
    rig.seen("Pod").await?;
    open.agrees().await?;
    open.has_told(1).await?;

    rig.put_with_status(on_host("c", 7777), but(phase("Running"), host(&of_hosts))).await?;
    let open = rig.hears(&at(&of_hosts, 7777), "pod c").await?;
    rig.put_with_status(on_host("d", 7777), but(phase("Running"), host(&of_hosts))).await?;
    open.ends_and_then_is_refused(refused, "found 2 pods with a conflicting host network endpoint").await?;
    rig.set_status("Pod", "d", phase("Failed")).await?;
    rig.hears(&at(&of_hosts, 7777), "pod c").await?;

    rig.put(machine("e", &[&of_machines])).await?;
    let path = at(&of_machines, 8080);
    let open = rig.hears(&path, &format!("external_workload e {MESHED}")).await?;
    rig.put(machine("f", &[&of_machines])).await?;
    open.ends_and_then_is_refused(refused, "found 2 externalworkloads with a conflicting ip").await?;
    // A Pod comes before both.
    rig.run(pod("g"), &[&of_machines]).await?;
    let open = rig.hears(&path, "pod g").await?;
    rig.delete("Pod", "g").await?;
    open.ends_and_then_is_refused(refused, "found 2 externalworkloads").await?;
    rig.delete("ExternalWorkload", "e").await?;
    rig.hears(&path, &format!("external_workload f {MESHED}")).await.map(drop)
}

#[tokio::test]
async fn pods_that_do_not_run_yet_hold_their_address_and_conflict() -> Result<()> {
    let rig = Rig::start("pending").await?;
    let ip = ip();
    let path = at(&ip, 8080);
    rig.put(machine("vm", &[&ip])).await?;
    rig.hears(&path, &format!("external_workload vm {MESHED}")).await?;
    rig.run(pod("web-1"), &[&ip]).await?;
    rig.set_status("Pod", "web-1", phase("Pending")).await?;
    // The machine has to wait.
    let mut open = rig.hears(&path, "nobody").await.context("a pending Pod")?;
    rig.set_status("Pod", "web-1", phase("Running")).await?;
    open.looks("pod web-1").await?;
    rig.set_status("Pod", "web-1", phase("Pending")).await?;
    open.looks("nobody").await?;
    rig.run(pod("web-2"), &[&ip]).await?;
    rig.set_status("Pod", "web-2", phase("Pending")).await?;
    open.ends_and_then_is_refused(Code::FailedPrecondition, "found 2 pods").await?;
    rig.delete("Pod", "web-1").await?;
    rig.delete("Pod", "web-2").await?;
    rig.hears(&path, &format!("external_workload vm {MESHED}")).await.map(drop)
}
