//! Decodes object metadata without `managedFields`, its largest part.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time},
    jiff::Timestamp,
};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::parameter_resource;

/// An object that is read through the metadata API, so that only its metadata is sent and stored.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct MetadataOf<K> {
    #[serde(deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

/// As [`MetadataOf`], without annotations.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct BareMetadataOf<K> {
    #[serde(deserialize_with = "metadata_without_annotations")]
    pub metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

/// As [`MetadataOf`], with only Linkerd's annotations.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct LinkerdMetadataOf<K> {
    #[serde(deserialize_with = "metadata_with_linkerds_annotations")]
    pub metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

// === impl MetadataOf ===

parameter_resource!(MetadataOf, metadata_api: true);

// === impl BareMetadataOf ===

parameter_resource!(BareMetadataOf, metadata_api: true);

// === impl LinkerdMetadataOf ===

parameter_resource!(LinkerdMetadataOf, metadata_api: true);

/// Decodes metadata and drops `managedFields`, often half of an object. One entry is kept, with only the time of the
/// newest `Update`, which the lag metrics need.
pub fn lean_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    lean::<D, BTreeMap<String, String>>(deserializer)
}

/// As [`lean_metadata`], for kinds of which no annotation is read. Tenants may write 256 KiB of annotations.
pub fn metadata_without_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    lean::<D, IgnoredAny>(deserializer)
}

/// As [`metadata_without_annotations`], for kinds of which only Linkerd's annotations are read.
fn metadata_with_linkerds_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    lean::<D, LinkerdsAnnotations>(deserializer)
}

/// Linkerd's annotations. All others are skipped while they are decoded.
struct LinkerdsAnnotations(BTreeMap<String, String>);

/// The annotations that are kept of an object.
trait KeptAnnotations {
    fn kept(self) -> Option<BTreeMap<String, String>>;
}

impl KeptAnnotations for BTreeMap<String, String> {
    fn kept(self) -> Option<Self> {
        Some(self)
    }
}

impl KeptAnnotations for IgnoredAny {
    fn kept(self) -> Option<BTreeMap<String, String>> {
        None
    }
}

impl KeptAnnotations for LinkerdsAnnotations {
    fn kept(self) -> Option<BTreeMap<String, String>> {
        Some(self.0).filter(|kept| !kept.is_empty())
    }
}

impl<'de> Deserialize<'de> for LinkerdsAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnnotationsVisitor;
        impl<'de> Visitor<'de> for AnnotationsVisitor {
            type Value = LinkerdsAnnotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut annotations: A) -> Result<Self::Value, A::Error> {
                let mut kept = BTreeMap::new();
                while let Some(key) = annotations.next_key::<Cow<'_, str>>()? {
                    if key.contains("linkerd.io/") {
                        kept.insert(key.into_owned(), annotations.next_value()?);
                    } else {
                        annotations.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(LinkerdsAnnotations(kept))
            }
        }
        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

/// Returns a resourceVersion as a number, so that versions of one kind can be compared (documented since Kubernetes 1.35,
/// and true of etcd before). `None` if it is not a number.
pub fn version_number(version: &str) -> Option<u64> {
    version.parse().ok()
}

fn lean<'de, D, A>(deserializer: D) -> Result<ObjectMeta, D::Error>
where
    D: Deserializer<'de>,
    A: Deserialize<'de> + KeptAnnotations,
{
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", bound(deserialize = "A: Deserialize<'de>"))]
    struct Lean<A> {
        name: Option<String>,
        generate_name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<A>,
        owner_references: Option<Vec<OwnerReference>>,
        finalizers: Option<Vec<String>>,
        #[serde(default)]
        managed_fields: Option<Vec<ManagedField>>,
    }
    #[derive(Deserialize)]
    struct ManagedField {
        operation: Option<String>,
        time: Option<Time>,
    }
    let lean = Lean::<A>::deserialize(deserializer)?;
    let newest = lean
        .managed_fields
        .into_iter()
        .flatten()
        .filter(|field| field.operation.as_deref() == Some("Update"))
        .filter_map(|field| field.time)
        .max_by_key(|time| time.0);
    Ok(ObjectMeta {
        name: lean.name,
        generate_name: lean.generate_name,
        namespace: lean.namespace,
        uid: lean.uid,
        resource_version: lean.resource_version,
        generation: lean.generation,
        creation_timestamp: lean.creation_timestamp,
        deletion_timestamp: lean.deletion_timestamp,
        labels: lean.labels,
        annotations: lean.annotations.and_then(KeptAnnotations::kept),
        owner_references: lean.owner_references,
        finalizers: lean.finalizers,
        managed_fields: newest
            .map(|time| vec![ManagedFieldsEntry { time: Some(time), ..ManagedFieldsEntry::default() }]),
        ..ObjectMeta::default()
    })
}

/// Returns the time of the object's last update: whole seconds, by the API server's clock.
pub fn last_update(metadata: &ObjectMeta) -> Option<Timestamp> {
    let newest = metadata.managed_fields.as_ref()?.first()?;
    Some(newest.time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_are_dropped_where_none_is_read_whatever_their_type() {
        let object = json!({"name": "web", "labels": {"app": "web"}, "annotations": {"note": "text", "number": 7}});
        let metadata = metadata_without_annotations(&object).unwrap();
        assert_eq!((metadata.name.as_deref(), metadata.annotations), (Some("web"), None));
        assert_eq!(metadata.labels.unwrap().len(), 1);
        assert!(lean_metadata(&object).is_err(), "a number is not a valid annotation");
    }

    #[test]
    fn only_linkerds_annotations_are_decoded() {
        let object =
            json!({"name": "web", "annotations": {"linkerd.io/inject": "enabled", "note": 7, "a.b/c": "text"}});
        let metadata = metadata_with_linkerds_annotations(&object).unwrap();
        let kept = BTreeMap::from([("linkerd.io/inject".to_owned(), "enabled".to_owned())]);
        assert_eq!((metadata.name.as_deref(), metadata.annotations), (Some("web"), Some(kept)));
        let none = |annotations: serde_json::Value| {
            metadata_with_linkerds_annotations(json!({"annotations": annotations})).unwrap().annotations
        };
        assert_eq!([none(json!(null)), none(json!({})), none(json!({"note": "text"}))], [None, None, None]);
    }
}
