//! TLS with a certificate of the server's own issuer, for a server without a Linkerd proxy.
//!
//! In: the issuer in use. Out: the certificate for each handshake. Always holds: only TLS 1.3 is accepted; no client
//! certificate is requested, so a proxy whose certificate has expired can still renew it, and the token proves who asks;
//! the certificate is renewed after half of its life and at each change of the issuer.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    version,
};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::identity::{
    csr::SigningRequest,
    follow::{FollowedIssuer, LoadedIssuer},
    username::IdentityDomain,
    validity::LeafLifetime,
};

/// The delay after a failure, and the shortest time between two renewals.
const RETRY: Duration = Duration::from_secs(10);

/// The certificate that the server presents, if it has one.
#[derive(Debug, Default)]
pub(in crate::identity) struct OwnCertificate(RwLock<Option<Arc<CertifiedKey>>>);

// === impl OwnCertificate ===

impl OwnCertificate {
    /// Issues certificates for the server, forever.
    pub(in crate::identity) async fn renew(
        self: Arc<Self>,
        followed: Arc<FollowedIssuer>,
        domain: IdentityDomain,
        lifetime: LeafLifetime,
    ) {
        let name = domain.identity_service();
        let mut changes = followed.subscribe();
        loop {
            let loaded = changes.borrow_and_update().clone();
            let next = loaded.map(|loaded| {
                self.issue(&loaded, &name, lifetime).unwrap_or_else(|error| {
                    warn!("could not issue the server's own certificate: {error:#}");
                    RETRY
                })
            });
            let changed = changes.changed();
            match next {
                None => _ = changed.await,
                Some(next) => tokio::select! {
                    _ = changed => {}
                    () = sleep(next) => {}
                },
            }
        }
    }

    /// Issues a certificate and uses it. Returns the time until its renewal.
    fn issue(&self, loaded: &LoadedIssuer, name: &str, lifetime: LeafLifetime) -> anyhow::Result<Duration> {
        let key = rcgen::KeyPair::generate()?;
        let mut request = rcgen::CertificateParams::new(vec![name.to_owned()])?;
        request.distinguished_name = rcgen::DistinguishedName::new();
        let request = request.serialize_request(&key)?;
        let request = SigningRequest::parse(request.der())?;
        let now = Timestamp::now();
        let leaf = loaded.issuer.issue(&request, name, lifetime.at(now), rand::random())?;
        let chain = std::iter::once(leaf.der).chain(loaded.issuer.chain().iter().cloned()).map(CertificateDer::from);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signer = ring::sign::any_ecdsa_type(&key).context("its key cannot be used")?;
        let pair = CertifiedKey::new(chain.collect(), signer);
        *self.0.write() = Some(Arc::new(pair));
        info!(name, until = %leaf.not_after, "issued the server's own certificate");
        let left = Duration::try_from(leaf.not_after.duration_since(now)).unwrap_or_default();
        Ok((left / 2).max(RETRY))
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// Returns the TLS settings. Proxies name no protocol (ALPN): they use HTTP/2 without it.
///
/// # Errors
/// When the TLS library cannot be set up.
pub(in crate::identity) fn acceptor(certificate: Arc<OwnCertificate>) -> Result<TlsAcceptor, rustls::Error> {
    let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    // A resumed session would not present a new certificate.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    Ok(Arc::new(tls).into())
}
