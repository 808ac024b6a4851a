//! The owner label of a Pod: the kind and name of its top owner, resolved through ReplicaSets and Jobs from the caches.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use linkerd2_proxy_api::destination::WeightedAddr;
use serde_json::{Value, json};

use super::{
    QUIET, Rig,
    objects::{KEPT, Object, job, meshed, of_pod, of_workload, owner, replica_set, service, slice, workload},
    received,
};

const USUAL: [&str; 7] =
    ["pod", "external_workload", "serviceaccount", "control_plane_ns", "pod_template_hash", "zone", "zone_locality"];

/// The labels that come from the owner. Empty when the owner is the Pod itself, because the usual `pod` label names it.
fn owner_labels(endpoint: &WeightedAddr) -> BTreeMap<String, String> {
    let mut labels = received::labels(endpoint);
    labels.retain(|key, _| !USUAL.contains(&key.as_str()));
    labels
}

/// Sets these owners, none of which exists. The finalizer keeps the garbage collector from removing the object.
fn owned(object: Object, owners: &[Value]) -> Object {
    object.with(json!({"metadata": {"finalizers": [KEPT], "ownerReferences": owners}}))
}

#[tokio::test]
async fn the_owner_label_names_the_top_owner_of_the_pod() -> Result<()> {
    let rig = Rig::start("owner").await?;
    let (apps, batch, argo) = ("apps/v1", "batch/v1", "argoproj.io/v1alpha1");
    let two = [owner(apps, "Deployment", "one"), owner(batch, "Job", "two")];
    rig.put_all([
        replica_set("of-deployment").owned_by(apps, "Deployment", "web"),
        replica_set("of-rollout").owned_by(argo, "Rollout", "web"),
        replica_set("of-two").with(json!({"metadata": {"finalizers": [KEPT], "ownerReferences": two}})),
        replica_set("without-owner"),
        job("of-cron-job").owned_by(batch, "CronJob", "nightly"),
        job("job-without-owner"),
    ])
    .await?;
    let by = |api_version: &str, kind: &str, name: &str| vec![owner(api_version, kind, name)];
    let rows = [
        (by(apps, "ReplicaSet", "of-deployment"), ("deployment", "web")),
        (by(apps, "ReplicaSet", "of-rollout"), ("replicaset", "of-rollout")),
        (by(apps, "ReplicaSet", "of-two"), ("replicaset", "of-two")),
        (by(apps, "ReplicaSet", "without-owner"), ("replicaset", "without-owner")),
        (by(apps, "ReplicaSet", "t1-b4f55d87f"), ("replicaset", "t1-b4f55d87f")),
        (by(batch, "Job", "of-cron-job"), ("cronjob", "nightly")),
        (by(batch, "Job", "job-without-owner"), ("k8s_job", "job-without-owner")),
        (by(batch, "Job", "slow-cooker"), ("k8s_job", "slow-cooker")),
        (by(apps, "StatefulSet", "db"), ("statefulset", "db")),
        (by(apps, "DaemonSet", "agent"), ("daemonset", "agent")),
        (by("v1", "ReplicationController", "web"), ("replicationcontroller", "web")),
        (by(argo, "Rollout", "web"), ("rollout", "web")),
        (by("v1", "Node", "node-a"), ("node", "node-a")),
    ];
    for (row, (owners, expected)) in rows.into_iter().enumerate() {
        let name = format!("row-{row}");
        rig.put_all([
            owned(meshed(&name), &owners),
            service(&name),
            slice(&name, &name, &[of_pod("192.0.2.1", &name)]),
        ])
        .await?;
        let mut stream = rig.get(&format!("{name}:80")).await?;
        received::wait_for_only(&mut stream, owner_labels, received::pairs(&[expected]))
            .await
            .with_context(|| format!("{owners:?}"))?;
        assert_eq!(stream.only()?.metric_labels["pod"], name);
    }
    // A Pod with no owner or two owners is its own owner, and the `pod` label already has its name.
    rig.put_all([
        meshed("alone"),
        owned(meshed("shared"), &two),
        service("web"),
        slice("web", "web", &[of_pod("192.0.2.1", "alone"), of_pod("192.0.2.2", "shared")]),
    ])
    .await?;
    let mut stream = rig.get("web:80").await?;
    let expected = [("192.0.2.1:8080", BTreeMap::new()), ("192.0.2.2:8080", BTreeMap::new())];
    received::wait_for(&mut stream, owner_labels, expected).await
}

#[tokio::test]
async fn the_owner_of_a_workload_is_labeled_by_its_kind() -> Result<()> {
    let rig = Rig::start("machine").await?;
    let two = [owner("v1", "Node", "one"), owner("v1", "Node", "two")];
    rig.put_all([
        workload("grouped").owned_by("workload.linkerd.io/v1alpha1", "WorkloadGroup", "wg-name"),
        workload("of-job").owned_by("batch/v1", "Job", "setup"),
        owned(workload("of-two"), &two),
        workload("alone"),
        service("web"),
        slice(
            "web",
            "web",
            &[
                of_workload("192.0.2.1", "grouped"),
                of_workload("192.0.2.2", "of-job"),
                of_workload("192.0.2.3", "of-two"),
                of_workload("192.0.2.4", "alone"),
            ],
        ),
    ])
    .await?;
    let mut stream = rig.get("web:80").await?;
    let expected = [
        ("192.0.2.1:8080", received::pairs(&[("workloadgroup", "wg-name")])),
        ("192.0.2.2:8080", received::pairs(&[("job", "setup")])),
        ("192.0.2.3:8080", BTreeMap::new()),
        ("192.0.2.4:8080", BTreeMap::new()),
    ];
    received::wait_for(&mut stream, owner_labels, expected).await
}

#[tokio::test]
async fn an_owner_that_is_created_changed_or_deleted_later_is_followed() -> Result<()> {
    let rig = Rig::start("late").await?;
    rig.put_all([
        meshed("web-1").owned_by("apps/v1", "ReplicaSet", "web-5d4c"),
        meshed("task-1").owned_by("batch/v1", "Job", "task"),
        service("web"),
        slice("web", "web", &[of_pod("192.0.2.1", "web-1"), of_pod("192.0.2.2", "task-1")]),
    ])
    .await?;
    let mut stream = rig.get("web:80").await?;
    let mut become_ = async |first: (&str, &str), second: (&str, &str)| {
        let expected = [("192.0.2.1:8080", received::pairs(&[first])), ("192.0.2.2:8080", received::pairs(&[second]))];
        received::wait_for(&mut stream, owner_labels, expected).await
    };
    become_(("replicaset", "web-5d4c"), ("k8s_job", "task")).await?;
    rig.put(replica_set("web-5d4c").owned_by("apps/v1", "Deployment", "web")).await?;
    become_(("deployment", "web"), ("k8s_job", "task")).await?;
    rig.put(job("task").owned_by("batch/v1", "CronJob", "nightly")).await?;
    become_(("deployment", "web"), ("cronjob", "nightly")).await?;
    let other = json!([owner("apps/v1", "Deployment", "renamed")]);
    rig.patch("ReplicaSet", "web-5d4c", json!({"metadata": {"ownerReferences": other}})).await?;
    become_(("deployment", "renamed"), ("cronjob", "nightly")).await?;
    rig.patch("ReplicaSet", "web-5d4c", json!({"metadata": {"finalizers": null, "ownerReferences": null}})).await?;
    become_(("replicaset", "web-5d4c"), ("cronjob", "nightly")).await?;
    assert_eq!(stream.addresses().len(), 2);
    stream.is_quiet_for(QUIET).await
}
