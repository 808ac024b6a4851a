//! Writes that the API server refuses for a while: what is retried, how often, and who is told.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Action, Manager, Options, Rule, eventually, mesh::SOON};
use serde_json::json;

use super::{BACKED_OFF, Rig, new_mesh, spacing, told_once};

async fn errors(manager: &Manager, reason: &str) -> f64 {
    manager.metric("linkerd_operator_reconcile_errors_total", &[("reason", reason)]).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_refused_for_a_while_is_retried_ever_more_rarely_and_told_once() -> Result<()> {
    let rig = Rig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    let elsewhere = new_mesh(&rig.client).await?;
    let path = format!("/{}/endpointslices", rig.mesh.namespace());
    let fault = rig.proxy.inject(Rule::path(&path).method("POST"), Action::Status { code: 503, retry_after: None });
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.put_service("web", json!({})).await?;
    let between = spacing(&fault, 6).await?;
    // 0.1, 0.2, 0.4, 0.8, 1.6 s, each less up to a tenth.
    ensure!(between > Duration::from_millis(2500), "six attempts in {between:?}");
    let note = told_once(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    assert!(note.contains("cannot create EndpointSlice") && note.contains("injected 503"), "{note}");

    // It neither holds up another Service nor loses what changes meanwhile.
    elsewhere.put_service("web", json!({})).await?;
    elsewhere.put_workload("vm", "web", &["192.0.2.2"]).await?;
    elsewhere.shows("web", &[("vm", true)]).await?;
    rig.mesh.set_ready("vm", false).await?;
    rig.mesh.put_workload("late", "web", &["192.0.2.3"]).await?;
    fault.remove();
    eventually(BACKED_OFF, "the slices", async || {
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
    told_once(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    // It says so when it was answered, which readers of the slices may precede.
    eventually(SOON, "one line for each change", async || {
        let log = manager.log();
        ensure!(log.matches("could not be written, retrying").count() == 1, "{log}");
        ensure!(log.matches("are written again").count() == 1, "{log}");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_throttled_stays_away_as_long_as_it_was_asked_to() -> Result<()> {
    let rig = Rig::start(Options::default()).await?;
    let manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let throttled = Action::Status { code: 429, retry_after: Some(3) };
    let fault = rig.proxy.inject(Rule::path("/endpointslices").method("PUT"), throttled);
    rig.mesh.set_ready("vm", false).await?;
    let between = spacing(&fault, 3).await?;
    ensure!(between > Duration::from_millis(5800), "three attempts in {between:?}");
    assert!(errors(&manager, "unavailable").await >= 3.0);
    fault.remove();
    rig.mesh.shows("web", &[("vm", false)]).await?;
    told_once(&rig.mesh, "web", "EndpointSliceWriteFailed").await?;
    // What was not true yet is told when it is.
    told_once(&rig.mesh, "vm", "BecameUnready").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_that_is_refused_leaves_an_empty_slice_and_no_endpoint() -> Result<()> {
    let rig = Rig::start(Options::default()).await?;
    let _manager = rig.manager().await?;
    rig.mesh.put_web_over_vm().await?;
    let unavailable = Action::Status { code: 503, retry_after: None };
    let fault = rig.proxy.inject(Rule::path("/endpointslices").method("DELETE"), unavailable);
    rig.mesh.delete_workload("vm").await?;
    spacing(&fault, 4).await?;
    rig.mesh.shows("web", &[]).await?;
    assert_eq!(rig.mesh.our_slices("web").await?.len(), 1);
    told_once(&rig.mesh, "vm", "Unpublished").await?;
    fault.remove();
    eventually(SOON, "the empty slice to go", async || {
        ensure!(rig.mesh.our_slices("web").await?.is_empty(), "it is still there");
        Ok(())
    })
    .await?;
    // The endpoint comes back as if nothing had been.
    rig.mesh.put_workload("vm", "web", &["192.0.2.1"]).await?;
    rig.mesh.shows("web", &[("vm", true)]).await
}
