//! The issuer: the CA certificate whose key signs leaves.
//!
//! In: the certificate file and the key file of the issuer, the trust anchors, the time. Out: leaves, and the chain that
//! is sent with each. Always holds: when an issuer was loaded, a leaf of it was valid for proxies as servers and as
//! clients; no leaf is valid for longer than a certificate of the chain; the key is never printed.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use thiserror::Error;
use webpki::{EndEntityCert, KeyUsage};

use super::{
    anchors::AnchorBundle,
    certificate::{ChainCertificate, sha256},
    csr::SigningRequest,
    ecdsa::{SigningKey, SubjectKey, UnreadableKey, UnusableKey},
    leaf::{LeafParts, LeafTemplate},
    pem,
    refusal::CertifyRefusal,
    username::IdentityDomain,
    validity::{LeafLifetime, Validity},
};
use crate::text::hex;

/// The maximum number of certificates in the file of an issuer.
const LONGEST_FILE: usize = 16;
/// The validity of the leaf that tests an issuer.
const TEST_LIFETIME: SignedDuration = SignedDuration::from_mins(1);
const TEST_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// The algorithms with which proxies verify, without the ones that `ring` does not have: ECDSA P-521, and ECDSA with
/// SHA-512.
static ALGORITHMS: &[&dyn SignatureVerificationAlgorithm] = &[
    webpki::ring::ECDSA_P256_SHA256,
    webpki::ring::ECDSA_P256_SHA384,
    webpki::ring::ECDSA_P384_SHA256,
    webpki::ring::ECDSA_P384_SHA384,
    webpki::ring::ED25519,
    webpki::ring::RSA_PKCS1_2048_8192_SHA256,
    webpki::ring::RSA_PKCS1_2048_8192_SHA384,
    webpki::ring::RSA_PKCS1_2048_8192_SHA512,
    webpki::ring::RSA_PKCS1_3072_8192_SHA384,
];

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
        let (own, others) = certificates(certificates_pem).map_err(IssuerProblem::CertificateFile)?;
        let public = public_key(&own)?;
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
        let sent = sent(own, others, now);
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
        let verify = |roots: &[TrustAnchor<'_>]| verify(&leaf.der, &chain, roots, name, now);
        let all: Vec<_> = anchors.roots().iter().map(|root| root.anchor.clone()).collect();
        verify(&all).map_err(|error| refused(sentence(&error)))?;
        let reached = anchors.roots().iter().filter(|root| verify(std::slice::from_ref(&root.anchor)).is_ok());
        Ok(reached.map(|root| root.sha256).collect())
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut issuer = f.debug_struct("Issuer");
        issuer.field("key", &self.key).field("key_id", &self.key_id).field("not_after", &self.not_after);
        issuer.field("chain", &self.chain.len()).finish_non_exhaustive()
    }
}

/// Returns the first certificate of a file, which is the issuer's, and the others.
fn certificates(pem: &[u8]) -> Result<(ChainCertificate, Vec<ChainCertificate>), String> {
    let blocks = pem::blocks(pem);
    if blocks.len() > LONGEST_FILE {
        return Err(format!("has more than {LONGEST_FILE} certificates"));
    }
    let certificates = (1..).zip(blocks).map(|(number, block)| match block {
        Ok(block) if block.label == "CERTIFICATE" => ChainCertificate::parse(&block.der)
            .ok_or_else(|| format!("has a certificate that cannot be read, in block {number}: replace it")),
        Ok(block) => Err(format!("has a block {}: write only certificates into it", block.label)),
        Err(why) => Err(format!("is not valid PEM: {why}")),
    });
    let mut certificates = certificates.collect::<Result<Vec<_>, _>>()?.into_iter();
    let own = certificates.next().ok_or("has no certificate: write the issuer's, and then its chain, in PEM")?;
    Ok((own, certificates.collect()))
}

fn public_key(own: &ChainCertificate) -> Result<SubjectKey, IssuerProblem> {
    let file = IssuerProblem::CertificateFile;
    match SubjectKey::parse(&own.key_info) {
        Ok(SubjectKey::OtherKind(kind)) => {
            Err(file(format!("has an issuer with an {kind} key, which cannot sign certificates of proxies: use ECDSA")))
        }
        Ok(key) => Ok(key),
        Err(UnreadableKey::UnsupportedCurve(curve)) => Err(file(format!(
            "has an issuer with a key of the curve {curve}, which is not supported: use P-256 or P-384"
        ))),
        Err(UnreadableKey::Malformed) => Err(file("has an issuer whose key cannot be read".to_owned())),
    }
}

/// Returns the certificates that are sent, in the order of the file: the issuer's, and each that lies between the issuer
/// and a root.
///
/// A proxy may have other trust anchors than the ones in the bundle, because it reads them when it starts. So the path to
/// a root that is not in the bundle any more is sent, too. Left out are other certificates, expired ones, and roots.
fn sent(own: ChainCertificate, mut others: Vec<ChainCertificate>, now: Timestamp) -> Vec<ChainCertificate> {
    others.retain(|certificate| certificate.is_valid(now) && !certificate.is_signed_by(certificate));
    let mut sent = vec![false; others.len()];
    loop {
        let is_above = |certificate: &ChainCertificate| {
            let below = others.iter().zip(&sent).filter_map(|(other, is_sent)| is_sent.then_some(other));
            let mut below = below.chain([&own]);
            certificate.is_twin_of(&own) || below.any(|below| below.is_signed_by(certificate))
        };
        let found = others.iter().zip(&sent).position(|(other, is_sent)| !is_sent && is_above(other));
        match found.and_then(|at| sent.get_mut(at)) {
            Some(is_sent) => *is_sent = true,
            None => break,
        }
    }
    let others = others.into_iter().zip(sent).filter_map(|(other, is_sent)| is_sent.then_some(other));
    [own].into_iter().chain(others).collect()
}

/// Verifies a leaf as a client and as a server do.
fn verify(
    leaf: &[u8],
    chain: &[CertificateDer<'_>],
    roots: &[TrustAnchor<'_>],
    name: &str,
    now: Timestamp,
) -> Result<(), webpki::Error> {
    let leaf = CertificateDer::from(leaf);
    let leaf = EndEntityCert::try_from(&leaf)?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap_or_default()));
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        leaf.verify_for_usage(ALGORITHMS, roots, chain, now, usage, None, None)?;
    }
    let name = ServerName::try_from(name).map_err(|_| webpki::Error::MalformedDnsIdentifier)?;
    leaf.verify_is_valid_for_subject_name(&name)
}

/// Returns the reason of a refused chain for people.
fn sentence(error: &webpki::Error) -> String {
    use webpki::Error;
    let sentence = match error {
        Error::UnknownIssuer => {
            "no trust anchor signed it: go back to the issuer before, or rotate the trust anchors first, because \
             running proxies know only the old ones; if an intermediate certificate is missing, add it to the \
             certificate file"
        }
        Error::InvalidSignatureForPublicKey => {
            "the trust anchor with the name of its root has another key: go back to the issuer before, or rotate the \
             trust anchors first, because running proxies know only the old ones"
        }
        Error::EndEntityUsedAsCa => "it is not the certificate of a certificate authority (CA)",
        Error::PathLenConstraintViolated => {
            "a certificate above it does not allow another certificate authority (its pathLenConstraint)"
        }
        Error::NameConstraintViolation => "its name constraints exclude the trust domain",
        Error::RequiredEkuNotFoundContext(_) => {
            "its extended key usage must have both serverAuth and clientAuth, or be left out"
        }
        Error::UnsupportedSignatureAlgorithmContext(_) | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            "it is signed with an algorithm that is not supported, such as ECDSA P-521"
        }
        Error::UnsupportedCertVersion => {
            "a certificate of the chain has no extensions (version 1): sign it as a certificate authority"
        }
        Error::UnsupportedCriticalExtension => "a certificate of the chain has a critical extension that is not known",
        Error::MaximumPathDepthExceeded => "its chain is too long",
        Error::MaximumSignatureChecksExceeded => {
            "its chain is too long, or too many trust anchors have the name of its root"
        }
        Error::MalformedDnsIdentifier => "identities of the trust domain are longer than a DNS name can be",
        other => return format!("{other:?}"),
    };
    sentence.to_owned()
}
