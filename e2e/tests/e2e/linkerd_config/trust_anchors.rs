//! The trust anchors of the mesh. They are copied from the trust roots into the document; the ConfigMap of the trust
//! roots is never written.

use anyhow::{Result, ensure};
use e2e::{eventually, holds, mesh::SOON};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{HELM, Installation, QUIET, TRUST_ROOTS, WELL};

pub(super) fn certificate(name: &str) -> Result<String> {
    let key = rcgen::KeyPair::generate()?;
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new())?;
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Ok(parameters.self_signed(&key)?.pem().replace("\r\n", "\n"))
}

/// The hash as Linkerd's injector writes it to Pods.
pub(super) fn hash(bundle: &str) -> String {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_bundle_is_reported_and_copied() -> Result<()> {
    let installation = Installation::new().await?;
    let _manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let first = installation.base_anchors().await?;
    has_seen(&installation, &first).await?;
    let both = format!("{first}{}", certificate("next.linkerd.cluster.local")?);
    installation.set_trust_roots(&both).await?;
    has_seen(&installation, &both).await?;
    let declared = json!({"proxy": {"accessLog": "json"}, "identityTrustAnchorsPEM": both});
    installation.is_helm_with(declared.clone()).await?;
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
    installation.is_helm_with(declared).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(installation.writes(TRUST_ROOTS), [""; 0]);
    Ok(())
}

/// Without the ConfigMap of the trust roots, the document is the only source.
#[tokio::test(flavor = "multi_thread")]
async fn without_trust_roots_the_anchors_of_the_document_are_used() -> Result<()> {
    let installation = Installation::empty().await?;
    installation.put_map(json!({"data": {"values": HELM}})).await?;
    let _manager = installation.manager().await?;
    let status = installation.adopt("mesh", json!({})).await?;
    assert!(
        status["trustAnchors"]["source"].as_str().is_some_and(|source| source.contains("identityTrustAnchorsPEM")),
        "{status}"
    );
    assert_eq!(status.get("trustRootsSHA256"), None, "{status}");
    installation.is_helm_with(json!({})).await?;

    // Trust roots that are created later are used from then on.
    let bundle = certificate("root.linkerd.cluster.local")?;
    installation.put_trust_roots(&bundle).await?;
    let status = has_seen(&installation, &bundle).await?;
    assert!(status["trustAnchors"]["source"].as_str().is_some_and(|source| source.contains("trust")), "{status}");
    installation.is_helm_with(json!({"identityTrustAnchorsPEM": bundle})).await?;
    let note = installation.expect_event("mesh", "TrustAnchorsReused").await?;
    assert!(note.contains(TRUST_ROOTS), "{note}");
    Ok(())
}
