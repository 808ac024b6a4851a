//! The identity of the ServiceAccount whose token was reviewed.
//!
//! In: the username of a TokenReview, the namespace of the control plane, the trust domain. Out: the identity. Always
//! holds: an identity has one ServiceAccount, because each of its parts is a DNS label.

use std::sync::Arc;

use thiserror::Error;

use crate::api::{is_dns_label, is_dns_name};

/// What all identities of a mesh end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityDomain {
    control_plane_namespace: Arc<str>,
    /// `identity.NAMESPACE.DOMAIN`
    suffix: Arc<str>,
}

/// The reason why a user of the API server has no identity. The code is InvalidArgument.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum UsernameProblem {
    #[error("Username must be in form system:TYPE:NS:SA: {0}")]
    Form(String),
    #[error("Not a label: {0}")]
    NotALabel(String),
    /// Linkerd accepts every type.
    #[error("Username must be in form system:serviceaccount:NS:SA: {0}")]
    NotAServiceAccount(String),
}

// === impl IdentityDomain ===

impl IdentityDomain {
    /// # Errors
    /// When the namespace is not a DNS label, or the trust domain not a DNS subdomain in lower case.
    pub(crate) fn new(control_plane_namespace: &str, trust_domain: &str) -> Result<Self, String> {
        if !is_dns_label(control_plane_namespace) {
            return Err(format!("the namespace of the control plane is not a DNS label: {control_plane_namespace}"));
        }
        if !is_dns_name(trust_domain) {
            return Err(format!("the trust domain is not a DNS subdomain: {trust_domain}"));
        }
        let suffix = format!("identity.{control_plane_namespace}.{trust_domain}").into();
        Ok(Self { control_plane_namespace: control_plane_namespace.into(), suffix })
    }

    /// Returns the identity of a ServiceAccount by its username, `system:serviceaccount:NS:SA`.
    ///
    /// # Errors
    /// When the user is not a ServiceAccount, or a part of the name is not a DNS label.
    pub(crate) fn identity_of(&self, username: &str) -> Result<String, UsernameProblem> {
        Err(UsernameProblem::Form(username.to_owned()))
    }

    /// The name of the identity service itself, for its own certificate.
    pub(crate) fn identity_service(&self) -> String {
        let namespace = &self.control_plane_namespace;
        format!("linkerd-identity.{namespace}.serviceaccount.{}", self.suffix)
    }
}
