//! One Linkerd proxy in a Pod's network namespace.
//!
//! * In: the proxy's program, its Pod, the control plane's Services. Out: a ready proxy, and its metrics.
//! * Always: its configuration is that of Linkerd's chart, except that the destination and the policy controller have
//!   loopback addresses. The proxy then uses no TLS with them, as the proxies in Linkerd's own Pods.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use e2e::{
    Process, eventually,
    metric::{self, Sample},
    plain_http,
};
use http_body_util::Full;
use hyper::{Request, StatusCode, header};
use tokio::time::timeout;

use super::{identity, network::PodNetwork};

pub(crate) const DESTINATION: SocketAddr = loopback(8086);
pub(crate) const POLICY: SocketAddr = loopback(8090);
pub(crate) const IDENTITY: SocketAddr = loopback(8080);
const ADMIN: SocketAddr = loopback(4191);
const READY_DEADLINE: Duration = Duration::from_secs(60);
const ADMIN_DEADLINE: Duration = Duration::from_secs(2);

/// The Pod of a proxy.
pub(crate) struct ProxyPod<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) account: &'a str,
    pub(crate) addresses: &'a [Ipv4Addr],
    /// The inbound port of its application.
    pub(crate) port: u16,
    /// The policy of its inbound ports until the policy controller sends another one.
    pub(crate) default_policy: &'a str,
    /// The address of the identity service. The proxy uses TLS with it unless this is a loopback address.
    pub(crate) identity_service: SocketAddr,
}

pub(crate) struct RunningProxy {
    network: PodNetwork,
    process: Process,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

// === impl RunningProxy ===

impl RunningProxy {
    /// Starts a proxy without waiting for it; see [`RunningProxy::ready`].
    pub(crate) fn start(
        program: &Path,
        network: &PodNetwork,
        workload: &ProxyPod<'_>,
        anchor: &str,
        files: &Path,
    ) -> Result<Self> {
        let ProxyPod { namespace, pod, account, addresses, port, default_policy, identity_service } = *workload;
        let addresses: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
        let log = files.with_extension("log");
        let mut spawn = network.command(format!("the proxy of {pod}"), program, log);
        let control = |name: &str| identity::name("linkerd", name);
        let context = format!(r#"{{"ns":"{namespace}", "nodeName":"node-1", "pod":"{pod}"}}"#);
        let environment: [(&str, String); 27] = [
            ("CORES", "1".to_owned()),
            ("LOG", "warn,linkerd=info".to_owned()),
            ("DESTINATION_SVC_ADDR", DESTINATION.to_string()),
            ("DESTINATION_SVC_NAME", control("linkerd-destination")),
            ("DESTINATION_CONTEXT", context),
            ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
            ("DESTINATION_PROFILE_SUFFIXES", "svc.cluster.local.".to_owned()),
            ("POLICY_SVC_ADDR", POLICY.to_string()),
            ("POLICY_SVC_NAME", control("linkerd-destination")),
            ("POLICY_WORKLOAD", format!(r#"{{"ns":"{namespace}", "pod":"{pod}"}}"#)),
            ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8".to_owned()),
            ("INBOUND_DEFAULT_POLICY", default_policy.to_owned()),
            ("INBOUND_IPS", addresses.join(",")),
            ("INBOUND_PORTS", port.to_string()),
            ("INBOUND_LISTEN_ADDR", "0.0.0.0:4143".to_owned()),
            ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:4140".to_owned()),
            ("CONTROL_LISTEN_ADDR", "0.0.0.0:4190".to_owned()),
            ("ADMIN_LISTEN_ADDR", "0.0.0.0:4191".to_owned()),
            ("INBOUND_ACCEPT_KEEPALIVE", "10000ms".to_owned()),
            ("OUTBOUND_CONNECT_KEEPALIVE", "10000ms".to_owned()),
            ("IDENTITY_SVC_ADDR", identity_service.to_string()),
            ("IDENTITY_SVC_NAME", control("linkerd-identity")),
            ("IDENTITY_LOCAL_NAME", identity::name(namespace, account)),
            ("IDENTITY_DIR", files.display().to_string()),
            ("IDENTITY_TOKEN_FILE", files.join("token").display().to_string()),
            ("IDENTITY_TRUST_ANCHORS", anchor.to_owned()),
            ("SHUTDOWN_ENDPOINT_ENABLED", "false".to_owned()),
        ];
        spawn.env = environment.map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value)).into();
        spawn.grace = Duration::ZERO;
        Ok(Self { network: network.clone(), process: Process::spawn(spawn)? })
    }

    /// Waits until the proxy has its certificate and is ready.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let ready = eventually(READY_DEADLINE, format!("{} to be ready", self.process.name()), async || {
            let (status, _) = self.admin("/ready").await?;
            ensure!(status == StatusCode::OK, "/ready: {status}");
            Ok(())
        });
        ready.await.with_context(|| format!("its log ends with:\n{}", self.process.log_tail(20)))
    }

    pub(crate) async fn metrics(&self) -> Result<Vec<Sample>> {
        let (status, body) = self.admin("/metrics").await?;
        ensure!(status == StatusCode::OK, "/metrics of {}: {status}", self.process.name());
        Ok(metric::parse(&String::from_utf8_lossy(&body)))
    }

    pub(crate) fn log_tail(&self) -> String {
        self.process.log_tail(20)
    }

    async fn admin(&self, path: &str) -> Result<(StatusCode, Bytes)> {
        let request = Request::get(path).header(header::HOST, ADMIN.to_string()).body(Full::default())?;
        let exchange = async { plain_http::exchanged(self.network.connect(ADMIN).await?, request).await };
        timeout(ADMIN_DEADLINE, exchange).await.with_context(|| format!("{path} of {}", self.process.name()))?
    }
}
