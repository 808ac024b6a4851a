//! Watches that break, are forgotten, fall silent or are refused.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::{Action, Options, Rule, eventually, holds, mesh::SOON};
use hyper::StatusCode;
use serde_json::json;

use super::{BACKED_OFF, KINDS, QUIET, Recorder, Rig, spacing};

/// With the garbage collector, which removes the slices of a Service that was deleted. An API server that is told to stop
/// waits as long for open watches as it allows requests to take, a minute by default.
fn options() -> Options {
    let extra_api_server_args = vec!["--request-timeout=5s".to_owned()];
    Options { controller_manager: true, extra_api_server_args, ..Options::default() }
}

/// A Service with four machines, and three others: what [`change`] changes, and what has to stay as it is.
async fn populate(rig: &Rig) -> Result<()> {
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

/// One change of each sort that leaves no object behind to notice it by, and of some that do.
async fn change(rig: &Rig) -> Result<()> {
    rig.mesh.delete_workload("goes").await?;
    rig.mesh.set_ready("flips", false).await?;
    rig.mesh.patch_workload("moves", json!({"metadata": {"labels": {"app": "other"}}})).await?;
    rig.mesh.services.delete("doomed", &kube::api::DeleteParams::default()).await?;
    Ok(())
}

/// All of [`change`] has arrived, `steady` was not written, and `stays` was never missing.
async fn changed(rig: &Rig, before: &super::Versions, recorder: &Recorder) -> Result<()> {
    rig.mesh.shows("web", &[("stays", true), ("flips", false)]).await?;
    rig.mesh.shows("other", &[("moves", true)]).await?;
    // Not by us: the garbage collector has to find its own way back first.
    eventually(BACKED_OFF, "the slices of a Service that is gone to go", async || {
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
    let mut rig = Rig::start(options()).await?;
    let manager = rig.manager().await?;
    populate(&rig).await?;
    for _ in 0..2 {
        let (before, writes) = (rig.versions().await?, rig.writes());
        rig.control_plane.restart_api_server(graceful).await?;
        rig.follows(&manager).await?;
        assert_eq!(rig.versions().await?, before);
        assert_eq!(rig.writes(), writes);
    }
    let before = rig.versions().await?;
    // The manager sees the API server only when the changes are made.
    let away = rig.proxy.inject(Rule::any(), Action::Cut);
    rig.control_plane.restart_api_server(graceful).await?;
    let recorder = Recorder::start(&rig.mesh).await?;
    change(&rig).await?;
    assert_eq!(recorder.workloads("linkerd-external-web-").len(), 0, "nobody could write yet");
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
async fn a_forgotten_history_costs_one_list_of_each_kind_and_no_write() -> Result<()> {
    let rig = Rig::start(options()).await?;
    let manager = rig.manager().await?;
    populate(&rig).await?;
    let expire = || KINDS.map(|kind| rig.proxy.inject(Rule::path(&format!("{kind}?&watch=true")).times(1), GONE));
    let expired = async |faults: [e2e::Fault; 3]| {
        eventually(SOON, "a new list of each kind", async || {
            ensure!(faults.iter().all(|fault| fault.hits() == 1), "{:?}", faults.each_ref().map(e2e::Fault::hits));
            let (_, body) = manager.get("/ready").await?;
            ensure!(body == "ready\n", "{body}");
            Ok(())
        })
        .await
    };
    let (before, writes, lists) = (rig.versions().await?, rig.writes(), rig.lists());
    let faults = expire();
    rig.proxy.cut_all();
    expired(faults).await?;
    rig.follows(&manager).await?;
    assert_eq!(rig.lists(), lists.map(|count| count + 1));
    assert_eq!(rig.versions().await?, before);
    assert_eq!(rig.writes(), writes);

    // And now with changes that no watch will ever tell of.
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
async fn what_vanished_before_etcd_was_compacted_is_handled_as_deleted() -> Result<()> {
    let mut rig = Rig::start(options()).await?;
    let _manager = rig.manager().await?;
    populate(&rig).await?;
    let before = rig.versions().await?;
    let lists = rig.lists();
    let away = rig.proxy.inject(Rule::any(), Action::Cut);
    rig.proxy.cut_all();
    change(&rig).await?;
    rig.control_plane.compact_etcd().await?;
    rig.control_plane.restart_api_server(true).await?;
    let recorder = Recorder::start(&rig.mesh).await?;
    away.remove();
    changed(&rig, &before, &recorder).await?;
    let after = rig.lists();
    let listed: Vec<usize> = after.iter().zip(lists).map(|(after, before)| after - before).collect();
    assert_eq!(listed, [1, 1, 1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_watches_that_are_refused_are_tried_again_ever_more_rarely() -> Result<()> {
    let rig = Rig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let before = rig.versions().await?;
    let unavailable = Action::Status { code: 503, retry_after: None };
    let throttled = Action::Status { code: 429, retry_after: Some(1) };
    // A watch that is refused; one whose history is always gone, so that each is preceded by a list that succeeds.
    let faults = [
        rig.proxy.inject(Rule::path("/services?&watch=true"), unavailable),
        rig.proxy.inject(Rule::path("/endpointslices?&watch=true"), throttled),
        rig.proxy.inject(Rule::path("/externalworkloads?&watch=true"), GONE),
    ];
    rig.proxy.cut_all();
    let spacings = futures::future::try_join_all(faults.iter().map(|fault| spacing(fault, 6))).await?;
    for between in spacings {
        // 0.2, 0.4, 0.8, 1.6, 3.2 s, each less up to a tenth.
        ensure!(between > Duration::from_secs(5), "six attempts in {between:?}");
    }
    let (status, body) = manager.get("/ready").await?;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert!(body.contains("cannot list or watch services: injected 503"), "{body}");
    assert_eq!(rig.versions().await?, before);
    // A line for each change of what is wrong, not for each attempt.
    let log = manager.log();
    let lines = log.lines().filter(|line| line.contains("list or watch failed") && line.contains("services"));
    assert!(lines.count() <= 2, "{log}");
    assert!(!log.contains("failed with status"), "{log}");
    rig.proxy.clear();
    rig.follows(&manager).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_whose_first_lists_are_refused_waits_without_writing_and_says_why() -> Result<()> {
    let rig = Rig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    drop(manager);
    let (before, writes) = (rig.versions().await?, rig.writes());
    // Services and slices are listed, workloads are not: whoever acted on that would remove every endpoint.
    let throttled = Action::Status { code: 429, retry_after: Some(1) };
    let fault = rig.proxy.inject(Rule::path("/externalworkloads?"), throttled);
    let mut manager = rig.unready_manager()?;
    let between = spacing(&fault, 5).await?;
    // 0.2, 0.4, 0.8, 1.6 s, each less up to a tenth.
    ensure!(between > Duration::from_millis(2500), "five attempts in {between:?}");
    let (status, body) = manager.get("/ready").await?;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    assert!(body.contains("cannot list or watch externalworkloads.workload.linkerd.io: injected 429"), "{body}");
    assert_eq!((rig.versions().await?, rig.writes()), (before.clone(), writes));
    fault.remove();
    manager.ready(SOON).await?;
    rig.follows(&manager).await?;
    assert_eq!((rig.versions().await?, rig.writes()), (before, writes));
    Ok(())
}

/// Slow, because a silent connection is told from an idle one only by its age.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fell_silent_are_noticed_within_about_a_minute() -> Result<()> {
    let rig = Rig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_service("web", json!({})).await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_workload("goes", "web", &["192.0.2.2"]).await?;
    rig.mesh.shows("web", &[("vm", true), ("goes", true)]).await?;
    rig.proxy.half_open();
    let silent = Instant::now();
    rig.mesh.delete_workload("goes").await?;
    holds(QUIET, "silence", async || {
        ensure!(rig.mesh.readiness("web").await?.len() == 2, "the watches were not silent");
        Ok(())
    })
    .await?;
    eventually(Duration::from_secs(80), "the change made in silence", async || {
        let seen = rig.mesh.readiness("web").await?;
        ensure!(seen.len() == 1, "{seen:?}");
        Ok(())
    })
    .await?;
    ensure!(silent.elapsed() < Duration::from_secs(75), "after {:?}", silent.elapsed());
    assert_eq!(manager.get("/live").await?.0, StatusCode::OK);
    rig.follows(&manager).await
}
