//! Creates a temporary certificate authority and one certificate signed by it.
//!
//! * In: the server's names, or the user. Out: PEM texts. Always: the authority's key is discarded after signing.

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

pub(crate) struct ServingCertificate {
    pub(crate) ca_pem: String,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

/// Valid for loopback, for `address`, and for the Service `kubernetes` (whose IP is the first of the Service range).
pub(crate) fn for_api_server(address: Option<&str>) -> Result<ServingCertificate> {
    let names = ["127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1"];
    for_names(&names.into_iter().chain(address).collect::<Vec<_>>())
}

pub(crate) fn for_names(names: &[&str]) -> Result<ServingCertificate> {
    let mut leaf = CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())?;
    leaf.distinguished_name.push(DnType::CommonName, "e2e-server");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    signed(leaf)
}

/// A certificate for this name that is its own certificate authority.
pub(crate) fn self_signed_authority(name: &str) -> Result<ServingCertificate> {
    let key = KeyPair::generate()?;
    let mut own = CertificateParams::new(vec![name.to_owned()])?;
    own.distinguished_name.push(DnType::CommonName, name);
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = own.self_signed(&key)?.pem();
    Ok(ServingCertificate { ca_pem: pem.clone(), certificate_pem: pem, key_pem: key.serialize_pem() })
}

/// A client certificate for a Kubernetes user and group.
pub(crate) fn for_client(user: &str, group: &str) -> Result<ServingCertificate> {
    let mut leaf = CertificateParams::new(Vec::new())?;
    leaf.distinguished_name.push(DnType::CommonName, user);
    leaf.distinguished_name.push(DnType::OrganizationName, group);
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    signed(leaf)
}

fn signed(mut leaf: CertificateParams) -> Result<ServingCertificate> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.distinguished_name.push(DnType::CommonName, "e2e-ca");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate()?;
    leaf.use_authority_key_identifier_extension = true;
    let certificate_pem = leaf.signed_by(&key, &issuer)?.pem();
    Ok(ServingCertificate { ca_pem, certificate_pem, key_pem: key.serialize_pem() })
}

/// A private key and its public key, for ServiceAccount tokens.
pub(crate) fn signing_keys_pem() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
