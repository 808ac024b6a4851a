//! Whose Pod it is: the label with the owner's kind and name, through ReplicaSets and Jobs, from what is known.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use linkerd2_proxy_api::destination::WeightedAddr;
use serde_json::{Value, json};

use super::{
    QUIET, Rig,
    objects::{KEPT, Object, job, meshed, of_pod, of_workload, owner, replica_set, service, slice, workload},
    told,
};

const USUAL: [&str; 7] =
    ["pod", "external_workload", "serviceaccount", "control_plane_ns", "pod_template_hash", "zone", "zone_locality"];

/// The labels that only the owner can have brought; `pod` when it is the Pod's own name twice.
fn owner_labels(endpoint: &WeightedAddr) -> BTreeMap<String, String> {
    let mut labels = told::labels(endpoint);
    labels.retain(|key, _| !USUAL.contains(&key.as_str()));
    labels
}

/// With these owners, none of which exists: the finalizer keeps the object from the garbage collector.
fn owned(object: Object, owners: &[Value]) -> Object {
    object.with(json!({"metadata": {"finalizers": [KEPT], "ownerReferences": owners}}))
}

#[tokio::test]
async fn the_owner_is_what_the_pod_ultimately_belongs_to() -> Result<()> {
    let rig = Rig::start("owner").await?;
    let (apps, batch, argo) = ("apps/v1", "batch/v1", "argoproj.io/v1alpha1");
    let two = [owner(apps, "Deployment", "one"), owner(batch, "Job", "two")];
    rig.put_all([
        replica_set("of-deployment").owned_by(apps, "Deployment", "web"),
        replica_set("of-rollout").owned_by(argo, "Rollout", "web"),
        replica_set("of-two").with(json!({"metadata": {"finalizers": [KEPT], "ownerReferences": two}})),
        replica_set("of-nobody"),
        job("of-cron-job").owned_by(batch, "CronJob", "nightly"),
        job("job-of-nobody"),
    ])
    .await?;
    let by = |api_version: &str, kind: &str, name: &str| vec![owner(api_version, kind, name)];
    let rows = [
        (by(apps, "ReplicaSet", "of-deployment"), ("deployment", "web")),
        (by(apps, "ReplicaSet", "of-rollout"), ("replicaset", "of-rollout")),
        (by(apps, "ReplicaSet", "of-two"), ("replicaset", "of-two")),
        (by(apps, "ReplicaSet", "of-nobody"), ("replicaset", "of-nobody")),
        (by(apps, "ReplicaSet", "t1-b4f55d87f"), ("replicaset", "t1-b4f55d87f")),
        (by(batch, "Job", "of-cron-job"), ("cronjob", "nightly")),
        (by(batch, "Job", "job-of-nobody"), ("k8s_job", "job-of-nobody")),
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
        told::only(&mut stream, owner_labels, told::pairs(&[expected])).await.with_context(|| format!("{owners:?}"))?;
        assert_eq!(stream.only()?.metric_labels["pod"], name);
    }
    // Nobody's, and that of two: its own, and its name stands there already.
    rig.put_all([
        meshed("alone"),
        owned(meshed("shared"), &two),
        service("web"),
        slice("web", "web", &[of_pod("192.0.2.1", "alone"), of_pod("192.0.2.2", "shared")]),
    ])
    .await?;
    let mut stream = rig.get("web:80").await?;
    let expected = [("192.0.2.1:8080", BTreeMap::new()), ("192.0.2.2:8080", BTreeMap::new())];
    told::look(&mut stream, owner_labels, expected).await
}

#[tokio::test]
async fn a_machines_owner_is_told_by_its_kind_alone() -> Result<()> {
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
        ("192.0.2.1:8080", told::pairs(&[("workloadgroup", "wg-name")])),
        ("192.0.2.2:8080", told::pairs(&[("job", "setup")])),
        ("192.0.2.3:8080", BTreeMap::new()),
        ("192.0.2.4:8080", BTreeMap::new()),
    ];
    told::look(&mut stream, owner_labels, expected).await
}

#[tokio::test]
async fn an_owner_that_comes_late_changes_or_goes_is_followed() -> Result<()> {
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
        let expected = [("192.0.2.1:8080", told::pairs(&[first])), ("192.0.2.2:8080", told::pairs(&[second]))];
        told::look(&mut stream, owner_labels, expected).await
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
