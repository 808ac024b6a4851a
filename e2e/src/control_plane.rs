//! Starts a dedicated Kubernetes control plane: etcd and kube-apiserver, and on request the controllers, the scheduler
//! and kwok.
//!
//! * In: [`Options`] and the [`Binaries`]. Or an existing cluster, with
//!   `E2E_KUBECONFIG=<path>`, used unchanged.
//! * Out: kubeconfigs, clients, and faults that only the owner of a control plane can inject.
//! * Always: ready when `start` returns; stopped, and its directory removed, when dropped or when this process ends. It
//!   does not depend on an async runtime.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::{
    binaries::Binaries,
    command::Ended,
    component::Layout,
    etcd, kubeconfig,
    process::{Process, Signal, Spawn},
    wait::eventually,
    watchdog,
};

/// A limit, because each control plane of `make test` takes a few hundred MiB, and a full core while it starts.
static PRIVATE: Semaphore = Semaphore::const_new(4);
/// The number of background kubectl processes started so far; names their logs.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// How long a test waits for the control planes of others.
pub const PERMIT_DEADLINE: Duration = Duration::from_secs(15 * 60);
const READY_DEADLINE: Duration = Duration::from_secs(90);
const STOP_DEADLINE: Duration = Duration::from_secs(90);
const KUBECTL_DEADLINE: Duration = Duration::from_secs(60);
/// kubectl cannot create this directory, so it keeps no discovery cache, which would hide recently installed CRDs.
const NO_CACHE: &str = "/dev/null/none";
const ADMIN_TOKEN: &str = "admin-token";

/// The components to start. The default is etcd and kube-apiserver only.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub controller_manager: bool,
    pub scheduler: bool,
    /// Runs fake nodes and Pods, whose state exists only in the API. Add nodes with [`ControlPlane::add_node`].
    pub kwok: bool,
    pub extra_api_server_args: Vec<String>,
    pub users: Vec<User>,
    /// The host's address on which the API server listens instead of loopback: for kubelets, and for Pods with
    /// ServiceAccounts.
    pub address: Option<Ipv4Addr>,
}

impl Options {
    /// With the garbage collector, and the controllers of namespaces and ServiceAccounts.
    pub fn with_controllers() -> Self {
        Self { controller_manager: true, ..Self::default() }
    }

    /// All components: Deployments get Pods, and the Pods get addresses.
    pub fn full() -> Self {
        Self { controller_manager: true, scheduler: true, kwok: true, ..Self::default() }
    }
}

/// A user besides the admin, with the permissions that RBAC grants it.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

impl User {
    pub(crate) fn token(&self) -> String {
        format!("{}-token", self.name)
    }
}

pub struct ControlPlane {
    kubeconfig: PathBuf,
    server_url: String,
    /// `None` for an existing cluster, in which the harness must not inject faults.
    own: Option<OwnProcesses>,
    directory: TempDir,
    _permit: Option<SemaphorePermit<'static>>,
}

struct OwnProcesses {
    layout: Layout,
    options: Options,
    etcd: Process,
    api_server: Option<Process>,
    others: Vec<Process>,
}

impl ControlPlane {
    /// Starts a control plane for the caller. At most two exist in a process; a third call waits.
    pub async fn start(options: Options) -> Result<Self> {
        watchdog::watch_this_test();
        let permit = timeout(PERMIT_DEADLINE, PRIVATE.acquire())
            .await
            .context("other tests held their control planes for too long")??;
        let mut control_plane = Self::launch(options).await?;
        control_plane._permit = Some(permit);
        Ok(control_plane)
    }

    pub(crate) async fn launch(options: Options) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("linkerd-operator-e2e-").tempdir()?;
        if let Some(path) = std::env::var_os("E2E_KUBECONFIG").filter(|value| !value.is_empty()) {
            return Self::existing(path.into(), directory).await;
        }
        // The first build blocks for minutes.
        let binaries = tokio::task::spawn_blocking(Binaries::find_or_build).await??;
        let layout = Layout::prepare(directory.path(), binaries, &options, ADMIN_TOKEN)?;
        let etcd = Process::spawn(layout.etcd()?)?;
        let api_server = Process::spawn(layout.api_server()?)?;
        let own = OwnProcesses { layout, options, etcd, api_server: Some(api_server), others: Vec::new() };
        let mut control_plane = Self {
            kubeconfig: own.layout.kubeconfig.clone(),
            server_url: own.layout.server_url(),
            own: Some(own),
            directory,
            _permit: None,
        };
        control_plane.ready().await?;
        control_plane.start_others().await?;
        Ok(control_plane)
    }

    async fn existing(kubeconfig: PathBuf, directory: TempDir) -> Result<Self> {
        let read =
            Kubeconfig::read_from(&kubeconfig).with_context(|| format!("E2E_KUBECONFIG {}", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let server_url = config.cluster_url.to_string();
        let mut control_plane = Self { kubeconfig, server_url, own: None, directory, _permit: None };
        control_plane.ready().await?;
        Ok(control_plane)
    }

    async fn start_others(&mut self) -> Result<()> {
        let client = self.client().await?;
        let own = self.own()?;
        let (layout, options) = (&own.layout, &own.options);
        let wanted = [
            (options.controller_manager, layout.controller_manager()),
            (options.scheduler, layout.scheduler()),
            (options.kwok, layout.kwok()),
        ];
        for (_, spawn) in wanted.into_iter().filter(|(wanted, _)| *wanted) {
            own.others.push(Process::spawn(spawn?)?);
        }
        if own.options.controller_manager {
            let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
            eventually(READY_DEADLINE, "kube-controller-manager to create the first ServiceAccount", async || {
                if let Some(ended) = own.others.iter_mut().find_map(ended) {
                    return Ok(Err(ended));
                }
                accounts.get("default").await?;
                Ok(Ok(()))
            })
            .await??;
        }
        Ok(())
    }

    /// The kubeconfig of an admin.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn server_url(&self) -> &str {
        &self.server_url
    }

    /// The CA that signed the API server's certificate.
    pub fn ca_pem(&self) -> Result<&str> {
        Ok(&self.ours()?.layout.ca_pem)
    }

    /// The admin's bearer token.
    pub fn admin_token(&self) -> Result<&str> {
        self.ours().map(|_| ADMIN_TOKEN)
    }

    /// A directory that is removed with the control plane. It contains the logs of the components and of other
    /// processes.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A client for the admin. It belongs to the async runtime in which it was created, so each test creates its own.
    pub async fn client(&self) -> Result<Client> {
        kubeconfig::client(&self.kubeconfig).await
    }

    /// A kubeconfig for one of [`Options::users`].
    pub fn kubeconfig_for(&self, user: &str) -> Result<PathBuf> {
        let known = self.ours()?.options.users.iter().find(|known| known.name == user);
        let token = known.with_context(|| format!("{user} is not among the control plane's users"))?.token();
        self.kubeconfig_with_token(user, &token)
    }

    /// A kubeconfig for an existing ServiceAccount, with the same permissions as a Pod that runs under it.
    pub async fn kubeconfig_for_service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.service_account_token(namespace, name).await?;
        self.kubeconfig_with_token(&format!("{namespace}.{name}"), &token)
    }

    /// A token of a ServiceAccount for the API server.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        self.token_for(namespace, name, &[]).await
    }

    /// A token of a ServiceAccount for these audiences.
    pub async fn token_for(&self, namespace: &str, name: &str, audiences: &[&str]) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": audiences, "expirationSeconds": 86400},
        });
        let request: TokenRequest = accounts
            .create_subresource("token", name, &PostParams::default(), &body)
            .await
            .context("requesting a token")?;
        Ok(request.status.context("the API server returned no token")?.token)
    }

    fn kubeconfig_with_token(&self, user: &str, token: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(format!("kubeconfig-{user}"));
        kubeconfig::write(&path, &self.server_url, self.ca_pem()?, user, token)?;
        Ok(path)
    }

    /// Runs kubectl as the admin. Returns its stdout, or an error with its stderr.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::new(self.kubectl_path()?);
        command.args(args).env("KUBECONFIG", &self.kubeconfig);
        command.env("HOME", self.directory.path()).env("KUBECACHEDIR", NO_CACHE);
        let ended = Ended::of(command, KUBECTL_DEADLINE).await?;
        ensure!(ended.code == Some(0), "kubectl {}: {}", args.join(" "), ended.stderr.trim());
        Ok(ended.stdout)
    }

    /// Runs commands in a shell, in which kubectl is the admin's.
    pub async fn shell(&self, commands: &str) -> Result<()> {
        let mut shell = tokio::process::Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", &format!("kubectl() {{ command \"$KUBECTL\" \"$@\"; }}\n{commands}")]);
        shell.env("KUBECTL", self.kubectl_path()?).env("KUBECONFIG", &self.kubeconfig);
        shell.env("HOME", self.directory.path()).env("KUBECACHEDIR", NO_CACHE);
        let ended = Ended::of(shell, KUBECTL_DEADLINE).await?;
        ensure!(ended.code == Some(0), "{commands}: {ended:?}");
        Ok(())
    }

    /// Starts a long-running kubectl as the admin, for example with `--watch`. Its log is its output; dropping it ends
    /// it.
    pub fn start_kubectl(&self, args: &[&str]) -> Result<Process> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = self.directory.path().join(format!("kubectl-{number}.log"));
        let mut spawn = Spawn::new("kubectl", self.kubectl_path()?, log).args(args);
        spawn.env =
            [("KUBECONFIG", &*self.kubeconfig), ("HOME", self.directory()), ("KUBECACHEDIR", Path::new(NO_CACHE))]
                .map(|(name, path)| (name.to_owned(), path.display().to_string()))
                .into();
        Process::spawn(spawn)
    }

    /// The kubectl that matches the control plane's version.
    pub fn kubectl_path(&self) -> Result<PathBuf> {
        self.own.as_ref().map_or_else(|| Ok("kubectl".into()), |own| own.layout.kubectl())
    }

    /// Starts a stand-in for the kubelet of this node, which runs until dropped. A port-forward of `port` to any Pod on
    /// the node is connected to `target`.
    pub fn start_kubelet(&self, node: &str, port: u16, target: SocketAddr) -> Result<Process> {
        Process::spawn(self.ours()?.layout.kubelet(node, port, target)?)
    }

    /// Starts one more candidate in the election of a Lease, with client-go's behavior: lease duration 6 s, renew
    /// deadline 3 s, retry period 1 s. The process exits when it stops leading.
    pub fn start_elector(&self, namespace: &str, lease: &str) -> Result<Process> {
        Process::spawn(self.ours()?.layout.elector(namespace, lease)?)
    }

    /// Stops the API server: with SIGTERM if `graceful`, otherwise with SIGKILL.
    pub async fn stop_api_server(&mut self, graceful: bool) -> Result<()> {
        let mut process = self.own()?.api_server.take().context("the API server is not running")?;
        process.signal(if graceful { Signal::TERM } else { Signal::KILL })?;
        process.wait(STOP_DEADLINE).await?;
        Ok(())
    }

    /// Starts a stopped API server on its old port, and waits until it is ready.
    pub async fn start_api_server(&mut self) -> Result<()> {
        let own = self.own()?;
        ensure!(own.api_server.is_none(), "the API server is running");
        own.api_server = Some(Process::spawn(own.layout.api_server()?)?);
        self.ready().await
    }

    pub async fn restart_api_server(&mut self, graceful: bool) -> Result<()> {
        self.stop_api_server(graceful).await?;
        self.start_api_server().await
    }

    /// Compacts etcd. A watch from an older resourceVersion gets 410, at the latest after a restart of the API server,
    /// whose watch cache may still hold the history. Returns the compacted revision.
    pub async fn compact_etcd(&self) -> Result<i64> {
        etcd::compact(self.ours()?.layout.etcd_address()).await
    }

    /// The names and process ids of the running processes.
    pub fn processes(&self) -> Vec<(String, u32)> {
        let own = self.own.iter();
        own.flat_map(|own| std::iter::once(&own.etcd).chain(&own.api_server).chain(&own.others))
            .map(|process| (process.name().to_owned(), process.pid()))
            .collect()
    }

    fn ours(&self) -> Result<&OwnProcesses> {
        self.own.as_ref().ok_or_else(not_ours)
    }

    fn own(&mut self) -> Result<&mut OwnProcesses> {
        self.own.as_mut().ok_or_else(not_ours)
    }

    async fn ready(&mut self) -> Result<()> {
        let client = self.client().await?;
        let result = eventually(READY_DEADLINE, "the API server to be ready", async || {
            if let Some(own) = &mut self.own {
                let api_server = own.api_server.as_mut();
                if let Some(ended) = std::iter::once(&mut own.etcd).chain(api_server).find_map(ended) {
                    return Ok(Err(ended));
                }
            }
            let request = http::Request::get("/readyz").body(Vec::new())?;
            // Limits one attempt, because the server may accept the connection and never answer.
            let answer = timeout(Duration::from_secs(5), client.request_text(request)).await??;
            ensure!(answer == "ok", "/readyz: {answer}");
            Ok(Ok(()))
        })
        .await;
        // The outer error means not ready in time. The inner one means a process ended, so that waiting does not help.
        result.map_err(|error| match &self.own {
            Some(OwnProcesses { api_server: Some(api_server), .. }) => {
                error.context(format!("the log of kube-apiserver ends with:\n{}", api_server.log_tail(15)))
            }
            _ => error,
        })?
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(own) = &mut self.own {
            // All are signalled first; each is awaited when it is dropped.
            own.others.iter_mut().chain(&mut own.api_server).for_each(Process::begin_end);
            own.etcd.begin_end();
        }
    }
}

fn not_ours() -> anyhow::Error {
    anyhow!("this needs a dedicated control plane, but E2E_KUBECONFIG selects an existing cluster: unset it")
}

/// Returns an error if the process has ended, so that a wait for it can stop.
fn ended(process: &mut Process) -> Option<anyhow::Error> {
    let status = process.exit_status()?;
    Some(anyhow!("{} ended with {status}; its log ends with:\n{}", process.name(), process.log_tail(15)))
}
