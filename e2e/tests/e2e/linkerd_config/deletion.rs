//! Deletion of a LinkerdConfig, with either deletion policy.

use anyhow::{Result, ensure};
use e2e::{Action, Manager, Rule, eventually, holds, mesh::SOON};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;

use super::{CONFIG_MAP, FINALIZER, HELM, Installation, QUIET, WELL, permissions};

/// A mesh with an access log, whose resource restores the base when it is deleted.
async fn restoring() -> Result<(Installation, Manager)> {
    let (installation, manager) =
        Installation::adopted(json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    assert_eq!(installation.finalizers("mesh").await?, [FINALIZER]);
    Ok((installation, manager))
}

async fn has_no_annotation_of_ours(installation: &Installation) -> Result<()> {
    let map = installation.map().await?;
    let ours = map.annotations().keys().filter(|key| key.starts_with("config.linkerd.io/")).collect::<Vec<_>>();
    ensure!(ours.is_empty(), "{ours:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retain_keeps_every_byte() -> Result<()> {
    let (installation, manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    assert_eq!(installation.finalizers("mesh").await?, [""; 0]);
    let before = installation.map().await?;
    installation.delete_and_wait("mesh").await?;
    installation.stays(&before).await?;
    // The next resource starts from Helm's document.
    assert_eq!(installation.bases().await?, [HELM]);
    installation.adopt("next", json!({"proxy": {"logFormat": "json"}})).await?;
    installation.is_helm_with(json!({"proxy": {"logFormat": "json"}})).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    // The series is deleted with the resource.
    manager.counts("linkerd_operator_linkerdconfig_info", &[("name", &installation.full("mesh"))], None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_base_waits_for_the_operator() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    manager.kill().await?;
    installation.delete("mesh").await?;
    installation.keeps_its_finalizer().await?;
    let _manager = installation.manager().await?;
    installation.is_deleted("mesh").await?;
    assert_eq!(installation.text().await?, HELM);
    has_no_annotation_of_ours(&installation).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_base_is_skipped_when_another_resource_takes_over() -> Result<()> {
    let (installation, _manager) = restoring().await?;
    installation.declare("next", json!({"priority": -1, "proxy": {"logFormat": "json"}})).await?;
    installation.reaches("next", &["Accepted=False/Conflicted"]).await?;
    let writes = installation.writes("/configmaps/").len();
    installation.delete_and_wait("mesh").await?;
    installation.reaches("next", &WELL).await?;
    installation.is_helm_with(json!({"proxy": {"logFormat": "json"}})).await?;
    assert_eq!(installation.writes("/configmaps/").len(), writes + 1, "the takeover must be one write");
    assert_eq!(installation.bases().await?, [HELM]);
    let note = installation.expect_event("mesh", "BaseNotRestored").await?;
    assert!(note.contains(&format!("LinkerdConfig {} takes over", installation.full("next"))), "{note}");
    Ok(())
}

/// Deletes a resource that restores the base together with one that writes nothing, as `kubectl delete --all` does. With
/// the shipped permissions.
async fn deleted_with(mode: &str, priority: i64, order: [&str; 2]) -> Result<()> {
    let installation = permissions::start().await?;
    let _manager = installation.manager().await?;
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    installation.declare("other", json!({"mode": mode, "priority": priority})).await?;
    let reserve = if priority < 0 { "other" } else { "mesh" };
    installation.reaches(reserve, &["Accepted=False/Conflicted"]).await?;
    for name in order {
        installation.delete(name).await?;
    }
    for name in order {
        installation.is_deleted(name).await?;
    }
    ensure!(installation.text().await? == HELM, "the declared document stays");
    has_no_annotation_of_ours(&installation).await?;
    installation.expect_event("mesh", "BaseRestored").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_all_resources_restores_the_base_in_every_order_if_the_others_do_not_enforce() -> Result<()> {
    for mode in ["Observe", "Suspend"] {
        for priority in [-1, 10] {
            for order in [["mesh", "other"], ["other", "mesh"]] {
                let case = format!("{mode}, priority {priority}, {order:?}");
                deleted_with(mode, priority, order).await.map_err(|error| error.context(case))?;
            }
        }
    }
    Ok(())
}

/// The resource in effect observes and stays.
#[tokio::test(flavor = "multi_thread")]
async fn the_base_is_restored_although_a_resource_that_observes_is_in_effect_afterwards() -> Result<()> {
    let installation = permissions::start().await?;
    let _manager = installation.manager().await?;
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    let observing = json!({"mode": "Observe", "priority": -1, "proxy": {"accessLog": "apache"}});
    installation.declare("observed", observing).await?;
    installation.delete_and_wait("mesh").await?;
    installation.reaches("observed", &["ConfigMapSynced=False/Observing", "Ready=True/Observing"]).await?;
    assert_eq!(installation.text().await?, HELM);
    has_no_annotation_of_ours(&installation).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_finalizer_is_present_only_while_the_resource_restores_the_base_and_none_that_enforces_supersedes_it()
-> Result<()> {
    let (installation, _manager) = restoring().await?;
    let has = async |expected: &[&str], why: &str| {
        eventually(SOON, why, async || {
            let finalizers = installation.finalizers("mesh").await?;
            ensure!(finalizers == expected, "{finalizers:?}");
            Ok(())
        })
        .await
    };
    installation.change("mesh", json!({"deletionPolicy": "Retain"})).await?;
    has(&[], "no finalizer for Retain").await?;
    installation.change("mesh", json!({"deletionPolicy": "RestoreBase"})).await?;
    has(&[FINALIZER], "the finalizer for RestoreBase").await?;
    installation.declare("other", json!({"priority": 1})).await?;
    installation.reaches("mesh", &["Accepted=False/Conflicted"]).await?;
    has(&[], "no finalizer on a superseded resource").await?;
    installation.delete("other").await?;
    installation.reaches("mesh", &WELL).await?;
    has(&[FINALIZER], "the finalizer on the active resource").await?;
    // A resource that observes writes nothing, so the document of the other one still has to be restored.
    installation.declare("observed", json!({"priority": 1, "mode": "Observe"})).await?;
    installation.reaches("mesh", &["Accepted=False/Conflicted"]).await?;
    assert_eq!(installation.finalizers("mesh").await?, [FINALIZER]);
    installation.change("observed", json!({"mode": "Enforce"})).await?;
    has(&[], "no finalizer once the other one enforces").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_does_not_hang_without_a_config_map() -> Result<()> {
    let (installation, _manager) = restoring().await?;
    installation.maps.delete(CONFIG_MAP, &DeleteParams::default()).await?;
    installation.reaches("mesh", &["Accepted=False/TargetNotFound"]).await?;
    installation.delete_and_wait("mesh").await?;
    assert!(installation.maps.get_opt(CONFIG_MAP).await?.is_none());
    Ok(())
}

/// Another finalizer delays the deletion. Ours is removed, and the restored document is not overwritten.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_resource_with_another_finalizer_is_not_reconciled_again() -> Result<()> {
    let (installation, _manager) = restoring().await?;
    let theirs = json!({"metadata": {"finalizers": [FINALIZER, "example.org/kept"]}});
    let params = kube::api::PatchParams::default();
    let patch = |patch| kube::api::Patch::Merge(patch);
    installation.configs.patch(&installation.full("mesh"), &params, &patch(theirs)).await?;
    installation.delete("mesh").await?;
    eventually(SOON, "our finalizer to be removed", async || {
        let finalizers = installation.finalizers("mesh").await?;
        ensure!(finalizers == ["example.org/kept"], "{finalizers:?}");
        Ok(())
    })
    .await?;
    holds(QUIET, "Helm's document", async || {
        ensure!(installation.text().await? == HELM, "it was written again");
        Ok(())
    })
    .await?;
    let free = json!({"metadata": {"finalizers": null}});
    installation.configs.patch(&installation.full("mesh"), &params, &patch(free)).await?;
    installation.is_deleted("mesh").await?;
    // The controller still works.
    installation.declare("next", json!({"proxy": {"logFormat": "json"}})).await?;
    installation.is_helm_with(json!({"proxy": {"logFormat": "json"}})).await
}

/// Of another writer's text only the lines of the injection hash are removed.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_before_the_deletion_is_kept_without_the_injection_hash() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    manager.kill().await?;
    let edited = installation.text().await?.replace("accessLog: json", "accessLog: apache # on call, 3 a.m.");
    installation.rewrite("kubectl-edit", &edited).await?;
    installation.delete("mesh").await?;
    let _manager = installation.manager().await?;
    installation.is_deleted("mesh").await?;
    let text = installation.text().await?;
    let is_left = |line: &&str| text.lines().any(|left| left == *line);
    let removed: Vec<_> = edited.lines().filter(|line| !is_left(line)).map(str::trim).collect();
    ensure!(matches!(removed[..], ["additionalEnv:", "- name: LINKERD_CONFIG_HASH", _]), "{removed:?}");
    assert_eq!(text.lines().count() + 3, edited.lines().count());
    has_no_annotation_of_ours(&installation).await?;
    let note = installation.expect_event("mesh", "BaseNotRestored").await?;
    assert!(note.contains("kubectl-edit") && note.contains("linkerd-config-base-1"), "{note}");
    Ok(())
}

/// The resource is suspended and deleted before the manager can remove the finalizer.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_resource_leaves_the_document_when_it_is_deleted() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    manager.kill().await?;
    let before = installation.map().await?;
    installation.change("mesh", json!({"mode": "Suspend"})).await?;
    installation.delete("mesh").await?;
    let _manager = installation.manager().await?;
    installation.is_deleted("mesh").await?;
    assert_eq!(installation.map().await?, before);
    Ok(())
}

/// A webhook that sends no code rejects with 400, as Kyverno's does.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_does_not_wait_for_a_restore_that_the_api_server_rejects() -> Result<()> {
    let (installation, _manager) = restoring().await?;
    let before = installation.map().await?;
    let rejected = Action::Status { code: 400, retry_after: None };
    let fault = installation.proxy.inject(Rule::path("/configmaps/").method("PATCH"), rejected);
    installation.delete_and_wait("mesh").await?;
    ensure!(fault.hits() == 1, "{} attempts", fault.hits());
    assert_eq!(installation.map().await?, before);
    let note = installation.expect_event("mesh", "BaseNotRestored").await?;
    assert!(note.contains("linkerd-config-base-1"), "{note}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_fails_for_now_is_retried() -> Result<()> {
    let (installation, _manager) = restoring().await?;
    let failed = Action::Status { code: 500, retry_after: None };
    installation.proxy.inject(Rule::path("/configmaps/").method("PATCH").times(2), failed);
    installation.delete_and_wait("mesh").await?;
    assert_eq!(installation.text().await?, HELM);
    Ok(())
}
