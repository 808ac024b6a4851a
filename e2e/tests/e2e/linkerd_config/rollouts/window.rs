//! Maintenance windows: outside of them no restart begins, and a restart that has begun is finished.

use anyhow::{Context, Result};
use serde_json::json;

use super::Mesh;

#[tokio::test(flavor = "multi_thread")]
async fn outside_the_window_no_restart_begins_and_the_next_window_is_reported() -> Result<()> {
    let mut mesh = Mesh::new().await?;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_has_begun_is_finished_when_the_window_closes() -> Result<()> {
    let mut mesh = Mesh::new().await?;
    let slow = json!({"spec": {"minReadySeconds": 3}});
    let two = [mesh.deployment_with("a", 1, slow.clone()).await?, mesh.deployment_with("b", 1, slow).await?];
    mesh.adopt(json!({})).await?;
    mesh.configure(1).await?;
    let first = mesh.first_of(&two.each_ref()).await?;
    mesh.change(json!({"rollout": {"window": {"allow": [{"cron": "0 0 1 1 *", "duration": "1m"}]}}})).await?;
    let status = mesh.rollout_is("False/OutsideWindow").await?;
    first.gets(1, status["injectionHash"].as_str().context("no hash")?).await?;
    mesh.shows(json!({"summary": "1/2", "workloads": {"updated": 1, "pending": 1}})).await?;
    mesh.no_more_than(1).await?;
    mesh.change(json!({"rollout": {"window": null}})).await?;
    mesh.is_complete().await?;
    assert_eq!(mesh.counts(two.each_ref())?, [1, 1]);
    Ok(())
}
