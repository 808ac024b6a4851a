//! The annotations that override values for one Pod.
//!
//! In: the annotations of a Pod and of its namespace. Out: the annotations that apply to the Pod, and those that it
//! inherits. Always holds: an annotation of the Pod hides that of its namespace, even if it is empty or invalid.

use std::collections::BTreeMap;

use crate::api::INJECT_ANNOTATION;

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

    /// Returns the annotations that the Pod inherits.
    pub(super) fn inherited(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let inherited = move |(key, _): &(&String, &String)| is_inherited(key) && !self.pod.contains_key(*key);
        self.namespace.iter().filter(inherited).map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the unknown keys of the Pod with Linkerd's prefix.
    pub(super) fn unknown(self) -> impl Iterator<Item = &'a str> {
        let is_known = |name: &str| INHERITED.contains(&name) || OF_PODS.contains(&name) || OF_OTHERS.contains(&name);
        let unknown = move |key: &&String| key.strip_prefix(PREFIX).is_some_and(|name| !is_known(name));
        self.pod.keys().filter(unknown).map(String::as_str)
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
    fn a_misspelled_annotation_is_unknown() {
        let pod = map(&[
            ("config.linkerd.io/proxy-loglevel", "debug"),
            ("config.linkerd.io/proxy-log-level", "debug"),
            ("config.linkerd.io/close-wait-timeout", "1s"),
            ("config.linkerd.io/reconcile", "true"),
            ("linkerd.io/inject", "enabled"),
        ]);
        let annotations = Annotations { pod: &pod, namespace: &AnnotationMap::new() };
        assert_eq!(annotations.unknown().collect::<Vec<_>>(), ["config.linkerd.io/proxy-loglevel"]);
    }
}
