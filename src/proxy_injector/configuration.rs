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
    values::ProxyValues,
};
use crate::{text::hex, values::Document};

/// One revision of the configuration.
pub(super) struct Configuration {
    pub(super) values: ProxyValues,
    pub(super) trust_anchors: String,
    /// The SHA-256 of the exact bytes of the trust anchors.
    pub(super) trust_anchors_hash: String,
    /// The hash of everything that affects injected Pods.
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
        let document =
            Document::parse(document).map_err(|error| RefusedConfiguration::Unreadable(error.to_string()))?;
        let values = ProxyValues::read(document.as_map());
        let configuration = Self {
            values: values.map_err(|error| RefusedConfiguration::WrongType(error.to_string()))?,
            trust_anchors: trust_anchors.to_owned(),
            trust_anchors_hash: hex(Sha256::digest(trust_anchors.as_bytes())),
            injection_hash: document.injection_hash().to_string(),
        };
        configuration.try_it()?;
        Ok(configuration)
    }

    fn try_it(&self) -> Result<(), RefusedConfiguration> {
        let injector = Injector { controller_namespace: "linkerd", version: "" };
        let none = AnnotationMap::new();
        let target = ReviewTarget { namespace: &none, namespace_name: "default", workload: None };
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
