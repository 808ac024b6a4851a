//! The operator in place of Linkerd's container `identity`, as a child process.
//!
//! * In: a folder, a kubeconfig. Out: its address, the answers of its admin port, its volumes. Always: it has the flags of
//!   Linkerd's chart; after a restart it has the same addresses and volumes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::volume::Volume;
use crate::{
    executable::operator_binary,
    linkerd_controller::loopback,
    memory::Memory,
    mesh::SOON,
    metric, plain_http,
    process::{Process, Signal, Spawn},
    wait::eventually,
};

const ADMIN_DEADLINE: Duration = Duration::from_secs(5);

/// What differs between servers.
#[derive(Clone, Copy, Debug)]
pub struct IdentityOptions {
    /// The maximum number of TokenReviews at the same time.
    pub reviews_at_once: usize,
    /// The memory limit in bytes, as of a container; see [`Spawn::memory_limit`].
    pub memory_limit: Option<u64>,
    /// Whether it terminates TLS itself.
    pub tls: bool,
    /// Further flags, which take precedence over those of the chart.
    pub flags: &'static str,
}

pub struct IdentityProcess {
    pub process: Process,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub issuer: Volume,
    pub roots: Volume,
    arguments: Vec<String>,
    log: PathBuf,
    memory_limit: Option<u64>,
}

// === impl IdentityOptions ===

impl Default for IdentityOptions {
    /// As in Linkerd's chart.
    fn default() -> Self {
        Self { reviews_at_once: 200, memory_limit: None, tls: false, flags: "" }
    }
}

// === impl IdentityProcess ===

impl IdentityProcess {
    /// Starts the server without an issuer, with new volumes in this folder.
    ///
    /// # Errors
    /// Fails if the process does not start.
    pub fn start(folder: &Path, kubeconfig: &Path, options: IdentityOptions) -> Result<Self> {
        let (issuer, roots) = (Volume::new(folder.join("issuer"))?, Volume::new(folder.join("roots"))?);
        let (address, admin) = (loopback()?, loopback()?);
        let log = folder.join("identity.log");
        // The flags of Linkerd's chart, and those of this process.
        let chart = "identity -log-level=info -log-format=plain -controller-namespace=linkerd \
                     -identity-trust-domain=cluster.local -identity-issuance-lifetime=24h0m0s \
                     -identity-clock-skew-allowance=20s -identity-scheme=linkerd.io/tls -enable-pprof=false \
                     -kube-apiclient-qps=100";
        let own = [
            format!("-kube-apiclient-burst={}", options.reviews_at_once),
            format!("-kubeconfig={}", kubeconfig.display()),
            format!("-addr={address}"),
            format!("-admin-addr={admin}"),
            format!("-issuer={}", issuer.0.display()),
            format!("--trust-roots={}", roots.0.display()),
        ];
        let tls = options.tls.then(|| "--tls".to_owned());
        let further = options.flags.split_whitespace().map(str::to_owned);
        let chart = chart.split_whitespace().map(str::to_owned);
        let arguments: Vec<_> = chart.chain(own).chain(tls).chain(further).collect();
        let process = spawn(&arguments, &log, options.memory_limit)?;
        let memory_limit = options.memory_limit;
        Ok(Self { process, address, admin, issuer, roots, arguments, log, memory_limit })
    }

    /// A Pod of this replica in Linkerd's namespace.
    pub fn pod(&self, name: &str) -> Value {
        let port = json!({"name": "ident-grpc", "containerPort": self.address.port()});
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "linkerd", "labels": {"linkerd.io/control-plane-component": "identity"}},
            "spec": {"containers": [{"name": "identity", "image": "controller", "ports": [port]}]}})
    }

    /// Sends SIGKILL, as when the node dies.
    ///
    /// # Errors
    /// Fails if the process does not end.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.wait(SOON).await.map(drop)
    }

    /// Starts the process again after its end.
    ///
    /// # Errors
    /// Fails if it runs, or does not start.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(!self.process.is_running(), "the identity server still runs");
        self.process = spawn(&self.arguments, &self.log, self.memory_limit)?;
        Ok(())
    }

    /// # Errors
    /// Fails if the admin port does not answer.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        let (status, body) = plain_http::request(self.admin, Method::GET, path, "", ADMIN_DEADLINE).await?;
        Ok((status, String::from_utf8(body.to_vec())?))
    }

    /// Waits until `/ready` has this status.
    ///
    /// # Errors
    /// Fails if that does not happen in time.
    pub async fn shows(&self, expected: StatusCode) -> Result<String> {
        let ready = eventually(SOON, format!("/ready to be {expected}"), async || {
            let (status, body) = self.get("/ready").await?;
            ensure!(status == expected, "{status}: {body}");
            Ok(body)
        });
        ready.await.with_context(|| self.process.log_tail(20))
    }

    /// The sum of the samples of a metric with these labels.
    ///
    /// # Errors
    /// Fails if the admin port does not answer.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        let all = metric::parse(&text);
        Ok(all.iter().filter(|sample| sample.name == name && sample.has(labels)).map(|sample| sample.value).sum())
    }

    /// # Errors
    /// Fails if the process has ended.
    pub fn memory(&self) -> Result<Memory> {
        Memory::of_process(self.process.pid())
    }
}

fn spawn(arguments: &[String], log: &Path, memory_limit: Option<u64>) -> Result<Process> {
    let mut spawn = Spawn::new("identity", operator_binary()?, log).args(arguments);
    spawn.memory_limit = memory_limit;
    Process::spawn(spawn)
}
