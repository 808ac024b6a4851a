//! Linkerd's keys and their Go types, from `pkg/charts/linkerd2/values.go` and from the charts of later releases.
//!
//! A key that is not listed is kept and not checked: Go ignores unknown keys, and a newer Linkerd may use them.

/// The type of a value, with the types below it.
#[derive(Clone, Copy, Debug)]
pub(super) enum GoType {
    Text,
    Bool,
    /// Whole numbers, with the bounds of the Go type.
    Int(i64, i64),
    Uint,
    /// The largest number of the Go type.
    Float(f64),
    /// A string in some releases of Linkerd and a number in others, so it is not converted.
    Scalar,
    List(&'static GoType),
    /// A map with any keys.
    Map(&'static GoType),
    Struct(&'static [GoField]),
    /// A field of an embedded struct. Go's YAML reader does not find its type, so a number is not converted to a
    /// string.
    Embedded(&'static GoType),
    Any,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GoField {
    pub(super) name: &'static str,
    pub(super) holds: GoType,
}

const fn is(name: &'static str, holds: GoType) -> GoField {
    GoField { name, holds }
}

use GoType::{Any, Bool, Embedded, Float, List, Map, Scalar, Struct, Text, Uint};

const INT: GoType = GoType::Int(i64::MIN, i64::MAX);
const INT32: GoType = GoType::Int(i32::MIN as i64, i32::MAX as i64);
const TEXTS: GoType = Map(&Text);

pub(super) static VALUES: GoType = Struct(&[
    is("cliVersion", Text),
    is("clusterDomain", Text),
    is("clusterNetworks", Text),
    is("cniEnabled", Bool),
    is("configs", Struct(&[is("global", Text), is("proxy", Text), is("install", Text)])),
    is(
        "controller",
        Struct(&[is("podDisruptionBudget", Struct(&[is("maxUnavailable", Scalar)])), is("tracing", TRACING)]),
    ),
    is("controllerGID", INT),
    is("controllerImage", Text),
    is("controllerLogFormat", Text),
    is("controllerLogLevel", Text),
    is("controllerReplicas", Uint),
    is("controllerUID", INT),
    is("controlPlaneTracing", Bool),
    is("controlPlaneTracingNamespace", Text),
    is("debugContainer", Struct(&[is("image", IMAGE)])),
    is("deploymentStrategy", Map(&Any)),
    is("destinationController", Struct(&[is("meshedHttp2ClientProtobuf", Map(&Any)), is("podAnnotations", TEXTS)])),
    is("destinationProxyResources", RESOURCES),
    is("destinationResources", RESOURCES),
    is("disableHeartBeat", Bool),
    is("disableIPv6", Bool),
    is("egress", Struct(&[is("globalEgressNetworkNamespace", Text)])),
    is("enableEndpointSlices", Bool),
    is("enableH2Upgrade", Bool),
    is("enablePodAntiAffinity", Bool),
    is("enablePodDisruptionBudget", Bool),
    is("heartbeat", Map(&Any)),
    is("heartbeatResources", RESOURCES),
    is("heartbeatSchedule", Text),
    is("highAvailability", Bool),
    is("identity", IDENTITY),
    is("identityProxyResources", RESOURCES),
    is("identityResources", RESOURCES),
    is("identityTrustAnchorsPEM", Text),
    is("identityTrustDomain", Text),
    is("imagePullPolicy", Text),
    is("imagePullSecrets", List(&TEXTS)),
    is("linkerdVersion", Text),
    is("networkValidator", NETWORK_VALIDATOR),
    is("nodeAffinity", Map(&Any)),
    is("nodeSelector", TEXTS),
    is("podAnnotations", TEXTS),
    is("podLabels", TEXTS),
    is("podMonitor", POD_MONITOR),
    is("policyController", POLICY_CONTROLLER),
    is("policyValidator", Struct(WEBHOOK)),
    is("priorityClassName", Text),
    is("profileValidator", Struct(WEBHOOK)),
    is("prometheusUrl", Text),
    is("proxy", PROXY),
    is("proxyContainerName", Text),
    is("proxyInit", PROXY_INIT),
    is("proxyInjector", PROXY_INJECTOR),
    is("proxyInjectorProxyResources", RESOURCES),
    is("proxyInjectorResources", RESOURCES),
    is("revisionHistoryLimit", Uint),
    is("spValidator", Map(&Any)),
    is("tolerations", List(&Any)),
    is("webhookFailurePolicy", Text),
]);

const PROXY: GoType = Struct(&[
    is("accessLog", Text),
    is("additionalEnv", ENV),
    is("await", Bool),
    is("capabilities", CAPABILITIES),
    is(
        "control",
        Struct(&[is("streams", Struct(&[is("idleTimeout", Text), is("initialTimeout", Text), is("lifetime", Text)]))]),
    ),
    is("cores", INT),
    is("defaultInboundPolicy", Text),
    is("disableInboundProtocolDetectTimeout", Bool),
    is("disableOutboundProtocolDetectTimeout", Bool),
    is("enableExternalProfiles", Bool),
    is("enableShutdownEndpoint", Bool),
    is("experimentalEnv", ENV),
    is("gid", INT),
    is("image", IMAGE),
    is("inbound", PARAMETERS),
    is("inboundConnectTimeout", Text),
    is("inboundDiscoveryCacheUnusedTimeout", Text),
    is("isGateway", Bool),
    is("isIngress", Bool),
    is("livenessProbe", PROBE),
    is("logFormat", Text),
    is("logHTTPHeaders", Text),
    is("logLevel", Text),
    is("metrics", Struct(&[is("hostnameLabels", Bool)])),
    is("nativeSidecar", Bool),
    is("opaquePorts", Text),
    is("outbound", PARAMETERS),
    is("outboundConnectTimeout", Text),
    is("outboundDiscoveryCacheUnusedTimeout", Text),
    is("outboundTransportMode", Text),
    is("podInboundPorts", Text),
    is("ports", Struct(&[is("admin", INT32), is("control", INT32), is("inbound", INT32), is("outbound", INT32)])),
    is("readinessProbe", PROBE),
    is("requireIdentityOnInboundPorts", Text),
    is("resources", RESOURCES),
    is(
        "runtime",
        Struct(&[is(
            "workers",
            Struct(&[
                is("maximum", INT),
                // The name in the first releases with this field.
                is("maximumByRatioOfAvailableCPUs", Float(f64::MAX)),
                is("maximumCPURatio", Float(f64::MAX)),
                is("minimum", INT),
            ]),
        )]),
    ),
    is("saMountPath", MOUNT),
    is("securityContext", Map(&Any)),
    is("shutdownGracePeriod", Text),
    is(
        "startupProbe",
        Struct(&[is("failureThreshold", Uint), is("initialDelaySeconds", Uint), is("periodSeconds", Uint)]),
    ),
    is("tracing", TRACING),
    is("uid", INT),
    is("waitBeforeExitSeconds", Uint),
]);

const PROXY_INIT: GoType = Struct(&[
    is("capabilities", CAPABILITIES),
    is("closeWaitTimeoutSecs", INT),
    is("ignoreInboundPorts", Text),
    is("ignoreOutboundPorts", Text),
    is("image", IMAGE),
    is("iptablesMode", Text),
    is("kubeAPIServerPorts", Text),
    is("logFormat", Text),
    is("logLevel", Text),
    is("privileged", Bool),
    is("resources", RESOURCES),
    is("runAsGroup", INT),
    is("runAsRoot", Bool),
    is("runAsUser", INT),
    is("saMountPath", MOUNT),
    is("skipSubnets", Text),
    is("xtMountPath", MOUNT),
]);

const NETWORK_VALIDATOR: GoType = Struct(&[
    is("connectAddr", Text),
    is("enableSecurityContext", Bool),
    is("listenAddr", Text),
    is("logFormat", Text),
    is("logLevel", Text),
    is("securityContext", Map(&Any)),
    is("timeout", Text),
]);

const IDENTITY: GoType = Struct(&[
    is("additionalEnv", ENV),
    is("experimentalEnv", ENV),
    is("externalCA", Bool),
    is(
        "issuer",
        Struct(&[
            is("clockSkewAllowance", Text),
            is("issuanceLifetime", Text),
            is("scheme", Text),
            is("tls", Struct(&[is("crtPEM", Text), is("keyPEM", Text)])),
        ]),
    ),
    is("kubeAPI", Struct(&[is("clientBurst", INT), is("clientQPS", Float(f32::MAX as f64))])),
    is("podAnnotations", TEXTS),
    is("serviceAccountTokenProjection", Bool),
]);

const WEBHOOK: &[GoField] = &[
    is("caBundle", Embedded(&Text)),
    is("crtPEM", Embedded(&Text)),
    is("externalSecret", Embedded(&Bool)),
    is("injectCaFrom", Embedded(&Text)),
    is("injectCaFromSecret", Embedded(&Text)),
    is("keyPEM", Embedded(&Text)),
    is("namespaceSelector", SELECTOR),
];

const PROXY_INJECTOR: GoType = Struct(&[
    is("additionalEnv", ENV),
    is("caBundle", Embedded(&Text)),
    is("crtPEM", Embedded(&Text)),
    is("experimentalEnv", ENV),
    is("externalSecret", Embedded(&Bool)),
    is("injectCaFrom", Embedded(&Text)),
    is("injectCaFromSecret", Embedded(&Text)),
    is("keyPEM", Embedded(&Text)),
    is("namespaceSelector", Embedded(&SELECTOR)),
    is("podAnnotations", TEXTS),
]);

const POD_MONITOR: GoType = Struct(&[
    is("controller", Struct(&[is("enabled", Bool), is("honorTimestamps", Bool), is("namespaceSelector", Text)])),
    is("enabled", Bool),
    is("proxy", Struct(&[is("enabled", Bool), is("honorTimestamps", Bool)])),
    is("scrapeInterval", Text),
    is("scrapeTimeout", Text),
    is("serviceMirror", Struct(&[is("enabled", Bool), is("honorTimestamps", Bool)])),
]);

const POLICY_CONTROLLER: GoType =
    Struct(&[is("image", IMAGE), is("logLevel", Text), is("probeNetworks", List(&Text)), is("resources", RESOURCES)]);

const TRACING: GoType = Struct(&[
    is(
        "collector",
        Struct(&[
            is("endpoint", Text),
            is("meshIdentity", Struct(&[is("namespace", Text), is("serviceAccountName", Text)])),
        ]),
    ),
    is("enabled", Bool),
    is("labels", TEXTS),
    is("protocol", Text),
    is("traceServiceName", Text),
]);

const IMAGE: GoType = Struct(&[is("name", Text), is("pullPolicy", Text), is("version", Text)]);
const MOUNT: GoType = Struct(&[is("mountPath", Text), is("name", Text), is("readOnly", Bool)]);
const PROBE: GoType = Struct(&[is("initialDelaySeconds", Uint), is("timeoutSeconds", Uint)]);
const CAPABILITIES: GoType = Struct(&[is("add", List(&Text)), is("drop", List(&Text))]);
const CONSTRAINTS: GoType = Struct(&[is("limit", Text), is("request", Text)]);
const RESOURCES: GoType =
    Struct(&[is("cpu", CONSTRAINTS), is("ephemeral-storage", CONSTRAINTS), is("memory", CONSTRAINTS)]);
/// Parameters, by scope and protocol.
const PARAMETERS: GoType = Map(&Map(&Map(&Any)));

/// A list of Kubernetes' `EnvVar`.
const ENV: GoType = List(&Struct(&[
    is("name", Text),
    is("value", Text),
    is(
        "valueFrom",
        Struct(&[
            is("configMapKeyRef", Struct(KEY_OF_AN_OBJECT)),
            is(
                "fileKeyRef",
                Struct(&[is("key", Text), is("optional", Bool), is("path", Text), is("volumeName", Text)]),
            ),
            is("fieldRef", Struct(&[is("apiVersion", Text), is("fieldPath", Text)])),
            is("resourceFieldRef", Struct(&[is("containerName", Text), is("divisor", Any), is("resource", Text)])),
            is("secretKeyRef", Struct(KEY_OF_AN_OBJECT)),
        ]),
    ),
]));
const KEY_OF_AN_OBJECT: &[GoField] = &[is("key", Text), is("name", Embedded(&Text)), is("optional", Bool)];
const SELECTOR: GoType = Struct(&[
    is("matchExpressions", List(&Struct(&[is("key", Text), is("operator", Text), is("values", List(&Text))]))),
    is("matchLabels", TEXTS),
]);
