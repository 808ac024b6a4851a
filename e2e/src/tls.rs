//! The two ends of the harness's TLS connections.
//!
//! * In: PEM texts. Out: an acceptor and a connector. Always: they use the ring provider, independent of the process
//!   default.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificate::ServingCertificate;

const DEADLINE: Duration = Duration::from_secs(10);

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

/// Connects, and returns the certificate of the server. It must be valid for the name, and signed by one of these CAs.
pub async fn certificate_of(address: SocketAddr, name: &str, ca_pem: &str) -> Result<CertificateDer<'static>> {
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        let stream = connector(ca_pem)?.connect(ServerName::try_from(name.to_owned())?, stream).await?;
        let presented = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
        presented.context("the server has no certificate")
    };
    timeout(DEADLINE, connect).await.with_context(|| format!("{address} did not finish a TLS handshake"))?
}

/// Trusts only these CAs.
pub fn connector(ca_pem: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
