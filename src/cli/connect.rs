//! Connections to a Destination API for the terminal commands.
//!
//! In: an address, or a namespace and a selector. With a selector, the port of a ready pod of the control plane is
//! forwarded. Out: a [`DestinationClient`], which opens streams. One connection carries all streams; a closed
//! connection is replaced. Always holds: connecting has a deadline.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use clap_complete::ArgValueCompleter;
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use prometheus::Registry;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
    time::timeout,
};

use super::{cluster_flags::ClusterFlags, completion::CompletedName};
use crate::{client, destination_client::DestinationClient};

/// The port of the Destination API in a pod of the control plane.
const PORT: u16 = 8086;
/// The deadline for listing the pods and opening a port-forward through the API server and the kubelet.
const POD_DEADLINE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArgs {
    /// Address of the Destination API, instead of a port-forward to a pod
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub addr: Option<String>,

    /// Namespace of the pod with the Destination API
    #[arg(long, short, value_name = "NAME", default_value = "linkerd", add = ArgValueCompleter::new(CompletedName::Namespace))]
    pub namespace: String,

    /// Labels of the pod with the Destination API; of several pods, the first ready one by name is used
    #[arg(long, value_name = "SELECTOR", default_value = "linkerd.io/control-plane-component=destination")]
    pub selector: String,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// A port of the first ready pod by name.
pub(super) struct PodPort {
    pub(super) pods: Api<Pod>,
    pub(super) namespace: String,
    pub(super) selector: String,
    pub(super) port: u16,
    /// The suggestion to print if there is no such pod.
    pub(super) hint: &'static str,
}

/// One connection to a port of a pod.
pub(super) struct ForwardedPort {
    pub(super) stream: Box<dyn ByteStream>,
    /// Why the port cannot be used, if it cannot.
    pub(super) failure: Option<BoxFuture<'static, Option<String>>>,
    /// The port and its pod, in messages.
    pub(super) peer: String,
}

pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Returns the open connection, or opens one.
pub(super) struct Connector {
    target: ConnectTarget,
    open: Mutex<Option<DestinationClient>>,
}

enum ConnectTarget {
    Address(String),
    Pod(Box<PodPort>),
}

// === impl Connector ===

impl Connector {
    /// Reads the kubeconfig if it is needed. Does not connect yet.
    ///
    /// # Errors
    /// Fails if there is no usable kubeconfig.
    pub(super) fn new(args: ConnectArgs) -> Result<Self> {
        let ConnectArgs { addr, namespace, selector, cluster } = args;
        let target = match addr {
            Some(address) => ConnectTarget::Address(address),
            None => {
                let pods = long_lived_pods(&cluster, &namespace)?;
                let hint = "set --namespace and --selector, or connect to an address with --addr";
                ConnectTarget::Pod(Box::new(PodPort { pods, namespace, selector, port: PORT, hint }))
            }
        };
        Ok(Self { target, open: Mutex::new(None) })
    }

    /// Returns a client of the API server of the Destination API's cluster; `None` if only an address is known.
    pub(super) fn client(&self) -> Option<Client> {
        match &self.target {
            ConnectTarget::Address(_) => None,
            ConnectTarget::Pod(pod) => Some(pod.pods.clone().into_client()),
        }
    }

    /// Returns the port that is forwarded; `None` if only an address is known.
    pub(super) fn pod_port(&self) -> Option<&PodPort> {
        match &self.target {
            ConnectTarget::Address(_) => None,
            ConnectTarget::Pod(pod) => Some(pod),
        }
    }

    /// # Errors
    /// Fails if no server answers, or if no pod is ready.
    pub(super) async fn destination(&self) -> Result<DestinationClient> {
        let mut open = self.open.lock().await;
        if let Some(destination) = open.as_ref().filter(|destination| !destination.is_closed()) {
            return Ok(destination.clone());
        }
        let destination = match &self.target {
            ConnectTarget::Address(address) => DestinationClient::connect(address).await?,
            ConnectTarget::Pod(pod) => {
                let ForwardedPort { stream, failure, peer } = pod.forward().await?;
                let mut destination = DestinationClient::over(stream, &format!("localhost:{PORT}"), peer).await?;
                if let Some(failure) = failure {
                    destination.set_failure(failure);
                }
                destination
            }
        };
        Ok(open.insert(destination).clone())
    }
}

/// Returns a client of a namespace's pods, whose port-forwards may be idle.
///
/// # Errors
/// Fails if there is no usable kubeconfig.
pub(super) fn long_lived_pods(cluster: &ClusterFlags, namespace: &str) -> Result<Api<Pod>> {
    let mut config = cluster.config()?;
    // The read timeout would close an idle port-forward.
    config.read_timeout = None;
    Ok(Api::namespaced(client::client(config, &Registry::new())?, namespace))
}

// === impl PodPort ===

impl PodPort {
    /// Opens one connection.
    ///
    /// # Errors
    /// Fails if no pod is ready, or if the API server refuses the port-forward.
    pub(super) async fn forward(&self) -> Result<ForwardedPort> {
        let namespace = &self.namespace;
        timeout(POD_DEADLINE, self.forward_soon()).await.with_context(|| {
            format!("no port-forward to a pod in namespace {namespace} within {} s", POD_DEADLINE.as_secs())
        })?
    }

    /// Returns the pod whose port is used.
    ///
    /// # Errors
    /// Fails if no pod is ready.
    pub(super) async fn pod(&self) -> Result<Pod> {
        let Self { pods, namespace, selector, hint, .. } = self;
        let found = pods
            .list(&ListParams::default().labels(selector))
            .await
            .with_context(|| format!("cannot list the pods {selector} in namespace {namespace}"))?;
        choose(found.items, namespace, selector, hint)
    }

    async fn forward_soon(&self) -> Result<ForwardedPort> {
        let Self { pods, namespace, port, .. } = self;
        let name = &self.pod().await?.name_any();
        let mut forwarder = pods.portforward(name, &[*port]).await.with_context(|| {
            format!("cannot forward port {port} of pod {namespace}/{name} (permission for pods/portforward is needed)")
        })?;
        let stream = forwarder.take_stream(*port).context("the port-forward has no stream")?;
        let failure = forwarder.take_error(*port).map(FutureExt::boxed);
        Ok(ForwardedPort { stream: Box::new(stream), failure, peer: format!("port {port} of pod {namespace}/{name}") })
    }
}

/// Returns the first ready pod by name, so that repeated commands use the same pod.
fn choose(pods: Vec<Pod>, namespace: &str, selector: &str, hint: &str) -> Result<Pod> {
    let seen: Vec<String> =
        pods.iter().filter_map(|pod| why_not(pod).map(|reason| format!("{} {reason}", pod.name_any()))).collect();
    let ready = pods.into_iter().filter(|pod| why_not(pod).is_none());
    if let Some(pod) = ready.min_by(|one, other| one.metadata.name.cmp(&other.metadata.name)) {
        return Ok(pod);
    }
    let seen = if seen.is_empty() { "no pod has these labels".to_owned() } else { seen.join(", ") };
    bail!("no running, ready pod with the labels {selector} in namespace {namespace}: {seen}; {hint}")
}

fn why_not(pod: &Pod) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    if phase != "Running" {
        return Some(format!("is {phase}"));
    }
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    (!ready).then(|| "is not ready".to_owned())
}

/// Parses a host name or an IP address, and a port, in the form that the resolver accepts.
pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    if text.contains("://") {
        return Err("it has a scheme: write HOST:PORT alone".to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or("it has no port: write HOST:PORT")?;
    if host.is_empty() {
        return Err("it has no host: write HOST:PORT".to_owned());
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err("an IPv6 address needs brackets: write [ADDRESS]:PORT".to_owned());
    }
    if !port.parse::<u16>().is_ok_and(|port| port != 0) {
        return Err(format!("{port:?} is not a port"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SELECTOR: &str = "app=destination";

    fn pod(name: &str, phase: &str, ready: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "status": {"phase": phase, "conditions": [
                {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready},
            ]},
        })
    }

    fn chosen(pods: &[Value]) -> Result<String, String> {
        let pods: Vec<Pod> = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
        let chosen = choose(pods, "linkerd", SELECTOR, "set --namespace");
        chosen.map(|pod| pod.name_any()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_ready_pod_by_name_is_used() {
        let pods = [pod("d", "Running", "True"), pod("b", "Running", "True"), pod("c", "Running", "True")];
        assert_eq!(chosen(&pods).unwrap(), "b");
    }

    #[test]
    fn a_pod_that_is_not_ready_is_skipped() {
        let mut terminating = pod("a", "Running", "True");
        terminating["metadata"]["deletionTimestamp"] = json!("2026-11-21T10:00:00Z");
        let pods = [
            terminating,
            pod("b", "Running", "False"),
            pod("c", "Pending", "False"),
            json!({"metadata": {"name": "d"}}),
        ];
        let error = chosen(&pods).unwrap_err();
        assert!(error.contains("a is being deleted, b is not ready, c is Pending, d is Unknown"), "{error}");
        let pods = [&pods[..], &[pod("e", "Running", "True")]].concat();
        assert_eq!(chosen(&pods).unwrap(), "e");
    }

    #[test]
    fn without_a_pod_the_error_names_the_selector_and_the_flags() {
        let error = chosen(&[]).unwrap_err();
        for part in [SELECTOR, "namespace linkerd", "no pod has these labels", "set --namespace"] {
            assert!(error.contains(part), "no {part} in: {error}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["127.0.0.1:8086", "localhost:1", "[::1]:8086", "linkerd-dst.linkerd.svc:65535"] {
            assert_eq!(host_and_port(good).unwrap(), good);
        }
        for bad in ["localhost", ":8086", "localhost:", "localhost:0", "localhost:65536", "localhost:http", "::1:8086"]
        {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
        let error = host_and_port("http://127.0.0.1:8086").unwrap_err();
        assert_eq!(error, "it has a scheme: write HOST:PORT alone");
    }
}
