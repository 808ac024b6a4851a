//! Certificate authorities, requests and fixtures, for tests.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer as RcgenIssuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::{
    anchors::AnchorBundle,
    csr::SigningRequest,
    issuer::{Issuer, IssuerProblem, Leaf},
    pem,
    username::IdentityDomain,
    validity::{LeafLifetime, Validity},
};

pub(super) const WEB: &str = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";
/// The time of the tests, in seconds since 1970: 2027-01-01. The fixtures were made before.
pub(super) const NOW: i64 = 1_798_761_600;
pub(super) const DAY: i64 = 86_400;

/// Returns the part of the fixtures with this title.
pub(super) fn fixture(title: &str) -> &'static str {
    let all = include_str!("testdata/keys.txt");
    let begin = all.find(&format!("## {title}\n")).unwrap();
    let part = all[begin..].split_once('\n').unwrap().1;
    part.split("## ").next().unwrap()
}

/// Returns the bytes of the only block of a text in PEM.
pub(super) fn der(text: &str) -> Vec<u8> {
    let [Ok(block)] = &pem::blocks(text.as_bytes())[..] else { panic!("{text}") };
    block.der.to_vec()
}

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

pub(super) fn domain() -> IdentityDomain {
    IdentityDomain::new("linkerd", "cluster.local").unwrap()
}

/// A day and a clock skew of 20 s, as the chart sets them.
pub(super) fn validity() -> Validity {
    LeafLifetime::new(SignedDuration::from_hours(24), SignedDuration::from_secs(20)).at(now())
}

/// The request of a proxy.
pub(super) fn request() -> SigningRequest {
    SigningRequest::parse(&der(fixture("csr-p256.pem"))).unwrap()
}

/// A certificate with its key.
pub(super) struct TestCa {
    pub(super) key: KeyPair,
    pub(super) params: CertificateParams,
    pub(super) pem: String,
}

// === impl TestCa ===

impl TestCa {
    /// A root that is valid for a year.
    pub(super) fn root(name: &str) -> Self {
        let (key, params) = (KeyPair::generate().unwrap(), params(name));
        let pem = params.self_signed(&key).unwrap().pem();
        Self { key, params, pem }
    }

    /// A CA that this one signed. It is valid for a year, unless `edit` changes that.
    pub(super) fn signs(&self, name: &str, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        self.signs_key(name, KeyPair::generate().unwrap(), edit)
    }

    /// The same for a key.
    pub(super) fn signs_key(&self, name: &str, key: KeyPair, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = params(name);
        edit(&mut params);
        let issuer = RcgenIssuer::from_params(&self.params, &self.key);
        let pem = params.signed_by(&key, &issuer).unwrap().pem();
        Self { key, params, pem }
    }

    /// Another certificate with the name and the key of `other`, signed by this one.
    pub(super) fn signs_again(&self, other: &Self, edit: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::from_pem(&other.key.serialize_pem()).unwrap();
        let mut params = other.params.clone();
        edit(&mut params);
        let pem = params.signed_by(&key, &RcgenIssuer::from_params(&self.params, &self.key)).unwrap().pem();
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
pub(super) fn valid(params: &mut CertificateParams, from: i64, until: i64) {
    let time = |offset: i64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs((NOW + offset).try_into().unwrap());
    (params.not_before, params.not_after) = (time(from), time(until));
}

pub(super) fn pem_of(certificates: &[&TestCa]) -> String {
    certificates.iter().map(|it| it.pem.as_str()).collect()
}

/// Loads an issuer from its file, its key and the trust anchors, in PEM.
pub(super) fn load(file: &str, key: &str, roots: &str) -> Result<Issuer, IssuerProblem> {
    let anchors = AnchorBundle::parse(roots.as_bytes()).unwrap();
    Issuer::load(file.as_bytes(), key.as_bytes(), &anchors, &domain(), now())
}

/// Loads an issuer from the certificates in its file, the first with the key, and the trust anchors.
pub(super) fn load_of(file: &[&TestCa], roots: &[&TestCa]) -> Result<Issuer, IssuerProblem> {
    load(&pem_of(file), &file[0].key.serialize_pem(), &pem_of(roots))
}

/// Verifies a leaf for [`WEB`] with these trust anchors, as proxies do.
pub(super) fn verify(leaf: &[u8], chain: &[Vec<u8>], roots: &str) -> Result<(), webpki::Error> {
    verify_for(WEB, leaf, chain, roots)
}

/// Verifies a leaf for another identity.
pub(super) fn verify_for(identity: &str, leaf: &[u8], chain: &[Vec<u8>], roots: &str) -> Result<(), webpki::Error> {
    let roots: Vec<_> = pem::blocks(roots.as_bytes())
        .into_iter()
        .map(|block| CertificateDer::from(block.unwrap().der.to_vec()))
        .collect();
    let roots: Vec<_> = roots.iter().map(|root| anchor_from_trusted_cert(root).unwrap()).collect();
    let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let leaf = CertificateDer::from(leaf);
    let leaf = EndEntityCert::try_from(&leaf)?;
    let time = UnixTime::since_unix_epoch(Duration::from_secs(NOW.try_into().unwrap()));
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        leaf.verify_for_usage(ALL_VERIFICATION_ALGS, &roots, &chain, time, usage, None, None)?;
    }
    leaf.verify_is_valid_for_subject_name(&ServerName::try_from(identity).unwrap())
}

/// Issues a leaf for [`WEB`].
pub(super) fn issue(issuer: &Issuer) -> Leaf {
    issuer.issue(&request(), WEB, validity(), [0; 16]).unwrap()
}
