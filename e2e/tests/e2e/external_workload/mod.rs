//! The ExternalWorkload controller as its users see it, on the shared control plane, with a namespace for each test.
//!
//! The D-numbers are those of the acceptance table. Unit tests of the plan cover the content of slices and the placement
//! of endpoints in them. The tests here need a real API server, with its defaults, its garbage collector and its own
//! slices.

mod service_types;
mod traffic;

use std::{
    collections::BTreeMap,
    ops::Deref,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    SharedManager, TestNamespace, eventually, holds,
    mesh::{MANAGED_BY, Mesh, SOON},
    shared_manager,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
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

/// The defaults that the API server sets are not a difference, for any shape of a Service.
#[tokio::test]
async fn slices_are_written_once_d1_d1b_d10_d34() -> Result<()> {
    let mesh = mesh("settled").await?;
    for (name, spec) in [
        ("unnamed", json!({"ports": [{"port": 80}]})),
        ("headless", json!({"clusterIP": "None", "ports": []})),
        ("grpc", json!({"ports": [{"name": "http", "port": 80, "appProtocol": "kubernetes.io/h2c"}]})),
    ] {
        mesh.put_service(name, spec).await?;
        mesh.put_workload(&format!("vm-{name}"), name, &["192.0.2.1"]).await?;
        mesh.shows(name, &[(&format!("vm-{name}"), true)]).await?;
        stays_untouched(&mesh, name).await?;
    }
    let headless = only_slice(&mesh, "headless").await?;
    assert_eq!(headless.labels()["service.kubernetes.io/headless"], "");
    assert_eq!(headless.endpoints[0].hostname.as_deref(), Some("vm-headless"));
    Ok(())
}

#[tokio::test]
async fn an_invalid_address_is_left_out_and_reported_d22() -> Result<()> {
    let mesh = mesh("d22").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm", "web", &["127.0.0.1"]).await?;
    let note = mesh.expect_event("vm", "InvalidWorkloadIP").await?;
    assert!(note.contains(r#""127.0.0.1""#), "{note}");
    mesh.put_workload("good", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("good", true)]).await?;
    // A corrected address is published.
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.6"}]}})).await?;
    mesh.shows("web", &[("good", true), ("vm", true)]).await
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
async fn a_workload_gets_one_event_for_each_change_d36() -> Result<()> {
    let mesh = mesh("events").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload_with("vm", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.4"}]}})).await?;
    let note = mesh.expect_event("vm", "Published").await?;
    assert!(note.contains("Service web") && note.contains("192.0.2.4") && note.contains("not ready"), "{note}");
    let generation = only_slice(&mesh, "web").await?.metadata.generation.unwrap();
    for (ready, reason) in [(true, "BecameReady"), (false, "BecameUnready")] {
        mesh.set_ready("vm", ready).await?;
        mesh.expect_event("vm", reason).await?;
    }
    assert_eq!(only_slice(&mesh, "web").await?.metadata.generation.unwrap(), generation + 2);
    mesh.delete_workload("vm").await?;
    mesh.expect_event("vm", "Unpublished").await?;
    let events = mesh.events_of("vm").await?;
    let reasons: Vec<_> = events.iter().filter_map(|event| event.split(':').next()).collect();
    assert_eq!(reasons, ["Published", "BecameReady", "BecameUnready", "Unpublished"]);
    let event = mesh.events.list(&kube::api::ListParams::default().fields("reason=Published")).await?.items.remove(0);
    assert_eq!(event.related.and_then(|related| related.kind).as_deref(), Some("Service"));
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    Ok(())
}

#[tokio::test]
async fn a_slice_left_by_a_deleted_service_of_the_same_name_is_replaced_d8_d27() -> Result<()> {
    let mesh = mesh("d27").await?;
    mesh.put_web_over_vm().await?;
    for _ in 0..3 {
        mesh.services.delete("web", &DeleteParams::default()).await?;
        let uid = mesh.put_service("web", json!({})).await?.uid().unwrap();
        eventually(SOON, "the new Service to own the only slice", async || {
            let slice = only_slice(&mesh, "web").await?;
            ensure!(slice.owner_references()[0].uid == uid, "the owner is {:?}", slice.owner_references());
            ensure!(slice.endpoints.len() == 1, "it is empty");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_relabelled_slice_stays_unchanged_and_a_new_one_replaces_it_d21() -> Result<()> {
    let mesh = mesh("d21").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_service("other", json!({})).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    for (label, value) in [
        ("endpointslice.kubernetes.io/managed-by", "other-controller"),
        ("kubernetes.io/service-name", "no-such-service"),
    ] {
        mesh.shows("web", &[("vm", true)]).await?;
        let slice = only_slice(&mesh, "web").await?;
        patch_slice(&mesh, &slice, json!({"metadata": {"labels": {label: value}}})).await?;
        eventually(SOON, "a replacement under another name", async || {
            let now = only_slice(&mesh, "web").await?;
            ensure!(now.name_any() != slice.name_any() && now.endpoints.len() == 1, "{}", now.name_any());
            Ok(())
        })
        .await?;
        assert_eq!(mesh.slices.get(&slice.name_any()).await?.labels()[label], value);
    }
    // A slice whose label names another Service is not owned by that Service, and is deleted.
    let slice = only_slice(&mesh, "web").await?;
    patch_slice(&mesh, &slice, json!({"metadata": {"labels": {"kubernetes.io/service-name": "other"}}})).await?;
    eventually(SOON, "the mislabeled slice to be deleted", async || {
        ensure!(mesh.our_slices("other").await?.is_empty(), "it still exists");
        only_slice(&mesh, "web").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_workload_that_never_stops_changing_causes_few_writes() -> Result<()> {
    let mesh = mesh("restless").await?;
    mesh.put_web_over_vm().await?;
    let generation = async || anyhow::Ok(only_slice(&mesh, "web").await?.metadata.generation.unwrap_or_default());
    let (before, begun) = (generation().await?, Instant::now());
    stream::iter(0..300)
        .map(|flip| mesh.set_ready("vm", flip % 2 == 0))
        .buffer_unordered(4)
        .try_for_each(|()| std::future::ready(Ok(())))
        .await?;
    mesh.set_ready("vm", false).await?;
    mesh.shows("web", &[("vm", false)]).await?;
    let (writes, took) = (generation().await? - before, begun.elapsed());
    // Ten in each second that has begun, the first one, and the last.
    let most = 10 * i64::try_from(took.as_secs() + 1)? + 2;
    ensure!(writes <= most, "{writes} writes in {took:?}");
    Ok(())
}
