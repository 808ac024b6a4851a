//! Attacks of one Pod on the webhook port, on a manager with the shipped memory limit: Pods are injected meanwhile, and
//! the memory stays below the limit.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{mesh::SOON, tls};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;

use super::cluster::{APP, NAME, WebhookRig};

/// The memory limit of the shipped Deployment.
const LIMIT: u64 = 250 * 1024 * 1024;
/// The pages of the shipped binary. A debug build has more, which do not count.
const PAGES_OF_THE_BINARY: u64 = 20 * 1024 * 1024;
/// The address of the attacker. API servers have another one.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// More connections than the server accepts with this memory limit.
const CONNECTIONS: usize = 1_100;
const LASTS: Duration = Duration::from_secs(15);
/// A client that was closed out connects again after this time.
const AGAIN: Duration = Duration::from_millis(200);

/// The begin of a request.
const HEAD: &str = "POST /proxy-injector HTTP/1.1\r\nHost: a\r\n";
/// The minimum length of a long answer.
const LONG: usize = 256 * 1024;

/// What each connection of an attacker sends.
#[derive(Clone, Copy, Debug)]
enum ConnectionAttack {
    /// Nothing.
    Silent,
    /// A record of TLS that is as long as possible and not complete.
    Handshake,
    /// Nothing after the handshake.
    Idle,
    /// The largest head that the server accepts, without its end.
    Head,
    /// A head, one byte after the other.
    SlowHead,
    /// A body of 10 MiB, about 1 MiB/s on each connection.
    SlowBody,
    /// Complete requests with short answers, which are not read.
    Unread,
    /// The same with answers that are as long as possible.
    UnreadLong,
}

impl ConnectionAttack {
    const ALL: [Self; 8] = [
        Self::Silent,
        Self::Handshake,
        Self::Idle,
        Self::Head,
        Self::SlowHead,
        Self::SlowBody,
        Self::Unread,
        Self::UnreadLong,
    ];

    fn connections(self) -> usize {
        match self {
            // They share the bandwidth.
            Self::SlowBody => 16,
            _ => CONNECTIONS,
        }
    }

    /// The request that is sent again and again. It is made once: a client that makes long ones on each connection has no
    /// time to create Pods.
    fn request(self) -> String {
        if matches!(self, Self::UnreadLong) { request(&long_review()) } else { request("{}") }
    }

    /// Attacks on one connection until the server closes it.
    async fn attack(self, server: SocketAddr, connector: &TlsConnector, request: &str) -> Result<()> {
        let socket = TcpSocket::new_v4()?;
        if matches!(self, Self::Unread | Self::UnreadLong) {
            // Otherwise the kernel takes the answers.
            socket.set_recv_buffer_size(4096)?;
        }
        socket.bind((ATTACKER, 0).into())?;
        let mut stream = socket.connect(server).await?;
        match self {
            Self::Silent => return until_closed(&mut stream).await,
            Self::Handshake => {
                stream.write_all(&[0x16, 3, 1, 0x40, 0, 1, 0, 0x40, 0]).await?;
                stream.write_all(&[0; 16_000]).await?;
                return until_closed(&mut stream).await;
            }
            _ => {}
        }
        let mut stream = connector.connect(ServerName::try_from(NAME)?, stream).await?;
        let head = HEAD;
        match self {
            Self::Head => {
                stream.write_all(format!("{head}X: {}", "x".repeat(8_000)).as_bytes()).await?;
            }
            Self::SlowHead => {
                for byte in head.bytes().cycle() {
                    stream.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(500)).await;
                }
            }
            Self::SlowBody => {
                stream.write_all(format!("{head}Content-Length: {}\r\n\r\n", 10 << 20).as_bytes()).await?;
                loop {
                    stream.write_all(&[b' '; 64 << 10]).await?;
                    sleep(Duration::from_millis(62)).await;
                }
            }
            Self::Unread | Self::UnreadLong => loop {
                stream.write_all(request.as_bytes()).await?;
                sleep(Duration::from_secs(1)).await;
            },
            Self::Silent | Self::Handshake | Self::Idle => {}
        }
        until_closed(&mut stream).await
    }
}

/// A complete request.
fn request(body: &str) -> String {
    format!("{HEAD}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// A review with as many distinct ports as the annotations of an object have room for. The answer repeats them.
fn long_review() -> String {
    let ports: Vec<String> = (10_000..53_000).map(|port| port.to_string()).collect();
    let annotations = json!({"linkerd.io/inject": "enabled", "config.linkerd.io/opaque-ports": ports.join(",")});
    let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "a"}]}});
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let request = json!({
        "uid": "u", "kind": kind, "resource": resource, "namespace": APP, "operation": "CREATE", "object": pod,
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// Fails if the answer to a long review is shorter than that.
async fn has_long_answer(server: SocketAddr, connector: &TlsConnector) -> Result<()> {
    let stream = TcpSocket::new_v4()?.connect(server).await?;
    let mut stream = connector.connect(ServerName::try_from(NAME)?, stream).await?;
    stream.write_all(request(&long_review()).as_bytes()).await?;
    let mut answer = vec![0; LONG];
    timeout(SOON, stream.read_exact(&mut answer)).await?.context("the answer is short")?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(answer.get(..100).unwrap_or_default()));
    Ok(())
}

async fn until_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attacks_on_the_webhook_port_take_bounded_memory_and_pods_are_injected() -> Result<()> {
    let mut cluster = WebhookRig::under_load().await?;
    cluster.memory_limit = Some(LIMIT);
    let replica = cluster.ready_replica().await?;
    cluster.register_with("Fail", None).await?;
    cluster.injects().await?;
    let connector = Arc::new(tls::connector(&cluster.bundle().await?)?);
    has_long_answer(replica.address, &connector).await?;
    for attack in ConnectionAttack::ALL {
        let mut attackers = JoinSet::new();
        let request: Arc<str> = attack.request().into();
        for _ in 0..attack.connections() {
            let (connector, server, request) = (Arc::clone(&connector), replica.address, Arc::clone(&request));
            attackers.spawn(async move {
                loop {
                    // The server may close the connection at any time.
                    drop(attack.attack(server, &connector, &request).await);
                    sleep(AGAIN).await;
                }
            });
        }
        let (begun, mut slowest, mut injected) = (Instant::now(), Duration::ZERO, 0);
        while begun.elapsed() < LASTS {
            let sent = Instant::now();
            let result = timeout(SOON, cluster.inject()).await?;
            result.with_context(|| format!("{attack:?}, after {:?}, the {injected}th Pod", begun.elapsed()))?;
            slowest = slowest.max(sent.elapsed());
            injected += 1;
            sleep(Duration::from_millis(100)).await;
        }
        let memory = replica.manager.memory()?;
        let peak = memory.peak.saturating_sub(memory.files) + memory.files.min(PAGES_OF_THE_BINARY);
        println!("{attack:?}: {injected} Pods, the slowest after {slowest:?}, {} MiB at the peak", peak >> 20);
        ensure!(peak < LIMIT, "{attack:?}: {} MiB at the peak", peak >> 20);
    }
    Ok(())
}
