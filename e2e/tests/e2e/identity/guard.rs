//! The trust state: an issuer under a root that not all proxies trust is held.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    eventually, holds,
    identity::{IdentityProcess, MeshAuthority},
    mesh::SOON,
};
use hyper::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{AUDIENCE, IdentityReplica, WEB, verify};

/// The longest time from a new trust state to the certificates that follow from it.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Writes the trust state of now, as the kubelet does.
fn all_trust(server: &IdentityProcess, roots: &[&MeshAuthority]) -> Result<()> {
    let digests: Vec<_> = roots.iter().map(|root| root.sha256()).collect();
    let state = json!({"time": Timestamp::now().to_string(), "trustedByAll": digests});
    server.trust_state.put(&[("state.json", &state.to_string())])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_is_held_until_all_proxies_trust_its_root() -> Result<()> {
    let identity = IdentityReplica::start().await?;
    let (old, new) = (MeshAuthority::root("old")?, MeshAuthority::root("new")?);
    let (first, second) = (old.signs("first")?, new.signs("second")?);
    all_trust(&identity.server, &[&old])?;
    identity.server.roots.put_roots(&[&old])?;
    identity.server.issuer.put_issuer(&first)?;
    identity.server.shows(StatusCode::OK).await?;
    let token = identity.token("web", AUDIENCE).await?;

    identity.server.roots.put_roots(&[&old, &new])?;
    identity.server.issuer.put_issuer(&second)?;
    let held = format!("the new issuer is held because not all proxies trust its root: {}", &new.sha256()[..12]);
    eventually(SOON, "/ready to name the root", async || {
        let (status, body) = identity.server.get("/ready").await?;
        ensure!(status == StatusCode::OK && body.contains(&held), "{body}");
        Ok(())
    })
    .await?;
    let metric = async |name: &str| {
        identity.server.metric(&format!("linkerd_operator_identity_issuer_{name}"), &[]).await.map(f64::round)
    };
    assert_eq!((metric("held").await?, metric("held_expires").await?), (1.0, 0.0));
    all_trust(&identity.server, &[&old])?;
    holds(AT_ONCE, "the last issuer to sign", async || {
        ensure!(identity.signer(&token).await? == first.der(), "another issuer signs");
        Ok(())
    })
    .await?;

    all_trust(&identity.server, &[&new, &old])?;
    eventually(AT_ONCE, "the new issuer to sign", async || {
        ensure!(identity.signer(&token).await? == second.der(), "another issuer signs");
        Ok(())
    })
    .await?;
    verify(&identity.certify(WEB, &token).await?, WEB, &new)?;
    assert!(metric("held").await?.abs() < 0.5);
    eventually(SOON, "the Events about the issuer", async || {
        let reasons = identity.reasons().await?;
        ensure!(reasons.contains("IssuerHeld") && reasons.contains("IssuerUpdated"), "{reasons}");
        Ok(())
    })
    .await
}
