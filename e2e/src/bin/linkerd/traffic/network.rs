//! Network namespaces for Pods, and sockets in them.
//!
//! ```text
//!   application ─▶ nft redirect ─▶ outbound proxy ══ veth, bridge ══ nft redirect ─▶ inbound proxy ─▶ application
//! ```
//!
//! * In: root; the names and addresses of the Pods. Out: listeners, connections and processes in their namespaces.
//! * Always: the host's own network is not changed, and the namespaces end with this process.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use e2e::{Process, Spawn, eventually, real_node::requirement::is_in_path};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpListener, TcpStream};

const SCRIPT: &str = include_str!("network.sh");
const PROGRAMS: [&str; 4] = ["ip", "nft", "nsenter", "unshare"];
const START_DEADLINE: Duration = Duration::from_secs(30);
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

pub(crate) struct Network {
    pods: BTreeMap<&'static str, PodNetwork>,
    _process: Process,
}

/// One Pod's network namespace.
#[derive(Clone)]
pub(crate) struct PodNetwork {
    path: PathBuf,
    namespace: Arc<File>,
}

/// Returns why this host cannot run the Pods' networks, or `None`.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can create network namespaces".to_owned());
    }
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !is_in_path(program)).collect();
    (!missing.is_empty()).then(|| format!("these programs are not in PATH: {}", missing.join(", ")))
}

// === impl Network ===

impl Network {
    /// Creates a namespace for each Pod, with these addresses in 10.244.0.0/16.
    pub(crate) async fn start(directory: &Path, pods: &[(&'static str, Vec<Ipv4Addr>)]) -> Result<Self> {
        let directory = directory.join("network");
        fs::create_dir(&directory)?;
        fs::write(directory.join("network.sh"), SCRIPT)?;
        let pods_of_script = pods.iter().map(|(name, addresses)| {
            let addresses: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
            format!("{name}={}", addresses.join(",")).into()
        });
        let mut spawn = Spawn::new("the Pods' network", "unshare", directory.join("log"))
            .args(["--net", "sh"])
            .args([directory.join("network.sh"), directory.clone()])
            .args(pods_of_script.collect::<Vec<std::ffi::OsString>>());
        spawn.grace = Duration::ZERO;
        let mut process = Process::spawn(spawn)?;
        let ready = eventually(START_DEADLINE, "the Pods' network", async || {
            if !process.is_running() {
                return Ok(Err(anyhow!("the script has ended")));
            }
            ensure!(directory.join("ready").exists(), "the script is still running");
            Ok(Ok(()))
        });
        ready.await.flatten().with_context(|| format!("its log ends with:\n{}", process.log_tail(15)))?;
        let mut opened = BTreeMap::new();
        for (name, _) in pods {
            let pid = fs::read_to_string(directory.join(format!("{name}.pid")))?;
            let path = PathBuf::from(format!("/proc/{}/ns/net", pid.trim()));
            let namespace = Arc::new(File::open(&path).with_context(|| format!("opening {}", path.display()))?);
            opened.insert(*name, PodNetwork { path, namespace });
        }
        Ok(Self { pods: opened, _process: process })
    }

    pub(crate) fn pod(&self, name: &str) -> Result<&PodNetwork> {
        self.pods.get(name).with_context(|| format!("no network namespace has the name {name}"))
    }
}

// === impl PodNetwork ===

impl PodNetwork {
    /// A command that runs in the namespace.
    pub(crate) fn command(&self, name: String, program: &Path, log: PathBuf) -> Spawn {
        Spawn::new(name, "nsenter", log)
            .args([format!("--net={}", self.path.display()), "--".to_owned()])
            .args([program])
    }

    pub(crate) fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let listener = self.inside(|| StdListener::bind(address)).with_context(|| format!("listening on {address}"))?;
        listener.set_nonblocking(true)?;
        Ok(TcpListener::from_std(listener)?)
    }

    pub(crate) async fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        let network = self.clone();
        let connect = move || network.inside(|| StdStream::connect_timeout(&address, CONNECT_DEADLINE));
        let stream = tokio::task::spawn_blocking(connect).await?.with_context(|| format!("connecting to {address}"))?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(TcpStream::from_std(stream)?)
    }

    /// Runs the function on a new thread in the namespace. The sockets that it creates stay in the namespace.
    fn inside<T: Send>(&self, function: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                function()
            });
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
        })
    }
}
