//! Maintenance windows: outside of them no restart begins. `midway.rs` has a restart that has begun.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually,
    workload::{Kind, Workload, opted_in},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    DEADLINE, RolloutRig, all_have,
    declared::{forbid_pods, restricted},
    hash_of,
};

#[tokio::test(flavor = "multi_thread")]
async fn outside_the_window_no_restart_begins_and_the_next_window_is_reported() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let (web, api) = (mesh.deployment("web", 1).await?, mesh.deployment("api", 1).await?);
    // This test fails during one minute of the year: the window opens on 1 January at 00:00 UTC.
    let closed = json!({"allow": [{"cron": "0 0 1 1 *", "duration": "1m"}]});
    mesh.adopt(json!({"rollout": {"window": closed}})).await?;
    mesh.configure(1).await?;
    let status = mesh.rollout_is("False/OutsideWindow").await?;
    let next = &status["rollout"]["nextWindow"];
    assert!(next.as_str().is_some_and(|next| next.contains("-01-01T00:00:00")), "{next}");
    mesh.shows(json!({"phase": "Waiting", "workloads": {"pending": 2}})).await?;
    mesh.no_more_than(0).await?;

    // `deny` takes precedence over `allow`.
    let always = json!([{"cron": "* * * * *", "duration": "1h"}]);
    let denied = json!([{"from": "2000-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z"}]);
    mesh.change(json!({"rollout": {"window": {"timeZone": "Europe/Berlin", "allow": always, "deny": denied}}})).await?;
    mesh.rollout_is("False/OutsideWindow").await?;
    mesh.no_more_than(0).await?;
    mesh.change(json!({"rollout": {"window": {"deny": null}}})).await?;
    let marker = mesh.is_complete().await?;
    web.has(1, &marker).await?;
    api.has(1, &marker).await?;
    assert_eq!(mesh.counts([&web, &api])?, [1, 1]);
    Ok(())
}

/// A rollout of a second document. Two workloads run with it, one is being restarted and fails, and one waits. The window
/// closes before the failure.
struct Closed {
    mesh: RolloutRig,
    updated: Vec<Workload>,
    failing: Workload,
    /// The annotation on the template of the failing workload, from the restart for the first document.
    before: Option<String>,
    first: String,
    opens: Timestamp,
    opens_at: Instant,
}

impl Closed {
    async fn new(on_failure: &str) -> Result<Self> {
        let mut mesh = restricted().await?;
        let mut updated = Vec::new();
        for name in ["a", "b"] {
            updated.push(mesh.put(&mesh.app, Kind::Deployment, name, 1, opted_in()).await?);
        }
        let failing = mesh.put(&mesh.other, Kind::Deployment, "fails", 1, opted_in()).await?;
        mesh.put(&mesh.other, Kind::Deployment, "waits", 1, opted_in()).await?;
        let rollout = json!({"onFailure": on_failure, "progressDeadline": "10s"});
        mesh.adopt(json!({ "rollout": rollout })).await?;
        mesh.configure(1).await?;
        let first = mesh.is_complete().await?;
        let before = failing.restarted_for().await?;
        mesh.forget().await?;
        forbid_pods(&mesh, &mesh.other).await?;
        mesh.configure(2).await?;
        eventually(DEADLINE, "the restart that fails", async || {
            mesh.restarts.of(&failing)?.first().map(drop).context("none")
        })
        .await?;
        let (closes, opens) = (SignedDuration::from_secs(1), SignedDuration::from_secs(40));
        let now = Timestamp::now();
        let opens_at = Instant::now() + Duration::from_secs(40);
        let denied = json!([{"from": (now + closes).to_string(), "to": (now + opens).to_string()}]);
        mesh.change(json!({"rollout": {"window": {"timeZone": "UTC", "deny": denied}}})).await?;
        Ok(Self { mesh, updated, failing, before, first, opens: now + opens, opens_at })
    }

    fn is_closed(&self) -> Result<()> {
        ensure!(Instant::now() < self.opens_at, "the window has opened");
        Ok(())
    }

    async fn waits_until_open(&self) {
        tokio::time::sleep_until(self.opens_at.into()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_the_window_a_rollback_restores_the_config_map_and_restarts_wait_for_the_window() -> Result<()> {
    let closed = Closed::new("Rollback").await?;
    let Closed { mesh, updated, failing, .. } = &closed;
    mesh.rollout_is("False/RolledBack").await?;
    mesh.installation.is_helm_with(json!({"proxy": {"ports": {"inbound": 5001}}})).await?;
    eventually(DEADLINE, "the template of the failed workload to be reverted", async || {
        let seen = failing.restarted_for().await?;
        ensure!(seen == closed.before, "{seen:?}");
        Ok(())
    })
    .await?;
    failing.gets(1, &closed.first).await?;
    // Before the injectors use the restored document, they are what restarts wait for.
    let next = eventually(DEADLINE, "nextWindow", async || {
        let (status, _) = mesh.status().await?;
        let next = status["rollout"]["nextWindow"].as_str().context("none")?;
        Ok(next.parse::<Timestamp>()?)
    })
    .await?;
    ensure!(next.duration_since(closed.opens).abs() <= SignedDuration::from_secs(1), "{next} is not {}", closed.opens);
    mesh.no_more_than(4).await?;
    closed.is_closed()?;
    mesh.shows(json!({"phase": "RolledBack", "workloads": {"pending": 2}, "summary": "2/4"})).await?;

    closed.waits_until_open().await;
    mesh.shows(json!({"phase": "RolledBack", "summary": "4/4"})).await?;
    assert_eq!(hash_of(&mesh.status().await?.0)?, closed.first);
    all_have(updated, 1, &closed.first).await?;
    for workload in updated {
        let restarts = mesh.restarts.of(workload)?;
        ensure!(restarts.len() == 2 && restarts[1].begun >= closed.opens_at, "{restarts:?}");
    }
    mesh.installation.proxy.rests().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_outside_the_window_halts_the_rollout_in_the_next_window_too() -> Result<()> {
    let closed = Closed::new("Halt").await?;
    let mesh = &closed.mesh;
    mesh.rollout_is("False/Halted").await?;
    closed.is_closed()?;
    closed.waits_until_open().await;
    mesh.installation.proxy.rests().await?;
    mesh.no_more_than(3).await?;
    mesh.rollout_is("False/Halted").await?;
    mesh.installation.is_helm_with(json!({"proxy": {"ports": {"inbound": 5002}}})).await
}
