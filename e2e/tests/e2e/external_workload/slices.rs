//! The slices of a Service over their lifetime: kept, emptied, restored, replaced and deleted.
//!
//! * In: edits of our slices and of others, and changes of Services. Out: the slices in the API server.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{QUIET, mesh, only_slice, patch_slice, stays_untouched};

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
async fn a_terminating_service_gets_updates_but_no_new_slices_d9() -> Result<()> {
    let mesh = mesh("d9").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.patch_service("web", json!({"metadata": {"finalizers": ["example.com/wait"]}})).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    mesh.services.delete("web", &DeleteParams::default()).await?;
    mesh.set_ready("vm", false).await?;
    mesh.shows("web", &[("vm", false)]).await?;
    // Endpoints with other ports need a separate slice.
    mesh.put_workload_with("vm-2", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.5"}], "ports": []}})).await?;
    holds(QUIET, "no new slice", async || only_slice(&mesh, "web").await.map(drop)).await?;
    mesh.patch_service("web", json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

#[tokio::test]
async fn the_slice_of_the_last_workload_is_emptied_and_then_deleted_d11_d38() -> Result<()> {
    let mesh = mesh("d11").await?;
    mesh.put_web_over_vm().await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    let mut seen = mesh.watch_slices().await?;
    mesh.delete_workload("vm").await?;
    // The order matters: Linkerd's Go destination ignores the endpoints of a deleted slice.
    assert_eq!(seen.next_of(&name).await?, "modified with 0 endpoints");
    assert_eq!(seen.next_of(&name).await?, "deleted with 0 endpoints");
    assert!(mesh.our_slices("web").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_changed_address_and_a_changed_port_stay_in_their_slice_d13_d39() -> Result<()> {
    let mesh = mesh("d13").await?;
    mesh.put_web_over_vm().await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    mesh.patch_workload("vm", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.5"}]}})).await?;
    let ports = json!([{"name": "http", "port": 8080}]);
    mesh.patch_workload("vm", json!({"spec": {"ports": ports}})).await?;
    mesh.patch_service("web", json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]}})).await?;
    eventually(SOON, "the new address and port", async || {
        let (endpoint, ports) = mesh.published("web").await?.remove("vm").context("vm is not published")?;
        ensure!(
            endpoint.addresses == ["192.0.2.5"] && ports == [("http".to_owned(), 8080)].into(),
            "{endpoint:?} {ports:?}"
        );
        Ok(())
    })
    .await?;
    assert_eq!(only_slice(&mesh, "web").await?.name_any(), name);
    Ok(())
}

#[tokio::test]
async fn slices_of_other_controllers_are_never_changed_d16() -> Result<()> {
    let mesh = mesh("d16").await?;
    let service = mesh.put_service("web", json!({})).await?;
    let foreign: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "theirs", "labels": {"kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "other-controller"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": service.uid()}]},
        "addressType": "IPv4", "endpoints": [{"addresses": ["203.0.113.1"]}], "ports": [],
    }))?;
    let before = mesh.slices.create(&PostParams::default(), &foreign).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    mesh.shows("web", &[("vm", true)]).await?;
    mesh.delete_workload("vm").await?;
    mesh.shows("web", &[]).await?;
    assert_eq!(mesh.slices.get("theirs").await?.resource_version(), before.resource_version());
    Ok(())
}

#[tokio::test]
async fn edited_emptied_and_deleted_slices_are_restored_d17_d18_d24() -> Result<()> {
    let mesh = mesh("d17").await?;
    mesh.put_web_over_vm().await?;
    let slice = only_slice(&mesh, "web").await?;
    let is_restored = async |what: &str| {
        eventually(SOON, format_args!("the slice to be restored after {what}"), async || {
            let now = only_slice(&mesh, "web").await?;
            ensure!(now.endpoints == slice.endpoints && now.ports == slice.ports, "{now:?}");
            ensure!(now.labels() == slice.labels(), "{:?}", now.labels());
            Ok(())
        })
        .await
    };
    let edited = json!({"endpoints": [{"addresses": ["203.0.113.1"], "conditions": {"ready": true}}]});
    patch_slice(&mesh, &slice, edited).await?;
    is_restored("an edit").await?;
    patch_slice(&mesh, &slice, json!({"ports": [{"name": "other", "port": 1, "protocol": "TCP"}]})).await?;
    is_restored("an edit of its ports").await?;
    patch_slice(&mesh, &slice, json!({"metadata": {"labels": {"theirs": "label"}}})).await?;
    is_restored("a new label").await?;
    patch_slice(&mesh, &slice, json!({"endpoints": []})).await?;
    is_restored("it is emptied").await?;
    let name = only_slice(&mesh, "web").await?.name_any();
    mesh.slices.delete(&name, &DeleteParams::default()).await?;
    is_restored("its deletion").await
}

#[tokio::test]
async fn hints_that_another_client_writes_are_kept() -> Result<()> {
    let mesh = mesh("hints").await?;
    mesh.put_web_over_vm().await?;
    let mut endpoints = serde_json::to_value(&only_slice(&mesh, "web").await?.endpoints)?;
    endpoints[0]["hints"] = json!({"forZones": [{"name": "b"}]});
    patch_slice(&mesh, &only_slice(&mesh, "web").await?, json!({ "endpoints": endpoints })).await?;
    stays_untouched(&mesh, "web").await?;
    mesh.set_ready("vm", false).await?;
    mesh.shows("web", &[("vm", false)]).await?;
    let kept = serde_json::to_value(&only_slice(&mesh, "web").await?.endpoints[0].hints)?;
    assert_eq!(kept, json!({"forZones": [{"name": "b"}]}));
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
async fn a_service_that_stops_selecting_loses_our_slices_d35() -> Result<()> {
    let mesh = mesh("d35").await?;
    for name in ["external", "selectorless"] {
        mesh.put_service(name, json!({})).await?;
        mesh.put_workload(&format!("vm-{name}"), name, &["192.0.2.4"]).await?;
        mesh.shows(name, &[(&format!("vm-{name}"), true)]).await?;
    }
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null,
        "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null}});
    mesh.patch_service("external", external).await?;
    mesh.patch_service("selectorless", json!({"spec": {"selector": null}})).await?;
    for name in ["external", "selectorless"] {
        mesh.shows(name, &[]).await?;
        mesh.expect_event(&format!("vm-{name}"), "Unpublished").await?;
    }
    // The slices return when the selector is restored.
    mesh.patch_service("selectorless", json!({"spec": {"selector": {"app": "selectorless"}}})).await?;
    mesh.shows("selectorless", &[("vm-selectorless", true)]).await
}

#[tokio::test]
async fn a_recreated_workload_stays_in_its_slice_with_its_new_uid_d37() -> Result<()> {
    let mesh = mesh("d37").await?;
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("stays", "web", &["192.0.2.1"]).await?;
    mesh.put_workload("vm", "web", &["192.0.2.2"]).await?;
    mesh.shows("web", &[("stays", true), ("vm", true)]).await?;
    mesh.delete_workload("vm").await?;
    mesh.put_workload("vm", "web", &["192.0.2.2"]).await?;
    let uid = mesh.workloads.get("vm").await?.uid();
    eventually(SOON, "the new uid", async || {
        let (endpoint, _) = mesh.published("web").await?.remove("vm").context("vm is not published")?;
        let seen = endpoint.target_ref.and_then(|target| target.uid);
        ensure!(seen == uid, "{seen:?}");
        only_slice(&mesh, "web").await.map(drop)
    })
    .await
}

#[tokio::test]
async fn more_than_a_hundred_workloads_are_split_over_slices() -> Result<()> {
    let mesh = mesh("many").await?;
    mesh.put_service("web", json!({})).await?;
    let names: Vec<String> = (0..130).map(|number| format!("vm-{number:03}")).collect();
    for (number, name) in names.iter().enumerate() {
        let ip = format!("192.0.2.{}", 1 + number);
        mesh.put_workload_with(name, "web", json!({"spec": {"workloadIPs": [{ "ip": ip }]}})).await?;
    }
    let all: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    mesh.shows("web", &all).await?;
    let lengths: Vec<usize> = mesh.our_slices("web").await?.iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(lengths.iter().sum::<usize>(), 130);
    assert!(lengths.len() == 2 && lengths.iter().all(|length| *length <= 100), "{lengths:?}");
    stays_untouched(&mesh, "web").await
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
