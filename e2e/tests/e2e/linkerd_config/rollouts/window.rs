//! Maintenance windows: outside of them no restart begins. `midway.rs` has a restart that has begun.

use anyhow::Result;
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
