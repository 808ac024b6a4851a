//! Watches that break, expire, fall silent or are refused.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{Action, Options, Rule, eventually, holds, mesh::SOON};
use hyper::StatusCode;
use serde_json::json;

use super::{BACKED_OFF, FaultRig, KINDS, QUIET, Recorder, restartable, spacing};

/// Creates a Service with four workloads, and three other Services: the objects of [`change`], and one that must stay
/// unchanged.
async fn populate(rig: &FaultRig) -> Result<()> {
    for service in ["web", "other", "steady", "doomed"] {
        rig.mesh.put_service(service, json!({})).await?;
    }
    for (number, name) in ["stays", "goes", "flips", "moves"].iter().enumerate() {
        rig.mesh.put_workload(name, "web", &[&format!("192.0.2.{}", number + 1)]).await?;
    }
    rig.mesh.put_workload("steady", "steady", &["192.0.2.8"]).await?;
    rig.mesh.put_workload("last", "doomed", &["192.0.2.9"]).await?;
    rig.mesh.shows("web", &[("stays", true), ("goes", true), ("flips", true), ("moves", true)]).await?;
    rig.mesh.shows("steady", &[("steady", true)]).await?;
    rig.mesh.shows("doomed", &[("last", true)]).await
}

/// Changes objects in every way that a list alone does not show, such as deletions, and in some ways that it does.
async fn change(rig: &FaultRig) -> Result<()> {
    rig.mesh.delete_workload("goes").await?;
    rig.mesh.set_ready("flips", false).await?;
    rig.mesh.patch_workload("moves", json!({"metadata": {"labels": {"app": "other"}}})).await?;
    rig.mesh.services.delete("doomed", &kube::api::DeleteParams::default()).await?;
    Ok(())
}

/// Checks that all of [`change`] has arrived, that `steady` was not written, and that `stays` was never missing.
async fn changed(rig: &FaultRig, before: &super::Versions, recorder: &Recorder) -> Result<()> {
    rig.mesh.shows("web", &[("stays", true), ("flips", false)]).await?;
    rig.mesh.shows("other", &[("moves", true)]).await?;
    // The garbage collector deletes them, after it has reconnected itself.
    eventually(BACKED_OFF, "the slices of the deleted Service to be removed", async || {
        let left = rig.mesh.our_slices("doomed").await?.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
    .await?;
    let after = rig.versions().await?;
    let steady = before.iter().find(|(name, _)| name.starts_with("linkerd-external-steady-"));
    ensure!(steady.is_some_and(|(name, version)| after.get(name) == Some(version)), "{before:?} became {after:?}");
    let versions = recorder.workloads("linkerd-external-web-");
    ensure!((1..=3).contains(&versions.len()), "web was written {} times", versions.len());
    ensure!(versions.iter().all(|workloads| workloads.contains(&"stays".to_owned())), "{versions:?}");
    Ok(())
}

async fn survives_restarts(graceful: bool) -> Result<()> {
    let mut rig = FaultRig::start(restartable()).await?;
    let manager = rig.manager().await?;
    populate(&rig).await?;
    for _ in 0..2 {
        let (before, writes) = (rig.versions().await?, rig.writes());
        rig.control_plane.restart_api_server(graceful).await?;
        rig.processes_changes(&manager).await?;
        assert_eq!(rig.versions().await?, before);
        assert_eq!(rig.writes(), writes);
    }
    let before = rig.versions().await?;
    // The manager can reconnect only after the changes.
    let away = rig.proxy.inject(Rule::any(), Action::Cut);
    rig.control_plane.restart_api_server(graceful).await?;
    let recorder = Recorder::start(&rig.mesh).await?;
    change(&rig).await?;
    assert_eq!(
        recorder.workloads("linkerd-external-web-").len(),
        0,
        "the manager was disconnected and must not have written"
    );
    away.remove();
    changed(&rig, &before, &recorder).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_endpoint_is_lost_when_the_api_server_is_restarted() -> Result<()> {
    survives_restarts(true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_endpoint_is_lost_when_the_api_server_is_killed() -> Result<()> {
    survives_restarts(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_watch_causes_one_list_of_each_kind_and_no_write() -> Result<()> {
    let rig = FaultRig::start(restartable()).await?;
    let manager = rig.manager().await?;
    populate(&rig).await?;
    let expire = || KINDS.map(|kind| rig.proxy.inject(Rule::path(&format!("{kind}?&watch=true")).times(1), GONE));
    let expired = async |faults: [e2e::Fault; 3]| {
        eventually(SOON, "a relist of each kind", async || {
            ensure!(faults.iter().all(|fault| fault.hits() == 1), "{:?}", faults.each_ref().map(e2e::Fault::hits));
            manager.has_no_problem().await
        })
        .await
    };
    let (before, writes, lists) = (rig.versions().await?, rig.writes(), rig.lists(KINDS));
    let faults = expire();
    rig.proxy.cut_all();
    expired(faults).await?;
    rig.processes_changes(&manager).await?;
    assert_eq!(rig.lists(KINDS), lists.map(|count| count + 1));
    assert_eq!(rig.versions().await?, before);
    assert_eq!(rig.writes(), writes);

    // The same with changes that no watch reports.
    let recorder = Recorder::start(&rig.mesh).await?;
    let away = rig.proxy.inject(Rule::any(), Action::Cut);
    rig.proxy.cut_all();
    change(&rig).await?;
    let faults = expire();
    away.remove();
    expired(faults).await?;
    changed(&rig, &before, &recorder).await
}

const GONE: Action = Action::Status { code: 410, retry_after: None };

#[tokio::test(flavor = "multi_thread")]
async fn objects_deleted_before_an_etcd_compaction_are_handled_as_deleted() -> Result<()> {
    let mut rig = FaultRig::start(restartable()).await?;
    let _manager = rig.manager().await?;
    populate(&rig).await?;
    let before = rig.versions().await?;
    let lists = rig.lists(KINDS);
    let away = rig.proxy.inject(Rule::any(), Action::Cut);
    rig.proxy.cut_all();
    change(&rig).await?;
    rig.control_plane.compact_etcd().await?;
    rig.control_plane.restart_api_server(true).await?;
    let recorder = Recorder::start(&rig.mesh).await?;
    away.remove();
    changed(&rig, &before, &recorder).await?;
    let after = rig.lists(KINDS);
    let listed: Vec<usize> = after.iter().zip(lists).map(|(after, before)| after - before).collect();
    assert_eq!(listed, [1, 1, 1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_lists_and_watches_are_retried_with_backoff() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let before = rig.versions().await?;
    let unavailable = Action::Status { code: 503, retry_after: None };
    let throttled = Action::Status { code: 429, retry_after: Some(1) };
    // Two watches are refused. The third always expires, so each attempt is preceded by a successful list.
    let faults = [
        rig.proxy.inject(Rule::path("/services?&watch=true"), unavailable),
        rig.proxy.inject(Rule::path("/endpointslices?&watch=true"), throttled),
        rig.proxy.inject(Rule::path("/externalworkloads?&watch=true"), GONE),
    ];
    rig.proxy.cut_all();
    let spacings = futures::future::try_join_all(faults.iter().map(|fault| spacing(fault, 6))).await?;
    for between in spacings {
        // 0.2, 0.4, 0.8, 1.6, 3.2 s, each reduced by up to a tenth.
        ensure!(between > Duration::from_secs(5), "six attempts in {between:?}");
    }
    let (status, body) = manager.get("/ready").await?;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert!(body.contains("cannot list or watch services: injected 503"), "{body}");
    assert_eq!(rig.versions().await?, before);
    // One line per change of the error, not per attempt.
    let log = manager.log();
    let lines = log.lines().filter(|line| line.contains("list or watch failed") && line.contains("services"));
    assert!(lines.count() <= 2, "{log}");
    assert!(!log.contains("failed with status"), "{log}");
    rig.proxy.clear();
    rig.processes_changes(&manager).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_whose_first_lists_are_refused_waits_without_writing_and_reports_why() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    drop(manager);
    let (before, writes) = (rig.versions().await?, rig.writes());
    // Services and slices are listed, workloads are not: a reconcile in this state would remove every endpoint.
    let throttled = Action::Status { code: 429, retry_after: Some(1) };
    let fault = rig.proxy.inject(Rule::path("/externalworkloads?"), throttled);
    let mut manager = rig.slice_writer().start(&rig)?;
    let between = spacing(&fault, 5).await?;
    // 0.2, 0.4, 0.8, 1.6 s, each reduced by up to a tenth.
    ensure!(between > Duration::from_millis(2500), "five attempts in {between:?}");
    let (status, body) = manager.get("/ready").await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    assert!(body.contains("cannot list or watch externalworkloads.workload.linkerd.io: injected 429"), "{body}");
    assert_eq!((rig.versions().await?, rig.writes()), (before.clone(), writes));
    fault.remove();
    manager.ready(SOON).await?;
    rig.processes_changes(&manager).await?;
    assert_eq!((rig.versions().await?, rig.writes()), (before, writes));
    Ok(())
}

/// This test is slow, because only a timeout distinguishes a silent connection from an idle one.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_detected_within_about_a_minute() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_service("web", json!({})).await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_workload("goes", "web", &["192.0.2.2"]).await?;
    rig.mesh.shows("web", &[("vm", true), ("goes", true)]).await?;
    rig.proxy.half_open();
    let silent = Instant::now();
    rig.mesh.delete_workload("goes").await?;
    holds(QUIET, "no change while the connections are silent", async || {
        ensure!(rig.mesh.readiness("web").await?.len() == 2, "the watches were not silent");
        Ok(())
    })
    .await?;
    eventually(Duration::from_secs(80), "the change made while the connections were silent", async || {
        let seen = rig.mesh.readiness("web").await?;
        ensure!(seen.len() == 1, "{seen:?}");
        Ok(())
    })
    .await?;
    ensure!(silent.elapsed() < Duration::from_secs(75), "after {:?}", silent.elapsed());
    assert_eq!(manager.get("/live").await?.0, StatusCode::OK);
    rig.processes_changes(&manager).await
}
