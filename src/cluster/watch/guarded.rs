//! Decodes each object of a list or a watch separately.
//!
//! In: the JSON of an object of a watched kind, with content that tenants control. Out: the object, or its metadata and
//! the reason why the object cannot be read. An invalid object does not fail its list or watch.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::DynamicResourceScope};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    api::lean_metadata,
    cluster::Problems,
    contain::{Work, contain},
};

/// An object as the watch delivered it.
///
/// Buffers the object's text and parses it separately from its list, so that an error or a panic affects only that
/// object. Works with kube's `Api` and `watcher` like `T`.
#[derive(Clone, Debug)]
pub(crate) enum Guarded<T> {
    Valid(T),
    Invalid { metadata: Box<ObjectMeta>, error: Arc<str> },
}

// === impl Guarded ===

impl<'de, T: DeserializeOwned> Deserialize<'de> for Guarded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let parsed = contain(Work::Reading, || serde_json::from_str::<T>(text.get()));
        let error: Arc<str> = match parsed {
            Ok(Ok(object)) => return Ok(Self::Valid(object)),
            // The error quotes the unexpected value, which can be long.
            Ok(Err(error)) => Problems::shortened(error.to_string()).into(),
            Err(panicked) => panicked.to_string().into(),
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
    /// Determined at run time, so that one function can watch all kinds.
    type Scope = DynamicResourceScope;

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

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;
    use crate::api::{ExternalWorkload, NamespacedName};

    #[test]
    fn an_unreadable_object_does_not_fail_its_list() {
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
    fn an_unreadable_object_does_not_fail_its_watch() {
        let line = r#"{"type": "MODIFIED", "object": {"metadata": {"name": "bad", "namespace": "ns"}, "spec": 7}}"#;
        let event: WatchEvent<Guarded<ExternalWorkload>> = serde_json::from_str(line).unwrap();
        let WatchEvent::Modified(object) = event else { panic!("{event:?}") };
        assert!(matches!(&object, Guarded::Invalid { .. }));
        assert_eq!(NamespacedName::of(object.meta()), NamespacedName::new("ns", "bad"));
    }

    #[test]
    fn the_error_is_short_even_if_the_object_is_long() {
        let object =
            format!(r#"{{"metadata": {{"name": "bad"}}, "spec": {{"workloadIPs": "{}"}}}}"#, "x".repeat(100_000));
        let object: Guarded<ExternalWorkload> = serde_json::from_str(&object).unwrap();
        let Guarded::Invalid { error, .. } = object else { panic!("{object:?}") };
        assert!(error.len() <= 200, "{} characters", error.len());
    }
}
