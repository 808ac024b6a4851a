//! The annotation `linkerd.io/inject` of a namespace, a template or a Pod.

use std::collections::BTreeMap;

use crate::api::INJECT_ANNOTATION;

/// The annotation `linkerd.io/inject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inject {
    /// `enabled` or `ingress`.
    Enabled,
    Disabled,
    /// Any other value, the empty one included. On a Pod it still overrides the annotation of the namespace.
    Invalid,
    #[default]
    Absent,
}

// === impl Inject ===

impl Inject {
    pub(in crate::cluster) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        match annotations.and_then(|all| all.get(INJECT_ANNOTATION)).map(String::as_str) {
            None => Self::Absent,
            Some("enabled" | "ingress") => Self::Enabled,
            Some("disabled") => Self::Disabled,
            Some(_) => Self::Invalid,
        }
    }

    /// Returns the value of a Pod or template, or that of its namespace if the annotation is absent.
    pub fn or(self, of_namespace: Self) -> Self {
        if self == Self::Absent { of_namespace } else { self }
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
            ("", Inject::Invalid),
        ] {
            let annotations = BTreeMap::from([(INJECT_ANNOTATION.to_owned(), value.to_owned())]);
            assert_eq!(Inject::of(Some(&annotations)), expected, "{value:?}");
        }
    }
}
