//! Namespaces in which Linkerd's injector cannot inject. Pure.

use crate::{api::ADDITIONAL_ENV_ANNOTATION, cluster::kinds::namespace::Namespace};

/// The prefixes of the annotations that Linkerd's injector copies from a namespace to its Pods.
const COPIED: [&str; 2] = ["config.linkerd.io/", "config.alpha.linkerd.io/"];

/// Returns the annotation of a namespace that makes the injector's patch invalid: Pods start without a proxy, or not at
/// all. The injector writes inherited values into JSON without escaping them, and it cannot append to a list of
/// variables that does not exist yet.
pub(super) fn breaking_annotation(namespace: &Namespace) -> Option<&str> {
    let is_inherited = |key: &str| COPIED.into_iter().any(|prefix| key.starts_with(prefix));
    let breaks = |key: &str, value: &str| key == ADDITIONAL_ENV_ANNOTATION || is_inherited(key) && value.contains('"');
    namespace.inherited_annotations.iter().find(|(key, value)| breaks(key, value)).map(|(key, _)| &**key)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::cluster::{Problems, Projected};

    #[test]
    fn the_annotation_that_breaks_the_injection_is_named() {
        for (annotations, expected) in [
            (json!(null), None),
            (json!({"config.linkerd.io/opaque-ports": "80", "note": "a \"quote\""}), None),
            (json!({"linkerd.io/note": "a\"b", "config.beta.linkerd.io/proxy-enable-native-sidecar": "\""}), None),
            (json!({"config.linkerd.io/proxy-additional-env": "[]"}), Some("config.linkerd.io/proxy-additional-env")),
            (json!({"config.linkerd.io/access-log": "a\"b"}), Some("config.linkerd.io/access-log")),
            (
                json!({"config.alpha.linkerd.io/proxy-wait-before-exit-seconds": "\""}),
                Some("config.alpha.linkerd.io/proxy-wait-before-exit-seconds"),
            ),
        ] {
            let object = json!({"metadata": {"name": "ns", "annotations": annotations}});
            let namespace = Namespace::project(from_value(object).unwrap(), &mut Problems::default());
            assert_eq!(breaking_annotation(&namespace), expected, "{annotations}");
        }
    }
}
