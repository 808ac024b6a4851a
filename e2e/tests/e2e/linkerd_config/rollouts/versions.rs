//! Another version of the operator takes over: during a rollout, and at rest.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::{Replica, eventually, mesh::SOON, workload::Workload};
use kube::{ResourceExt, api::ListParams};
use serde_json::{Value, json};

use super::{RolloutRig, all_have};
use crate::other_version::{OtherVersion, Version};

const LEASE: &str = "linkerd-operator";
/// A Lease that expires quickly after SIGKILL.
const SHORT: [&str; 3] =
    ["--leader-election-lease-duration=6s", "--leader-election-renew-deadline=3s", "--leader-election-retry-period=1s"];
/// The version that takes over, and whether the leader is killed.
const TURNS: [(Version, bool); 4] =
    [(Version::This, false), (Version::Other, false), (Version::This, true), (Version::Other, true)];

async fn start(mesh: &RolloutRig, other: &OtherVersion, version: Version, number: u16) -> Result<Replica> {
    let identity = format!("{}-{number}", version.name());
    let options = mesh.installation.replica(&identity).args(SHORT).binary(other.binary(version));
    Replica::ready(&mesh.installation.control_plane, options).await
}

/// The requests that can change objects, except those for Leases and dry runs.
fn writes(replica: &Replica) -> Vec<String> {
    let mut log = replica.proxy.log();
    log.retain(|it| it.method != "GET" && !it.path.contains("/leases") && !it.path.contains("dryRun="));
    log.into_iter().map(|it| format!("{} {}", it.method, it.path)).collect()
}

/// What an operator keeps in the cluster for the next one.
#[derive(Debug, PartialEq)]
struct Kept {
    /// The resourceVersion of Linkerd's ConfigMap.
    config_map: Option<String>,
    /// The saved documents of the installer: name → uid and resourceVersion.
    revisions: BTreeMap<String, (Option<String>, Option<String>)>,
    /// When the conditions that describe the resource became true.
    since: BTreeMap<String, Value>,
}

impl Kept {
    async fn read(mesh: &RolloutRig) -> Result<Self> {
        let installation = &mesh.installation;
        let revisions = installation.revisions.list(&ListParams::default()).await?;
        let status = mesh.status().await?.0;
        let conditions = status["conditions"].as_array().context("no conditions")?;
        let since = ["Accepted", "ConfigMapSynced"].into_iter().map(|name| {
            let condition = conditions.iter().find(|condition| condition["type"] == name);
            let condition = condition.with_context(|| format!("no {name} in {conditions:?}"))?;
            ensure!(condition["status"] == "True", "{condition}");
            Ok((name.to_owned(), condition["lastTransitionTime"].clone()))
        });
        Ok(Self {
            config_map: installation.map().await?.resource_version(),
            revisions: revisions.into_iter().map(|it| (it.name_any(), (it.uid(), it.resource_version()))).collect(),
            since: since.collect::<Result<_>>()?,
        })
    }
}

/// Labels, annotations and template of a workload, and its Pods.
async fn state_of(workload: &Workload) -> Result<Value> {
    let object = workload.object().await?;
    Ok(json!({
        "labels": object.labels(), "annotations": object.annotations(), "generation": object.metadata.generation,
        "template": object.data["spec"]["template"], "pods": workload.uids().await?,
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_under_way_is_finished_by_another_version() -> Result<()> {
    let Some(other) = OtherVersion::given("a_rollout_under_way_is_finished_by_another_version")? else {
        return Ok(());
    };
    let mut mesh = RolloutRig::new().await?;
    let three = mesh.three(1, 2).await?;
    let mut leader = start(&mesh, &other, Version::Other, 0).await?;
    mesh.declare(json!({})).await?;
    mesh.is_complete().await?;
    for (turn, (to, kill)) in (1..).zip(TURNS) {
        let next = start(&mesh, &other, to, turn).await?;
        mesh.forget().await?;
        let what = format!("turn {turn}, to {to:?}, SIG{}", if kill { "KILL" } else { "TERM" });
        take_over(&mesh, &three, leader, &next, turn, kill).await.context(what)?;
        leader = next;
    }
    Ok(())
}

/// Begins a rollout, ends the leader after its first restart, and checks that the next replica restarts the others.
async fn take_over(
    mesh: &RolloutRig,
    three: &[Workload; 3],
    leader: Replica,
    next: &Replica,
    turn: u16,
    kill: bool,
) -> Result<()> {
    mesh.configure(turn).await?;
    mesh.first_of(&three.each_ref()).await?;
    let kept = Kept::read(mesh).await?;
    ensure!(writes(next).is_empty(), "a follower wrote: {:?}", writes(next));
    leader.end(kill, SOON).await?;
    next.manager.leads(LEASE, SOON).await?;

    let marker = mesh.is_complete().await?;
    all_have(three, 1, &marker).await?;
    mesh.no_more_than(3).await?;
    ensure!(mesh.counts(three.each_ref())? == [1, 1, 1], "{:?}", mesh.restarts.all()?);
    ensure!(mesh.restarts.most_at_once("")? == 1, "{:?}", mesh.restarts.all()?);
    for workload in three {
        let seen = workload.restarted_for().await?;
        let is_for = seen.as_deref().is_some_and(|seen| seen.starts_with(&marker));
        ensure!(is_for, "{workload} was restarted for {seen:?}, not for {marker}");
        eventually(SOON, "rollout-state=updated", async || {
            let state = workload.annotation("rollout-state").await?;
            ensure!(state.as_deref() == Some("updated"), "{workload}: {state:?}");
            Ok(())
        })
        .await?;
    }
    ensure!(Kept::read(mesh).await? == kept, "{kept:?} became {:?}", Kept::read(mesh).await?);
    let writes = writes(next);
    let restarts = writes.iter().filter(|write| write.starts_with("PATCH") && write.contains("/deployments/")).count();
    ensure!(restarts >= 2, "the next replica did not finish the rollout: {writes:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_that_takes_over_at_rest_changes_nothing() -> Result<()> {
    let Some(other) = OtherVersion::given("another_version_that_takes_over_at_rest_changes_nothing")? else {
        return Ok(());
    };
    let mut mesh = RolloutRig::new().await?;
    let two = [mesh.deployment("a", 1).await?, mesh.deployment("b", 1).await?];
    let mut leader = start(&mesh, &other, Version::Other, 0).await?;
    mesh.declare(json!({})).await?;
    mesh.is_complete().await?;
    for (turn, (to, kill)) in (1..).zip(TURNS) {
        let what = format!("turn {turn}, to {to:?}, SIG{}", if kill { "KILL" } else { "TERM" });
        mesh.forget().await?;
        mesh.configure(turn).await?;
        for workload in &two {
            mesh.restarts.next_of(workload, 0).await?;
        }
        mesh.is_complete().await?;
        is_at_rest(&leader).await?;

        let next = start(&mesh, &other, to, turn).await?;
        let (kept, status) = (Kept::read(&mesh).await?, mesh.status().await?.0);
        let (a, b) = (state_of(&two[0]).await?, state_of(&two[1]).await?);
        leader.end(kill, SOON).await?;
        next.manager.leads(LEASE, SOON).await?;
        // Its first reconcile as the leader, and whatever follows from it.
        is_at_rest(&next).await?;
        let writes = writes(&next);
        ensure!(writes.iter().all(|write| is_report(write)), "{what}: {writes:?}");
        ensure!(Kept::read(&mesh).await? == kept, "{what}: {kept:?} became {:?}", Kept::read(&mesh).await?);
        let (now, then) = (summary(&mesh.status().await?.0), summary(&status));
        ensure!(now == then, "{what}: the status was {then}, and is {now}");
        ensure!((state_of(&two[0]).await?, state_of(&two[1]).await?) == (a, b), "{what}: the workloads changed");
        mesh.no_more_than(2).await.context(what)?;
        leader = next;
    }
    // The last one can still write.
    mesh.forget().await?;
    mesh.configure(9).await?;
    mesh.restarts.next_of(&two[0], 0).await?;
    mesh.is_complete().await?;
    Ok(())
}

/// Returns whether a write only reports: a new leader probes the injectors again, and reports that.
fn is_report(write: &str) -> bool {
    (write.starts_with("PUT ") && write.contains("/linkerdconfigs/") && write.contains("/status?"))
        || write.contains(" /apis/events.k8s.io/")
}

/// The status without times and messages.
fn summary(status: &Value) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<Value> =
        conditions.map(|it| json!([it["type"], it["status"], it["reason"], it["observedGeneration"]])).collect();
    json!({"conditions": conditions, "injectionHash": status["injectionHash"], "pods": status["rollout"]["pods"],
        "observedGeneration": status["observedGeneration"]})
}

/// Waits until the replica has reconciled, and reconciles and writes no more.
async fn is_at_rest(replica: &Replica) -> Result<()> {
    let queue = [("name", "linkerdconfig_controller_workqueue")];
    let done = async || {
        let reconciles = replica.manager.metric("workqueue_work_duration_seconds_count", &queue).await;
        (reconciles.unwrap_or_default(), writes(replica).len())
    };
    let mut seen = done().await;
    eventually(SOON, "the replica to be at rest", async || {
        tokio::time::sleep(super::QUIET / 2).await;
        let before = std::mem::replace(&mut seen, done().await);
        ensure!(seen.0 > 0.0 && seen == before, "{before:?} reconciles and writes, then {seen:?}");
        Ok(())
    })
    .await
}
