//! A real node on this host: containerd, kubelet and kube-proxy in separate namespaces, joined to a control plane of
//! the harness.
//!
//! ```text
//!   host: ControlPlane ── 198.18.0.1 ══ veth ══ 198.18.0.2 :node ── cni0 ── pods, 10.244.0.0/24; Services, 10.96.0.0/16
//! ```
//!
//! * In: root and the programs in [`requirement`]; images. Out: a ready node, whose Pods, Services and NodePorts are
//!   reachable from the host.
//! * Always: removed when this process ends, however it ends: the kernel destroys the namespaces and their processes.
//!   Only cgroups must be removed explicitly. Only one node can run on a host, because its addresses are fixed.

mod config;
mod images;
pub mod requirement;
pub mod trace;

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use crate::{
    ControlPlane, Options, Process, Spawn, User, binaries::Binaries, component::SERVICES_V4, wait::eventually,
};

/// The prefix of the node's directory and of its cgroup.
const PREFIX: &str = "linkerd-operator-e2e-";
pub const NAME: &str = "node-1";
/// From the range for benchmark tests (198.18.0.0/15), which no network uses.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const WIRE: &str = "e2e-node";
const KUBELET: &str = "system:node:node-1";
const KUBE_PROXY: &str = "system:kube-proxy";
const INIT: &str = include_str!("init.sh");
const START_DEADLINE: Duration = Duration::from_secs(30);
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
const READY_DEADLINE: Duration = Duration::from_secs(120);
const EMPTY_DEADLINE: Duration = Duration::from_secs(15);

pub struct RealNode {
    // Dropped in this order.
    joined: Vec<Process>,
    namespaces: Process,
    cgroup: Cgroup,
    /// The process id on the host.
    init: String,
    binaries: Binaries,
    directory: TempDir,
}

/// The node's cgroup in each hierarchy.
struct Cgroup(String);

impl RealNode {
    /// Creates the namespaces, and a containerd with these images. Start the control plane afterwards, because its
    /// address exists only then, and pass it to [`RealNode::join`].
    pub async fn start(images: &[&Path]) -> Result<Self> {
        requirement::check()?;
        let binaries = tokio::task::spawn_blocking(Binaries::find_or_build_node).await??;
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let path = directory.path();
        let cgroup = Cgroup::create(path)?;
        fs::create_dir(path.join("cni"))?;
        fs::write(path.join("cni/pods.conflist"), config::cni().to_string())?;
        let containerd = config::containerd(&path.join("cni"), &requirement::plugins()?, images::PAUSE);
        fs::write(path.join("containerd.toml"), containerd)?;
        fs::write(path.join("init.sh"), INIT)?;
        let built = images::build(path).await?;
        let mut spawn = Spawn::new("the node's namespaces", "unshare", path.join("containerd.log"))
            .args(["--mount", "--pid", "--ipc", "--fork", "--kill-child", "--", "sh"])
            .args([path.join("init.sh"), path.to_owned()])
            .args([WIRE, &HOST.to_string(), &ADDRESS.to_string(), config::PODS, SERVICES_V4]);
        spawn.grace = Duration::ZERO;
        spawn.remove = Some(path.to_owned());
        let mut namespaces = Process::spawn(spawn)?;
        let init = path.join("init.pid");
        let up = eventually(START_DEADLINE, "the node's namespaces", async || {
            ensure!(namespaces.is_running(), "the process has ended");
            let id = fs::read_to_string(&init)?.trim().to_owned();
            ensure!(!id.is_empty(), "its process id is not known yet");
            Ok(id)
        })
        .await;
        let init = up.with_context(|| format!("the log of the node ends with:\n{}", namespaces.log_tail(15)))?;
        let node = Self { joined: Vec::new(), namespaces, cgroup, init, binaries, directory };
        eventually(START_DEADLINE, "containerd", async || node.run("ctr", &["version"]).await)
            .await
            .with_context(|| format!("the log of containerd ends with:\n{}", node.namespaces.log_tail(15)))?;
        for image in images.iter().copied().chain(built.iter().map(PathBuf::as_path)) {
            node.run("ctr", &["--namespace=k8s.io", "images", "import", &image.display().to_string()]).await?;
        }
        Ok(node)
    }

    /// The options for a control plane whose API server is reachable from Pods, with everything except kwok.
    pub fn control_plane() -> Options {
        let user = |name: &str, groups: &[&str]| User {
            name: name.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
        };
        Options {
            controller_manager: true,
            scheduler: true,
            address: Some(HOST),
            users: vec![user(KUBELET, &["system:nodes"]), user(KUBE_PROXY, &[])],
            ..Options::default()
        }
    }

    /// Starts the kubelet and kube-proxy, and waits until the node is ready.
    pub async fn join(&mut self, control_plane: &ControlPlane) -> Result<()> {
        let path = self.directory.path();
        let kubeconfig = control_plane.kubeconfig_for(KUBELET)?;
        let client_ca = control_plane.directory().join("kubelet-client-ca.crt");
        fs::write(path.join("kubelet.json"), config::kubelet(&self.cgroup.0, &client_ca).to_string())?;
        let kubelet = self.spawn("kubelet")?.args(config::kubelet_args(path, &kubeconfig, NAME, ADDRESS));
        let kubeconfig = control_plane.kubeconfig_for(KUBE_PROXY)?;
        let configuration = path.join("kube-proxy.json");
        fs::write(&configuration, config::kube_proxy(&kubeconfig, NAME).to_string())?;
        let kube_proxy = self.spawn("kube-proxy")?.args([format!("--config={}", configuration.display())]);
        for spawn in [kubelet, kube_proxy] {
            self.joined.push(Process::spawn(spawn)?);
        }
        let nodes: Api<Node> = Api::all(control_plane.client().await?);
        let joined = &mut self.joined;
        let ready = eventually(READY_DEADLINE, "the node to be ready", async || {
            if let Some(process) = joined.iter_mut().find_map(|process| (!process.is_running()).then_some(process)) {
                return Ok(Some(format!("{} ended; its log ends with:\n{}", process.name(), process.log_tail(15))));
            }
            let node = nodes.get(NAME).await?;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            ensure!(ready && taints.is_empty(), "it has taints {taints:?} and conditions {conditions:?}");
            Ok(None)
        })
        .await;
        let ended = ready.with_context(|| self.logs())?;
        ensure!(ended.is_none(), "{}", ended.unwrap_or_default());
        Ok(())
    }

    /// Runs a program in the node. Returns its stdout, or an error with its output.
    pub async fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new("nsenter");
        command.args(self.enter()).arg(program).args(args).stdin(Stdio::null()).kill_on_drop(true);
        let output =
            timeout(COMMAND_DEADLINE, command.output()).await.with_context(|| format!("{program} hangs"))??;
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{program} {}: {} {}", args.join(" "), text.trim(), error.trim());
        Ok(text.into_owned())
    }

    /// The ends of all logs of the node.
    pub fn logs(&self) -> String {
        let all = self.joined.iter().chain([&self.namespaces]);
        all.map(|process| format!("the log of {} ends with:\n{}\n", process.name(), process.log_tail(15))).collect()
    }

    /// The names and process ids of the kubelet and kube-proxy.
    pub fn processes(&self) -> Vec<(String, u32)> {
        self.joined.iter().map(|process| (process.name().to_owned(), process.pid())).collect()
    }

    fn enter(&self) -> Vec<String> {
        let target = format!("--target={}", self.init);
        [target.as_str(), "--mount", "--pid", "--ipc", "--net", "--"].map(str::to_owned).into()
    }

    fn spawn(&self, tool: &str) -> Result<Spawn> {
        let log = self.directory.path().join(format!("{tool}.log"));
        let mut spawn = Spawn::new(tool, "nsenter", log).args(self.enter()).args([self.binaries.tool(tool)?]);
        spawn.grace = Duration::ZERO;
        Ok(spawn)
    }
}

// === impl Cgroup ===

impl Cgroup {
    /// Creates a cgroup with the name of the directory, and removes the cgroups of nodes that were killed.
    fn create(directory: &Path) -> Result<Self> {
        let name = directory.file_name().context("the node's directory has no name")?.to_string_lossy().into_owned();
        let beside = directory.parent().unwrap_or(directory);
        for hierarchy in trace::hierarchies() {
            let stale = trace::names(&hierarchy).filter(|name| name.starts_with(PREFIX) && !beside.join(name).exists());
            stale.for_each(|name| remove(&Path::new(&hierarchy).join(name)));
            let path = Path::new(&hierarchy).join(&name);
            fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        }
        Ok(Self(name))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let end = Instant::now() + EMPTY_DEADLINE;
        let paths: Vec<PathBuf> =
            trace::hierarchies().into_iter().map(|hierarchy| Path::new(&hierarchy).join(&self.0)).collect();
        // The kernel needs a moment to end the processes in them.
        while paths.iter().any(|path| path.exists()) && Instant::now() < end {
            paths.iter().for_each(|path| remove(path));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Removes a cgroup and its children.
fn remove(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(cgroup);
}
