//! Documents that were reverted as drift, and are kept as ControllerRevisions. Pure.
//!
//! Always holds: a text that may contain a private key is not kept, because ControllerRevisions may have other readers
//! than the ConfigMap; a kept document is never read as a base, because it has another label.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use serde_json::{Value, json};

use crate::{
    linkerd_config::documents::base::label_value,
    values::{Document, LONGEST},
};

/// The label that names the ConfigMap.
const TARGET_LABEL: &str = "config.linkerd.io/reverted-of";
/// The number of reverted documents to keep.
pub(in crate::linkerd_config) const MAX_REVERTED: usize = 5;
/// Parts of a text that may contain a private key, in lower case. The last one is the beginning of a PEM text in
/// Base64.
const SECRETS: [&str; 2] = ["private key", "ls0tls1crudjti"];

/// Returns the label selector of a ConfigMap's reverted documents.
pub(in crate::linkerd_config) fn selector(config_map: &str) -> String {
    format!("{TARGET_LABEL}={}", label_value(config_map))
}

/// Returns the object that keeps a text.
pub(in crate::linkerd_config) fn to_object(
    config_map: &str,
    revision: i64,
    text: &str,
    manager: &str,
) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{config_map}-reverted-{revision}")),
            labels: Some(BTreeMap::from([(TARGET_LABEL.to_owned(), label_value(config_map))])),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({ "values": text, "manager": manager }))),
        revision,
    }
}

/// Whether an object keeps this text.
pub(in crate::linkerd_config) fn has_text(object: &ControllerRevision, text: &str) -> bool {
    let data = object.data.as_ref().map(|RawExtension(data)| data);
    data.and_then(|data| data.get("values")).and_then(Value::as_str) == Some(text)
}

/// Whether a text may be kept.
pub(in crate::linkerd_config) fn may_be_kept(text: &str) -> bool {
    if text.is_empty() || text.len() > LONGEST {
        return false;
    }
    let lower = text.to_ascii_lowercase();
    let has_key = match Document::parse(text) {
        Ok(document) => !document.private_keys().is_empty(),
        Err(_) => lower.contains("keypem"),
    };
    !has_key && !SECRETS.iter().any(|secret| lower.contains(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_may_contain_a_private_key_or_is_too_long_is_not_kept() {
        for text in ["proxy: {logLevel: debug}", "proxy: [", "# a comment"] {
            assert!(may_be_kept(text), "{text}");
        }
        for text in [
            "",
            "a: |\n  -----BEGIN EC PRIVATE KEY-----\n",
            "proxy: [\nidentity: {issuer: {tls: {keyPEM: x}}}",
            "identity: {issuer: {tls: {keypem: x}}}",
            "key: LS0tLS1CRUdJTiBQUklWQVRF",
            &"x".repeat(LONGEST + 1),
        ] {
            assert!(!may_be_kept(text), "{}", &text[..text.len().min(80)]);
        }
    }

    #[test]
    fn a_reverted_document_is_labelled_apart_from_bases() {
        let object = to_object("linkerd-config", 7, "proxy: {}", "kubectl-edit");
        assert_eq!(object.metadata.name.as_deref(), Some("linkerd-config-reverted-7"));
        let labels = object.metadata.labels.clone().unwrap();
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [(TARGET_LABEL.to_owned(), "linkerd-config".to_owned())]);
        assert!(has_text(&object, "proxy: {}") && !has_text(&object, "proxy: {} "));
        assert_eq!(selector("linkerd-config"), "config.linkerd.io/reverted-of=linkerd-config");
    }
}
