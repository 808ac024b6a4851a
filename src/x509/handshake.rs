//! A TLS handshake that returns the certificates of a server, without verification of their signatures.
//!
//! In: a connection, the name of the server. Out: the certificates in DER. Always holds: the server has the key of its
//! certificate; nothing else is verified, and no data is sent.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// Keeps what a server presents, and trusts every one: what is presented is judged afterwards.
#[derive(Debug)]
struct Witness {
    presented: Mutex<Vec<CertificateDer<'static>>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Returns the certificates that a server with this name presents, its own first.
///
/// # Errors
/// When the server does not speak TLS 1.3, has no certificate, or does not have the key of the one that it presents.
pub(crate) async fn presented(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    identity: &str,
) -> Result<Vec<CertificateDer<'static>>> {
    let provider = Arc::new(ring::default_provider());
    let witness = Arc::new(Witness::new(&provider));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&witness) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    let name = ServerName::try_from(identity.to_owned()).with_context(|| format!("{identity} is not a name"))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let presented = std::mem::take(&mut *witness.presented.lock());
    // A proxy that refuses clients without a certificate says so after it has presented its own.
    match connected {
        _ if !presented.is_empty() => Ok(presented),
        Ok(_) => bail!("the proxy presented no certificate"),
        Err(error) => Err(error).context("the TLS handshake failed: is this the identity of the proxy?"),
    }
}

// === impl Witness ===

impl Witness {
    fn new(provider: &CryptoProvider) -> Self {
        Self { presented: Mutex::default(), algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let all = std::iter::once(end_entity).chain(intermediates);
        *self.presented.lock() = all.map(|der| der.clone().into_owned()).collect();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("proxies speak TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = verify_tls13_signature(message, cert, dss, &self.algorithms);
        if verified.is_err() {
            self.presented.lock().clear();
        }
        verified
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
