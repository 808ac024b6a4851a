//! The trust anchors of the mesh. They are copied from the trust roots into the document, or verified; the ConfigMap of
//! the trust roots is never written.

use anyhow::{Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{HELM, Installation, QUIET, TRUST_ROOTS, WELL, message};

pub(super) fn certificate(name: &str) -> Result<String> {
    let key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new())?;
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Ok(parameters.self_signed(&key)?.pem().replace("\r\n", "\n"))
}

fn hash(bundle: &str) -> String {
    Sha256::digest(bundle).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Waits until the status has the hash of this bundle, and returns the status.
async fn has_seen(installation: &Installation, bundle: &str) -> Result<Value> {
    eventually(SOON, "the hash of the bundle", async || {
        let status = installation.reaches("mesh", &WELL).await?;
        let seen = status.get("trustRootsSHA256");
        ensure!(seen == Some(&json!(hash(bundle))), "{seen:?}");
        Ok(status)
    })
    .await
}

/// An installation whose document contains other anchors than the trust roots.
async fn of_another_root() -> Result<(Installation, String)> {
    let installation = Installation::empty().await?;
    let bundle = certificate("root.linkerd.cluster.local")?;
    installation.put_trust_roots(&bundle).await?;
    installation.put_map(json!({"data": {"values": HELM}})).await?;
    Ok((installation, bundle))
}

/// After an installation by the CLI, the copy in the document may be empty or outdated.
#[tokio::test(flavor = "multi_thread")]
async fn the_copy_in_the_document_is_set_to_the_trust_roots() -> Result<()> {
    let (installation, bundle) = of_another_root().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({})).await?;
    let status = has_seen(&installation, &bundle).await?;
    installation.document_is(&installation.helm_with(json!({"identityTrustAnchorsPEM": bundle})).await?).await?;
    let note = installation.expect_event("mesh", "TrustAnchorsReused").await?;
    assert!(note.contains(TRUST_ROOTS), "{note}");
    assert!(status["trustAnchors"]["source"].as_str().is_some_and(|source| source.contains("trust")), "{status}");
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(installation.event_count("mesh", "TrustRootsChanged").await?, 0);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_bundle_is_reported_and_copied() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let first = installation.base_anchors().await?;
    has_seen(&installation, &first).await?;
    let both = format!("{first}{}", certificate("next.linkerd.cluster.local")?);
    installation.set_trust_roots(&both).await?;
    has_seen(&installation, &both).await?;
    let declared = json!({"proxy": {"accessLog": "json"}, "identityTrustAnchorsPEM": both});
    installation.document_is(&installation.helm_with(declared.clone()).await?).await?;
    installation.expect_event("mesh", "TrustRootsChanged").await?;
    assert_eq!(installation.event_count("mesh", "TrustAnchorsReused").await?, 1, "once per adoption");

    // Surrounding white space does not change the anchors. But Linkerd hashes the bytes, and so do we.
    let padded = format!("\n{both}\n\n");
    let text = installation.text().await?;
    installation.set_trust_roots(&padded).await?;
    has_seen(&installation, &padded).await?;
    let document = installation.document().await?;
    assert_eq!(document["identityTrustAnchorsPEM"].as_str().map(str::trim), Some(both.trim()));
    assert!(installation.text().await? == text, "rewritten: {:?}", document["identityTrustAnchorsPEM"]);

    // Without the ConfigMap the last anchors are kept.
    installation.maps.delete(TRUST_ROOTS, &DeleteParams::default()).await?;
    holds(QUIET, "the document", async || {
        ensure!(installation.text().await? == text, "it was written");
        Ok(())
    })
    .await?;
    installation.put_trust_roots(&both).await?;
    has_seen(&installation, &both).await?;
    installation.document_is(&installation.helm_with(declared).await?).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(installation.writes(TRUST_ROOTS), [""; 0]);
    drop(manager);
    Ok(())
}

/// An upgrade writes the anchors from Helm's values, which may be outdated.
#[tokio::test(flavor = "multi_thread")]
async fn the_copy_survives_an_upgrade() -> Result<()> {
    let (installation, bundle) = of_another_root().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({})).await?;
    has_seen(&installation, &bundle).await?;
    let next = HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1");
    installation.rewrite("helm", &next).await?;
    let declared = json!({"identityTrustAnchorsPEM": bundle, "linkerdVersion": "edge-26.9.1"});
    installation.document_is(&installation.helm_with(declared).await?).await?;
    assert_eq!(installation.bases().await?, [HELM.to_owned(), next]);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_external_authority_the_copy_is_not_changed() -> Result<()> {
    let installation = Installation::empty().await?;
    let external = HELM.replace("  externalCA: false", "  externalCA: true");
    ensure!(external != HELM, "the test document has changed");
    let bundle = certificate("root.linkerd.cluster.local")?;
    installation.put_trust_roots(&bundle).await?;
    installation.put_map(json!({"data": {"values": external}})).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({})).await?;
    installation.expect_event("mesh", "ConfigMapUpdated").await?;
    has_seen(&installation, &bundle).await?;
    let before = installation.map().await?;
    installation.document_is(&installation.helm_with(json!({"identity": {"externalCA": true}})).await?).await?;
    let next = format!("{bundle}{}", certificate("next.linkerd.cluster.local")?);
    installation.set_trust_roots(&next).await?;
    has_seen(&installation, &next).await?;
    installation.expect_event("mesh", "TrustRootsChanged").await?;
    assert_eq!(installation.map().await?, before);
    assert_eq!(installation.writes("/configmaps/").len(), 1);
    drop(manager);
    Ok(())
}

/// Without the ConfigMap of the trust roots, the document is the only source.
#[tokio::test(flavor = "multi_thread")]
async fn without_trust_roots_the_anchors_of_the_document_are_used() -> Result<()> {
    let installation = Installation::empty().await?;
    installation.put_map(json!({"data": {"values": HELM}})).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    assert!(
        status["trustAnchors"]["source"].as_str().is_some_and(|source| source.contains("identityTrustAnchorsPEM")),
        "{status}"
    );
    assert_eq!(status.get("trustRootsSHA256"), None, "{status}");
    installation.document_is(&installation.helm_with(json!({})).await?).await?;

    // Trust roots that are created later are used from then on.
    let bundle = certificate("root.linkerd.cluster.local")?;
    installation.put_trust_roots(&bundle).await?;
    has_seen(&installation, &bundle).await?;
    installation.document_is(&installation.helm_with(json!({"identityTrustAnchorsPEM": bundle})).await?).await?;
    let note = installation.expect_event("mesh", "TrustAnchorsReused").await?;
    assert!(note.contains(TRUST_ROOTS), "{note}");
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_requires_the_declared_anchors() -> Result<()> {
    let installation = Installation::new().await?;
    let before = installation.map().await?;
    let manager = installation.manager().await?;
    let declared = certificate("wanted.linkerd.cluster.local")?;
    let context = json!({"trustAnchorsPolicy": "Verify", "trustAnchorsPEM": declared});
    installation
        .declare("mesh", json!({"global": {"identityContext": context}, "proxy": {"accessLog": "json"}}))
        .await?;
    let status = installation.reaches("mesh", &["Accepted=False/Invalid", "Ready=False/Invalid"]).await?;
    let why = message(&status, "Accepted")?;
    assert!(why.contains("spec.global.identityContext.trustAnchorsPEM") && why.contains(TRUST_ROOTS), "{why}");
    assert_eq!(installation.map().await?, before);

    // Equal except for surrounding white space.
    installation.set_trust_roots(&format!("\n{declared}\n")).await?;
    installation.reaches("mesh", &WELL).await?;
    let document = installation.document().await?;
    assert_eq!(document["identityTrustAnchorsPEM"].as_str().map(str::trim), Some(declared.trim()));
    assert_eq!(document["proxy"]["accessLog"], "json");
    let written = installation.map().await?.resource_version();
    installation.set_trust_roots(&certificate("other.linkerd.cluster.local")?).await?;
    installation.reaches("mesh", &["Accepted=False/Invalid"]).await?;
    assert_eq!(installation.map().await?.resource_version(), written);
    drop(manager);
    Ok(())
}
