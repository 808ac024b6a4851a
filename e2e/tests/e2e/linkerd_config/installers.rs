//! Upgrades of Linkerd, which rewrite the document: a changed document is a new base, not drift.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, mesh::SOON};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{CONFIG_MAP, CREATED_BY, HELM, Installation, OPERATOR, WELL, message};

const NEXT: &str = "linkerd/helm edge-26.9.1";

/// A mesh with an access log and pinned worker threads.
async fn adopted(drift: Value) -> Result<(Installation, Manager)> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    let values = json!({"proxy": {"runtime": {"workers": {"minimum": 2}}}});
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}, "values": values, "drift": drift})).await?;
    installation.reaches("mesh", &WELL).await?;
    Ok((installation, manager))
}

/// The document that the next version of the chart renders.
fn upgraded(version: &str) -> String {
    HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: {version}"))
        .replace("  logFormat: plain\n  logHTTPHeaders", "  logFormat: json\n  logHTTPHeaders")
        .replace("webhookFailurePolicy: Ignore", "webhookFailurePolicy: Fail\nwhatIsNew: {in: this version}")
}

/// The upgrade with the overlay of [`adopted`].
async fn declared(installation: &Installation, base: &str) -> Result<Value> {
    let mut document = installation.parse(base).await?;
    super::put_over(&mut document, &json!({"proxy": {"accessLog": "json", "runtime": {"workers": {"minimum": 2}}}}));
    Ok(document)
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_upgrade_creates_a_new_base_and_keeps_the_overlay() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    let uid = installation.map().await?.uid();
    let base = upgraded("edge-26.9.1");
    for part in ["linkerdVersion: edge-26.9.1", "logFormat: json", "whatIsNew"] {
        ensure!(base.matches(part).count() == 1, "the test document has changed: {part}");
    }
    let patch = json!({"metadata": {"annotations": {"linkerd.io/created-by": NEXT}}, "data": {"values": base}});
    installation.patch_map("helm", patch).await?;
    installation.document_is(&declared(&installation, &base).await?).await?;
    installation.expect_event("mesh", "BaseUpdated").await?;
    let status = installation.reaches("mesh", &WELL).await?;
    assert_eq!((&status["proxyVersion"], &status["revisions"]["base"]), (&json!("edge-26.9.1"), &json!(2)));
    assert_eq!(installation.bases().await?, [HELM.to_owned(), base]);
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    let map = installation.map().await?;
    assert_eq!((map.uid(), map.annotations().get("linkerd.io/created-by").map(String::as_str)), (uid, Some(NEXT)));
    drop(manager);
    Ok(())
}

/// `helm upgrade` without changed values writes the base's text again. An installer may also run while no manager does.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_text_creates_no_base_and_an_upgrade_while_no_manager_runs_creates_one() -> Result<()> {
    let (installation, mut manager) = adopted(json!({})).await?;
    installation.rewrite("helm", HELM).await?;
    installation.document_is(&declared(&installation, HELM).await?).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(
        (
            installation.event_count("mesh", "BaseUpdated").await?,
            installation.event_count("mesh", "DriftDetected").await?
        ),
        (0, 0)
    );

    manager.kill().await?;
    let base = upgraded("edge-26.9.1");
    installation.rewrite("helm", &base).await?;
    let manager = installation.manager().await?;
    installation.document_is(&declared(&installation, &base).await?).await?;
    installation.expect_event("mesh", "BaseUpdated").await?;
    assert_eq!(installation.bases().await?, [HELM.to_owned(), base]);
    drop(manager);
    Ok(())
}

/// The upgrade changes only a value that the overlay sets, so the effective document stays the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_the_overlay_hides_creates_a_base() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    let base = HELM.replace("  accessLog: \"\"\n", "  accessLog: apache\n");
    ensure!(base != HELM, "the test document has changed");
    installation.rewrite("helm", &base).await?;
    installation.expect_event("mesh", "BaseUpdated").await?;
    installation.document_is(&declared(&installation, HELM).await?).await?;
    assert_eq!(installation.bases().await?, [HELM.to_owned(), base]);
    installation.change("mesh", json!({"proxy": null, "values": null})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&installation.helm_with(json!({"proxy": {"accessLog": "apache"}})).await?).await?;
    drop(manager);
    Ok(())
}

/// An unknown installer has no trusted name. A changed version in the annotation or in the document identifies it.
#[tokio::test(flavor = "multi_thread")]
async fn another_created_by_or_cli_version_identifies_an_installer_with_any_name() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    let first = upgraded("edge-26.9.1");
    let patch = json!({"metadata": {"annotations": {"linkerd.io/created-by": NEXT}}, "data": {"values": first}});
    installation.patch_map("unheard-of", patch).await?;
    installation.document_is(&declared(&installation, &first).await?).await?;
    let second = upgraded("edge-26.9.2").replace("cliVersion: \"\"", "cliVersion: linkerd/cli edge-26.9.2");
    installation.rewrite("unheard-of", &second).await?;
    installation.document_is(&declared(&installation, &second).await?).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.bases().await?, [HELM.to_owned(), first, second.clone()]);
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    // The same versions, so this is a manual edit.
    installation.edit("unheard-of", json!({"linkerdVersion": "edge-26.9.9"})).await?;
    installation.document_is(&declared(&installation, &second).await?).await?;
    installation.expect_event("mesh", "DriftReverted").await?;
    assert_eq!(installation.bases().await?.len(), 3);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trusted_managers_are_declared() -> Result<()> {
    let (installation, manager) = adopted(json!({"trustedManagers": ["terraform"]})).await?;
    let base = upgraded("edge-26.9.1");
    installation.rewrite("helm", &base).await?;
    installation.document_is(&declared(&installation, HELM).await?).await?;
    let note = installation.expect_event("mesh", "DriftReverted").await?;
    assert!(note.contains("helm"), "{note}");
    installation.rewrite("terraform", &base).await?;
    installation.document_is(&declared(&installation, &base).await?).await?;
    assert_eq!(installation.bases().await?, [HELM.to_owned(), base]);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_five_bases_are_kept() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    for number in 1..=7 {
        let base = upgraded(&format!("edge-26.9.{number}"));
        installation.rewrite("helm", &base).await?;
        installation.document_is(&declared(&installation, &base).await?).await?;
    }
    let status = installation.reaches("mesh", &WELL).await?;
    assert_eq!(status["revisions"]["base"], 8);
    e2e::eventually(e2e::mesh::SOON, "old bases to be deleted", async || {
        let numbers = installation.revisions().await?.into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        ensure!(numbers == [4, 5, 6, 7, 8], "{numbers:?}");
        Ok(())
    })
    .await?;
    assert_eq!(installation.bases().await?.last().cloned(), Some(upgraded("edge-26.9.7")));
    drop(manager);
    Ok(())
}

/// Helm 4, Flux and Argo CD use server-side apply: our write owns the field, so the next upgrade conflicts unless it is
/// forced.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_side_apply_by_an_installer_conflicts_and_with_force_creates_a_base() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    let base = upgraded("edge-26.9.1");
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "annotations": {"linkerd.io/created-by": CREATED_BY}},
        "data": {"values": base},
    });
    let object: DynamicObject = serde_json::from_value(object)?;
    let resource = kube::api::ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&());
    let maps: Api<DynamicObject> =
        Api::namespaced_with(installation.client.clone(), &installation.namespace, &resource);
    let params = PatchParams::apply("helm-controller");
    let refused = maps.patch(CONFIG_MAP, &params, &Patch::Apply(&object)).await;
    let Err(kube::Error::Api(refused)) = refused else { panic!("the apply was accepted") };
    assert!(refused.code == 409 && refused.message.contains(OPERATOR), "{refused:?}");
    maps.patch(CONFIG_MAP, &params.force(), &Patch::Apply(&object)).await?;
    installation.document_is(&declared(&installation, &base).await?).await?;
    installation.expect_event("mesh", "BaseUpdated").await?;
    assert_eq!(installation.bases().await?, [HELM.to_owned(), base]);
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    drop(manager);
    Ok(())
}

/// A malformed document from an installer is neither reverted nor overwritten.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_upgrade_is_reported_and_kept_until_it_is_fixed() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    let broken = installation.rewrite("helm", "proxy: {logLevel: [unclosed\n").await?;
    let bad = ["ConfigMapSynced=False/InvalidBase", "Ready=False/InvalidBase", "Stalled=True/InvalidBase"];
    installation.reaches("mesh", &bad).await?;
    e2e::holds(super::QUIET, "Helm's document", async || {
        ensure!(installation.map().await?.resource_version() == broken.resource_version(), "it was overwritten");
        Ok(())
    })
    .await?;
    assert_eq!(installation.bases().await?, [HELM]);
    let base = upgraded("edge-26.9.1");
    installation.rewrite("helm", &base).await?;
    installation.document_is(&declared(&installation, &base).await?).await?;
    installation.reaches("mesh", &WELL).await?;
    drop(manager);
    Ok(())
}

/// A pinned version stays when the installer upgrades the control plane, and would otherwise be forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_version_that_stays_behind_an_upgrade_is_flagged() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"proxyVersion": "edge-26.8.3"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.rewrite("helm", &upgraded("edge-26.9.1")).await?;
    let status = installation.reaches("mesh", &[&WELL[..], &["VersionSkew=True/ProxyOlder"]].concat()).await?;
    let why = message(&status, "VersionSkew")?;
    assert!(why.contains("edge-26.8.3") && why.contains("edge-26.9.1"), "{why}");
    installation.change("mesh", json!({"proxy": {"proxyVersion": null}})).await?;
    eventually(SOON, "no condition VersionSkew", async || {
        let status = installation.reaches("mesh", &WELL).await?;
        ensure!(message(&status, "VersionSkew").is_err(), "{status}");
        Ok(())
    })
    .await?;
    drop(manager);
    Ok(())
}

/// Its injector ignores proxy.additionalEnv, so no proxy would ever have the injection hash.
#[tokio::test(flavor = "multi_thread")]
async fn a_linkerd_that_is_too_old_is_reported_at_once() -> Result<()> {
    let installation = Installation::new().await?;
    let old = upgraded("stable-2.14.10");
    installation.rewrite("helm", &old).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let expected = ["Accepted=False/UnsupportedVersion", "Ready=False/UnsupportedVersion"];
    let status = installation.reaches("mesh", &expected).await?;
    let why = message(&status, "Accepted")?;
    assert!(why.contains("stable-2.14.10") && why.contains("edge-24.2.3"), "{why}");
    assert_eq!(installation.text().await?, old);
    installation.rewrite("helm", HELM).await?;
    installation.reaches("mesh", &WELL).await?;
    drop(manager);
    Ok(())
}

/// The name of Terraform's provider contains its version, and Pulumi's a random suffix. The version of Linkerd stays the
/// same, so only the pattern identifies the installer.
#[tokio::test(flavor = "multi_thread")]
async fn installers_are_recognized_by_patterns_of_names() -> Result<()> {
    let (installation, manager) = adopted(json!({})).await?;
    let mut bases = vec![HELM.to_owned()];
    let installers = ["terraform-provider-helm_v2.17.0_x5", "pulumi-kubernetes-1f2e3d4c", "fleetagent", "helm3"];
    for (number, installer) in installers.into_iter().enumerate() {
        let base = upgraded(&format!("edge-26.9.{number}"));
        installation.rewrite(installer, &base).await?;
        installation.document_is(&declared(&installation, &base).await?).await?;
        installation.reaches("mesh", &WELL).await?;
        bases.push(base);
        assert_eq!(installation.bases().await?, bases, "{installer}");
    }
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    // The declared patterns replace the default.
    installation.change("mesh", json!({"drift": {"trustedManagers": ["my-*-installer"]}})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.rewrite("helm3", &upgraded("edge-26.9.8")).await?;
    installation.expect_event("mesh", "DriftReverted").await?;
    let base = upgraded("edge-26.9.9");
    installation.rewrite("my-own-installer", &base).await?;
    installation.document_is(&declared(&installation, &base).await?).await?;
    drop(manager);
    Ok(())
}
