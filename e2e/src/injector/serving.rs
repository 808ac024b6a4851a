//! The program of a replica: the stand-in's server, or Linkerd's own injector.
//!
//! * In: the replica's directory, which its kubelet fills, and its certificate. Out: a webhook server.
//! * Always: Linkerd's injector has fixed paths. It therefore runs in a mount namespace of its own, in which
//!   `/var/run/linkerd` is the replica's directory.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;
use serde_json::Value;
use tokio::sync::Mutex;

use super::{
    injection::VERSION,
    kubelet::Kubelet,
    server::{Behaviour, Certificates, Server},
};
use crate::{
    control_plane::ControlPlane,
    linkerd_controller::{LinkerdProgram, loopback},
    process::Spawn,
};

/// Makes a directory `/var/run/linkerd`, and then becomes the command.
const MOUNT: &str = r#"mount -t tmpfs linkerd /var/run && ln -s "$1" /var/run/linkerd && shift && exec "$@""#;

static STARTED: AtomicUsize = AtomicUsize::new(0);

/// The program that all replicas run.
#[derive(Clone)]
pub(super) enum Program {
    StandIn,
    /// The path of Linkerd's controller, the kubeconfig, and the directory of the log.
    Linkerd {
        controller: PathBuf,
        kubeconfig: PathBuf,
        logs: PathBuf,
    },
}

pub(super) enum Serving {
    StandIn(Server),
    Linkerd(Linkerd),
}

/// A process of Linkerd's injector.
pub(super) struct Linkerd {
    /// `None` after it was stopped.
    controller: Mutex<Option<LinkerdProgram>>,
    address: SocketAddr,
    log: PathBuf,
    /// The number of requests that were forgotten.
    forgotten: AtomicUsize,
}

// === impl Program ===

impl Program {
    /// Linkerd's injector.
    pub(super) fn linkerd(controller: &Path, control_plane: &ControlPlane) -> Self {
        Self::Linkerd {
            controller: controller.to_owned(),
            kubeconfig: control_plane.kubeconfig().to_owned(),
            logs: control_plane.directory().to_owned(),
        }
    }

    /// Starts a replica, with the files that its kubelet writes to this directory.
    pub(super) async fn start(
        &self,
        address: SocketAddr,
        certificates: &Certificates,
        kubelet: Arc<Kubelet>,
        directory: &Path,
        namespace: &str,
    ) -> Result<Serving> {
        let Self::Linkerd { controller, kubeconfig, logs } = self else {
            return Ok(Serving::StandIn(Server::start(address, certificates, kubelet, namespace).await?));
        };
        let tls = directory.join("tls");
        fs::create_dir(&tls).context("creating the directory of the certificate")?;
        fs::write(tls.join("tls.crt"), certificates.certificate_pem())?;
        fs::write(tls.join("tls.key"), certificates.key_pem())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = logs.join(format!("linkerd-injector-{number}.log"));
        let mut spawn = Spawn::new(format!("Linkerd's injector {number}"), "unshare", log.clone());
        if !geteuid().is_root() {
            spawn = spawn.args(["--map-root-user"]);
        }
        spawn = spawn
            .args(["--mount", "--", "sh", "-c", MOUNT, "sh"])
            .args([directory, controller])
            .args(["proxy-injector".to_owned(), format!("-kubeconfig={}", kubeconfig.display())])
            .args([format!("-addr={address}"), format!("-linkerd-namespace={namespace}")]);
        let admin = loopback()?;
        spawn = spawn.args([format!("-metrics-addr={admin}")]);
        spawn.env = vec![("LINKERD_CONTAINER_VERSION_OVERRIDE".to_owned(), VERSION.to_owned())];
        let controller = Mutex::new(Some(LinkerdProgram::start(spawn, admin).await?));
        Ok(Serving::Linkerd(Linkerd { controller, address, log, forgotten: AtomicUsize::new(0) }))
    }
}

// === impl Serving ===

impl Serving {
    /// # Errors
    /// For any other behavior than the right one of Linkerd's injector.
    pub(super) async fn set_behaviour(&self, behaviour: Behaviour) -> Result<()> {
        match self {
            Self::StandIn(server) => server.set_behaviour(behaviour).await,
            Self::Linkerd(_) if behaviour == Behaviour::Right => Ok(()),
            Self::Linkerd(_) => bail!("the behavior of Linkerd's injector cannot be set to {behaviour:?}"),
        }
    }

    pub(super) fn behaviour(&self) -> Behaviour {
        match self {
            Self::StandIn(server) => server.behaviour(),
            Self::Linkerd(_) => Behaviour::Right,
        }
    }

    /// Stops the server and closes its connections.
    pub(super) async fn stop(&self) -> Result<()> {
        match self {
            Self::StandIn(server) => server.stop().await,
            Self::Linkerd(linkerd) => {
                if let Some(mut controller) = linkerd.controller.lock().await.take() {
                    controller.kill().await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::StandIn(server) => server.address(),
            Self::Linkerd(linkerd) => linkerd.address,
        }
    }

    /// The number of requests; with Linkerd's injector only of those with a valid document.
    pub(super) fn requests(&self) -> usize {
        match self {
            Self::StandIn(server) => server.requests(),
            Self::Linkerd(linkerd) => linkerd.received() - linkerd.forgotten.load(Ordering::SeqCst),
        }
    }

    /// The last request; unknown of Linkerd's injector.
    pub(super) fn last_review(&self) -> Option<Value> {
        match self {
            Self::StandIn(server) => server.last_review(),
            Self::Linkerd(_) => None,
        }
    }

    /// Resets the number of requests and the last review.
    pub(super) fn forget(&self) {
        match self {
            Self::StandIn(server) => server.forget(),
            Self::Linkerd(linkerd) => linkerd.forgotten.store(linkerd.received(), Ordering::SeqCst),
        }
    }
}

// === impl Linkerd ===

impl Linkerd {
    /// The number of requests in its log, which the operating system keeps after its end.
    fn received(&self) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().matches("received ").count()
    }
}
