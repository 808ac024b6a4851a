//! The edge: how one object of the API server becomes one of ours.
//!
//! In: JSON of any object of a watched kind, as a tenant may have written it. Out: the object, or the reason why it could
//! not be read, together with its metadata. A list or a watch never fails because of one object.

use std::{borrow::Cow, collections::BTreeMap, fmt, panic, sync::Arc};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time},
    jiff::Timestamp,
};
use kube::{Resource, runtime::reflector::ObjectRef};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::api::CONFIG_GROUP;

/// Of a name in Kubernetes, and of one in DNS.
pub const LONGEST_NAME: usize = 253;
/// Of a label's value, and of a kind.
pub const LONGEST_LABEL: usize = 63;

/// The reason for an object that made us panic.
pub(super) const PANICKED: &str = "reading it panicked";

/// The key of a namespaced object, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// An object as the watch delivered it.
///
/// Buffers the object's text and parses it apart from its list, so that a surprise (even a panic) in one object costs
/// only that object. Works with kube's `Api` and `watcher` like the type inside.
#[derive(Clone, Debug)]
pub enum Guarded<T> {
    Valid(T),
    Invalid { metadata: Box<ObjectMeta>, error: Arc<str> },
}

/// What cannot be used in an object that could be read: each costs only itself. For the log, so of many only the first are
/// kept, in few words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Problems {
    texts: Vec<String>,
    more: usize,
}

// === impl Problems ===

impl Problems {
    const KEPT: usize = 5;
    const LENGTH: usize = 200;

    pub fn add(&mut self, problem: fmt::Arguments<'_>) {
        if self.texts.len() == Self::KEPT {
            self.more += 1;
            return;
        }
        self.texts.push(Self::shortened(problem.to_string()));
    }

    /// As much of a text as is told.
    fn shortened(mut text: String) -> String {
        text.truncate(text.floor_char_boundary(Self::LENGTH));
        text
    }

    pub fn len(&self) -> usize {
        self.texts.len() + self.more
    }

    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts.join("; "))?;
        if self.more > 0 { write!(f, "; and {} more", self.more) } else { Ok(()) }
    }
}

// === impl NamespacedName ===

impl NamespacedName {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object that has a name and a namespace, as every namespaced object of an API server has.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }

    /// As kube-runtime calls it.
    pub fn reference<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        let name = ObjectRef::new(&self.name);
        // Of a cluster-scoped object it is none, which is not the same as an empty one.
        if self.namespace.is_empty() { name } else { name.within(&self.namespace) }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Guarded ===

impl<'de, T: DeserializeOwned> Deserialize<'de> for Guarded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let parsed = panic::catch_unwind(|| serde_json::from_str::<T>(text.get()));
        let error: Arc<str> = match parsed {
            Ok(Ok(object)) => return Ok(Self::Valid(object)),
            // It quotes what it did not expect, however long that is.
            Ok(Err(error)) => Problems::shortened(error.to_string()).into(),
            Err(_) => PANICKED.into(),
        };
        #[derive(Deserialize)]
        struct OnlyMetadata {
            #[serde(deserialize_with = "lean_metadata")]
            metadata: ObjectMeta,
        }
        let OnlyMetadata { metadata } = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        Ok(Self::Invalid { metadata: Box::new(metadata), error })
    }
}

impl<T: Resource> Resource for Guarded<T> {
    type DynamicType = T::DynamicType;
    type Scope = T::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        T::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        T::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        T::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        T::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Valid(object) => object.meta(),
            Self::Invalid { metadata, .. } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Valid(object) => object.meta_mut(),
            Self::Invalid { metadata, .. } => metadata,
        }
    }

    fn metadata_api() -> bool {
        T::metadata_api()
    }
}

/// Reads metadata without what costs most and serves nobody: of `managedFields`, often half of an object, one entry is
/// left that carries only the time of the newest `Update`, which the lag metrics need.
pub fn lean_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Lean {
        name: Option<String>,
        generate_name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
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
    let lean = Lean::deserialize(deserializer)?;
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
        annotations: lean.annotations,
        owner_references: lean.owner_references,
        finalizers: lean.finalizers,
        managed_fields: newest
            .map(|time| vec![ManagedFieldsEntry { time: Some(time), ..ManagedFieldsEntry::default() }]),
        ..ObjectMeta::default()
    })
}

/// Those of the LinkerdConfig group.
pub(super) fn config_annotations(annotations: Option<BTreeMap<String, String>>) -> BTreeMap<Box<str>, Box<str>> {
    let is_ours = |key: &str| key.strip_prefix(CONFIG_GROUP).is_some_and(|rest| rest.starts_with('/'));
    let ours = annotations.into_iter().flatten().filter(|(key, _)| is_ours(key));
    ours.map(|(key, value)| (key.into(), value.into())).collect()
}

/// When the object was last updated, to the second, by the API server's clock.
pub fn last_update(metadata: &ObjectMeta) -> Option<Timestamp> {
    let newest = metadata.managed_fields.as_ref()?.first()?;
    Some(newest.time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;
    use crate::api::ExternalWorkload;

    #[test]
    fn one_unreadable_object_costs_only_itself_in_a_list() {
        let list = r#"{"kind": "ExternalWorkloadList", "apiVersion": "workload.linkerd.io/v1beta1",
            "metadata": {"resourceVersion": "7"}, "items": [
            {"metadata": {"name": "good", "namespace": "ns"}, "spec": {"workloadIPs": [{"ip": "192.0.2.1"}]}},
            {"metadata": {"name": "bad", "namespace": "ns", "resourceVersion": "5"}, "spec": {"workloadIPs": "none"}}]}"#;
        let list: ObjectList<Guarded<ExternalWorkload>> = serde_json::from_str(list).unwrap();
        assert!(matches!(&list.items[0], Guarded::Valid(_)));
        assert!(matches!(&list.items[1], Guarded::Invalid { error, .. } if error.contains("expected a sequence")));
        assert_eq!(list.items[1].meta().name.as_deref(), Some("bad"));
        assert_eq!(list.items[1].meta().resource_version.as_deref(), Some("5"));
    }

    #[test]
    fn one_unreadable_object_costs_only_itself_in_a_watch() {
        let line = r#"{"type": "MODIFIED", "object": {"metadata": {"name": "bad", "namespace": "ns"}, "spec": 7}}"#;
        let event: WatchEvent<Guarded<ExternalWorkload>> = serde_json::from_str(line).unwrap();
        let WatchEvent::Modified(object) = event else { panic!("{event:?}") };
        assert!(matches!(&object, Guarded::Invalid { .. }));
        assert_eq!(NamespacedName::of(object.meta()), NamespacedName::new("ns", "bad"));
    }

    #[test]
    fn the_reason_is_short_though_the_object_is_long() {
        let object =
            format!(r#"{{"metadata": {{"name": "bad"}}, "spec": {{"workloadIPs": "{}"}}}}"#, "x".repeat(100_000));
        let object: Guarded<ExternalWorkload> = serde_json::from_str(&object).unwrap();
        let Guarded::Invalid { error, .. } = object else { panic!("{object:?}") };
        assert!(error.len() <= 200, "{} characters", error.len());
    }
}
