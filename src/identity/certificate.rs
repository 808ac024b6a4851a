//! The certificates in the file of the issuer.
//!
//! In: DER. Out: the names, the key and the times of a certificate, and who signed it.

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use x509_parser::{
    certificate::X509Certificate,
    extensions::{ParsedExtension, X509Extension},
    oid_registry::OID_X509_EXT_SUBJECT_KEY_IDENTIFIER,
    prelude::FromDer,
};

/// A readable certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainCertificate {
    pub(super) der: Vec<u8>,
    /// The subject in DER.
    pub(super) subject: Vec<u8>,
    /// The SubjectPublicKeyInfo in DER.
    pub(super) key_info: Vec<u8>,
    pub(super) key_identifier: Option<Vec<u8>>,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

// === impl ChainCertificate ===

impl ChainCertificate {
    /// Reads a certificate; `None` if it cannot be read, or bytes follow it.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok().filter(|(rest, _)| rest.is_empty())?;
        let key_identifier = certificate.get_extension_unique(&OID_X509_EXT_SUBJECT_KEY_IDENTIFIER).ok()?;
        let key_identifier = match key_identifier.map(X509Extension::parsed_extension) {
            Some(ParsedExtension::SubjectKeyIdentifier(identifier)) => Some(identifier.0.to_vec()),
            Some(_) => return None,
            None => None,
        };
        let validity = certificate.validity();
        Some(Self {
            der: der.to_vec(),
            subject: certificate.subject().as_raw().to_vec(),
            key_info: certificate.public_key().raw.to_vec(),
            key_identifier,
            not_before: time(validity.not_before.timestamp()),
            not_after: time(validity.not_after.timestamp()),
        })
    }

    pub(super) fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Whether the key and the name are those of `other`, whoever signed the certificates.
    pub(super) fn is_twin_of(&self, other: &Self) -> bool {
        self.subject == other.subject && self.key_info == other.key_info
    }

    /// Whether the key of `parent` signed this certificate.
    pub(super) fn is_signed_by(&self, parent: &Self) -> bool {
        let is_signed = || {
            let (_, own) = X509Certificate::from_der(&self.der).ok()?;
            let (_, its) = X509Certificate::from_der(&parent.der).ok()?;
            let is_named = own.issuer().as_raw() == parent.subject;
            Some(is_named && own.verify_signature(Some(its.public_key())).is_ok())
        };
        is_signed().unwrap_or_default()
    }
}

/// Returns the time of these seconds. The end of a certificate that has none (RFC 5280, section 4.1.2.5) is a day later than
/// the last [`Timestamp`].
fn time(seconds: i64) -> Timestamp {
    let farthest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(farthest)
}

/// Returns the SHA-256 of some bytes.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
