//! The operator and the control plane in separate namespaces, as shipped: with the operator's ServiceAccount, Roles and
//! admission policies. The Lease of the controller and its Role are in the control plane's namespace.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use e2e::{
    FaultProxy, Manager, eventually,
    mesh::SOON,
    shipped::{CLUSTER_ROLES, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};
use kube::Api;
use serde_json::json;

use super::{FINALIZER, HELM, Installation, LONG_LEASE, Lent, kind};

const LINKERD: &str = "linkerd";
/// The deadline of a request with which kubectl waits for a deletion.
const WAITS: &str = "--timeout=60s";

async fn installed() -> Result<Installation> {
    let control_plane = Arc::new(Lent::with_controllers().await?);
    control_plane.create_namespaces(&[LINKERD]).await?;
    control_plane.deploy_without_manager(&CLUSTER_ROLES).await?;
    let client = control_plane.client().await?;
    let token = control_plane.operator_token().await?;
    let installation = Installation {
        namespace: LINKERD.to_owned(),
        operator_namespace: OPERATOR_NAMESPACE.to_owned(),
        proxy: FaultProxy::start_with_token(&control_plane, OPERATOR_ACCOUNT, &token).await?,
        maps: Api::namespaced(client.clone(), LINKERD),
        configs: Api::all_with(client.clone(), &kind()),
        revisions: Api::namespaced(client.clone(), LINKERD),
        control_plane,
        client,
    };
    installation.installed().await
}

/// An installation whose resource restores the base when it is deleted.
async fn restoring() -> Result<(Installation, Manager)> {
    let installation = installed().await?;
    let manager = installation.manager_with(&[LONG_LEASE]).await?;
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    assert_eq!(installation.finalizers("mesh").await?, [FINALIZER]);
    Ok((installation, manager))
}

async fn delete_linkerd(installation: &Installation) -> Result<()> {
    installation.control_plane.kubectl(&["delete", "namespace", LINKERD, WAITS]).await.map(drop)
}

/// Waits until the manager has lost its Lease, which it cannot renew without the namespace.
async fn does_not_lead(manager: &Manager) -> Result<()> {
    eventually(SOON, "the manager to lose its Lease", async || {
        ensure!(!manager.is_leading("linkerd-operator").await, "it leads");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_linkerds_namespace_a_resource_and_the_crd_can_be_deleted() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    delete_linkerd(&installation).await?;
    does_not_lead(&manager).await?;
    // A resource that is not deleted keeps the finalizer: Linkerd may be installed again.
    installation.keeps_its_finalizer().await?;
    installation.delete_and_wait("mesh").await?;
    eventually(SOON, "the log to have the reason", async || {
        let log = manager.log();
        ensure!(log.contains("without a restore: the control plane's namespace is gone"), "{log}");
        Ok(())
    })
    .await?;

    let unserved = json!({"metadata": {"finalizers": [FINALIZER]}});
    installation.declare("mesh", json!({"deletionPolicy": "RestoreBase"})).await?;
    let params = kube::api::PatchParams::default();
    let name = installation.full("mesh");
    installation.configs.patch(&name, &params, &kube::api::Patch::Merge(unserved)).await?;
    let crd = ["delete", "crd", "linkerdconfigs.config.linkerd.io", WAITS];
    installation.control_plane.kubectl(&crd).await?;
    ensure!(manager.is_running(), "the manager ended");
    Ok(())
}

/// An object with a finalizer keeps the namespace.
#[tokio::test(flavor = "multi_thread")]
async fn while_linkerds_namespace_is_terminating_a_resource_can_be_deleted() -> Result<()> {
    let (installation, manager) = restoring().await?;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.org/held"]}});
    installation.maps.create(&kube::api::PostParams::default(), &serde_json::from_value(held)?).await?;
    installation.control_plane.kubectl(&["delete", "namespace", LINKERD, "--wait=false"]).await?;
    does_not_lead(&manager).await?;
    installation.delete_and_wait("mesh").await?;
    ensure!(installation.maps.get_opt("held").await?.is_some(), "the namespace is not held any more");
    Ok(())
}

/// No replica leads when the resource is deleted, and then the namespace is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_a_leader_ends_with_linkerds_namespace() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    let second = installation.replica("second").args([LONG_LEASE]).start(&installation.control_plane)?;
    manager.kill().await?;
    installation.delete("mesh").await?;
    installation.keeps_its_finalizer().await?;
    delete_linkerd(&installation).await?;
    installation.is_deleted("mesh").await?;
    drop(second);
    Ok(())
}

/// The ConfigMaps cannot be listed, so the controller does not start.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_after_the_end_of_linkerds_namespace_lets_a_resource_go() -> Result<()> {
    let (installation, mut manager) = restoring().await?;
    manager.kill().await?;
    delete_linkerd(&installation).await?;
    installation.delete("mesh").await?;
    assert_eq!(installation.finalizers("mesh").await?, [FINALIZER]);
    let _manager = installation.replica("second").start(&installation.control_plane)?;
    installation.is_deleted("mesh").await
}

/// With the default times: the Leases of a killed leader last 30 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_takes_over_from_a_killed_leader_when_one_lease_has_expired() -> Result<()> {
    let installation = installed().await?;
    let mut first = installation.manager().await?;
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let _second = installation.replica("second").ready(&installation.control_plane).await?;
    first.kill().await?;
    let killed = Instant::now();
    installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.document_is_within(Duration::from_secs(90), &declared).await?;
    let taken = killed.elapsed();
    eprintln!("the edit was reverted {taken:?} after the kill");
    ensure!(taken > Duration::from_secs(25), "a Lease that had not expired was taken after {taken:?}");
    ensure!(taken < Duration::from_secs(40), "the take-over took {taken:?}");
    assert_eq!(installation.bases().await?, [HELM]);
    Ok(())
}
