//! The manager with exactly the shipped permissions, and with fewer.

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, FaultProxy, Rule, eventually, holds,
    manager::BACKED_OFF,
    mesh::SOON,
    shipped::{OPERATOR_ACCOUNT, is_named, policies_for},
};
use k8s_openapi::api::rbac::v1::Role;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{CONFIG_MAP, HELM, Installation, QUIET, WELL, message};

const ROLE: &str = "linkerd-operator-linkerd-config";
const EVENTS: &str = "linkerd-operator-events";
const ROLLOUT: &str = "linkerd-operator-rollout";

/// An installation whose managers have the operator's ServiceAccount, the shipped permissions and the shipped admission
/// policies. Its namespace is that of Linkerd and of the operator.
pub(super) async fn start() -> Result<Installation> {
    restricted(Installation::new().await?).await
}

/// Restricts an installation without a manager to the shipped permissions.
pub(super) async fn restricted(installation: Installation) -> Result<Installation> {
    restricted_to(installation, &[ROLE, EVENTS, ROLLOUT]).await
}

/// Restricts the installation to the shipped Roles and these ClusterRoles.
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
    let policies = policies_for(namespace, control_plane.shipped("config/admission-policy").await?)?;
    control_plane.apply(&policies).await?;
    policies_apply(&installation).await?;
    let token = control_plane.service_account_token(namespace, OPERATOR_ACCOUNT).await?;
    installation.proxy = FaultProxy::start_with_token(control_plane, OPERATOR_ACCOUNT, &token).await?;
    Ok(installation)
}

/// Waits until the admission policies apply to the operator's ServiceAccount.
async fn policies_apply(installation: &Installation) -> Result<()> {
    let namespace = &installation.namespace;
    let account = format!("--as=system:serviceaccount:{namespace}:{OPERATOR_ACCOUNT}");
    let patch = r#"{"metadata":{"labels":{"probe":"probe"}}}"#;
    let map = ["patch", "configmap", CONFIG_MAP, "-n", namespace, "--dry-run=server", "-p", patch, &account];
    eventually(SOON, "the admission policies to apply", async || {
        let error = installation.control_plane.kubectl(&map).await.err().context("the policies do not apply yet")?;
        ensure!(format!("{error:#}").contains("ValidatingAdmissionPolicy"), "{error:#}");
        Ok(())
    })
    .await
}

/// Leaves out the optional Role for `injectorSync.nudge`.
pub(super) async fn leave_out_nudge(installation: &Installation) -> Result<()> {
    let namespace = format!("--namespace={}", installation.namespace);
    installation.control_plane.kubectl(&["delete", "role,rolebinding", "linkerd-operator-nudge", &namespace]).await?;
    in_force(installation, false, "pods", "patch").await
}

/// Removes a verb on a resource from the Role, and waits until the removal takes effect. Returns the original rules.
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
    eventually(SOON, format_args!("{verb} of {object}: allowed is {allowed}"), async || {
        // kubectl exits with 1 for "no".
        let may = installation.control_plane.kubectl(&["auth", "can-i", verb, &object, &account, &in_namespace]).await;
        ensure!(may.is_ok() == allowed, "it is not");
        Ok(())
    })
    .await
}

pub(super) fn refused(installation: &Installation) -> Vec<e2e::fault_proxy::RecordedRequest> {
    installation.proxy.log().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_permissions_are_sufficient_from_adoption_to_deletion_and_the_last_five_bases_are_kept()
-> Result<()> {
    let installation = start().await?;
    let mut manager = installation.manager().await?;
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    installation.edit("kubectl-edit", json!({"imagePullPolicy": "Always"})).await?;
    installation.expect_config_map_event("DriftReverted").await?;
    for number in 1..=6 {
        let base = HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: edge-26.9.{number}"));
        installation.rewrite("helm", &base).await?;
        let version = json!({"linkerdVersion": format!("edge-26.9.{number}"), "proxy": {"accessLog": "json"}});
        installation.is_helm_with(version).await?;
    }
    eventually(SOON, "the oldest bases to be deleted", async || {
        let numbers: Vec<i64> = installation.revisions().await?.into_iter().map(|(number, _)| number).collect();
        ensure!(numbers == [3, 4, 5, 6, 7], "{numbers:?}");
        Ok(())
    })
    .await?;
    // The status is written last.
    eventually(SOON, "the last base in the status", async || {
        let status = installation.reaches("mesh", &WELL).await?;
        ensure!(status["revisions"]["base"] == 7, "{status}");
        Ok(())
    })
    .await?;
    installation.delete_and_wait("mesh").await?;
    installation.is_helm_with(json!({"linkerdVersion": "edge-26.9.6"})).await?;
    manager.has_no_problem().await?;
    assert!(manager.terminate(SOON).await?.success());
    assert_eq!(refused(&installation), []);
    Ok(())
}

/// Users who do not want restarts can withhold the permissions for them.
#[tokio::test(flavor = "multi_thread")]
async fn without_permissions_for_workloads_the_document_is_reconciled_and_the_denied_resources_are_named() -> Result<()>
{
    let installation = restricted_to(Installation::new().await?, &[ROLE, EVENTS]).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let [accepted, synced, ready, _] = WELL;
    installation.reaches("mesh", &[accepted, synced, ready, "RolloutComplete=False/Progressing"]).await?;
    installation.is_helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    eventually(SOON, "/ready to name the denied resources", async || {
        let (status, body) = manager.get("/ready").await?;
        ensure!(status.is_success(), "{body}");
        let lines: Vec<&str> = body.lines().collect();
        let named = |resource: &str| lines.iter().any(|line| line.contains(&format!("{resource} are denied")));
        let resources = ["pods", "namespaces", "replicasets.apps", "jobs.batch", "poddisruptionbudgets.policy"];
        let workloads = ["deployments.apps", "statefulsets.apps", "daemonsets.apps"];
        let unnamed: Vec<&str> = resources.into_iter().chain(workloads).filter(|resource| !named(resource)).collect();
        ensure!(unnamed.is_empty() && lines.len() == 9, "{unnamed:?}: {body}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_write_of_the_config_map_is_reported_and_made_once_it_is_allowed() -> Result<()> {
    let installation = start().await?;
    let _manager = installation.manager().await?;
    installation.adopt("mesh", json!({})).await?;
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
        ensure!(more <= 8, "{more} more attempts");
        Ok(())
    })
    .await?;
    grant(&installation, &whole).await?;
    installation.reaches_within(BACKED_OFF, "mesh", &WELL).await?;
    installation.is_helm_with(json!({"proxy": {"accessLog": "json"}})).await
}

/// The document must not be overwritten before its base is saved.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_permission_to_save_the_base_the_document_is_not_written() -> Result<()> {
    let installation = start().await?;
    let whole = revoke(&installation, "controllerrevisions", "create").await?;
    let _manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &["ConfigMapSynced=False/WriteForbidden"]).await?;
    assert!(message(&status, "ConfigMapSynced")?.contains("controllerrevisions"), "{status}");
    assert_eq!(installation.text().await?, HELM);
    assert_eq!(installation.writes("/configmaps/"), [""; 0]);
    grant(&installation, &whole).await?;
    installation.reaches_within(BACKED_OFF, "mesh", &WELL).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_and_a_persistent_conflict_are_reported_and_retried() -> Result<()> {
    for (code, reason) in [(500, "WriteFailed"), (409, "WriteConflict")] {
        let installation = Installation::new().await?;
        let _manager = installation.manager().await?;
        let failing = Action::Status { code, retry_after: None };
        let fault = installation.proxy.inject(Rule::path("/configmaps/").method("PATCH"), failing);
        installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
        let conditions = [format!("ConfigMapSynced=False/{reason}"), format!("Ready=False/{reason}")];
        installation.reaches("mesh", &[&conditions[0], &conditions[1]]).await?;
        ensure!(fault.hits() < 30, "{} attempts", fault.hits());
        fault.remove();
        installation.reaches_within(BACKED_OFF, "mesh", &WELL).await?;
        installation.is_helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
        assert_eq!(installation.bases().await?, [HELM]);
    }
    Ok(())
}
