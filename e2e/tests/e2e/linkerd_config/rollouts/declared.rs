//! What was declared stays declared: neither failed workloads, nor changes of the installer, nor the owner of a workload
//! take back declared values that did not fail, or bring back a document that was rolled back. All tests have the shipped
//! permissions and admission policies.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    injector::Behaviour,
    mesh::SOON,
    workload::{self, Kind, NEVER_READY, Workload, opted_in},
};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    super::{CONFIG_MAP, HELM, Installation, Lent, message, permissions},
    DEADLINE, RolloutRig, all_have, put_over,
};

/// The security values of the first declared document.
fn secure() -> Value {
    json!({"proxy": {"accessLog": "apache"}, "values": {"proxy": {"defaultInboundPolicy": "deny"}}})
}

async fn secure_over(mesh: &RolloutRig, installed: Value) -> Result<Value> {
    let mut document = json!({"proxy": {"accessLog": "apache", "defaultInboundPolicy": "deny"}});
    put_over(&mut document, &installed);
    mesh.installation.helm_with(document).await
}

pub(super) async fn restricted() -> Result<RolloutRig> {
    let installation = Installation::on(Arc::new(Lent::take_with_nodes().await?)).await?;
    let installation = permissions::restricted(installation.installed().await?).await?;
    RolloutRig::on(installation, 1).await
}

/// All texts that the ConfigMap has had since.
struct DocumentHistory {
    texts: Arc<Mutex<Vec<String>>>,
    watch: JoinHandle<()>,
}

impl DocumentHistory {
    async fn follow(installation: &Installation) -> Result<Self> {
        let params = WatchParams::default().fields(&format!("metadata.name={CONFIG_MAP}")).timeout(290);
        let version = installation.map().await?.metadata.resource_version.context("no resourceVersion")?;
        let mut events = installation.maps.watch(&params, &version).await?.boxed();
        let texts = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&texts);
        let watch = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(map) | WatchEvent::Modified(map) = event {
                    let text = map.data.and_then(|mut data| data.remove("values")).unwrap_or_default();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                }
            }
        });
        Ok(Self { texts, watch })
    }

    /// Checks that the ConfigMap was written, and never had this.
    fn never_had(&self, text: &str) -> Result<()> {
        ensure!(!self.watch.is_finished(), "the watch has ended");
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!texts.is_empty(), "the ConfigMap was not written");
        ensure!(texts.iter().all(|it| !it.contains(text)), "{texts:#?}");
        Ok(())
    }
}

impl Drop for DocumentHistory {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Forbids new Pods in a namespace, and waits until the quota is in force.
pub(super) async fn forbid_pods(mesh: &RolloutRig, namespace: &str) -> Result<()> {
    let quotas: Api<ResourceQuota> = Api::namespaced(mesh.installation.client.clone(), namespace);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    eventually(DEADLINE, "the quota to be in force", async || {
        let hard = quotas.get("none").await?.status.unwrap_or_default().hard.unwrap_or_default();
        ensure!(hard.contains_key("pods"), "{hard:?}");
        Ok(())
    })
    .await
}

/// The cluster has two nodes.
fn pods_of(kind: Kind) -> usize {
    if kind == Kind::DaemonSet { 2 } else { 1 }
}

/// A mesh in which one of four workloads, of this kind, failed with the first declared document, and all others run with
/// it. No limit of failures is reached.
async fn one_failed(kind: Kind, rollout: Value) -> Result<(RolloutRig, Vec<Workload>)> {
    let mut mesh = restricted().await?;
    let mut others = Vec::new();
    for name in ["w1", "w2", "w3"] {
        others.push(mesh.put(&mesh.app, kind, name, pods_of(kind), opted_in()).await?);
    }
    let failing = mesh.put(&mesh.other, kind, "w4", pods_of(kind), opted_in()).await?;
    let mut whole = json!({"rollout": {"maxFailures": 2, "progressDeadline": "3s"}});
    put_over(&mut whole["rollout"], &rollout);
    mesh.adopt(whole).await?;
    forbid_pods(&mesh, &mesh.other).await?;
    mesh.change(secure()).await?;
    let status = mesh.rollout_is("False/WorkloadsFailed").await?;
    let why = message(&status, "RolloutComplete")?;
    assert!(why.contains(&failing.to_string()) && why.contains("3 of 4 workloads run"), "{why}");
    mesh.installation.document_is(&secure_over(&mesh, json!({})).await?).await?;
    Ok((mesh, others))
}

/// A mesh whose second document fails, so that the first one is restored.
async fn rolled_back(mesh: &RolloutRig) -> Result<Value> {
    let second = json!({"proxy": {"proxyVersion": NEVER_READY}, "rollout": {"onFailure": "Rollback"}});
    mesh.change(second).await?;
    let status = mesh.rollout_is("False/RolledBack").await?;
    mesh.installation.document_is(&secure_over(mesh, json!({})).await?).await?;
    Ok(status)
}

/// Helm upgrades Linkerd. Returns the first document over the new base, once the ConfigMap has it.
async fn upgrade(mesh: &RolloutRig) -> Result<Value> {
    let upgraded = HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.8.4");
    mesh.installation.rewrite("helm", &upgraded).await?;
    let declared = secure_over(mesh, json!({"linkerdVersion": "edge-26.8.4"})).await?;
    mesh.installation.document_is(&declared).await?;
    Ok(declared)
}

async fn the_first_document_is_restored(kind: Kind, rollout: Value) -> Result<()> {
    let (mesh, others) = one_failed(kind, rollout).await?;
    rolled_back(&mesh).await?;
    for workload in &others {
        workload.is_settled(pods_of(kind)).await?;
    }
    mesh.is_quiet().await?;
    mesh.installation.document_is(&secure_over(&mesh, json!({})).await?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_deployment_does_not_make_the_next_rollback_skip_the_document_in_force() -> Result<()> {
    the_first_document_is_restored(Kind::Deployment, json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_stateful_set_does_not_make_the_next_rollback_skip_the_document_in_force() -> Result<()> {
    the_first_document_is_restored(Kind::StatefulSet, json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_daemon_set_does_not_make_the_next_rollback_skip_the_document_in_force() -> Result<()> {
    the_first_document_is_restored(Kind::DaemonSet, json!({})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_eviction_does_not_make_the_next_rollback_skip_the_document_in_force() -> Result<()> {
    the_first_document_is_restored(Kind::Deployment, json!({"method": "Evict", "soak": "2s"})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_fails_while_a_workload_has_failed_takes_nothing_back() -> Result<()> {
    let (mesh, _) = one_failed(Kind::Deployment, json!({"onFailure": "Rollback"})).await?;
    let history = DocumentHistory::follow(&mesh.installation).await?;
    let upgraded = HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: {NEVER_READY}"));
    mesh.installation.rewrite("helm", &upgraded).await?;
    let status = mesh.rollout_is("False/Halted").await?;
    let why = message(&status, "RolloutComplete")?;
    assert!(why.starts_with("not rolled back, because the declared values did not change"), "{why}");
    mesh.is_quiet().await?;
    let declared = secure_over(&mesh, json!({"linkerdVersion": NEVER_READY})).await?;
    mesh.installation.document_is(&declared).await?;
    history.never_had("linkerdVersion: edge-26.8.3")?;
    // A correction of the resource is tried, and is not blamed for the failures of the upgrade.
    mesh.change(json!({"proxy": {"proxyVersion": "edge-26.8.3"}})).await?;
    mesh.rollout_is("False/WorkloadsFailed").await?;
    mesh.shows(json!({"workloads": {"updated": 3, "failed": 1}})).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_while_a_workload_has_failed_restores_the_document_in_force() -> Result<()> {
    let (mesh, others) = one_failed(Kind::Deployment, json!({"maxFailures": "50%"})).await?;
    mesh.injector.set_behaviour(0, Behaviour::Denies("template: patch.json: bad value".to_owned())).await?;
    mesh.change(json!({"proxy": {"logLevel": "trace"}})).await?;
    let denied = ["ConfigMapSynced=False/Restored", "InjectorSynced=False/Denied", "Stalled=True/RolledBack"];
    mesh.installation.reaches("mesh", &denied).await?;
    mesh.installation.document_is(&secure_over(&mesh, json!({})).await?).await?;
    // It stays after the injector accepts again, and over the next document of the installer.
    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    let history = DocumentHistory::follow(&mesh.installation).await?;
    let declared = upgrade(&mesh).await?;
    mesh.is_quiet().await?;
    mesh.installation.document_is(&declared).await?;
    history.never_had("logLevel: trace")?;
    let status =
        mesh.installation.reaches("mesh", &["ConfigMapSynced=False/Restored", "Stalled=True/RolledBack"]).await?;
    assert_eq!(status["proxyVersion"], "edge-26.8.4");
    // The workloads get the installer's upgrade, although the declared document stays denied.
    mesh.shows(json!({"hash": status["rollout"]["hash"], "workloads": {"updated": 3}})).await?;
    for workload in &others {
        workload.gets(1, super::hash_of(&status)?).await?;
    }
    mesh.annotate("retry", "now").await?;
    mesh.installation
        .reaches("mesh", &["ConfigMapSynced=True/Synced", "InjectorSynced=True/AllReplicasCurrent"])
        .await?;
    let declared = secure_over(&mesh, json!({"linkerdVersion": "edge-26.8.4", "proxy": {"logLevel": "trace"}})).await?;
    mesh.installation.document_is(&declared).await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rollback_no_change_of_the_installer_brings_the_rejected_document_back() -> Result<()> {
    let mut mesh = restricted().await?;
    let three = mesh.three(1, 0).await?;
    let mut first = secure();
    put_over(&mut first, &json!({"rollout": {"progressDeadline": "3s"}}));
    mesh.adopt(first).await?;
    rolled_back(&mesh).await?;
    mesh.is_quiet().await?;
    let history = DocumentHistory::follow(&mesh.installation).await?;
    let declared = upgrade(&mesh).await?;
    // The workloads get the restored document over the installer's new one.
    let status = eventually(DEADLINE, "all workloads to run with the restored document", async || {
        let (status, _) = mesh.status().await?;
        ensure!(status["rollout"]["summary"] == "3/3", "{}", status["rollout"]);
        ensure!(status["proxyVersion"] == "edge-26.8.4", "{}", status["proxyVersion"]);
        Ok(status)
    })
    .await?;
    all_have(&three, 1, super::hash_of(&status)?).await?;
    let conditions = [
        "ConfigMapSynced=False/Restored",
        "Ready=False/RolledBack",
        "RolloutComplete=False/RolledBack",
        "Stalled=True/RolledBack",
    ];
    mesh.installation.reaches("mesh", &conditions).await?;
    mesh.is_quiet().await?;
    history.never_had(NEVER_READY)?;
    mesh.installation.document_is(&declared).await?;
    // Only other declared values or the annotation end that.
    mesh.annotate("retry", "now").await?;
    eventually(SOON, "a retry", async || history.never_had(NEVER_READY).err().map(drop).context("none")).await?;
    mesh.rollout_is("False/RolledBack").await?;
    // As a person does who takes the change back.
    mesh.change(json!({"proxy": {"proxyVersion": null}})).await?;
    mesh.is_complete().await?;
    mesh.installation.reaches("mesh", &["ConfigMapSynced=True/Synced", "Ready=True/Reconciled"]).await?;
    mesh.installation.document_is(&declared).await
}

/// The owner declares that a restarted workload needs no proxy, and annotates its new Pod as if it needed one.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_a_workload_cannot_roll_the_configuration_of_the_mesh_back() -> Result<()> {
    let mut mesh = restricted().await?;
    let three = mesh.three(1, 3).await?;
    let rollback = json!({"onFailure": "Rollback", "maxFailures": 1, "progressDeadline": "20s"});
    mesh.adopt(json!({ "rollout": rollback })).await?;
    mesh.change(secure()).await?;
    let theirs = mesh.first_of(&three.each_ref()).await?;
    let disabled = json!({"linkerd.io/inject": "disabled"});
    theirs.patch(json!({"spec": {"template": {"metadata": {"annotations": disabled}}}})).await?;
    let pods: Api<Pod> = Api::namespaced(mesh.installation.client.clone(), &mesh.app);
    eventually(DEADLINE, "the new Pod to be annotated", async || {
        let bare = theirs.pods().await?.into_iter().find(|pod| workload::proxy(pod).is_none());
        let name = bare.context("no Pod without a proxy")?.metadata.name.context("no name")?;
        let patch = json!({"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}});
        pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    })
    .await?;
    mesh.is_complete().await?;
    mesh.installation.document_is(&secure_over(&mesh, json!({})).await?).await?;
    assert_eq!(mesh.installation.event_count("mesh", "ConfigRolledBack").await?, 0);
    Ok(())
}

/// The API server created one Pod without the injector, as with failurePolicy Ignore and a timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_a_proxy_halts_the_rollout_and_rolls_nothing_back() -> Result<()> {
    let mut mesh = restricted().await?;
    let three = mesh.three(1, 2).await?;
    mesh.adopt(json!({"rollout": {"onFailure": "Rollback", "maxFailures": 1}})).await?;
    mesh.change(secure()).await?;
    let theirs = mesh.first_of(&three.each_ref()).await?;
    mesh.injector.set_behaviour(0, Behaviour::Unpatched).await?;
    let pods: Api<Pod> = Api::namespaced(mesh.installation.client.clone(), &mesh.app);
    for pod in theirs.pods().await? {
        pods.delete(&pod.metadata.name.context("no name")?, &kube::api::DeleteParams::default()).await?;
    }
    let status = mesh.rollout_is("False/Halted").await?;
    let why = message(&status, "RolloutComplete")?;
    assert!(why.starts_with("not rolled back, because a Pod without a proxy"), "{why}");
    mesh.installation.document_is(&secure_over(&mesh, json!({})).await?).await?;
    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    mesh.annotate("retry", "now").await?;
    mesh.is_complete().await?;
    mesh.installation.document_is(&secure_over(&mesh, json!({})).await?).await
}
