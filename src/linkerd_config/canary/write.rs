//! The writes of the canary's ConfigMap.
//!
//! Always holds: a ConfigMap is changed or deleted only at the resourceVersion that was read, so that a change by
//! another writer is never overwritten.

use k8s_openapi::api::core::v1 as core;
use kube::api::{DeleteParams, Preconditions};
use serde_json::json;

use super::document::CanaryContent;
use crate::{
    api::{
        CANARY_CONFIG_MAP, CANARY_NAMESPACES_ANNOTATION, CONFIG_GROUP, LINKERD_CONFIG_KIND, MANAGED_BY_ANNOTATION,
        OPERATOR, linkerd_config::annotations::CANARY_OWNER_ANNOTATION,
    },
    cluster::kinds::config_map::ConfigMap,
    linkerd_config::writer::{ConfigWriter, post_params},
    write::WriteError,
};

// === impl ConfigWriter ===

impl ConfigWriter {
    /// Writes the ConfigMap of the canary. `found` is the existing one.
    pub(in crate::linkerd_config) async fn write_canary(
        &self,
        found: Option<&ConfigMap>,
        content: &CanaryContent,
    ) -> Result<(), WriteError> {
        let annotations = json!({
            MANAGED_BY_ANNOTATION: OPERATOR,
            CANARY_NAMESPACES_ANNOTATION: content.namespaces,
            CANARY_OWNER_ANNOTATION: *content.owner.1,
        });
        if let Some(found) = found.filter(|found| !content.must_replace(found)) {
            let written = self.patch_config_map(CANARY_CONFIG_MAP, &found.version, Some(&content.values), annotations);
            return written.await.map(drop);
        }
        if let Some(found) = found {
            self.delete_canary(found).await?;
        }
        let (name, uid) = &content.owner;
        // The garbage collector deletes the ConfigMap together with its LinkerdConfig.
        let owner = json!({"apiVersion": format!("{CONFIG_GROUP}/v1alpha1"), "kind": LINKERD_CONFIG_KIND,
            "name": **name, "uid": **uid});
        let metadata = json!({"name": CANARY_CONFIG_MAP, "annotations": annotations, "ownerReferences": [owner]});
        let object = json!({"metadata": metadata, "data": {"values": content.values}});
        let object: core::ConfigMap = serde_json::from_value(object).unwrap_or_default();
        let request = async { self.config_maps.create(&post_params(), &object).await };
        let result = self.fence.send(request).await;
        if let Some(label) = WriteError::result(&result) {
            self.writes.with_label_values(&[label]).inc();
        }
        result.map(drop)
    }

    /// Deletes the ConfigMap of the canary, unless it changed since it was read.
    pub(in crate::linkerd_config) async fn delete_canary(&self, found: &ConfigMap) -> Result<(), WriteError> {
        let preconditions =
            Preconditions { uid: Some(found.uid.to_string()), resource_version: Some(found.version.to_string()) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.fence.send(self.config_maps.delete(CANARY_CONFIG_MAP, &params)).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }
}
