//! A call of `Certify` as a proxy makes it, and the check of its answer.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse, identity_client::IdentityClient};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tonic::{Status, transport::Endpoint};

use super::MeshAuthority;

/// The audience of the tokens that proxies send.
pub const AUDIENCE: &str = "identity.l5d.io";

/// Asks the server at this address, without TLS, for a certificate.
///
/// # Errors
/// The refusal of the server, or the code `Unknown` if it cannot be reached.
pub async fn certify(server: SocketAddr, identity: &str, token: &str) -> Result<CertifyResponse, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::unknown(error.to_string());
    let server = Endpoint::from_shared(format!("http://{server}")).map_err(|error| failed(&error))?;
    let channel = server.connect().await.map_err(|error| failed(&error))?;
    let certificate_signing_request = signing_request(identity).map_err(|error| failed(&error))?;
    let request =
        CertifyRequest { identity: identity.to_owned(), token: token.as_bytes().to_vec(), certificate_signing_request };
    Ok(IdentityClient::new(channel).certify(request).await?.into_inner())
}

/// As the proxy makes it.
fn signing_request(identity: &str) -> Result<Vec<u8>> {
    let mut params = CertificateParams::new(vec![identity.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, identity);
    Ok(params.serialize_request(&KeyPair::generate()?)?.der().to_vec())
}

/// Verifies a certificate as a proxy does that trusts this root.
///
/// # Errors
/// When such a proxy would refuse it.
pub fn verify(answer: &CertifyResponse, identity: &str, root: &MeshAuthority) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root.der().to_vec()))?;
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
    let leaf = CertificateDer::from(answer.leaf_certificate.clone());
    let chain: Vec<_> = answer.intermediate_certificates.iter().cloned().map(CertificateDer::from).collect();
    let name = ServerName::try_from(identity.to_owned())?;
    verifier.verify_server_cert(&leaf, &chain, &name, &[], UnixTime::now())?;
    Ok(())
}
