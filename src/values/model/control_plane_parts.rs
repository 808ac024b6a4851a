//! The Go types of the maps that only the control plane reads. No code of the operator reads their fields.

use super::proxy_values::{ImageValues, ProxyEnvVar, ResourcesValues, TextMap, TracingValues, Untyped};
use crate::go::types::{
    GoField, GoType,
    GoType::{Bool, Embedded, List, Scalar, Struct, Text},
    GoTyped, is,
};

pub(super) const CONFIGS: GoType = Struct(&[is("global", Text), is("install", Text), is("proxy", Text)]);

pub(super) const CONTROLLER: GoType =
    Struct(&[is("podDisruptionBudget", Struct(&[is("maxUnavailable", Scalar)])), is("tracing", TracingValues::TYPE)]);

pub(super) const DESTINATION_CONTROLLER: GoType =
    Struct(&[is("meshedHttp2ClientProtobuf", Untyped::TYPE), is("podAnnotations", TextMap::TYPE)]);

pub(super) const EGRESS: GoType = Struct(&[is("globalEgressNetworkNamespace", Text)]);

pub(super) const ISSUER: GoType = Struct(&[
    is("clockSkewAllowance", Text),
    is("issuanceLifetime", Text),
    is("scheme", Text),
    is("tls", Struct(&[is("crtPEM", Text), is("keyPEM", Text)])),
]);

pub(super) const KUBE_API: GoType = Struct(&[is("clientBurst", i64::TYPE), is("clientQPS", f32::TYPE)]);

pub(super) const POD_MONITOR: GoType = Struct(&[
    is("controller", Struct(&[is("enabled", Bool), is("honorTimestamps", Bool), is("namespaceSelector", Text)])),
    is("enabled", Bool),
    is("proxy", Struct(&[is("enabled", Bool), is("honorTimestamps", Bool)])),
    is("scrapeInterval", Text),
    is("scrapeTimeout", Text),
    is("serviceMirror", Struct(&[is("enabled", Bool), is("honorTimestamps", Bool)])),
]);

pub(super) const POLICY_CONTROLLER: GoType = Struct(&[
    is("image", ImageValues::TYPE),
    is("logLevel", Text),
    is("probeNetworks", List(&Text)),
    is("resources", ResourcesValues::TYPE),
]);

pub(super) const WEBHOOK: &[GoField] = &[
    is("caBundle", Embedded(&Text)),
    is("crtPEM", Embedded(&Text)),
    is("externalSecret", Embedded(&Bool)),
    is("injectCaFrom", Embedded(&Text)),
    is("injectCaFromSecret", Embedded(&Text)),
    is("keyPEM", Embedded(&Text)),
    is("namespaceSelector", SELECTOR),
];

pub(super) const PROXY_INJECTOR: GoType = Struct(&[
    is("additionalEnv", Vec::<ProxyEnvVar>::TYPE),
    is("caBundle", Embedded(&Text)),
    is("crtPEM", Embedded(&Text)),
    is("experimentalEnv", Vec::<ProxyEnvVar>::TYPE),
    is("externalSecret", Embedded(&Bool)),
    is("injectCaFrom", Embedded(&Text)),
    is("injectCaFromSecret", Embedded(&Text)),
    is("keyPEM", Embedded(&Text)),
    is("namespaceSelector", Embedded(&SELECTOR)),
    is("podAnnotations", TextMap::TYPE),
]);

const SELECTOR: GoType = Struct(&[
    is("matchExpressions", List(&Struct(&[is("key", Text), is("operator", Text), is("values", List(&Text))]))),
    is("matchLabels", TextMap::TYPE),
]);
