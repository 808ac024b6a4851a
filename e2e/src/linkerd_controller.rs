//! Linkerd's own controller, for comparisons with it: the Go binary that Linkerd's containers `destination`,
//! `proxy-injector` and others run. It is never part of this repository; the caller gives its path.
//!
//! * In: the path of the binary, a [`ControlPlane`], flags. Out: a running server; of the proxy injector see
//!   [`Injector`](crate::Injector).
//! * Always: it ends with the test.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use hyper::{Method, StatusCode};

use crate::{
    control_plane::ControlPlane,
    plain_http, port,
    process::{Process, Signal, Spawn},
    wait::eventually,
};

/// The arguments in Linkerd's chart (edge-26.8), except addresses and the namespace.
pub const CHART_FLAGS: [&str; 9] = [
    "-outbound-transport-mode=transport-header",
    "-enable-h2-upgrade=true",
    "-enable-endpoint-slices=true",
    "-cluster-domain=cluster.local",
    "-identity-trust-domain=cluster.local",
    "-default-opaque-ports=25,587,3306,4444,5432,6379,9300,11211",
    "-enable-ipv6=false",
    "-enable-pprof=false",
    r#"--meshed-http2-client-params={"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}"#,
];
const READY_DEADLINE: Duration = Duration::from_secs(60);
const ADMIN_DEADLINE: Duration = Duration::from_secs(2);

static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A running subcommand of the controller, or another program with an admin server.
pub struct LinkerdProgram {
    process: Process,
}

/// The controller's subcommand `destination`.
pub struct LinkerdDestination {
    controller: LinkerdProgram,
    identity: String,
    address: SocketAddr,
}

// === impl LinkerdProgram ===

impl LinkerdProgram {
    /// Starts the program, and waits until its admin server at this address answers that it is ready.
    pub async fn start(mut spawn: Spawn, admin: SocketAddr) -> Result<Self> {
        spawn.grace = Duration::ZERO;
        let name = spawn.name.clone();
        let program = Self { process: Process::spawn(spawn)? };
        let ready = eventually(READY_DEADLINE, format!("{name} to be ready"), async || {
            let (status, _) = plain_http::request(admin, Method::GET, "/ready", "", ADMIN_DEADLINE).await?;
            ensure!(status == StatusCode::OK, "/ready: {status}");
            Ok(())
        });
        ready.await.with_context(|| format!("its log ends with:\n{}", program.process.log_tail(20)))?;
        Ok(program)
    }

    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    pub fn log_tail(&self) -> String {
        self.process.log_tail(20)
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self, timeout: Duration) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(timeout).await.map(drop)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends SIGKILL, as when the node dies.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.wait(Duration::from_secs(10)).await.map(drop)
    }
}

// === impl LinkerdDestination ===

impl LinkerdDestination {
    /// Starts the server with these further flags, in Go's syntax, and waits until it is ready.
    pub async fn start(controller: &Path, control_plane: &ControlPlane, flags: &[String]) -> Result<Self> {
        let (admin, address) = (loopback()?, loopback()?);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = control_plane.directory().join(format!("linkerd-destination-{number}.log"));
        let mut spawn = Spawn::new(format!("Linkerd's destination {number}"), controller, log)
            .args(["destination".to_owned(), format!("-kubeconfig={}", control_plane.kubeconfig().display())])
            .args([format!("-addr={address}"), format!("-metrics-addr={admin}")])
            .args(["-controller-namespace=linkerd"])
            .args(flags);
        // The identity in the Lease. Without it, the server does not start.
        let identity = format!("linkerd-destination-{number}");
        spawn.env = vec![("HOSTNAME".to_owned(), identity.clone())];
        Ok(Self { controller: LinkerdProgram::start(spawn, admin).await?, identity, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The holder in the Lease when this server leads.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    pub fn log(&self) -> String {
        self.controller.log()
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self, timeout: Duration) -> Result<()> {
        self.controller.terminate(timeout).await
    }

    /// Sends SIGKILL, as when the node dies.
    pub async fn kill(&mut self) -> Result<()> {
        self.controller.kill().await
    }
}

/// A free address on loopback.
pub fn loopback() -> Result<SocketAddr> {
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?)))
}
