//! Upgrades of Linkerd, which rewrite the document: a changed document is a new base, not drift.

use anyhow::Result;
use serde_json::json;

use super::{HELM, Installation, WELL};

/// The document that the next version of the chart renders.
fn upgraded(version: &str) -> String {
    HELM.replace("linkerdVersion: edge-26.8.3", &format!("linkerdVersion: {version}"))
        .replace("  logFormat: plain\n  logHTTPHeaders", "  logFormat: json\n  logHTTPHeaders")
        .replace("webhookFailurePolicy: Ignore", "webhookFailurePolicy: Fail\nwhatIsNew: {in: this version}")
}

/// The name of Terraform's provider contains its version, and Pulumi's a random suffix. The version of Linkerd stays the
/// same, so only the pattern identifies the installer.
#[tokio::test(flavor = "multi_thread")]
async fn installers_are_recognized_by_patterns_of_names() -> Result<()> {
    let (installation, _manager) = Installation::adopted(json!({"proxy": {"accessLog": "json"}})).await?;
    let mut bases = vec![HELM.to_owned()];
    let installers = ["terraform-provider-helm_v2.17.0_x5", "pulumi-kubernetes-1f2e3d4c", "fleetagent", "helm3"];
    for (number, installer) in installers.into_iter().enumerate() {
        let base = upgraded(&format!("edge-26.9.{number}"));
        installation.rewrite(installer, &base).await?;
        installation.document_is(&installation.with_access_log(&base).await?).await?;
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
    installation.document_is(&installation.with_access_log(&base).await?).await
}
