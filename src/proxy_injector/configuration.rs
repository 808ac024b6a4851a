//! The configuration of the injector: one revision of the values and of the trust anchors.
//!
//! In: the text of the values document, the PEM of the trust anchors. Out: a [`Configuration`], or the reason why Pods
//! could not be injected with it. Always holds: a configuration in use has injected a probe Pod without an error, so
//! only annotations of a Pod can make its injection fail.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{
    annotations::AnnotationMap,
    inject::{Injector, ReviewTarget},
    reviewed::ReviewedObject,
};
use crate::{
    text::hex,
    values::{Document, ProxyValues},
};

/// One revision of the configuration.
pub(super) struct Configuration {
    pub(super) values: ProxyValues,
    pub(super) trust_anchors: String,
    /// The SHA-256 of the exact bytes of the trust anchors.
    pub(super) trust_anchors_hash: String,
    /// The hash of everything that affects injected Pods: the one in the document if a LinkerdConfig wrote it.
    pub(super) injection_hash: String,
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RefusedConfiguration {
    #[error("the values cannot be read: {0}")]
    Unreadable(String),
    #[error("the values have a wrong type, or lack a field that the injector requires: {0}")]
    WrongType(String),
    #[error("a Pod cannot be injected with these values: {0}")]
    NotRenderable(String),
}

// === impl Configuration ===

impl Configuration {
    /// Reads a configuration, and tries it with a Pod.
    ///
    /// # Errors
    /// When the values cannot be read, or when Pods could not be injected with them.
    pub(super) fn read(document: &str, trust_anchors: &str) -> Result<Self, RefusedConfiguration> {
        let (document, of_writer) =
            Document::read(document).map_err(|error| RefusedConfiguration::Unreadable(error.to_string()))?;
        let values = ProxyValues::read(document.as_map());
        let configuration = Self {
            values: values.map_err(|error| RefusedConfiguration::WrongType(error.to_string()))?,
            trust_anchors: trust_anchors.to_owned(),
            trust_anchors_hash: hex(Sha256::digest(trust_anchors.as_bytes())),
            injection_hash: of_writer
                .filter(|hash| !hash.is_empty())
                .unwrap_or_else(|| document.injection_hash().to_string()),
        };
        configuration.try_it()?;
        Ok(configuration)
    }

    fn try_it(&self) -> Result<(), RefusedConfiguration> {
        let injector = Injector { controller_namespace: "linkerd", version: "" };
        let none = AnnotationMap::new();
        let target = ReviewTarget { namespace: &none, namespace_name: "default", inject_label: None, workload: None };
        let probe = ReviewedObject::default();
        let containers = injector.pod_patch(self, target, &probe);
        containers.map(drop).map_err(|error| RefusedConfiguration::NotRenderable(error.to_string()))
    }
}

/// Shows no value.
impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Configuration({})", self.injection_hash)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::CONFIG_HASH_ENV,
        values::{InjectionHashes, Path},
    };

    const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

    /// Returns the values of the variable in the proxy of a Pod with this annotation.
    fn stamped(document: &str, additional_env: Option<&str>) -> Vec<String> {
        let configuration = Configuration::read(document, "anchors").unwrap();
        let annotation = |text: &str| ("config.linkerd.io/proxy-additional-env".to_owned(), text.to_owned());
        let mut pod = ReviewedObject::default();
        pod.metadata.annotations = additional_env.map(annotation).into_iter().collect();
        let (namespace, injector) = (AnnotationMap::new(), Injector { controller_namespace: "linkerd", version: "" });
        let target =
            ReviewTarget { namespace: &namespace, namespace_name: "default", inject_label: None, workload: None };
        let (patch, _) = injector.pod_patch(&configuration, target, &pod).unwrap();
        let patch = json!(patch);
        let proxy = patch.as_array().unwrap().iter().find(|it| it["value"]["name"] == "linkerd-proxy").unwrap();
        let variables = proxy["value"]["env"].as_array().unwrap().iter().filter(|it| it["name"] == CONFIG_HASH_ENV);
        variables.map(|it| it["value"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_pod_has_the_hash_that_a_linkerd_config_computes_for_the_same_document() {
        let (document, _) = Document::read(INSTALLED).unwrap();
        let wanted = InjectionHashes::default().of(&document);
        assert_eq!(stamped(INSTALLED, None), [wanted.as_str()]);
        let changed = |keys: &[&str], value| {
            let mut changed = document.clone();
            changed.set(&Path::from(keys), value);
            stamped(&changed.to_yaml(), None)
        };
        assert_eq!(changed(&["controllerReplicas"], json!(3)), [wanted.as_str()], "only the control plane reads it");
        assert_ne!(changed(&["proxy", "logLevel"], json!("debug")), [wanted.as_str()]);
    }

    #[test]
    fn the_hash_in_the_document_is_kept_once_and_a_pod_cannot_replace_it() {
        let (document, _) = Document::read(INSTALLED).unwrap();
        let written = document.with_injection_hash("v9_0123456789abcdef").to_yaml();
        let forged = r#"[{"name": "LINKERD_CONFIG_HASH", "value": "forged"}]"#;
        for annotation in [None, Some("[]"), Some(forged)] {
            assert_eq!(stamped(&written, annotation), ["v9_0123456789abcdef"], "{annotation:?}");
        }
        let computed = document.injection_hash().to_string();
        assert_eq!(stamped(INSTALLED, Some(forged)), [computed.as_str()]);
        assert_eq!(stamped(&document.with_injection_hash("").to_yaml(), None), [computed.as_str()]);
    }
}
