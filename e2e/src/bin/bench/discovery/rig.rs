//! Who is measured, on what cluster, by which clients.
//!
//! * In: the address of another server, or none. Out: a [`Rig`]; from it for every row a [`Subject`], which is ours, started
//!   anew, or that other server as it is.
//! * Always: the server runs on one core, everything else on the other.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options,
    discovery::{Discovery, token},
    load,
    process::pin_to_core,
    wait::eventually,
};
use kube::Client;
use tokio::time::sleep;

use super::cluster::{PODS, SERVICES, path};
use crate::{
    report::Report,
    spent::{CLIENTS_CORE, Phase, SERVERS_CORE},
};

pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// For somebody to start another server.
const START_IT: Duration = Duration::from_secs(600);
/// For a server that has just started to give back what it needed only for that.
const REST: Duration = Duration::from_secs(5);

/// A server that is not ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Other {
    pub(crate) address: SocketAddr,
    pub(crate) pid: Option<u32>,
}

pub(super) struct Rig {
    pub(super) control_plane: ControlPlane,
    pub(super) client: Client,
    pub(super) loads: load::Client,
    other: Option<Other>,
}

/// The server that is measured.
pub(super) struct Subject {
    pub(super) address: SocketAddr,
    pub(super) pid: Option<u32>,
    pub(super) manager: Option<Manager>,
    /// From its start to `/ready`.
    pub(super) ready: Duration,
}

// === impl Rig ===

impl Rig {
    pub(super) async fn start(report: &mut Report, other: Option<Other>) -> Result<Self> {
        // And what it starts.
        pin_to_core(std::process::id(), CLIENTS_CORE)?;
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds("crd/linkerd").await?;
        for namespace in ["linkerd", super::cluster::NAMESPACE] {
            // An existing cluster has them.
            let _ = control_plane.kubectl(&["create", "namespace", namespace]).await;
        }
        let client = control_plane.client().await?;
        report.note("kubernetes", client.apiserver_version().await?.git_version);
        if let Some(Other { address, pid }) = other {
            report.note("server", format!("{address}, not ours"));
            eprintln!("the cluster is that of {}", control_plane.kubeconfig().display());
            eprintln!("start the server at {address}, if it does not run; all Services of `bench` are asked for there");
            if let Some(pid) = pid {
                pin_to_core(pid, SERVERS_CORE)?;
            }
        }
        Ok(Self { control_plane, client, loads: load::Client::start()?, other })
    }

    /// Waits until another server knows what was made in the cluster.
    pub(super) async fn answers(&self) -> Result<()> {
        let Some(Other { address, .. }) = self.other else { return Ok(()) };
        eventually(START_IT, "the server to know the last Service", async || {
            let mut endpoints =
                Discovery::connect(address).await?.get(&path(SERVICES - 1), &token("bench", "node-0")).await?;
            endpoints.next().await?;
            ensure!(endpoints.known.len() == PODS, "it tells of {} endpoints", endpoints.known.len());
            Ok(())
        })
        .await
    }

    /// The server, ready; ours is a new one.
    pub(super) async fn subject(&self) -> Result<Subject> {
        self.subject_with(ManagerOptions::default()).await
    }

    pub(super) async fn subject_with(&self, mut options: ManagerOptions) -> Result<Subject> {
        if let Some(Other { address, pid }) = self.other {
            return Ok(Subject { address, pid, manager: None, ready: Duration::ZERO });
        }
        let begun = Instant::now();
        options.env.push(("TOKIO_WORKER_THREADS".to_owned(), "1".to_owned()));
        let mut manager = Manager::start(&self.control_plane, options)?;
        pin_to_core(manager.pid(), SERVERS_CORE)?;
        manager.ready(PATIENCE).await?;
        let (address, pid) = (manager.destination_address(), Some(manager.pid()));
        Ok(Subject { address, pid, manager: Some(manager), ready: begun.elapsed() })
    }

    pub(super) fn phase(&self, subject: &Subject) -> Result<Phase<'_>> {
        Phase::begin(&self.loads, subject.pid)
    }

    /// For rows that need a server of which they can have as many as they like.
    pub(super) fn is_ours(&self) -> bool {
        self.other.is_none()
    }
}

// === impl Subject ===

impl Subject {
    /// What is resident once it has come to rest; `None` when its process is not known.
    pub(super) async fn memory_at_rest(&self) -> Result<Option<u64>> {
        sleep(REST).await;
        self.memory("VmRSS:")
    }

    /// What is resident (`VmRSS:`), or was at the most (`VmHWM:`).
    pub(super) fn memory(&self, name: &str) -> Result<Option<u64>> {
        let Some(pid) = self.pid else { return Ok(None) };
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("the process has ended")?;
        let kibibytes: u64 = line.split_whitespace().next().context("a number")?.parse()?;
        Ok(Some(kibibytes * 1024))
    }

    /// Waits until it has so many streams.
    pub(super) async fn has_streams(&self, wanted: usize) -> Result<()> {
        let Some(manager) = &self.manager else {
            // Another does not say.
            sleep(Duration::from_secs(2)).await;
            return Ok(());
        };
        eventually(PATIENCE, format!("{wanted} streams to be there"), async || {
            let Some(streams) = manager.metric("linkerd_operator_discovery_streams", &[]).await else {
                bail!("no number of streams");
            };
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            let wanted = wanted as f64;
            ensure!((streams - wanted).abs() < 0.5, "{streams} are there");
            Ok(())
        })
        .await
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1024.0 / 1024.0
}
