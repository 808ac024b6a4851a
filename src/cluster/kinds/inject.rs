//! The annotation `linkerd.io/inject` of a namespace, a template or a Pod.

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
