use std::{convert::Infallible, fs};

use bytes::{BufMut, BytesMut};
use h2::{SendStream, client::ResponseFuture};
use http::Request;
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body as ApiBody};
use parking_lot::Mutex;
use prometheus::Registry;
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::sleep,
};
use tokio_rustls::TlsConnector;
use tower::service_fn;

use super::{activity::MEMORY_OF_CALL, *};
use crate::{
    identity::{
        self, FollowedIssuer, IdentityDeps, IdentitySettings, IssuedLeaves, IssuerFileNames, IssuerFiles, RenewWithin,
        events::IdentityEvents, review::Reviewer, username::IdentityDomain, validity::LeafLifetime,
    },
    proto::identity::CertifyRequest,
    retry::ReportRate,
    tasks::Tasks,
};

const WEB: &str = "web.emojivoto.serviceaccount.identity.linkerd.cluster.local";
const USER: &str = "system:serviceaccount:emojivoto:web";
const SOON: Duration = Duration::from_secs(20);

/// A server with an issuer, and an API server for which each token is `DELAY:USER`, with a delay in milliseconds.
struct Serving {
    address: SocketAddr,
    root: CertifiedIssuer<'static, KeyPair>,
    issuer: Vec<u8>,
    followed: Arc<FollowedIssuer>,
    registry: Registry,
    stop: CancellationToken,
    servers: Tasks,
    _readers: Tasks,
    _folder: TempDir,
}

/// The answer to a call.
#[derive(Debug)]
struct Answered {
    code: Code,
    text: String,
    message: Option<CertifyResponse>,
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn api_server() -> Client {
    let answer = |request: Request<ApiBody>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        let (delay, user) = token.split_once(':').unwrap_or(("0", ""));
        sleep(Duration::from_millis(delay.parse().unwrap())).await;
        let status = json!({"authenticated": !user.is_empty(), "user": {"username": user}});
        let answer = json!({"kind": review["kind"], "metadata": {}, "spec": {}, "status": status});
        Ok::<_, Infallible>(Response::new(ApiBody::from(answer.to_string().into_bytes())))
    };
    Client::new(service_fn(answer), "default")
}

// === impl Serving ===

impl Serving {
    async fn start(tls: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = CertifiedIssuer::self_signed(authority("root"), KeyPair::generate().unwrap()).unwrap();
        let issuer = CertifiedIssuer::signed_by(authority("issuer"), KeyPair::generate().unwrap(), &root).unwrap();
        fs::write(folder.path().join("ca-bundle.crt"), root.pem()).unwrap();
        fs::write(folder.path().join("crt.pem"), issuer.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), issuer.key().serialize_pem()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (registry, stop) = (Registry::new(), CancellationToken::new());
        let (mut servers, mut readers) = (Tasks::default(), Tasks::default());
        let settings = IdentitySettings {
            controller_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            files: IssuerFiles {
                issuer: folder.path().to_owned(),
                trust_roots: folder.path().to_owned(),
                names: IssuerFileNames::Linkerd,
            },
            watches_objects: false,
            issuance_lifetime: SignedDuration::from_hours(24),
            clock_skew_allowance: SignedDuration::from_secs(20),
            renew_within: RenewWithin::default(),
            max_token_reviews: 10,
            allow_api_audience: false,
            issued_events: true,
            tls,
        };
        let client = api_server();
        let deps = IdentityDeps {
            client: &client,
            cluster: None,
            registry: &registry,
            events: None,
            listener,
            connections: 100,
        };
        let shown = identity::spawn(deps, settings, stop.clone(), &mut servers, &mut readers).unwrap();
        let followed = shown.issuer;
        let issuer = issuer.der().to_vec();
        let serving =
            Self { address, root, issuer, followed, registry, stop, servers, _readers: readers, _folder: folder };
        let loaded = async {
            while !serving.followed.is_ready() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, loaded).await.unwrap();
        serving
    }

    /// Calls `Certify` for `web` with this token.
    fn call(&self, token: &str) -> JoinHandle<Answered> {
        let (address, message) = (self.address, certify_request(token).encode_to_vec());
        tokio::spawn(async move {
            let stream = TcpStream::connect(address).await.unwrap();
            exchange(stream, &format!("/{SERVICE}/{METHOD}"), &message).await
        })
    }

    async fn answer(&self, token: &str) -> Answered {
        timeout(SOON, self.call(token)).await.unwrap().unwrap()
    }

    fn metrics(&self) -> String {
        String::from_utf8(crate::metrics::encode(&self.registry).unwrap()).unwrap()
    }
}

fn certify_request(token: &str) -> CertifyRequest {
    let mut params = CertificateParams::new(vec![WEB.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    CertifyRequest {
        identity: WEB.to_owned(),
        token: token.as_bytes().to_vec(),
        certificate_signing_request: request.der().to_vec(),
    }
}

/// Sends one message, and reads the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
    message: &[u8],
) -> Answered {
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://server{path}")).header("content-type", "application/grpc");
    let (response, mut body) = client.ready().await.unwrap().send_request(request.body(()).unwrap(), false).unwrap();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len().try_into().unwrap());
    frame.put(message);
    body.send_data(frame.freeze(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let mut data = BytesMut::new();
    while let Some(part) = body.data().await {
        data.extend_from_slice(&part.unwrap());
    }
    let trailers = body.trailers().await.unwrap().unwrap();
    let status = Status::from_header_map(&trailers).unwrap();
    let message = data.get(5..).map(|message| CertifyResponse::decode(message).unwrap());
    Answered { code: status.code(), text: status.message().to_owned(), message }
}

#[tokio::test]
async fn a_proxy_receives_a_certificate_with_its_chain_and_its_end() {
    let serving = Serving::start(false).await;
    let answered = serving.answer(&format!("0:{USER}")).await;
    let message = answered.message.unwrap();
    assert_eq!((answered.code, message.intermediate_certificates), (Code::Ok, vec![serving.issuer.clone()]));
    assert!(!message.leaf_certificate.is_empty() && message.valid_until.is_some_and(|until| until.nanos == 0));
    let refused = serving.answer("0:system:serviceaccount:emojivoto:voting").await;
    assert_eq!(refused.code, Code::FailedPrecondition, "{refused:?}");
    assert!(refused.text.starts_with("requested identity did not match provided token: requested=web."), "{refused:?}");
    let metrics = serving.metrics();
    let calls = r#"grpc_method="Certify",grpc_service="io.linkerd.proxy.identity.Identity",grpc_type="unary"} 1"#;
    for code in ["OK", "FailedPrecondition"] {
        let line = format!("grpc_server_handled_total{{grpc_code=\"{code}\",{calls}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[tokio::test]
async fn other_methods_and_long_requests_are_refused() {
    let serving = Serving::start(false).await;
    let send = async |path: &str, message: &[u8]| {
        let stream = TcpStream::connect(serving.address).await.unwrap();
        timeout(SOON, exchange(stream, path, message)).await.unwrap().code
    };
    assert_eq!(send("/grpc.health.v1.Health/Check", b"").await, Code::Unimplemented);
    let path = format!("/{SERVICE}/{METHOD}");
    assert_eq!(send(&path, &vec![0; message::LONGEST_MESSAGE + 1]).await, Code::ResourceExhausted);
    assert_eq!(send(&path, b"\xff").await, Code::Internal);
    assert_eq!(send(&path, b"").await, Code::InvalidArgument);
}

/// A server without an issuer.
fn waiting_server() -> Arc<IdentityServer> {
    let metrics = IdentityMetrics::register(&Registry::new()).unwrap();
    let service = CertifyService {
        domain: IdentityDomain::new("linkerd", "cluster.local").unwrap(),
        lifetime: LeafLifetime::new(SignedDuration::ZERO, SignedDuration::ZERO),
        renew_within: RenewWithin::default(),
        issued: IssuedLeaves::new(Timestamp::now()),
        followed: FollowedIssuer::new(),
        reviewer: Reviewer::new(&api_server(), 1, false, &metrics),
        rates: Mutex::default(),
        proven: Mutex::default(),
        metrics,
        events: IdentityEvents::new(None, "linkerd", false),
        expired: ReportRate::new(SOON),
    };
    IdentityServer::new(service, None, 1)
}

type GrpcClient = h2::client::SendRequest<Bytes>;

/// A server without an issuer, with memory for so many calls.
fn server_for(calls: usize) -> Arc<IdentityServer> {
    let mut server = waiting_server();
    Arc::get_mut(&mut server).unwrap().memory = Pool::new(calls * MEMORY_OF_CALL);
    server
}

/// Serves a new connection, whose socket has small buffers.
fn serve_connection(server: &Arc<IdentityServer>, stop: &CancellationToken) -> (DuplexStream, JoinHandle<()>) {
    let (near, far) = tokio::io::duplex(1 << 12);
    let (served, stop) = (Arc::clone(server), stop.clone());
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let task = tokio::spawn(async move {
        let activity = served.activity();
        served.http(far, address, &activity, &stop).await;
    });
    (near, task)
}

async fn connect(server: &Arc<IdentityServer>) -> GrpcClient {
    let (near, _) = serve_connection(server, &CancellationToken::new());
    let (client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Sends the headers of a call.
async fn open(client: &GrpcClient, path: &str, content_type: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::post(format!("http://server{path}")).header("content-type", content_type);
    client.clone().ready().await.unwrap().send_request(request.body(()).unwrap(), false).unwrap()
}

async fn open_certify(client: &GrpcClient) -> (ResponseFuture, SendStream<Bytes>) {
    open(client, &format!("/{SERVICE}/{METHOD}"), "application/grpc").await
}

async fn code_of(call: ResponseFuture) -> Code {
    let mut body = call.await.unwrap().into_body();
    assert!(body.data().await.is_none());
    Status::from_header_map(&body.trailers().await.unwrap().unwrap()).unwrap().code()
}

#[tokio::test(start_paused = true)]
async fn calls_without_a_message_take_memory_until_their_deadline() {
    const PLACES: usize = 3;
    let server = server_for(2 * PLACES);
    let client = connect(&server).await;
    let (begun, mut calls) = (Instant::now(), Vec::new());
    for _ in 0..PLACES {
        calls.push(open_certify(&client).await);
    }
    // A connection has half of the memory, and the next call is refused at once whatever it is.
    for path in [&format!("/{SERVICE}/{METHOD}")[..], "/x/y"] {
        assert_eq!(code_of(open(&client, path, "application/grpc").await.0).await, Code::Unavailable);
    }
    assert_eq!(begun.elapsed().as_secs(), 0);
    // Another connection has another part of it.
    let other = connect(&server).await;
    assert_eq!(code_of(open(&other, "/x/y", "application/grpc").await.0).await, Code::Unimplemented);
    for (call, _message) in calls {
        assert_eq!(code_of(call).await, Code::DeadlineExceeded);
        assert_eq!(begun.elapsed().as_secs(), 8);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.memory.free(), 2 * PLACES * MEMORY_OF_CALL);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_opens_calls_and_takes_no_refusals_is_disconnected() {
    let server = server_for(0);
    let (mut near, task) = serve_connection(&server, &CancellationToken::new());
    let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // HEADERS with `:method: POST`, `:scheme: http` and `:path: /` of the static table.
    for stream in (0..CALLS_PER_CONNECTION).map(|number| 2 * number + 1) {
        flood.extend_from_slice(b"\0\0\x03\x01\x05");
        flood.extend_from_slice(&stream.to_be_bytes());
        flood.extend_from_slice(b"\x83\x86\x84");
    }
    // Nothing is read.
    _ = timeout(Duration::from_secs(1), near.write_all(&flood)).await.unwrap();
    timeout(Duration::from_secs(1), task).await.unwrap().unwrap();
    assert_eq!(server.refusals.free(), MEMORY_OF_REFUSALS);
}

#[tokio::test(start_paused = true)]
async fn a_request_of_another_protocol_is_an_unsupported_media_type() {
    let client = connect(&server_for(10)).await;
    for (content_type, status) in [("application/json", 415), ("application/grpc-web", 415), ("application/grpc", 200)]
    {
        let (call, _message) = open(&client, "/x/y", content_type).await;
        assert_eq!(call.await.unwrap().status().as_u16(), status, "{content_type}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_the_deadline_of_its_client_if_it_is_earlier() {
    let client = connect(&server_for(10)).await;
    for (own, seconds) in [("3S", 3), ("1H", 8)] {
        let begun = Instant::now();
        let request = Request::post(format!("http://server/{SERVICE}/{METHOD}"));
        let request = request.header("content-type", "application/grpc").header("grpc-timeout", own).body(()).unwrap();
        let (call, _message) = client.clone().ready().await.unwrap().send_request(request, false).unwrap();
        assert_eq!((code_of(call).await, begun.elapsed().as_secs()), (Code::DeadlineExceeded, seconds));
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_without_a_call_delays_a_stop_by_a_second() {
    let server = server_for(10);
    let stop = CancellationToken::new();
    let (near, task) = serve_connection(&server, &stop);
    // The client answers nothing after its preface.
    let (mut near, preface) = (near, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    near.write_all(preface).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    let begun = Instant::now();
    stop.cancel();
    task.await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 1);
}

/// The state of h2 and the task add 3 KiB, which is measured with a process.
#[tokio::test(start_paused = true)]
async fn a_call_has_the_memory_that_is_counted() {
    let server = server_for(10);
    let (sizes, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let (near, far) = tokio::io::duplex(1 << 16);
    let served = Arc::clone(&server);
    tokio::spawn(async move {
        let activity = served.activity();
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            let (requested, call) = (RequestedCall::new(&request, Instant::now()), activity.call().ok().unwrap());
            let answer = Arc::clone(&served).answer(requested, request.into_body(), address, call);
            sizes.send(size_of_val(&answer)).unwrap();
            async move { Ok::<_, Infallible>(answer.await) }
        });
        _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(far), service).await;
    });
    let (client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    let _call = open_certify(&client).await;
    let bytes = seen.recv().await.unwrap();
    assert!(bytes + (3 << 10) <= MEMORY_OF_CALL, "{bytes}");
}

#[tokio::test]
async fn a_review_that_hangs_delays_no_other_call_and_a_stop_waits_for_its_answer() {
    let serving = Serving::start(false).await;
    let slow = serving.call(&format!("3000:{USER}"));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(serving.answer(&format!("0:{USER}")).await.code, Code::Ok);
    assert!(!slow.is_finished());
    serving.stop.cancel();
    let refused = async { while TcpStream::connect(serving.address).await.is_ok() {} };
    timeout(SOON, refused).await.unwrap();
    assert_eq!(timeout(SOON, slow).await.unwrap().unwrap().code, Code::Ok);
    timeout(SOON, serving.servers.finish(SOON)).await.unwrap();
}

#[tokio::test]
async fn with_tls_the_server_presents_a_certificate_of_its_own_issuer_and_asks_for_none() {
    let serving = Serving::start(true).await;
    let mut roots = RootCertStore::empty();
    roots.add(serving.root.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let connect = async |name: &'static str| {
        let stream = TcpStream::connect(serving.address).await.unwrap();
        connector.connect(ServerName::try_from(name).unwrap(), stream).await
    };
    let own = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
    let connected = async {
        loop {
            // The server's own certificate is issued a moment after the issuer was loaded.
            match connect(own).await {
                Ok(stream) => return stream,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let stream = timeout(SOON, connected).await.unwrap();
    connect(WEB).await.unwrap_err();
    let message = certify_request(&format!("0:{USER}")).encode_to_vec();
    let answered = exchange(stream, &format!("/{SERVICE}/{METHOD}"), &message).await;
    assert_eq!(answered.code, Code::Ok, "{answered:?}");
}
