//! Sends one request to one replica of the proxy injector, bypassing the Service, which would choose any replica.
//!
//! In: an address, the name in its certificate, the certificate authority. Out: the body of the answer. Always holds:
//! only the webhook's own certificate authority is trusted; an answer is at most [`MAX_ANSWER_BYTES`] long.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
    version,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::webhook_certificate::WebhookVerifier;

/// The maximum length of an answer, which is much longer than the patch of any Pod.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// The timeout of one answer. The API server waits twice as long for the injector, which usually takes 12 ms.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends requests to any replica of the webhook.
#[derive(Clone)]
pub(super) struct WebhookClient {
    pub(super) server_name: ServerName<'static>,
    pub(super) path: String,
    pub(super) tls: Arc<ClientConfig>,
}

/// The reason why a request has no usable answer.
#[derive(Debug)]
pub(super) enum CallError {
    /// The request could not be sent.
    Unreachable(String),
    /// The request was sent, and its answer is missing or broken.
    Broken(String),
}

impl WebhookClient {
    /// # Errors
    /// When the name or the certificate authority is invalid.
    pub(super) fn new(service: &str, namespace: &str, path: &str, ca_bundle: &[u8]) -> Result<Self, String> {
        let server_name = ServerName::try_from(format!("{service}.{namespace}.svc"));
        let bundle = CertificateDer::pem_slice_iter(ca_bundle)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| format!("its caBundle is not valid PEM: {error}"))?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebhookVerifier::new(bundle, &provider)?;
        // Linkerd's webhooks accept no older version.
        let tls = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self {
            server_name: server_name
                .map_err(|error| format!("its Service has a name that is invalid in a certificate: {error}"))?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            tls: Arc::new(tls),
        })
    }

    /// Sends one request. The caller must set a deadline.
    pub(super) async fn post(&self, address: SocketAddr, body: Bytes) -> Result<Bytes, CallError> {
        let unreachable =
            |what: &str, error: &dyn std::fmt::Display| CallError::Unreachable(format!("{what}: {error}"));
        let stream = TcpStream::connect(address).await.map_err(|error| unreachable("could not connect", &error))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(self.server_name.clone(), stream)
            .await
            .map_err(|error| unreachable("the TLS handshake failed", &error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unreachable("the HTTP handshake failed", &error))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header(header::HOST, self.server_name.to_str().into_owned())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| unreachable("the request is invalid", &error))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
            let body =
                body.map_err(|error| CallError::Broken(format!("the connection broke during the answer: {error}")))?;
            if status.is_success() {
                Ok(body.to_bytes())
            } else {
                Err(CallError::Broken(format!("it answered with {status}")))
            }
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            // The connection may end with the last byte of the answer.
            _ = connection => exchange.await,
        }
    }
}

fn broken(error: &hyper::Error) -> CallError {
    CallError::Broken(format!("the connection broke before the answer: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_ca_bundle_is_an_error() {
        for (bundle, why) in [
            (&b""[..], "has no certificate"),
            (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "an invalid certificate"),
            (b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", "not valid PEM"),
        ] {
            let error = WebhookClient::new("linkerd-proxy-injector", "linkerd", "/", bundle).err().unwrap();
            assert!(error.contains(why), "{error}");
        }
    }
}
