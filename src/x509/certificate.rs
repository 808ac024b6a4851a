//! The certificates in the file of the issuer.
//!
//! In: DER. Out: the names, the key and the times of a certificate, and who signed it.

use jiff::Timestamp;
use rustls::pki_types::TrustAnchor;
use sha2::{Digest, Sha256};
use x509_parser::{
    certificate::X509Certificate,
    extensions::{ParsedExtension, X509Extension},
    oid_registry::{OID_X509_EXT_NAME_CONSTRAINTS, OID_X509_EXT_SUBJECT_KEY_IDENTIFIER},
    prelude::FromDer,
    x509::X509Name,
};

use super::der::{self, DerReader};
use crate::text::truncated;

/// The maximum length of a name that is shown, in bytes.
const LONGEST_NAME: usize = 100;

/// A readable certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChainCertificate {
    pub(crate) der: Vec<u8>,
    /// The subject in DER.
    pub(crate) subject: Vec<u8>,
    /// The SubjectPublicKeyInfo in DER.
    pub(crate) key_info: Vec<u8>,
    pub(crate) key_identifier: Option<Vec<u8>>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

// === impl ChainCertificate ===

impl ChainCertificate {
    /// Reads a certificate; `None` if it cannot be read, or bytes follow it.
    pub(crate) fn parse(der: &[u8]) -> Option<Self> {
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

    /// Returns the common name, or the whole subject if there is none, cut to a bounded length.
    pub(crate) fn name(&self) -> String {
        let Ok((_, subject)) = X509Name::from_der(&self.subject) else { return String::new() };
        let common = subject.iter_common_name().next().and_then(|name| name.as_str().ok());
        let name = common.map_or_else(|| subject.to_string(), str::to_owned);
        truncated(name, LONGEST_NAME)
    }

    pub(crate) fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Whether the key and the name are those of `other`, whoever signed the certificates.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        self.subject == other.subject && self.key_info == other.key_info
    }

    /// Whether it may sign certificates.
    pub(crate) fn is_authority(&self) -> bool {
        X509Certificate::from_der(&self.der).is_ok_and(|(_, certificate)| certificate.is_ca())
    }

    /// How many certificate authorities may be below it; `None` if any number.
    pub(crate) fn path_length(&self) -> Option<u32> {
        let (_, certificate) = X509Certificate::from_der(&self.der).ok()?;
        certificate.basic_constraints().ok()??.value.path_len_constraint
    }

    /// Returns its name constraints in DER if they exclude names.
    pub(crate) fn excluded_names(&self) -> Option<Vec<u8>> {
        let (_, certificate) = X509Certificate::from_der(&self.der).ok()?;
        let constraints = certificate.name_constraints().ok()??;
        constraints.value.excluded_subtrees.as_ref()?;
        let found = certificate.extensions().iter().find(|extension| extension.oid == OID_X509_EXT_NAME_CONSTRAINTS)?;
        Some(found.value.to_vec())
    }

    /// Whether it has the name and the key of a trust anchor, as a bridge has: a certificate of a root that another root
    /// signed. webpki keeps both without the tag and the length of their sequence.
    pub(crate) fn has_name_and_key_of(&self, anchor: &TrustAnchor<'_>) -> bool {
        let inside = |whole: &[u8]| DerReader::new(whole).value(der::SEQUENCE).map(<[u8]>::to_vec);
        inside(&self.subject).as_deref() == Some(&anchor.subject)
            && inside(&self.key_info).as_deref() == Some(&anchor.subject_public_key_info)
    }

    /// Whether the key of `parent` signed this certificate.
    pub(crate) fn is_signed_by(&self, parent: &Self) -> bool {
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
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
