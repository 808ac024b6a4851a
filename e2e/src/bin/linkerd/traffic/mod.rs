//! Traffic through Linkerd's proxies while the Destination API changes hands.
//!
//! ```text
//!   client ─▶ outbound proxy ═══mTLS═══▶ inbound proxy ─▶ server       each side in its own network namespaces
//!                  │ Get, GetProfile         │
//!                  ▼                         ▼
//!               Service ─▶ replicas of the Destination API: the operator or Linkerd
//! ```
//!
//! * In: Linkerd's controller (its destination and identity), proxy and policy controller; root. Out: what the clients
//!   observe in each operation.
//! * Always: Linkerd signs the certificates, only mTLS is allowed, and all proxies have the same configuration with both
//!   servers.

pub(crate) mod application;
pub(crate) mod changes;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod forwarder;
pub(crate) mod identity;
pub(crate) mod network;
mod operations;
mod policy;
pub(crate) mod proxy;
mod replicas;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{ControlPlane, Options, metric::Sample};
use tokio::{sync::Mutex, task::JoinSet, time::timeout};

use self::{
    changes::TrafficChanges,
    client::Observed,
    cluster::{CLIENT, Cluster, NAMESPACE, PORT, SERVER},
    forwarder::Targets,
    identity::{IdentityService, IdentityServiceOptions, MeshTrust},
    network::{Network, PodNetwork},
    operations::TrafficMesh,
    policy::Policy,
    proxy::{ProxyPod, RunningProxy},
    replicas::Replicas,
};
use crate::replica::ServerKind;

pub(crate) use self::{network::missing, operations::Operation};

/// The namespaces of the server's Pods. Each of them has several addresses.
const SERVERS: [&str; 2] = ["web-a", "web-b"];
const ADDRESSES: u8 = 4;
const CLIENTS: [&str; 4] = ["client-1", "client-2", "client-3", "client-4"];
const CERTIFICATES: IdentityServiceOptions = IdentityServiceOptions {
    lifetime: Duration::from_secs(24 * 60 * 60),
    clock_skew: Duration::from_secs(10),
    native_tls: false,
};
/// The whole part.
const DEADLINE: Duration = Duration::from_secs(10 * 60);

/// Linkerd's programs.
pub(crate) struct Programs {
    pub(crate) controller: PathBuf,
    pub(crate) proxy: PathBuf,
    pub(crate) policy: PathBuf,
}

pub(crate) struct Traffic {
    pub(crate) operations: Vec<Operation>,
    pub(crate) clients: usize,
    /// The responses that the clients' proxies received over TLS from the server's identity.
    pub(crate) encrypted: u64,
    /// All other responses that they received.
    pub(crate) plain: u64,
}

/// A proxy, and the tasks of its Pod.
struct Pod {
    name: &'static str,
    proxy: RunningProxy,
    _tasks: JoinSet<()>,
}

/// The address of a Service of the control plane in each Pod, and its replicas.
type Services = [(SocketAddr, Targets); 3];

// === impl Traffic ===

impl Traffic {
    /// Returns whether no request failed in an operation of the operator, and all of them were encrypted.
    pub(crate) fn is_good(&self) -> bool {
        let mut ours = self.operations.iter().filter(|operation| operation.involves_operator);
        ours.all(|operation| operation.failed() == 0) && self.encrypted > 0 && self.plain == 0
    }
}

pub(crate) async fn run(programs: &Programs) -> Result<Traffic> {
    timeout(DEADLINE, observe(programs)).await.with_context(|| format!("traffic took longer than {DEADLINE:?}"))?
}

async fn observe(programs: &Programs) -> Result<Traffic> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let cluster = Cluster::create(&control_plane).await?;
    let service = cluster.create_service().await?;
    let trust = MeshTrust::create(control_plane.directory())?;
    let theirs = ServerKind::Theirs;
    let identity = IdentityService::start(theirs, &programs.controller, &control_plane, &trust, CERTIFICATES).await?;
    let policy = Policy::start(&programs.policy, &control_plane).await?;
    let destination = Targets::default();
    let mut replicas = Replicas::new(programs.controller.clone(), &control_plane, destination.clone());
    for _ in 0..replicas::COUNT {
        replicas.add(ServerKind::Ours).await?;
    }
    let services = [
        (proxy::DESTINATION, destination),
        (proxy::POLICY, Targets::only(policy.address)),
        (proxy::IDENTITY, Targets::only(identity.address)),
    ];

    let addresses = addresses();
    let network = Network::start(control_plane.directory(), &addresses).await?;
    let mut pods = Vec::new();
    for &(name, ref addresses) in &addresses {
        let account = if SERVERS.contains(&name) { SERVER } else { CLIENT };
        let address = addresses.first().with_context(|| format!("Pod {name} has no address"))?;
        cluster.create_pod(name, account, *address).await?;
        let token = control_plane.token_for(NAMESPACE, account, &[e2e::identity::AUDIENCE]).await?;
        let own = identity::name(NAMESPACE, account);
        let files = identity::write_end_entity(control_plane.directory(), name, &own, &token)?;
        let workload = ProxyPod {
            namespace: NAMESPACE,
            pod: name,
            account,
            addresses,
            port: PORT,
            default_policy: policy::DEFAULT,
            identity_service: proxy::IDENTITY,
        };
        let network = network.pod(name)?;
        // The proxy connects to the control plane as soon as it starts.
        let tasks = serve(network, &services, account)?;
        let proxy = RunningProxy::start(&programs.proxy, network, &workload, trust.anchors(), &files)?;
        pods.push(Pod { name, proxy, _tasks: tasks });
    }
    for pod in &mut pods {
        pod.proxy.ready().await?;
    }

    let mut requests = JoinSet::new();
    let mut clients = Vec::new();
    for name in CLIENTS {
        let observed = Observed::default();
        let host = format!("{SERVER}.{NAMESPACE}.svc.cluster.local");
        requests.spawn(client::send(network.pod(name)?.clone(), service, host, observed.clone()));
        clients.push(observed);
    }
    let serving = addresses.into_iter().filter(|(name, _)| SERVERS.contains(name)).flat_map(|(_, addresses)| addresses);
    let mut changes = TrafficChanges::new(cluster, clients.clone(), serving.collect()).await?;
    changes.change().await.with_context(|| logs(&pods))?;
    let mesh = TrafficMesh { changes: Arc::new(Mutex::new(changes)), clients };
    let operations = mesh.all(&mut replicas).await.with_context(|| logs(&pods))?;
    drop(requests);
    let (encrypted, plain) = responses(&pods).await?;
    Ok(Traffic { operations, clients: CLIENTS.len(), encrypted, plain })
}

/// The addresses of all Pods.
fn addresses() -> Vec<(&'static str, Vec<Ipv4Addr>)> {
    let pods = (1..).zip(SERVERS.map(|name| (name, ADDRESSES)).into_iter().chain(CLIENTS.map(|name| (name, 1))));
    pods.map(|(pod, (name, count))| (name, (1..=count).map(|host| Ipv4Addr::new(10, 244, pod, host)).collect()))
        .collect()
}

/// Runs what surrounds the proxy of a Pod: the Services of the control plane, and the server's application.
fn serve(network: &PodNetwork, services: &Services, account: &str) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    for (address, targets) in services {
        tasks.spawn(targets.clone().forward(network.listen(*address)?));
    }
    if account == SERVER {
        let listener = network.listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)))?;
        tasks.spawn(application::serve(listener, identity::name(NAMESPACE, CLIENT)));
    }
    Ok(tasks)
}

/// The responses that the clients' proxies received from the server's identity over TLS, and all others.
async fn responses(pods: &[Pod]) -> Result<(u64, u64)> {
    let server = identity::name(NAMESPACE, SERVER);
    let (mut encrypted, mut plain) = (0.0, 0.0);
    for pod in pods.iter().filter(|pod| CLIENTS.contains(&pod.name)) {
        let samples = pod.proxy.metrics().await?;
        let outbound = |sample: &&Sample| sample.name == "response_total" && sample.has(&[("direction", "outbound")]);
        for sample in samples.iter().filter(outbound) {
            match sample.has(&[("tls", "true"), ("server_id", &server)]) {
                true => encrypted += sample.value,
                false => plain += sample.value,
            }
        }
    }
    Ok((encrypted as u64, plain as u64))
}

fn logs(pods: &[Pod]) -> String {
    pods.iter()
        .map(|pod| format!("the log of the proxy of {} ends with:\n{}\n", pod.name, pod.proxy.log_tail()))
        .collect()
}
