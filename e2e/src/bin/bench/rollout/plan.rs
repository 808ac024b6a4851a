//! What a Pod that changes costs the manager, and what memory all of them take.
//!
//! * A change is another label: nothing that makes a Pod out of date, and nothing that a proxy would be told; but something that
//!   is kept of it, so that its workload is judged anew. Its cost is all that the process spent meanwhile, less what it spends
//!   at rest: the watch event with its Pod, what discovery makes of it, and the plan.
//! * The same changes are made while a manager without LinkerdConfigs runs: the rest is what rollouts add.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Manager, Options, load::Cost, wait::eventually};
use serde_json::json;
use tokio::time::sleep;

use super::{
    crowd::{Crowd, PODS_EACH},
    mesh::Mesh,
};
use crate::report::{Report, median, milliseconds};

/// Workloads.
const FEW: usize = 100;
const MANY: usize = 1_000;
const CHANGES: u32 = 400;
const ROUNDS: u32 = 5;
const REST: Duration = Duration::from_secs(5);
/// For memory that was needed only to start to be given back.
const AT_REST: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(30);
const WITHOUT: &str = "--enable-linkerd-config=false";

/// Of one size: milliseconds of a core for each change, in each round.
struct Measured {
    whole: Vec<f64>,
    without: Vec<f64>,
}

pub(super) async fn figures(report: &mut Report, plan: bool, memory: bool) -> Result<()> {
    eprintln!("a control plane with Pods that nobody runs");
    let mesh = Mesh::start(Options::default()).await?;
    // What Pods that are current have been given.
    let mut manager = mesh.manager(&[]).await?;
    mesh.declare(json!({"interval": "0s", "soak": "0s"})).await?;
    mesh.is_complete(0).await?;
    let mut crowd = Crowd::new(&mesh.client, mesh.newborn().await?);
    manager.terminate(END).await?;

    let mut measured = Vec::new();
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
        measured.push(Measured { whole, without });
        row(report, workloads, measured.last());
    }
    if let [few, many] = &measured[..] {
        let times = |of: fn(&Measured) -> f64| of(many) / of(few);
        let text =
            format!("{:.2} times; what rollouts add {:.2} times", times(Measured::median), times(Measured::added));
        report.row("the same, ten times as many Pods against as many", text, "1: what its workload costs", json!(null));
    }
    Ok(())
}

async fn end(mut manager: Manager) -> Result<()> {
    manager.terminate(END).await.map(drop)
}

async fn rest(report: &mut Report, manager: &Manager, crowd: &Crowd, workloads: usize) -> Result<()> {
    sleep(AT_REST).await;
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let mebibytes = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
    let (resident, peak) = (manager.resident_memory_bytes()?, manager.peak_memory_bytes()?);
    let text = format!("{:.1} MiB, at most {:.1} MiB since its start", mebibytes(resident), mebibytes(peak));
    let (whole, without) = crowd.pod_bytes().await?;
    let figure = format!(
        "resident memory of the whole manager, {} meshed Pods of {} KiB ({} with managedFields) in {workloads} workloads",
        workloads * PODS_EACH,
        without / 1024,
        whole / 1024,
    );
    report.row(figure, text, "≤ 80 MiB", json!({"resident_bytes": resident, "peak_bytes": peak}));
    Ok(())
}

fn row(report: &mut Report, workloads: usize, measured: Option<&Measured>) {
    let Some(measured) = measured else { return };
    let Measured { whole, without } = measured;
    let span = |of: &[f64]| {
        let least = of.iter().copied().fold(f64::INFINITY, f64::min);
        format!("{:.3} ms ({least:.3} to {:.3})", median(of.to_vec()), of.iter().copied().fold(0.0, f64::max))
    };
    let text = format!("{}, without LinkerdConfigs {}", span(whole), span(without));
    let figure = format!(
        "CPU of a Pod that changes, {} Pods in {workloads} workloads, {ROUNDS} times {CHANGES}",
        workloads * PODS_EACH
    );
    report.row(figure, text, "", json!({"milliseconds": whole, "without_linkerd_configs_milliseconds": without}));
}

/// Each round over Pods that are spread over all workloads, one after the other.
async fn changes(manager: &Manager, crowd: &Crowd, workloads: usize) -> Result<Vec<f64>> {
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
            // Twice the same Pod would be another measurement, of two changes that become one.
            let pod = number * pods / CHANGES as usize;
            crowd.touch(pod, &format!("{round}-{number}-{}", manager.pid())).await?;
        }
        eventually(SOON, "the changes to be seen", async || {
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
    manager.metric("linkerd_operator_watch_events_total", &of_pods).await.context("the manager tells of no Pods")
}

// === impl Measured ===

impl Measured {
    fn median(&self) -> f64 {
        median(self.whole.clone())
    }

    fn added(&self) -> f64 {
        self.median() - median(self.without.clone())
    }
}
