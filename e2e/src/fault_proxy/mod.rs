//! A reverse proxy in front of the API server that injects faults.
//!
//! ```text
//!   client ──TLS──▶ rules ──TLS──▶ kube-apiserver       one connection there for each connection here
//! ```
//!
//! * In: requests with bearer tokens, forwarded unchanged. [`Rule`]s and their [`Action`]s, which can change at any
//!   time.
//! * Out: answers, streamed without buffering (also watches); a [record](RecordedRequest) of the requests.
//! * Always: without rules it changes nothing. It runs in the async runtime that started it, and ends when dropped.

mod record;
mod rule;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    Request as HttpRequest, Response, body::Incoming, client::conn::http1 as client, header,
    server::conn::http1 as server, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use record::RecordedRequest;
pub use rule::{Action, Fault, Rule, WriteEnd};

use crate::{certificate, control_plane::ControlPlane, gate::Gate, kubeconfig, tls};

const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// How long a client at rest must not write: as long as the longest backoff of the operator.
const REST: Duration = Duration::from_secs(60);
/// A client that has written nothing for this time has completed its work.
const SETTLED: Duration = Duration::from_secs(5);
/// How long a client may take until it rests.
const REST_DEADLINE: Duration = Duration::from_secs(60);
static STARTED: AtomicUsize = AtomicUsize::new(0);

type Body = BoxBody<Bytes, hyper::Error>;

pub struct FaultProxy {
    shared: Arc<SharedProxy>,
    kubeconfig: PathBuf,
    accepting: JoinHandle<()>,
}

struct SharedProxy {
    upstream: SocketAddr,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    rules: rule::Rules,
    record: record::Record,
    connections: Mutex<HashMap<u64, ProxiedConnection>>,
    next: AtomicU64,
}

struct ProxiedConnection {
    task: AbortHandle,
    frozen: Arc<AtomicBool>,
}

impl FaultProxy {
    /// Starts the proxy, with a kubeconfig for the admin.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        Self::start_with_token(control_plane, "admin", control_plane.admin_token()?).await
    }

    /// Starts the proxy, with a kubeconfig for another bearer token.
    pub async fn start_with_token(control_plane: &ControlPlane, user: &str, token: &str) -> Result<Self> {
        let serving = certificate::for_api_server(None)?;
        let upstream = control_plane.server_url().trim_start_matches("https://").parse()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("https://{}", listener.local_addr()?);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = control_plane.directory().join(format!("kubeconfig-proxy-{number}"));
        kubeconfig::write(&path, &url, &serving.ca_pem, user, token)?;
        let shared = Arc::new(SharedProxy {
            upstream,
            acceptor: tls::acceptor(&serving, rustls::DEFAULT_VERSIONS)?,
            connector: tls::connector(control_plane.ca_pem()?)?,
            rules: rule::Rules::default(),
            record: record::Record::default(),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(shared.clone(), listener));
        Ok(Self { shared, kubeconfig: path, accepting })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client whose requests go through the proxy.
    pub async fn client(&self) -> Result<kube::Client> {
        kubeconfig::client(&self.kubeconfig).await
    }

    /// Adds a rule after the existing ones.
    pub fn inject(&self, rule: Rule, action: Action) -> Fault {
        self.shared.rules.add(rule, action)
    }

    /// Removes all faults and releases the requests they hold.
    pub fn clear(&self) {
        self.shared.rules.clear();
    }

    /// Closes every open connection, including watches. New connections are accepted.
    pub fn cut_all(&self) {
        self.shared.connections().drain().for_each(|(_, connection)| connection.task.abort());
    }

    /// Freezes every open connection: nothing passes in either direction until it is cut. New connections work.
    pub fn half_open(&self) {
        self.shared.connections().values().for_each(|connection| connection.frozen.store(true, Ordering::SeqCst));
    }

    pub fn open_connections(&self) -> usize {
        self.shared.connections().len()
    }

    /// The number of requests, including failed ones, by method and a part of the path.
    pub fn count(&self, method: &str, path_contains: &str) -> usize {
        self.shared.record.count(method, path_contains)
    }

    /// The newest requests, oldest first.
    pub fn log(&self) -> Vec<RecordedRequest> {
        self.shared.record.log()
    }

    /// The newest write requests, including failed ones, as `METHOD path`, oldest first. Requests for Leases are left
    /// out: their holders renew them every few seconds.
    pub fn writes(&self) -> Vec<String> {
        let writes = self.log().into_iter().filter(RecordedRequest::is_write);
        writes.map(|request| format!("{} {}", request.method, request.path_without_query())).collect()
    }

    /// Waits until the client has written nothing for a few seconds. Then fails if it writes within 60 s.
    pub async fn rests(&self) -> Result<()> {
        let begun = Instant::now();
        let mut before = self.writes();
        loop {
            sleep(SETTLED).await;
            let now = self.writes();
            if now == before {
                break;
            }
            ensure!(begun.elapsed() < REST_DEADLINE, "it keeps writing: {:?}", newer(&now, &before));
            before = now;
        }
        sleep(REST).await;
        let now = self.writes();
        ensure!(now == before, "it wrote at rest: {:?}", newer(&now, &before));
        Ok(())
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_all();
    }
}

/// The writes that were recorded since `before`.
fn newer<'a>(now: &'a [String], before: &[String]) -> &'a [String] {
    now.get(before.len()..).unwrap_or_default()
}

impl SharedProxy {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, ProxiedConnection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(shared: Arc<SharedProxy>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let frozen = Arc::new(AtomicBool::new(false));
        let stream = Gate::new(stream, frozen.clone());
        let serving = shared.clone();
        // Locked while the task is spawned, so that the task cannot end before it is in the table.
        let mut connections = shared.connections();
        let task = tokio::spawn(async move {
            if let Err(error) = serve(&serving, stream).await {
                tracing::debug!("proxied connection {number}: {error:#}");
            }
            serving.connections().remove(&number);
        });
        connections.insert(number, ProxiedConnection { task: task.abort_handle(), frozen });
    }
}

async fn serve(shared: &Arc<SharedProxy>, stream: Gate) -> Result<()> {
    let stream = timeout(CONNECT_DEADLINE, shared.acceptor.accept(stream)).await??;
    let upstream: Arc<tokio::sync::Mutex<Option<client::SendRequest<Incoming>>>> = Arc::default();
    let service = service_fn(|request| {
        let (shared, upstream) = (shared.clone(), upstream.clone());
        async move { shared.answer(&mut *upstream.lock().await, request).await }
    });
    // An error from the service closes the connection, which implements `Cut`.
    server::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(anyhow::Error::from)
}

impl SharedProxy {
    async fn answer(
        self: &Arc<Self>,
        upstream: &mut Option<client::SendRequest<Incoming>>,
        request: HttpRequest<Incoming>,
    ) -> Result<Response<Body>> {
        let method = request.method().as_str().to_owned();
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let number = self.record.arrived(&method, &path);
        let fault = self.rules.decide(&method, &path);
        let mut drop_answer = false;
        if let Some(fault) = fault {
            match fault.action() {
                Action::Status { code, retry_after } => {
                    self.record.answered(number, code);
                    return status(code, retry_after);
                }
                Action::Delay(delay) => tokio::time::sleep(delay).await,
                // The client's deadline or the end of the connection ends the wait.
                Action::Hang | Action::Hold => fault.released().await,
                Action::Detain => return self.detain(fault, number, request).await,
                Action::Cut => bail!("cut by a rule"),
                Action::After => drop_answer = true,
            }
        }
        let response = self.forward(upstream, request).await?;
        if drop_answer {
            // Reads the answer to the last byte, so that the request is completely processed and not only received.
            response.into_body().collect().await?;
            bail!("cut by a rule after the request was processed");
        }
        self.record.answered(number, response.status().as_u16());
        Ok(response.map(BodyExt::boxed))
    }

    async fn detain(
        self: &Arc<Self>,
        fault: Fault,
        number: usize,
        request: HttpRequest<Incoming>,
    ) -> Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let request = HttpRequest::from_parts(parts, Full::new(body.collect().await?.to_bytes()));
        let shared = self.clone();
        // In a separate task, which outlives the client's connection.
        let forwarding = tokio::spawn(async move {
            fault.released().await;
            let response = shared.connect().await?.send_request(request).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await?.to_bytes();
            shared.record.answered(number, parts.status.as_u16());
            anyhow::Ok(Response::from_parts(parts, Full::new(body).map_err(|never| match never {}).boxed()))
        });
        forwarding.await?
    }

    async fn forward(
        &self,
        upstream: &mut Option<client::SendRequest<Incoming>>,
        request: HttpRequest<Incoming>,
    ) -> Result<Response<Incoming>> {
        // The API server may have closed the connection since the last request.
        if let Some(sender) = upstream.as_mut()
            && sender.ready().await.is_err()
        {
            *upstream = None;
        }
        let sender = match upstream.take() {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        Ok(upstream.insert(sender).send_request(request).await?)
    }

    async fn connect<B>(&self) -> Result<client::SendRequest<B>>
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let connecting = async {
            let stream = TcpStream::connect(self.upstream).await?;
            let name = ServerName::from(self.upstream.ip());
            let stream = self.connector.connect(name, stream).await?;
            anyhow::Ok(client::handshake(TokioIo::new(stream)).await?)
        };
        let (sender, connection) =
            timeout(CONNECT_DEADLINE, connecting).await.context("connecting took too long")??;
        // Ends when the sender and the response body are dropped, which is when the client's connection ends.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// An error in the format of the API server.
fn status(code: u16, retry_after: Option<u32>) -> Result<Response<Body>> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    };
    let mut body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("injected {code}"), "reason": reason, "code": code,
    });
    let mut response = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if let (Some(seconds), Some(object)) = (retry_after, body.as_object_mut()) {
        object.insert("details".into(), json!({"retryAfterSeconds": seconds}));
        response = response.header(header::RETRY_AFTER, seconds);
    }
    let body = Full::new(serde_json::to_vec(&body)?.into()).map_err(|never| match never {});
    Ok(response.body(body.boxed())?)
}
