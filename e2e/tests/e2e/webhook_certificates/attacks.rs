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
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;

use super::cluster::{Cluster, NAME};

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

/// What each connection of an attacker sends.
#[derive(Clone, Copy, Debug)]
enum Attack {
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
    /// Complete requests, whose answers are not read.
    Unread,
}

impl Attack {
    const ALL: [Self; 7] =
        [Self::Silent, Self::Handshake, Self::Idle, Self::Head, Self::SlowHead, Self::SlowBody, Self::Unread];

    fn connections(self) -> usize {
        match self {
            // They share the bandwidth.
            Self::SlowBody => 16,
            _ => CONNECTIONS,
        }
    }

    /// Attacks on one connection until the server closes it.
    async fn attack(self, server: SocketAddr, connector: &TlsConnector) -> Result<()> {
        let socket = TcpSocket::new_v4()?;
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
        let head = "POST /proxy-injector HTTP/1.1\r\nHost: a\r\n";
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
            Self::Unread => loop {
                stream.write_all(format!("{head}Content-Length: 2\r\n\r\n{{}}").as_bytes()).await?;
                sleep(Duration::from_secs(1)).await;
            },
            Self::Silent | Self::Handshake | Self::Idle => {}
        }
        until_closed(&mut stream).await
    }
}

async fn until_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attacks_on_the_webhook_port_take_bounded_memory_and_pods_are_injected() -> Result<()> {
    let mut cluster = Cluster::start().await?;
    cluster.memory_limit = Some(LIMIT);
    let replica = cluster.ready_replica().await?;
    cluster.register_with("Fail", None).await?;
    cluster.injects().await?;
    let connector = Arc::new(tls::connector(&cluster.bundle().await?)?);
    for attack in Attack::ALL {
        let mut attackers = JoinSet::new();
        for _ in 0..attack.connections() {
            let (connector, server) = (Arc::clone(&connector), replica.address);
            attackers.spawn(async move {
                loop {
                    // The server may close the connection at any time.
                    drop(attack.attack(server, &connector).await);
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
