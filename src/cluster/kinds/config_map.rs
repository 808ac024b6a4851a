//! ConfigMaps of Linkerd's namespace: the configuration of the mesh, its field managers, and the bundle of trust
//! anchors.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::{
    api::core::v1 as core,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
    jiff::Timestamp,
};
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    api::{
        CONFIG_GROUP, CREATED_BY_ANNOTATION, LINKERD_CONFIG_KIND, MANAGED_BY_ANNOTATION, NamespacedName, OPERATOR,
        TRUST_ROOTS, TRUST_ROOTS_KEY,
    },
    cluster::{
        Problems, Projected,
        index::store::{Store, Stored},
    },
    text::{truncate, truncated},
};

/// The key of the document in Linkerd's ConfigMap.
const VALUES: &str = "values";
/// The key of the document's predecessor, until stable-2.9.
const LEGACY: &str = "global";
/// The maximum length of a manager's name, in bytes; that of the API server.
const LONGEST_MANAGER: usize = 128;

/// The label of a ConfigMap that trust-manager writes.
const TRUST_MANAGER_LABEL: &str = "trust.cert-manager.io/bundle";

/// A ConfigMap, reduced to the fields that the LinkerdConfig controller and the proxy injector read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMap {
    pub key: NamespacedName,
    pub uid: Arc<str>,
    pub version: Arc<str>,
    pub values: Option<Arc<str>>,
    /// The ConfigMap belongs to a Linkerd version that is too old to be configured by `values`.
    pub legacy: bool,
    pub immutable: bool,
    /// An owner reference would have it deleted together with a LinkerdConfig. The Go project of that name wrote such
    /// references.
    pub owned: bool,
    /// The annotations of the LinkerdConfig group, and `linkerd.io/created-by`.
    pub annotations: HashMap<String, String>,
    /// The field managers of `values`, the latest first.
    pub writers: Vec<FieldManager>,
    pub bundle: Option<Arc<str>>,
    /// The bundle is in `binaryData`, which the kubelet does not read for the variables of the control plane's Pods.
    pub has_binary_bundle: bool,
    /// When the bundle was last written, by the managed fields.
    pub bundle_written: Option<Timestamp>,
    /// The field manager that wrote the bundle last.
    pub bundle_writer: Option<Arc<str>>,
    /// The Bundle from which trust-manager writes the ConfigMap, if it does.
    pub trust_manager_source: Option<Arc<str>>,
}

/// A manager of the field `data.values`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldManager {
    pub manager: String,
    pub time: Option<Timestamp>,
}

/// A ConfigMap as the API server sends it.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "core::ConfigMap")]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapObject {
    metadata: ObjectMeta,
    #[serde(default)]
    data: Option<HashMap<String, String>>,
    #[serde(default)]
    binary_data: Option<HashMap<String, IgnoredAny>>,
    #[serde(default)]
    immutable: Option<bool>,
}

// === impl ConfigMap ===

impl Projected for ConfigMap {
    type Wire = ConfigMapObject;

    fn project(wire: ConfigMapObject, _: &mut Problems) -> Self {
        let ConfigMapObject { metadata, data, binary_data, immutable } = wire;
        let mut data = data.unwrap_or_default();
        let owners = metadata.owner_references.iter().flatten();
        let owned = owners
            .into_iter()
            .any(|owner| owner.kind == LINKERD_CONFIG_KIND && owner.api_version.starts_with(CONFIG_GROUP));
        let entries = || metadata.managed_fields.iter().flatten();
        let managers = entries().filter(|entry| owns(entry, VALUES));
        let mut writers: Vec<FieldManager> = managers
            .map(|entry| FieldManager {
                manager: entry.manager.clone().unwrap_or_default(),
                time: entry.time.as_ref().map(|time| time.0),
            })
            .collect();
        writers.sort_by_key(|writer| std::cmp::Reverse(writer.time));
        let bundle = entries()
            .filter(|entry| owns(entry, TRUST_ROOTS_KEY))
            .max_by_key(|entry| entry.time.as_ref().map(|it| it.0));
        let bundle_written = bundle.and_then(|entry| Some(entry.time.as_ref()?.0));
        let bundle_writer = bundle.and_then(|entry| entry.manager.as_deref());
        let bundle_writer = bundle_writer.map(|manager| Arc::from(truncate(manager, LONGEST_MANAGER)));
        let trust_manager_source = trust_manager_source(&metadata).map(Arc::from);
        let kept = |key: &String| key.starts_with(CONFIG_GROUP) || key == CREATED_BY_ANNOTATION;
        Self {
            key: NamespacedName::of(&metadata),
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            legacy: data.contains_key(LEGACY) && !data.contains_key(VALUES),
            values: data.remove(VALUES).map(Arc::from),
            bundle: data.remove(TRUST_ROOTS_KEY).map(Arc::from),
            has_binary_bundle: binary_data.is_some_and(|data| data.contains_key(TRUST_ROOTS_KEY)),
            immutable: immutable.unwrap_or_default(),
            owned,
            annotations: metadata.annotations.unwrap_or_default().into_iter().filter(|(key, _)| kept(key)).collect(),
            writers,
            bundle_written,
            bundle_writer,
            trust_manager_source,
        }
    }
}

impl Stored for ConfigMap {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        self.key.clone()
    }

    /// A manager that owns the bundle gets a new time for every field that it changes. So the time is kept while the
    /// bundle does not change.
    fn inherit(&mut self, known: &Self) {
        if known.bundle == self.bundle {
            self.bundle_written = known.bundle_written;
            self.bundle_writer.clone_from(&known.bundle_writer);
        }
    }

    /// Whether more than the resourceVersion differs.
    fn is_change(&self, known: &Self) -> bool {
        Self { version: Arc::clone(&known.version), ..self.clone() } != *known
    }
}

impl ConfigMap {
    /// Whether the operator has written the ConfigMap.
    pub fn is_operators(&self) -> bool {
        self.annotations.get(MANAGED_BY_ANNOTATION).is_some_and(|it| it == OPERATOR)
    }

    /// Names the document for people: the ConfigMap, the key, and the field manager that wrote it last, if known.
    pub fn describe_values(&self) -> String {
        let writer = self.writers.first().map(|writer| truncate(&writer.manager, LONGEST_MANAGER));
        let writer = writer.filter(|manager| !manager.is_empty());
        let written = writer.map(|manager| format!(" (last written by {manager})")).unwrap_or_default();
        format!("key {VALUES} of ConfigMap {}{written}", self.key)
    }
}

impl Store<ConfigMap> {
    /// The trust anchors of the mesh in the namespace.
    pub fn trust_roots(&self, namespace: &str) -> Option<&Arc<ConfigMap>> {
        self.find(namespace, TRUST_ROOTS)
    }
}

/// Returns the Bundle from which trust-manager writes a ConfigMap, if it does: it labels what it writes
/// (<https://cert-manager.io/docs/trust/trust-manager/>).
pub fn trust_manager_source(metadata: &ObjectMeta) -> Option<String> {
    metadata.labels.as_ref()?.get(TRUST_MANAGER_LABEL).map(|name| truncated(name.clone(), LONGEST_MANAGER))
}

/// Whether the manager of these fields wrote the key of `data`.
fn owns(entry: &ManagedFieldsEntry, key: &str) -> bool {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
    fields.and_then(|fields| fields.get("f:data")?.get(format!("f:{key}"))).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{State, Watched};

    fn config_map(name: &str, metadata: &Value, data: &Value) -> ConfigMap {
        let mut object = json!({"metadata": {"name": name, "namespace": "linkerd"}, "data": data});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        ConfigMap::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
    }

    #[test]
    fn only_managers_of_the_document_are_writers_the_latest_first() {
        let entry = |manager: &str, time: &str, fields: Value| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields});
        let values = json!({"f:data": {".": {}, "f:values": {}}});
        let metadata = json!({"managedFields": [
            entry("helm", "2026-01-01T00:00:00Z", values.clone()),
            entry("kubectl-label", "2026-01-03T00:00:00Z", json!({"f:metadata": {}})),
            entry("kubectl-edit", "2026-01-02T00:00:00Z", values),
            entry("other", "2026-01-04T00:00:00Z", json!({"f:data": {"f:other": {}}}))]});
        let map = config_map("linkerd-config", &metadata, &json!({"values": "a: 1"}));
        let managers: Vec<_> = map.writers.iter().map(|writer| writer.manager.as_str()).collect();
        assert_eq!(managers, ["kubectl-edit", "helm"]);
        let described = "key values of ConfigMap linkerd/linkerd-config (last written by kubectl-edit)";
        assert_eq!(map.describe_values(), described);
        let map = config_map("linkerd-config", &json!({}), &json!({}));
        assert_eq!(map.describe_values(), "key values of ConfigMap linkerd/linkerd-config");
    }

    #[test]
    fn the_bundle_has_its_latest_writer_with_the_time_and_the_source_of_trust_manager() {
        let entry = |manager: &str, time: &str, fields: Value| json!({"manager": manager, "operation": "Update", "time": time, "fieldsV1": {"f:data": fields}});
        let bundle = json!({"f:ca-bundle.crt": {}});
        let metadata = json!({"managedFields": [
            entry("first", "2026-01-01T00:00:00Z", bundle.clone()),
            entry("second", "2026-01-02T00:00:00Z", bundle),
            entry("third", "2026-01-03T00:00:00Z", json!({"f:other": {}}))]});
        let read = |metadata: &Value| config_map(TRUST_ROOTS, metadata, &json!({TRUST_ROOTS_KEY: "pem"}));
        let map = read(&metadata);
        let written = (map.bundle_written, map.bundle_writer.as_deref(), map.trust_manager_source);
        assert_eq!(written, (Some("2026-01-02T00:00:00Z".parse().unwrap()), Some("second"), None));
        assert_eq!(read(&json!({})).bundle_written, None);
        // trust-manager's documentation, and its constant BundleLabelKey.
        let of_trust_manager = read(&json!({"labels": {"trust.cert-manager.io/bundle": "roots"}}));
        assert_eq!(of_trust_manager.trust_manager_source.as_deref(), Some("roots"));
    }

    #[test]
    fn the_bundle_keeps_its_time_until_its_content_changes() {
        let mut state = State::default();
        let mut written_after = |time: &str, pem: &str| {
            let fields = json!({"f:data": {"f:ca-bundle.crt": {}}});
            let entry = json!({"manager": "m", "operation": "Update", "time": time, "fieldsV1": fields});
            config_map(TRUST_ROOTS, &json!({"managedFields": [entry]}), &json!({TRUST_ROOTS_KEY: pem}))
                .apply(&mut state);
            state.config_maps.trust_roots("linkerd").unwrap().bundle_written.unwrap().to_string()
        };
        assert_eq!(written_after("2026-01-01T00:00:00Z", "old"), "2026-01-01T00:00:00Z");
        assert_eq!(written_after("2026-01-02T00:00:00Z", "old"), "2026-01-01T00:00:00Z");
        assert_eq!(written_after("2026-01-03T00:00:00Z", "new"), "2026-01-03T00:00:00Z");
    }

    #[test]
    fn a_new_version_alone_is_no_change_and_is_stored() {
        let mut state = State::default();
        let annotations = json!({"annotations": {"config.linkerd.io/config-hash": "h", "linkerd.io/created-by": "c", "x": "y"}, "resourceVersion": "1"});
        let first = config_map("linkerd-config", &annotations, &json!({"values": "a: 1"}));
        assert_eq!((first.annotations.len(), first.legacy, first.owned), (2, false, false));
        first.apply(&mut state);
        let touched = json!({"annotations": {"config.linkerd.io/config-hash": "h", "linkerd.io/created-by": "c", "x": "z"}, "resourceVersion": "2"});
        assert!(config_map("linkerd-config", &touched, &json!({"values": "a: 1"})).apply(&mut state).is_none());
        let key = NamespacedName::new("linkerd", "linkerd-config");
        assert_eq!(&*state.config_maps.get(&key).unwrap().version, "2", "a write is conditional on the latest version");
        let owner = json!({"ownerReferences": [{"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "name": "a", "uid": "u"}]});
        let old = config_map("linkerd-config", &owner, &json!({"global": "{}"}));
        assert!(old.owned && old.legacy);
    }
}
