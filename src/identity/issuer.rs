//! The issuer: the CA certificate whose key signs leaves.
//!
//! In: the certificate file and the key file of the issuer, the trust anchors, the time. Out: leaves, and the chain that
//! is sent with each. Always holds: when an issuer was loaded, a leaf of it was valid for proxies as servers and as
//! clients; no leaf is valid for longer than a certificate of the chain; the key is never printed.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use thiserror::Error;

use super::{
    csr::SigningRequest,
    refusal::CertifyRefusal,
    username::IdentityDomain,
    validity::{LeafLifetime, Validity},
};
use crate::{
    text::hex,
    x509::{
        anchors::AnchorBundle,
        certificate::sha256,
        chain,
        ecdsa::{SigningKey, SubjectKey, UnusableKey},
        leaf::{LeafParts, LeafTemplate},
        verify::{self, ALGORITHMS, TestedLeaf},
    },
};

/// The validity of the leaf that tests an issuer.
const TEST_LIFETIME: SignedDuration = SignedDuration::from_mins(1);
const TEST_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// The reason why an issuer is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum IssuerProblem {
    #[error("the certificate file of the issuer {0}")]
    CertificateFile(String),
    #[error("the key file of the issuer {0}")]
    KeyFile(String),
    #[error(
        "the key of the issuer is not the key of the first certificate in its certificate file: put the issuer's own \
         certificate first, or replace the file that is not of this issuer"
    )]
    KeyMismatch,
    #[error("the certificate of the issuer expired at {0}: replace it")]
    Expired(Timestamp),
    #[error("the certificate of the issuer is valid only from {0}")]
    NotYetValid(Timestamp),
    /// Proxies would refuse its leaves.
    #[error("proxies would refuse the certificates of this issuer: {0}")]
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
pub(crate) struct Issuer {
    key: SigningKey,
    template: LeafTemplate,
    chain: Vec<Vec<u8>>,
    not_after: Timestamp,
    not_before: Timestamp,
    expires: Timestamp,
    roots: Vec<[u8; 32]>,
    is_trust_anchor: bool,
    key_id: String,
}

// === impl Issuer ===

impl Issuer {
    /// Reads an issuer, and verifies a leaf of it as proxies do. Nothing else uses that leaf.
    ///
    /// The caller loads the issuer again when a file changes, and at [`Self::not_after`]: an intermediate certificate
    /// that has expired is left out of the chain. The caller also overwrites the text of the key.
    ///
    /// # Errors
    /// When a file is unusable, the key is not the key of the certificate, or a proxy would refuse the leaf.
    pub(crate) fn load(
        certificates_pem: &[u8],
        key_pem: &[u8],
        anchors: &AnchorBundle,
        domain: &IdentityDomain,
        now: Timestamp,
    ) -> Result<Self, IssuerProblem> {
        let (own, others) = chain::read(certificates_pem).map_err(IssuerProblem::CertificateFile)?;
        let public = SubjectKey::of_issuer(&own.key_info)
            .map_err(|why| IssuerProblem::CertificateFile(format!("has an issuer with {why}")))?;
        let key = SigningKey::from_pem(key_pem, &public).map_err(|problem| match problem {
            UnusableKey::File(sentence) => IssuerProblem::KeyFile(sentence),
            UnusableKey::Mismatch => IssuerProblem::KeyMismatch,
        })?;
        if now < own.not_before {
            return Err(IssuerProblem::NotYetValid(own.not_before));
        }
        if now > own.not_after {
            return Err(IssuerProblem::Expired(own.not_after));
        }
        let is_trust_anchor = anchors.roots().iter().any(|root| root.sha256 == sha256(&own.der));
        let template = LeafTemplate::new(key.algorithm(), &own.subject, own.key_identifier.as_deref());
        let (key_id, not_before, expires) = (hex(sha256(&own.key_info)), own.not_before, own.not_after);
        let test = SigningRequest::unsigned(&domain.identity_service(), &own.key_info, public);
        let sent = chain::sent(own, others, now);
        let not_after = sent.iter().map(|certificate| certificate.not_after).min().unwrap_or(expires);
        let chain = sent.into_iter().map(|certificate| certificate.der).collect();
        let roots = Vec::new();
        let mut issuer = Self { key, template, chain, not_after, not_before, expires, roots, is_trust_anchor, key_id };
        issuer.roots = issuer.reached(anchors, &test, &domain.identity_service(), now)?;
        // Name constraints may permit the control plane and no workload.
        issuer.reached(anchors, &test, &domain.any_workload(), now)?;
        Ok(issuer)
    }

    /// Signs a leaf with this name and the key of the request. The request must have passed `check_name` for this name
    /// and `verify_possession`.
    ///
    /// # Errors
    /// When a certificate of the chain has expired, or the key cannot sign.
    pub(crate) fn issue(
        &self,
        request: &SigningRequest,
        name: &str,
        validity: Validity,
        serial: [u8; 16],
    ) -> Result<Leaf, CertifyRefusal> {
        if validity.now > self.not_after {
            return Err(CertifyRefusal::IssuerExpired(self.not_after));
        }
        let not_after = validity.not_after.min(self.not_after);
        let signed = self.template.to_be_signed(&LeafParts {
            serial,
            not_before: validity.not_before,
            not_after,
            name,
            has_common_name: request.has_common_name(),
            key_info: request.key_info(),
        });
        let signature = self.key.sign(&signed).ok_or(CertifyRefusal::Signing)?;
        let der = self.template.certificate(&signed, signature.as_ref());
        Ok(Leaf { der, not_after, is_clamped: not_after < validity.not_after })
    }

    /// The intermediate certificates of each answer, in DER: the issuer's, then the others of its file that are sent.
    pub(crate) fn chain(&self) -> &[Vec<u8>] {
        &self.chain
    }

    /// When the first certificate of the chain expires. No leaf is valid for longer.
    pub(crate) fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// When the issuer's own certificate begins to be valid.
    pub(crate) fn not_before(&self) -> Timestamp {
        self.not_before
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
        self.is_trust_anchor
    }

    /// The SHA-256 of the issuer's public key, in hexadecimal digits: the same for all certificates of the key.
    pub(crate) fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Returns the trust anchors with which a leaf is valid, or why it is valid with none.
    fn reached(
        &self,
        anchors: &AnchorBundle,
        test: &SigningRequest,
        name: &str,
        now: Timestamp,
    ) -> Result<Vec<[u8; 32]>, IssuerProblem> {
        let validity = LeafLifetime::new(TEST_LIFETIME, TEST_CLOCK_SKEW).at(now);
        let refused = IssuerProblem::Refused;
        let leaf = self.issue(test, name, validity, [1; 16]).map_err(|problem| refused(problem.to_string()))?;
        let chain: Vec<_> = self.chain.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
        let test = TestedLeaf { der: &leaf.der, chain: &chain, name, now };
        let reached = test.reached(anchors.roots(), ALGORITHMS).map_err(|error| refused(verify::sentence(&error)))?;
        Ok(reached.into_iter().map(|root| root.sha256).collect())
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut issuer = f.debug_struct("Issuer");
        issuer.field("key", &self.key).field("key_id", &self.key_id).field("not_after", &self.not_after);
        issuer.field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}
