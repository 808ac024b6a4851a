//! Requests and fixtures, for tests.

use std::time::Duration;

use jiff::SignedDuration;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::{
    csr::SigningRequest,
    issuer::{Issuer, IssuerProblem, Leaf},
    username::IdentityDomain,
    validity::{LeafLifetime, Validity},
};
use crate::x509::{
    anchors::AnchorBundle,
    pem,
    testing::{NOW, TestCa, der, now, pem_of},
};

pub(super) const WEB: &str = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";
/// Returns the part of the fixtures with this title.
pub(super) fn fixture(title: &str) -> &'static str {
    let all = include_str!("testdata/keys.txt");
    let begin = all.find(&format!("## {title}\n")).unwrap();
    let part = all[begin..].split_once('\n').unwrap().1;
    part.split("## ").next().unwrap()
}

pub(crate) fn domain() -> IdentityDomain {
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

/// Loads an issuer from its file, its key and the trust anchors, in PEM.
pub(super) fn load(file: &str, key: &str, roots: &str) -> Result<Issuer, IssuerProblem> {
    let anchors = AnchorBundle::parse(roots.as_bytes()).unwrap();
    Issuer::load(file.as_bytes(), key.as_bytes(), &anchors, &domain(), now())
}

/// Loads an issuer from the certificates in its file, the first with the key, and the trust anchors.
pub(crate) fn load_of(file: &[&TestCa], roots: &[&TestCa]) -> Result<Issuer, IssuerProblem> {
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
