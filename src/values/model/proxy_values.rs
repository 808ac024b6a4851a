//! Linkerd's values, by the struct of `pkg/charts/linkerd2/values.go` that they are in.
//!
//! The proxy injector reads the fields. Always holds: an absent field is Go's zero, and not the default of the chart.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::{
    control_plane_parts::{
        CONFIGS, CONTROLLER, DESTINATION_CONTROLLER, EGRESS, ISSUER, KUBE_API, POD_MONITOR, POLICY_CONTROLLER,
        PROXY_INJECTOR, WEBHOOK,
    },
    structs::{GoStruct, go_structs},
};
use crate::go::types::{
    GoField, GoType,
    GoType::{Any, Bool, Embedded, List, Quantity, Struct, Text, Uint},
    GoTyped, is,
};

/// A Go map of strings.
pub(super) type TextMap = BTreeMap<String, String>;
/// A map with entries of any type.
pub(super) type Untyped = Map<String, Value>;
/// Parameters, by scope and protocol.
pub(crate) type Parameters = BTreeMap<String, BTreeMap<String, Map<String, Value>>>;

go_structs! {
    /// All of Linkerd's values.
    struct ProxyValues {
        "clusterDomain" => cluster_domain: String,
        "clusterNetworks" => cluster_networks: String,
        "cniEnabled" => cni_enabled: bool,
        "debugContainer" => debug_container: DebugContainerValues,
        "disableIPv6" => disable_ipv6: bool,
        "identityTrustDomain" => identity_trust_domain: String,
        "imagePullPolicy" => image_pull_policy: String,
        "linkerdVersion" => linkerd_version: String,
        "networkValidator" => network_validator: Option<NetworkValidatorValues>,
    } required {
        "identity" => identity: IdentityValues,
        "proxy" => proxy: ProxyContainerValues,
        "proxyInit" => proxy_init: ProxyInitValues,
    } unread {
        "proxyContainerName" => Text,
    } control_plane {
        "cliVersion" => Text,
        "configs" => CONFIGS,
        "controlPlaneTracing" => Bool,
        "controlPlaneTracingNamespace" => Text,
        "controller" => CONTROLLER,
        "controllerGID" => i64::TYPE,
        "controllerImage" => Text,
        "controllerLogFormat" => Text,
        "controllerLogLevel" => Text,
        "controllerReplicas" => Uint,
        "controllerUID" => i64::TYPE,
        "deploymentStrategy" => Untyped::TYPE,
        "destinationController" => DESTINATION_CONTROLLER,
        "destinationProxyResources" => ResourcesValues::TYPE,
        "destinationResources" => ResourcesValues::TYPE,
        "disableHeartBeat" => Bool,
        "egress" => EGRESS,
        "enableEndpointSlices" => Bool,
        "enableH2Upgrade" => Bool,
        "enablePodAntiAffinity" => Bool,
        "enablePodDisruptionBudget" => Bool,
        "heartbeat" => Untyped::TYPE,
        "heartbeatResources" => ResourcesValues::TYPE,
        "heartbeatSchedule" => Text,
        "highAvailability" => Bool,
        "identityProxyResources" => ResourcesValues::TYPE,
        "identityResources" => ResourcesValues::TYPE,
        "identityTrustAnchorsPEM" => Text,
        "imagePullSecrets" => List(&TextMap::TYPE),
        "nodeAffinity" => Untyped::TYPE,
        "nodeSelector" => TextMap::TYPE,
        "podAnnotations" => TextMap::TYPE,
        "podLabels" => TextMap::TYPE,
        "podMonitor" => POD_MONITOR,
        "policyController" => POLICY_CONTROLLER,
        "policyValidator" => Struct(WEBHOOK),
        "priorityClassName" => Text,
        "profileValidator" => Struct(WEBHOOK),
        "prometheusUrl" => Text,
        "proxyInjector" => PROXY_INJECTOR,
        "proxyInjectorProxyResources" => ResourcesValues::TYPE,
        "proxyInjectorResources" => ResourcesValues::TYPE,
        "revisionHistoryLimit" => Uint,
        "spValidator" => Untyped::TYPE,
        "tolerations" => List(&Any),
        "webhookFailurePolicy" => Text,
    }

    struct IdentityValues {
        "serviceAccountTokenProjection" => service_account_token_projection: bool,
    } control_plane {
        "additionalEnv" => Vec::<ProxyEnvVar>::TYPE,
        "experimentalEnv" => Vec::<ProxyEnvVar>::TYPE,
        "externalCA" => Bool,
        "issuer" => ISSUER,
        "kubeAPI" => KUBE_API,
        "podAnnotations" => TextMap::TYPE,
    }

    struct DebugContainerValues {
        "image" => image: ImageValues,
    }

    struct ImageValues {
        "name" => name: String,
        "pullPolicy" => pull_policy: String,
        "version" => version: String,
    }

    struct ProxyContainerValues {
        "accessLog" => access_log: String,
        "additionalEnv" => additional_env: Vec<ProxyEnvVar>,
        "await" => r#await: bool,
        "capabilities" => capabilities: Option<CapabilitiesValues>,
        "control" => control: ControlValues,
        "cores" => cores: i64,
        "defaultInboundPolicy" => default_inbound_policy: String,
        "disableInboundProtocolDetectTimeout" => disable_inbound_protocol_detect_timeout: bool,
        "disableOutboundProtocolDetectTimeout" => disable_outbound_protocol_detect_timeout: bool,
        "enableExternalProfiles" => enable_external_profiles: bool,
        "enableShutdownEndpoint" => enable_shutdown_endpoint: bool,
        "experimentalEnv" => experimental_env: Vec<ProxyEnvVar>,
        "gid" => gid: i64,
        "inbound" => inbound: Parameters,
        "inboundConnectTimeout" => inbound_connect_timeout: String,
        "inboundDiscoveryCacheUnusedTimeout" => inbound_discovery_cache_unused_timeout: String,
        "isGateway" => is_gateway: bool,
        "isIngress" => is_ingress: bool,
        "logFormat" => log_format: String,
        "logHTTPHeaders" => log_http_headers: String,
        "logLevel" => log_level: String,
        "nativeSidecar" => native_sidecar: bool,
        "opaquePorts" => opaque_ports: String,
        "outbound" => outbound: Parameters,
        "outboundConnectTimeout" => outbound_connect_timeout: String,
        "outboundDiscoveryCacheUnusedTimeout" => outbound_discovery_cache_unused_timeout: String,
        "requireIdentityOnInboundPorts" => require_identity_on_inbound_ports: String,
        "runtime" => runtime: RuntimeValues,
        "saMountPath" => sa_mount_path: Option<MountValues>,
        "securityContext" => security_context: Untyped,
        "shutdownGracePeriod" => shutdown_grace_period: String,
        "startupProbe" => startup_probe: Option<StartupProbeValues>,
        "tracing" => tracing: Option<TracingValues>,
        "uid" => uid: i64,
        "waitBeforeExitSeconds" => wait_before_exit_seconds: u64,
    } required {
        "image" => image: ImageValues,
        "livenessProbe" => liveness_probe: ProbeValues,
        "metrics" => metrics: MetricsValues,
        "ports" => ports: PortsValues,
        "readinessProbe" => readiness_probe: ProbeValues,
        "resources" => resources: ResourcesValues,
    } unread {
        "podInboundPorts" => Text,
    } control_plane {
        "outboundTransportMode" => Text,
    }

    struct PortsValues {
        "admin" => admin: i32,
        "control" => control: i32,
        "inbound" => inbound: i32,
        "outbound" => outbound: i32,
    }

    struct ResourcesValues {
        "cpu" => cpu: ConstraintsValues,
        "ephemeral-storage" => ephemeral_storage: ConstraintsValues,
        "memory" => memory: ConstraintsValues,
    }

    struct ConstraintsValues {
        "limit" => limit: String,
        "request" => request: String,
    }

    struct ProbeValues {
        "initialDelaySeconds" => initial_delay_seconds: u64,
        "timeoutSeconds" => timeout_seconds: u64,
    }

    struct StartupProbeValues {
        "failureThreshold" => failure_threshold: u64,
        "initialDelaySeconds" => initial_delay_seconds: u64,
        "periodSeconds" => period_seconds: u64,
    }

    struct MetricsValues {
        "hostnameLabels" => hostname_labels: bool,
    }

    struct ControlValues {
        "streams" => streams: StreamsValues,
    }

    struct StreamsValues {
        "idleTimeout" => idle_timeout: String,
        "initialTimeout" => initial_timeout: String,
        "lifetime" => lifetime: String,
    }

    struct RuntimeValues {
        "workers" => workers: WorkersValues,
    }

    struct WorkersValues {
        "maximum" => maximum: i64,
        "maximumCPURatio" => maximum_cpu_ratio: f64,
        "minimum" => minimum: i64,
    } unread {
        // The name of maximumCPURatio in the first releases with it.
        "maximumByRatioOfAvailableCPUs" => f64::TYPE,
    }

    struct MountValues {
        "mountPath" => mount_path: String,
        "name" => name: String,
        "readOnly" => read_only: bool,
    }

    struct CapabilitiesValues {
        "add" => add: Vec<String>,
        "drop" => drop: Vec<String>,
    }

    struct TracingValues {
        "collector" => collector: CollectorValues,
        "enabled" => enabled: bool,
        "labels" => labels: TextMap,
        "protocol" => protocol: String,
        "traceServiceName" => trace_service_name: String,
    }

    struct CollectorValues {
        "endpoint" => endpoint: String,
        "meshIdentity" => mesh_identity: MeshIdentityValues,
    }

    struct MeshIdentityValues {
        "namespace" => namespace: String,
        "serviceAccountName" => service_account_name: String,
    }

    struct ProxyInitValues {
        "closeWaitTimeoutSecs" => close_wait_timeout_secs: i64,
        "ignoreInboundPorts" => ignore_inbound_ports: String,
        "ignoreOutboundPorts" => ignore_outbound_ports: String,
        "iptablesMode" => iptables_mode: String,
        "logFormat" => log_format: String,
        "logLevel" => log_level: String,
        "privileged" => privileged: bool,
        "runAsGroup" => run_as_group: i64,
        "runAsRoot" => run_as_root: bool,
        "runAsUser" => run_as_user: i64,
        "skipSubnets" => skip_subnets: String,
        "xtMountPath" => xt_mount_path: Option<MountValues>,
    } unread {
        "capabilities" => CapabilitiesValues::TYPE,
        "image" => ImageValues::TYPE,
        "saMountPath" => MountValues::TYPE,
    } control_plane {
        "kubeAPIServerPorts" => Text,
        "resources" => ResourcesValues::TYPE,
    }

    struct NetworkValidatorValues {
        "connectAddr" => connect_addr: String,
        "listenAddr" => listen_addr: String,
        "logFormat" => log_format: String,
        "logLevel" => log_level: String,
        "securityContext" => security_context: Untyped,
        "timeout" => timeout: String,
    } unread {
        "enableSecurityContext" => Bool,
    }

    /// A variable of an environment: Kubernetes' `EnvVar`.
    struct ProxyEnvVar {
        "name" => name: String,
        #[serde(deserialize_with = "text_or_null")]
        "value" => value: String,
        "valueFrom" => value_from: Option<EnvVarSource>,
    }
}

/// The source of a variable. It is not interpreted, so that sources of a newer Kubernetes are kept.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct EnvVarSource(pub(crate) Value);

impl GoTyped for EnvVarSource {
    const TYPE: GoType = Struct(&[
        is("configMapKeyRef", Struct(KEY_OF_AN_OBJECT)),
        is("fieldRef", Struct(&[is("apiVersion", Text), is("fieldPath", Text)])),
        is("fileKeyRef", Struct(&[is("key", Text), is("optional", Bool), is("path", Text), is("volumeName", Text)])),
        is("resourceFieldRef", Struct(&[is("containerName", Text), is("divisor", Quantity), is("resource", Text)])),
        is("secretKeyRef", Struct(KEY_OF_AN_OBJECT)),
    ]);
}

const KEY_OF_AN_OBJECT: &[GoField] = &[is("key", Text), is("name", Embedded(&Text)), is("optional", Bool)];

fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
