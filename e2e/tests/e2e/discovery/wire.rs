//! Clients that violate the protocol: they are refused promptly, and other clients are not affected.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    Served,
    objects::{address, service, slice},
};

const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";
const PROMPTLY: Duration = Duration::from_secs(8);
/// Maximum time until a connection without an HTTP/2 preface is closed.
const PREFACE: Duration = Duration::from_secs(25);

/// A response: the HTTP status, the gRPC status if any, and whether it had a message.
#[derive(Debug)]
struct HttpAnswer {
    status: StatusCode,
    code: Option<u32>,
    text: String,
    messages: bool,
}

/// Sends one request on a new connection. A reset stream counts as a response with CANCELLED, as in a gRPC client.
async fn request(
    rig: &Served,
    method: Method,
    path: &str,
    content_type: Option<&str>,
    body: &[u8],
) -> Result<HttpAnswer> {
    let address = rig.manager.destination_address();
    let exchange = async {
        let io = TokioIo::new(TcpStream::connect(address).await?);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(method).uri(format!("http://{address}{path}")).header("te", "trailers");
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        let reset = |error: hyper::Error| HttpAnswer {
            status: StatusCode::OK,
            code: Some(1),
            text: error.to_string(),
            messages: false,
        };
        let response = match sender.send_request(request.body(Full::new(Bytes::copy_from_slice(body)))?).await {
            Ok(response) => response,
            Err(error) => return anyhow::Ok(reset(error)),
        };
        let (parts, mut body) = response.into_parts();
        let (mut code, mut text) = grpc_status(&parts.headers);
        let mut messages = false;
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) if frame.is_data() => {
                    messages = true;
                    // A served stream does not end.
                    break;
                }
                Ok(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    (code, text) = grpc_status(&trailers);
                }
                Err(error) => return Ok(reset(error)),
            }
        }
        Ok(HttpAnswer { status: parts.status, code, text, messages })
    };
    timeout(PROMPTLY, exchange).await.with_context(|| format!("{path} was not answered"))?
}

fn grpc_status(headers: &HeaderMap) -> (Option<u32>, String) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    (text("grpc-status").and_then(|code| code.parse().ok()), text("grpc-message").unwrap_or_default())
}

async fn post(rig: &Served, body: &[u8]) -> Result<HttpAnswer> {
    request(rig, Method::POST, GET, Some("application/grpc"), body).await
}

/// A gRPC message: its compression flag, the declared length, and its bytes.
fn frame(flag: u8, length: u32, message: &[u8]) -> Vec<u8> {
    [&[flag], length.to_be_bytes().as_slice(), message].concat()
}

fn whole(message: &[u8]) -> Vec<u8> {
    frame(0, u32::try_from(message.len()).unwrap_or(u32::MAX), message)
}

/// A length-delimited protobuf field.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

async fn rig(prefix: &str) -> Result<(Served, e2e::discovery::Endpoints)> {
    let rig = Served::start(prefix).await?;
    rig.put_all([service("web"), slice("web", "web", &[address("192.0.2.1")])]).await?;
    let stream = rig.shows("web:80", &["192.0.2.1:8080"]).await?;
    Ok((rig, stream))
}

async fn still_served(rig: &Served, mut stream: e2e::discovery::Endpoints) -> Result<()> {
    rig.set_endpoints("web", &[address("192.0.2.2")]).await?;
    stream.shows(&["192.0.2.2:8080"]).await?;
    let discovery = rig.manager.discovery().await?;
    discovery.get(&rig.path("web"), "").await?.shows(&["192.0.2.2:8080"]).await?;
    ensure!(!rig.manager.log().contains("panicked"), "{}", rig.manager.log());
    Ok(())
}

#[tokio::test]
async fn a_request_without_a_valid_message_fails_promptly() -> Result<()> {
    let (rig, stream) = rig("frames").await?;
    let good = field(2, rig.path("web").as_bytes());
    let length = u32::try_from(good.len())?;
    let bodies = [
        ("no message", Vec::new()),
        ("half a prefix", vec![0, 0, 0]),
        ("only a prefix", frame(0, 5, b"")),
        ("less than the declared length", frame(0, length + 1, &good)),
        ("the maximum declared length", frame(0, u32::MAX, &good)),
        ("a declared length above the limit", frame(0, 64 * 1024 * 1024, &good)),
        ("a compression flag without compression", frame(1, length, &good)),
        ("an undefined flag", frame(7, length, &good)),
        ("invalid protobuf", whole(&[0xff; 64])),
        ("a truncated field", whole(&good[..good.len() - 1])),
        ("a path that is not UTF-8", whole(&field(2, &[0xff, 0xfe]))),
        ("a path that is a number", whole(&[2 << 3, 1])),
        ("nested groups", whole(&[0x0b; 10_000])),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
    ];
    for (what, body) in bodies {
        let answer = post(&rig, &body).await.context(what)?;
        ensure!(answer.code.is_some_and(|code| code != 0) && !answer.messages, "{what}: {answer:?}");
    }
    still_served(&rig, stream).await
}

#[tokio::test]
async fn missing_fields_are_empty_and_unknown_fields_are_skipped() -> Result<()> {
    let (rig, stream) = rig("fields").await?;
    let answer = post(&rig, &whole(b"")).await?;
    ensure!(answer.code == Some(3) && answer.text == "Invalid%20authority:%20", "{answer:?}");
    let path = rig.path("web");
    let scheme = field(1, b"whatever");
    for (what, message) in [
        ("only the path", field(2, path.as_bytes())),
        ("a scheme", [scheme.clone(), field(2, path.as_bytes())].concat()),
        (
            "fields in another order, one unknown",
            [field(3, b"{}"), field(15, b"later"), field(2, path.as_bytes()), scheme].concat(),
        ),
        ("two paths, of which the last counts", [field(2, b"first"), field(2, path.as_bytes())].concat()),
    ] {
        let answer = post(&rig, &whole(&message)).await.context(what)?;
        ensure!(answer.status == StatusCode::OK && answer.messages, "{what}: {answer:?}");
    }
    let kinds = ["application/grpc", "application/grpc+proto"];
    for kind in kinds {
        let answer = request(&rig, Method::POST, GET, Some(kind), &whole(&field(2, path.as_bytes()))).await?;
        ensure!(answer.messages, "{kind}: {answer:?}");
    }
    still_served(&rig, stream).await
}

#[tokio::test]
async fn other_methods_are_not_implemented() -> Result<()> {
    let (rig, stream) = rig("method").await?;
    let body = whole(&field(2, rig.path("web").as_bytes()));
    for path in [
        "/io.linkerd.proxy.destination.Destination/Nothing",
        "/io.linkerd.proxy.destination.Destination/get",
        "/io.linkerd.proxy.destination.Destination/",
        "/io.linkerd.proxy.destination.Destination",
        "/io.linkerd.proxy.destination.Other/Get",
        "/io.linkerd.proxy.identity.Identity/Certify",
        "/metrics",
        "/",
        &format!("{GET}/"),
        &format!("/{}", "x".repeat(8000)),
    ] {
        let answer = request(&rig, Method::POST, path, Some("application/grpc"), &body).await?;
        let unimplemented = answer.code == Some(12) || answer.status.is_client_error();
        ensure!(unimplemented && !answer.messages, "{path:.80}: {answer:?}");
    }
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS, Method::HEAD] {
        let answer = request(&rig, method.clone(), GET, Some("application/grpc"), &body).await?;
        let refused = !answer.status.is_success() || answer.code.is_some_and(|code| code != 0);
        ensure!(refused && !answer.messages, "{method}: {answer:?}");
    }
    for kind in [
        None,
        Some(""),
        Some("text/plain"),
        Some("application/json"),
        Some("application/grpc-web"),
        Some("application/grp"),
    ] {
        let answer = request(&rig, Method::POST, GET, kind, &body).await?;
        ensure!(answer.status == StatusCode::UNSUPPORTED_MEDIA_TYPE && !answer.messages, "{kind:?}: {answer:?}");
    }
    still_served(&rig, stream).await
}

#[tokio::test]
async fn connections_without_http_2_are_closed_and_so_are_silent_ones() -> Result<()> {
    let (rig, stream) = rig("bytes").await?;
    let settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let openings: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: destination\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and what else a client of TLS says first",
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        // A frame above the maximum frame size.
        &[settings.as_slice(), b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"].concat(),
        // DATA for a stream that was never opened.
        &[settings.as_slice(), b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x01x"].concat(),
        // HEADERS that cannot be decoded.
        &[settings.as_slice(), b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x05\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\xff"].concat(),
    ];
    for opening in openings {
        let mut connection = TcpStream::connect(rig.manager.destination_address()).await?;
        connection.write_all(opening).await?;
        is_closed(connection, PROMPTLY).await.with_context(|| opening.escape_ascii().to_string())?;
    }
    // Connections without a complete preface are closed after a timeout.
    let mut silent = Vec::new();
    for beginning in 0..settings.len() {
        let mut connection = TcpStream::connect(rig.manager.destination_address()).await?;
        connection.write_all(&settings[..beginning]).await?;
        silent.push(connection);
    }
    still_served(&rig, stream).await?;
    for connection in silent {
        is_closed(connection, PREFACE).await?;
    }
    Ok(())
}

/// Waits until the server closes or resets the connection.
async fn is_closed(mut connection: TcpStream, deadline: Duration) -> Result<()> {
    let mut received = Vec::new();
    let closed = timeout(deadline, connection.read_to_end(&mut received)).await;
    ensure!(closed.is_ok(), "the connection is still open");
    Ok(())
}

#[tokio::test]
async fn streams_that_are_reset_immediately_leave_no_subscribers() -> Result<()> {
    let (rig, stream) = rig("reset").await?;
    let labels = [("namespace", rig.name()), ("service", "web")];
    for _ in 0..5 {
        let discovery = rig.manager.discovery().await?;
        let path = rig.path("web");
        let opened = futures::future::join_all((0..100).map(|_| discovery.get(&path, ""))).await;
        for endpoints in opened {
            // The server may also refuse some of them as excessive.
            drop(endpoints);
        }
    }
    rig.manager.counts("endpoints_subscribers", &labels, 1.0).await?;
    still_served(&rig, stream).await
}
