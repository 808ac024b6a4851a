//! Writes that the API server refuses temporarily: their retries, backoff and reports.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Action, Manager, Options, Rule, eventually, mesh::SOON};
use serde_json::json;

use super::{BACKED_OFF, FaultRig, expect_one_event, new_mesh, spacing};

async fn errors(manager: &Manager, reason: &str) -> f64 {
    manager.metric("linkerd_operator_reconcile_errors_total", &[("reason", reason)]).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_retried_with_backoff_and_reported_once() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    let elsewhere = new_mesh(&rig.client).await?;
    let path = format!("/{}/endpointslices", rig.mesh.namespace());
    let fault = rig.proxy.inject(Rule::path(&path).method("POST"), Action::Status { code: 503, retry_after: None });
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_service("web", json!({})).await?;
    let between = spacing(&fault, 6).await?;
    // 0.1, 0.2, 0.4, 0.8, 1.6 s, each reduced by up to a tenth.
    ensure!(between > Duration::from_millis(2500), "six attempts in {between:?}");
    let note = expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    assert!(note.contains("cannot create EndpointSlice") && note.contains("injected 503"), "{note}");

    // The retries neither delay another Service nor lose changes made in the meantime.
    elsewhere.put_service("web", json!({})).await?;
    elsewhere.put_workload("vm", "web", &["192.0.2.2"]).await?;
    elsewhere.shows("web", &[("vm", true)]).await?;
    rig.mesh.set_ready("vm", false).await?;
    rig.mesh.put_workload("late", "web", &["192.0.2.3"]).await?;
    fault.remove();
    eventually(BACKED_OFF, "the slices to be written", async || {
        let seen = rig.mesh.readiness("web").await?;
        ensure!(seen.len() == 2 && !seen["vm"] && seen["late"], "{seen:?}");
        Ok(())
    })
    .await?;
    assert_eq!(rig.mesh.our_slices("web").await?.len(), 1);
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    let hits = fault.hits() as f64;
    assert_eq!(errors(&manager, "unavailable").await, hits);
    let labels = [("verb", "create"), ("result", "unavailable")];
    assert_eq!(manager.metric("linkerd_operator_endpointslice_writes_total", &labels).await, Some(hits));
    expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    // The log line follows the response, so readers may see the slice before the line.
    eventually(SOON, "one log line for the failure and one for the recovery", async || {
        let log = manager.log();
        ensure!(log.matches("could not be written, retrying").count() == 1, "{log}");
        ensure!(log.matches("EndpointSlice writes succeed again").count() == 1, "{log}");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_write_is_retried_after_the_requested_delay() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let throttled = Action::Status { code: 429, retry_after: Some(3) };
    let fault = rig.proxy.inject(Rule::path("/endpointslices").method("PUT"), throttled);
    rig.mesh.set_ready("vm", false).await?;
    let between = spacing(&fault, 3).await?;
    ensure!(between > Duration::from_millis(5800), "three attempts in {between:?}");
    // An attempt is counted when it begins, and an error when the manager has the answer.
    eventually(SOON, "three errors", async || {
        let errors = errors(&manager, "unavailable").await;
        ensure!(errors >= 3.0, "{errors}");
        Ok(())
    })
    .await?;
    fault.remove();
    rig.mesh.shows("web", &[("vm", false)]).await?;
    expect_one_event(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    // The Event is sent only after the write has succeeded.
    expect_one_event(&rig.mesh, "vm", "BecameUnready").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_delete_leaves_an_empty_slice() -> Result<()> {
    let rig = FaultRig::start(Options::default()).await?;
    let _manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let unavailable = Action::Status { code: 503, retry_after: None };
    let fault = rig.proxy.inject(Rule::path("/endpointslices").method("DELETE"), unavailable);
    rig.mesh.delete_workload("vm").await?;
    spacing(&fault, 4).await?;
    rig.mesh.shows("web", &[]).await?;
    assert_eq!(rig.mesh.our_slices("web").await?.len(), 1);
    expect_one_event(&rig.mesh, "vm", "Unpublished").await?;
    fault.remove();
    eventually(SOON, "the empty slice to be deleted", async || {
        ensure!(rig.mesh.our_slices("web").await?.is_empty(), "it still exists");
        Ok(())
    })
    .await?;
    // The endpoint can be published again.
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.shows("web", &[("vm", true)]).await
}
