//! Facts that could not be read.
//!
//! In: an error of a request. Out: whether a permission is missing, and the reason, which is the message of the API
//! server if it sent one.

use http::StatusCode;

use crate::client;

/// A fact, or why it is unknown.
pub(super) type Known<T> = Result<T, Unread>;

/// Why a fact could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// Whether the user may not read it. This is no fault of the installation.
    pub(super) is_denied: bool,
    pub(super) reason: String,
}

// === impl Unread ===

impl Unread {
    pub(super) fn denied(reason: impl Into<String>) -> Self {
        Self { is_denied: true, reason: reason.into() }
    }

    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self { is_denied: false, reason: reason.into() }
    }
}

impl From<kube::Error> for Unread {
    fn from(error: kube::Error) -> Self {
        let is_denied = matches!(&error, kube::Error::Api(status) if status.code == StatusCode::FORBIDDEN.as_u16());
        Self { is_denied, reason: client::describe(&error) }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_a_403_is_a_missing_permission_and_its_message_is_the_reason() {
        let answer = |code: u16, message: &str| {
            Unread::from(kube::Error::Api(Box::new(Status::failure(message, "Reason").with_code(code))))
        };
        let message = r#"leases.coordination.k8s.io "linkerd-operator" is forbidden: User "alice" cannot get resource"#;
        assert_eq!(answer(403, message), Unread { is_denied: true, reason: message.to_owned() });
        assert_eq!(answer(500, "etcd is gone"), Unread { is_denied: false, reason: "etcd is gone".to_owned() });
        assert!(!answer(401, "Unauthorized").is_denied);
    }
}
