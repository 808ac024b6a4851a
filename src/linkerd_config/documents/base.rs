//! The base: the last document of Linkerd's installer, and the document declared over it, saved as a
//! ControllerRevision. Pure.
//!
//! Always holds: the installer's text is saved unchanged, so that it can be restored byte for byte, until allowed
//! changes of other writers are merged into it; revision numbers increase; a base belongs to the ConfigMap with its
//! UID, not to a later one of the same name.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    text::{hex, truncate},
    values::{Document, InjectionHashes, InvalidDocument, Reading},
};

/// The label that names the ConfigMap of a revision.
const TARGET_LABEL: &str = "config.linkerd.io/base-of";
/// The number of revisions to keep: the current one, and earlier ones for inspection.
pub(in crate::linkerd_config) const MAX_REVISIONS: usize = 5;

/// One revision of the base.
#[derive(Clone, Debug)]
pub struct Base {
    pub revision: i64,
    pub text: Arc<str>,
    pub document: Document,
    /// The declared document; during a canary, the one that stays in force. After a failure, the ConfigMap has a
    /// fallback document instead.
    pub effective: Document,
    /// Whether the whole list `proxy.additionalEnv` is declared, and not only variables in it.
    pub replaces_environment: bool,
    /// The value of the annotation with the installer's name and version.
    pub created_by: Option<String>,
    /// The UID of the ConfigMap.
    pub uid: Arc<str>,
    /// The injection hashes of both documents, and of the documents of earlier revisions.
    pub injection_hashes: InjectionHashes,
}

impl Base {
    /// Returns the base of a text, without an overlay.
    ///
    /// # Errors
    /// When the text is not a values document of Linkerd.
    pub fn new(revision: i64, text: &str, created_by: Option<&str>) -> Result<Self, InvalidDocument> {
        let (document, _) = Document::parse(text)?.split_injection_hash();
        let (created_by, uid) = (created_by.map(str::to_owned), Arc::from(""));
        let (text, effective) = (text.into(), document.clone());
        let injection_hashes = InjectionHashes::default();
        let replaces_environment = false;
        Ok(Self { revision, text, effective, document, replaces_environment, created_by, uid, injection_hashes })
    }

    /// Whether both have the same content, regardless of the revision.
    pub(in crate::linkerd_config) fn eq_ignoring_version(&self, other: &Self) -> bool {
        let Self { revision: _, text, document: _, effective, created_by, uid, .. } = self;
        (text, effective, created_by, uid) == (&other.text, &other.effective, &other.created_by, &other.uid)
    }

    /// Returns the label selector of a ConfigMap's revisions.
    pub fn selector(config_map: &str) -> String {
        format!("{TARGET_LABEL}={}", label_value(config_map))
    }

    /// Returns the name of the ControllerRevision of a revision.
    pub(in crate::linkerd_config) fn name_at(config_map: &str, revision: i64) -> String {
        format!("{config_map}-base-{revision}")
    }

    pub(in crate::linkerd_config) fn to_object(&self, config_map: &str) -> ControllerRevision {
        let labels = BTreeMap::from([(TARGET_LABEL.to_owned(), label_value(config_map))]);
        let effective = (self.effective != self.document).then(|| self.effective.to_yaml());
        ControllerRevision {
            metadata: ObjectMeta {
                name: Some(Self::name_at(config_map, self.revision)),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(json!({
                "values": *self.text,
                "effective": effective,
                "replacesEnvironment": self.replaces_environment,
                "createdBy": self.created_by,
                "uid": *self.uid,
                "injectionHash": self.injection_hashes.of(&self.document),
                "effectiveInjectionHash": self.injection_hashes.of(&self.effective),
            }))),
            revision: self.revision,
        }
    }

    /// Returns the base in a ConfigMap's newest revision; `None` without revisions.
    ///
    /// # Errors
    /// When the newest revision cannot be read. An older one would be the wrong base.
    pub fn newest(revisions: &[ControllerRevision]) -> Result<Option<Self>, String> {
        let Some(newest) = revisions.iter().max_by_key(|object| object.revision) else { return Ok(None) };
        let mut base = Self::from_object(newest)?;
        let others = revisions.iter().filter(|object| object.revision != newest.revision);
        for other in others.filter_map(|object| Self::from_object(object).ok()) {
            base.injection_hashes.extend(&other.injection_hashes);
        }
        Ok(Some(base))
    }

    /// Returns the base at a revision; `None` if the revision does not exist or cannot be read.
    pub fn at(revisions: &[ControllerRevision], wanted: i64) -> Option<Self> {
        Self::from_object(revisions.iter().find(|object| object.revision == wanted)?).ok()
    }

    fn from_object(object: &ControllerRevision) -> Result<Self, String> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let unreadable = |why: &str| format!("ControllerRevision {name}, which holds the base, cannot be read: {why}");
        let data = object.data.as_ref().map(|RawExtension(data)| data).ok_or_else(|| unreadable("it is empty"))?;
        let text = |field: &str| data.get(field).and_then(Value::as_str);
        let values = text("values").ok_or_else(|| unreadable("it has no values"))?;
        let mut base =
            Self::new(object.revision, values, text("createdBy")).map_err(|error| unreadable(&error.to_string()))?;
        if let Some(effective) = text("effective") {
            base.effective =
                Document::parse(effective).map_err(|error| unreadable(&error.to_string()))?.split_injection_hash().0;
        }
        base.replaces_environment = data.get("replacesEnvironment").and_then(Value::as_bool).unwrap_or_default();
        base.uid = text("uid").unwrap_or_default().into();
        for (document, field) in [(&base.effective, "effectiveInjectionHash"), (&base.document, "injectionHash")] {
            base.injection_hashes.learn(document, text(field).unwrap_or_default());
        }
        Ok(base)
    }
}

/// Returns the injection hash of Pods without LINKERD_CONFIG_HASH: the hash of the document before our first
/// write.
pub fn baseline(document: Option<&Reading>, base: Option<&Base>) -> Option<String> {
    let document = match (document, base) {
        (_, Some(base)) => &base.document,
        (Some(Ok((document, _))), None) => document,
        _ => return None,
    };
    Some(base.map_or_else(InjectionHashes::default, |base| base.injection_hashes.clone()).of(document))
}

/// Returns the name as a label value. A name that is too long for a label is truncated, with a hash appended.
pub(in crate::linkerd_config) fn label_value(config_map: &str) -> String {
    const LONGEST: usize = 63;
    const KEPT: usize = 46;
    if config_map.len() <= LONGEST {
        return config_map.to_owned();
    }
    let digest = hex(Sha256::digest(config_map));
    format!("{}-{}", config_map.get(..KEPT).unwrap_or_default().trim_end_matches(['.', '-']), truncate(&digest, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_revision_is_read_back_and_an_older_one_never_replaces_it() {
        let mut base = Base::new(3, "proxy: {uid: 1}\n# as it was\n", Some("linkerd/helm 1")).unwrap();
        base.uid = "uid".into();
        base.effective = Document::parse("proxy: {uid: 2}").unwrap();
        base.injection_hashes.learn(&base.effective, "v2_0123456789abcdef");
        let object = base.to_object("linkerd-config");
        let old = Base::new(2, "{}", None).unwrap().to_object("linkerd-config");
        let read = Base::newest(&[object.clone(), old.clone()]).unwrap().unwrap();
        assert!(read.eq_ignoring_version(&base) && read.revision == 3);
        assert_eq!(read.injection_hashes.of(&base.effective), "v2_0123456789abcdef");
        assert_eq!(read.injection_hashes.of(&base.document), base.document.injection_hash().to_string());
        assert!(Base::newest(&[]).unwrap().is_none());
        for data in
            [None, Some(json!({})), Some(json!({"values": "a: ["})), Some(json!({"values": "{}", "effective": "["}))]
        {
            let broken = ControllerRevision { data: data.map(RawExtension), ..object.clone() };
            assert!(Base::newest(&[old.clone(), broken]).is_err());
        }
    }

    #[test]
    fn a_name_that_is_too_long_for_a_label_is_hashed() {
        assert_eq!(Base::selector("linkerd-config"), "config.linkerd.io/base-of=linkerd-config");
        let [one, other] = ["a", "b"].map(|last| label_value(&format!("{}{last}", "x".repeat(200))));
        assert!(one != other && one.len() <= 63);
    }
}
