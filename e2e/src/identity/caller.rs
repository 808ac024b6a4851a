//! Callers of `Certify`, as many as a test needs.
//!
//! * In: the address of any identity server, requests. Out: the code of each answer, and the time until it arrived.
//!   Always: as a proxy's, a call has no deadline, but the wait for all answers has one.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use hyper_util::rt::TokioIo;
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse, identity_client::IdentityClient};
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tower::service_fn;

use super::MeshAuthority;
use crate::tls::connector;

/// The name in the service's own certificate.
const SERVICE: &str = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";

/// The deadline of a connection, and of many calls that begin together.
const CONNECT: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(300);

/// One connection, which its clones share.
#[derive(Clone)]
pub struct CertifyCaller(IdentityClient<Channel>);

/// The answer to one of several calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The place of the request.
    pub request: usize,
    pub code: Code,
    pub text: String,
    pub took: Duration,
}

// === impl CertifyCaller ===

impl CertifyCaller {
    /// # Errors
    /// Fails if the server does not accept a connection in time.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(CONNECT).tcp_nodelay(true);
        let channel = endpoint.connect().await.with_context(|| format!("connecting to {address}"))?;
        Ok(Self(IdentityClient::new(channel)))
    }

    /// Connects over TLS, as a proxy that trusts this root and has no certificate.
    ///
    /// # Errors
    /// Fails if the server has no certificate of the root for the identity service.
    pub async fn connect_over_tls(address: SocketAddr, root: &MeshAuthority) -> Result<Self> {
        let connector = connector(&root.pem())?;
        let connect = service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from(SERVICE).map_err(io::Error::other)?;
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(CONNECT);
        let channel = endpoint.connect_with_connector(connect).await.with_context(|| format!("TLS with {address}"))?;
        Ok(Self(IdentityClient::new(channel)))
    }

    /// # Errors
    /// Fails with the status of the server.
    pub async fn call(&self, request: CertifyRequest) -> Result<CertifyResponse, Status> {
        self.0.clone().certify(request).await.map(tonic::Response::into_inner)
    }

    /// Returns the code of the answer.
    pub async fn code(&self, request: CertifyRequest) -> Code {
        self.call(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
    }
}

/// Opens so many connections.
///
/// # Errors
/// Fails if one cannot be opened.
pub async fn connect_all(address: SocketAddr, count: usize) -> Result<Vec<CertifyCaller>> {
    stream::iter(0..count).map(|_| CertifyCaller::connect(address)).buffered(16).try_collect().await
}

/// Makes all calls, so many at the same time, on the connections in turn. Returns the answers in the order of arrival.
///
/// # Errors
/// Fails if they do not arrive in time.
pub async fn call_all(
    callers: &[CertifyCaller],
    requests: Vec<CertifyRequest>,
    at_once: usize,
) -> Result<Vec<Answered>> {
    let calls = requests.into_iter().zip(callers.iter().cycle().cloned()).enumerate();
    let answers = stream::iter(calls).map(|(request, (message, caller))| async move {
        let begun = Instant::now();
        let (code, text) = match caller.call(message).await {
            Ok(_) => (Code::Ok, String::new()),
            Err(status) => (status.code(), status.message().to_owned()),
        };
        Answered { request, code, text, took: begun.elapsed() }
    });
    timeout(PATIENCE, answers.buffer_unordered(at_once).collect()).await.context("not all calls were answered in time")
}
