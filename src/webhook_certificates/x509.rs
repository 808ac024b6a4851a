//! X.509 certificates, as far as trust in a webhook depends on them.
//!
//! In: DER or PEM, also of other writers. Out: the times, the names and the key of a certificate, and who signed it.
//! Always holds: reading is total, and bounded by the length of the text and by a number of certificates.

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer};

use crate::x509::pem;

/// The maximum length of a bundle that is read, in bytes. A certificate has about one KiB.
const BUNDLE_BYTES: usize = 128 << 10;

/// A readable certificate.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct TrustCertificate {
    der: Arc<[u8]>,
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

// === impl TrustCertificate ===

impl TrustCertificate {
    /// Reads a certificate; `None` if it cannot be read.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Self { der: der.into(), not_before: time(validity.not_before)?, not_after: time(validity.not_after)? })
    }

    /// Reads the certificates of a text in PEM, in its order and each once. Unreadable parts are ignored, and so is all
    /// that follows the first `count` certificates or an end of the text that is not PEM.
    pub(super) fn list(pem: &[u8], count: usize) -> Vec<Self> {
        if pem.len() > BUNDLE_BYTES {
            return Vec::new();
        }
        let mut listed = Vec::<Self>::new();
        for der in CertificateDer::pem_slice_iter(pem).map_while(Result::ok) {
            if listed.len() == count {
                break;
            }
            listed.extend(Self::parse(&der).filter(|certificate| !listed.contains(certificate)));
        }
        listed
    }

    /// Whether the key of `authority` signed this certificate.
    pub(super) fn is_signed_by(&self, authority: &Self) -> bool {
        let verified = self.with(|own| authority.with(|its| own.verify_signature(Some(its.public_key())).is_ok()));
        verified.flatten().unwrap_or_default()
    }

    /// Whether this is the certificate of a certificate authority.
    pub(super) fn is_authority(&self) -> bool {
        self.with(|certificate| certificate.is_ca()).unwrap_or_default()
    }

    /// Whether this is the private key of the certificate, in PEM.
    pub(super) fn has_key(&self, key: &str) -> bool {
        let Ok(key) = KeyPair::from_pem(key) else { return false };
        let key = key.subject_public_key_info();
        self.with(|certificate| certificate.public_key().raw == key).unwrap_or_default()
    }

    /// Whether the certificate is for this DNS name.
    pub(super) fn is_for(&self, name: &str) -> bool {
        let is_for = |certificate: &X509Certificate<'_>| {
            let names = certificate.subject_alternative_name().ok().flatten();
            let mut names = names.iter().flat_map(|names| &names.value.general_names);
            names.any(|it| matches!(it, GeneralName::DNSName(it) if *it == name))
        };
        self.with(is_for).unwrap_or_default()
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }

    /// Whether the certificate is valid only in the future, by this clock.
    pub(super) fn is_from_the_future(&self, now: Timestamp) -> bool {
        self.not_before > now
    }

    /// Whether at most a third of the certificate's life is left.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        now >= self.renewal()
    }

    /// Returns when a third of the certificate's life is left.
    pub(super) fn renewal(&self) -> Timestamp {
        self.before_the_end(3)
    }

    /// Returns when this part of the certificate's life is left: a half for 2, a third for 3.
    pub(super) fn before_the_end(&self, part: i64) -> Timestamp {
        let (begin, end) = (self.not_before.as_second(), self.not_after.as_second());
        let left = end.saturating_sub(begin).checked_div(part).unwrap_or_default();
        Timestamp::from_second(end.saturating_sub(left)).unwrap_or(self.not_after)
    }

    /// Returns the certificate in PEM.
    pub(super) fn to_pem(&self) -> String {
        pem::certificate(&self.der)
    }

    /// Calls a function with the parsed certificate.
    fn with<T>(&self, read: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
        let (_, certificate) = X509Certificate::from_der(&self.der).ok()?;
        Some(read(&certificate))
    }
}

impl fmt::Debug for TrustCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.with(|certificate| certificate.subject().to_string()).unwrap_or_default();
        write!(f, "{name:?} from {} to {}", self.not_before, self.not_after)
    }
}

/// Returns certificates as a bundle in PEM.
pub(super) fn bundle(certificates: &[TrustCertificate]) -> String {
    certificates.iter().map(TrustCertificate::to_pem).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::webhook_certificates::testing::{NAME, authority, leaf, time};

    #[test]
    fn a_certificate_has_its_times_its_names_its_key_and_its_signer() {
        let (authority, other) = (authority("2026-01-01T00:00:00Z"), authority("2026-01-01T00:00:00Z"));
        let leaf = leaf(&authority, "2026-02-01T12:00:00Z");
        let [certificate] = &TrustCertificate::list(leaf.certificate_pem.as_bytes(), 5)[..] else { panic!() };
        // An hour for clocks that are behind, then 30 days.
        assert_eq!(certificate.not_before, time("2026-02-01T11:00:00Z"));
        assert_eq!(certificate.not_after, time("2026-03-03T12:00:00Z"));
        assert!(certificate.is_signed_by(&authority.certificate) && !certificate.is_signed_by(&other.certificate));
        assert!(authority.certificate.is_authority() && !certificate.is_authority());
        assert!(certificate.is_for(NAME) && !certificate.is_for("kubernetes.default.svc"));
        assert!(certificate.has_key(&leaf.key_pem) && !certificate.has_key(&authority.key_pem));
        assert!(!certificate.has_key("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"));
        assert_eq!(certificate.to_pem(), leaf.certificate_pem.replace("\r\n", "\n"));
    }

    #[test]
    fn a_certificate_is_due_when_a_third_of_its_life_is_left() {
        let certificate = authority("2026-01-01T01:00:00Z").certificate;
        // From 00:00 on January 1 to 01:00 on January 1 of the next year: 365 days and an hour.
        assert_eq!(certificate.renewal(), time("2026-09-01T08:40:00Z"));
        assert!(!certificate.is_due(time("2026-09-01T08:39:59Z")) && certificate.is_due(time("2026-09-01T08:40:00Z")));
        assert!(
            !certificate.is_expired(time("2027-01-01T00:59:59Z"))
                && certificate.is_expired(time("2027-01-01T01:00:00Z"))
        );
        assert!(certificate.is_from_the_future(time("2025-12-31T23:59:59Z")));
    }

    #[test]
    fn a_bundle_is_read_up_to_its_bounds() {
        let both = [authority("2026-01-01T00:00:00Z").certificate, authority("2026-01-02T00:00:00Z").certificate];
        let text = bundle(&both);
        assert_eq!(TrustCertificate::list(text.as_bytes(), 5), both);
        assert_eq!(TrustCertificate::list(format!("{text}{text}").as_bytes(), 5), both, "each is read once");
        assert_eq!(TrustCertificate::list(text.as_bytes(), 1), both[..1]);
        assert_eq!(TrustCertificate::list(format!("{text}\n{}", "x".repeat(BUNDLE_BYTES)).as_bytes(), 5), []);
        let broken = format!("# a comment\n{text}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert_eq!(TrustCertificate::list(broken.as_bytes(), 5), both);
    }

    proptest! {
        #[test]
        fn any_text_can_be_read(text in prop::collection::vec(any::<u8>(), 0..300), at in 0..900usize, byte: u8) {
            assert_eq!(TrustCertificate::list(&text, 3), []);
            let mut der = authority("2026-01-01T00:00:00Z").certificate.der.to_vec();
            let at = at % der.len();
            der[at] = byte;
            if let Some(certificate) = TrustCertificate::parse(&der) {
                certificate.is_for(NAME);
                certificate.is_signed_by(&certificate);
                certificate.renewal();
            }
        }
    }
}
