//! Invalid input is not written. All errors are reported together, and no secret is shown.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, mesh::SOON};
use serde_json::{Value, json};

use super::{HELM, Installation, WELL, message};

const INVALID: [&str; 2] = ["Accepted=False/Invalid", "Ready=False/Invalid"];
/// In PEM format, by which the operator recognizes a private key.
const KEY: &str = "-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0LWtleS1ieXRlcw==\n-----END EC PRIVATE KEY-----\n";
const KEY_BYTES: &str = "c2VjcmV0LWtleS1ieXRlcw";

/// Declares an invalid spec, and checks that the ConfigMap is not written. Returns the message of the condition
/// Accepted.
async fn refused(spec: Value) -> Result<(Installation, Manager, String)> {
    let installation = Installation::new().await?;
    let before = installation.map().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", spec).await?;
    let status = installation.reaches("mesh", &INVALID).await?;
    installation.stays(&before).await?;
    assert_eq!(installation.writes("/configmaps/"), [""; 0]);
    let note = installation.expect_event("mesh", "ValidationFailed").await?;
    assert!(note.starts_with("ValidationFailed: The resource is invalid: "), "{note}");
    let why = message(&status, "Accepted")?;
    Ok((installation, manager, why))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_are_reported_together_with_their_value_and_reason() -> Result<()> {
    let values = json!({
        "proxy": {"uid": "many"}, "proxyInit": {"iptablesMode": "ebpf", "closeWaitTimeoutSecs": 5},
    });
    let window = json!({"timeZone": "Mars/Olympus_Mons"});
    let (installation, _manager, why) = refused(json!({"values": values, "rollout": {"window": window}})).await?;
    for parts in [
        ["spec.rollout.window", "timeZone", "Mars/Olympus_Mons"],
        ["proxy.uid", "many", "whole number"],
        ["proxyInit.iptablesMode", "ebpf", "nft, legacy"],
        ["proxyInit.closeWaitTimeoutSecs", "5", "runAsRoot"],
    ] {
        assert!(parts.iter().all(|part| why.contains(part)), "{parts:?} should be in {why}");
    }
    let values = json!({"proxy": null, "proxyInit": {"iptablesMode": "legacy", "closeWaitTimeoutSecs": null}});
    let window = json!({"timeZone": "Europe/Berlin"});
    installation.change("mesh", json!({"values": values, "rollout": {"window": window}})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.is_helm_with(json!({"proxyInit": {"iptablesMode": "legacy"}})).await?;

    // The configuration of the last valid resource stays in effect.
    let valid = installation.map().await?;
    installation.change("mesh", json!({"values": {"proxy": {"uid": "many"}}})).await?;
    installation.reaches("mesh", &INVALID).await?;
    installation.change("mesh", json!({"values": {"proxy": null}})).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.map().await?, valid);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_key_is_rejected_and_never_shown() -> Result<()> {
    let values = json!({
        "identity": {"issuer": {"tls": {"keyPEM": KEY}}}, "podAnnotations": {"hidden": KEY},
        "somewhere": [{"else": KEY}], "proxyInjector": {"KEYPEM": "bm90LXBlbS1idXQtc2VjcmV0"},
        "proxy": {"additionalEnv": [{"name": "TOKEN", "value": KEY}, {"value": "s3cret-without-name"}]},
    });
    let (installation, manager, why) = refused(json!({ "values": values })).await?;
    for path in
        ["identity.issuer.tls.keyPEM", "podAnnotations.hidden", "somewhere", "proxy.additionalEnv", "private key"]
    {
        assert!(why.contains(path), "{path} should be in {why}");
    }
    let output = installation.all_output("mesh", &manager).await?;
    for secret in [KEY_BYTES, "bm90LXBlbS1idXQtc2VjcmV0", "s3cret-without-name"] {
        assert!(!output.contains(secret), "{output}");
    }
    Ok(())
}

/// The key comes from a manual edit, then from the installer.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_key_in_the_document_is_never_shown_either() -> Result<()> {
    let (installation, manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    let leak = json!({"identity": {"issuer": {"tls": {"keyPEM": KEY}}}});
    installation.edit("kubectl-edit", leak.clone()).await?;
    installation.is_helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    let note = installation.expect_event("mesh", "DriftReverted").await?;
    assert!(note.contains("identity.issuer.tls.keyPEM"), "{note}");
    // Helm wrote this key, so it stays. But the resource is not ready, and no base is saved, which would outlive the
    // key.
    let leaked = serde_json::to_string(&installation.helm_with(leak).await?)?;
    let leaked = installation.rewrite("helm", &leaked).await?;
    eventually(SOON, "the status to name the key", async || {
        let status = installation.configs.get(&installation.full("mesh")).await?.data["status"].to_string();
        ensure!(status.contains("identity.issuer.tls.keyPEM") && status.contains("private key"), "{status}");
        Ok(())
    })
    .await?;
    installation.stays(&leaked).await?;
    assert_eq!(installation.bases().await?, [HELM]);
    let output = installation.all_output("mesh", &manager).await?;
    assert!(!output.contains(KEY_BYTES), "{output}");
    // Without the key, the declared document is written again.
    installation.rewrite("helm", HELM).await?;
    installation.is_helm_with(json!({"proxy": {"accessLog": "json"}})).await
}
