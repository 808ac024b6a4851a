//! The annotations that override values for one Pod.
//!
//! In: the annotations of a Pod and of its namespace. Out: the annotations that apply to the Pod, and those that it
//! inherits. Always holds: an annotation of the Pod hides that of its namespace, even if it is empty or invalid.

use std::collections::BTreeMap;

use crate::{
    api::{CREATED_BY_ANNOTATION, INJECT_ANNOTATION, PROXY_VERSION_ANNOTATION, TRUST_ROOT_ANNOTATION},
    go,
};

/// The prefix of the annotations below.
pub(super) const PREFIX: &str = "config.linkerd.io/";
/// The annotations that a Pod inherits from its namespace, without [`PREFIX`].
pub(super) const INHERITED: [&str; 40] = [
    "access-log",
    "admin-port",
    "control-port",
    "default-inbound-policy",
    "enable-debug-sidecar",
    "enable-external-profiles",
    "image-pull-policy",
    "inbound-port",
    "opaque-ports",
    "outbound-port",
    "pod-inbound-ports",
    "proxy-additional-env",
    "proxy-admin-shutdown",
    "proxy-await",
    "proxy-cpu-limit",
    "proxy-cpu-request",
    "proxy-disable-inbound-protocol-detect-timeout",
    "proxy-disable-outbound-protocol-detect-timeout",
    "proxy-enable-native-sidecar",
    "proxy-ephemeral-storage-limit",
    "proxy-ephemeral-storage-request",
    "proxy-gid",
    "proxy-image",
    "proxy-inbound-connect-timeout",
    "proxy-inbound-discovery-cache-unused-timeout",
    "proxy-log-format",
    "proxy-log-http-headers",
    "proxy-log-level",
    "proxy-memory-limit",
    "proxy-memory-request",
    "proxy-metrics-hostname-labels",
    "proxy-outbound-connect-timeout",
    "proxy-outbound-discovery-cache-unused-timeout",
    "proxy-require-identity-inbound-ports",
    "proxy-uid",
    "proxy-version",
    "shutdown-grace-period",
    "skip-inbound-ports",
    "skip-outbound-ports",
    "skip-subnets",
];
/// The annotations with other prefixes that a Pod inherits.
const INHERITED_OTHERS: [&str; 3] = [NATIVE_SIDECAR_ALPHA, WAIT_BEFORE_EXIT, INJECT_ANNOTATION];
/// The annotations without [`PREFIX`] that only a Pod may have.
const OF_PODS: [&str; 6] = [
    "close-wait-timeout",
    "debug-image",
    "debug-image-pull-policy",
    "debug-image-version",
    "enable-gateway",
    "proxy-cpu-ratio-limit",
];
/// Annotations without [`PREFIX`] for which the injector is not responsible: those of policies and of this operator.
const OF_OTHERS: [&str; 3] = ["admission-webhooks", "reconcile", "restarted-for"];
/// The annotations with the prefix [`LINKERD`] that Linkerd and its injector write or read.
const OF_LINKERD: [&str; 5] = [
    CREATED_BY_ANNOTATION,
    "linkerd.io/helm-release-version",
    INJECT_ANNOTATION,
    PROXY_VERSION_ANNOTATION,
    TRUST_ROOT_ANNOTATION,
];
/// The prefix of annotations that configure nothing, except for [`INJECT_ANNOTATION`].
pub(super) const LINKERD: &str = "linkerd.io/";
/// The prefixes of the annotations of proxies.
const PREFIXES: [&str; 3] = [PREFIX, "config.alpha.linkerd.io/", "config.beta.linkerd.io/"];

pub(super) const NATIVE_SIDECAR_BETA: &str = "config.beta.linkerd.io/proxy-enable-native-sidecar";
pub(super) const NATIVE_SIDECAR_ALPHA: &str = "config.alpha.linkerd.io/proxy-enable-native-sidecar";
pub(super) const WAIT_BEFORE_EXIT: &str = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
/// The prefix of the annotations with attributes of traces.
pub(super) const OPENTELEMETRY: &str = "resource.opentelemetry.io/";

/// The annotations of an object, as the API server holds them.
pub(super) type AnnotationMap = BTreeMap<String, String>;

/// The annotations that apply to a Pod: its own, and those that it inherits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Annotations<'a> {
    pub(super) pod: &'a AnnotationMap,
    pub(super) namespace: &'a AnnotationMap,
}

// === impl Annotations ===

impl<'a> Annotations<'a> {
    /// Returns the value of an annotation with the prefix `config.linkerd.io/`.
    pub(super) fn get(self, name: &str) -> Option<&'a str> {
        self.whole(&format!("{PREFIX}{name}"))
    }

    /// Returns the value of an annotation, by its whole key.
    pub(super) fn whole(self, key: &str) -> Option<&'a str> {
        let own = self.pod.get(key).or_else(|| self.namespace.get(key).filter(|_| is_inherited(key)));
        own.map(String::as_str)
    }

    /// Returns whether the Pod gets a debug container.
    pub(super) fn is_debugged(self) -> bool {
        self.get("enable-debug-sidecar").and_then(go::bool::parse).unwrap_or_default()
    }

    /// Returns the annotations that the Pod inherits.
    pub(super) fn inherited(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let inherited = move |(key, _): &(&String, &String)| is_inherited(key) && !self.pod.contains_key(*key);
        self.namespace.iter().filter(inherited).map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// The meaning of an annotation for a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnnotationKind {
    /// It configures a proxy, also in the namespace of its Pod.
    Inherited,
    /// It configures the proxy of the Pod that has it.
    OfPod,
    /// It has a prefix of Linkerd and no meaning.
    Unknown,
    /// It has nothing to do with proxies.
    Other,
}

// === impl AnnotationKind ===

impl AnnotationKind {
    pub(super) fn of(key: &str) -> Self {
        let is_other = OF_LINKERD.contains(&key) || key.strip_prefix(PREFIX).is_some_and(|it| OF_OTHERS.contains(&it));
        match key {
            _ if is_inherited(key) => Self::Inherited,
            _ if is_other => Self::Other,
            NATIVE_SIDECAR_BETA => Self::OfPod,
            _ if key.strip_prefix(PREFIX).is_some_and(|it| OF_PODS.contains(&it)) => Self::OfPod,
            _ if key.starts_with(LINKERD) || PREFIXES.iter().any(|prefix| key.starts_with(prefix)) => Self::Unknown,
            _ => Self::Other,
        }
    }
}

fn is_inherited(key: &str) -> bool {
    INHERITED_OTHERS.contains(&key) || key.strip_prefix(PREFIX).is_some_and(|name| INHERITED.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> AnnotationMap {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_pod_inherits_what_it_does_not_have_itself() {
        let namespace = map(&[
            ("config.linkerd.io/proxy-log-level", "debug"),
            ("config.linkerd.io/proxy-cpu-request", "1"),
            ("config.linkerd.io/enable-gateway", "true"),
            ("config.beta.linkerd.io/proxy-enable-native-sidecar", "true"),
            ("linkerd.io/inject", "enabled"),
            ("other", "x"),
        ]);
        let pod = map(&[("config.linkerd.io/proxy-cpu-request", "")]);
        let annotations = Annotations { pod: &pod, namespace: &namespace };
        assert_eq!(annotations.get("proxy-log-level"), Some("debug"));
        assert_eq!(annotations.get("proxy-cpu-request"), Some(""), "also an empty one hides that of the namespace");
        assert_eq!((annotations.get("enable-gateway"), annotations.whole("other")), (None, None));
        let inherited: Vec<_> = annotations.inherited().collect();
        assert_eq!(inherited, [("config.linkerd.io/proxy-log-level", "debug"), ("linkerd.io/inject", "enabled")]);
    }

    #[test]
    fn an_annotation_with_a_prefix_of_linkerd_is_known_or_a_mistake() {
        use AnnotationKind::{Inherited, OfPod, Other, Unknown};
        for (key, kind) in [
            ("config.linkerd.io/proxy-log-level", Inherited),
            ("linkerd.io/inject", Inherited),
            ("config.alpha.linkerd.io/proxy-wait-before-exit-seconds", Inherited),
            ("config.linkerd.io/close-wait-timeout", OfPod),
            ("config.beta.linkerd.io/proxy-enable-native-sidecar", OfPod),
            ("config.linkerd.io/proxy-loglevel", Unknown),
            ("config.alpha.linkerd.io/proxy-wait-before-exit-secs", Unknown),
            ("config.beta.linkerd.io/proxy-enable-native-sidecars", Unknown),
            ("linkerd.io/injected", Unknown),
            ("linkerd.io/created-by", Other),
            ("config.linkerd.io/reconcile", Other),
            ("viz.linkerd.io/tap-enabled", Other),
            ("example.com/inject", Other),
        ] {
            assert_eq!(AnnotationKind::of(key), kind, "{key}");
        }
    }
}
