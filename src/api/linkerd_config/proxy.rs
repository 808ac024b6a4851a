//! The settings of injected proxies that have a name of their own; each sets a path of Linkerd's Helm values.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::schema;

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::proxy_rules()))]
pub struct ProxySpec {
    /// The image of the proxy, without its version. linkerd-init and linkerd-network-validator run from it too.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub proxy_image: ImageSpec,
    /// Sets proxy.image.version: the version of the proxy, such as edge-26.8.3. Linkerd's default is that of the
    /// control plane. A proxy that is older than the control plane by more than one minor version may not understand
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::version")]
    pub proxy_version: Option<String>,
    /// Deprecated: does nothing. Since edge-25.11.3 the init container runs from the image of the proxy. Accepted so
    /// that older resources are, and named in status.deprecatedFields.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub proxy_init_image: ImageSpec,
    /// Deprecated: does nothing. Since edge-25.11.3 the init container runs from the image of the proxy. Accepted so
    /// that older resources are, and named in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ignored_text")]
    pub proxy_init_image_version: Option<String>,
    /// Sets proxy.logLevel: what the proxy logs, as directives of the form level or module=level, separated by commas.
    /// Linkerd's default is warn,linkerd=info,hickory=error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::log_level")]
    pub log_level: Option<String>,
    /// Sets proxy.logFormat: plain or json. Linkerd's default is plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::log_format")]
    pub log_format: Option<String>,
    /// Sets proxy.ports.admin: the port for metrics and probes. Linkerd's default is 4191. The four ports of a proxy
    /// differ from each other, and from those that the application listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub admin_port: Option<i64>,
    /// Sets proxy.ports.control: the port for the control plane's extensions, such as tap. Linkerd's default is 4190.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub control_port: Option<i64>,
    /// Sets proxy.ports.inbound: the port where traffic to the Pod is redirected to, and which meshed clients connect
    /// to. Linkerd's default is 4143.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub inbound_port: Option<i64>,
    /// Sets proxy.ports.outbound: the port where traffic from the Pod is redirected to. Linkerd's default is 4140.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub outbound_port: Option<i64>,
    /// Sets proxy.uid: the user that the proxy runs as, and whose traffic is not redirected. Linkerd's default is 2102.
    /// From 1000000 on, Linkerd renders the number in a form that its init container does not read.
    #[serde(rename = "proxyUID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::id")]
    pub proxy_uid: Option<i64>,
    /// Sets proxy.gid: the group that the proxy runs as. Linkerd's default is none of its own. From 1000000 on, Linkerd
    /// renders the number in a form that its init container does not read.
    #[serde(rename = "proxyGID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::id")]
    pub proxy_gid: Option<i64>,
    /// Sets proxyInit.ignoreInboundPorts: ports of the Pod whose traffic bypasses the proxy, and so has neither mutual
    /// TLS nor policy; each a port such as 4567, or a range such as 8000-8010. Linkerd's default is 4567 and 4568. The
    /// list replaces it; an empty one sets no port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ports")]
    pub ignore_inbound_ports: Option<Vec<String>>,
    /// Sets proxyInit.ignoreOutboundPorts: destination ports whose traffic bypasses the proxy; each a port such as
    /// 4567, or a range such as 8000-8010. Linkerd's default is 4567 and 4568. The list replaces it; an empty one sets
    /// no port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ports")]
    pub ignore_outbound_ports: Option<Vec<String>>,
    /// Sets proxy.opaquePorts: ports whose protocol the proxy does not look at, because it would wait for a server that
    /// speaks first; each a port such as 3306, or a range such as 8000-8010. Linkerd's default is 25, 587, 3306, 4444,
    /// 5432, 6379, 9300 and 11211. The list replaces it; an empty one sets no port. The destination and policy
    /// controllers do not follow without Helm: set it there as well. Services that exist keep the annotation that they
    /// have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ports")]
    pub opaque_ports: Option<Vec<String>>,
    /// Sets proxyInit.skipSubnets: networks in CIDR notation; traffic to and from them bypasses the proxy. Linkerd's
    /// default is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::networks")]
    pub skip_subnets: Option<Vec<String>>,
    /// Sets proxy.enableExternalProfiles to the opposite: whether ServiceProfiles are looked up for names outside of
    /// the cluster. Linkerd's default is true, no look-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_external_profiles: Option<bool>,
    /// Sets proxy.accessLog: the format of the access log, apache or json; an empty string is no access log, which is
    /// Linkerd's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::access_log")]
    pub access_log: Option<String>,
    /// Sets proxy.defaultInboundPolicy: who may connect to a port that no Server is about. One of all-unauthenticated
    /// (Linkerd's default), all-authenticated, cluster-unauthenticated, cluster-authenticated, deny and audit. The
    /// policy controller does not follow without Helm: set it there as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::inbound_policy")]
    pub default_inbound_policy: Option<String>,
    /// Sets proxy.nativeSidecar: whether the proxy is an init container that keeps running, started before and stopped
    /// after the application. Linkerd's default is true since edge-26.5.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_sidecar: Option<bool>,
    /// Sets proxy.await: whether the application starts only after the proxy is ready. Linkerd's default is true.
    #[serde(rename = "await", skip_serializing_if = "Option::is_none")]
    pub await_: Option<bool>,
    /// Sets proxy.shutdownGracePeriod: how long a proxy that is told to stop waits for its connections to end: a whole
    /// number with one unit, such as 500ms, 30s, 2m or 1h. The proxy's default is 120s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::proxy_duration")]
    pub shutdown_grace_period: Option<String>,
    /// Sets proxy.inboundConnectTimeout: how long the proxy tries to connect to the application: a whole number with
    /// one unit, such as 500ms, 30s, 2m or 1h. Linkerd's default is 100ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::proxy_duration")]
    pub inbound_connect_timeout: Option<String>,
    /// Sets proxy.outboundConnectTimeout: how long the proxy tries to connect to another Pod: a whole number with one
    /// unit, such as 500ms, 30s, 2m or 1h. Linkerd's default is 1000ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::proxy_duration")]
    pub outbound_connect_timeout: Option<String>,
    /// What the containers of the proxy and of linkerd-init ask for and are limited to. A request is not more than its
    /// limit.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub resource: ResourceSpec,
    /// Sets proxy.additionalEnv: environment variables that the proxy has besides Linkerd's own. Those of the installer
    /// with other names stay.
    #[serde(rename = "additionalEnv", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub additional_env: Option<Vec<EnvVar>>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageSpec {
    /// The name of the image, without its version. For proxyImage it sets proxy.image.name; Linkerd's default is
    /// cr.l5d.io/linkerd/proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::image_name")]
    pub name: Option<String>,
    /// When the image is pulled: Always, IfNotPresent or Never. For proxyImage it sets proxy.image.pullPolicy;
    /// Linkerd's default is that of the whole installation, IfNotPresent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pull_policy")]
    pub pull_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::resource_rules()))]
pub struct ResourceSpec {
    /// Sets the `request` of proxy.resources.cpu, proxy.resources.memory and proxy.resources.ephemeral-storage: what
    /// the scheduler keeps free for the proxy. Linkerd's default is none.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub requests: ResourceAmounts,
    /// Sets the `limit` of proxy.resources.cpu, proxy.resources.memory and proxy.resources.ephemeral-storage: what the
    /// proxy gets at most. A CPU limit also decides how many threads it has. Linkerd's default is none.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub limits: ResourceAmounts,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ResourceAmounts {
    /// Processor cores, such as 100m (a tenth of a core) or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub cpu: Option<Quantity>,
    /// Memory in bytes, such as 250Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub memory: Option<Quantity>,
    /// Disk of the node in bytes, such as 1Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub ephemeral_storage: Option<Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::env_rules()))]
pub struct EnvVar {
    /// The name of the variable. In a list of them no name comes twice.
    #[schemars(schema_with = "schema::env_name")]
    pub name: String,
    /// The value. It can be read by everybody who may read the ConfigMap: a secret belongs in a Secret, which valueFrom
    /// names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env_value")]
    pub value: Option<String>,
    /// Where the value comes from, as in a Pod: fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef. What it
    /// names is looked up in the namespace of each Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::free_object")]
    pub value_from: Option<Map<String, Value>>,
}
