//! Writes with an unknown result, and writes that conflict with those of another client.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{Action, Fault, Options, Rule, eventually, holds, mesh::SOON};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use super::{FaultRig, QUIET};

/// Maximum time to resolve a conflict, on a busy host: the watch event or a retry after one second resolves it. If the
/// retries backed off, the last of [`CONFLICTS`] would take longer.
const PROMPTLY: Duration = Duration::from_secs(10);
const CONFLICTS: usize = 5;

async fn intercepted(fault: &Fault) -> Result<()> {
    eventually(SOON, "the request that the fault intercepts", async || {
        ensure!(fault.hits() > 0, "no such request arrived");
        Ok(())
    })
    .await
}

/// Checks that there is one slice and that it is not replaced; returns its name.
async fn one_slice(rig: &FaultRig) -> Result<String> {
    let names = async || {
        let slices = rig.mesh.our_slices("web").await?;
        anyhow::Ok(slices.iter().map(ResourceExt::name_any).collect::<Vec<_>>())
    };
    let name = names().await?;
    ensure!(name.len() == 1, "{name:?}");
    holds(QUIET, "one slice", async || {
        let now = names().await?;
        ensure!(now == name, "{name:?} became {now:?}");
        Ok(())
    })
    .await?;
    name.into_iter().next().context("one name")
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_with_lost_responses_are_not_repeated() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let _manager = rig.manager().await?;
    let lose = |method: &str, path: &str| rig.proxy.inject(Rule::path(path).method(method).times(1), Action::After);
    let slice_of_web = "/endpointslices/linkerd-external-web-";

    // The manager knows that the workload is ready before the slice of `web` is created, so only a repetition would
    // update the slice.
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_service("other", json!({"selector": {"app": "web"}})).await?;
    rig.mesh.shows("other", &[("vm", true)]).await?;
    let create = lose("POST", "/endpointslices");
    rig.mesh.put_service("web", json!({})).await?;
    intercepted(&create).await?;
    rig.mesh.shows("web", &[("vm", true)]).await?;
    let name = one_slice(&rig).await?;
    let slice = rig.mesh.slices.get(&name).await?;
    assert_eq!(slice.metadata.generation, Some(1), "the slice must not be updated");

    let update = lose("PUT", slice_of_web);
    rig.mesh.set_ready("vm", false).await?;
    intercepted(&update).await?;
    rig.mesh.shows("web", &[("vm", false)]).await?;
    assert_eq!(one_slice(&rig).await?, name);
    assert_eq!(rig.mesh.slices.get(&name).await?.metadata.generation, Some(2));

    let (empty, delete) = (lose("PUT", slice_of_web), lose("DELETE", slice_of_web));
    rig.mesh.delete_workload("vm").await?;
    intercepted(&empty).await?;
    intercepted(&delete).await?;
    eventually(SOON, "the slice to be deleted", async || {
        ensure!(rig.mesh.our_slices("web").await?.is_empty(), "it still exists");
        Ok(())
    })
    .await?;
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.shows("web", &[("vm", true)]).await?;
    assert_eq!(one_slice(&rig).await?, name);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_arrives_after_its_retry_makes_no_second_slice() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let _manager = rig.manager().await?;
    let late = rig.proxy.inject(Rule::path("/endpointslices").method("POST").times(1), Action::Detain);
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_service("web", json!({})).await?;
    intercepted(&late).await?;
    // The request times out after nine seconds and is retried.
    rig.mesh.shows("web", &[("vm", true)]).await?;
    let name = one_slice(&rig).await?;
    late.release();
    let log = eventually(SOON, "the late create to be finished", async || {
        let log = rig.proxy.log();
        let creates: Vec<_> = log.iter().filter(|r| r.method == "POST" && r.path.contains("/endpointslices")).collect();
        ensure!(creates.iter().all(|create| create.status.is_some()), "{creates:?}");
        Ok(creates.iter().filter_map(|create| create.status).collect::<Vec<_>>())
    })
    .await?;
    assert_eq!(log, [409, 201]);
    assert_eq!(one_slice(&rig).await?, name);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_arrives_after_its_retry_changes_nothing() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let _manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let late = rig.proxy.inject(Rule::path("/endpointslices").method("PUT").times(1), Action::Detain);
    rig.mesh.set_ready("vm", false).await?;
    intercepted(&late).await?;
    // The content of the late update is outdated by the time it is sent.
    rig.mesh.put_workload("vm-2", "web", &["192.0.2.2"]).await?;
    rig.mesh.shows("web", &[("vm", false), ("vm-2", true)]).await?;
    let name = one_slice(&rig).await?;
    let before = rig.mesh.slices.get(&name).await?.resource_version();
    late.release();
    eventually(SOON, "the late update to be refused", async || {
        let log = rig.proxy.log();
        ensure!(log.iter().any(|r| r.method == "PUT" && r.path.contains(&name) && r.status == Some(409)), "{log:?}");
        Ok(())
    })
    .await?;
    holds(QUIET, "the newer slice is not overwritten", async || {
        let now = rig.mesh.slices.get(&name).await?.resource_version();
        ensure!(now == before, "{before:?} became {now:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_is_edited_or_deleted_concurrently_is_restored_promptly() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let name = one_slice(&rig).await?;
    let edit = json!({"metadata": {"annotations": {"note": "mine"}}, "endpoints": [{"addresses": ["203.0.113.1"]}]});
    let converges = async |ready: bool| {
        let started = Instant::now();
        rig.mesh.shows("web", &[("vm", ready)]).await?;
        ensure!(started.elapsed() < PROMPTLY, "after {:?}", started.elapsed());
        anyhow::Ok(())
    };
    let mut ready = true;
    // In a row: the retries must not back off further.
    for _ in 0..CONFLICTS {
        let held = rig.proxy.inject(Rule::path("/endpointslices").method("PUT").times(1), Action::Hold);
        ready = !ready;
        rig.mesh.set_ready("vm", ready).await?;
        intercepted(&held).await?;
        rig.mesh.slices.patch(&name, &PatchParams::default(), &Patch::Merge(&edit)).await?;
        held.release();
        converges(ready).await?;
        let annotations = rig.mesh.slices.get(&name).await?.annotations().clone();
        assert_eq!(annotations.get("note").map(String::as_str), Some("mine"), "annotations of other clients must stay");
    }
    for _ in 0..CONFLICTS {
        let held = rig.proxy.inject(Rule::path("/endpointslices").method("PUT").times(1), Action::Hold);
        ready = !ready;
        rig.mesh.set_ready("vm", ready).await?;
        intercepted(&held).await?;
        rig.mesh.slices.delete(&name, &DeleteParams::default()).await?;
        held.release();
        converges(ready).await?;
    }
    // The same for a delete that another client overtakes.
    let held = rig.proxy.inject(Rule::path("/endpointslices").method("DELETE").times(1), Action::Hold);
    rig.mesh.delete_workload("vm").await?;
    intercepted(&held).await?;
    rig.mesh.slices.delete(&name, &DeleteParams::default()).await?;
    held.release();
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    converges(true).await?;
    one_slice(&rig).await?;
    // A conflict is not reported as a failure.
    let log = manager.log();
    assert!(!log.contains("could not be written"), "{log}");
    assert_eq!(rig.mesh.events_of("web").await?, Vec::<String>::new());
    Ok(())
}
