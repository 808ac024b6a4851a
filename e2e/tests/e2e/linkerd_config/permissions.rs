//! The manager with exactly the permissions that the repository ships, and with less.

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, FaultProxy, Rule, eventually, holds,
    mesh::SOON,
    shipped::{OPERATOR_ACCOUNT, is_named},
};
use k8s_openapi::api::rbac::v1::Role;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{BACKED_OFF, CONFIG_MAP, HELM, Installation, QUIET, WELL, message};

const ROLE: &str = "linkerd-operator-linkerd-config";
const EVENTS: &str = "linkerd-operator-events";
const ROLLOUT: &str = "linkerd-operator-rollout";

/// The manager's own ServiceAccount, with what the manifests grant. The installation's namespace is Linkerd's and the operator's.
pub(super) async fn start() -> Result<Installation> {
    restricted(Installation::new().await?).await
}

/// Of an installation that has no manager yet.
pub(super) async fn restricted(installation: Installation) -> Result<Installation> {
    restricted_to(installation, &[ROLE, EVENTS, ROLLOUT]).await
}

/// With some of its ClusterRoles.
async fn restricted_to(mut installation: Installation, cluster_roles: &[&str]) -> Result<Installation> {
    let namespace = &installation.namespace;
    let control_plane = &installation.control_plane;
    let mut objects = control_plane.shipped("config/rbac").await?;
    objects.extend(control_plane.shipped("config/control-plane").await?);
    objects.retain(|object| match object["kind"].as_str() {
        Some("ClusterRole" | "ClusterRoleBinding") => cluster_roles.iter().any(|name| is_named(object, name)),
        _ => true,
    });
    for object in &mut objects {
        if object["metadata"]["namespace"].is_string() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            subject["namespace"] = json!(namespace);
        }
    }
    control_plane.apply(&objects).await?;
    let token = control_plane.service_account_token(namespace, OPERATOR_ACCOUNT).await?;
    installation.proxy = FaultProxy::start_with_token(control_plane, OPERATOR_ACCOUNT, &token).await?;
    Ok(installation)
}

/// Takes a verb on a resource away from the Role, until what this returns is applied again; and waits until it is so.
async fn revoke(installation: &Installation, resource: &str, verb: &str) -> Result<Value> {
    let roles: Api<Role> = Api::namespaced(installation.client.clone(), &installation.namespace);
    let whole = serde_json::to_value(roles.get(ROLE).await?.rules)?;
    let mut less = whole.clone();
    for rule in less.as_array_mut().into_iter().flatten().filter(|rule| rule["resources"] == json!([resource])) {
        rule["verbs"].as_array_mut().context("a rule without verbs")?.retain(|known| known != verb);
    }
    ensure!(less != whole, "{verb} of {resource} is not in {whole}");
    grant(installation, &less).await?;
    in_force(installation, false, resource, verb).await?;
    Ok(whole)
}

async fn grant(installation: &Installation, rules: &Value) -> Result<()> {
    let roles: Api<Role> = Api::namespaced(installation.client.clone(), &installation.namespace);
    roles.patch(ROLE, &PatchParams::default(), &Patch::Merge(json!({ "rules": rules }))).await?;
    Ok(())
}

async fn in_force(installation: &Installation, allowed: bool, resource: &str, verb: &str) -> Result<()> {
    let namespace = &installation.namespace;
    let account = format!("--as=system:serviceaccount:{namespace}:{OPERATOR_ACCOUNT}");
    let in_namespace = format!("--namespace={namespace}");
    let object = if resource == "configmaps" { format!("{resource}/{CONFIG_MAP}") } else { resource.to_owned() };
    eventually(SOON, format_args!("{verb} of {object} to be {allowed}"), async || {
        // Exits with 1 for "no".
        let may = installation.control_plane.kubectl(&["auth", "can-i", verb, &object, &account, &in_namespace]).await;
        ensure!(may.is_ok() == allowed, "it is not");
        Ok(())
    })
    .await
}

pub(super) fn refused(installation: &Installation) -> Vec<e2e::fault_proxy::Request> {
    installation.proxy.log().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_repository_grants_is_enough_for_a_whole_life() -> Result<()> {
    let installation = start().await?;
    let mut manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.edit("kubectl-edit", json!({"imagePullPolicy": "Always"})).await?;
    installation.map_tells("DriftReverted").await?;
    for number in 1..=6 {
        let base = HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: edge-26.9.{number}"));
        installation.rewrite("helm", &base).await?;
        let version = json!({"linkerdVersion": format!("edge-26.9.{number}"), "proxy": {"accessLog": "json"}});
        installation.says(&installation.helm_with(version).await?).await?;
    }
    installation.delete("mesh").await?;
    installation.is_gone("mesh").await?;
    installation.says(&installation.helm_with(json!({"linkerdVersion": "edge-26.9.6"})).await?).await?;
    assert_eq!(manager.get("/ready").await?.1, "ready\n");
    assert!(manager.terminate(SOON).await?.success());
    assert_eq!(refused(&installation), []);
    Ok(())
}

/// Who does not want restarts may keep the manager from them.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_look_at_workloads_the_configuration_is_kept_and_what_is_missing_is_said() -> Result<()> {
    let installation = restricted_to(Installation::new().await?, &[ROLE, EVENTS]).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let [accepted, synced, ready, _] = WELL;
    installation.reaches("mesh", &[accepted, synced, ready, "RolloutComplete=False/Progressing"]).await?;
    installation.says(&installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?).await?;
    eventually(SOON, "/ready to name what is missing", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status.is_success(), "{body}");
        let lines: Vec<&str> = body.lines().collect();
        let said = |resource: &str| lines.iter().any(|line| line.contains(&format!("{resource} are denied")));
        let resources = ["pods", "namespaces", "replicasets.apps", "jobs.batch", "poddisruptionbudgets.policy"];
        let workloads = ["deployments.apps", "statefulsets.apps", "daemonsets.apps"];
        let unsaid: Vec<&str> = resources.into_iter().chain(workloads).filter(|resource| !said(resource)).collect();
        ensure!(unsaid.is_empty() && lines.len() == 9, "{unsaid:?}: {body}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_that_may_not_be_written_is_told_and_made_good_when_it_may() -> Result<()> {
    let installation = start().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({})).await?;
    installation.reaches("mesh", &WELL).await?;
    let before = installation.text().await?;
    let whole = revoke(&installation, "configmaps", "patch").await?;
    installation.change("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation
        .reaches(
            "mesh",
            &["Accepted=True/Accepted", "ConfigMapSynced=False/WriteForbidden", "Ready=False/WriteForbidden"],
        )
        .await?;
    let why = message(&status, "ConfigMapSynced")?;
    assert!(why.contains("patch") && why.contains("configmaps"), "{why}");
    assert_eq!(installation.text().await?, before);
    let attempts = installation.writes("/configmaps/").len();
    holds(QUIET, "few attempts", async || {
        let more = installation.writes("/configmaps/").len() - attempts;
        ensure!(more <= 8, "{more} attempts more");
        Ok(())
    })
    .await?;
    grant(&installation, &whole).await?;
    installation.reaches_within(BACKED_OFF, "mesh", &WELL).await?;
    installation.says(&installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?).await?;
    drop(manager);
    Ok(())
}

/// Without a remembered base nothing may be written over it.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_remember_the_base_nothing_is_written() -> Result<()> {
    let installation = start().await?;
    let whole = revoke(&installation, "controllerrevisions", "create").await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &["ConfigMapSynced=False/WriteForbidden"]).await?;
    assert!(message(&status, "ConfigMapSynced")?.contains("controllerrevisions"), "{status}");
    assert_eq!(installation.text().await?, HELM);
    assert_eq!(installation.writes("/configmaps/"), [""; 0]);
    grant(&installation, &whole).await?;
    installation.reaches_within(BACKED_OFF, "mesh", &WELL).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    drop(manager);
    Ok(())
}

/// Refused by an API server that is out of order.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_is_told_and_tried_again() -> Result<()> {
    is_told_and_tried_again(500, "WriteFailed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_that_does_not_end_is_told_and_tried_again() -> Result<()> {
    is_told_and_tried_again(409, "WriteConflict").await
}

async fn is_told_and_tried_again(code: u16, reason: &str) -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    let failing = Action::Status { code, retry_after: None };
    let fault = installation.proxy.inject(Rule::path("/configmaps/").method("PATCH"), failing);
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let conditions = [format!("ConfigMapSynced=False/{reason}"), format!("Ready=False/{reason}")];
    installation.reaches("mesh", &[&conditions[0], &conditions[1]]).await?;
    ensure!(fault.hits() < 30, "{} attempts", fault.hits());
    fault.remove();
    installation.reaches_within(BACKED_OFF, "mesh", &WELL).await?;
    installation.says(&installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    drop(manager);
    Ok(())
}
