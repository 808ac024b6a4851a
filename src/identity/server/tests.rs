use std::{convert::Infallible, fs};

use bytes::{BufMut, BytesMut};
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
use tokio::{task::JoinHandle, time::sleep};
use tokio_rustls::TlsConnector;
use tower::service_fn;

use super::*;
use crate::{
    identity::{
        self, FollowedIssuer, IdentityDeps, IdentitySettings, IssuedLeaves, IssuerFileNames, IssuerFiles,
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
            trust_state: None,
            issuance_lifetime: SignedDuration::from_hours(24),
            clock_skew_allowance: SignedDuration::from_secs(20),
            renew_within: None,
            max_token_reviews: 10,
            allow_api_audience: false,
            issued_events: true,
            tls,
        };
        let client = api_server();
        let deps = IdentityDeps { client: &client, registry: &registry, events: None, listener, connections: 100 };
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
        renew_within: None,
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

#[tokio::test(start_paused = true)]
async fn calls_without_a_message_take_memory_until_their_deadline() {
    const PLACES: usize = 3;
    let server = waiting_server();
    server.memory.forget_permits(MEMORY_OF_CALLS - PLACES * MEMORY_OF_CALL as usize);
    let (near, far) = tokio::io::duplex(1 << 16);
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let served = Arc::clone(&server);
    tokio::spawn(async move { served.http(far, address, &ConnectionActivity::new(), &CancellationToken::new()).await });
    let (mut client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    let (begun, mut calls, mut messages) = (Instant::now(), Vec::new(), Vec::new());
    for _ in 0..=PLACES {
        client = client.ready().await.unwrap();
        let request = Request::post(format!("http://server/{SERVICE}/{METHOD}")).body(()).unwrap();
        let (response, message) = client.send_request(request, false).unwrap();
        calls.push(response);
        messages.push(message);
    }
    // The last call is refused at once, and the others wait for their messages.
    for (call, (code, seconds)) in calls.into_iter().rev().zip([
        (Code::Unavailable, 0),
        (Code::DeadlineExceeded, 8),
        (Code::DeadlineExceeded, 8),
        (Code::DeadlineExceeded, 8),
    ]) {
        let mut body = call.await.unwrap().into_body();
        assert!(body.data().await.is_none());
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(Status::from_header_map(&trailers).unwrap().code(), code);
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
    assert_eq!(server.memory.available_permits(), PLACES * MEMORY_OF_CALL as usize);
}

#[tokio::test]
async fn a_review_that_hangs_delays_no_other_call_and_a_stop_waits_for_its_answer() {
    let serving = Serving::start(false).await;
    let slow = serving.call(&format!("1500:{USER}"));
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    assert_eq!(serving.answer(&format!("0:{USER}")).await.code, Code::Ok);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
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
