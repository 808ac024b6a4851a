//! The normal course: adoption restarts nothing, outdated workloads are restarted one after the other, and progress is
//! reported.

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually, holds,
    mesh::SOON,
    workload::{Kind, Workload, opted_in},
};
use serde_json::{Value, json};

use super::{DEADLINE, QUIET, RolloutRig, names, put_over};

/// Scenario 1.
#[tokio::test(flavor = "multi_thread")]
async fn adoption_restarts_nothing() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let web = mesh.deployment("web", 2).await?;
    mesh.put(&mesh.app, Kind::StatefulSet, "store", 1, opted_in()).await?;
    mesh.put(&mesh.other, Kind::DaemonSet, "agent", 2, opted_in()).await?;
    let before = web.uids().await?;
    mesh.adopt(json!({})).await?;
    // The adoption is recorded once all injectors have responded, possibly after the workloads are counted.
    let rollout = eventually(DEADLINE, "the adoption", async || {
        let counts = json!({
            "workloads": {"selected": 3, "updated": 3},
            "pods": {"meshed": 5, "current": 5},
            "summary": "3/3",
        });
        let rollout = mesh.shows(counts).await?;
        for field in ["adoptedAt", "baselineHash"] {
            ensure!(rollout[field].as_str().is_some_and(|text| !text.is_empty()), "no {field} in {rollout}");
        }
        Ok(rollout)
    })
    .await?;
    assert!(matches!(rollout["phase"].as_str(), Some("Idle" | "Complete")), "{rollout}");
    let marker = mesh.is_complete().await?;

    // New Pods have the marker. The adopted Pods have none, and are up to date too.
    web.scale(3).await?;
    web.is_settled(3).await?;
    let markers =
        web.proxies().await?.into_iter().map(|proxy| proxy.context("no proxy")).collect::<Result<Vec<_>>>()?;
    let marked = markers.iter().filter(|proxy| proxy.marker.as_ref() == Some(&marker)).count();
    assert_eq!((marked, markers.len()), (1, 3));

    // A value that does not affect proxies is written and restarts nothing. A restarted manager restarts nothing
    // either.
    mesh.change(json!({"values": {"controllerReplicas": 3}})).await?;
    mesh.installation.is_helm_with(json!({"controllerReplicas": 3})).await?;
    assert_eq!(mesh.is_complete().await?, marker);
    mesh.manager.take().context("no manager")?.kill().await?;
    mesh.manager = Some(mesh.installation.manager().await?);
    mesh.no_more_than(0).await?;
    mesh.is_complete().await?;
    assert!(web.uids().await?.is_superset(&before));
    assert_eq!(mesh.installation.event_count("mesh", "RolloutStarted").await?, 0);
    mesh.installation.expect_event("mesh", "ConfigMapUpdated").await?;
    Ok(())
}

/// Scenario 2.
#[tokio::test(flavor = "multi_thread")]
async fn opted_in_workloads_are_restarted_one_after_the_other_and_reported() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let at_once = json!({"spec": {"strategy": {"type": "Recreate"}}});
    let opted_in =
        [mesh.deployment("a", 2).await?, mesh.deployment_with("b", 1, at_once).await?, mesh.deployment("c", 2).await?];
    let stays = mesh.put(&mesh.app, Kind::Deployment, "stays", 1, json!({})).await?;
    let before = stays.uids().await?;
    mesh.adopt(json!({"rollout": {"maxConcurrent": 1}})).await?;
    mesh.configure(1).await?;
    mesh.rollout_is("False/Progressing").await?;
    let name = mesh.installation.full("mesh");
    // This is how a pipeline waits for a rollout.
    let resource = format!("linkerdconfig/{name}");
    let control_plane = &mesh.installation.control_plane;
    control_plane.kubectl(&["wait", "--for=condition=RolloutComplete", &resource, "--timeout=50s"]).await?;
    let marker = mesh.is_complete().await?;
    let trust_roots = mesh.status().await?.0["trustRootsSHA256"].as_str().context("no trust roots")?[..8].to_owned();
    for workload in &opted_in {
        workload.is_marked(&marker).await?;
        let [restart] = &mesh.restarts.of(workload)?[..] else { panic!("{:?}", mesh.restarts.all()) };
        assert_eq!(restart.restarted_for, Some(format!("{marker}-{trust_roots}")));
        // The annotations of a finished workload may follow shortly after.
        eventually(SOON, format_args!("{workload} to be reported as updated"), async || {
            is_reported(workload, &marker, &trust_roots).await
        })
        .await?;
    }
    assert_eq!(mesh.restarts.most_at_once("")?, 1);
    assert_eq!((mesh.restarted()?, mesh.restarts.all()?.len()), (names(["a", "b", "c"]), 3));
    assert_eq!(stays.uids().await?, before);

    let rollout = mesh
        .shows(json!({
            "phase": "Complete", "summary": "3/3",
            "workloads": {"selected": 3, "updated": 3},
        }))
        .await?;
    for (count, expected) in [("updating", 0), ("pending", 0), ("failed", 0), ("skipped", 0)] {
        assert_eq!(rollout["workloads"][count].as_i64().unwrap_or_default(), expected, "{count} of {rollout}");
    }
    assert!(rollout["startedAt"].is_string() && rollout["completedAt"].is_string(), "{rollout}");
    let shown = control_plane.kubectl(&["get", "linkerdconfig", &name]).await?;
    assert!(shown.contains("3/3"), "{shown}");

    let note = mesh.expect_event("RolloutCompleted").await?;
    for (reason, count) in [("RolloutStarted", 1), ("RolloutCompleted", 1)] {
        assert_eq!(mesh.installation.event_count("mesh", reason).await?, count, "{reason}, and {note}");
    }
    is_counted(&mesh).await?;
    // Every workload is selected from now on.
    mesh.change(json!({"rollout": {"optIn": "All"}})).await?;
    stays.gets(1, &marker).await?;
    mesh.shows(json!({"phase": "Complete", "summary": "4/4"})).await?;

    // A reconcile without a relevant change writes nothing.
    mesh.is_quiet().await?;
    let writes = mesh.installation.writes("").len();
    mesh.installation.patch_map("kubectl-label", json!({"metadata": {"labels": {"touched": "true"}}})).await?;
    opted_in[0].patch(json!({"metadata": {"labels": {"touched": "true"}}})).await?;
    holds(QUIET, "that nothing is written", async || {
        let now = mesh.installation.writes("");
        ensure!(now.len() == writes, "{:?}", now.get(writes..));
        Ok(())
    })
    .await
}

/// Checks the annotations and Events of an updated workload.
async fn is_reported(workload: &Workload, marker: &str, trust_roots: &str) -> Result<()> {
    let state = workload.annotation("rollout-state").await?;
    ensure!(state.as_deref() == Some("updated"), "{state:?}");
    let hash = workload.annotation("rollout-hash").await?.context("no rollout-hash")?;
    ensure!(hash == format!("{marker}-{trust_roots}"), "{hash}");
    let started = workload.annotation("rollout-started-at").await?.context("no rollout-started-at")?;
    ensure!(started.contains('T') && started.ends_with('Z'), "{started}");
    for reason in ["PodRestart", "ProxyUpToDate"] {
        let count = workload.event_count(reason).await?;
        ensure!(count == 1, "{count} Events {reason}: {:?}", workload.events().await?);
    }
    Ok(())
}

/// Checks the metrics of three Deployments with five Pods that were each restarted once. One more Pod is not opted in.
async fn is_counted(mesh: &RolloutRig) -> Result<()> {
    let manager = mesh.manager.as_ref().context("no manager")?;
    eventually(SOON, "the metrics of the rollout", async || {
        for (name, labels, expected) in [
            ("pods", vec![("class", "current")], 5.0),
            ("workloads", vec![("state", "updated")], 3.0),
            ("restarts_total", vec![("kind", "Deployment"), ("result", "started")], 3.0),
            ("restarts_total", vec![("kind", "Deployment"), ("result", "updated")], 3.0),
            ("workload_rollout_seconds_count", vec![], 3.0),
        ] {
            let name = format!("linkerd_operator_linkerdconfig_{name}");
            let seen = manager.metric(&name, &labels).await;
            ensure!(seen == Some(expected), "{name} {labels:?}: {seen:?}");
        }
        Ok(())
    })
    .await
}

/// Pods of these workloads are ready at once, and count as available much later than the deadline of the rollout.
#[tokio::test(flavor = "multi_thread")]
async fn a_workload_whose_pods_are_available_late_by_its_own_settings_does_not_fail() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let slowly = |over: Value| {
        let mut object = opted_in();
        put_over(&mut object, &json!({"spec": {"minReadySeconds": 8}}));
        put_over(&mut object, &over);
        object
    };
    let deployment = json!({"spec": {"progressDeadlineSeconds": 3600}});
    let workloads = [
        mesh.put(&mesh.app, Kind::Deployment, "a", 1, slowly(deployment)).await?,
        mesh.put(&mesh.app, Kind::StatefulSet, "b", 1, slowly(json!({}))).await?,
        mesh.put(&mesh.other, Kind::DaemonSet, "c", 2, slowly(json!({}))).await?,
    ];
    let rollout = json!({"progressDeadline": "3s", "maxConcurrent": 3, "maxConcurrentPerNamespace": 3});
    mesh.adopt(json!({ "rollout": rollout })).await?;
    mesh.configure(1).await?;
    let marker = mesh.is_complete().await?;
    for workload in &workloads {
        workload.is_marked(&marker).await?;
        assert_eq!(workload.event_count("ProxyRolloutFailed").await?, 0, "{:?}", workload.events().await?);
        assert_eq!(mesh.restarts.of(workload)?.len(), 1, "{workload}");
    }
    assert_eq!(mesh.installation.event_count("mesh", "RolloutHalted").await?, 0);
    mesh.shows(json!({"phase": "Complete", "summary": "3/3"})).await?;
    Ok(())
}
