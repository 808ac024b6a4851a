//! Certificate signing requests (PKCS #10).
//!
//! In: the DER of a request. Out: the names and the key in it, and whether they may be certified. Always holds: reading
//! is total, and bounded by [`LONGEST_REQUEST`]; nothing that a workload writes into a request reaches a leaf but the
//! public key.

use thiserror::Error;

use super::refusal::CertifyRefusal;

/// The maximum length of a request, in bytes. A request of a proxy has about 350.
pub(crate) const LONGEST_REQUEST: usize = 16 << 10;

/// The reason why a request cannot be used, whatever name it is for. The code is InvalidArgument.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CsrProblem {
    #[error("the certificate signing request is longer than {LONGEST_REQUEST} bytes")]
    TooLong,
    #[error("the certificate signing request is not valid: {0}")]
    Malformed(&'static str),
    #[error("the certificate signing request has a key of the curve {0}: use P-256 or P-384")]
    UnsupportedCurve(&'static str),
    #[error("the signature of the certificate signing request is invalid")]
    NotPossessed,
}

/// The reason why the names in a request cannot be certified. The code is FailedPrecondition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NameProblem {
    #[error("CSR must have exactly one DNSName")]
    NotOneName,
    #[error("CSR name does not match requested identity: csr={csr}; req={requested}")]
    OtherName { csr: String, requested: String },
    #[error("invalid CommonName: {0}")]
    CommonName(String),
    #[error("cannot validate email addresses")]
    Emails,
    #[error("cannot validate IP addresses")]
    IpAddresses,
    #[error("cannot validate URIs")]
    Uris,
    #[error("cannot validate other names")]
    OtherKinds,
}

/// A readable request. Its signature is not verified yet.
#[derive(Clone, Debug)]
pub(crate) struct SigningRequest {}

// === impl SigningRequest ===

impl SigningRequest {
    /// Reads a request in DER.
    ///
    /// # Errors
    /// When it is not a request of version 1 in DER, or too long, or its key is on an unsupported curve. A key of another
    /// kind than ECDSA is an error of [`Self::verify_possession`] only, as in Linkerd.
    pub(crate) fn parse(_der: &[u8]) -> Result<Self, CsrProblem> {
        Err(CsrProblem::TooLong)
    }

    /// Checks that the request is for this name and for no other one.
    ///
    /// # Errors
    /// The first of the problems, in the order of Linkerd.
    pub(crate) fn check_name(&self, _identity: &str) -> Result<(), NameProblem> {
        Err(NameProblem::NotOneName)
    }

    /// Verifies that the sender of the request has the private key.
    ///
    /// # Errors
    /// When the key is not an ECDSA key, or did not sign the request.
    pub(crate) fn verify_possession(&self) -> Result<(), CertifyRefusal> {
        Err(CsrProblem::NotPossessed.into())
    }
}
