//! Tests of the harness itself: control planes and child processes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, Options, Process, Signal, Spawn, TestNamespace, User, eventually};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_child_and_its_children_end_with_the_parent() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let removed = directory.path().join("removed");
    std::fs::create_dir(&removed)?;
    let mut spawn = Spawn::new("sh", "/bin/sh", directory.path().join("log"));
    // The shell ignores SIGTERM and has a child process.
    spawn = spawn.args(["-c", "trap '' TERM; sleep 1000 & echo child $!; wait; sleep 1000"]);
    spawn.grace = Duration::from_millis(100);
    spawn.remove = Some(removed.clone());
    let process = Process::spawn(spawn)?;
    let pid = process.pid();
    let child: u32 = eventually(DEADLINE, "the shell's child", async || {
        let log = process.log();
        Ok(log.trim().strip_prefix("child ").context(log.clone())?.parse()?)
    })
    .await?;
    assert!(alive(pid) && alive(child));
    drop(process);
    assert!(!alive(pid));
    eventually(DEADLINE, "the grandchild to exit", async || {
        ensure!(!alive(child), "process {child} is alive");
        Ok(())
    })
    .await?;
    assert!(!removed.exists());
    Ok(())
}

#[tokio::test]
async fn a_child_is_paused_and_ends_with_its_own_status() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let spawn = Spawn::new("sh", "/bin/sh", directory.path().join("log"))
        .args(["-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"]);
    let mut process = Process::spawn(spawn)?;
    eventually(DEADLINE, "the trap to be set", async || {
        ensure!(process.log().contains("ready"), "the log is empty");
        Ok(())
    })
    .await?;
    process.signal(Signal::STOP)?;
    process.signal(Signal::TERM)?;
    assert!(process.wait(Duration::from_millis(100)).await.is_err());
    process.signal(Signal::CONT)?;
    assert_eq!(process.wait(DEADLINE).await?.code(), Some(7));
    assert!(process.signal(Signal::TERM).is_err());
    Ok(())
}

#[tokio::test]
async fn a_private_control_plane_restarts_compacts_and_cleans_up() -> Result<()> {
    let options = Options { users: vec![User { name: "unprivileged".into(), groups: vec![] }], ..Options::default() };
    let started = Instant::now();
    let mut control_plane = ControlPlane::start(options).await?;
    eprintln!("etcd and kube-apiserver were ready after {:?}", started.elapsed());
    let client = control_plane.client().await?;
    let namespace = TestNamespace::create(&client, "history").await?;
    let maps = namespace.api::<ConfigMap>();
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}}))?;
    let old = maps.create(&PostParams::default(), &map).await?.resource_version().context("no version")?;
    for name in ["b", "c"] {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        maps.create(&PostParams::default(), &map).await?;
    }

    let unprivileged = e2e::kubeconfig::client(&control_plane.kubeconfig_for("unprivileged")?).await?;
    let refused = Api::<ConfigMap>::namespaced(unprivileged, namespace.name()).list(&ListParams::default()).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("forbidden")));

    control_plane.compact_etcd().await?;
    for graceful in [false, true] {
        // An open watch must not delay a graceful shutdown.
        let mut open = maps.watch(&WatchParams::default().timeout(200), "0").await?.boxed();
        let event = tokio::time::timeout(DEADLINE, open.next()).await?.context("the watch ended")??;
        assert!(matches!(event, WatchEvent::Added(_)), "{event:?}");
        let started = Instant::now();
        control_plane.restart_api_server(graceful).await?;
        eprintln!("a restart (graceful: {graceful}) took {:?}", started.elapsed());
        let mut watch = maps.watch(&WatchParams::default().timeout(20), &old).await?.boxed();
        let first = tokio::time::timeout(DEADLINE, watch.next()).await?.context("the watch ended")??;
        assert!(matches!(&first, WatchEvent::Error(status) if status.code == 410), "{first:?}");
    }

    let directory = control_plane.directory().to_owned();
    let processes = control_plane.processes();
    assert_eq!(processes.len(), 2);
    let started = Instant::now();
    drop(control_plane);
    eprintln!("the shutdown took {:?}", started.elapsed());
    assert!(processes.iter().all(|(_, pid)| !alive(*pid)));
    assert!(!directory.exists());
    Ok(())
}

fn alive(pid: u32) -> bool {
    // A zombie process still has its folder in /proc.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
