//! What the installer of Linkerd wrote last, and what was declared over it, kept as a ControllerRevision. Pure.
//!
//! Always holds: the installer's text is kept as it was written, so that it can be put back to the byte; revisions grow; it is of
//! one ConfigMap, by its UID, and says nothing about another of the same name.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::values::{Document, InvalidDocument};

/// Which ConfigMap a revision is the base of.
const TARGET_LABEL: &str = "config.linkerd.io/base-of";
/// As many are kept: the one in use, and those before it for people to look at.
pub(super) const KEPT: usize = 5;

#[derive(Clone, Debug)]
pub struct Base {
    pub revision: i64,
    pub text: Arc<str>,
    pub document: Document,
    /// What was declared over it: the document that shall be in the ConfigMap.
    pub effective: Document,
    /// The annotation by which installers say who they are.
    pub created_by: Option<String>,
    /// Of the ConfigMap.
    pub uid: Arc<str>,
}

impl Base {
    /// Of a text over which nothing is declared yet.
    ///
    /// # Errors
    /// When it is no document of Linkerd's.
    pub fn new(revision: i64, text: &str, created_by: Option<&str>) -> Result<Self, InvalidDocument> {
        let (document, _) = Document::parse(text)?.split_config_hash();
        let (created_by, uid) = (created_by.map(str::to_owned), Arc::from(""));
        Ok(Self { revision, text: text.into(), effective: document.clone(), document, created_by, uid })
    }

    /// Whether another revision would say the same.
    pub(super) fn eq_ignoring_version(&self, other: &Self) -> bool {
        let Self { revision: _, text, document: _, effective, created_by, uid } = self;
        (text, effective, created_by, uid) == (&other.text, &other.effective, &other.created_by, &other.uid)
    }

    /// The labels of a ConfigMap's revisions.
    pub fn selector(config_map: &str) -> String {
        format!("{TARGET_LABEL}={}", label(config_map))
    }

    pub(super) fn to_object(&self, config_map: &str) -> ControllerRevision {
        let labels = BTreeMap::from([(TARGET_LABEL.to_owned(), label(config_map))]);
        let effective = (self.effective != self.document).then(|| self.effective.to_yaml());
        ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!("{config_map}-base-{}", self.revision)),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(json!({
                "values": *self.text,
                "effective": effective,
                "createdBy": self.created_by,
                "uid": *self.uid,
            }))),
            revision: self.revision,
        }
    }

    /// The newest of a ConfigMap's revisions; `None` where there is none.
    ///
    /// # Errors
    /// When the newest is one that cannot be read: an older one would be the wrong one.
    pub fn newest(revisions: &[ControllerRevision]) -> Result<Option<Self>, String> {
        revisions.iter().max_by_key(|object| object.revision).map(Self::read).transpose()
    }

    /// The documents that were declared at other revisions, of those that lay over the same document of the same ConfigMap, and
    /// can be read: what worked for another Linkerd may not work for this one.
    pub fn declared_at(&self, revisions: &[ControllerRevision], wanted: &[i64]) -> Vec<Document> {
        let declared = |revision: &i64| {
            let base = Self::read(revisions.iter().find(|object| object.revision == *revision)?).ok()?;
            (base.uid == self.uid && base.document == self.document).then_some(base.effective)
        };
        wanted.iter().filter_map(declared).collect()
    }

    fn read(object: &ControllerRevision) -> Result<Self, String> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let unreadable = |why: &str| format!("ControllerRevision {name}, which holds the base, cannot be read: {why}");
        let data = object.data.as_ref().map(|RawExtension(data)| data).ok_or_else(|| unreadable("it is empty"))?;
        let text = |field: &str| data.get(field).and_then(Value::as_str);
        let values = text("values").ok_or_else(|| unreadable("it has no values"))?;
        let mut base =
            Self::new(object.revision, values, text("createdBy")).map_err(|error| unreadable(&error.to_string()))?;
        if let Some(effective) = text("effective") {
            base.effective =
                Document::parse(effective).map_err(|error| unreadable(&error.to_string()))?.split_config_hash().0;
        }
        base.uid = text("uid").unwrap_or_default().into();
        Ok(base)
    }
}

/// A label's value is shorter than a name may be.
fn label(config_map: &str) -> String {
    const LONGEST: usize = 63;
    const KEPT: usize = 46;
    if config_map.len() <= LONGEST {
        return config_map.to_owned();
    }
    let hash: String = Sha256::digest(config_map).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", config_map.get(..KEPT).unwrap_or_default().trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_revision_is_read_back_or_nothing_is() {
        let mut base = Base::new(3, "proxy: {uid: 1}\n# as it was\n", Some("linkerd/helm 1")).unwrap();
        base.uid = "uid".into();
        base.effective = Document::parse("proxy: {uid: 2}").unwrap();
        let object = base.to_object("linkerd-config");
        let old = Base::new(2, "{}", None).unwrap().to_object("linkerd-config");
        let read = Base::newest(&[object.clone(), old.clone()]).unwrap().unwrap();
        assert!(read.eq_ignoring_version(&base) && read.revision == 3);
        assert!(Base::newest(&[]).unwrap().is_none());
        for data in
            [None, Some(json!({})), Some(json!({"values": "a: ["})), Some(json!({"values": "{}", "effective": "["}))]
        {
            let broken = ControllerRevision { data: data.map(RawExtension), ..object.clone() };
            assert!(Base::newest(&[old.clone(), broken]).is_err());
        }
    }

    #[test]
    fn a_name_that_is_no_label_has_one_all_the_same() {
        assert_eq!(Base::selector("linkerd-config"), "config.linkerd.io/base-of=linkerd-config");
        let [one, other] = ["a", "b"].map(|last| label(&format!("{}{last}", "x".repeat(200))));
        assert!(one != other && one.len() <= 63);
    }
}
