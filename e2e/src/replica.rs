//! A manager behind a proxy of its own, which counts its requests: one of several in an election.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    control_plane::ControlPlane,
    fault_proxy::FaultProxy,
    manager::{Manager, ManagerOptions},
};

pub struct Replica {
    pub manager: Manager,
    pub proxy: FaultProxy,
}

impl Replica {
    /// Starts a manager behind a new proxy, and waits until it is ready.
    pub async fn ready(control_plane: &ControlPlane, options: ManagerOptions) -> Result<Self> {
        let proxy = FaultProxy::start(control_plane).await?;
        Ok(Self { manager: options.through(&proxy).ready(control_plane).await?, proxy })
    }

    /// Ends the manager as a node that dies does, or else with SIGTERM.
    pub async fn end(mut self, kill: bool, deadline: Duration) -> Result<()> {
        if kill {
            return self.manager.kill().await;
        }
        ensure!(self.manager.terminate(deadline).await?.success(), "the leader did not exit with success");
        Ok(())
    }
}
