//! The issuer: the CA certificate whose key signs leaves.
//!
//! In: the certificate file and the key file of the issuer, the trust anchors, the time. Out: leaves, and the chain that
//! is sent with each. Always holds: when an issuer was loaded, a leaf of it was valid for proxies as servers and as
//! clients; no leaf is valid for longer than a certificate of the chain; the key is never printed.

use jiff::Timestamp;
use thiserror::Error;

use super::{
    anchors::AnchorBundle, csr::SigningRequest, refusal::CertifyRefusal, username::IdentityDomain, validity::Validity,
};

/// The reason why an issuer is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum IssuerProblem {
    #[error("the certificate file {0}")]
    CertificateFile(String),
    #[error("the key file {0}")]
    KeyFile(String),
    #[error("the key is not the key of the first certificate of the certificate file")]
    KeyMismatch,
    #[error("the certificate of the issuer expired at {0}")]
    Expired(Timestamp),
    #[error("the certificate of the issuer is valid only from {0}")]
    NotYetValid(Timestamp),
    /// Proxies would refuse its leaves.
    #[error("proxies would refuse the certificates of the issuer: {0}")]
    Refused(String),
}

/// A signed leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) der: Vec<u8>,
    /// The encoded end, in whole seconds, for `valid_until`.
    pub(crate) not_after: Timestamp,
    /// Whether the chain ends before the leaf would.
    pub(crate) is_clamped: bool,
}

/// An issuer that proxies accept.
#[derive(Debug)]
pub(crate) struct Issuer {
    chain: Vec<Vec<u8>>,
    not_after: Timestamp,
    expires: Timestamp,
    roots: Vec<[u8; 32]>,
    is_anchor: bool,
    key_id: String,
}

// === impl Issuer ===

impl Issuer {
    /// Reads an issuer, and issues a leaf that nobody gets, to verify it as proxies do. Load the issuer again when the
    /// files change, and at [`Self::not_after`]: then an intermediate certificate may be left out of the chain.
    ///
    /// # Errors
    /// When a file is unusable, the key is not the key of the certificate, or a proxy would refuse the leaf.
    pub(crate) fn load(
        _certificates_pem: &[u8],
        _key_pem: &[u8],
        _anchors: &AnchorBundle,
        _domain: &IdentityDomain,
        _now: Timestamp,
    ) -> Result<Self, IssuerProblem> {
        Err(IssuerProblem::KeyMismatch)
    }

    /// Signs a leaf with this name and the key of the request. The request must have passed `check_name` for this name
    /// and `verify_possession`.
    ///
    /// # Errors
    /// When a certificate of the chain has expired, or the key cannot sign.
    pub(crate) fn issue(
        &self,
        _request: &SigningRequest,
        _name: &str,
        _validity: Validity,
        _serial: [u8; 16],
    ) -> Result<Leaf, CertifyRefusal> {
        Err(CertifyRefusal::Signing)
    }

    /// The intermediate certificates of each answer: the issuer's, then the others of its file that are sent.
    pub(crate) fn chain(&self) -> &[Vec<u8>] {
        &self.chain
    }

    /// When the first certificate of the chain expires. No leaf is valid for longer.
    pub(crate) fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// When the issuer's own certificate expires.
    pub(crate) fn expires(&self) -> Timestamp {
        self.expires
    }

    /// The SHA-256 of each trust anchor of the bundle that leaves of this issuer reach.
    pub(crate) fn roots(&self) -> &[[u8; 32]] {
        &self.roots
    }

    /// Whether the issuer's certificate is a trust anchor itself, as `linkerd install` makes it.
    pub(crate) fn is_trust_anchor(&self) -> bool {
        self.is_anchor
    }

    /// The SHA-256 of the issuer's public key, in hexadecimal digits: the same for all certificates of the key.
    pub(crate) fn key_id(&self) -> &str {
        &self.key_id
    }
}
