//! The cost of a Pod change for the manager, and the memory for all Pods.
//!
//! * A change is another label: the Pod is still up to date and no proxy gets an update, but the label is kept in the
//!   cache, so the workload is evaluated again. The cost is the CPU time of the process during the changes, minus its
//!   cost at rest: the watch event with the Pod, discovery, and the plan.
//! * The same changes are made with a manager without LinkerdConfigs: the difference is the cost of rollouts.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Manager, Options, load::Cost, wait::eventually};
use serde_json::json;
use tokio::time::sleep;

use super::{
    crowd::{PODS_EACH, WorkloadCrowd},
    mesh::BenchMesh,
};
use crate::report::{Report, median, milliseconds};

/// Numbers of workloads.
const FEW: usize = 100;
const MANY: usize = 1_000;
const CHANGES: u32 = 400;
const ROUNDS: u32 = 5;
const REST: Duration = Duration::from_secs(5);
/// Time to release memory that was needed only for the start.
const AT_REST: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);
const WITHOUT: &str = "--enable-linkerd-config=false";

pub(super) async fn figures(report: &mut Report, plan: bool, memory: bool) -> Result<()> {
    eprintln!("a control plane with Pods without a kubelet");
    let mesh = BenchMesh::start(Options::default()).await?;
    // The proxy of Pods that are up to date.
    let mut manager = mesh.manager(&[]).await?;
    mesh.declare(json!({"interval": "0s", "soak": "0s"})).await?;
    mesh.is_complete(0).await?;
    let mut crowd = WorkloadCrowd::new(&mesh.client, mesh.newborn().await?);
    manager.terminate(END).await?;

    for workloads in [FEW, MANY] {
        if !plan && workloads == FEW {
            continue;
        }
        crowd.grow(workloads).await?;
        let manager = mesh.manager(&[]).await?;
        mesh.is_complete(workloads).await?;
        if memory && workloads == MANY {
            rest(report, &manager, &crowd, workloads).await?;
        }
        if !plan {
            continue;
        }
        let whole = changes(&manager, &crowd, workloads).await?;
        mesh.is_complete(workloads).await?;
        end(manager).await?;
        let manager = mesh.manager(&[WITHOUT]).await?;
        let without = changes(&manager, &crowd, workloads).await?;
        end(manager).await?;
        row(report, workloads, &whole, &without);
    }
    Ok(())
}

async fn end(mut manager: Manager) -> Result<()> {
    manager.terminate(END).await.map(drop)
}

async fn rest(report: &mut Report, manager: &Manager, crowd: &WorkloadCrowd, workloads: usize) -> Result<()> {
    sleep(AT_REST).await;
    let (whole, without) = crowd.pod_bytes().await?;
    let figure = format!(
        "memory of the whole manager, {} meshed Pods of {} KiB ({} with managedFields) in {workloads} workloads",
        workloads * PODS_EACH,
        without / 1024,
        whole / 1024,
    );
    report.memory(&figure, &[manager.memory()?], "≤ 80 MiB");
    Ok(())
}

/// Milliseconds of CPU per change, for each round.
fn row(report: &mut Report, workloads: usize, whole: &[f64], without: &[f64]) {
    let span = |of: &[f64]| {
        let least = of.iter().copied().fold(f64::INFINITY, f64::min);
        format!("{:.3} ms ({least:.3} to {:.3})", median(of.to_vec()), of.iter().copied().fold(0.0, f64::max))
    };
    let text = format!("{}, without LinkerdConfigs {}", span(whole), span(without));
    let figure = format!(
        "CPU per Pod change, {} Pods in {workloads} workloads, {ROUNDS} rounds of {CHANGES}",
        workloads * PODS_EACH
    );
    report.row(figure, text, "", json!({"milliseconds": whole, "without_linkerd_configs_milliseconds": without}));
}

/// Each round changes Pods that are distributed over all workloads, one after the other.
async fn changes(manager: &Manager, crowd: &WorkloadCrowd, workloads: usize) -> Result<Vec<f64>> {
    sleep(REST).await;
    let mut each = Vec::new();
    for round in 0..ROUNDS {
        let cost = || Cost::of_process(manager.pid());
        let before = cost()?;
        sleep(REST).await;
        let at_rest = (cost()? - before).ran.div_f64(REST.as_secs_f64());
        let (before, seen, begun) = (cost()?, pods_seen(manager).await?, Instant::now());
        let pods = workloads * PODS_EACH;
        for number in 0..CHANGES as usize {
            // Two changes of the same Pod could be merged into one event.
            let pod = number * pods / CHANGES as usize;
            crowd.touch(pod, &format!("{round}-{number}-{}", manager.pid())).await?;
        }
        eventually(SOON, "the manager to receive the changes", async || {
            let seen = pods_seen(manager).await? - seen;
            ensure!(seen >= f64::from(CHANGES), "{seen} of {CHANGES}");
            Ok(())
        })
        .await?;
        sleep(Duration::from_millis(500)).await;
        let took = begun.elapsed().as_secs_f64();
        let spent = (cost()? - before).ran.saturating_sub(at_rest.mul_f64(took));
        each.push(milliseconds(&spent) / f64::from(CHANGES));
    }
    Ok(each)
}

async fn pods_seen(manager: &Manager) -> Result<f64> {
    let of_pods = [("resource", "pods")];
    manager
        .metric("linkerd_operator_watch_events_total", &of_pods)
        .await
        .context("the manager has no watch events of Pods")
}
