//! A client of the Destination API that sees what a proxy sees. Its messages are generated independently of ours
//! (`linkerd2-proxy-api`).
//!
//! * In: the address of a destination server. Out: streams, folded as the proxy folds them: the first `Add` replaces,
//!   later ones upsert by socket address, `Remove` deletes, `NoEndpoints` clears; the set's labels are merged into each
//!   endpoint.
//! * Always: every wait has a deadline; a message that violates the proxy's contract is an error.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
pub use linkerd2_proxy_api::destination::Update;
use linkerd2_proxy_api::{
    destination::{GetDestination, WeightedAddr, destination_client::DestinationClient, update},
    net::{TcpAddress, ip_address::Ip},
};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{
    Action, Fault, FaultProxy, Rule,
    wait::{settles, stays_quiet},
};

/// The resources that our manager watches for discovery, as they appear in paths.
pub const WATCHED: [&str; 9] = [
    "pods",
    "services",
    "endpointslices",
    "nodes",
    "externalworkloads",
    "servers",
    "serviceprofiles",
    "replicasets",
    "jobs",
];

/// One HTTP/2 connection.
#[derive(Clone)]
pub struct Discovery(pub(crate) DestinationClient<Channel>);

/// A `Get` stream and the endpoints received so far.
pub struct Endpoints {
    updates: Streaming<Update>,
    /// The endpoints as the proxy holds them: keyed by socket address, with the set's labels merged in.
    pub known: BTreeMap<SocketAddr, WeightedAddr>,
    /// All messages so far, oldest first.
    pub messages: Vec<Message>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Add(Vec<SocketAddr>),
    Remove(Vec<SocketAddr>),
    NoEndpoints { exists: bool },
}

/// How long a stream may take to send an expected message.
pub(crate) const DEADLINE: Duration = Duration::from_secs(45);

// === impl Discovery ===

/// Makes the next attempt of each watch fail once with 410 Gone.
pub fn expire(proxy: &FaultProxy) -> Vec<Fault> {
    expire_kinds(proxy, WATCHED)
}

/// As [`expire`], for watches of these kinds.
pub fn expire_kinds(proxy: &FaultProxy, kinds: impl IntoIterator<Item = &'static str>) -> Vec<Fault> {
    let gone = Action::Status { code: 410, retry_after: None };
    let next = |kind| Rule::path(&format!("/{kind}?&watch=true")).times(1);
    kinds.into_iter().map(|kind| proxy.inject(next(kind), gone.clone())).collect()
}

impl Discovery {
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let channel = Channel::from_shared(format!("http://{address}"))?.connect_timeout(Duration::from_secs(5));
        let channel =
            channel.connect().await.with_context(|| format!("cannot connect to the destination at {address}"))?;
        Ok(Self(DestinationClient::new(channel).max_decoding_message_size(4 * 1024 * 1024)))
    }

    /// `Get` for `path`, with a context token.
    pub async fn get(&self, path: &str, token: &str) -> Result<Endpoints, Status> {
        let request = GetDestination { scheme: String::new(), path: path.to_owned(), context_token: token.to_owned() };
        let response = timeout(DEADLINE, self.0.clone().get(request)).await;
        let updates = response.map_err(|_| Status::new(Code::DeadlineExceeded, "no response headers"))??.into_inner();
        Ok(Endpoints { updates, known: BTreeMap::new(), messages: Vec::new() })
    }

    /// The first message of a stream, unfolded.
    pub async fn first_update(&self, path: &str, token: &str) -> Result<Update> {
        let mut updates = self.get(path, token).await?.updates;
        let update = timeout(DEADLINE, updates.message()).await.with_context(|| format!("no message for {path}"))??;
        update.with_context(|| format!("the stream for {path} ended"))
    }

    /// Returns the code and the message with which `Get` is refused.
    pub async fn refusal(&self, path: &str, token: &str) -> Result<(Code, String)> {
        match self.get(path, token).await {
            Err(status) => Ok((status.code(), status.message().to_owned())),
            Ok(_) => bail!("Get {path:?} was answered with a stream"),
        }
    }
}

/// The context token as the injector writes it, including the trailing newline.
pub fn token(namespace: &str, node: &str) -> String {
    format!("{{\"ns\":\"{namespace}\", \"nodeName\":\"{node}\", \"pod\":\"client\"}}\n")
}

// === impl Endpoints ===

impl Endpoints {
    /// Reads and folds the next message. `None` when the stream ended with OK.
    pub async fn next(&mut self) -> Result<Option<Message>> {
        timeout(DEADLINE, self.read()).await.with_context(|| format!("no message; so far: {:?}", self.messages))?
    }

    /// Folds messages until the endpoints satisfy `wanted`.
    pub async fn until(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&BTreeMap<SocketAddr, WeightedAddr>) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !wanted(&self.known) {
            match timeout_at(deadline, self.read()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => bail!("the stream ended before {what}: {:?}", self.messages),
                Ok(Err(error)) => return Err(error.context(format!("waiting for {what}"))),
                Err(_) => {
                    bail!("not seen in time: {what}; known: {:?}; messages: {:?}", self.addresses(), self.messages)
                }
            }
        }
        Ok(())
    }

    /// Waits until the known socket addresses are exactly these.
    pub async fn shows(&mut self, addresses: &[&str]) -> Result<()> {
        let mut expected = addresses.iter().map(|text| text.parse()).collect::<Result<Vec<SocketAddr>, _>>()?;
        expected.sort();
        self.until(&format!("{expected:?}"), |known| known.keys().eq(expected.iter())).await
    }

    /// Folds messages until none has arrived for `quiet`. False when the stream has ended with OK.
    pub async fn settle(&mut self, quiet: Duration) -> Result<bool> {
        settles(quiet, async || self.read().await).await
    }

    /// Fails when a message arrives within this time.
    pub async fn is_quiet_for(&mut self, time: Duration) -> Result<()> {
        stays_quiet(time, self.read()).await
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.known.keys().copied().collect()
    }

    /// The only known endpoint; an error when there are more or none.
    pub fn only(&self) -> Result<&WeightedAddr> {
        ensure!(self.known.len() == 1, "{} endpoints are known: {:?}", self.known.len(), self.addresses());
        self.known.values().next().context("one endpoint")
    }

    async fn read(&mut self) -> Result<Option<Message>> {
        let Some(update) = self.updates.message().await? else { return Ok(None) };
        let message = fold(&mut self.known, self.messages.is_empty(), update)?;
        self.messages.push(message.clone());
        Ok(Some(message))
    }
}

/// Folds a message into the endpoints that a client knows, and returns its content.
///
/// # Errors
/// Fails when the proxy's contract forbids the message at this point.
pub fn fold(known: &mut BTreeMap<SocketAddr, WeightedAddr>, is_first: bool, update: Update) -> Result<Message> {
    Ok(match update.update.context("an Update without content")? {
        update::Update::Add(set) => {
            let mut added = Vec::new();
            for mut endpoint in set.addrs {
                let address = socket_address(endpoint.addr.as_ref().context("an endpoint without address")?)?;
                let mut labels = set.metric_labels.clone();
                labels.extend(std::mem::take(&mut endpoint.metric_labels));
                endpoint.metric_labels = labels;
                added.push(address);
                known.insert(address, endpoint);
            }
            ensure!(!added.is_empty(), "an Add without endpoints");
            added.sort();
            ensure!(added.is_sorted_by(|one, next| one < next), "an Add contains an address twice: {added:?}");
            Message::Add(added)
        }
        update::Update::Remove(set) => {
            ensure!(!is_first, "the first message is a Remove");
            let mut removed = Vec::new();
            for address in &set.addrs {
                let address = socket_address(address)?;
                ensure!(known.remove(&address).is_some(), "a Remove contains the unknown address {address}");
                removed.push(address);
            }
            ensure!(!removed.is_empty(), "a Remove without endpoints");
            removed.sort();
            Message::Remove(removed)
        }
        update::Update::NoEndpoints(none) => {
            ensure!(is_first, "NoEndpoints is not the first message");
            known.clear();
            Message::NoEndpoints { exists: none.exists }
        }
    })
}

/// Converts an address of the API.
pub fn socket_address(address: &TcpAddress) -> Result<SocketAddr> {
    let ip = address.ip.as_ref().and_then(|ip| ip.ip.as_ref()).context("an address without ip")?;
    let ip = match ip {
        Ip::Ipv4(bits) => IpAddr::V4(Ipv4Addr::from(*bits)),
        Ip::Ipv6(ipv6) => IpAddr::V6(Ipv6Addr::from((u128::from(ipv6.first) << 64) | u128::from(ipv6.last))),
    };
    Ok(SocketAddr::new(ip, u16::try_from(address.port)?))
}
