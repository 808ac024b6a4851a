//! Adoption: the few changes that the first LinkerdConfig makes to a running mesh.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{holds, mesh::SOON};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{ResourceExt, api::ListParams};
use serde_json::json;

use super::{CONFIG_MAP, CREATED_BY, HELM, Installation, OPERATOR, QUIET, WELL, trust_anchors::hash};

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_sets_no_value_saves_the_base_and_writes_only_the_marker_once() -> Result<()> {
    let installation = Installation::new().await?;
    let before = installation.map().await?;
    let mut manager = installation.manager().await?;
    let status = installation.adopt("mesh", json!({})).await?;
    for reason in ["LinkerdConfigUpdated", "TrustAnchorsReused", "ConfigMapUpdated"] {
        installation.expect_event("mesh", reason).await?;
    }
    let after = installation.map().await?;
    let variables = installation.parse(&installation.text().await?).await?["proxy"]["additionalEnv"].clone();
    assert_eq!(variables, json!([{"name": "LINKERD_CONFIG_HASH", "value": status["injectionHash"]}]));
    installation.is_helm_with(json!({})).await?;
    installation.stays(&after).await?;

    assert_eq!(installation.bases().await?, [HELM]);
    let revisions = installation.revisions.list(&ListParams::default()).await?.items;
    let [ControllerRevision { data: Some(data), .. }] = revisions.as_slice() else { panic!("{revisions:?}") };
    assert_eq!(data.0["createdBy"], CREATED_BY);
    // `linkerd prune` deletes objects with Linkerd's labels.
    let theirs = revisions[0].labels().keys().filter(|key| key.starts_with("linkerd.io/")).count();
    assert_eq!(theirs, 0, "{:?}", revisions[0].labels());

    assert_eq!(status["active"], true);
    assert_eq!(status["proxyVersion"], "edge-26.8.3");
    assert_eq!(status["revisions"]["base"], 1);
    assert_eq!(status["target"]["namespace"], installation.namespace.as_str());
    assert_eq!(status["target"]["name"], CONFIG_MAP);
    assert_eq!(status["target"]["uid"], json!(before.uid()));
    assert_eq!(status["trustRootsSHA256"], hash(&installation.base_anchors().await?).as_str());
    assert!(status["configHash"].as_str().is_some_and(|hash| !hash.is_empty()), "{status}");
    assert_eq!(status.get("drift"), None, "{status}");
    assert_eq!(installation.finalizers("mesh").await?, [""; 0]);

    let events = installation.events("mesh").await?;
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(installation.writes("/configmaps/").len(), 1);
    assert_eq!(installation.writes("/controllerrevisions").len(), 1);

    // A second manager does not adopt again.
    assert!(manager.terminate(SOON).await?.success());
    let writes = installation.writes("");
    let _manager = installation.manager().await?;
    holds(QUIET, "that nothing is written", async || {
        let after = installation.writes("");
        ensure!(after == writes, "{:?}", &after[writes.len()..]);
        Ok(())
    })
    .await?;
    assert_eq!(installation.reaches("mesh", &WELL).await?, status);
    assert_eq!(installation.events("mesh").await?, events);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_base_is_saved_before_the_config_map_is_written_and_all_other_fields_are_kept() -> Result<()> {
    let over = json!({
        "metadata": {"labels": {"team": "platform"}, "annotations": {"note": "kept"}},
        "data": {"values": HELM, "another-key": "kept: [as it is]"},
        "binaryData": {"bytes": "AAEC"},
    });
    let installation = Installation::empty().await?.installed_with(over).await?;
    let before = installation.map().await?;
    let _manager = installation.manager().await?;
    installation.adopt("mesh", json!({"proxy": {"logLevel": "warn,linkerd=debug"}})).await?;
    installation.is_helm_with(json!({"proxy": {"logLevel": "warn,linkerd=debug"}})).await?;

    let after = installation.map().await?;
    assert_eq!(after.uid(), before.uid());
    assert_eq!(after.labels(), before.labels());
    assert_eq!(after.binary_data, before.binary_data);
    let (mut left, mut data) = (after.annotations().clone(), after.data.clone().unwrap_or_default());
    let ours = ["managed-by", "config-hash", "base-revision"]
        .map(|name| left.remove(&format!("config.linkerd.io/{name}")).unwrap_or_default());
    assert_eq!(ours[0], "linkerd-operator");
    assert!(ours.iter().all(|value| !value.is_empty()), "{ours:?}");
    assert_eq!(&left, before.annotations());
    data.remove("values");
    let mut data_before = before.data.clone().unwrap_or_default();
    data_before.remove("values");
    assert_eq!(data, data_before);
    // Our field manager owns the document and the three annotations, and no other field.
    let entry = after.managed_fields().iter().find(|entry| entry.manager.as_deref() == Some(OPERATOR));
    let fields = entry.and_then(|entry| entry.fields_v1.clone()).map(|fields| fields.0).unwrap_or_default();
    let annotations = fields["f:metadata"]["f:annotations"].as_object().map(serde_json::Map::len);
    assert_eq!((&fields["f:data"], annotations), (&json!({"f:values": {}}), Some(3)), "{fields}");

    assert_eq!(installation.bases().await?, [HELM]);
    let writes = installation.writes(&format!("/namespaces/{}/", installation.namespace));
    let of = |kind: &str| writes.iter().position(|write| write.contains(kind));
    assert!(of("/controllerrevisions") < of("/configmaps/") && of("/configmaps/").is_some(), "{writes:?}");
    assert_eq!(installation.writes("/configmaps/").len(), 1);
    installation.expect_event("mesh", "ConfigMapUpdated").await?;
    Ok(())
}

/// Neither operator writes to the ConfigMap or the resource of the other.
#[tokio::test(flavor = "multi_thread")]
async fn two_control_planes_have_an_operator_each() -> Result<()> {
    let one = Installation::new().await?;
    let two = one.beside().await?;
    let (first, second) = (one.manager().await?, two.manager().await?);
    one.declare("mesh", json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"})).await?;
    two.declare("mesh", json!({"proxy": {"accessLog": "apache"}, "deletionPolicy": "RestoreBase"})).await?;
    for (own, format) in [(&one, "json"), (&two, "apache")] {
        own.document_is(&own.helm_with(json!({"proxy": {"accessLog": format}})).await?).await?;
    }
    holds(QUIET, "that both are ready", async || {
        for own in [&one, &two] {
            own.reaches_within(Duration::from_secs(1), "mesh", &WELL).await?;
        }
        Ok(())
    })
    .await?;
    drop(first);
    one.delete("mesh").await?;
    one.keeps_its_finalizer().await.context("the other operator runs")?;
    assert_eq!(one.document().await?["proxy"]["accessLog"], "json");
    drop(second);
    Ok(())
}
