//! The two ends of the harness's TLS connections.
//!
//! * In: PEM texts. Out: an acceptor and a connector. Always: they use the ring provider, independent of the process
//!   default.

use std::sync::Arc;

use anyhow::Result;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificate::ServingCertificate;

pub(crate) fn acceptor(
    serving: &ServingCertificate,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<TlsAcceptor> {
    let certificate = CertificateDer::from_pem_slice(serving.certificate_pem.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(serving.key_pem.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Trusts only this CA.
pub(crate) fn connector(ca_pem: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
