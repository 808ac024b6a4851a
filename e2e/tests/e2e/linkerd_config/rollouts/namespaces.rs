//! A namespace that is deleted during a rollout, and stays because objects in it have finalizers.

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    workload::{Kind, Workload, opted_in},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use super::{
    DEADLINE, RolloutRig, all_have,
    declared::{forbid_pods, restricted},
    put_over,
};

/// An opted-in workload that the namespace controller cannot delete.
fn held() -> Value {
    let mut object = opted_in();
    put_over(&mut object, &json!({"metadata": {"finalizers": ["example.org/held"]}}));
    object
}

async fn is_restarted(mesh: &RolloutRig, workload: &Workload) -> Result<()> {
    eventually(DEADLINE, format_args!("a restart of {workload}"), async || {
        ensure!(!mesh.restarts.of(workload)?.is_empty(), "none");
        Ok(())
    })
    .await
}

/// One workload of the namespace has failed, one is being restarted, and one waits. The failed one is the last that
/// `maxFailures` permits.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_namespace_neither_holds_up_nor_halts_the_rollout_and_its_workloads_do_not_count() -> Result<()> {
    let mut mesh = restricted().await?;
    let mut theirs = Vec::new();
    for name in ["fails", "restarting", "waiting"] {
        theirs.push(mesh.put(&mesh.app, Kind::Deployment, name, 1, held()).await?);
    }
    let mut others = Vec::new();
    for name in ["one", "two"] {
        others.push(mesh.put(&mesh.other, Kind::Deployment, name, 1, opted_in()).await?);
    }
    mesh.adopt(json!({"rollout": {"maxFailures": 2, "progressDeadline": "10s"}})).await?;
    forbid_pods(&mesh, &mesh.app).await?;
    mesh.configure(1).await?;
    mesh.shows(json!({"workloads": {"failed": 1}})).await?;
    is_restarted(&mesh, &theirs[1]).await?;

    let namespaces: Api<Namespace> = Api::all(mesh.installation.client.clone());
    namespaces.delete(&mesh.app, &DeleteParams::default()).await?;
    let marker = mesh.is_complete().await?;
    all_have(&others, 1, &marker).await?;
    let nothing = json!({"failed": 0, "updating": 0, "pending": 0, "skipped": 0, "selected": 2, "updated": 2});
    let rollout = mesh.shows(json!({"phase": "Complete", "workloads": nothing})).await?;
    assert_eq!(rollout["failures"], Value::Null, "{rollout}");
    mesh.installation.proxy.rests().await?;
    assert_eq!(mesh.counts([&theirs[0], &theirs[1], &theirs[2]])?, [1, 1, 0]);
    let phase = namespaces.get(&mesh.app).await?.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Terminating"));

    for workload in &theirs {
        workload.patch(json!({"metadata": {"finalizers": null}})).await?;
    }
    eventually(DEADLINE, "the namespace to be deleted", async || {
        let left = namespaces.get_opt(&mesh.app).await?;
        ensure!(left.is_none(), "{:?}", left.and_then(|left| left.status));
        Ok(())
    })
    .await?;
    mesh.is_quiet().await?;
    mesh.is_complete().await.map(drop).context("after the end of the namespace")
}
