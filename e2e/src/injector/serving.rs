//! The program of a replica: the stand-in's server, Linkerd's own injector, or the operator's.
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
    executable::operator_binary,
    linkerd_controller::{LinkerdProgram, loopback},
    process::Spawn,
};

/// Makes a directory `/var/run/linkerd`, and then becomes the command.
pub(crate) const MOUNT: &str =
    r#"mount -t tmpfs linkerd /var/run && ln -s "$1" /var/run/linkerd && shift && exec "$@""#;

static STARTED: AtomicUsize = AtomicUsize::new(0);

/// The program that all replicas run.
#[derive(Clone)]
pub(super) enum Program {
    StandIn,
    /// The path of the operator, the kubeconfig, and the directory of the log.
    Operator {
        binary: PathBuf,
        /// Whether it reads the ConfigMaps itself, as a job of the manager, and not the files of the kubelet.
        watches: bool,
        kubeconfig: PathBuf,
        logs: PathBuf,
    },
    /// The path of Linkerd's controller, the kubeconfig, and the directory of the log.
    Linkerd {
        controller: PathBuf,
        kubeconfig: PathBuf,
        logs: PathBuf,
    },
}

pub(super) enum Serving {
    StandIn(Server),
    Process(InjectorProcess),
}

/// A process of Linkerd's injector, or of the operator in its place.
pub(super) struct InjectorProcess {
    /// `None` after it was stopped.
    controller: Mutex<Option<LinkerdProgram>>,
    address: SocketAddr,
    log: PathBuf,
    /// The number of requests that were forgotten.
    forgotten: AtomicUsize,
}

// === impl Program ===

impl Program {
    /// The operator: with the flags of Linkerd's injector, or as a job of the manager that watches the ConfigMaps.
    pub(super) fn operator(control_plane: &ControlPlane, watches: bool) -> Result<Self> {
        Ok(Self::Operator {
            binary: operator_binary()?,
            watches,
            kubeconfig: control_plane.kubeconfig().to_owned(),
            logs: control_plane.directory().to_owned(),
        })
    }

    /// Linkerd's injector.
    pub(super) fn linkerd(controller: &Path, control_plane: &ControlPlane) -> Self {
        Self::Linkerd {
            controller: controller.to_owned(),
            kubeconfig: control_plane.kubeconfig().to_owned(),
            logs: control_plane.directory().to_owned(),
        }
    }

    /// The path of the webhook. The manager has several webhooks; the others answer on every path.
    pub(super) fn path(&self) -> &'static str {
        match self {
            Self::Operator { watches: true, .. } => "/proxy-injector",
            _ => "/",
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
        let (binary, kubeconfig, logs) = match self {
            Self::StandIn => {
                return Ok(Serving::StandIn(Server::start(address, certificates, kubelet, namespace).await?));
            }
            Self::Operator { binary, kubeconfig, logs, .. } => (binary, kubeconfig, logs),
            Self::Linkerd { controller, kubeconfig, logs } => (controller, kubeconfig, logs),
        };
        let tls = directory.join("tls");
        fs::create_dir(&tls).context("creating the directory of the certificate")?;
        fs::write(tls.join("tls.crt"), certificates.certificate_pem())?;
        fs::write(tls.join("tls.key"), certificates.key_pem())?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = logs.join(format!("proxy-injector-{number}.log"));
        let name = format!("proxy injector {number}");
        let mut spawn = match self {
            Self::Linkerd { .. } => {
                let mut spawn = Spawn::new(name, "unshare", log.clone());
                if !geteuid().is_root() {
                    spawn = spawn.args(["--map-root-user"]);
                }
                let spawn = spawn.args(["--mount", "--", "sh", "-c", MOUNT, "sh"]);
                spawn.args([directory, binary]).args(["proxy-injector"])
            }
            Self::Operator { watches: true, .. } => Spawn::new(name, binary, log.clone())
                .args(["manager", "--enable-proxy-injector", "--log-level=debug", "--enable-destination=false"])
                .args(["--enable-external-workload=false", "--enable-linkerd-config=false"])
                .args([format!("--webhook-folder={}", directory.display())]),
            // It logs each request.
            _ => Spawn::new(name, binary, log.clone())
                .args(["proxy-injector".to_owned(), format!("-folder={}", directory.display())])
                .args(["-log-level=debug"]),
        };
        let admin = loopback()?;
        let flags = match self {
            Self::Operator { watches: true, .. } => {
                ["--kubeconfig", "--webhook-addr", "--controller-namespace", "--admin-addr"]
            }
            _ => ["-kubeconfig", "-addr", "-linkerd-namespace", "-metrics-addr"],
        };
        let values = [kubeconfig.display().to_string(), address.to_string(), namespace.to_owned(), admin.to_string()];
        spawn = spawn.args(flags.iter().zip(values).map(|(flag, value)| format!("{flag}={value}")));
        spawn.env = vec![("LINKERD_CONTAINER_VERSION_OVERRIDE".to_owned(), VERSION.to_owned())];
        let controller = Mutex::new(Some(LinkerdProgram::start(spawn, admin).await?));
        Ok(Serving::Process(InjectorProcess { controller, address, log, forgotten: AtomicUsize::new(0) }))
    }
}

// === impl Serving ===

impl Serving {
    /// # Errors
    /// For any other behavior than the right one of Linkerd's injector.
    pub(super) async fn set_behaviour(&self, behaviour: Behaviour) -> Result<()> {
        match self {
            Self::StandIn(server) => server.set_behaviour(behaviour).await,
            Self::Process(_) if behaviour == Behaviour::Right => Ok(()),
            Self::Process(_) => bail!("the behavior of an injector's process cannot be set to {behaviour:?}"),
        }
    }

    pub(super) fn behaviour(&self) -> Behaviour {
        match self {
            Self::StandIn(server) => server.behaviour(),
            Self::Process(_) => Behaviour::Right,
        }
    }

    /// Stops the server and closes its connections.
    pub(super) async fn stop(&self) -> Result<()> {
        match self {
            Self::StandIn(server) => server.stop().await,
            Self::Process(process) => {
                if let Some(mut controller) = process.controller.lock().await.take() {
                    controller.kill().await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::StandIn(server) => server.address(),
            Self::Process(process) => process.address,
        }
    }

    /// The process id.
    pub(super) async fn pid(&self) -> Option<u32> {
        match self {
            Self::StandIn(_) => None,
            Self::Process(process) => process.controller.lock().await.as_ref().map(LinkerdProgram::pid),
        }
    }

    /// The log of a process that has not been stopped.
    pub(super) async fn log(&self) -> Option<String> {
        match self {
            Self::StandIn(_) => None,
            Self::Process(process) => process.controller.lock().await.as_ref().map(LinkerdProgram::log),
        }
    }

    /// The number of requests; of a process only of those with a valid document.
    pub(super) fn requests(&self) -> usize {
        match self {
            Self::StandIn(server) => server.requests(),
            Self::Process(process) => process.received() - process.forgotten.load(Ordering::SeqCst),
        }
    }

    /// The last request; unknown of a process.
    pub(super) fn last_review(&self) -> Option<Value> {
        match self {
            Self::StandIn(server) => server.last_review(),
            Self::Process(_) => None,
        }
    }

    /// Resets the number of requests and the last review.
    pub(super) fn forget(&self) {
        match self {
            Self::StandIn(server) => server.forget(),
            Self::Process(process) => process.forgotten.store(process.received(), Ordering::SeqCst),
        }
    }
}

// === impl InjectorProcess ===

impl InjectorProcess {
    /// The number of requests in its log, which the operating system keeps after its end. Linkerd's injector and the
    /// operator log them in different words.
    fn received(&self) -> usize {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let count = |text: &str| log.matches(text).count();
        count("received ") + count("reviewed an object") + count("denied a Pod")
    }
}
