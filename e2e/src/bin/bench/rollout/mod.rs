//! Rollouts: the cost of a Pod change, the memory for all Pods of a mesh, and the speed of restarts.
//!
//! * In: a control plane, a stand-in for Linkerd's injector, and the manager with all its controllers. Out: rows.
//! * Always: `rollout-plan` and `rollout-memory` use [Pods without a kubelet](crowd), because only their objects
//!   matter; `rollout-speed` uses [real Deployments](speed), whose restarts are done by the components of any cluster.

mod crowd;
pub(crate) mod following;
pub(crate) mod mesh;
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
