//! The annotation `linkerd.io/inject` of a namespace, a template or a Pod, and the annotations that a workload has in the
//! place of its template.

use std::collections::BTreeMap;

use crate::api::INJECT_ANNOTATION;

/// The annotation `linkerd.io/inject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inject {
    /// `enabled` or `ingress`.
    Enabled,
    Disabled,
    /// Any other value. On a Pod it still overrides the annotation of the namespace.
    Invalid,
    /// No value, or an empty one.
    #[default]
    Absent,
}

/// Linkerd's annotations of a workload itself. Its Pods do not get them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAnnotations {
    pub inject: Inject,
    /// The keys of the annotations that configure proxies: the first `MOST_KEYS`.
    pub keys: Box<[Box<str>]>,
}

/// The prefixes of annotations that configure proxies.
const OF_PROXIES: [&str; 3] = ["config.linkerd.io/", "config.alpha.linkerd.io/", "config.beta.linkerd.io/"];
/// The prefix of the operator's own record of a restart.
const OF_ROLLOUTS: &str = "config.linkerd.io/rollout-";
/// The maximum number of keys of a workload, and the length of a key. No annotation of a proxy is longer.
const MOST_KEYS: usize = 8;
const LONGEST_KEY: usize = 80;

// === impl OwnAnnotations ===

impl OwnAnnotations {
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let is_kept = |key: &&String| {
            key.len() <= LONGEST_KEY
                && OF_PROXIES.iter().any(|prefix| key.starts_with(prefix))
                && !key.starts_with(OF_ROLLOUTS)
        };
        let keys = annotations.into_iter().flatten().map(|(key, _)| key).filter(is_kept);
        Self { inject: Inject::of(annotations), keys: keys.take(MOST_KEYS).map(|key| key.as_str().into()).collect() }
    }
}

// === impl Inject ===

impl Inject {
    pub(in crate::cluster) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        match annotations.and_then(|all| all.get(INJECT_ANNOTATION)).map(String::as_str) {
            None | Some("") => Self::Absent,
            Some("enabled" | "ingress") => Self::Enabled,
            Some("disabled") => Self::Disabled,
            Some(_) => Self::Invalid,
        }
    }

    /// Returns the value of a Pod or template, or that of its namespace if the annotation is absent.
    pub fn or(self, of_namespace: Self) -> Self {
        if self == Self::Absent { of_namespace } else { self }
    }

    /// Whether the injector injects a proxy into a Pod with this annotation. An invalid annotation of the namespace
    /// prevents that for all its Pods.
    pub fn requests_proxy(self, of_namespace: Self) -> bool {
        of_namespace != Self::Invalid && self.or(of_namespace) == Self::Enabled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_is_invalid_and_not_absent() {
        assert_eq!(Inject::of(None), Inject::Absent);
        for (value, expected) in [
            ("enabled", Inject::Enabled),
            ("ingress", Inject::Enabled),
            ("disabled", Inject::Disabled),
            ("Enabled", Inject::Invalid),
            ("", Inject::Absent),
        ] {
            let annotations = BTreeMap::from([(INJECT_ANNOTATION.to_owned(), value.to_owned())]);
            assert_eq!(Inject::of(Some(&annotations)), expected, "{value:?}");
        }
    }

    #[test]
    fn few_and_short_keys_of_a_workload_are_kept() {
        let mut annotations: BTreeMap<String, String> =
            (0..100).map(|number| (format!("config.linkerd.io/x{number:03}"), "x".repeat(1000))).collect();
        annotations.insert(format!("config.linkerd.io/{}", "a".repeat(1000)), String::new());
        for key in ["linkerd.io/inject", "config.linkerd.io/rollout-hash", "config.example.com/a", "team"] {
            annotations.insert(key.to_owned(), "disabled".to_owned());
        }
        annotations.insert("config.alpha.linkerd.io/proxy-enable-native-sidecar".to_owned(), "true".to_owned());
        let OwnAnnotations { inject, keys } = OwnAnnotations::of(Some(&annotations));
        assert_eq!((inject, keys.len()), (Inject::Disabled, 8));
        let alpha = "config.alpha.linkerd.io/proxy-enable-native-sidecar";
        assert_eq!((&*keys[0], &*keys[1]), (alpha, "config.linkerd.io/x000"));
        assert_eq!(OwnAnnotations::of(None), OwnAnnotations::default());
    }

    /// The recorded decisions of Linkerd's injector for each pair of annotations.
    #[test]
    fn a_proxy_is_requested_as_by_linkerds_table() {
        use Inject::{Absent, Disabled, Enabled, Invalid};
        for (of_namespace, injected) in [
            (Enabled, [true, true, false, false]),
            (Disabled, [false, true, false, false]),
            (Absent, [false, true, false, false]),
            (Invalid, [false, false, false, false]),
        ] {
            let requested = [Absent, Enabled, Disabled, Invalid].map(|of_pod| of_pod.requests_proxy(of_namespace));
            assert_eq!(requested, injected, "{of_namespace:?}");
        }
    }
}
