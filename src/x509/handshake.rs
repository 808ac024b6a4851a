//! TLS handshakes that show the certificates of a server, and whether it accepts that of a client.
//!
//! In: a connection, the name of the server, the certificate of a client. Out: the certificates in DER, or why the server
//! refuses. Always holds: the server has the key of its certificate; nothing else of it is verified, and no data is sent.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        ResolvesClientCert, WantsClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring, ring::sign::any_supported_type, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The time in which a server refuses a certificate after the handshake.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// Keeps what a server presents, and trusts every one: what is presented is judged afterwards.
#[derive(Debug)]
struct Witness {
    presented: Mutex<Vec<CertificateDer<'static>>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Presents a certificate if the server asks for one.
#[derive(Debug)]
struct Client {
    certificate: Arc<CertifiedKey>,
    is_asked: AtomicBool,
}

/// Returns the certificates that a server with this name presents, its own first.
///
/// # Errors
/// When the server does not speak TLS 1.3, has no certificate, or does not have the key of the one that it presents.
pub(crate) async fn presented(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    identity: &str,
) -> Result<Vec<CertificateDer<'static>>> {
    let witness = Arc::new(Witness::new());
    let connected = connect(stream, identity, config(&witness)?.with_no_client_auth()).await;
    let presented = std::mem::take(&mut *witness.presented.lock());
    // A proxy that refuses clients without a certificate says so after it has presented its own.
    match connected {
        _ if !presented.is_empty() => Ok(presented),
        Ok(_) => bail!("the proxy presented no certificate"),
        Err(error) => Err(error).context("the TLS handshake failed: is this the identity of the proxy?"),
    }
}

/// Returns why a server with this name refuses a client with this certificate, and those that are sent with it; `None` if it
/// accepts it.
///
/// # Errors
/// When the server does not speak TLS 1.3, or asks for no certificate.
pub(crate) async fn refusal(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    name: &str,
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'_>,
) -> Result<Option<String>> {
    let key = any_supported_type(key).context("the key of the client cannot be used")?;
    let client =
        Arc::new(Client { certificate: CertifiedKey::new(chain, key).into(), is_asked: AtomicBool::default() });
    let config = config(&Arc::new(Witness::new()))?;
    let connected =
        connect(stream, name, config.with_client_cert_resolver(Arc::clone(&client) as Arc<dyn ResolvesClientCert>))
            .await;
    // The server answers after the handshake, and only if it refuses.
    let answer = match connected {
        Ok(mut stream) => timeout(REFUSED_WITHIN, stream.read(&mut [0])).await.unwrap_or(Ok(0)).map(drop),
        Err(error) => Err(error),
    };
    match answer {
        Err(error) if !client.is_asked.load(Relaxed) => {
            Err(error).context("the TLS handshake failed: is this the identity of the proxy?")
        }
        Err(error) => Ok(Some(error.to_string())),
        Ok(()) if !client.is_asked.load(Relaxed) => bail!("the proxy asks clients for no certificate here"),
        Ok(()) => Ok(None),
    }
}

fn config(witness: &Arc<Witness>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(witness) as Arc<dyn ServerCertVerifier>))
}

async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    name: &str,
    mut config: ClientConfig,
) -> io::Result<TlsStream<S>> {
    config.resumption = rustls::client::Resumption::disabled();
    let name = ServerName::try_from(name.to_owned()).map_err(|_| io::Error::other(format!("{name} is not a name")))?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

// === impl Client ===

impl ResolvesClientCert for Client {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_asked.store(true, Relaxed);
        Some(Arc::clone(&self.certificate))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

// === impl Witness ===

impl Witness {
    fn new() -> Self {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Self { presented: Mutex::default(), algorithms }
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
