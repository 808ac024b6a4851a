//! Another resource that takes over, and a resource that is deleted during a rollout.

use anyhow::Result;
use serde_json::json;

use super::{COMPLETE, RolloutRig, all_have, hash_of};

/// Scenarios 9 and 10, as far as workloads are concerned.
#[tokio::test(flavor = "multi_thread")]
async fn workloads_run_with_the_active_resource_and_are_not_restarted_after_its_deletion() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let two = [mesh.deployment("a", 1).await?, mesh.deployment("b", 1).await?];
    mesh.adopt(json!({"proxy": {"accessLog": "json"}})).await?;
    let own = mesh.is_complete().await?;
    assert_eq!(mesh.counts(two.each_ref())?, [1, 1]);
    mesh.forget().await?;

    let rollout = json!({"interval": "0s", "soak": "0s"});
    let other = json!({
        "priority": 10, "proxy": {"accessLog": "apache"}, "injectorSync": {"method": "Probe"}, "rollout": rollout,
    });
    mesh.installation.declare("other", other).await?;
    mesh.installation.reaches("mesh", &["Accepted=False/Conflicted"]).await?;
    let status = mesh.rollout_of_is("other", COMPLETE).await?;
    let theirs = hash_of(&status)?;
    assert_ne!(theirs, own);
    all_have(&two, 1, theirs).await?;
    // The first resource becomes active again, and reports its rollout again.
    mesh.installation.delete("other").await?;
    assert_eq!(mesh.is_complete().await?, own);
    all_have(&two, 1, &own).await?;
    assert_eq!(mesh.counts(two.each_ref())?, [2, 2]);

    // Without a resource no further workload is restarted.
    mesh.forget().await?;
    for workload in &two {
        workload.patch(json!({"spec": {"minReadySeconds": 3}})).await?;
    }
    mesh.configure(1).await?;
    let first = mesh.first_of(&two.each_ref()).await?;
    mesh.installation.delete_and_wait("mesh").await?;
    first.is_settled(1).await?;
    mesh.no_more_than(1).await
}
