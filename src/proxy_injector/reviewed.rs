//! The parts of a Pod, or of another object, that decide what is injected.
//!
//! In: the object of an admission request, with content that tenants control. Out: a [`ReviewedObject`].
//! Always holds: a field that is not read here cannot make an object unreadable.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::annotations::AnnotationMap;
use crate::{
    api::{LONGEST_NAME, PROXY_NAME},
    cluster::kinds::windows::{RequiresWindows, RunsWindows, SelectsWindows, is_for_windows},
    values::CapabilitiesValues,
};

/// The maximum length of all annotations of an object, keys and values. The API server verifies it after the webhooks.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
/// The folder with the token of a ServiceAccount.
pub(super) const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The images of proxies, and of the containers that set up their firewall: Linkerd's and Istio's.
const PROXY_IMAGES: [&str; 2] = ["cr.l5d.io/linkerd/proxy:", "gcr.io/istio-release/proxyv2:"];
const INIT_IMAGES: [&str; 2] = ["cr.l5d.io/linkerd/proxy-init:", "gcr.io/istio-release/proxy_init:"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReviewedObject {
    #[serde(deserialize_with = "or_default")]
    pub(super) metadata: ReviewedMetadata,
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: ReviewedSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedMetadata {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: AnnotationMap,
    #[serde(deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_references: Vec<ReviewedOwner>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedOwner {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedSpec {
    #[serde(deserialize_with = "or_default")]
    pub(super) containers: Vec<ReviewedContainer>,
    #[serde(deserialize_with = "or_default")]
    pub(super) init_containers: Vec<ReviewedContainer>,
    #[serde(deserialize_with = "or_default")]
    pub(super) volumes: Vec<Value>,
    #[serde(deserialize_with = "or_default")]
    pub(super) host_network: bool,
    #[serde(deserialize_with = "or_default")]
    pub(super) security_context: ReviewedSecurityContext,
    pub(super) termination_grace_period_seconds: Option<i64>,
    pub(super) os: RunsWindows,
    pub(super) node_selector: SelectsWindows,
    pub(super) affinity: RequiresWindows,
    pub(super) automount_service_account_token: Option<bool>,
    /// The ports of a Service.
    #[serde(deserialize_with = "or_default")]
    pub(super) ports: Vec<ReviewedServicePort>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedContainer {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    image: String,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<ReviewedPort>,
    #[serde(deserialize_with = "or_default")]
    volume_mounts: Vec<ReviewedMount>,
    readiness_probe: Option<ReviewedProbe>,
    liveness_probe: Option<ReviewedProbe>,
    #[serde(deserialize_with = "or_default")]
    pub(super) security_context: ReviewedSecurityContext,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReviewedPort {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    container_port: i64,
    #[serde(deserialize_with = "or_default")]
    protocol: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedMount {
    #[serde(deserialize_with = "or_default")]
    pub(super) mount_path: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) read_only: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReviewedProbe {
    http_get: Option<ReviewedHttpGet>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ReviewedHttpGet {
    port: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedSecurityContext {
    pub(super) run_as_user: Option<i64>,
    pub(super) run_as_group: Option<i64>,
    capabilities: Option<ReviewedCapabilities>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ReviewedCapabilities {
    #[serde(deserialize_with = "or_default")]
    add: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    drop: Vec<String>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedServicePort {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) port: i64,
    pub(super) target_port: Value,
}

/// Reads null as the default.
fn or_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

// === impl ReviewedMetadata ===

impl ReviewedMetadata {
    /// Returns whether the API server will reject the object for the length of its name or of its annotations.
    pub(super) fn is_too_long(&self) -> bool {
        self.name.len() > LONGEST_NAME || !self.has_room_for(&AnnotationMap::new())
    }

    /// Returns whether the API server accepts the object with these annotations.
    pub(super) fn has_room_for(&self, added: &AnnotationMap) -> bool {
        let kept = self.annotations.iter().filter(|(key, _)| !added.contains_key(*key));
        let lengths = kept.chain(added).map(|(key, value)| key.len() + value.len());
        lengths.sum::<usize>() <= MAX_ANNOTATION_BYTES
    }
}

// === impl ReviewedSpec ===

impl ReviewedSpec {
    /// The init containers, then the containers.
    pub(super) fn all_containers(&self) -> impl Iterator<Item = &ReviewedContainer> {
        self.init_containers.iter().chain(&self.containers)
    }

    /// Returns whether the Pod already has a proxy of Linkerd or Istio, or a container that sets up its firewall.
    pub(super) fn has_sidecar(&self) -> bool {
        let has_prefix = |image: &str, prefixes: [&str; 2]| prefixes.iter().any(|prefix| image.starts_with(prefix));
        let is_proxy = |it: &ReviewedContainer| {
            [PROXY_NAME, "istio-proxy"].contains(&it.name.as_str()) || has_prefix(&it.image, PROXY_IMAGES)
        };
        let is_init = |it: &ReviewedContainer| {
            ["linkerd-init", "istio-init"].contains(&it.name.as_str()) || has_prefix(&it.image, INIT_IMAGES)
        };
        self.all_containers().any(is_proxy) || self.init_containers.iter().any(is_init)
    }

    /// The names of the volumes. An item that is no volume has none.
    pub(super) fn volume_names(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().filter_map(|volume| volume.get("name")?.as_str())
    }

    /// The mount of the ServiceAccount's token in the first container.
    pub(super) fn token_mount(&self) -> Option<&ReviewedMount> {
        self.containers.first()?.volume_mounts.iter().find(|mount| mount.mount_path == TOKEN_FOLDER)
    }

    /// The capabilities of the first container.
    pub(super) fn capabilities(&self) -> Option<CapabilitiesValues> {
        let capabilities = self.containers.first()?.security_context.capabilities.as_ref()?;
        Some(CapabilitiesValues { add: capabilities.add.clone(), drop: capabilities.drop.clone() })
    }

    /// Returns the ports of all containers, in the order of their declaration.
    pub(super) fn container_ports(&self) -> impl Iterator<Item = i64> {
        self.all_containers().flat_map(|container| container.ports.iter().map(|port| port.container_port))
    }

    /// Returns the TCP ports of all containers.
    pub(super) fn tcp_ports(&self) -> impl Iterator<Item = i64> {
        let ports = self.all_containers().flat_map(|container| &container.ports);
        ports.filter(|port| ["", "TCP"].contains(&port.protocol.as_str())).map(|port| port.container_port)
    }

    /// Returns the ports with their names, which may be empty.
    pub(super) fn named_ports(&self) -> impl Iterator<Item = (&str, u16)> {
        let ports = self.all_containers().flat_map(|container| &container.ports);
        ports.filter_map(|port| Some((port.name.as_str(), u16::try_from(port.container_port).ok()?)))
    }

    /// Returns whether the Pod runs on Windows nodes only.
    pub(super) fn is_for_windows(&self) -> bool {
        is_for_windows(self.os, self.node_selector, self.affinity)
    }

    /// Returns the ports that the proxy receives traffic for: those of containers, and those of their HTTP readiness and
    /// liveness probes. They are sorted as texts, as Linkerd's injector sorts them.
    pub(super) fn inbound_ports(&self) -> String {
        let probed =
            self.all_containers().flat_map(|container| [&container.readiness_probe, &container.liveness_probe]);
        let probed = probed.filter_map(|probe| probe.as_ref()?.http_get.as_ref()?.port.as_i64());
        let ports: BTreeSet<String> = self.container_ports().chain(probed).map(|port| port.to_string()).collect();
        ports.into_iter().collect::<Vec<_>>().join(",")
    }
}
