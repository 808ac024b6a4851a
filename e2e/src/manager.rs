//! The operator's manager as a child process.
//!
//! * In: a [`ControlPlane`] (and, to go through a proxy or as another user, another kubeconfig), arguments, environment.
//! * Out: what it says on its admin port, in its log and in its exit status; signals to it.
//! * Always: ends with the test. When a test panics, the end of the log is printed.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::ExitStatus,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use hyper::{Method, StatusCode};

use crate::{
    control_plane::ControlPlane,
    discovery::Discovery,
    metric::{self, Sample},
    plain_http, port,
    process::{Process, Signal, Spawn, beside_this_executable},
    wait::eventually,
};

const ADMIN_DEADLINE: Duration = Duration::from_secs(2);

static STARTED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug, Default)]
pub struct ManagerOptions {
    /// After the ones every manager gets; of a flag that is given twice the last counts.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// Its `--leader-election-identity`; by default its own choice.
    pub identity: Option<String>,
    /// Instead of the control plane's admin kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Started as the container of Linkerd's Deployment is, with that container's flags.
    pub in_place_of_linkerds: bool,
}

pub struct Manager {
    process: Process,
    admin: SocketAddr,
    destination: SocketAddr,
}

impl Manager {
    /// Starts it; see [`Manager::ready`] for waiting.
    pub fn start(control_plane: &ControlPlane, options: ManagerOptions) -> Result<Self> {
        let binary = beside_this_executable("linkerd-operator", "LINKERD_OPERATOR_BIN")?;
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?));
        let destination = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?));
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = control_plane.directory().join(format!("manager-{number}.log"));
        let kubeconfig = options.kubeconfig.unwrap_or_else(|| control_plane.kubeconfig().to_owned());
        let (subcommand, names) = match options.in_place_of_linkerds {
            true => ("destination", ["-kubeconfig", "-metrics-addr", "-addr", "-controller-namespace"]),
            false => ("manager", ["--kubeconfig", "--admin-addr", "--destination-addr", "--controller-namespace"]),
        };
        let values =
            [kubeconfig.display().to_string(), admin.to_string(), destination.to_string(), "linkerd".to_owned()];
        let flags = names.iter().zip(values).map(|(name, value)| format!("{name}={value}"));
        let mut spawn = Spawn::new(format!("manager {number}"), binary, log)
            .args([subcommand])
            .args(flags)
            .args(["--log-format=plain", "--log-level=info"]);
        if let Some(identity) = options.identity {
            spawn = spawn.args(["--leader-election-identity".into(), identity]);
        }
        spawn = spawn.args(options.args);
        spawn.env = options.env;
        Ok(Self { process: Process::spawn(spawn)?, admin, destination })
    }

    /// Waits for `/ready` to say 200. An end of the process is an error at once.
    pub async fn ready(&mut self, deadline: Duration) -> Result<()> {
        let admin = self.admin;
        let process = &mut self.process;
        let mut ended = None;
        let result = eventually(deadline, "the manager to be ready", async || {
            if let Some(status) = process.exit_status() {
                ended = Some(status);
                return Ok(());
            }
            let (status, body) = get(admin, "/ready").await?;
            ensure!(status == StatusCode::OK, "/ready: {status} {}", body.trim());
            Ok(())
        })
        .await;
        if let Some(status) = ended {
            bail!("the manager ended with {status}; its log ends with:\n{}", self.process.log_tail(20));
        }
        result.with_context(|| format!("its log ends with:\n{}", self.process.log_tail(20)))
    }

    /// GET on the admin port.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        get(self.admin, path).await
    }

    /// All samples of `/metrics`.
    pub async fn metrics(&self) -> Result<Vec<Sample>> {
        let (status, body) = self.get("/metrics").await?;
        ensure!(status == StatusCode::OK, "/metrics: {status}");
        Ok(metric::parse(&body))
    }

    /// The sum of the samples of that name which have these labels; `None` when there is none, or no answer.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let samples = self.metrics().await.ok()?;
        samples
            .iter()
            .filter(|sample| sample.name == name && sample.has(labels))
            .map(|sample| sample.value)
            .reduce(|sum, value| sum + value)
    }

    /// Whether it holds the Lease of that name, as it says itself.
    pub async fn is_leading(&self, lease: &str) -> bool {
        self.metric("linkerd_operator_leader", &[("lease", lease)]).await == Some(1.0)
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Where it serves the Destination API.
    pub fn destination_address(&self) -> SocketAddr {
        self.destination
    }

    pub async fn discovery(&self) -> Result<Discovery> {
        Discovery::connect(self.destination).await
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Waits for it to end by itself.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.process.wait(timeout).await
    }

    /// SIGTERM, and the exit status it then ends with.
    pub async fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(timeout).await
    }

    /// SIGTERM, without waiting for what comes of it.
    pub fn begin_to_terminate(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// SIGKILL: as when its node dies.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.wait(Duration::from_secs(10)).await.map(drop)
    }

    /// SIGSTOP: it stands still, as a process that was long not scheduled.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    pub fn resume(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    pub fn resident_memory_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        status_bytes(&status, "VmRSS:").context("the kernel names no VmRSS: the process has ended")
    }

    /// The most that was ever resident.
    pub fn peak_memory_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        status_bytes(&status, "VmHWM:").context("the kernel names no VmHWM: the process has ended")
    }

    /// The time of a core that it has used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let ticks = cpu_ticks(&stat).context("the kernel's line about the process has another form")?;
        let nanoseconds = ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Ok(Duration::from_nanos(nanoseconds))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {} ends with:\n{}", self.process.name(), self.process.log_tail(40));
        }
    }
}

async fn get(admin: SocketAddr, path: &str) -> Result<(StatusCode, String)> {
    let (status, body) = plain_http::request(admin, Method::GET, path, "", ADMIN_DEADLINE).await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// User and system time, after the name in parentheses, which may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(status_bytes("Name:\tx\nVmRSS:\t    2048 kB\n", "VmRSS:"), Some(2 * 1024 * 1024));
        assert_eq!(status_bytes("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn the_time_of_a_process_is_read_whatever_its_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 31 12 0 0 20 0 4 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some(43));
    }
}
