//! The replicas of the Destination API: the operator's or Linkerd's.
//!
//! * In: Linkerd's controller, a [`ControlPlane`]. Out: two running replicas, which are the targets of the Service.
//! * Always: a replica is a target from when it is ready until it gets SIGTERM. A killed one stays a target until its
//!   process has ended.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail, ensure};
use e2e::{ControlPlane, eventually};
use kube::Api;

use super::forwarder::Targets;
use crate::replica::{EitherReplica, ServerKind, chart_flags};

pub(crate) const COUNT: usize = 2;
/// Longer than the Lease, which has to expire after SIGKILL.
const LEADER_DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Replicas<'a> {
    controller: PathBuf,
    control_plane: &'a ControlPlane,
    targets: Targets,
    /// The oldest first.
    running: Vec<EitherReplica>,
}

// === impl Replicas ===

impl<'a> Replicas<'a> {
    pub(crate) fn new(controller: PathBuf, control_plane: &'a ControlPlane, targets: Targets) -> Self {
        Self { controller, control_plane, targets, running: Vec::new() }
    }

    /// Starts a replica, and adds it to the targets when it is ready.
    pub(crate) async fn add(&mut self, server: ServerKind) -> Result<()> {
        let replica = EitherReplica::start(server, &self.controller, self.control_plane, &chart_flags()).await?;
        self.targets.add(replica.address());
        self.running.push(replica);
        Ok(())
    }

    /// Replaces all replicas, one at a time, as the rollout of a Deployment does.
    pub(crate) async fn roll(&mut self, server: ServerKind) -> Result<()> {
        for _ in 0..COUNT {
            self.add(server).await?;
            let oldest = self.running.remove(0);
            self.targets.remove(oldest.address());
            oldest.terminate().await?;
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
    pub(crate) async fn kill(&mut self, index: usize, server: ServerKind) -> Result<()> {
        ensure!(index < self.running.len(), "the number of the replica is {index} of {}", self.running.len());
        let killed = self.running.remove(index);
        let address = killed.address();
        killed.kill().await?;
        self.targets.remove(address);
        self.add(server).await
    }
}
