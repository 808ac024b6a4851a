//! EndpointSlices as they are read from the API server, planned and written.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use k8s_openapi::{api::discovery::v1 as discovery, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Deserializer, Serialize};

use super::{NamespacedName, SERVICE_NAME_LABEL, lean_metadata, version_number};

/// The IP family of a slice that the operator writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    IPv4,
    IPv6,
}

/// An EndpointSlice. Any tenant may write one, so only its metadata can be relied on.
#[derive(Clone, Debug, Default, Deserialize, Serialize, kube::Resource)]
#[resource(inherit = "discovery::EndpointSlice")]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    #[serde(deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    /// Immutable. Kept as text, because slices of other types are read too, and emptied if the operator owns them.
    #[serde(default)]
    pub address_type: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub ports: Vec<EndpointPort>,
}

/// An EndpointSlice as the API server sends it. Readers distinguish a missing list of ports from an empty one; the
/// operator always writes a list.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = "discovery::EndpointSlice")]
#[serde(rename_all = "camelCase")]
pub struct SliceObject {
    #[serde(deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub address_type: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub endpoints: Vec<Endpoint>,
    #[serde(default)]
    pub ports: Option<Vec<EndpointPort>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    #[serde(default, deserialize_with = "null_as_default")]
    pub addresses: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub conditions: EndpointConditions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<serde_json::Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct EndpointConditions {
    /// Readers of slices treat `None` as ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// The object behind an endpoint, such as a Pod. Its `resourceVersion` is left out, because it is not a property of the
/// endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A port with the API server's defaults applied: an unnamed port is `""`, and a missing protocol is `TCP`. Otherwise a
/// slice with an unnamed port would always differ from its plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPort {
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    #[serde(default)]
    pub port: Option<i32>,
    #[serde(default = "tcp", deserialize_with = "null_as_tcp")]
    pub protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

// === impl Family ===

impl Family {
    /// The `addressType` of a slice, and an entry of a Service's `ipFamilies`.
    pub const fn address_type(self) -> &'static str {
        match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
        }
    }

    pub fn from_address_type(name: &str) -> Option<Self> {
        [Self::IPv4, Self::IPv6].into_iter().find(|family| family.address_type() == name)
    }
}

// === impl EndpointSlice ===

impl EndpointSlice {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    pub fn family(&self) -> Option<Family> {
        Family::from_address_type(&self.address_type)
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns whether the Service with this uid owns the slice.
    pub fn is_owned_by(&self, service_uid: &str) -> bool {
        self.metadata
            .owner_references
            .iter()
            .flatten()
            .any(|owner| owner.api_version == "v1" && owner.kind == "Service" && owner.uid == service_uid)
    }

    pub fn version(&self) -> Option<u64> {
        version_number(self.metadata.resource_version.as_deref()?)
    }

    /// Returns the Service that the slice's label names.
    pub fn service(&self) -> Option<NamespacedName> {
        let namespace = self.metadata.namespace.as_deref()?;
        Some(NamespacedName::new(namespace, self.label(SERVICE_NAME_LABEL)?))
    }

    /// Returns the Services that the slice may belong to: the one that its label names, and those that own it. After an
    /// edit by another client these may differ.
    pub(crate) fn services(&self) -> impl Iterator<Item = NamespacedName> {
        let namespace: Arc<str> = self.metadata.namespace.as_deref().unwrap_or_default().into();
        let owners = self.metadata.owner_references.iter().flatten().filter(|owner| owner.kind == "Service");
        let owners = owners.map(move |owner| NamespacedName::new(Arc::clone(&namespace), owner.name.as_str()));
        self.service().into_iter().chain(owners)
    }

    /// Returns whether the slice has these endpoints and ports, which is all that readers of slices use.
    pub fn has_content(&self, endpoints: &[Endpoint], ports: &BTreeSet<EndpointPort>) -> bool {
        self.endpoints.len() == endpoints.len()
            && self.endpoints.iter().zip(endpoints).all(|(a, b)| a.is_equivalent(b))
            && self.ports.len() == ports.len()
            && self.ports.iter().all(|port| ports.contains(port))
    }
}

impl From<SliceObject> for EndpointSlice {
    fn from(mut object: SliceObject) -> Self {
        object.metadata.managed_fields = None;
        object.endpoints.shrink_to_fit();
        Self {
            metadata: object.metadata,
            address_type: object.address_type,
            endpoints: object.endpoints,
            ports: object.ports.unwrap_or_default(),
        }
    }
}

impl Endpoint {
    pub fn is_ready(&self) -> bool {
        self.conditions.ready != Some(false)
    }

    /// Returns whether both endpoints mean the same to readers. Addresses are compared by value, in any spelling and
    /// order; an empty hostname equals an absent one.
    fn is_equivalent(&self, other: &Self) -> bool {
        let hostname = |endpoint: &Self| endpoint.hostname.clone().filter(|name| !name.is_empty());
        let addresses = |endpoint: &Self| {
            endpoint
                .addresses
                .iter()
                .map(|text| text.parse::<IpAddr>().map_err(|_| text.clone()))
                .collect::<BTreeSet<_>>()
        };
        self.conditions == other.conditions
            && hostname(self) == hostname(other)
            && self.node_name == other.node_name
            && self.zone == other.zone
            && self.target_ref == other.target_ref
            && self.hints == other.hints
            && (self.addresses == other.addresses || addresses(self) == addresses(other))
    }
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn null_as_tcp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(tcp))
}

fn tcp() -> String {
    "TCP".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoint(value: serde_json::Value) -> Endpoint {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_unnamed_port_equals_its_form_with_the_api_servers_defaults() {
        let sent: EndpointPort = serde_json::from_value(json!({"port": 80, "name": null})).unwrap();
        let stored: EndpointPort = serde_json::from_value(json!({"port": 80, "name": "", "protocol": "TCP"})).unwrap();
        assert_eq!(sent, stored);
    }

    #[test]
    fn null_lists_are_empty() {
        let slice: EndpointSlice = serde_json::from_value(
            json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": null, "ports": null}),
        )
        .unwrap();
        assert!(slice.has_content(&[], &BTreeSet::new()));
    }

    #[test]
    fn spelling_and_order_of_addresses_make_no_difference_but_conditions_do() {
        let written = endpoint(json!({"addresses": ["fd08::5678:0:0:9abc:def0", "2001:db8::1"], "hostname": ""}));
        assert!(
            written.is_equivalent(&endpoint(json!({"addresses": ["2001:db8::1", "fd08::5678:0000:0000:9abc:def0"]})))
        );
        assert!(!written.is_equivalent(&endpoint(json!({"addresses": ["2001:db8::1"]}))));
        let (ready, unset) =
            (json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true}}), json!({"addresses": ["10.0.0.1"]}));
        assert!(!endpoint(ready).is_equivalent(&endpoint(unset)));
    }
}
