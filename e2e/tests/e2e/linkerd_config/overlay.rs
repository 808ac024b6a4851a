//! The declared values merged into Helm's document. Tests compare the whole document, as Go parses it.

use anyhow::{Result, ensure};
use e2e::{eventually, mesh::SOON};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{HELM, Installation, WELL};

#[tokio::test(flavor = "multi_thread")]
async fn values_that_the_control_plane_does_not_use_are_reported_until_helm_sets_them() -> Result<()> {
    let installation = Installation::new().await?;
    let _manager = installation.manager().await?;
    let values = json!({"disableIPv6": false, "proxy": {"opaquePorts": "25,3306", "logFormat": "json"}});
    installation.declare("mesh", json!({ "values": values })).await?;
    let status =
        installation.reaches("mesh", &[&WELL[..], &["ControlPlaneMismatch=True/ValuesDiffer"]].concat()).await?;
    let message = |status: &Value| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let warning = conditions.find(|condition| condition["type"] == "ControlPlaneMismatch");
        warning.and_then(|warning| warning["message"].as_str()).map(str::to_owned)
    };
    let expected = "the control plane keeps the installer's values of disableIPv6, proxy.opaquePorts: \
                    set the same values with Helm, or remove them";
    assert_eq!(message(&status).as_deref(), Some(expected));

    // Helm renders the flags of the control plane from the same values as its document.
    let same = json!({"disableIPv6": false, "proxy": {"opaquePorts": "25,3306"}});
    installation.rewrite("helm", &serde_json::to_string(&installation.helm_with(same).await?)?).await?;
    eventually(SOON, "the warning to disappear", async || {
        let status = installation.reaches("mesh", &WELL).await?;
        ensure!(message(&status).is_none(), "{status}");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_with_values_and_each_change_of_the_spec_are_written_once() -> Result<()> {
    let installation = Installation::new().await?;
    let uid = installation.map().await?.uid();
    let _manager = installation.manager().await?;
    let spec = json!({
        "global": {"version": "edge-26.9.1", "configMap": "linkerd-config"},
        "proxy": {"logFormat": "json", "proxyVersion": "edge-26.9.2"},
        "values": {"proxy": {"metrics": {"hostnameLabels": true}}},
    });
    let status = installation.adopt("mesh", spec).await?;
    let patch = json!({
        "linkerdVersion": "edge-26.9.1",
        "proxy": {"image": {"version": "edge-26.9.2"}, "logFormat": "json", "metrics": {"hostnameLabels": true}},
    });
    installation.is_helm_with(patch).await?;
    assert_eq!(status["proxyVersion"], "edge-26.9.2", "proxyVersion must take precedence over version");
    assert_eq!(status["deprecatedFields"], json!(["spec.global.configMap"]));
    let first = status["configHash"].clone();

    // A value that is no longer declared is inherited from the base again.
    let proxy = json!({"logFormat": null, "proxyVersion": null, "accessLog": "json"});
    installation.change("mesh", json!({"proxy": proxy, "values": null})).await?;
    let status = installation.reaches("mesh", &WELL).await?;
    let patch = json!({"linkerdVersion": "edge-26.9.1", "proxy": {"accessLog": "json"}});
    installation.is_helm_with(patch).await?;
    assert_ne!(status["configHash"], first);
    installation.change("mesh", json!({"global": {"version": null}, "proxy": null})).await?;
    installation.reaches("mesh", &WELL).await?;
    installation.is_helm_with(json!({})).await?;

    assert_eq!(installation.writes("/configmaps/").len(), 3);
    assert_eq!(installation.map().await?.uid(), uid);
    assert_eq!(installation.bases().await?, [HELM]);
    assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0);
    Ok(())
}
