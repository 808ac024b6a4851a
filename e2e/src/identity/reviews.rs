//! A stand-in for the API server of the identity service: it reviews the tokens of
//! [`CertifyWorkload`](super::CertifyWorkload)s, and accepts Events.
//!
//! * In: requests, a [`ReviewScript`]. Out: a kubeconfig; answers, as late as the script says; the number of reviews.
//! * Always: HTTP/1.1 with TLS, which the operator's client uses, too. It reads the protobuf of Go's client. It runs in
//!   the async runtime that started it, and ends when dropped.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use prost::Message;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::workload::ClaimedPod;
use crate::{certificate, kubeconfig, tls};

/// The first bytes of a message in protobuf.
const PROTOBUF: &[u8] = b"k8s\0";

/// How reviews are answered.
#[derive(Clone, Debug, Default)]
pub struct ReviewScript {
    pub delay: Duration,
    pub held: HeldReviews,
}

/// The reviews that are not answered for as long as the script says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HeldReviews {
    #[default]
    None,
    /// Those of the ServiceAccounts with this name.
    Of(String),
    All,
}

pub struct ReviewServer {
    shared: Arc<SharedReviews>,
    kubeconfig: PathBuf,
    accepting: JoinHandle<()>,
}

struct SharedReviews {
    acceptor: TlsAcceptor,
    script: watch::Sender<ReviewScript>,
    reviews: AtomicUsize,
    under_way: AtomicUsize,
}

/// The message around each object in protobuf.
#[derive(Clone, PartialEq, Message)]
struct UnknownMessage {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ReviewMessage {
    #[prost(message, optional, tag = "2")]
    spec: Option<ReviewSpecMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ReviewSpecMessage {
    #[prost(string, tag = "1")]
    token: String,
}

/// Counts a review until it is dropped.
struct CountedReview<'a>(&'a AtomicUsize);

// === impl HeldReviews ===

impl HeldReviews {
    fn contain(&self, account: &str) -> bool {
        match self {
            Self::None => false,
            Self::Of(held) => held == account,
            Self::All => true,
        }
    }
}

// === impl ReviewServer ===

impl ReviewServer {
    /// Starts it on loopback, with a kubeconfig in this folder.
    ///
    /// # Errors
    /// Fails if the folder cannot be written.
    pub async fn start(folder: &Path) -> Result<Self> {
        let serving = certificate::for_api_server(None)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let kubeconfig = folder.join("kubeconfig");
        let url = format!("https://{}", listener.local_addr()?);
        kubeconfig::write(&kubeconfig, &url, &serving.ca_pem, "identity", "token")?;
        let shared = Arc::new(SharedReviews {
            acceptor: tls::acceptor(&serving, rustls::DEFAULT_VERSIONS)?,
            script: watch::Sender::default(),
            reviews: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(Arc::clone(&shared), listener));
        Ok(Self { shared, kubeconfig, accepting })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sets how reviews are answered from now on. Reviews that are no longer held are answered.
    pub fn follow(&self, script: ReviewScript) {
        self.shared.script.send_replace(script);
    }

    /// Answers each review after this time.
    pub fn delay(&self, delay: Duration) {
        self.follow(ReviewScript { delay, held: HeldReviews::None });
    }

    /// Holds some reviews, and answers others at once.
    pub fn hold(&self, held: HeldReviews) {
        self.follow(ReviewScript { delay: Duration::ZERO, held });
    }

    /// The number of reviews so far.
    pub fn reviews(&self) -> usize {
        self.shared.reviews.load(Ordering::Relaxed)
    }

    /// The number of reviews that are not answered yet.
    pub fn under_way(&self) -> usize {
        self.shared.under_way.load(Ordering::Relaxed)
    }
}

impl Drop for ReviewServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(shared: Arc<SharedReviews>, listener: TcpListener) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(Arc::clone(&shared), stream));
    }
}

async fn serve(shared: Arc<SharedReviews>, stream: TcpStream) {
    _ = stream.set_nodelay(true);
    let Ok(stream) = shared.acceptor.accept(stream).await else { return };
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { shared.answer(request).await }
    });
    // A client may end its connection at any time.
    _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

// === impl SharedReviews ===

impl SharedReviews {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await?.to_bytes();
        let (code, answer) = if path.ends_with("/tokenreviews") {
            (StatusCode::CREATED, self.review(&body).await)
        } else if path.ends_with("/selfsubjectaccessreviews") {
            (StatusCode::CREATED, access())
        } else if path.contains("/events") {
            let event =
                json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "event", "namespace": "linkerd"}});
            (StatusCode::CREATED, serde_json::from_slice(&body).unwrap_or(event))
        } else {
            let code = StatusCode::NOT_FOUND;
            let answer = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"});
            (code, answer)
        };
        let mut response = Response::new(Full::new(answer.to_string().into_bytes().into()));
        *response.status_mut() = code;
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        Ok(response)
    }

    async fn review(&self, body: &[u8]) -> Value {
        self.reviews.fetch_add(1, Ordering::Relaxed);
        let _counted = CountedReview::new(&self.under_way);
        let pod = token(body).as_deref().and_then(ClaimedPod::of);
        let mut script = self.script.subscribe();
        let delay = script.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let account = pod.as_ref().map_or("", |pod| &pod.account);
        // The sender is in `self`.
        _ = script.wait_for(|script| !script.held.contain(account)).await;
        let status = pod.map_or_else(|| json!({"error": "[invalid bearer token]"}), |pod| authenticated(&pod));
        json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}, "status": status,
        })
    }
}

// === impl CountedReview ===

impl<'a> CountedReview<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountedReview<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The token of a TokenReview, in JSON or in protobuf.
fn token(body: &[u8]) -> Option<String> {
    if let Some(body) = body.strip_prefix(PROTOBUF) {
        let raw = UnknownMessage::decode(body).ok()?.raw;
        return Some(ReviewMessage::decode(raw.as_slice()).ok()?.spec?.token);
    }
    let review: Value = serde_json::from_slice(body).ok()?;
    Some(review.pointer("/spec/token")?.as_str()?.to_owned())
}

fn authenticated(pod: &ClaimedPod) -> Value {
    let ClaimedPod { namespace, account, pod } = pod;
    let extra = |name: &str| format!("authentication.kubernetes.io/{name}");
    json!({
        "authenticated": true,
        "audiences": ["identity.l5d.io"],
        "user": {
            "username": format!("system:serviceaccount:{namespace}:{account}"),
            "uid": format!("uid-of-{namespace}-{account}"),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
            "extra": {
                extra("credential-id"): ["JTI=b0f0c4a2-1c1f-4b8e-9f4e-6f3c9f1f2a10"],
                extra("node-name"): ["node-a"],
                extra("node-uid"): ["0b9c1f2e-5a77-4f0e-8a5e-2f6f0c1d9e11"],
                extra("pod-name"): [pod],
                extra("pod-uid"): [format!("uid-of-{pod}")],
            },
        },
    })
}

fn access() -> Value {
    json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": {},
        "status": {"allowed": true},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_review_is_read_in_both_encodings() {
        assert_eq!(token(br#"{"spec": {"token": "a.b.c"}}"#).as_deref(), Some("a.b.c"));
        let spec = Some(ReviewSpecMessage { token: "a.b.c".to_owned() });
        let raw = ReviewMessage { spec }.encode_to_vec();
        let body = [PROTOBUF, &UnknownMessage { raw }.encode_to_vec()].concat();
        assert_eq!(token(&body).as_deref(), Some("a.b.c"));
        assert_eq!(token(b"nonsense"), None);
    }
}
