//! The reasons why a call of `Certify` fails.
//!
//! In: the problem that a check found. Out: the gRPC code, the text, and the value of the metric label `reason`. Always
//! holds: a text that Linkerd's identity has is Linkerd's exact text; no text has a token in it.

use jiff::Timestamp;
use thiserror::Error;
use tonic::Code;

use super::{
    csr::{CsrProblem, NameProblem},
    username::UsernameProblem,
};

/// A reason why no certificate is issued. `Display` is the message of the gRPC status.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum CertifyRefusal {
    #[error("cert issuer not ready yet")]
    IssuerNotReady,
    #[error("missing identity")]
    MissingIdentity,
    #[error("missing token")]
    MissingToken,
    #[error("missing certificate signing request")]
    MissingRequest,
    #[error(transparent)]
    Request(#[from] CsrProblem),
    /// The certificate of the issuer, or another one of the chain that is sent, has expired.
    #[error("the certificate of the issuer expired at {0}: replace it")]
    IssuerExpired(Timestamp),
    #[error(transparent)]
    Name(#[from] NameProblem),
    #[error("the token is not valid UTF-8")]
    TokenNotText,
    #[error("the token is longer than {0} bytes")]
    TokenTooLong(usize),
    /// The API server refused the TokenReview.
    #[error("error validating token for {identity}: {cause}")]
    ReviewFailed { identity: String, cause: String },
    /// The API server did not answer in time, or too many reviews wait.
    #[error("the token cannot be reviewed now: {0}")]
    ReviewUnavailable(String),
    /// The `status.error` of the TokenReview.
    #[error("{0}")]
    TokenInvalid(String),
    #[error("authentication token could not be authenticated")]
    NotAuthenticated,
    #[error("the token is not for the audience {0}")]
    OtherAudience(String),
    #[error(transparent)]
    Username(#[from] UsernameProblem),
    #[error("requested identity did not match provided token: requested={requested}; found={found}")]
    OtherIdentity { requested: String, found: String },
    /// The text after the colon is the kind of the key.
    #[error("CSR must contain an ECDSA public key: {0}")]
    NotEcdsa(&'static str),
    #[error("the certificate could not be signed")]
    Signing,
    #[error("too many certificates were requested for this identity")]
    TooManyRequests,
}

// === impl CertifyRefusal ===

impl CertifyRefusal {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::IssuerNotReady | Self::ReviewUnavailable(_) => Code::Unavailable,
            Self::MissingIdentity
            | Self::MissingToken
            | Self::MissingRequest
            | Self::Request(_)
            | Self::TokenNotText
            | Self::TokenTooLong(_)
            | Self::TokenInvalid(_)
            | Self::Username(_) => Code::InvalidArgument,
            Self::IssuerExpired(_) => Code::Unknown,
            Self::Name(_) | Self::NotAuthenticated | Self::OtherAudience(_) | Self::OtherIdentity { .. } => {
                Code::FailedPrecondition
            }
            Self::ReviewFailed { .. } | Self::NotEcdsa(_) | Self::Signing => Code::Internal,
            Self::TooManyRequests => Code::ResourceExhausted,
        }
    }

    /// The value of the metric label `reason`.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::IssuerNotReady => "issuer_not_ready",
            Self::MissingIdentity | Self::MissingToken | Self::MissingRequest => "missing_field",
            Self::Request(CsrProblem::NotPossessed) => "proof_of_possession",
            Self::Request(_) => "csr_invalid",
            Self::IssuerExpired(_) => "issuer_expired",
            Self::Name(_) => "csr_name",
            Self::TokenNotText | Self::TokenTooLong(_) | Self::TokenInvalid(_) => "token_invalid",
            Self::ReviewFailed { .. } => "review_failed",
            Self::ReviewUnavailable(_) => "review_unavailable",
            Self::NotAuthenticated => "not_authenticated",
            Self::OtherAudience(_) => "other_audience",
            Self::Username(_) => "username",
            Self::OtherIdentity { .. } => "other_identity",
            Self::NotEcdsa(_) => "not_ecdsa",
            Self::Signing => "signing",
            Self::TooManyRequests => "rate_limited",
        }
    }
}
