//! Proxies with mTLS between them, and the Pod of the identity service.
//!
//! ```text
//!   client ─▶ proxy ═══mTLS═══▶ proxy ─▶ web
//!               ║ Certify         ║ Certify
//!               ╚════════ TLS ════╩═══▶ proxy ─▶ identity service: the operator or Linkerd
//!                                       (with native TLS, the proxy is missing)
//! ```
//!
//! * In: Linkerd's controller and proxy; root. Out: a running mesh, whose identity service can be replaced, and what its
//!   proxies and its client observe.
//! * Always: the operator is the destination. No proxy is restarted.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use e2e::{ControlPlane, Options, metric::Sample};
use serde_json::json;
use tokio::{sync::Mutex, task::JoinSet};

use super::{
    IdentityPrograms,
    operated::{ShownPod, TrustOperator},
    policy,
};
use crate::{
    replica::{EitherReplica, ServerKind, chart_flags},
    traffic::{
        application,
        changes::TrafficChanges,
        client::{self, Observed},
        cluster::{CLIENT, Cluster, NAMESPACE, PORT, SERVER},
        forwarder::Targets,
        identity::{self, IdentityService, IdentityServiceOptions, MeshTrust},
        network::Network,
        proxy::{self, ProxyPod, RunningProxy},
    },
};

pub(super) const WEB: &str = "web";
pub(super) const CLIENT_POD: &str = "client";
/// Pods that start later.
pub(super) const LATE: &str = "late";
pub(super) const LATEST: &str = "latest";
/// The Pod of the identity service.
pub(super) const IDENTITY: &str = "identity";
/// Its ServiceAccount, in the namespace `linkerd`.
const IDENTITY_ACCOUNT: &str = "linkerd-identity";
/// The application has several addresses, so that each change of the Service needs new connections.
const WEB_ADDRESSES: u8 = 4;
/// No loopback address, so the proxies use TLS.
const IDENTITY_SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 244, 3, 1)), IDENTITY_PORT);
const IDENTITY_PORT: u16 = 8080;
/// The default policy is also that of the admin ports, from which this process reads the metrics. The application refuses
/// requests without mTLS.
const DEFAULT_POLICY: &str = "all-unauthenticated";
/// The network redirects all connections from other Pods to this port.
const INBOUND_PORT: u16 = 4143;

/// The certificate of a proxy. Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProxyCertificate {
    /// How many certificates the proxy has received.
    pub(super) received: u64,
    pub(super) since: f64,
    pub(super) until: f64,
}

pub(super) struct IdentityMesh {
    pub(super) trust: MeshTrust,
    pub(super) changes: Arc<Mutex<TrafficChanges>>,
    pub(super) client: Observed,
    /// By the Pod's name. With native TLS, the Pod of the identity service has none.
    proxies: BTreeMap<&'static str, RunningProxy>,
    service: Option<IdentityService>,
    /// The container of the identity service.
    container: Targets,
    programs: IdentityPrograms,
    tasks: JoinSet<()>,
    _destination: EitherReplica,
    addresses: BTreeMap<&'static str, Vec<Ipv4Addr>>,
    network: Network,
    pub(super) control_plane: ControlPlane,
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The namespace and the ServiceAccount of a Pod.
fn account_of(pod: &str) -> (&'static str, &'static str) {
    match pod {
        IDENTITY => ("linkerd", IDENTITY_ACCOUNT),
        WEB => (NAMESPACE, SERVER),
        _ => (NAMESPACE, CLIENT),
    }
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
}

// === impl IdentityMesh ===

impl IdentityMesh {
    /// Starts the mesh with Linkerd's identity service.
    pub(super) async fn start(programs: IdentityPrograms, options: IdentityServiceOptions) -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        let cluster = Cluster::create(&control_plane).await?;
        let address = cluster.create_service().await?;
        let host = format!("{SERVER}.{NAMESPACE}.svc.cluster.local");
        let metadata = json!({"name": host, "namespace": NAMESPACE});
        let routes = json!([{"name": "all", "condition": {"pathRegex": "/.*"}}]);
        control_plane
            .apply(&[
                // Without a policy, a proxy balances requests only if the Service has a route.
                json!({"apiVersion": "linkerd.io/v1alpha2", "kind": "ServiceProfile", "metadata": metadata,
                    "spec": {"routes": routes}}),
                json!({"apiVersion": "v1", "kind": "ServiceAccount",
                    "metadata": {"name": IDENTITY_ACCOUNT, "namespace": "linkerd"}}),
            ])
            .await?;
        let ours = ServerKind::Ours;
        let destination = EitherReplica::start(ours, &programs.controller, &control_plane, &chart_flags()).await?;
        let trust = MeshTrust::create(control_plane.directory())?;
        let web: Vec<_> = (1..=WEB_ADDRESSES).map(|host| Ipv4Addr::new(10, 244, 1, host)).collect();
        let pods = (2..).zip([CLIENT_POD, IDENTITY, LATE, LATEST]);
        let pods = pods.map(|(pod, name)| (name, vec![Ipv4Addr::new(10, 244, pod, 1)]));
        let addresses: Vec<_> = std::iter::once((WEB, web.clone())).chain(pods).collect();
        let network = Network::start(control_plane.directory(), &addresses).await?;

        let container = Targets::default();
        let mut tasks = JoinSet::new();
        for (name, _) in &addresses {
            let pod = network.pod(name)?;
            tasks.spawn(Targets::only(destination.address()).forward(pod.listen(proxy::DESTINATION)?));
            tasks.spawn(policy::serve(pod.listen(proxy::POLICY)?));
        }
        tasks.spawn(container.clone().forward(network.pod(IDENTITY)?.listen(any(IDENTITY_PORT))?));
        let application = network.pod(WEB)?.listen(any(PORT))?;
        tasks.spawn(application::serve(application, identity::name(NAMESPACE, CLIENT)));

        let client = Observed::default();
        let requests = client::send(network.pod(CLIENT_POD)?.clone(), address, host, client.clone());
        let changes = TrafficChanges::new(cluster, vec![client.clone()], web).await?;
        let mut mesh = Self {
            trust,
            changes: Arc::new(Mutex::new(changes)),
            client,
            proxies: BTreeMap::new(),
            service: None,
            container,
            programs,
            tasks,
            _destination: destination,
            addresses: addresses.into_iter().collect(),
            network,
            control_plane,
        };
        mesh.replace(ServerKind::Theirs, options).await?;
        for pod in [IDENTITY, WEB, CLIENT_POD] {
            mesh.start_proxy(pod).await?;
        }
        mesh.tasks.spawn(requests);
        let first = mesh.changes.lock().await.change().await;
        first.with_context(|| mesh.logs())?;
        Ok(mesh)
    }

    /// Starts the proxy of a Pod, and waits until it has its first certificate.
    pub(super) async fn start_proxy(&mut self, pod: &'static str) -> Result<()> {
        let addresses = self.addresses.get(pod).with_context(|| format!("no Pod has the name {pod}"))?;
        let (namespace, account) = account_of(pod);
        let (port, identity_service) = match pod {
            // Over loopback, as in Linkerd's chart: this proxy must have a certificate before the others can get one.
            IDENTITY => (IDENTITY_PORT, proxy::IDENTITY),
            _ => (PORT, IDENTITY_SERVICE),
        };
        let token = self.control_plane.token_for(namespace, account, &[e2e::identity::AUDIENCE]).await?;
        let own = identity::name(namespace, account);
        let files = identity::write_end_entity(self.control_plane.directory(), pod, &own, &token)?;
        let default_policy = DEFAULT_POLICY;
        let workload = ProxyPod { namespace, pod, account, addresses, port, default_policy, identity_service };
        let network = self.network.pod(pod)?;
        let mut proxy = RunningProxy::start(&self.programs.proxy, network, &workload, self.trust.anchors(), &files)?;
        proxy.ready().await?;
        self.proxies.insert(pod, proxy);
        Ok(())
    }

    /// Starts an operator, and shows it the proxies that run.
    pub(super) async fn operate(&self, options: IdentityServiceOptions) -> Result<TrustOperator> {
        let mut operator = TrustOperator::start(&self.control_plane, &self.trust, options).await?;
        for pod in self.proxies.keys() {
            self.show(&mut operator, pod).await?;
        }
        Ok(operator)
    }

    async fn show(&self, operator: &mut TrustOperator, name: &'static str) -> Result<()> {
        let (namespace, account) = account_of(name);
        let network = self.network.pod(name)?.clone();
        let service = match name {
            IDENTITY => Some((IDENTITY_SERVICE, self.network.pod(LATEST)?.clone())),
            _ => None,
        };
        let pod = ShownPod { name, namespace, account, anchors: self.trust.anchors(), network, service };
        operator.show(&self.control_plane, pod).await
    }

    /// Creates the Pod of a proxy again, with the present bundle.
    pub(super) async fn restart_proxy(&mut self, operator: &mut TrustOperator, pod: &'static str) -> Result<()> {
        drop(self.proxies.remove(pod).with_context(|| format!("the Pod {pod} has no proxy"))?);
        self.start_proxy(pod).await?;
        self.show(operator, pod).await
    }

    /// Starts an identity service, and stops the one that runs.
    pub(super) async fn replace(&mut self, server: ServerKind, options: IdentityServiceOptions) -> Result<()> {
        let started =
            IdentityService::start(server, &self.programs.controller, &self.control_plane, &self.trust, options);
        let next = started.await?;
        let address = next.address;
        let old = self.service.replace(next);
        self.container.add(address);
        self.terminate(old).await
    }

    pub(super) async fn stop(&mut self) -> Result<()> {
        let old = self.service.take();
        self.terminate(old).await
    }

    async fn terminate(&self, service: Option<IdentityService>) -> Result<()> {
        let Some(service) = service else { return Ok(()) };
        self.container.remove(service.address);
        service.terminate().await
    }

    /// Replaces the Pod of the identity service by one without a proxy.
    pub(super) async fn replace_by_native_tls(&mut self, options: IdentityServiceOptions) -> Result<()> {
        self.stop().await?;
        self.proxies.remove(IDENTITY).context("the identity service has no proxy")?;
        let listener = self.network.pod(IDENTITY)?.listen(any(INBOUND_PORT))?;
        self.tasks.spawn(self.container.clone().forward(listener));
        self.replace(ServerKind::Ours, options).await
    }

    /// The certificates of all proxies, by the name of the Pod.
    pub(super) async fn certificates(&self) -> Result<BTreeMap<&'static str, ProxyCertificate>> {
        let mut certificates = BTreeMap::new();
        for (pod, proxy) in &self.proxies {
            let samples = proxy.metrics().await?;
            let value = |name: &str, labels: &[(&str, &str)]| {
                let found = samples.iter().find(|it| it.name.ends_with(name) && it.has(labels));
                found.map(|it| it.value).with_context(|| format!("the proxy of {pod} has no metric {name}"))
            };
            certificates.insert(
                *pod,
                ProxyCertificate {
                    received: value("identity_cert_refreshes_total", &[("result", "ok")])? as u64,
                    since: value("identity_cert_refresh_timestamp_seconds", &[])?,
                    until: value("identity_cert_expiration_timestamp_seconds", &[])?,
                },
            );
        }
        Ok(certificates)
    }

    /// Returns false for the Pod of the identity service, whose proxy asks over loopback.
    pub(super) fn is_workload(pod: &str) -> bool {
        pod != IDENTITY
    }

    /// How many calls the identity service has refused, as its metrics say.
    pub(super) async fn refused(&self) -> Result<u64> {
        let samples = self.service.as_ref().context("no identity service runs")?.metrics().await?;
        let is_refusal = |it: &&Sample| it.name == "grpc_server_handled_total" && !it.has(&[("grpc_code", "OK")]);
        Ok(samples.iter().filter(is_refusal).map(|it| it.value).sum::<f64>() as u64)
    }

    /// How many issuers have signed certificates of the operator that runs now.
    pub(super) async fn issuers(&self) -> Result<usize> {
        let samples = self.service.as_ref().context("no identity service runs")?.metrics().await?;
        let issued = |it: &&Sample| it.name == "linkerd_operator_identity_certificates_issued_total" && it.value > 0.0;
        Ok(samples.iter().filter(issued).count())
    }

    pub(super) fn logs(&self) -> String {
        let service = self.service.iter().map(|service| ("the identity service".to_owned(), service.log_tail()));
        let proxies = self.proxies.iter().map(|(pod, proxy)| (format!("the proxy of {pod}"), proxy.log_tail()));
        proxies.chain(service).map(|(name, log)| format!("the log of {name} ends with:\n{log}\n")).collect()
    }
}
