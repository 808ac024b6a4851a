//! Rollouts: what a Pod costs that changes, what memory all Pods of a mesh take, and how fast workloads are restarted.
//!
//! * In: a control plane, a stand-in for Linkerd's injector, the whole manager with all its jobs. Out: rows.
//! * Always: `rollout-plan` and `rollout-memory` have [Pods that nobody runs](crowd), because nothing but their objects counts;
//!   `rollout-speed` has [real Deployments](speed), of which each restart is done by those who do it in any cluster.

mod crowd;
mod following;
mod mesh;
mod plan;
mod speed;

use anyhow::Result;

use crate::report::Report;

pub(crate) const FIGURES: [&str; 3] = ["rollout-plan", "rollout-memory", "rollout-speed"];

pub(crate) async fn figures(report: &mut Report, wanted: impl Fn(&str) -> bool) -> Result<()> {
    if wanted("rollout-plan") || wanted("rollout-memory") {
        plan::figures(report, wanted("rollout-plan"), wanted("rollout-memory")).await?;
    }
    if wanted("rollout-speed") {
        speed::figure(report).await?;
    }
    Ok(())
}
