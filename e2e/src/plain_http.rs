//! Sends one HTTP/1.1 request: in plain text to a loopback port (the manager's admin port, etcd's JSON gateway), or on
//! a connection that the caller opened.
//!
//! * Always: a plain-text exchange ends within its timeout.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

pub async fn request(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
    deadline: Duration,
) -> Result<(StatusCode, Bytes)> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, address.to_string())
        .header(header::CONNECTION, "close")
        .body(Full::new(body.into()))?;
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        exchanged(stream, request).await
    };
    timeout(deadline, exchange)
        .await
        .with_context(|| format!("http://{address}{path} did not answer within {deadline:?}"))?
        .with_context(|| format!("http://{address}{path}"))
}

/// Sends one request on the stream, without reusing it, and returns the answer.
pub async fn exchanged(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        anyhow::Ok((status, response.into_body().collect().await?.to_bytes()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may finish before the answer is read; the received bytes are kept for the reader.
        _ = connection => answer.await,
    }
}
