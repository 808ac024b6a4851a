//! A process that serves the Destination API, with the arguments of Linkerd's container: the operator or Linkerd.

use std::{
    fmt::{self, Display, Formatter},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{
    ControlPlane, Manager, ManagerOptions,
    discovery::Discovery,
    linkerd_controller::{CHART_FLAGS, LinkerdDestination},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

/// The Lease of the replica that writes EndpointSlices.
pub(crate) const LEASE: &str = "linkerd-destination-endpoint-write";
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerKind {
    Ours,
    Theirs,
}

pub(crate) enum EitherReplica {
    Ours(Box<Manager>),
    Theirs(LinkerdDestination),
}

/// The flags of Linkerd's chart.
pub(crate) fn chart_flags() -> Vec<String> {
    CHART_FLAGS.map(str::to_owned).to_vec()
}

// === impl ServerKind ===

impl Display for ServerKind {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ours => "the operator",
            Self::Theirs => "Linkerd",
        })
    }
}

// === impl EitherReplica ===

impl EitherReplica {
    /// Starts a replica with these flags, in Go's syntax, and waits until it is ready.
    pub(crate) async fn start(
        server: ServerKind,
        controller: &Path,
        control_plane: &ControlPlane,
        flags: &[String],
    ) -> Result<Self> {
        match server {
            ServerKind::Ours => {
                let args = flags.to_vec();
                let options = ManagerOptions { as_linkerd_destination: true, args, ..ManagerOptions::default() };
                let mut manager = Manager::start(control_plane, options)?;
                manager.ready(DEADLINE).await?;
                Ok(Self::Ours(Box::new(manager)))
            }
            ServerKind::Theirs => LinkerdDestination::start(controller, control_plane, flags).await.map(Self::Theirs),
        }
    }

    pub(crate) fn server(&self) -> ServerKind {
        match self {
            Self::Ours(_) => ServerKind::Ours,
            Self::Theirs(_) => ServerKind::Theirs,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Ours(manager) => manager.destination_address(),
            Self::Theirs(destination) => destination.address(),
        }
    }

    pub(crate) async fn discovery(&self) -> Result<Discovery> {
        Discovery::connect(self.address()).await
    }

    pub(crate) async fn is_leading(&self, leases: &Api<Lease>) -> Result<bool> {
        Ok(match self {
            Self::Ours(manager) => manager.is_leading(LEASE).await,
            Self::Theirs(destination) => {
                let holder = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
                holder.as_deref() == Some(destination.identity())
            }
        })
    }

    /// Prints where Linkerd's server has panicked, if it has.
    pub(crate) fn print_panic(&self, context: &str) {
        if let Self::Theirs(destination) = self
            && let Some(panic) = destination.log().split("panic: ").nth(1)
        {
            eprintln!(
                "{context}: Linkerd's server panicked: {}",
                panic.lines().take(30).collect::<Vec<_>>().join("\n")
            );
        }
    }

    /// Sends SIGTERM, and waits for the exit.
    pub(crate) async fn terminate(self) -> Result<()> {
        match self {
            Self::Ours(mut manager) => manager.terminate(DEADLINE).await.map(drop),
            Self::Theirs(mut destination) => destination.terminate(DEADLINE).await,
        }
    }

    /// Ends it as a failed node does.
    pub(crate) async fn kill(self) -> Result<()> {
        let killed = match self {
            Self::Ours(mut manager) => manager.kill().await,
            Self::Theirs(mut destination) => destination.kill().await,
        };
        killed.context("killing a replica")
    }
}
