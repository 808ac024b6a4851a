//! The ExternalWorkload controller as its users see it, on the shared control plane, with a namespace for each test.
//!
//! The D-numbers are those of the acceptance table. Unit tests of the plan cover the placement of endpoints in slices.
//! The tests here need a real API server, with its defaults, its garbage collector and its own slices.

mod slices;

use std::{collections::BTreeMap, ops::Deref, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    SharedManager, TestNamespace, eventually, holds,
    mesh::{MANAGED_BY, Mesh, SOON},
    shared_manager,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// How long a test waits for an unexpected write.
const QUIET: Duration = Duration::from_millis(1500);

/// The objects of a namespace that the shared manager watches.
struct Watched {
    mesh: Mesh,
    _manager: SharedManager,
}

impl Deref for Watched {
    type Target = Mesh;

    fn deref(&self) -> &Mesh {
        &self.mesh
    }
}

async fn mesh(prefix: &str) -> Result<Watched> {
    let (control_plane, manager) = shared_manager().await?;
    let client = control_plane.client().await?;
    let namespace = TestNamespace::create(&client, prefix).await?;
    Ok(Watched { mesh: Mesh::new(&client, namespace.name()), _manager: manager })
}

/// The resourceVersion of each slice, by name: every write changes it.
async fn versions(mesh: &Mesh, service: &str) -> Result<BTreeMap<String, String>> {
    let slices = mesh.our_slices(service).await?;
    Ok(slices.into_iter().map(|slice| (slice.name_any(), slice.resource_version().unwrap_or_default())).collect())
}

async fn stays_untouched(mesh: &Mesh, service: &str) -> Result<()> {
    let before = versions(mesh, service).await?;
    holds(QUIET, "no slice to be written", async || {
        let now = versions(mesh, service).await?;
        ensure!(now == before, "{before:?} became {now:?}");
        Ok(())
    })
    .await
}

async fn only_slice(mesh: &Mesh, service: &str) -> Result<EndpointSlice> {
    let mut slices = mesh.our_slices(service).await?;
    ensure!(slices.len() == 1, "Service {} has {} of our slices", service, slices.len());
    slices.pop().context("one slice")
}

async fn patch_slice(mesh: &Mesh, slice: &EndpointSlice, patch: serde_json::Value) -> Result<()> {
    mesh.slices.patch(&slice.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

#[tokio::test]
async fn a_workload_becomes_an_endpoint_of_the_service_that_selects_it() -> Result<()> {
    let mesh = mesh("first").await?;
    let service = mesh.put_web_over_vm().await?;
    let slice = only_slice(&mesh, "web").await?;
    assert!(slice.name_any().starts_with("linkerd-external-web-"));
    assert_eq!(slice.labels()["endpointslice.kubernetes.io/managed-by"], MANAGED_BY);
    let owner = &slice.owner_references()[0];
    assert_eq!((&owner.uid, owner.controller), (&service.uid().unwrap(), Some(true)));
    let endpoint = &slice.endpoints[0];
    assert_eq!(endpoint.addresses, ["192.0.2.4"]);
    let conditions = endpoint.conditions.as_ref().unwrap();
    assert_eq!((conditions.ready, conditions.serving, conditions.terminating), (Some(true), Some(true), Some(false)));
    let target = endpoint.target_ref.as_ref().unwrap();
    assert_eq!((target.kind.as_deref(), target.api_version.as_deref()), (Some("ExternalWorkload"), None));
    Ok(())
}

#[tokio::test]
async fn unchanged_and_annotated_objects_cause_no_write_d1() -> Result<()> {
    let mesh = mesh("d1").await?;
    mesh.put_web_over_vm().await?;
    let before = versions(&mesh, "web").await?;
    mesh.patch_service("web", json!({"metadata": {"annotations": {"note": "touched"}}})).await?;
    mesh.patch_workload("vm", json!({"metadata": {"annotations": {"note": "touched"}}})).await?;
    stays_untouched(&mesh, "web").await?;
    assert_eq!(versions(&mesh, "web").await?, before);
    Ok(())
}

#[tokio::test]
async fn an_unnamed_port_converges_d1b() -> Result<()> {
    let mesh = mesh("d1b").await?;
    mesh.put_service("web", json!({"ports": [{"port": 80}]})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm-2", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    stays_untouched(&mesh, "web").await
}

#[tokio::test]
async fn a_headless_service_without_ports_converges_and_has_hostnames_d10() -> Result<()> {
    let mesh = mesh("d10").await?;
    mesh.put_service("db", json!({"clusterIP": "None", "ports": []})).await?;
    mesh.put_workload("vm", "db", &["192.0.2.4"]).await?;
    mesh.shows("db", &[("vm", true)]).await?;
    let slice = only_slice(&mesh, "db").await?;
    assert_eq!(slice.labels()["service.kubernetes.io/headless"], "");
    assert_eq!(slice.endpoints[0].hostname.as_deref(), Some("vm"));
    stays_untouched(&mesh, "db").await
}

#[tokio::test]
async fn both_families_are_published_and_removed_separately_d12() -> Result<()> {
    let mesh = mesh("d12").await?;
    let dual = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"});
    mesh.put_service("web", dual).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4", "fd08::5678:0000:0000:9abc:def0"]).await?;
    let families = async || -> Result<BTreeMap<String, Vec<String>>> {
        let slices = mesh.our_slices("web").await?;
        let addresses = |slice: &EndpointSlice| slice.endpoints.iter().flat_map(|e| e.addresses.clone()).collect();
        Ok(slices.iter().map(|slice| (slice.address_type.clone(), addresses(slice))).collect())
    };
    let expect = async |what: &str, expected: &[(&str, &str)]| {
        let expected: BTreeMap<String, Vec<String>> =
            expected.iter().map(|(family, ip)| ((*family).to_owned(), vec![(*ip).to_owned()])).collect();
        eventually(SOON, what, async || {
            let seen = families().await?;
            ensure!(seen == expected, "{seen:?}");
            Ok(())
        })
        .await
    };
    // The only spelling that the API server accepts.
    let v6 = ("IPv6", "fd08::5678:0:0:9abc:def0");
    expect("both families", &[("IPv4", "192.0.2.4"), v6]).await?;
    // The readiness of each family is a write of its own.
    eventually(SOON, "both families to be ready", async || {
        let slices = mesh.our_slices("web").await?;
        let conditions = slices.iter().flat_map(|slice| &slice.endpoints).filter_map(|e| e.conditions.as_ref());
        let ready = conditions.filter(|conditions| conditions.ready == Some(true)).count();
        ensure!(ready == 2, "{ready} of the endpoints are ready");
        Ok(())
    })
    .await?;
    stays_untouched(&mesh, "web").await?;
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": v6.1}]}})).await?;
    expect("IPv6 alone", &[v6]).await?;
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": v6.1}, {"ip": "192.0.2.9"}]}})).await?;
    expect("both again", &[("IPv4", "192.0.2.9"), v6]).await?;
    // The Service loses its second family.
    mesh.patch_service("web", json!({"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}})).await?;
    expect("IPv4 alone", &[("IPv4", "192.0.2.9")]).await
}

#[tokio::test]
async fn a_workload_without_the_port_is_published_without_it_and_reported_d15() -> Result<()> {
    let mesh = mesh("d15").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload_with("vm-2", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.2"}], "ports": []}})).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", false)]).await?;
    let note = mesh.expect_event("vm-2", "UnmatchedPort").await?;
    assert!(note.contains("80/TCP"), "{note}");
    assert!(mesh.published("web").await?["vm-2"].1.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_changed_zone_and_a_changed_service_label_reach_the_slice_d19_d20() -> Result<()> {
    let mesh = mesh("d19").await?;
    mesh.put_web_over_vm().await?;
    let zone = async |expected: Option<&str>| {
        eventually(SOON, format_args!("zone {expected:?}"), async || {
            let zone = only_slice(&mesh, "web").await?.endpoints[0].zone.clone();
            ensure!(zone.as_deref() == expected, "{zone:?}");
            Ok(())
        })
        .await
    };
    mesh.patch_workload("vm", json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-a"}}})).await?;
    zone(Some("zone-a")).await?;
    mesh.patch_workload("vm", json!({"metadata": {"labels": {"topology.kubernetes.io/zone": null}}})).await?;
    zone(None).await?;
    for value in [Some("x"), None] {
        mesh.patch_service("web", json!({"metadata": {"labels": {"team": value}}})).await?;
        eventually(SOON, format_args!("label team={value:?}"), async || {
            let slice = only_slice(&mesh, "web").await?;
            ensure!(slice.labels().get("team").map(String::as_str) == value, "{:?}", slice.labels());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_invalid_address_is_left_out_and_reported_d22() -> Result<()> {
    let mesh = mesh("d22").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("good", "web", &["192.0.2.4"]).await?;
    for (name, ip) in [
        ("loopback", "127.0.0.1"),
        ("bogus", "bogus"),
        ("empty", ""),
        ("link-local", "169.254.1.1"),
        ("zeros", "010.0.0.1"),
    ] {
        mesh.put_workload(name, "web", &[ip]).await?;
        let note = mesh.expect_event(name, "InvalidWorkloadIP").await?;
        assert!(note.contains(&format!("{ip:?}")), "{note}");
    }
    mesh.put_workload_with("no-ip", "web", json!({"spec": {"workloadIPs": [{}]}})).await?;
    mesh.expect_event("no-ip", "InvalidWorkloadIP").await?;
    mesh.put_workload_with("no-ips", "web", json!({})).await?;
    mesh.put_workload("also-good", "web", &["192.0.2.5"]).await?;
    mesh.shows("web", &[("also-good", true), ("good", true)]).await?;
    assert_eq!(mesh.events_of("no-ips").await?, Vec::<String>::new(), "a workload without addresses is valid");
    // A corrected address is published.
    mesh.patch_workload("bogus", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.6"}]}})).await?;
    mesh.shows("web", &[("also-good", true), ("bogus", true), ("good", true)]).await
}

#[tokio::test]
async fn every_address_that_we_accept_is_accepted_by_the_api_server() -> Result<()> {
    let mesh = mesh("addresses").await?;
    let dual = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"});
    mesh.put_service("web", dual).await?;
    for (at, ip) in
        ["0.0.0.1", "255.255.255.255", "239.1.1.1", "100.64.0.1", "ff05::1", "2001:DB8::A", "::2", "::192.0.2.1"]
            .iter()
            .enumerate()
    {
        mesh.put_workload(&format!("vm-{at}"), "web", &[ip]).await?;
    }
    let all: Vec<String> = (0..8).map(|at| format!("vm-{at}")).collect();
    let all: Vec<(&str, bool)> = all.iter().map(|name| (name.as_str(), true)).collect();
    mesh.shows("web", &all).await
}

#[tokio::test]
async fn workloads_of_another_namespace_do_not_count_d30() -> Result<()> {
    let (here, there) = (mesh("d30-here").await?, mesh("d30-there").await?);
    here.put_service("web", json!({})).await?;
    there.put_workload("vm-there", "web", &["192.0.2.4"]).await?;
    here.put_workload("vm-here", "web", &["192.0.2.5"]).await?;
    here.shows("web", &[("vm-here", true)]).await?;
    assert!(there.our_slices("web").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_application_protocol_is_copied_to_the_slice_d34() -> Result<()> {
    let mesh = mesh("d34").await?;
    mesh.put_service("web", json!({"ports": [{"name": "http", "port": 80, "appProtocol": "kubernetes.io/h2c"}]}))
        .await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    let ports = only_slice(&mesh, "web").await?.ports.unwrap_or_default();
    assert_eq!(ports[0].app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    Ok(())
}

#[tokio::test]
async fn a_readiness_change_is_one_write_and_one_event_d36() -> Result<()> {
    let mesh = mesh("d36").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm-1", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm-2", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    let generation = only_slice(&mesh, "web").await?.metadata.generation.unwrap();
    mesh.set_ready("vm-2", false).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", false)]).await?;
    assert_eq!(only_slice(&mesh, "web").await?.metadata.generation.unwrap(), generation + 1);
    mesh.expect_event("vm-2", "BecameUnready").await?;
    mesh.set_ready("vm-2", true).await?;
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    mesh.delete_workload("vm-2").await?;
    mesh.shows("web", &[("vm-1", true)]).await?;
    mesh.expect_event("vm-2", "Unpublished").await?;
    Ok(())
}

#[tokio::test]
async fn changed_labels_and_selectors_update_the_services_left_and_joined() -> Result<()> {
    let mesh = mesh("labels").await?;
    for name in ["left", "joined"] {
        mesh.put_service(name, json!({})).await?;
    }
    mesh.put_workload("vm", "left", &["192.0.2.4"]).await?;
    mesh.shows("left", &[("vm", true)]).await?;
    mesh.patch_workload("vm", json!({"metadata": {"labels": {"app": "joined"}}})).await?;
    mesh.shows("left", &[]).await?;
    mesh.shows("joined", &[("vm", true)]).await?;
    mesh.patch_service("left", json!({"spec": {"selector": {"app": "joined"}}})).await?;
    mesh.shows("left", &[("vm", true)]).await?;
    mesh.shows("joined", &[("vm", true)]).await
}

#[tokio::test]
async fn a_published_workload_gets_one_event_for_each_change() -> Result<()> {
    let mesh = mesh("events").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload_with("vm", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.4"}]}})).await?;
    let note = mesh.expect_event("vm", "Published").await?;
    assert!(note.contains("Service web") && note.contains("192.0.2.4") && note.contains("not ready"), "{note}");
    mesh.set_ready("vm", true).await?;
    mesh.expect_event("vm", "BecameReady").await?;
    let reasons: Vec<String> =
        mesh.events_of("vm").await?.iter().filter_map(|e| e.split(':').next().map(str::to_owned)).collect();
    assert_eq!(reasons, ["Published", "BecameReady"]);
    let event = mesh.events.list(&kube::api::ListParams::default().fields("reason=Published")).await?.items.remove(0);
    assert_eq!(event.related.and_then(|related| related.kind).as_deref(), Some("Service"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    Ok(())
}
