//! The time to restart many workloads, compared with a bare script of the same concurrency.
//!
//! * Each workload has one Pod, so that a restart is as short as possible and the time between restarts matters most.
//! * The script does the same as `kubectl rollout restart` and `kubectl rollout status`, in this process and with one
//!   watch. It restarts all workloads once before and once after the operator, while the operator does not run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    Options,
    workload::{self, Kind, opted_in},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    following::{FollowedRestart, Following},
    mesh::{BenchMesh, NAMESPACE},
};
use crate::report::{Report, milliseconds};

const WORKLOADS: usize = 1_000;
const AT_ONCE: usize = 10;
const NODES: usize = 10;
const END: Duration = Duration::from_secs(30);

/// A restart of all workloads.
struct RestartRound {
    took: Duration,
    /// The time until the first restart began.
    first: Duration,
    restarts: Vec<FollowedRestart>,
}

pub(super) async fn figure(report: &mut Report) -> Result<()> {
    eprintln!("a control plane with {NODES} nodes and {WORKLOADS} Deployments");
    let mesh = BenchMesh::start(Options::full()).await?;
    for node in 0..NODES {
        mesh.control_plane.add_node(&format!("node-{node}"), "zone").await?;
    }
    let deployments: Api<Deployment> = Api::namespaced(mesh.client.clone(), NAMESPACE);
    let following = Following::start(deployments.clone());
    stream::iter(0..WORKLOADS)
        .map(|number| {
            let client = mesh.client.clone();
            async move { workload::put(&client, NAMESPACE, Kind::Deployment, &name(number), 1, opted_in()).await }
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await?;
    following.all_settled(WORKLOADS).await?;

    let before = by_script(&deployments, &following, "before").await?;
    eprintln!("  the script: {:.1} s", before.took.as_secs_f64());
    let mut manager = mesh.manager(&[]).await?;
    let rollout =
        json!({"maxConcurrent": AT_ONCE, "maxConcurrentPerNamespace": AT_ONCE, "interval": "0s", "soak": "0s"});
    mesh.declare(rollout).await?;
    mesh.is_complete(WORKLOADS).await?;
    let cpu = manager.cpu_time()?;
    let ours = by_operator(&mesh, &following).await?;
    let cpu = manager.cpu_time()? - cpu;
    eprintln!("  the operator: {:.1} s", ours.took.as_secs_f64());
    manager.terminate(END).await?;
    let after = by_script(&deployments, &following, "after").await?;

    let bare = (before.took + after.took) / 2;
    let figure = format!("{WORKLOADS} Deployments of one Pod restarted, {AT_ONCE} at a time");
    let text = format!(
        "{:.1} s from the change until RolloutComplete, of which {:.1} s until the first restart; the script {:.1} and {:.1} s; {:.2} times",
        ours.took.as_secs_f64(),
        ours.first.as_secs_f64(),
        before.took.as_secs_f64(),
        after.took.as_secs_f64(),
        ours.took.as_secs_f64() / bare.as_secs_f64(),
    );
    let raw = json!({
        "ours_seconds": ours.took.as_secs_f64(),
        "until_the_first_seconds": ours.first.as_secs_f64(),
        "script_seconds": [before.took.as_secs_f64(), after.took.as_secs_f64()],
    });
    report.row(figure, text, "≤ 1.2 times the script", raw);
    let took = |restart: &FollowedRestart| Some(restart.settled? - restart.begun);
    let ready = |round: &RestartRound| round.restarts.iter().filter_map(took).collect();
    report.distribution("a restart by the script, until its Deployment is complete (before)", ready(&before), "");
    report.distribution("a restart by the operator, until its Deployment is complete", ready(&ours), "as the script's");
    let reported = |restart: &FollowedRestart| Some(restart.finished? - restart.settled?);
    let reported = ours.restarts.iter().filter_map(reported).collect();
    report.distribution("from there until the operator has reported it as up to date", reported, "");
    let each = cpu.div_f64(f64::from(u32::try_from(WORKLOADS)?));
    let text = format!("{:.1} ms per workload", milliseconds(&each));
    report.row("CPU of the operator for this", text, "", json!({ "cpu_seconds": cpu.as_secs_f64() }));
    Ok(())
}

fn name(number: usize) -> String {
    format!("web-{number:04}")
}

async fn by_script(deployments: &Api<Deployment>, following: &Following, value: &str) -> Result<RestartRound> {
    following.forget();
    let begun = Instant::now();
    let annotations = json!({"kubectl.kubernetes.io/restartedAt": value});
    let patch = Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}));
    stream::iter(0..WORKLOADS)
        .map(|number| {
            let patch = &patch;
            async move {
                let name = name(number);
                deployments.patch_metadata(&name, &PatchParams::default(), patch).await?;
                following.settled(&name).await.with_context(|| format!("restarting {name}"))
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(|()| std::future::ready(Ok(())))
        .await?;
    RestartRound::of(begun, following)
}

async fn by_operator(mesh: &BenchMesh, following: &Following) -> Result<RestartRound> {
    following.forget();
    let begun = Instant::now();
    mesh.change(json!({"proxy": {"logLevel": "warn,linkerd=debug"}})).await?;
    mesh.is_complete(WORKLOADS).await?;
    RestartRound::of(begun, following)
}

// === impl RestartRound ===

impl RestartRound {
    /// The round that ended just now; an error unless each workload was restarted exactly once.
    fn of(begun: Instant, following: &Following) -> Result<Self> {
        let took = begun.elapsed();
        let mut restarts = Vec::with_capacity(WORKLOADS);
        for (name, its) in following.restarts() {
            let [restart] = its[..] else { anyhow::bail!("{name} was restarted {} times", its.len()) };
            restarts.push(restart);
        }
        ensure!(restarts.len() == WORKLOADS, "{} Deployments", restarts.len());
        let first = restarts.iter().map(|restart| restart.begun).min().context("no restart")? - begun;
        Ok(Self { took, first, restarts })
    }
}
