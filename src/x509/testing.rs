//! For tests: certificate authorities, and bundles of trust anchors.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer as RcgenIssuer, KeyPair, KeyUsagePurpose};

use super::pem;

/// The time of the tests, in seconds since 1970: 2027-01-01. The fixtures were made before.
pub(crate) const NOW: i64 = 1_798_761_600;
pub(crate) const DAY: i64 = 86_400;

/// Returns a bundle with a certificate for each letter from `a` to `d`, whose DER is only that letter.
pub(crate) fn anchors(letters: &str) -> String {
    let certificate = |letter: char| {
        let body = ["YQ==", "Yg==", "Yw==", "ZA=="]["abcd".find(letter).unwrap()];
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    };
    letters.chars().map(certificate).collect()
}

/// Returns the bytes of the only block of a text in PEM.
pub(crate) fn der(text: &str) -> Vec<u8> {
    let [Ok(block)] = &pem::blocks(text.as_bytes())[..] else { panic!("{text}") };
    block.der.to_vec()
}

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

/// A certificate with its key.
pub(crate) struct TestCa {
    pub(crate) key: KeyPair,
    pub(crate) params: CertificateParams,
    pub(crate) pem: String,
}

// === impl TestCa ===

impl TestCa {
    /// A root that is valid for a year.
    pub(crate) fn root(name: &str) -> Self {
        let (key, params) = (KeyPair::generate().unwrap(), params(name));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { key, params, pem }
    }

    /// A CA that this one signed. It is valid for a year, unless `edit` changes that.
    pub(crate) fn signs(&self, name: &str, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        self.signs_key(name, KeyPair::generate().unwrap(), edit)
    }

    /// The same for a key.
    pub(crate) fn signs_key(&self, name: &str, key: KeyPair, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = params(name);
        edit(&mut params);
        let issuer = RcgenIssuer::from_params(&self.params, &self.key);
        let pem = params.signed_by(&key, &issuer).unwrap().pem();
        Self { key, params, pem }
    }

    /// Another certificate with the name and the key of `other`, signed by this one.
    pub(crate) fn signs_again(&self, other: &Self, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::from_pem(&other.key.serialize_pem()).unwrap();
        let mut params = other.params.clone();
        edit(&mut params);
        let pem = params.signed_by(&key, &RcgenIssuer::from_params(&self.params, &self.key)).unwrap().pem();
        Self { key, params, pem }
    }

    /// A root with another name and the same key.
    pub(crate) fn renamed(&self, name: &str) -> Self {
        let (key, params) = (KeyPair::from_pem(&self.key.serialize_pem()).unwrap(), params(name));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { key, params, pem }
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, -60, 365 * DAY);
    params
}

/// Sets the first and the last second of a certificate, from [`NOW`] on.
pub(crate) fn valid(params: &mut CertificateParams, from: i64, until: i64) {
    let time = |offset: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs((NOW + offset).try_into().unwrap());
    (params.not_before, params.not_after) = (time(from), time(until));
}

pub(crate) fn pem_of(certificates: &[&TestCa]) -> String {
    certificates.iter().map(|it| it.pem.as_str()).collect()
}
