//! The requests of attacking clients.
//!
//! * In: the server. Out: connections and streams, held for [`HOLD`] and opened again, without end.
//! * Always: streams that are read are those of a proxy: a refused one is requested again after a backoff.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{
    net::TcpStream,
    time::{interval, sleep, timeout},
};

use super::{Target, tenants};
use crate::{
    discovery::token,
    hostile_client::HostileClient,
    http2::{self, GET},
    load::{self, Method, StreamRequest},
};

/// The number of connections with unfinished requests, and the requests on each. 17,000 was once the maximum of a
/// connection with the shipped memory limit.
pub(super) const FLOODERS: usize = 4;
const UNFINISHED: u32 = 17_000;
/// The number of requests with many fields, which is below that maximum.
const WITH_MANY_FIELDS: u32 = 14_000;
/// The number of small answers after which the server waits for an acknowledgement.
const UNACKNOWLEDGED: u32 = 60;
/// The number of streams of the other attacks, and of their connections.
const STREAMS: u32 = 3_000;
const CONNECTIONS: usize = 3;
/// How long an attacker holds its streams before it opens new ones.
const HOLD: Duration = Duration::from_secs(5);
/// The time between two silent connections: two hundred each second.
const CONNECT_EVERY: Duration = Duration::from_millis(5);
/// The number of silent connections that the attacker holds. It is below the usual limit for descriptors.
const SILENT: usize = 900;
const WINDOW: u32 = 65_535;
/// How long an attacker waits for the server to accept.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a connection with as many unfinished requests as the server accepts, until it is closed; without end.
pub(super) async fn begin_requests(target: Target) -> Result<()> {
    let path = format!("{}:80", tenants::large_service(&target.namespace));
    loop {
        let Ok(Ok(mut client)) = timeout(PATIENCE, HostileClient::connect(target.server, &path, WINDOW)).await else {
            continue;
        };
        for _ in 0..UNFINISHED {
            client.begin();
        }
        send_until_closed(client).await?;
    }
}

/// Opens a connection, acknowledges none of its answers, and sends as many requests with a hundred fields as the server
/// reads, until it is closed; without end.
pub(super) async fn request_with_many_fields(target: Target) -> Result<()> {
    let path = format!("unknown.{}:80", tenants::large_service(&target.namespace));
    let (first, others) = http2::requests_with_many_fields(GET);
    loop {
        let Ok(Ok(mut client)) = timeout(PATIENCE, HostileClient::connect(target.server, &path, WINDOW)).await else {
            continue;
        };
        client.ignores_pings = true;
        for _ in 0..UNACKNOWLEDGED {
            client.get();
        }
        client.begin_with(first.clone());
        for _ in 0..WITH_MANY_FIELDS {
            client.begin_with(others.clone());
        }
        send_until_closed(client).await?;
    }
}

/// Sends what is queued, and holds the connection until the server closes it, because requests take too long or memory is
/// short, or for a while.
async fn send_until_closed(mut client: HostileClient) -> Result<()> {
    if let Ok(closed) = timeout(2 * HOLD, client.flood(|_| {}, |_, _| {})).await {
        closed.context("flooding")?;
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Opens connections without a byte, and closes the oldest.
pub(super) async fn connect_silently(target: Target) -> Result<()> {
    let mut held = std::collections::VecDeque::new();
    let mut due = interval(CONNECT_EVERY);
    loop {
        due.tick().await;
        if let Ok(Ok(socket)) = timeout(PATIENCE, TcpStream::connect(target.server)).await {
            held.push_back(socket);
        }
        if held.len() > SILENT {
            held.pop_front();
        }
    }
}

/// Opens streams with different requests, and holds them; without end.
pub(super) async fn hold(
    loads: load::LoadThread,
    target: Target,
    request: fn(namespace: &str, number: u32) -> StreamRequest,
) -> Result<()> {
    let requests: Vec<StreamRequest> = (0..STREAMS).map(|number| request(&target.namespace, number)).collect();
    loop {
        match loads.open(target.server, CONNECTIONS, requests.clone()).await {
            Ok(load) => {
                sleep(HOLD).await;
                load.close().await;
            }
            // The server refuses connections.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

pub(super) fn undeclared_port(namespace: &str, number: u32) -> StreamRequest {
    request(format!("{}:{}", tenants::large_service(namespace), 10_001 + number), namespace, "node-0")
}

pub(super) fn unknown_hostname(namespace: &str, number: u32) -> StreamRequest {
    request(format!("unknown-{number}.{}:80", tenants::large_service(namespace)), namespace, "node-0")
}

pub(super) fn unknown_node(namespace: &str, number: u32) -> StreamRequest {
    request(format!("{}:80", tenants::local_service(namespace)), namespace, &format!("unknown-{number}"))
}

/// Opens a profile stream for each port of the Service, and reads none of them; without end.
pub(super) async fn hold_unread_profiles(loads: load::LoadThread, target: Target) -> Result<()> {
    let service = tenants::profiled_service(&target.namespace);
    let requests = (1..=tenants::PROFILED_PORTS)
        .map(|port| {
            let path = format!("{service}:{port}");
            StreamRequest { method: Method::GetProfile, ..request(path, &target.namespace, "node-0") }
        })
        .collect::<Vec<_>>();
    loop {
        let unread = loads.open_unread(target.server, &requests).await;
        sleep(HOLD).await;
        drop(unread);
    }
}

fn request(path: String, namespace: &str, node: &str) -> StreamRequest {
    StreamRequest { method: Method::Get, path, token: token(namespace, node) }
}
