//! Invalid input is not written. All errors are reported together, and no secret is shown.

use anyhow::{Result, ensure};
use e2e::{Manager, eventually, holds, mesh::SOON};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{HELM, Installation, QUIET, WELL, message};

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
    holds(QUIET, "an unchanged ConfigMap", async || {
        ensure!(installation.map().await? == before, "it was written");
        Ok(())
    })
    .await?;
    assert_eq!(installation.writes("/configmaps/"), [""; 0]);
    installation.expect_event("mesh", "ValidationFailed").await?;
    let why = message(&status, "Accepted")?;
    Ok((installation, manager, why))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_errors_are_reported_together_with_their_value_and_reason() -> Result<()> {
    let values = json!({
        "proxy": {"uid": "many", "inboundConnectTimeout": "soon", "await": "yes please", "ports": {"admin": 70000}, "livenessProbe": null},
        "proxyInit": {"iptablesMode": "ebpf", "closeWaitTimeoutSecs": 5},
    });
    let window = json!({"timeZone": "Mars/Olympus_Mons"});
    let (installation, manager, why) = refused(json!({"values": values, "rollout": {"window": window}})).await?;
    for parts in [
        ["spec.rollout.window", "timeZone", "Mars/Olympus_Mons"],
        ["proxy.uid", "many", "whole number"],
        ["proxy.inboundConnectTimeout", "soon", "such as 100ms"],
        ["proxy.await", "yes please", "true or false"],
        ["proxy.ports.admin", "70000", "1 to 65535"],
        ["proxy.livenessProbe", "null", "requires it"],
        ["proxyInit.iptablesMode", "ebpf", "nft, legacy"],
        ["proxyInit.closeWaitTimeoutSecs", "5", "runAsRoot"],
    ] {
        assert!(parts.iter().all(|part| why.contains(part)), "{parts:?} should be in {why}");
    }
    installation
        .change(
            "mesh",
            json!({
                "values": {"proxy": null, "proxyInit": {"iptablesMode": "legacy", "closeWaitTimeoutSecs": null}},
                "rollout": {"window": {"timeZone": "Europe/Berlin"}},
            }),
        )
        .await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&installation.helm_with(json!({"proxyInit": {"iptablesMode": "legacy"}})).await?).await?;
    drop(manager);
    Ok(())
}

/// The previous configuration stays in effect. An invalid resource does not revert drift from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_becomes_invalid_keeps_what_it_wrote() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    let before = installation.map().await?;
    installation.change("mesh", json!({"values": {"proxy": {"uid": "many"}}})).await?;
    installation.reaches("mesh", &INVALID).await?;
    holds(QUIET, "an unchanged ConfigMap", async || {
        ensure!(installation.map().await? == before, "it was written");
        Ok(())
    })
    .await?;
    installation.change("mesh", json!({"values": null})).await?;
    installation.reaches("mesh", &WELL).await?;
    assert_eq!(installation.map().await?, before);
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_set_twice_is_rejected() -> Result<()> {
    let spec = json!({
        "global": {"version": "edge-26.9.1"}, "proxy": {"logLevel": "info", "adminPort": 4291},
        "values": {"linkerdVersion": "edge-26.9.1", "proxy": {"logLevel": "info", "ports": null}},
    });
    let (_installation, manager, why) = refused(spec).await?;
    for part in ["linkerdVersion", "proxy.logLevel", "proxy.ports.admin", "both"] {
        assert!(why.contains(part), "{part} should be in {why}");
    }
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_another_case_than_linkerds_is_rejected() -> Result<()> {
    let (_installation, manager, why) =
        refused(json!({"values": {"Proxy": {"LogLevel": "info"}, "clusterdomain": "a.b", "ownKey": 1}})).await?;
    for part in ["Proxy", "LogLevel", "logLevel", "clusterdomain", "clusterDomain"] {
        assert!(why.contains(part), "{part} should be in {why}");
    }
    assert!(!why.contains("ownKey"), "{why}");
    drop(manager);
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
    drop(manager);
    Ok(())
}

/// The key comes from a manual edit, then from the installer.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_key_in_the_document_is_never_shown_either() -> Result<()> {
    let installation = Installation::new().await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    let leak = json!({"identity": {"issuer": {"tls": {"keyPEM": KEY}}}});
    installation.edit("kubectl-edit", leak.clone()).await?;
    installation.document_is(&installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?).await?;
    let note = installation.expect_event("mesh", "DriftReverted").await?;
    assert!(note.contains("identity.issuer.tls.keyPEM"), "{note}");
    // Helm wrote this key, so it stays. But the resource is not ready, and no base is saved, which would outlive the
    // key.
    let leaked = installation.edit("helm", leak).await?;
    eventually(SOON, "the status to name the key", async || {
        let status = installation.configs.get(&installation.full("mesh")).await?.data["status"].to_string();
        ensure!(status.contains("identity.issuer.tls.keyPEM") && status.contains("private key"), "{status}");
        Ok(())
    })
    .await?;
    holds(QUIET, "an unchanged ConfigMap", async || {
        ensure!(installation.map().await?.resource_version() == leaked.resource_version(), "it was written");
        Ok(())
    })
    .await?;
    assert_eq!(installation.bases().await?, [HELM]);
    let output = installation.all_output("mesh", &manager).await?;
    assert!(!output.contains(KEY_BYTES), "{output}");
    // Without the key, the declared document is written again.
    installation.rewrite("helm", HELM).await?;
    installation.document_is(&installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_128_kib_of_values_are_rejected() -> Result<()> {
    let fits = json!({"podAnnotations": {"long": "x".repeat(127 << 10)}});
    let long = json!({"podAnnotations": {"long": "x".repeat(129 << 10)}});
    let (installation, manager, why) = refused(json!({ "values": long })).await?;
    assert!(why.contains("spec.values") && why.contains("131072"), "{why}");
    assert!(why.len() < 2000, "{} bytes of message", why.len());
    installation.change("mesh", json!({ "values": fits })).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.document_is(&installation.helm_with(fits).await?).await?;
    drop(manager);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_more_than_512_kib_is_neither_parsed_nor_written() -> Result<()> {
    let installation = Installation::empty().await?;
    installation.put_trust_roots(&installation.base_anchors().await?).await?;
    let with_comment = |bytes: usize| format!("{HELM}other: {}\n", "x".repeat(bytes));
    let before = installation.put_map(json!({"data": {"values": with_comment(600 << 10)}})).await?;
    let manager = installation.manager().await?;
    let values = json!({"podAnnotations": {"long": "x".repeat(100 << 10)}});
    installation.declare("mesh", json!({ "values": values })).await?;
    let status = installation
        .reaches("mesh", &["ConfigMapSynced=False/InvalidBase", "Ready=False/InvalidBase", "Stalled=True/InvalidBase"])
        .await?;
    assert!(message(&status, "ConfigMapSynced")?.contains("512 KiB"), "{status}");
    assert_eq!(installation.map().await?, before);

    // The base and the values are each below the limit, but not together.
    let before = installation.rewrite("helm", &with_comment(450 << 10)).await?;
    let status = installation
        .reaches("mesh", &["ConfigMapSynced=False/ValidationFailed", "Ready=False/ValidationFailed"])
        .await?;
    assert!(message(&status, "ConfigMapSynced")?.contains("524288"), "{status}");
    assert_eq!(installation.map().await?, before);
    installation.change("mesh", json!({"values": {"podAnnotations": {"long": "short"}}})).await?;
    installation.reaches("mesh", &WELL).await?;
    drop(manager);
    Ok(())
}

/// The resource is valid and the base is valid, but not their combination.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_conflicts_with_the_overlay_is_not_changed() -> Result<()> {
    let installation = Installation::empty().await?;
    installation.put_trust_roots(&installation.base_anchors().await?).await?;
    let rooted = HELM.replace("  runAsRoot: false", "  runAsRoot: true");
    ensure!(rooted != HELM, "the test document has changed");
    installation.put_map(json!({"data": {"values": rooted}})).await?;
    let manager = installation.manager().await?;
    installation.declare("mesh", json!({"values": {"proxyInit": {"closeWaitTimeoutSecs": 5}}})).await?;
    installation.reaches("mesh", &WELL).await?;
    let upgraded = installation.rewrite("helm", HELM).await?;
    let status = installation
        .reaches("mesh", &["Ready=False/ValidationFailed"])
        .await
        .or(installation.reaches("mesh", &INVALID).await)?;
    assert!(status["conditions"].to_string().contains("runAsRoot"), "{status}");
    holds(QUIET, "Helm's document", async || {
        ensure!(installation.map().await?.resource_version() == upgraded.resource_version(), "it was written");
        Ok(())
    })
    .await?;
    // The controller still works: with the previous document, the declared one is valid again.
    installation.rewrite("helm", &rooted).await?;
    installation.reaches("mesh", &WELL).await?;
    drop(manager);
    Ok(())
}

/// Helm's document can be parsed, but no Pod could be created with it. It must not be reported as ready.
#[tokio::test(flavor = "multi_thread")]
async fn an_installed_document_that_linkerd_cannot_use_is_not_reported_as_ready() -> Result<()> {
    let broken = HELM.replace("  uid: 2102", "  uid: many");
    ensure!(broken != HELM, "the test document has changed");
    for spec in [json!({}), json!({"proxy": {"accessLog": "json"}})] {
        let installation = Installation::empty().await?;
        installation.put_trust_roots(&installation.base_anchors().await?).await?;
        let before = installation.put_map(json!({"data": {"values": broken}})).await?;
        let manager = installation.manager().await?;
        installation.declare("mesh", spec.clone()).await?;
        eventually(SOON, format_args!("{spec} to be reported with proxy.uid"), async || {
            let status = installation.configs.get(&installation.full("mesh")).await?.data["status"].take();
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
            let why = ready.map(ToString::to_string).unwrap_or_default();
            ensure!(why.contains("False") && why.contains("proxy.uid"), "{status}");
            Ok(())
        })
        .await?;
        assert_eq!(installation.map().await?, before);
        drop(manager);
    }
    Ok(())
}
