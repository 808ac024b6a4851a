//! Workloads that cannot or must not be restarted: each is reported with a reason, and the others proceed.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use e2e::{
    eventually,
    mesh::SOON,
    workload::{Kind, NEVER_READY, Workload},
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use super::{DEADLINE, RolloutRig, hash_of, names};

/// The reasons and counts in `status.rollout.skipped`.
fn skipped(rollout: &Value) -> BTreeMap<String, i64> {
    let entries = rollout["skipped"].as_array().into_iter().flatten();
    entries
        .map(|it| (it["reason"].as_str().unwrap_or_default().to_owned(), it["count"].as_i64().unwrap_or(-1)))
        .collect()
}

/// Waits until exactly one workload is skipped for each of these reasons.
async fn skips(mesh: &RolloutRig, reasons: &[&str]) -> Result<()> {
    let expected = reasons.iter().map(|reason| ((*reason).to_owned(), 1)).collect::<BTreeMap<_, _>>();
    eventually(DEADLINE, format_args!("{expected:?} to be skipped"), async || {
        let rollout = mesh.status().await?.0["rollout"].take();
        ensure!(skipped(&rollout) == expected, "{rollout}");
        Ok(())
    })
    .await
}

/// Creates three Pods with injection enabled: one without an owner, one of a Job, and one with an owner of an unknown
/// kind.
async fn put_pods_without_a_workload(mesh: &RolloutRig) -> Result<()> {
    let client = &mesh.installation.client;
    let labels = json!({"linkerd-operator-e2e": "workload"});
    let metadata = json!({"labels": labels, "annotations": {"linkerd.io/inject": "enabled"}});
    let container = json!({"name": "app", "image": "app"});
    let pods: Api<Pod> = Api::namespaced(client.clone(), &mesh.app);
    let mut pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    pod["metadata"]["name"] = json!("bare");
    pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &mesh.app);
    let owner = json!({"metadata": {"name": "owner", "labels": labels}});
    let owner = maps.create(&PostParams::default(), &serde_json::from_value(owner)?).await?;
    pod["metadata"]["name"] = json!("owned");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid(), "controller": true,
    }]);
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;

    // The Job runs longer than the test.
    let container = json!({"name": "app", "image": format!("app:{NEVER_READY}")});
    let job = json!({
        "metadata": {"name": "job", "labels": labels},
        "spec": {"template": {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}},
    });
    let jobs: Api<Job> = Api::namespaced(client.clone(), &mesh.app);
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    eventually(SOON, "the Pod of the Job", async || {
        let all = pods.list(&kube::api::ListParams::default()).await?;
        let of_job = all.iter().any(|pod| pod.owner_references().iter().any(|owner| owner.kind == "Job"));
        ensure!(of_job, "it does not exist");
        Ok(())
    })
    .await
}

/// Scenario 11.
#[tokio::test(flavor = "multi_thread")]
async fn each_skipped_workload_is_reported_with_its_reason_and_the_others_proceed() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let none = json!({});
    let (app, other) = (mesh.app.clone(), mesh.other.clone());
    for namespace in [&app, &other] {
        mesh.label_namespace(namespace, "config.linkerd.io/reconcile", "auto").await?;
    }
    let web = mesh.put(&app, Kind::Deployment, "web", 2, none.clone()).await?;
    let guarded = mesh.put(&app, Kind::Deployment, "guarded", 1, none.clone()).await?;
    let paused = mesh.put(&app, Kind::Deployment, "paused", 1, none.clone()).await?;
    paused.patch(json!({"spec": {"paused": true}})).await?;
    let on_delete = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
    let manual = mesh.put(&app, Kind::StatefulSet, "manual", 1, on_delete).await?;
    let partition = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 1}}}});
    let partial = mesh.put(&app, Kind::StatefulSet, "partial", 2, partition).await?;
    // With this annotation Linkerd's injector creates a malformed patch.
    let breaks = json!({"metadata": {"annotations": {"config.linkerd.io/proxy-additional-env": "A=B"}}});
    mesh.patch_namespace(&other, breaks).await?;
    let unsafe_there = mesh.put(&other, Kind::Deployment, "unsafe-there", 1, none).await?;
    put_pods_without_a_workload(&mesh).await?;
    let budgets = mesh.put_budget("guard", "guarded", json!({"minAvailable": 1})).await?;

    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let lasting = ["Job", "NamespaceBreaksInjection", "NoController", "OnDelete", "Partition", "UnknownOwner"];
    skips(&mesh, &[&lasting[..], &["BlockedByPDB", "Paused"]].concat()).await?;
    let status = mesh.rollout_is("False/BlockedByPDB").await?;
    let marker = hash_of(&status)?;
    web.has(2, marker).await?;
    // Only the Pods above the partition are updated.
    assert_eq!(partial.proxies().await?.iter().flatten().filter(|it| it.marker.as_deref() == Some(marker)).count(), 1);
    assert_eq!(mesh.restarted()?, names(["partial", "web"]));
    let events: [(&Workload, &str); 4] =
        [(&guarded, "PodDisruptionBudget"), (&paused, "paused"), (&manual, "OnDelete"), (&partial, "partition")];
    for (workload, why) in events {
        let note = workload.expect_event("ProxyRolloutSkipped").await?;
        assert!(note.to_lowercase().contains(&why.to_lowercase()), "{note}");
    }

    // Workloads that are no longer blocked are restarted.
    paused.patch(json!({"spec": {"paused": false}})).await?;
    paused.gets(1, marker).await?;
    budgets.delete("guard", &DeleteParams::default()).await?;
    guarded.gets(1, marker).await?;
    skips(&mesh, &lasting).await?;
    mesh.rollout_is("False/WorkloadsSkipped").await?;
    assert_eq!(mesh.restarted()?, names(["guarded", "partial", "paused", "web"]));
    for workload in [&manual, &partial, &unsafe_there] {
        assert!(workload.is_marked(marker).await.is_err(), "{workload} was restarted");
    }
    assert_eq!(mesh.restarts.all()?.len(), 4);
    Ok(())
}
