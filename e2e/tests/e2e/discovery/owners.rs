//! The label of a Pod's owner follows changes of the owner.

use std::collections::BTreeMap;

use anyhow::Result;
use linkerd2_proxy_api::destination::WeightedAddr;
use serde_json::json;

use super::{
    QUIET, Rig,
    objects::{job, meshed, of_pod, owner, replica_set, service, slice},
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
