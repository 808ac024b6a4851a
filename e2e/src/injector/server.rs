//! The HTTPS server of one replica.
//!
//! * In: AdmissionReviews, on any path and with any method. Out: answers according to its [`Behaviour`]; the number of
//!   requests.
//! * Always: TLS 1.3 and one request per connection, so that a client resolves the endpoints again for the next
//!   request. A request is counted when its body has arrived, for any answer. When the server stops, its connections
//!   are closed.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, StatusCode, body::Incoming, header, server::conn::http1 as server, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    admission::AdmissionReview,
    injection::{Mounts, Verdict, decide},
    kubelet::Kubelet,
};
use crate::{
    certificate::{self, ServingCertificate},
    plain_http::exchanged,
    tls,
};

const TLS_DEADLINE: Duration = Duration::from_secs(10);
const POST_DEADLINE: Duration = Duration::from_secs(20);

/// The reaction of a replica to a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Behaviour {
    /// Answers like Linkerd's injector.
    #[default]
    Right,
    /// Denies everything with this message.
    Denies(String),
    /// Reads the request and never answers.
    Hangs,
    /// Reads the request and closes the connection.
    Breaks,
    /// Answers 200 with a body that is not an AdmissionReview.
    Garbage,
    /// Allows without a patch.
    Unpatched,
    /// Uses a certificate for its name, signed by an untrusted CA.
    WrongCertificate,
    /// Does not listen.
    Unreachable,
}

/// How the certificate of the replicas is signed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CertificateKind {
    /// By an authority, whose certificate is the webhook's `caBundle`.
    SignedByAuthority,
    /// By itself, as a certificate authority: what `openssl req -x509` makes. It is also the `caBundle`.
    SelfSignedAuthority,
}

/// The certificate of all replicas, and an untrusted one.
pub(super) struct Certificates {
    pub(super) name: String,
    right: ServingCertificate,
    wrong: ServingCertificate,
}

pub(super) struct Server {
    shared: Arc<SharedServer>,
    address: SocketAddr,
    /// `None` while the server does not listen.
    accepting: tokio::sync::Mutex<Option<JoinSet<()>>>,
}

struct SharedServer {
    kubelet: Arc<Kubelet>,
    namespace: String,
    right: TlsAcceptor,
    wrong: TlsAcceptor,
    behaviour: Mutex<Behaviour>,
    requests: AtomicUsize,
    last_review: Mutex<Option<Value>>,
}

// === impl Certificates ===

impl Certificates {
    pub(super) fn make(namespace: &str, kind: CertificateKind) -> Result<Self> {
        let name = format!("linkerd-proxy-injector.{namespace}.svc");
        let right = match kind {
            CertificateKind::SignedByAuthority => certificate::for_names(&[&name])?,
            CertificateKind::SelfSignedAuthority => certificate::self_signed_authority(&name)?,
        };
        let wrong = certificate::for_names(&[&name])?;
        Ok(Self { name, right, wrong })
    }

    pub(super) fn certificate_pem(&self) -> &str {
        &self.right.certificate_pem
    }

    pub(super) fn key_pem(&self) -> &str {
        &self.right.key_pem
    }

    pub(super) fn ca_pem(&self) -> &str {
        &self.right.ca_pem
    }
}

// === impl Server ===

impl Server {
    pub(super) async fn start(
        address: SocketAddr,
        certificates: &Certificates,
        kubelet: Arc<Kubelet>,
        namespace: &str,
    ) -> Result<Self> {
        let versions = [&rustls::version::TLS13];
        let shared = Arc::new(SharedServer {
            kubelet,
            namespace: namespace.to_owned(),
            right: tls::acceptor(&certificates.right, &versions)?,
            wrong: tls::acceptor(&certificates.wrong, &versions)?,
            behaviour: Mutex::default(),
            requests: AtomicUsize::new(0),
            last_review: Mutex::default(),
        });
        let server = Self { shared, address, accepting: tokio::sync::Mutex::default() };
        server.set_behaviour(Behaviour::Right).await?;
        Ok(server)
    }

    /// Sets the behavior. On return it applies to the next connection.
    pub(super) async fn set_behaviour(&self, behaviour: Behaviour) -> Result<()> {
        let mut accepting = self.accepting.lock().await;
        let listens = behaviour != Behaviour::Unreachable;
        *locked(&self.shared.behaviour) = behaviour;
        if !listens && let Some(mut tasks) = accepting.take() {
            tasks.shutdown().await;
        }
        if listens && accepting.is_none() {
            // The port is still free: see `port`.
            let listener = TcpListener::bind(self.address).await.context("listening as an injector")?;
            let mut tasks = JoinSet::new();
            tasks.spawn(accept(self.shared.clone(), listener));
            *accepting = Some(tasks);
        }
        Ok(())
    }

    /// Stops the server and closes its connections; the behavior is kept.
    pub(super) async fn stop(&self) {
        if let Some(mut tasks) = self.accepting.lock().await.take() {
            tasks.shutdown().await;
        }
    }

    pub(super) fn behaviour(&self) -> Behaviour {
        locked(&self.shared.behaviour).clone()
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub(super) fn last_review(&self) -> Option<Value> {
        locked(&self.shared.last_review).clone()
    }

    /// Resets the number of requests and the last review.
    pub(super) fn forget(&self) {
        self.shared.requests.store(0, Ordering::SeqCst);
        *locked(&self.shared.last_review) = None;
    }
}

async fn accept(shared: Arc<SharedServer>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(shared.clone(), stream))),
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(shared: Arc<SharedServer>, stream: TcpStream) {
    let wrong = *locked(&shared.behaviour) == Behaviour::WrongCertificate;
    let acceptor = if wrong { &shared.wrong } else { &shared.right };
    let Ok(Ok(stream)) = timeout(TLS_DEADLINE, acceptor.accept(stream)).await else { return };
    let service = service_fn(|request| shared.answer(request));
    let mut connection = server::Builder::new();
    // An error of the service closes the connection, like a panic in Linkerd's injector.
    if let Err(error) =
        connection.timer(TokioTimer::new()).keep_alive(false).serve_connection(TokioIo::new(stream), service).await
    {
        tracing::debug!("a connection to an injector: {error}");
    }
}

// === impl SharedServer ===

impl SharedServer {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
        let body = request.into_body().collect().await?.to_bytes();
        *locked(&self.last_review) = serde_json::from_slice(&body).ok();
        self.requests.fetch_add(1, Ordering::SeqCst);
        let behaviour = locked(&self.behaviour).clone();
        match behaviour {
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Breaks => bail!("broken by the test"),
            Behaviour::Garbage => return text(StatusCode::OK, "\u{1}garbage"),
            _ => {}
        }
        let review = match AdmissionReview::parse(&body) {
            Ok(Some(review)) => review,
            Ok(None) => return text(StatusCode::OK, ""),
            Err(error) => return text(StatusCode::BAD_REQUEST, &error),
        };
        let answer = match behaviour {
            Behaviour::Denies(message) => review.denied(&message),
            Behaviour::Unpatched => review.allowed(),
            _ => answer(review, self.kubelet.read(), &self.namespace).context("a nil pointer")?,
        };
        let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
        Ok(response.body(Full::new(serde_json::to_vec(&answer)?.into()))?)
    }
}

/// Answers as Linkerd's injector does. `None` if it breaks the connection.
pub(super) fn answer(review: AdmissionReview, mounts: Mounts, namespace: &str) -> Option<Value> {
    match decide(&review, mounts, namespace) {
        Verdict::Leave => Some(review.allowed()),
        Verdict::Patch(operations) => Some(review.patched(&operations)),
        Verdict::Deny(message) => Some(review.denied(&message)),
        Verdict::Panic => None,
    }
}

fn text(status: StatusCode, body: &str) -> Result<Response<Full<Bytes>>> {
    Ok(Response::builder().status(status).body(Full::new(body.to_owned().into()))?)
}

/// Posts a body to a replica as the operator does: directly, with the name of the certificate.
pub(super) async fn post(
    address: SocketAddr,
    path: &str,
    certificates: &Certificates,
    body: Bytes,
) -> Result<(StatusCode, Bytes)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(certificates.name.clone())?;
        let stream = tls::connector(certificates.ca_pem())?.connect(name, stream).await?;
        let request = Request::post(path).header(header::HOST, &certificates.name).body(Full::new(body))?;
        exchanged(stream, request).await
    };
    timeout(POST_DEADLINE, exchange)
        .await
        .with_context(|| format!("the injector at {address} did not answer within {POST_DEADLINE:?}"))?
        .with_context(|| format!("calling the injector at {address}"))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
