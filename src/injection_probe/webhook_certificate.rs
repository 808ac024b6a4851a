//! Verifies the certificate of a webhook as the API server does.
//!
//! In: the certificates of the webhook's caBundle, the certificate that a replica presents. Out: whether the API server
//! would accept it. Always holds: a certificate is valid at the present time and for the name of the webhook's Service.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// rustls's verifier, and one rule of Go: a server may present a certificate of the caBundle itself, even that of a
/// certificate authority. `openssl req -x509` makes such certificates, and Linkerd's charts accept them.
#[derive(Debug)]
pub(super) struct WebhookVerifier {
    rustls: Arc<WebPkiServerVerifier>,
    bundle: Vec<CertificateDer<'static>>,
}

// === impl WebhookVerifier ===

impl WebhookVerifier {
    /// # Errors
    /// When the bundle is empty, or when one of its certificates is invalid.
    pub(super) fn new(bundle: Vec<CertificateDer<'static>>, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        if bundle.is_empty() {
            return Err("its caBundle has no certificate".to_owned());
        }
        let mut roots = RootCertStore::empty();
        for certificate in &bundle {
            let added = roots.add(certificate.clone());
            added.map_err(|error| format!("its caBundle has an invalid certificate: {error}"))?;
        }
        let rustls = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
        Ok(Self { rustls: rustls.map_err(|error| error.to_string())?, bundle })
    }
}

impl ServerCertVerifier for WebhookVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.rustls.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The validity period was verified before.
            Err(Error::InvalidCertificate(CertificateError::Other(why)))
                if is_authority(&why) && self.bundle.contains(end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.rustls.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.rustls.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rustls.supported_verify_schemes()
    }
}

/// Whether a certificate was refused because it is that of a certificate authority.
fn is_authority(why: &OtherError) -> bool {
    why.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::{crypto::ring, pki_types::pem::PemObject};

    use super::*;

    /// Made by `openssl req -x509 -days 36500`, which sets `CA:TRUE`, in November 2026.
    const AUTHORITY: &[u8] = include_bytes!("testdata/self-signed-ca.pem");
    const NAME: &str = "linkerd-proxy-injector.linkerd.svc";
    /// 1 January 2030 and 1 January 2130.
    const VALID: u64 = 1_893_456_000;
    const EXPIRED: u64 = 5_049_129_600;

    /// Returns whether a webhook with this bundle may present that certificate.
    fn verify(bundle: &[u8], name: &str, seconds: u64) -> Result<ServerCertVerified, Error> {
        let bundle = CertificateDer::pem_slice_iter(bundle).map(Result::unwrap).collect();
        let verifier = WebhookVerifier::new(bundle, &Arc::new(ring::default_provider())).unwrap();
        let presented = CertificateDer::from_pem_slice(AUTHORITY).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        verifier.verify_server_cert(&presented, &[], &ServerName::try_from(name).unwrap(), &[], now)
    }

    #[test]
    fn a_certificate_authority_in_the_bundle_may_be_the_servers_own_certificate() {
        verify(AUTHORITY, NAME, VALID).unwrap();
    }

    #[test]
    fn it_must_be_in_the_bundle_and_have_the_name_and_be_valid_now() {
        let other = include_bytes!("testdata/other-ca.pem");
        assert!(verify(other, NAME, VALID).is_err());
        let wrong = verify(AUTHORITY, "linkerd-proxy-injector.other.svc", VALID).unwrap_err().to_string();
        assert!(wrong.contains("not valid for name"), "{wrong}");
        let expired = verify(AUTHORITY, NAME, EXPIRED).unwrap_err().to_string();
        assert!(expired.contains("expired"), "{expired}");
    }
}
