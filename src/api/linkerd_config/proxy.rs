//! The settings of injected proxies that have named fields. Each sets a path of Linkerd's Helm values.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::schema;

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::proxy_rules()))]
pub struct ProxySpec {
    /// The image of the proxy, without its version. linkerd-init and linkerd-network-validator use the same image.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub proxy_image: ImageSpec,
    /// Sets proxy.image.version: the version of the proxy, such as edge-26.8.3. Linkerd's default is the version of the
    /// control plane. A proxy that is more than one minor version older than the control plane may not work with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::version")]
    pub proxy_version: Option<String>,
    /// Deprecated: has no effect. Since edge-25.11.3 the init container uses the image of the proxy. Accepted for
    /// compatibility with older resources, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub proxy_init_image: ImageSpec,
    /// Deprecated: has no effect. Since edge-25.11.3 the init container uses the image of the proxy. Accepted for
    /// compatibility with older resources, and listed in status.deprecatedFields.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ignored_text")]
    pub proxy_init_image_version: Option<String>,
    /// Sets proxy.logLevel: the log filter of the proxy, as comma-separated directives of the form level or
    /// module=level. Linkerd's default is warn,linkerd=info,hickory=error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::log_level")]
    pub log_level: Option<String>,
    /// Sets proxy.logFormat: the log format of the proxy, plain or json. Linkerd's default is plain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::log_format")]
    pub log_format: Option<String>,
    /// Sets proxy.ports.admin: the port for metrics and probes. Linkerd's default is 4191. The four ports of a proxy
    /// must differ from each other, and from the ports of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub admin_port: Option<i64>,
    /// Sets proxy.ports.control: the port for the control plane's extensions, such as tap. Linkerd's default is 4190.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub control_port: Option<i64>,
    /// Sets proxy.ports.inbound: the port that inbound traffic of the Pod is redirected to, and that meshed clients
    /// connect to. Linkerd's default is 4143.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub inbound_port: Option<i64>,
    /// Sets proxy.ports.outbound: the port that outbound traffic of the Pod is redirected to. Linkerd's default is
    /// 4140.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::port")]
    pub outbound_port: Option<i64>,
    /// Sets proxy.uid: the user ID of the proxy. Traffic of this user is not redirected. Linkerd's default is 2102.
    /// From 1000000 on, Linkerd renders the number in a form that its init container cannot parse.
    #[serde(rename = "proxyUID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::id")]
    pub proxy_uid: Option<i64>,
    /// Sets proxy.gid: the group ID of the proxy. Linkerd sets none by default. From 1000000 on, Linkerd renders the
    /// number in a form that its init container cannot parse.
    #[serde(rename = "proxyGID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::id")]
    pub proxy_gid: Option<i64>,
    /// Sets proxyInit.ignoreInboundPorts: the inbound ports whose traffic bypasses the proxy, and so has neither mutual
    /// TLS nor policy. Each entry is a port such as 4567, or a range such as 8000-8010. Linkerd's default is 4567 and
    /// 4568. The list replaces the default; an empty list sets no port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ports")]
    pub ignore_inbound_ports: Option<Vec<String>>,
    /// Sets proxyInit.ignoreOutboundPorts: the destination ports whose traffic bypasses the proxy. Each entry is a port
    /// such as 4567, or a range such as 8000-8010. Linkerd's default is 4567 and 4568. The list replaces the default;
    /// an empty list sets no port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ports")]
    pub ignore_outbound_ports: Option<Vec<String>>,
    /// Deprecated: set it with Helm, or in values as a comma-separated string. Sets proxy.opaquePorts: the ports for
    /// which the proxy skips protocol detection, because the server sends the first bytes. Each entry is a port such as
    /// 3306, or a range such as 8000-8010. The list replaces Linkerd's default; an empty list sets no port. This does not
    /// change the destination and policy controllers; the condition ControlPlaneMismatch reports a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::ports")]
    pub opaque_ports: Option<Vec<String>>,
    /// Sets proxyInit.skipSubnets: the networks, in CIDR notation, whose traffic bypasses the proxy in both directions.
    /// By default, Linkerd lists no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::networks")]
    pub skip_subnets: Option<Vec<String>>,
    /// Sets proxy.enableExternalProfiles to the opposite value: whether proxies do not look up ServiceProfiles for
    /// names outside the cluster. Linkerd's default is true: no lookup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_external_profiles: Option<bool>,
    /// Sets proxy.accessLog: the format of the access log, apache or json. An empty string, which is Linkerd's default,
    /// disables the access log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::access_log")]
    pub access_log: Option<String>,
    /// Deprecated: set it with Helm, or in values. Sets proxy.defaultInboundPolicy: the clients that may connect to a
    /// port without a Server. Linkerd's default is all-unauthenticated. This does not change the policy controller; the
    /// condition ControlPlaneMismatch reports a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::inbound_policy")]
    pub default_inbound_policy: Option<String>,
    /// Sets proxy.nativeSidecar: whether the proxy is an init container that keeps running. It then starts before the
    /// application and stops after it. Linkerd's default is true since edge-26.5.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_sidecar: Option<bool>,
    /// Sets proxy.await: whether the application starts only after the proxy is ready. Linkerd's default is true.
    #[serde(rename = "await", skip_serializing_if = "Option::is_none")]
    pub await_: Option<bool>,
    /// Sets proxy.shutdownGracePeriod: the time that a stopping proxy waits for its connections to end. A whole number
    /// with one unit, such as 500ms, 30s, 2m or 1h. The proxy's default is 120s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::proxy_duration")]
    pub shutdown_grace_period: Option<String>,
    /// Sets proxy.inboundConnectTimeout: the timeout for connections of the proxy to the application. A whole number
    /// with one unit, such as 500ms, 30s, 2m or 1h. Linkerd's default is 100ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::proxy_duration")]
    pub inbound_connect_timeout: Option<String>,
    /// Sets proxy.outboundConnectTimeout: the timeout for connections of the proxy to another Pod. A whole number with
    /// one unit, such as 500ms, 30s, 2m or 1h. Linkerd's default is 1000ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::proxy_duration")]
    pub outbound_connect_timeout: Option<String>,
    /// The resource requests and limits of the containers of the proxy and of linkerd-init. A request must not exceed
    /// its limit.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub resource: ResourceSpec,
    /// Sets proxy.additionalEnv: environment variables of the proxy in addition to Linkerd's own. The installer's
    /// variables with other names are kept.
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
    /// The pull policy of the image: Always, IfNotPresent or Never. For proxyImage it sets proxy.image.pullPolicy;
    /// Linkerd's default is that of the whole installation, IfNotPresent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::pull_policy")]
    pub pull_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::resource_rules()))]
pub struct ResourceSpec {
    /// Sets the `request` of proxy.resources.cpu, proxy.resources.memory and proxy.resources.ephemeral-storage: the
    /// resources that the scheduler reserves for the proxy. By default, Linkerd requests none.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub requests: ResourceAmounts,
    /// Sets the `limit` of proxy.resources.cpu, proxy.resources.memory and proxy.resources.ephemeral-storage: the
    /// maximum that the proxy may use. The CPU limit also determines the number of its threads. By default,
    /// Linkerd sets none.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub limits: ResourceAmounts,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ResourceAmounts {
    /// CPU cores, such as 100m (a tenth of a core) or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub cpu: Option<Quantity>,
    /// Memory in bytes, such as 250Mi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub memory: Option<Quantity>,
    /// Ephemeral storage of the node in bytes, such as 1Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub ephemeral_storage: Option<Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::env_rules()))]
pub struct EnvVar {
    /// The name of the variable. Names in the list must be unique.
    #[schemars(schema_with = "schema::env_name")]
    pub name: String,
    /// The value. Every user with access to the ConfigMap can read it: store a secret in a Secret, and reference it in
    /// valueFrom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::env_value")]
    pub value: Option<String>,
    /// The source of the value, as in a Pod: fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef. The reference
    /// is resolved in the namespace of each Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::free_object")]
    pub value_from: Option<Map<String, Value>>,
}
