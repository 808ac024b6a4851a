//! A connection to a replica that is kept, as an API server keeps it.
//!
//! * In: a replica's address and certificate. Out: the answers to reviews, one after the other.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{net::TcpStream, task::JoinSet};

use super::server::Certificates;
use crate::tls;

/// One kept connection.
pub struct Caller {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
    _connection: JoinSet<()>,
}

// === impl Caller ===

impl Caller {
    pub(super) async fn connect(address: SocketAddr, certificates: &Certificates) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(certificates.name.clone())?;
        let stream = tls::connector(certificates.ca_pem())?.connect(name, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        task.spawn(async move { drop(connection.await) });
        Ok(Self { sender, host: certificates.name.clone(), _connection: task })
    }

    /// Posts a body, and returns the body of the answer.
    ///
    /// # Errors
    /// The connection broke, or the answer is an error.
    pub async fn post(&mut self, body: Bytes) -> Result<Bytes> {
        let request = Request::post("/").header(header::HOST, &self.host).body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await.context("a review")?;
        ensure!(response.status().is_success(), "a review is answered with {}", response.status());
        Ok(response.into_body().collect().await?.to_bytes())
    }
}
