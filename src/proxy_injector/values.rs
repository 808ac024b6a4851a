//! The fields of Linkerd's values that shape an injected Pod.
//!
//! In: a values document, whose strings and numbers have the types of Linkerd's fields. Out: [`ProxyValues`]. Always
//! holds: a map that the injector requires is present; an absent field is Go's zero, and not the default of
//! the chart.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Parameters, by scope and protocol.
pub(super) type Parameters = BTreeMap<String, BTreeMap<String, Map<String, Value>>>;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyValues {
    #[serde(default)]
    pub(super) linkerd_version: String,
    #[serde(default)]
    pub(super) cluster_domain: String,
    #[serde(default)]
    identity_trust_domain: String,
    #[serde(default)]
    pub(super) cluster_networks: String,
    #[serde(default, rename = "disableIPv6")]
    pub(super) disable_ipv6: bool,
    #[serde(default)]
    pub(super) cni_enabled: bool,
    #[serde(default)]
    pub(super) image_pull_policy: String,
    pub(super) identity: IdentityValues,
    #[serde(default)]
    pub(super) debug_container: DebugContainerValues,
    pub(super) proxy: ProxyContainerValues,
    pub(super) proxy_init: ProxyInitValues,
    pub(super) network_validator: Option<NetworkValidatorValues>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct IdentityValues {
    #[serde(default)]
    pub(super) service_account_token_projection: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DebugContainerValues {
    pub(super) image: ImageValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ImageValues {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) pull_policy: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyContainerValues {
    pub(super) image: ImageValues,
    pub(super) ports: PortsValues,
    pub(super) resources: ResourcesValues,
    pub(super) liveness_probe: ProbeValues,
    pub(super) readiness_probe: ProbeValues,
    pub(super) metrics: MetricsValues,
    pub(super) startup_probe: Option<StartupProbeValues>,
    #[serde(flatten)]
    pub(super) optional: OptionalProxyValues,
}

/// The fields of the proxy that may be absent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OptionalProxyValues {
    pub(super) access_log: String,
    pub(super) additional_env: Vec<ProxyEnvVar>,
    pub(super) r#await: bool,
    pub(super) capabilities: Option<CapabilitiesValues>,
    pub(super) control: ControlValues,
    pub(super) cores: i64,
    pub(super) default_inbound_policy: String,
    pub(super) disable_inbound_protocol_detect_timeout: bool,
    pub(super) disable_outbound_protocol_detect_timeout: bool,
    pub(super) enable_external_profiles: bool,
    pub(super) enable_shutdown_endpoint: bool,
    pub(super) experimental_env: Vec<ProxyEnvVar>,
    pub(super) gid: i64,
    pub(super) inbound: Parameters,
    pub(super) outbound: Parameters,
    pub(super) inbound_connect_timeout: String,
    pub(super) outbound_connect_timeout: String,
    pub(super) inbound_discovery_cache_unused_timeout: String,
    pub(super) outbound_discovery_cache_unused_timeout: String,
    pub(super) is_gateway: bool,
    pub(super) is_ingress: bool,
    pub(super) log_format: String,
    #[serde(rename = "logHTTPHeaders")]
    pub(super) log_http_headers: String,
    pub(super) log_level: String,
    pub(super) native_sidecar: bool,
    pub(super) opaque_ports: String,
    pub(super) require_identity_on_inbound_ports: String,
    pub(super) runtime: RuntimeValues,
    pub(super) sa_mount_path: Option<MountValues>,
    pub(super) security_context: Map<String, Value>,
    pub(super) shutdown_grace_period: String,
    pub(super) tracing: Option<TracingValues>,
    pub(super) uid: i64,
    pub(super) wait_before_exit_seconds: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PortsValues {
    pub(super) admin: i32,
    pub(super) control: i32,
    pub(super) inbound: i32,
    pub(super) outbound: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResourcesValues {
    pub(super) cpu: ConstraintsValues,
    pub(super) memory: ConstraintsValues,
    #[serde(rename = "ephemeral-storage")]
    pub(super) ephemeral_storage: ConstraintsValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConstraintsValues {
    pub(super) limit: String,
    pub(super) request: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProbeValues {
    pub(super) initial_delay_seconds: u64,
    pub(super) timeout_seconds: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StartupProbeValues {
    pub(super) initial_delay_seconds: u64,
    pub(super) period_seconds: u64,
    pub(super) failure_threshold: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MetricsValues {
    pub(super) hostname_labels: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ControlValues {
    pub(super) streams: StreamsValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StreamsValues {
    pub(super) initial_timeout: String,
    pub(super) idle_timeout: String,
    pub(super) lifetime: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RuntimeValues {
    pub(super) workers: WorkersValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkersValues {
    pub(super) minimum: i64,
    pub(super) maximum: i64,
    #[serde(rename = "maximumCPURatio")]
    pub(super) maximum_cpu_ratio: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MountValues {
    pub(super) mount_path: String,
    pub(super) name: String,
    pub(super) read_only: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct CapabilitiesValues {
    pub(super) add: Vec<String>,
    pub(super) drop: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct TracingValues {
    pub(super) enabled: bool,
    pub(super) protocol: String,
    pub(super) trace_service_name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) collector: CollectorValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CollectorValues {
    pub(super) endpoint: String,
    pub(super) mesh_identity: MeshIdentityValues,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MeshIdentityValues {
    pub(super) service_account_name: String,
    pub(super) namespace: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ProxyInitValues {
    pub(super) iptables_mode: String,
    pub(super) ignore_inbound_ports: String,
    pub(super) ignore_outbound_ports: String,
    pub(super) skip_subnets: String,
    pub(super) log_level: String,
    pub(super) log_format: String,
    pub(super) close_wait_timeout_secs: i64,
    pub(super) privileged: bool,
    pub(super) run_as_root: bool,
    pub(super) run_as_user: i64,
    pub(super) run_as_group: i64,
    pub(super) xt_mount_path: Option<MountValues>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NetworkValidatorValues {
    pub(super) connect_addr: String,
    pub(super) listen_addr: String,
    pub(super) log_format: String,
    pub(super) log_level: String,
    pub(super) timeout: String,
    pub(super) security_context: Map<String, Value>,
}

/// A variable of the proxy's environment. `valueFrom` is not interpreted, so that sources of a newer Kubernetes are kept.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyEnvVar {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default, deserialize_with = "text_or_null")]
    pub(super) value: String,
    pub(super) value_from: Option<Value>,
}

fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

// === impl ProxyValues ===

impl ProxyValues {
    /// Reads the values of a document.
    ///
    /// # Errors
    /// When a value has another type, or when a map that the injector needs is absent or null.
    pub(super) fn read(document: &Map<String, Value>) -> Result<Self, serde_json::Error> {
        let mut document = document.clone();
        // Absent and null are the same for Go, except for the parameters, whose values are of any type.
        let parameters = ["inbound", "outbound"].map(|scope| {
            let proxy = document.get_mut("proxy").and_then(Value::as_object_mut)?;
            proxy.remove(scope).filter(|it| !it.is_null()).map(|it| (scope, it))
        });
        drop_nulls(&mut document);
        if let Some(proxy) = document.get_mut("proxy").and_then(Value::as_object_mut) {
            for (scope, mut value) in parameters.into_iter().flatten() {
                drop_null_maps(&mut value);
                proxy.insert(scope.to_owned(), value);
            }
        }
        serde_json::from_value(Value::Object(document))
    }

    /// The trust domain of the mesh's identities.
    pub(super) fn trust_domain(&self) -> &str {
        if self.identity_trust_domain.is_empty() { &self.cluster_domain } else { &self.identity_trust_domain }
    }

    /// The version of an image that names none.
    pub(super) fn version_of<'a>(&'a self, image: &'a ImageValues) -> &'a str {
        if image.version.is_empty() { &self.linkerd_version } else { &image.version }
    }

    /// The pull policy of an image that names none; empty if the cluster's default applies.
    pub(super) fn pull_policy_of<'a>(&'a self, image: &'a ImageValues) -> &'a str {
        if image.pull_policy.is_empty() { &self.image_pull_policy } else { &image.pull_policy }
    }
}

fn drop_nulls(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
    for value in map.values_mut() {
        if let Value::Object(below) = value {
            drop_nulls(below);
        }
    }
}

/// Drops the null maps of scopes and protocols.
fn drop_null_maps(scopes: &mut Value) {
    let Value::Object(scopes) = scopes else { return };
    scopes.retain(|_, protocols| !protocols.is_null());
    for protocols in scopes.values_mut().filter_map(Value::as_object_mut) {
        protocols.retain(|_, parameters| !parameters.is_null());
    }
}
