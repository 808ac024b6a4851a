//! A manager that is killed between two writes, and its successor.

use anyhow::{Result, ensure};
use e2e::{Action, Options, Rule, eventually, holds, mesh::SOON};
use kube::ResourceExt;
use serde_json::json;

use super::{FaultRig, QUIET};

/// A step in the life of a Service's slices: the write in flight when the manager is killed, and the expected
/// endpoints.
struct LifeStep {
    method: &'static str,
    change: SliceChange,
    after: &'static [(&'static str, bool)],
}

#[derive(Clone, Copy)]
enum SliceChange {
    Publish,
    Flip,
    Remove,
}

const STEPS: [LifeStep; 4] = [
    LifeStep { method: "POST", change: SliceChange::Publish, after: &[("vm", true)] },
    LifeStep { method: "PUT", change: SliceChange::Flip, after: &[("vm", false)] },
    // A slice is emptied before it is deleted.
    LifeStep { method: "PUT", change: SliceChange::Remove, after: &[] },
    LifeStep { method: "DELETE", change: SliceChange::Remove, after: &[] },
];

/// Kills the manager at each step. With `late`, the write still reaches the API server, after the next manager has
/// finished.
async fn killed_at_each_step(late: bool) -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    for (number, step) in STEPS.iter().enumerate() {
        let service = format!("web-{number}");
        let mesh = super::new_mesh(&rig.client).await?;
        mesh.put_service(&service, json!({})).await?;
        let mut manager = rig.manager().await?;
        if !matches!(step.change, SliceChange::Publish) {
            mesh.put_workload("vm", &service, &["192.0.2.1"]).await?;
            mesh.shows(&service, &[("vm", true)]).await?;
        }
        let path = format!("/{}/endpointslices", mesh.namespace());
        let action = if late { Action::Detain } else { Action::Hold };
        let fault = rig.proxy.inject(Rule::path(&path).method(step.method).times(1), action);
        match step.change {
            SliceChange::Publish => mesh.put_workload("vm", &service, &["192.0.2.1"]).await?,
            SliceChange::Flip => mesh.set_ready("vm", false).await?,
            SliceChange::Remove => mesh.delete_workload("vm").await?,
        }
        fault.is_hit(|hits| hits == 1).await?;
        manager.kill().await?;

        let attempts = rig.proxy.log().iter().filter(|r| r.method != "GET" && r.path.contains(&path)).count();
        let mut manager = rig.manager().await?;
        mesh.shows(&service, step.after).await?;
        let slices = usize::from(!step.after.is_empty());
        let settled = async || {
            let names: Vec<_> = mesh.our_slices(&service).await?.iter().map(ResourceExt::name_any).collect();
            ensure!(names.len() == slices, "{} slices: {names:?}", step.method);
            ensure!(mesh.readiness(&service).await?.len() == slices, "an endpoint was added or removed");
            Ok(())
        };
        eventually(SOON, "the expected number of slices", settled).await?;
        fault.release();
        holds(QUIET, "the end state", settled).await?;
        mesh.shows(&service, step.after).await?;
        let all = rig.proxy.log().iter().filter(|r| r.method != "GET" && r.path.contains(&path)).count();
        // Only the remaining writes: after a killed PUT of a removal these are the PUT and the DELETE.
        let left = if matches!(step.change, SliceChange::Remove) && step.method == "PUT" { 2 } else { 1 };
        assert_eq!(all - attempts, left, "writes of the next manager after a killed {}", step.method);
        manager.kill().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_manager_is_killed_before_a_write_the_next_one_completes_the_work() -> Result<()> {
    killed_at_each_step(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_of_a_killed_manager_does_not_undo_the_work_of_the_next() -> Result<()> {
    killed_at_each_step(true).await
}

/// The write succeeds, but the manager is killed before it receives the response.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_not_repeated_when_the_manager_is_killed_right_after_it() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    rig.mesh.put_service("web", json!({})).await?;
    let mut manager = rig.manager().await?;
    let fault = rig.proxy.inject(Rule::path("/endpointslices").method("POST").times(1), Action::Detain);
    rig.mesh.put_workload_with("vm", "web", json!({"spec": {"workloadIPs": [{"ip": "192.0.2.1"}]}})).await?;
    fault.is_hit(|hits| hits == 1).await?;
    manager.kill().await?;
    fault.release();
    rig.mesh.shows("web", &[("vm", false)]).await?;
    let (before, writes) = (rig.versions().await?, rig.writes());
    let mut manager = rig.manager().await?;
    rig.processes_changes(&manager).await?;
    assert_eq!(rig.versions().await?, before);
    assert_eq!(rig.writes(), writes);
    manager.kill().await
}
