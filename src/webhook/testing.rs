//! A webhook server and its clients, for tests.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
    version,
};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    certificate::ServingCertificate,
    limits::Limits,
    server::{Handler, WebhookServer},
};
use crate::resources::Resources;

const NAME: &str = "webhook.test";
/// The time for anything that must happen.
pub(super) const SOON: Duration = Duration::from_secs(20);

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// A handler whose answer depends on the path.
pub(super) struct Script {
    calls: AtomicUsize,
    begun: Semaphore,
    released: Semaphore,
}

/// A server on the loopback address.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) issued: Issued,
    pub(super) folder: TempDir,
    pub(super) certificate: Arc<ServingCertificate>,
    pub(super) script: Arc<Script>,
    pub(super) stop: CancellationToken,
    pub(super) task: JoinHandle<()>,
}

pub(super) fn issue() -> Issued {
    let issued = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    Issued { certificate: issued.cert.pem(), key: issued.signing_key.serialize_pem() }
}

/// Connects by HTTP/1.
pub(super) async fn http1(stream: TlsStream<TcpStream>) -> http1::SendRequest<Full<Bytes>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(super) fn request(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let uri = format!("https://{NAME}{path}");
    Request::post(uri).header("host", NAME).body(Full::new(body.into())).unwrap()
}

/// Returns the status and the body of an answer, which must arrive soon.
pub(super) async fn answer(
    response: impl Future<Output = hyper::Result<Response<hyper::body::Incoming>>>,
) -> (StatusCode, String) {
    let answer = async {
        let (head, body) = response.await.unwrap().into_parts();
        (head.status, String::from_utf8(body.collect().await.unwrap().to_bytes().into()).unwrap())
    };
    timeout(SOON, answer).await.unwrap()
}

// === impl Issued ===

impl Issued {
    pub(super) fn write(&self, folder: &Path) {
        fs::write(folder.join("tls.crt"), &self.certificate).unwrap();
        fs::write(folder.join("tls.key"), &self.key).unwrap();
    }

    pub(super) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    /// Connects to a server that must present this certificate.
    pub(super) async fn connect(&self, address: SocketAddr, alpn: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            // Like an API server. Otherwise each flow control window is delayed by 40 ms.
            stream.set_nodelay(true)?;
            Ok::<_, std::io::Error>(stream)
        };
        self.handshake(timeout(SOON, connect).await.unwrap()?, alpn).await
    }

    /// Connects from this address, and reads little at a time.
    pub(super) async fn connect_slowly(
        &self,
        address: SocketAddr,
        from: [u8; 4],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        socket.bind((from, 0).into())?;
        self.handshake(socket.connect(address).await?, "http/1.1").await
    }

    pub(super) async fn handshake(&self, stream: TcpStream, alpn: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![alpn.into()];
        let handshake = TlsConnector::from(Arc::new(tls)).connect(NAME.try_into().unwrap(), stream);
        timeout(SOON, handshake).await.unwrap()
    }
}

// === impl Script ===

impl Script {
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Waits for a request of `/wait`.
    pub(super) async fn begun(&self) {
        timeout(SOON, self.begun.acquire()).await.unwrap().unwrap().forget();
    }

    /// Answers a request of `/wait`.
    pub(super) fn release(&self) {
        self.released.add_permits(1);
    }
}

impl Default for Script {
    fn default() -> Self {
        Self { calls: AtomicUsize::new(0), begun: Semaphore::new(0), released: Semaphore::new(0) }
    }
}

impl Handler for Script {
    fn answer(self: Arc<Self>, path: String, body: Bytes) -> BoxFuture<'static, Response<Full<Bytes>>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        async move {
            match path.as_str() {
                "/panic" => panic!("the script panics"),
                "/wait" => {
                    self.begun.add_permits(1);
                    self.released.acquire().await.unwrap().forget();
                }
                _ => {}
            }
            let length = match path.strip_prefix("/long") {
                // 4 KiB with the rest.
                Some("") => 3_200,
                // So many MiB.
                Some(number) => number.parse::<usize>().unwrap() << 20,
                None => 0,
            };
            Response::new(Full::new(format!("{path} {}{}", body.len(), " ".repeat(length)).into()))
        }
        .boxed()
    }
}

// === impl Running ===

impl Running {
    pub(super) async fn start(limits: Limits) -> Self {
        let (issued, folder) = (issue(), tempfile::tempdir().unwrap());
        issued.write(folder.path());
        let certificate = ServingCertificate::from_folder(folder.path()).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (script, stop) = (Arc::new(Script::default()), CancellationToken::new());
        let handler = Arc::clone(&script) as Arc<dyn Handler>;
        let server = WebhookServer {
            listener,
            certificate: Arc::clone(&certificate),
            handler,
            resources: Resources::default(),
            shutdown_delay: limits.shutdown_delay,
        };
        let task = tokio::spawn(server.serve_within(limits, stop.clone()));
        Self { address, issued, folder, certificate, script, stop, task }
    }

    /// Connects by TLS, with this ALPN protocol.
    pub(super) async fn connect(&self, alpn: &str) -> TlsStream<TcpStream> {
        self.issued.connect(self.address, alpn).await.unwrap()
    }

    /// Waits until the server has stopped.
    pub(super) async fn stopped(self) {
        timeout(SOON, self.task).await.unwrap().unwrap();
    }
}
