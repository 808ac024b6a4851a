//! A TLS server that presents certificates as a proxy does.
//!
//! * In: the chain of an issuer, the root that clients must have. Out: an address of the host. Always: it refuses clients
//!   without a certificate, but only after it has presented its own.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tokio::{io::AsyncReadExt, net::TcpListener, sync::watch, task::AbortHandle};
use tokio_rustls::TlsAcceptor;

use crate::identity::MeshAuthority;

pub struct ShownProxy {
    pub address: SocketAddr,
    identity: String,
    config: watch::Sender<Arc<ServerConfig>>,
    server: AbortHandle,
}

// === impl ShownProxy ===

impl ShownProxy {
    /// Presents a certificate of the first authority, and then the whole chain.
    ///
    /// # Errors
    /// Fails if no port is free, or the chain is empty.
    pub async fn start(identity: &str, chain: &[&MeshAuthority], root: &MeshAuthority) -> Result<Self> {
        let (config, current) = watch::channel(config(identity, chain, root)?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = TlsAcceptor::from(Arc::clone(&current.borrow()));
                if let Ok(mut accepted) = acceptor.accept(stream).await {
                    _ = accepted.read(&mut [0]).await;
                }
            }
        });
        Ok(Self { address, identity: identity.to_owned(), config, server: server.abort_handle() })
    }

    /// Renews the certificate, from this chain.
    pub fn renew(&self, chain: &[&MeshAuthority], root: &MeshAuthority) -> Result<()> {
        self.config.send_replace(config(&self.identity, chain, root)?);
        Ok(())
    }
}

impl Drop for ShownProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn config(identity: &str, chain: &[&MeshAuthority], root: &MeshAuthority) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root.der().to_vec()))?;
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let (leaf, key) = chain.first().context("the chain is empty")?.signs_leaf(identity)?;
    let sent = chain.iter().map(|authority| authority.der().to_vec());
    let chain = std::iter::once(leaf).chain(sent).map(CertificateDer::from).collect();
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key)))?;
    Ok(Arc::new(config))
}
