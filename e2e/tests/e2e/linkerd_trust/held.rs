//! An issuer that people or another program write too early is held by the identity service that watches LinkerdTrusts.
//! Situations 10 and 11.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually, holds,
    identity::{MeshAuthority, verify},
};
use hyper::StatusCode;
use serde_json::json;

use super::{ReportedMesh, SOON, bundle_becomes, identity::ShippedIdentity};
use crate::identity::WEB;

/// The longest time from a new status to the certificates that follow from it.
const AT_ONCE: Duration = Duration::from_secs(2);
/// The time for which no issuer is ready after a change of the bundle.
const INJECTED: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread")]
async fn an_issuer_that_comes_too_early_signs_within_two_seconds_of_the_end_of_the_last_proxy_that_refuses_it()
-> Result<()> {
    let mut mesh = ReportedMesh::start().await?;
    mesh.permit().await?;
    let new = MeshAuthority::root("new")?;
    let (first, second) = (mesh.old.signs("issuer")?, new.signs("second")?);
    let put_issuer = async |issuer: &MeshAuthority| {
        let metadata = json!({"name": "linkerd-identity-issuer", "namespace": "linkerd"});
        let data = json!({"crt.pem": issuer.pem(), "key.pem": issuer.key_pem()});
        mesh.rig.apply(&[json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})]).await
    };
    put_issuer(&first).await?;
    let shipped = ShippedIdentity::permit(&mesh).await?;
    let identity = shipped.ready(&mesh).await?;
    identity.signs_with(&[&first]).await?;

    let both = format!("{}{}", mesh.old.pem(), new.pem());
    mesh.put_trust("mesh", Some(&new.pem())).await?;
    mesh.enforce().await?;
    bundle_becomes(&mesh.rig, &both).await?;
    let added = Instant::now();
    mesh.reaches(SOON, "Spreading", &[]).await?;
    // As cert-manager does when the issuerRef of its Certificate changes.
    put_issuer(&second).await?;
    eventually(SOON, "/ready to say why", async || {
        let (_, body) = identity.manager.get("/ready").await?;
        let held = "is held: not all proxies accept its certificates yet: LinkerdTrust mesh is in the phase ";
        ensure!(body.contains(held), "{body}");
        Ok(())
    })
    .await?;
    holds(AT_ONCE, "the last issuer to sign", async || identity.signs_with(&[&first]).await.map(drop)).await?;
    let held = identity.manager.metric("linkerd_operator_identity_issuer_held", &[]).await.context("no metric")?;
    ensure!((held - 1.0).abs() < 0.5, "{held}");

    // A replica that starts now has never had the last issuer. A rolling update waits until it is ready.
    let another = shipped.start(&mesh).await?;
    eventually(SOON, "another replica to say why it is not ready", async || {
        let (status, body) = another.manager.get("/ready").await?;
        let why = "no issuer of certificates is loaded: the new issuer, of the root ";
        ensure!(status == StatusCode::SERVICE_UNAVAILABLE && body.contains(why), "{status} {body}");
        ensure!(body.contains("2 proxies trust no root of it, by the status of LinkerdTrust mesh"), "{body}");
        Ok(())
    })
    .await?;
    ensure!(another.certify().await.is_err(), "it signs");
    drop(another);

    mesh.put_proxy("api", &both, &[&first]).await?;
    mesh.delete_proxy("web-1").await?;
    mesh.reaches(SOON, "Spreading", &["TrustSpread=False/ProxiesBehind"]).await?;
    identity.signs_with(&[&first]).await?;
    // Injectors may serve the bundle before for four minutes.
    tokio::time::sleep(INJECTED.saturating_sub(added.elapsed())).await;
    mesh.delete_proxy("web-2").await?;
    mesh.reaches(SOON, "AwaitingIssuer", &["ReadyToSwitch=True/Synced"]).await?;
    eventually(AT_ONCE, "the new issuer to sign", async || identity.signs_with(&[&second]).await.map(drop)).await?;
    let answer = identity.signs_with(&[&second]).await?;
    verify(&answer, WEB, &new)?;
    // During a rotation, proxies renew within the hour.
    let until = answer.valid_until.context("no end")?.seconds;
    let left = until - k8s_openapi::jiff::Timestamp::now().as_second();
    ensure!((55 * 60..=60 * 60).contains(&left), "{left} s");
    let events = mesh.rig.kubectl(&["get", "events.events.k8s.io", "-A", "-o=jsonpath={.items[*].reason}"]).await?;
    ensure!(events.contains("IssuerHeld") && events.contains("IssuerUpdated"), "{events}");
    Ok(())
}
