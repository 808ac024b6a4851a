//! ConfigMaps that cannot be adopted as they are: missing, malformed, too large, from 2020, immutable, or owned.

use anyhow::{Context, Result, ensure};
use e2e::{Manager, eventually, holds, mesh::SOON};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};

use super::{CONFIG_MAP, HELM, Installation, QUIET, WELL, lent::Lent, message};

const MISSING: [&str; 2] = ["Accepted=False/TargetNotFound", "Ready=False/TargetNotFound"];

/// A mesh with a ConfigMap into which this is merged.
async fn over(over: Value) -> Result<(Installation, Manager)> {
    let installation = Installation::empty().await?.installed_with(over).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    Ok((installation, manager))
}

/// Checks that the ConfigMap is not written, and that few Events and log lines follow.
async fn is_left_alone(installation: &Installation, manager: &mut Manager) -> Result<()> {
    let (writes, lines) = (installation.writes("").len(), manager.log().lines().count());
    installation.stays(&installation.map().await?).await?;
    ensure!(manager.is_running(), "the manager exited");
    // Events may follow shortly after the status.
    let mut after = installation.writes("");
    ensure!(after.len() <= writes + 3, "{:?}", after.split_off(writes));
    ensure!(manager.log().lines().count() <= lines + 3, "{}", manager.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_waits_for_a_missing_config_map_and_never_creates_it() -> Result<()> {
    let installation = Installation::empty().await?;
    let mut manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let status = installation.reaches("mesh", &MISSING).await?;
    let why = message(&status, "Accepted")?;
    assert!(why.contains("ConfigMap"), "{why}");
    holds(QUIET, "no ConfigMap", async || {
        ensure!(installation.maps.get_opt(CONFIG_MAP).await?.is_none(), "it was created");
        Ok(())
    })
    .await?;
    assert_eq!(installation.writes("/controllerrevisions"), [""; 0]);
    installation.put_trust_roots(&installation.base_anchors().await?).await?;
    installation.put_map(json!({"data": {"values": HELM}})).await?;
    installation.reaches("mesh", &WELL).await?;
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.document_is(&declared).await?;

    // The ConfigMap is deleted, as by `helm uninstall`, and created again with another UID.
    installation.maps.delete(CONFIG_MAP, &DeleteParams::default()).await?;
    installation.reaches("mesh", &MISSING).await?;
    holds(QUIET, "no ConfigMap", async || {
        ensure!(installation.maps.get_opt(CONFIG_MAP).await?.is_none(), "it was created again");
        Ok(())
    })
    .await?;
    let second = installation.put_map(json!({"data": {"values": HELM}})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    installation.document_is(&declared).await?;
    assert_eq!(status["target"]["uid"], json!(second.uid()));
    assert!(manager.is_running());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_map_that_cannot_be_adopted_is_reported_with_the_reason_and_not_changed() -> Result<()> {
    let of_2020 = json!({"global": "{\"linkerdNamespace\":\"linkerd\"}", "proxy": "{}", "install": "{}"});
    let too_old = HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: stable-2.14.10");
    for (map, expected, named) in [
        (
            json!({"data": {"values": "proxy: {logLevel: [unclosed\n"}}),
            &["ConfigMapSynced=False/InvalidBase", "Ready=False/InvalidBase", "Stalled=True/InvalidBase"][..],
            "line",
        ),
        (
            json!({"data": {"values": format!("{HELM}other: {}\n", "x".repeat(600 << 10))}}),
            &["ConfigMapSynced=False/InvalidBase", "Ready=False/InvalidBase", "Stalled=True/InvalidBase"],
            "512 KiB",
        ),
        (json!({"data": of_2020}), &["Accepted=False/UnsupportedLayout", "Ready=False/UnsupportedLayout"], "values"),
        (
            json!({"data": {"values": too_old}}),
            &["Accepted=False/UnsupportedVersion", "Ready=False/UnsupportedVersion"],
            "edge-24.2.3",
        ),
        (
            json!({"data": {"values": HELM}, "immutable": true}),
            &["ConfigMapSynced=False/Immutable", "Accepted=True/Accepted", "Ready=False/Immutable"],
            "immutable",
        ),
    ] {
        let (installation, mut manager) = over(map.clone()).await?;
        let status = installation.reaches("mesh", expected).await?;
        let (condition, _) = expected[0].split_once('=').context("a condition")?;
        let why = message(&status, condition)?;
        assert!(why.contains(named), "{expected:?}: {named} should be in {why}");
        is_left_alone(&installation, &mut manager).await?;
        assert_eq!(installation.writes("/configmaps/"), [""; 0], "{expected:?}");
        assert_eq!(installation.bases().await?, [""; 0], "{expected:?}");
        if map["immutable"] == true {
            // Without a change to write, the resource is ready.
            installation.change("mesh", json!({"proxy": {"accessLog": null}})).await?;
            installation.reaches("mesh", &WELL).await?;
        } else if map["data"]["values"].is_string() {
            installation.rewrite("helm", HELM).await?;
            installation.reaches("mesh", &WELL).await?;
            assert_eq!(installation.bases().await?, [HELM]);
        }
    }
    Ok(())
}

/// The project of 2020 made LinkerdConfigs owners of the ConfigMap: their deletion would delete the mesh's
/// configuration.
#[tokio::test(flavor = "multi_thread")]
async fn a_legacy_owner_reference_is_removed_so_that_the_config_map_survives_its_owner() -> Result<()> {
    let lent = Lent::with_controllers().await?;
    let installation = Installation::on(lent.into()).await?.installed().await?;
    let uid = installation.map().await?.uid();
    let owner = installation.declare("mesh", json!({})).await?;
    let other: k8s_openapi::api::core::v1::ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "other-owner"}}))?;
    let other = installation.maps.create(&kube::api::PostParams::default(), &other).await?;
    let reference = |version: &str, kind: &str, name: String, uid: Option<String>| json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": false});
    let ours = reference("config.linkerd.io/v1alpha1", "LinkerdConfig", owner.name_any(), owner.uid());
    let theirs = reference("v1", "ConfigMap", other.name_any(), other.uid());
    let references = json!({"metadata": {"ownerReferences": [ours, theirs]}});
    installation.patch_map("linkerd-config-controller", references).await?;
    let mut manager = installation.manager().await?;
    installation.reaches("mesh", &WELL).await?;
    let kinds = async || {
        let map = installation.map().await?;
        anyhow::Ok(map.owner_references().iter().map(|reference| reference.kind.clone()).collect::<Vec<_>>())
    };
    assert_eq!(kinds().await?, ["ConfigMap"]);
    installation.is_helm_with(json!({})).await?;
    // The reference is removed again if it returns. Then the owner is deleted while no manager runs.
    let again = reference("config.linkerd.io/v1alpha1", "LinkerdConfig", owner.name_any(), owner.uid());
    let theirs = reference("v1", "ConfigMap", other.name_any(), other.uid());
    installation.patch_map("old", json!({"metadata": {"ownerReferences": [theirs, again]}})).await?;
    eventually(SOON, "the reference to be removed", async || {
        let kinds = kinds().await?;
        ensure!(kinds == ["ConfigMap"], "{kinds:?}");
        Ok(())
    })
    .await?;
    manager.kill().await?;
    installation.delete_and_wait("mesh").await?;
    holds(QUIET * 2, "the same ConfigMap", async || {
        let map = installation.map().await?;
        ensure!(map.uid() == uid && map.metadata.deletion_timestamp.is_none(), "{:?}", map.metadata);
        Ok(())
    })
    .await
}
