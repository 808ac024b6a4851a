//! The documents of a canary: the one in force for all other namespaces, and the declared one. Pure.
//!
//! In: the declared document, the saved base, the ConfigMap of the mesh. Out: the document that stays in force, and the
//! content of the canary's ConfigMap. Always holds: the trust anchors are never held back, and neither are the
//! installer's values, except where the document in force declares a value. In `proxy.additionalEnv` it declares single
//! variables, unless `spec.values` declares the whole list.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::decision::WrittenCanary;
use crate::{
    api::{
        CANARY_NAMESPACES_ANNOTATION,
        linkerd_config::{
            ProxyShapeStatus,
            annotations::{CANARY_OWNER_ANNOTATION, CONFIG_HASH_ANNOTATION},
        },
    },
    cluster::kinds::config_map::ConfigMap,
    linkerd_config::{
        documents::{
            base::Base,
            overlay::{proxy_shape, proxy_version},
        },
        revert::redeclare::redeclare,
    },
    values::Document,
};

/// A declared document that is held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryDocument {
    pub hash: String,
    /// The text for the ConfigMap.
    pub values: String,
    pub proxy_version: Option<String>,
    pub proxy_shape: Option<ProxyShapeStatus>,
}

/// The inputs of the document in force.
pub(in crate::linkerd_config) struct HeldInput<'a> {
    /// The saved base.
    pub(in crate::linkerd_config) saved: Option<&'a Base>,
    pub(in crate::linkerd_config) live: &'a ConfigMap,
    /// The document in the ConfigMap.
    pub(in crate::linkerd_config) found: Option<&'a Document>,
    /// Whether the resource was never active before.
    pub(in crate::linkerd_config) first_time: bool,
    /// The installer's present document.
    pub(in crate::linkerd_config) installed: &'a Document,
    pub(in crate::linkerd_config) declared: &'a Document,
}

/// The content of the canary's ConfigMap.
pub(in crate::linkerd_config) struct CanaryContent {
    pub(in crate::linkerd_config) values: String,
    /// The label selector of the namespaces, as JSON.
    pub(in crate::linkerd_config) namespaces: String,
    /// The name and UID of the LinkerdConfig that owns it.
    pub(in crate::linkerd_config) owner: (Arc<str>, Arc<str>),
}

/// Returns the document of all other namespaces during a canary: the installer's present document with the values that
/// were declared at our last write, and with the trust anchors of the declared document.
pub(in crate::linkerd_config) fn held(input: &HeldInput<'_>) -> Document {
    let HeldInput { saved, live, found, first_time, installed, declared } = *input;
    let written = live.annotations.get(CONFIG_HASH_ANNOTATION);
    let is_written = |document: &Document| written == Some(&document.hash().to_string());
    let is_whole = saved.is_some_and(|base| base.replaces_environment);
    let last = saved.map(|base| match found {
        // The base of a rollback has the document that failed. The ConfigMap has the one before it.
        Some(found) if !is_written(&base.effective) && is_written(found) => (&base.document, found),
        // The base was saved, and the first write of the ConfigMap did not happen.
        _ if first_time && written.is_none() => (&base.document, &base.document),
        _ => (&base.document, &base.effective),
    });
    let (installed_then, in_force) = last.unwrap_or((installed, installed));
    redeclare(installed, installed_then, in_force, declared, is_whole)
}

// === impl CanaryDocument ===

impl CanaryDocument {
    pub(in crate::linkerd_config) fn new(declared: &Document, hash: String) -> Self {
        let values = declared.with_injection_hash(&hash).to_yaml();
        Self { hash, values, proxy_version: proxy_version(declared), proxy_shape: Some(proxy_shape(declared)) }
    }
}

// === impl CanaryContent ===

impl CanaryContent {
    pub(super) fn new(document: &CanaryDocument, namespaces: &LabelSelector, owner: (Arc<str>, Arc<str>)) -> Self {
        let namespaces = serde_json::to_string(namespaces).unwrap_or_default();
        Self { values: document.values.clone(), namespaces, owner }
    }

    /// Compares the content with the existing ConfigMap.
    pub(super) fn compare(&self, found: Option<&ConfigMap>) -> WrittenCanary {
        let Some(found) = found else { return WrittenCanary::Absent };
        if !found.is_operators() {
            return WrittenCanary::Foreign;
        }
        let has = |annotation: &str, value: &str| found.annotations.get(annotation).is_some_and(|it| it == value);
        let is_current = found.values.as_deref() == Some(&*self.values)
            && has(CANARY_NAMESPACES_ANNOTATION, &self.namespaces)
            && has(CANARY_OWNER_ANNOTATION, &self.owner.1);
        if is_current { WrittenCanary::Current } else { WrittenCanary::Outdated }
    }

    /// Whether the ConfigMap cannot be changed to this content, so that it must be deleted first.
    pub(in crate::linkerd_config) fn must_replace(&self, found: &ConfigMap) -> bool {
        found.immutable || found.annotations.get(CANARY_OWNER_ANNOTATION).is_none_or(|owner| **owner != *self.owner.1)
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
