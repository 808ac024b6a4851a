//! What a namespace or a Pod says about its injection.

use std::collections::BTreeMap;

use crate::api::INJECT_ANNOTATION;

/// The annotation `linkerd.io/inject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inject {
    /// As a proxy, or as an ingress.
    Enabled,
    Disabled,
    /// It is there and says nothing that the injector knows: on a Pod it hides what the namespace says, even when it is empty.
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

    /// What a Pod or a template says, and where it says nothing its namespace.
    pub fn or(self, of_namespace: Self) -> Self {
        if self == Self::Absent { of_namespace } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_injector_does_not_know_is_not_the_same_as_nothing() {
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
