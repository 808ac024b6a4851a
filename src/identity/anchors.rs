//! The trust anchors: the roots in `ca-bundle.crt`.
//!
//! In: PEM. Out: the certificates that proxies can use, and a warning about each other part. Always holds: there is at
//! least one certificate, and each is listed once.

use jiff::Timestamp;

/// The trust anchors of a mesh. `linkerd_config` has another `TrustAnchors`.
#[derive(Clone, Debug)]
pub(crate) struct AnchorBundle {
    roots: Vec<RootCertificate>,
    warnings: Vec<String>,
}

/// One trust anchor.
#[derive(Clone, Debug)]
pub(crate) struct RootCertificate {
    pub(crate) sha256: [u8; 32],
    /// `None` if the date is unreadable. Proxies do not read it, so it does not matter to them.
    pub(crate) not_after: Option<Timestamp>,
}

// === impl AnchorBundle ===

impl AnchorBundle {
    /// Reads a bundle in PEM.
    ///
    /// # Errors
    /// When no certificate is left that a proxy can use.
    pub(crate) fn parse(_pem: &[u8]) -> Result<Self, String> {
        Err("the bundle has no certificate".to_owned())
    }

    pub(crate) fn roots(&self) -> &[RootCertificate] {
        &self.roots
    }

    /// What was left out of the bundle, one sentence each, without a point at its end.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
