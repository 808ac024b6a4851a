//! Namespaces in which no object can be created: terminating, or with an exhausted quota.

use anyhow::{Result, ensure};
use e2e::{Options, eventually, holds, mesh::SOON};
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{BACKED_OFF, FaultRig, QUIET, expect_one_event, new_mesh};

async fn terminating(rig: &FaultRig) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(rig.client.clone());
    namespaces.delete(rig.mesh.namespace(), &DeleteParams::default()).await?;
    eventually(SOON, "the namespace to be terminating", async || {
        let phase = namespaces.get(rig.mesh.namespace()).await?.status.and_then(|status| status.phase);
        ensure!(phase.as_deref() == Some("Terminating"), "{phase:?}");
        Ok(())
    })
    .await
}

/// Checks that a Service in another namespace is still published.
async fn others_are_published(rig: &FaultRig) -> Result<()> {
    let elsewhere = new_mesh(&rig.client).await?;
    elsewhere.put_service("web", json!({})).await?;
    elsewhere.put_workload("vm", "web", &["192.0.2.1"]).await?;
    elsewhere.shows("web", &[("vm", true)]).await?;
    elsewhere.expect_event("vm", "Published").await.map(drop)
}

/// The requests of the manager for the namespace.
fn requests(rig: &FaultRig) -> Vec<e2e::fault_proxy::RecordedRequest> {
    let path = format!("/namespaces/{}/", rig.mesh.namespace());
    rig.proxy.log().into_iter().filter(|request| request.path.contains(&path)).collect()
}

/// No controllers run that would empty the namespace. Its objects can still be changed, but no object can be created.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_terminating_namespace_possible_writes_succeed_and_others_are_not_retried() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    for service in ["web", "loses"] {
        rig.mesh.put_service(service, json!({})).await?;
        rig.mesh.put_workload(&format!("vm-{service}"), service, &["192.0.2.1"]).await?;
        rig.mesh.shows(service, &[(&format!("vm-{service}"), true)]).await?;
        rig.mesh.expect_event(&format!("vm-{service}"), "Published").await?;
    }
    terminating(&rig).await?;
    let before = requests(&rig).len();
    rig.mesh.set_ready("vm-web", false).await?;
    rig.mesh.shows("web", &[("vm-web", false)]).await?;
    for slice in rig.mesh.our_slices("loses").await? {
        rig.mesh.slices.delete(&kube::ResourceExt::name_any(&slice), &DeleteParams::default()).await?;
    }
    for ready in [false, true, false] {
        rig.mesh.set_ready("vm-loses", ready).await?;
    }
    rig.mesh.set_ready("vm-web", true).await?;
    rig.mesh.shows("web", &[("vm-web", true)]).await?;
    others_are_published(&rig).await?;
    holds(QUIET, "few requests", async || {
        let seen = requests(&rig);
        let seen = seen.get(before..).unwrap_or_default();
        // Two updates, one attempt for each change of `loses`, and one refused Event.
        ensure!(seen.len() <= 8, "{seen:?}");
        let events = seen.iter().filter(|request| request.path.contains("/events")).count();
        ensure!(events <= 1, "{events} attempts to write Events");
        Ok(())
    })
    .await?;
    let log = manager.log();
    assert_eq!(log.matches("Events are denied").count(), 1, "{log}");
    assert!(!log.contains("could not be written"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slowly_terminating_namespace_receives_few_requests_and_none_at_rest() -> Result<()> {
    let rig = FaultRig::shipped(Options::with_controllers()).await?;
    let manager = rig.shipped_manager().await?;
    let holding = json!({"metadata": {"finalizers": ["example.com/slow"]}});
    for service in ["web", "stays"] {
        rig.mesh.put_service(service, json!({})).await?;
        for number in 1..=5 {
            let name = format!("{service}-{number}");
            rig.mesh.put_workload(&name, service, &[&format!("192.0.2.{number}")]).await?;
        }
        let all: Vec<String> = (1..=5).map(|number| format!("{service}-{number}")).collect();
        rig.mesh.shows(service, &all.iter().map(|name| (name.as_str(), true)).collect::<Vec<_>>()).await?;
    }
    rig.mesh.patch_workload("web-1", holding.clone()).await?;
    rig.mesh.patch_workload("stays-1", holding.clone()).await?;
    rig.mesh.patch_service("stays", holding).await?;
    let before = requests(&rig).len();
    terminating(&rig).await?;
    others_are_published(&rig).await?;
    eventually(BACKED_OFF, "only objects with a finalizer to be left", async || {
        let workloads = rig.mesh.workloads.list(&super::ours().labels("")).await?.items;
        let services = rig.mesh.services.list(&super::ours().labels("")).await?.items;
        ensure!((workloads.len(), services.len()) == (2, 1), "{} and {}", workloads.len(), services.len());
        ensure!(rig.mesh.our_slices("web").await?.is_empty(), "slices of a deleted Service are left");
        Ok(())
    })
    .await?;
    holds(QUIET, "few requests", async || {
        let seen = requests(&rig);
        let seen = seen.get(before..).unwrap_or_default();
        // Each deleted workload may cause one write; no write is retried in a loop.
        ensure!(seen.len() <= 30, "{} requests: {seen:?}", seen.len());
        Ok(())
    })
    .await?;
    rig.proxy.rests().await?;
    let log = manager.log();
    assert!(log.matches("Events are denied").count() <= 1, "{log}");
    assert!(!log.contains("could not be written"), "{log}");

    let release = json!({"metadata": {"finalizers": null}});
    rig.mesh.patch_workload("web-1", release.clone()).await?;
    rig.mesh.patch_workload("stays-1", release.clone()).await?;
    rig.mesh.patch_service("stays", release).await?;
    let namespaces: Api<Namespace> = Api::all(rig.client.clone());
    eventually(BACKED_OFF, "the namespace to be deleted", async || {
        let left = namespaces.get_opt(rig.mesh.namespace()).await?;
        ensure!(left.is_none(), "{:?}", left.and_then(|left| left.status));
        Ok(())
    })
    .await?;
    others_are_published(&rig).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_quota_is_reported_and_writes_succeed_when_it_is_raised() -> Result<()> {
    const COUNTED: &str = "count/endpointslices.discovery.k8s.io";
    let rig = FaultRig::start(Options::with_controllers()).await?;
    let manager = rig.manager().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(rig.client.clone(), rig.mesh.namespace());
    let quota: Value = json!({"metadata": {"name": "slices"}, "spec": {"hard": {COUNTED: "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    eventually(SOON, "the quota to be in force", async || {
        let status = quotas.get("slices").await?.status;
        let hard = status.and_then(|status| status.hard).unwrap_or_default();
        ensure!(hard.contains_key(COUNTED), "{hard:?}");
        Ok(())
    })
    .await?;
    rig.mesh.put_service("web", json!({})).await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    let note = expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    assert!(note.contains("exceeded quota: slices") && note.contains(COUNTED), "{note}");
    others_are_published(&rig).await?;
    let labels = [("reason", "forbidden")];
    assert!(manager.metric("linkerd_operator_reconcile_errors_total", &labels).await.unwrap_or_default() >= 1.0);

    let raised = json!({"spec": {"hard": {COUNTED: "20"}}});
    quotas.patch("slices", &PatchParams::default(), &Patch::Merge(raised)).await?;
    eventually(BACKED_OFF, "the slice", async || {
        let seen = rig.mesh.readiness("web").await?;
        ensure!(seen.get("vm") == Some(&true), "{seen:?}");
        Ok(())
    })
    .await?;
    expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    rig.mesh.expect_event("vm", "Published").await.map(drop)
}
