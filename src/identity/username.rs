//! The identity of the ServiceAccount whose token was reviewed.
//!
//! In: the username of a TokenReview, the namespace of the control plane, the trust domain. Out: the identity. Always
//! holds: an identity has one ServiceAccount, because each of its parts is a DNS label.

use std::sync::Arc;

use thiserror::Error;

use crate::{
    api::{LONGEST_NAME, is_dns_label},
    text::truncate,
};

/// The maximum length of a username in the text of a problem, in bytes.
const SHOWN_USERNAME: usize = 512;

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
        if trust_domain.len() > LONGEST_NAME || !trust_domain.split('.').all(is_dns_label) {
            return Err(format!("the trust domain is not a DNS subdomain in lower case: {trust_domain}"));
        }
        let suffix = format!("identity.{control_plane_namespace}.{trust_domain}").into();
        Ok(Self { control_plane_namespace: control_plane_namespace.into(), suffix })
    }

    /// Returns the identity of a ServiceAccount by its username, `system:serviceaccount:NS:SA`.
    ///
    /// # Errors
    /// When the user is not a ServiceAccount, or a part of the name is not a DNS label.
    pub(crate) fn identity_of(&self, username: &str) -> Result<String, UsernameProblem> {
        let mut parts = username.split(':');
        let all = [parts.next(), parts.next(), parts.next(), parts.next(), parts.next()];
        let [Some("system"), Some(kind), Some(namespace), Some(name), None] = all else {
            return Err(UsernameProblem::Form(shown(username)));
        };
        if let Some(part) = [kind, namespace, name].into_iter().find(|part| !is_dns_label(part)) {
            return Err(UsernameProblem::NotALabel(shown(part)));
        }
        if kind != "serviceaccount" {
            return Err(UsernameProblem::NotAServiceAccount(shown(username)));
        }
        Ok(format!("{name}.{namespace}.serviceaccount.{}", self.suffix))
    }

    /// The name of the identity service itself, for its own certificate.
    pub(crate) fn identity_service(&self) -> String {
        let namespace = &self.control_plane_namespace;
        format!("linkerd-identity.{namespace}.serviceaccount.{}", self.suffix)
    }

    /// The name of a workload that every cluster can have.
    pub(crate) fn any_workload(&self) -> String {
        format!("default.default.serviceaccount.{}", self.suffix)
    }
}

/// Returns as much of a username as a message shows.
fn shown(username: &str) -> String {
    truncate(username, SHOWN_USERNAME).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> IdentityDomain {
        IdentityDomain::new("linkerd", "cluster.local").unwrap()
    }

    #[test]
    fn a_service_account_has_an_identity() {
        let identity = domain().identity_of("system:serviceaccount:emojivoto:web");
        let expected = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";
        assert_eq!(identity.as_deref(), Ok(expected));
        let service = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
        assert_eq!(domain().identity_service(), service);
    }

    #[test]
    fn other_users_are_refused_with_the_texts_of_linkerd() {
        let long = "w".repeat(64);
        for (username, expected) in [
            ("admin", "Username must be in form system:TYPE:NS:SA: admin"),
            ("", "Username must be in form system:TYPE:NS:SA: "),
            ("system:anonymous", "Username must be in form system:TYPE:NS:SA: system:anonymous"),
            ("system:serviceaccount:a:b:c", "Username must be in form system:TYPE:NS:SA: system:serviceaccount:a:b:c"),
            ("sys:serviceaccount:a:b", "Username must be in form system:TYPE:NS:SA: sys:serviceaccount:a:b"),
            (" system:serviceaccount:a:b", "Username must be in form system:TYPE:NS:SA:  system:serviceaccount:a:b"),
            ("system:serviceaccount:a:b.c", "Not a label: b.c"),
            ("system:serviceaccount:a:Web", "Not a label: Web"),
            ("system:serviceaccount::b", "Not a label: "),
            (&format!("system:serviceaccount:a:{long}"), &format!("Not a label: {long}")),
            ("system:Node:a:B", "Not a label: Node"),
            ("system:node:a:b", "Username must be in form system:serviceaccount:NS:SA: system:node:a:b"),
        ] {
            assert_eq!(domain().identity_of(username).unwrap_err().to_string(), expected);
        }
        let endless = domain().identity_of(&"a".repeat(1 << 20)).unwrap_err().to_string();
        assert!(endless.len() < 600, "{}", endless.len());
    }

    #[test]
    fn the_namespace_is_a_label_and_the_trust_domain_a_subdomain_in_lower_case() {
        for (namespace, domain) in [("linkerd", "local"), ("a", "a-b.1"), ("linkerd", "cluster.local")] {
            assert!(IdentityDomain::new(namespace, domain).is_ok());
        }
        for (namespace, domain) in [
            ("a.b", "local"),
            ("", "local"),
            ("a", ""),
            ("a", "Cluster.Local"),
            ("a", "a..b"),
            ("a", "a."),
            ("a", "a_b"),
            ("a", &"a.".repeat(130)),
        ] {
            assert!(IdentityDomain::new(namespace, domain).is_err(), "{namespace} {domain}");
        }
    }
}
