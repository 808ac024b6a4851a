//! The measured server, the cluster and the clients.
//!
//! * In: the address of another server, or none. Out: a [`DiscoveryBench`], which provides a [`Subject`] for every row: a new
//!   process of ours, or the other server unchanged.
//! * Always: the server runs on one core, in a control group with a memory limit, and everything else on another core.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options,
    discovery::{Discovery, token},
    load::{self, Load, StreamRequest},
    memory::Memory,
    process::{pin_to_core, pin_to_cores},
    wait::eventually,
};
use kube::Client;
use tokio::time::sleep;

use super::cluster::{PODS, SERVICES, path};
use crate::{
    report::{CONTAINER, Report},
    spent::{CLIENTS_CORE, Phase, SERVERS_CORE},
};

pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Time to start the other server manually.
const START_IT: Duration = Duration::from_secs(600);
const SETTLED: Duration = Duration::from_millis(600);
/// Time to release memory that was needed only for the start.
const REST: Duration = Duration::from_secs(5);

/// Another server of the Destination API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Other {
    pub(crate) address: SocketAddr,
    pub(crate) pid: Option<u32>,
}

pub(super) struct DiscoveryBench {
    pub(super) control_plane: ControlPlane,
    pub(super) client: Client,
    pub(super) loads: load::LoadThread,
    other: Option<Other>,
}

/// The measured server.
pub(super) struct Subject {
    pub(super) address: SocketAddr,
    pub(super) pid: Option<u32>,
    pub(super) manager: Option<Manager>,
    /// The time from its start until `/ready` answers 200.
    pub(super) ready: Duration,
}

// === impl DiscoveryBench ===

impl DiscoveryBench {
    pub(super) async fn start(report: &mut Report, other: Option<Other>) -> Result<Self> {
        // Child processes inherit the core.
        pin_to_core(std::process::id(), CLIENTS_CORE)?;
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds("crd/linkerd").await?;
        for namespace in ["linkerd", super::cluster::NAMESPACE] {
            // An existing cluster may have the namespaces.
            let _ = control_plane.kubectl(&["create", "namespace", namespace]).await;
        }
        let client = control_plane.client().await?;
        report.note("kubernetes", client.apiserver_version().await?.git_version);
        if let Some(Other { address, pid }) = other {
            report.note("server", format!("{address}, another server"));
            eprintln!("the kubeconfig of the cluster is {}", control_plane.kubeconfig().display());
            eprintln!(
                "start the server at {address} if it is not running; it must serve the Services of the namespace `bench`"
            );
            if let Some(pid) = pid {
                pin_to_core(pid, SERVERS_CORE)?;
            }
        }
        Ok(Self { control_plane, client, loads: load::LoadThread::start()?, other })
    }

    /// Moves this process and the control plane to the clients' core, or allows them both cores.
    pub(super) fn pin(&self, to_clients_core: bool) -> Result<()> {
        let cores: &[usize] = if to_clients_core { &[CLIENTS_CORE] } else { &[CLIENTS_CORE, SERVERS_CORE] };
        let control_plane = self.control_plane.processes().into_iter().map(|(_, pid)| pid);
        control_plane.chain([std::process::id()]).try_for_each(|pid| pin_to_cores(pid, cores))
    }

    /// Waits until another server has received the objects of the cluster.
    pub(super) async fn answers(&self) -> Result<()> {
        let Some(Other { address, .. }) = self.other else { return Ok(()) };
        eventually(START_IT, "the server to serve the last Service", async || {
            let mut endpoints =
                Discovery::connect(address).await?.get(&path(SERVICES - 1), &token("bench", "node-0")).await?;
            endpoints.next().await?;
            ensure!(endpoints.known.len() == PODS, "it sent {} endpoints", endpoints.known.len());
            Ok(())
        })
        .await
    }

    /// A ready server; ours is a new process.
    pub(super) async fn subject(&self) -> Result<Subject> {
        self.subject_with(ManagerOptions::default()).await
    }

    pub(super) async fn subject_with(&self, mut options: ManagerOptions) -> Result<Subject> {
        if let Some(Other { address, pid }) = self.other {
            return Ok(Subject { address, pid, manager: None, ready: Duration::ZERO });
        }
        let begun = Instant::now();
        // On one core, the runtime has one worker thread, unless a row sets another number.
        options.memory_limit.get_or_insert(CONTAINER);
        let mut manager = Manager::start(&self.control_plane, options)?;
        pin_to_core(manager.pid(), SERVERS_CORE)?;
        manager.ready(PATIENCE).await?;
        let (address, pid) = (manager.destination_address(), Some(manager.pid()));
        Ok(Subject { address, pid, manager: Some(manager), ready: begun.elapsed() })
    }

    /// Opens streams, waits until each has its first message, and discards what has arrived so far.
    pub(super) async fn open(
        &self,
        subject: &Subject,
        connections: usize,
        requests: Vec<StreamRequest>,
    ) -> Result<Load> {
        let streams = requests.len();
        let load = self.loads.open(subject.address, connections, requests).await?;
        load.first_messages(streams).await?;
        // Time for the remaining work of the server.
        sleep(SETTLED).await;
        load.reset();
        Ok(load)
    }

    pub(super) fn phase(&self, subject: &Subject) -> Result<Phase<'_>> {
        Phase::begin(&self.loads, subject.pid)
    }

    /// True for our server, of which a row can start any number of processes.
    pub(super) fn is_ours(&self) -> bool {
        self.other.is_none()
    }
}

// === impl Subject ===

impl Subject {
    /// The memory at rest; `None` if the process is unknown.
    pub(super) async fn memory_at_rest(&self) -> Result<Option<Memory>> {
        sleep(REST).await;
        self.memory()
    }

    pub(super) fn memory(&self) -> Result<Option<Memory>> {
        self.pid.map(Memory::of_process).transpose()
    }

    /// Waits until the server has this number of streams.
    pub(super) async fn has_streams(&self, wanted: usize) -> Result<()> {
        let Some(manager) = &self.manager else {
            // The metric of another server is unknown.
            sleep(Duration::from_secs(2)).await;
            return Ok(());
        };
        eventually(PATIENCE, format!("the server to have {wanted} streams"), async || {
            let Some(streams) = manager.metric("linkerd_operator_discovery_streams", &[]).await else {
                bail!("no metric for the number of streams");
            };
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            let wanted = wanted as f64;
            ensure!((streams - wanted).abs() < 0.5, "it has {streams} streams");
            Ok(())
        })
        .await
    }
}
