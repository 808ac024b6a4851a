//! Issues certificate authorities and the certificates of the webhooks.
//!
//! In: the time, the names of the Service, an authority. Out: certificates and their keys. Always holds: each certificate
//! has a new key of type ECDSA P-256 and a random serial number; it is already valid for clocks that are an hour behind;
//! no certificate outlives its authority.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SerialNumber, date_time_ymd,
};

use super::x509::TrustCertificate;

const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);
const LEAF_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The time between the start of the validity of a certificate and its issue, for clocks that are behind.
pub(super) const BACKDATE: SignedDuration = SignedDuration::from_hours(1);

/// A certificate authority and its key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SigningAuthority {
    pub(super) certificate: TrustCertificate,
    pub(super) key_pem: String,
}

/// A certificate of the webhooks and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct LeafPair {
    pub(super) certificate_pem: String,
    pub(super) key_pem: String,
}

/// Returns a new authority.
///
/// # Errors
/// When the certificate cannot be made.
pub(super) fn authority(now: Timestamp) -> anyhow::Result<SigningAuthority> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = params(Vec::new(), now, now.saturating_add(AUTHORITY_LIFE)?)?;
    // Each authority has a name of its own, so that a client that has several finds the right one.
    let name = format!("linkerd-operator-webhook-ca-{:016x}", rand::random::<u64>());
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(SigningAuthority { certificate: read(certificate.der())?, key_pem: key.serialize_pem() })
}

/// Returns a new certificate for these DNS names.
///
/// # Errors
/// When the key of the authority cannot be used, or a name is not valid.
pub(super) fn leaf(authority: &SigningAuthority, names: &[String], now: Timestamp) -> anyhow::Result<LeafPair> {
    let issuer = Issuer::from_ca_cert_pem(&authority.certificate.to_pem(), KeyPair::from_pem(&authority.key_pem)?)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let end = now.saturating_add(LEAF_LIFE)?.min(authority.certificate.not_after);
    let mut params = params(names.to_vec(), now, end)?;
    params.distinguished_name.push(DnType::CommonName, "linkerd-operator-webhook");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(LeafPair { certificate_pem: read(certificate.der())?.to_pem(), key_pem: key.serialize_pem() })
}

fn params(names: Vec<String>, now: Timestamp, end: Timestamp) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    let time = |at: Timestamp| {
        let seconds = u64::try_from(at.as_second()).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = time(now.saturating_sub(BACKDATE)?);
    params.not_after = time(end);
    // A positive number of 16 bytes.
    let serial = (rand::random::<u128>() >> 1) | (1 << 126);
    params.serial_number = Some(SerialNumber::from_slice(&serial.to_be_bytes()));
    Ok(params)
}

fn read(der: &[u8]) -> anyhow::Result<TrustCertificate> {
    TrustCertificate::parse(der).ok_or_else(|| anyhow::anyhow!("the issued certificate cannot be read"))
}

// === impl SigningAuthority ===

impl fmt::Debug for SigningAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.certificate.fmt(f)
    }
}

// === impl LeafPair ===

impl fmt::Debug for LeafPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.certificate_pem)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use x509_parser::{certificate::X509Certificate, pem::parse_x509_pem, prelude::FromDer};

    use super::*;
    use crate::webhook_certificates::testing::{NAME, authority as issued, time};

    fn parsed<T>(pem: &str, read: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
        let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
        read(&X509Certificate::from_der(&pem.contents).unwrap().1)
    }

    #[test]
    fn an_authority_may_sign_only_leaves_and_a_leaf_only_serve() {
        let authority = issued("2026-01-01T00:00:00Z");
        parsed(&authority.certificate.to_pem(), |certificate| {
            let constraints = certificate.basic_constraints().unwrap().unwrap();
            assert!(constraints.critical && constraints.value.ca);
            assert_eq!(constraints.value.path_len_constraint, Some(0));
            let usage = certificate.key_usage().unwrap().unwrap().value;
            assert!(usage.key_cert_sign() && !usage.digital_signature());
        });
        let leaf = leaf(&authority, &[NAME.to_owned()], time("2026-01-01T00:00:00Z")).unwrap();
        parsed(&leaf.certificate_pem, |certificate| {
            assert!(!certificate.is_ca());
            let usage = certificate.extended_key_usage().unwrap().unwrap().value;
            assert!(usage.server_auth && !usage.client_auth && !usage.any);
            assert!(certificate.key_usage().unwrap().unwrap().value.digital_signature());
        });
    }

    #[test]
    fn serial_numbers_keys_and_names_of_authorities_do_not_repeat() {
        let authorities: Vec<_> = (0..20).map(|_| issued("2026-01-01T00:00:00Z")).collect();
        let facts = |pem: &str| parsed(pem, |it| (it.raw_serial().to_vec(), it.subject().to_string()));
        let facts: Vec<_> = authorities.iter().map(|it| facts(&it.certificate.to_pem())).collect();
        assert_eq!(facts.iter().map(|(serial, _)| serial).collect::<HashSet<_>>().len(), 20);
        assert_eq!(facts.iter().map(|(_, name)| name).collect::<HashSet<_>>().len(), 20);
        assert!(facts.iter().all(|(serial, _)| serial.len() == 16 && serial[0] < 0x80), "{facts:?}");
        assert_eq!(authorities.iter().map(|it| &it.key_pem).collect::<HashSet<_>>().len(), 20);
    }

    #[test]
    fn a_leaf_does_not_outlive_its_authority_and_no_name_is_added() {
        let authority = issued("2026-01-01T00:00:00Z");
        let leaf = leaf(&authority, &[NAME.to_owned()], time("2026-12-25T00:00:00Z")).unwrap();
        parsed(&leaf.certificate_pem, |certificate| {
            let end = time("2027-01-01T00:00:00Z").as_second();
            assert_eq!(certificate.validity().not_after.timestamp(), end);
            assert_eq!(certificate.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
        });
    }

    #[test]
    fn keys_are_never_printed() {
        let authority = issued("2026-01-01T00:00:00Z");
        let leaf = leaf(&authority, &[NAME.to_owned()], time("2026-01-01T00:00:00Z")).unwrap();
        let printed = format!("{authority:?} {leaf:?}");
        assert!(!printed.contains("PRIVATE") && printed.contains("linkerd-operator-webhook-ca-"), "{printed}");
    }
}
