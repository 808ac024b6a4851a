//! The replicas of the Destination API: the operator's or Linkerd's.
//!
//! * In: Linkerd's controller, a [`ControlPlane`]. Out: two running replicas, which are the targets of the Service.
//! * Always: a replica is a target from when it is ready until it gets SIGTERM. A killed one stays a target until its
//!   process has ended.

use std::{
    fmt::{self, Display, Formatter},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, eventually,
    linkerd_controller::{CHART_FLAGS, LinkerdDestination},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::forwarder::Targets;

pub(crate) const COUNT: usize = 2;
const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than the Lease, which has to expire after SIGKILL.
const LEADER_DEADLINE: Duration = Duration::from_secs(60);
const LEASE: &str = "linkerd-destination-endpoint-write";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Server {
    Ours,
    Theirs,
}

enum Replica {
    Ours(Box<Manager>),
    Theirs(LinkerdDestination),
}

pub(crate) struct Replicas<'a> {
    controller: PathBuf,
    control_plane: &'a ControlPlane,
    targets: Targets,
    /// The oldest first.
    running: Vec<Replica>,
}

// === impl Server ===

impl Display for Server {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ours => "the operator",
            Self::Theirs => "Linkerd",
        })
    }
}

// === impl Replica ===

impl Replica {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Ours(manager) => manager.destination_address(),
            Self::Theirs(destination) => destination.address(),
        }
    }

    async fn is_leading(&self, leases: &Api<Lease>) -> Result<bool> {
        Ok(match self {
            Self::Ours(manager) => manager.is_leading(LEASE).await,
            Self::Theirs(destination) => {
                let holder = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
                holder.as_deref() == Some(destination.identity())
            }
        })
    }
}

// === impl Replicas ===

impl<'a> Replicas<'a> {
    pub(crate) fn new(controller: PathBuf, control_plane: &'a ControlPlane, targets: Targets) -> Self {
        Self { controller, control_plane, targets, running: Vec::new() }
    }

    /// Starts a replica, and adds it to the targets when it is ready.
    pub(crate) async fn add(&mut self, server: Server) -> Result<()> {
        let flags = CHART_FLAGS.map(str::to_owned).to_vec();
        let replica = match server {
            Server::Ours => {
                let options = ManagerOptions { as_linkerd_destination: true, args: flags, ..ManagerOptions::default() };
                let mut manager = Manager::start(self.control_plane, options)?;
                manager.ready(READY_DEADLINE).await?;
                Replica::Ours(Box::new(manager))
            }
            Server::Theirs => {
                Replica::Theirs(LinkerdDestination::start(&self.controller, self.control_plane, &flags).await?)
            }
        };
        self.targets.add(replica.address());
        self.running.push(replica);
        Ok(())
    }

    /// Replaces all replicas, one at a time, as the rollout of a Deployment does.
    pub(crate) async fn roll(&mut self, server: Server) -> Result<()> {
        for _ in 0..COUNT {
            self.add(server).await?;
            let oldest = self.running.remove(0);
            self.targets.remove(oldest.address());
            match oldest {
                Replica::Ours(mut manager) => manager.terminate(STOP_DEADLINE).await.map(drop)?,
                Replica::Theirs(mut destination) => destination.terminate(STOP_DEADLINE).await?,
            }
        }
        Ok(())
    }

    /// The position of the replica that holds the Lease. Waits for the election of one.
    pub(crate) async fn leader(&self) -> Result<usize> {
        let leases = Api::namespaced(self.control_plane.client().await?, "linkerd");
        eventually(LEADER_DEADLINE, "a replica to lead", async || {
            for (index, replica) in self.running.iter().enumerate() {
                if replica.is_leading(&leases).await? {
                    return Ok(index);
                }
            }
            bail!("none of {} replicas leads", self.running.len())
        })
        .await
    }

    /// Kills a replica as a failed node does, and replaces it.
    pub(crate) async fn kill(&mut self, index: usize, server: Server) -> Result<()> {
        ensure!(index < self.running.len(), "the number of the replica is {index} of {}", self.running.len());
        let killed = self.running.remove(index);
        let address = killed.address();
        match killed {
            Replica::Ours(mut manager) => manager.kill().await,
            Replica::Theirs(mut destination) => destination.kill().await,
        }
        .context("killing the leader")?;
        self.targets.remove(address);
        self.add(server).await
    }
}
