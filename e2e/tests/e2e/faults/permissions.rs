//! The manager with exactly the permissions of the shipped manifests, and with fewer.

use anyhow::{Context, Result, ensure};
use e2e::{
    Options, eventually, holds,
    mesh::SOON,
    shipped::{CLUSTER_ROLES, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};
use hyper::StatusCode;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{BACKED_OFF, FaultRig, QUIET, expect_one_event, new_mesh};

const ROLE: &str = "linkerd-operator-external-workload";
const EVENTS: &str = "linkerd-operator-events";

/// Starts a control plane with the strict owner reference check of OpenShift, and gives the manager's ServiceAccount
/// the roles of the manifests for ExternalWorkloads.
async fn start() -> Result<FaultRig> {
    start_with_roles(&[ROLE, EVENTS]).await
}

async fn start_with_roles(bound: &[&str]) -> Result<FaultRig> {
    let strict = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned();
    FaultRig::shipped_with(Options { extra_api_server_args: vec![strict], ..Options::default() }, bound).await
}

/// Removes verbs on a resource from a role. Returns the original rules, for [`grant`].
async fn revoke(rig: &FaultRig, role: &str, resource: &str, verbs: &[&str]) -> Result<Value> {
    let roles: Api<ClusterRole> = Api::all(rig.client.clone());
    let whole = serde_json::to_value(roles.get(role).await?.rules)?;
    let mut less = whole.clone();
    for rule in less.as_array_mut().into_iter().flatten() {
        if rule["resources"] == json!([resource]) {
            let kept = rule["verbs"].as_array_mut().context("a rule without verbs")?;
            kept.retain(|verb| !verbs.iter().any(|revoked| verb == revoked));
        }
    }
    // A rule must have at least one verb.
    if let Some(rules) = less.as_array_mut() {
        rules.retain(|rule| rule["verbs"] != json!([]));
    }
    ensure!(less != whole, "{resource} is not in {whole}");
    grant(rig, role, &less).await?;
    Ok(whole)
}

async fn grant(rig: &FaultRig, role: &str, rules: &Value) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(rig.client.clone());
    roles.patch(role, &PatchParams::default(), &Patch::Merge(json!({ "rules": rules }))).await?;
    Ok(())
}

/// Waits until the API server allows or denies the verb to the manager.
async fn in_force(rig: &FaultRig, allowed: bool, verb: &str, resource: &str) -> Result<()> {
    eventually(SOON, format_args!("can-i {verb} {resource} to be {allowed}"), async || {
        let may = rig.may(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT, verb, resource, "--all-namespaces").await;
        ensure!(may == allowed, "can-i is {may}");
        Ok(())
    })
    .await
}

fn refused(rig: &FaultRig) -> Vec<e2e::fault_proxy::RecordedRequest> {
    rig.proxy.log().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_permissions_are_sufficient_d26() -> Result<()> {
    let rig = start_with_roles(&CLUSTER_ROLES).await?;
    rig.control_plane.install_crds("crd").await?;
    let mut manager = rig.shipped_manager().await?;
    rig.mesh.put_service("web", json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"})).await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1", "2001:db8::1"]).await?;
    rig.mesh.shows("web", &[("vm", true)]).await?;
    rig.mesh.expect_event("vm", "Published").await?;
    rig.mesh.set_ready("vm", false).await?;
    rig.mesh.shows("web", &[("vm", false)]).await?;
    rig.mesh.expect_event("vm", "BecameUnready").await?;
    // The create conflicts with an existing slice, which is then read.
    let name = rig.mesh.our_slices("web").await?.first().map(kube::ResourceExt::name_any).context("a slice")?;
    rig.mesh.delete_workload("vm").await?;
    eventually(SOON, "the slices to be deleted", async || {
        ensure!(rig.mesh.our_slices("web").await?.is_empty(), "they still exist");
        Ok(())
    })
    .await?;
    let squatter = json!({"metadata": {"name": name}, "addressType": "IPv4", "endpoints": [], "ports": []});
    rig.mesh.slices.create(&kube::api::PostParams::default(), &serde_json::from_value(squatter)?).await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1", "2001:db8::1"]).await?;
    rig.mesh.shows("web", &[("vm", true)]).await?;
    let path = format!("web.{}.svc.cluster.local:80", rig.mesh.namespace());
    manager.discovery().await?.get(&path, "").await?.shows(&["192.0.2.1:80", "[2001:db8::1]:80"]).await?;
    manager.has_no_problem().await?;
    let status = manager.terminate(SOON).await?;
    assert!(status.success(), "{status}");
    assert_eq!(refused(&rig), []);
    assert!(manager.log().contains("released the Lease"), "{}", manager.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_slice_writes_are_reported_and_succeed_when_they_are_allowed_again() -> Result<()> {
    let rig = start().await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let whole = revoke(&rig, ROLE, "endpointslices", &["create", "update", "delete"]).await?;
    in_force(&rig, false, "update", "endpointslices.discovery.k8s.io").await?;
    let writes = rig.writes();
    rig.mesh.set_ready("vm", false).await?;
    rig.mesh.put_service("new", json!({})).await?;
    rig.mesh.put_workload("vm-new", "new", &["192.0.2.2"]).await?;
    for (service, verb) in [("web", "cannot update"), ("new", "cannot create")] {
        let note = expect_one_event(&rig.mesh, service, "EndpointSliceWriteFailed").await?;
        assert!(note.contains(verb) && note.contains("is forbidden: User"), "{note}");
    }
    holds(QUIET, "few attempts, and a ready process", async || {
        // The retries of each Service are 0.1, 0.2, 0.4 ... s apart.
        ensure!(rig.writes() - writes <= 20, "{} attempts", rig.writes() - writes);
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::OK, "{body}");
        Ok(())
    })
    .await?;
    rig.mesh.shows("web", &[("vm", true)]).await?;
    grant(&rig, ROLE, &whole).await?;
    eventually(BACKED_OFF, "the changes made while writes were denied", async || {
        let seen = (rig.mesh.readiness("web").await?, rig.mesh.readiness("new").await?);
        ensure!(seen.0.get("vm") == Some(&false) && seen.1.get("vm-new") == Some(&true), "{seen:?}");
        Ok(())
    })
    .await?;
    expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_events_cause_one_log_line_per_namespace_and_no_lost_endpoint() -> Result<()> {
    let rig = start().await?;
    let manager = rig.manager().await?;
    revoke(&rig, EVENTS, "events", &["create", "patch"]).await?;
    in_force(&rig, false, "create", "events.events.k8s.io").await?;
    rig.mesh.put_service("web", json!({})).await?;
    let names: Vec<String> = (1..=5).map(|number| format!("vm-{number}")).collect();
    for name in &names {
        rig.mesh.put_workload(name, "web", &[&format!("192.0.2.{}", name.trim_start_matches("vm-"))]).await?;
    }
    rig.mesh.shows("web", &names.iter().map(|name| (name.as_str(), true)).collect::<Vec<_>>()).await?;
    let elsewhere = new_mesh(&rig.client).await?;
    elsewhere.put_service("web", json!({})).await?;
    elsewhere.put_workload("vm", "web", &["192.0.2.1"]).await?;
    elsewhere.shows("web", &[("vm", true)]).await?;
    eventually(SOON, "the denied Events of both namespaces to be logged", async || {
        let lines = manager.log().matches("Events are denied").count();
        ensure!(lines == 2, "{lines} lines");
        Ok(())
    })
    .await?;
    assert_eq!(refused(&rig).len(), 2, "the manager must try once per namespace");
    let denied = [("cause", "denied")];
    manager.measures("linkerd_operator_events_dropped_total", &denied, |count| count >= Some(4.0)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_whose_watch_is_denied_keep_their_endpoints() -> Result<()> {
    let rig = start().await?;
    let manager = rig.manager().await?;
    rig.mesh.put_service("web", json!({})).await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_workload("goes", "web", &["192.0.2.2"]).await?;
    rig.mesh.shows("web", &[("vm", true), ("goes", true)]).await?;
    let before = rig.versions().await?;
    let whole = revoke(&rig, ROLE, "externalworkloads", &["get", "list", "watch"]).await?;
    in_force(&rig, false, "watch", "externalworkloads.workload.linkerd.io").await?;
    // An open watch stays allowed until it is restarted.
    rig.proxy.cut_all();
    let body = eventually(SOON, "/ready to report the denied watch", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status == StatusCode::OK, "{status}: the manager must stay ready with its cache: {body}");
        ensure!(body.contains("list and watch of externalworkloads.workload.linkerd.io are denied"), "{body}");
        Ok(body)
    })
    .await?;
    assert!(body.contains("grant them to this ServiceAccount"), "{body}");
    rig.mesh.delete_workload("goes").await?;
    // A reconcile in this state keeps the last known endpoints.
    rig.mesh.patch_service("web", json!({"metadata": {"annotations": {"note": "look"}}})).await?;
    holds(QUIET, "the last known endpoints", async || {
        let now = rig.versions().await?;
        ensure!(now == before, "{before:?} became {now:?}");
        Ok(())
    })
    .await?;
    grant(&rig, ROLE, &whole).await?;
    eventually(BACKED_OFF, "the removal of the workload that was deleted during the outage", async || {
        let seen = rig.mesh.readiness("web").await?;
        ensure!(seen.len() == 1, "{seen:?}");
        Ok(())
    })
    .await?;
    manager.is_well(SOON).await
}
