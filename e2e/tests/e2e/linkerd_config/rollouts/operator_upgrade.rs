//! An upgrade of the operator, or a time without it, restarts no workload that runs with the declared configuration.

use anyhow::{Context, Result, ensure};
use e2e::{eventually, workload::Workload};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use super::{super::OPERATOR, DEADLINE, RolloutRig, hash_of};

/// A hash as a later version of the operator would compute it.
const GIVEN: &str = "v2_0123456789abcdef";

/// Gives the document and its saved base this hash, as if another version of the operator had computed it.
async fn as_another_version(mesh: &RolloutRig, computed: &str) -> Result<()> {
    let installation = &mesh.installation;
    let text = installation.text().await?.replace(computed, GIVEN);
    installation.rewrite(OPERATOR, &text).await?;
    // The data of a ControllerRevision is immutable.
    let revisions = installation.revisions.list(&ListParams::default()).await?.items;
    let newest = revisions.into_iter().max_by_key(|it| it.revision).context("no base")?;
    let mut object = serde_json::to_value(&newest)?;
    ensure!(object["data"]["effectiveInjectionHash"] == computed, "{}", object["data"]);
    for field in ["injectionHash", "effectiveInjectionHash"] {
        object["data"][field] = json!(GIVEN);
    }
    object["metadata"] = json!({"name": newest.name_any(), "labels": newest.labels()});
    installation.revisions.delete(&newest.name_any(), &DeleteParams::default()).await?;
    installation.revisions.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

/// Waits until the injectors give proxies this marker, then replaces the Pods of the workload as an eviction would.
async fn reborn(mesh: &RolloutRig, workload: &Workload, marker: &str) -> Result<()> {
    eventually(DEADLINE, format_args!("the injectors to use {marker}"), async || {
        let seen = mesh.new_proxy().await?.context("no proxy")?.marker;
        ensure!(seen.as_deref() == Some(marker), "{seen:?}");
        Ok(())
    })
    .await?;
    let old = workload.uids().await?;
    let pods: Api<k8s_openapi::api::core::v1::Pod> =
        Api::namespaced(mesh.installation.client.clone(), workload.namespace());
    for pod in workload.pods().await? {
        pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await?;
    }
    eventually(DEADLINE, "new Pods", async || {
        let new = workload.uids().await?;
        ensure!(!new.is_empty() && new.is_disjoint(&old), "{new:?}");
        Ok(())
    })
    .await?;
    workload.is_settled(old.len()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_with_another_hash_function_restarts_nothing_and_neither_does_the_next_one() -> Result<()> {
    let mut mesh = RolloutRig::new().await?;
    let web = mesh.deployment("web", 1).await?;
    // This version does not know the key. Versions that know it ignore its zero.
    mesh.adopt(json!({"values": {"proxy": {"aNewFlag": false}}})).await?;
    let computed = mesh.is_complete().await?;
    mesh.forget().await?;
    mesh.manager.take().context("no manager")?.kill().await?;
    as_another_version(&mesh, &computed).await?;
    reborn(&mesh, &web, GIVEN).await?;

    let text = mesh.installation.text().await?;
    for _ in 0..2 {
        let mut manager = mesh.installation.manager().await?;
        eventually(DEADLINE, "the saved hash in the status", async || {
            let status = mesh.status().await?.0;
            ensure!(status["injectionHash"] == GIVEN, "{}", status["injectionHash"]);
            Ok(())
        })
        .await?;
        assert_eq!(mesh.is_complete().await?, GIVEN);
        mesh.no_more_than(0).await?;
        manager.kill().await?;
    }
    assert!(mesh.installation.text().await? == text, "the document was written");

    // Another configuration is rolled out as before.
    let _manager = mesh.installation.manager().await?;
    mesh.configure(1).await?;
    let next = eventually(DEADLINE, "a new hash", async || {
        let status = mesh.status().await?.0;
        let hash = hash_of(&status)?.to_owned();
        ensure!(hash != GIVEN, "{hash}");
        Ok(hash)
    })
    .await?;
    web.gets(1, &next).await?;
    assert_eq!(mesh.counts([&web])?, [1]);
    Ok(())
}
