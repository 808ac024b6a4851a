//! The verification of a leaf, with the rules of proxies. Pure.
//!
//! In: a leaf, the chain that is sent with it, trust anchors, the time. Out: the anchors with which proxies accept it, as
//! a client and as a server; else the reason.

use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use super::anchors::RootCertificate;

/// The algorithms with which proxies verify, without the ones that `ring` does not have: ECDSA P-521, and ECDSA with
/// SHA-512.
pub(crate) static ALGORITHMS: &[&dyn SignatureVerificationAlgorithm] = &[
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

/// A leaf and what is sent with it.
pub(crate) struct TestedLeaf<'a> {
    pub(crate) der: &'a [u8],
    pub(crate) chain: &'a [CertificateDer<'a>],
    /// The identity.
    pub(crate) name: &'a str,
    pub(crate) now: Timestamp,
}

// === impl TestedLeaf ===

impl TestedLeaf<'_> {
    /// Whether the leaf is valid with this anchor alone.
    pub(crate) fn reaches(&self, root: &RootCertificate, algorithms: &[&dyn SignatureVerificationAlgorithm]) -> bool {
        self.verify(std::slice::from_ref(&root.anchor), algorithms).is_ok()
    }

    /// Returns the anchors with each of which the leaf is valid.
    ///
    /// # Errors
    /// When it is not valid with all of them together.
    pub(crate) fn reached<'a>(
        &self,
        anchors: &'a [RootCertificate],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<Vec<&'a RootCertificate>, webpki::Error> {
        let all: Vec<_> = anchors.iter().map(|root| root.anchor.clone()).collect();
        self.verify(&all, algorithms)?;
        Ok(anchors.iter().filter(|root| self.reaches(root, algorithms)).collect())
    }

    /// Verifies the leaf as a client and as a server do.
    fn verify(
        &self,
        roots: &[TrustAnchor<'_>],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), webpki::Error> {
        let leaf = CertificateDer::from(self.der);
        let leaf = EndEntityCert::try_from(&leaf)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(self.now.as_second().try_into().unwrap_or_default()));
        for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
            leaf.verify_for_usage(algorithms, roots, self.chain, now, usage, None, None)?;
        }
        if self.name.contains("://") {
            // The identity of a machine, by SPIFFE.
            let has_name = leaf.valid_uri_names().any(|name| name == self.name);
            return if has_name { Ok(()) } else { Err(webpki::Error::UnsupportedNameType) };
        }
        let name = ServerName::try_from(self.name).map_err(|_| webpki::Error::MalformedDnsIdentifier)?;
        leaf.verify_is_valid_for_subject_name(&name)
    }
}

/// Returns the reason of a refused chain for people.
pub(crate) fn sentence(error: &webpki::Error) -> String {
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
        Error::UnsupportedNameType => "it is not a certificate for this identity",
        Error::MalformedDnsIdentifier => "identities of the trust domain are longer than a DNS name can be",
        other => return format!("{other:?}"),
    };
    sentence.to_owned()
}
