//! Linkerd's `ServiceProfile`: the routes of a Service, its retry budget, and the overrides of its destination.
//!
//! The CRD is Linkerd's (`crd/linkerd/serviceprofiles.yaml`). Its schema is less strict than its controller, and
//! contradicts it in two places: the schema declares `opaquePorts` and the `not` of a request match as lists, the
//! controller reads a map and an object. So the spec is decoded separately: a profile whose spec cannot be decoded is
//! still a profile.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, value::RawValue};

use super::{metadata_without_annotations, resource::namespaced_resource};

/// `serviceprofiles.linkerd.io/v1alpha2`, as the API server sends it.
#[derive(Clone, Debug, Deserialize)]
pub struct ServiceProfile {
    #[serde(deserialize_with = "metadata_without_annotations")]
    pub metadata: ObjectMeta,
    /// A [`ServiceProfileSpec`] that is not decoded yet. Any JSON is accepted, even if it is nested too deeply to be
    /// decoded.
    #[serde(default)]
    pub spec: Option<Box<RawValue>>,
}

/// A decoded spec; other code validates it. A `null` in a list is kept, because Linkerd distinguishes it from an absent
/// element.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct ServiceProfileSpec {
    pub routes: Option<Vec<Option<RouteSpec>>>,
    pub retry_budget: Option<RetryBudgetSpec>,
    pub dst_overrides: Option<Vec<Option<WeightedDst>>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct RouteSpec {
    pub name: Option<String>,
    pub condition: Option<RequestMatchSpec>,
    pub response_classes: Option<Vec<Option<ResponseClassSpec>>>,
    pub is_retryable: Option<bool>,
    pub timeout: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct RequestMatchSpec {
    pub all: Option<Vec<Option<Self>>>,
    pub any: Option<Vec<Option<Self>>>,
    pub method: Option<String>,
    #[serde(deserialize_with = "one")]
    pub not: Option<Box<Self>>,
    pub path_regex: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct ResponseClassSpec {
    pub condition: Option<ResponseMatchSpec>,
    pub is_failure: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, remote = "Self")]
pub struct ResponseMatchSpec {
    pub all: Option<Vec<Option<Self>>>,
    pub any: Option<Vec<Option<Self>>>,
    pub status: Option<StatusRange>,
    pub not: Option<Box<Self>>,
}

/// A range of HTTP status codes. An end that is 0 or absent is open.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, remote = "Self")]
pub struct StatusRange {
    pub min: Option<u32>,
    pub max: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct RetryBudgetSpec {
    pub retry_ratio: Option<f32>,
    pub min_retries_per_second: Option<u32>,
    pub ttl: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, remote = "Self")]
pub struct WeightedDst {
    pub authority: Option<String>,
    /// A quantity, as a number or a string.
    pub weight: Value,
}

/// Implements `Deserialize` for JSON objects only. The implementations that serde derives would also accept a list of
/// the fields' values.
macro_rules! objects {
    ($($object:ty),*) => {$(
        impl<'de> Deserialize<'de> for $object {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;
                impl<'de> Visitor<'de> for Object {
                    type Value = $object;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$object, A::Error> {
                        // Calls the implementation that serde derived, not this one.
                        <$object>::deserialize(MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_map(Object)
            }
        }
    )*};
}

objects!(
    ServiceProfileSpec,
    RouteSpec,
    RequestMatchSpec,
    ResponseClassSpec,
    ResponseMatchSpec,
    StatusRange,
    RetryBudgetSpec,
    WeightedDst
);

/// Decodes the object that the controller reads, or a list of one object, which the schema requires. An untagged enum
/// would keep a copy of its input, and one for each level of nesting.
fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RequestMatchSpec>>, D::Error> {
    struct One;
    impl<'de> Visitor<'de> for One {
        type Value = Option<Box<RequestMatchSpec>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object, or a list of one object")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            RequestMatchSpec::deserialize(MapAccessDeserializer::new(map)).map(|it| Some(Box::new(it)))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let only = list.next_element::<Box<RequestMatchSpec>>()?;
            match list.next_element::<IgnoredAny>()? {
                None if only.is_some() => Ok(only),
                _ => Err(A::Error::invalid_length(2, &self)),
            }
        }
    }
    deserializer.deserialize_any(One)
}

namespaced_resource!(ServiceProfile, "linkerd.io", "v1alpha2", "serviceprofiles");
