//! The operator's manager as a child process.
//!
//! * In: a [`ControlPlane`], arguments and environment; optionally another kubeconfig, for a proxy or another user;
//!   signals.
//! * Out: the answers of its admin port, its log, its exit status.
//! * Always: ends with the test. When a test panics, the end of the log is printed.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
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
    executable::operator_binary,
    fault_proxy::FaultProxy,
    memory::Memory,
    mesh::SOON,
    metric::{self, Sample},
    plain_http, port,
    process::{Process, Signal, Spawn},
    wait::eventually,
};

const ADMIN_DEADLINE: Duration = Duration::from_secs(2);
/// The longest time from SIGTERM to the exit.
pub const STOP: Duration = Duration::from_secs(45);
/// Longer than the longest backoff between two attempts to write.
pub const BACKED_OFF: Duration = Duration::from_secs(70);
/// How long a test waits for an unexpected write of a manager.
pub const QUIET: Duration = Duration::from_secs(2);

static STARTED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug, Default)]
pub struct ManagerOptions {
    /// Appended to the default arguments; the last occurrence of a flag wins.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The `--leader-election-identity`; by default the manager chooses one.
    pub identity: Option<String>,
    /// The host's address on which it listens; by default loopback, which the API server does not connect to.
    pub address: Option<IpAddr>,
    /// Used instead of the control plane's admin kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Starts the manager with the subcommand and flags of the container in Linkerd's Deployment.
    pub as_linkerd_destination: bool,
    /// The memory limit in bytes, as of a container; see [`Spawn::memory_limit`].
    pub memory_limit: Option<u64>,
    /// The binary of another version, instead of the one that was built with the tests.
    pub binary: Option<PathBuf>,
}

/// A job that a manager runs by default. Each has a flag that disables it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Job {
    Destination,
    ExternalWorkload,
    LinkerdConfig,
}

pub struct Manager {
    process: Process,
    admin: SocketAddr,
    destination: SocketAddr,
}

// === impl Job ===

impl Job {
    const ALL: [Self; 3] = [Self::Destination, Self::ExternalWorkload, Self::LinkerdConfig];

    /// The flag that disables the job.
    fn off(self) -> &'static str {
        match self {
            Self::Destination => "--enable-destination=false",
            Self::ExternalWorkload => "--enable-external-workload=false",
            Self::LinkerdConfig => "--enable-linkerd-config=false",
        }
    }
}

// === impl ManagerOptions ===

impl ManagerOptions {
    pub fn new<Arg: Into<String>>(args: impl IntoIterator<Item = Arg>) -> Self {
        Self::default().args(args)
    }

    /// A manager that runs only this job.
    pub fn only(job: Job) -> Self {
        Self::new(Job::ALL.into_iter().filter(|other| *other != job).map(Job::off))
    }

    pub fn args<Arg: Into<String>>(mut self, args: impl IntoIterator<Item = Arg>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = Some(identity.into());
        self
    }

    pub fn kubeconfig(mut self, path: impl Into<PathBuf>) -> Self {
        self.kubeconfig = Some(path.into());
        self
    }

    /// A manager that reaches the API server through this proxy.
    pub fn through(self, proxy: &FaultProxy) -> Self {
        self.kubeconfig(proxy.kubeconfig())
    }

    pub fn memory_limit(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.memory_limit = bytes.into();
        self
    }

    /// `None` is the binary that was built with the tests.
    pub fn binary(mut self, binary: Option<PathBuf>) -> Self {
        self.binary = binary;
        self
    }

    /// Starts the manager without waiting.
    pub fn start(self, control_plane: &ControlPlane) -> Result<Manager> {
        Manager::start(control_plane, self)
    }

    /// Starts the manager, and waits until it is ready.
    pub async fn ready(self, control_plane: &ControlPlane) -> Result<Manager> {
        let mut manager = self.start(control_plane)?;
        manager.ready(SOON).await?;
        Ok(manager)
    }
}

// === impl Manager ===

impl Manager {
    /// Starts the manager without waiting; see [`Manager::ready`].
    pub fn start(control_plane: &ControlPlane, options: ManagerOptions) -> Result<Self> {
        let binary = match options.binary {
            Some(binary) => binary,
            None => operator_binary()?,
        };
        let address = options.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let admin = SocketAddr::from((address, port::free_at(address)?));
        let destination = SocketAddr::from((address, port::free_at(address)?));
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = control_plane.directory().join(format!("manager-{number}.log"));
        let kubeconfig = options.kubeconfig.unwrap_or_else(|| control_plane.kubeconfig().to_owned());
        let (subcommand, names) = match options.as_linkerd_destination {
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
        if !options.as_linkerd_destination {
            // Without a Pod it has no default.
            spawn = spawn.args(["--operator-namespace=default"]);
        }
        if let Some(identity) = options.identity {
            spawn = spawn.args(["--leader-election-identity".into(), identity]);
        }
        spawn = spawn.args(options.args);
        spawn.env = options.env;
        spawn.memory_limit = options.memory_limit;
        Ok(Self { process: Process::spawn(spawn)?, admin, destination })
    }

    /// Waits until `/ready` answers 200. Fails immediately when the process ends.
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

    /// Sends a GET request to the admin port.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        get(self.admin, path).await
    }

    /// All samples of `/metrics`.
    pub async fn metrics(&self) -> Result<Vec<Sample>> {
        let (status, body) = self.get("/metrics").await?;
        ensure!(status == StatusCode::OK, "/metrics: {status}");
        Ok(metric::parse(&body))
    }

    /// The sum of the samples with this name and these labels; `None` when no sample matches or the request fails.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        sum(&self.metrics().await.ok()?, name, labels)
    }

    /// Waits until a metric has this value; `None` means that the series does not exist.
    pub async fn counts(&self, metric: &str, labels: &[(&str, &str)], expected: impl Into<Option<f64>>) -> Result<()> {
        let expected = expected.into();
        self.measures(metric, labels, |seen| seen == expected).await.with_context(|| format!("expected {expected:?}"))
    }

    /// Waits until `accepts` returns true for the value of a metric; `None` means that the series does not exist.
    pub async fn measures(
        &self,
        metric: &str,
        labels: &[(&str, &str)],
        accepts: impl Fn(Option<f64>) -> bool,
    ) -> Result<()> {
        eventually(SOON, format_args!("a value of {metric}{labels:?}"), async || {
            let seen = sum(&self.metrics().await?, metric, labels);
            ensure!(accepts(seen), "{seen:?}");
            Ok(())
        })
        .await
    }

    /// Returns whether this manager holds the Lease, according to its own metric.
    pub async fn is_leading(&self, lease: &str) -> bool {
        self.metric("linkerd_operator_leader", &[("lease", lease)]).await == Some(1.0)
    }

    /// Waits until this manager holds the Lease.
    pub async fn leads(&self, lease: &str, deadline: Duration) -> Result<()> {
        eventually(deadline, format_args!("the replica to hold the Lease {lease}"), async || {
            ensure!(self.is_leading(lease).await, "it does not lead");
            Ok(())
        })
        .await
    }

    /// Fails unless `/ready` reports no problem now.
    pub async fn has_no_problem(&self) -> Result<()> {
        let (_, body) = self.get("/ready").await?;
        ensure!(body == "ready\n", "{body}");
        Ok(())
    }

    /// Waits until `/ready` reports no problem.
    pub async fn is_well(&self, deadline: Duration) -> Result<()> {
        eventually(deadline, "/ready to report no problem", async || self.has_no_problem().await).await
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// The address of the Destination API.
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

    /// Waits until the process exits.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.process.wait(timeout).await
    }

    /// Sends SIGTERM and returns the exit status.
    pub async fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(timeout).await
    }

    /// Sends SIGTERM without waiting for the exit.
    pub fn begin_to_terminate(&mut self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Sends SIGKILL, as when the node dies.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.wait(Duration::from_secs(10)).await.map(drop)
    }

    /// Sends SIGSTOP, which suspends the process, as if it had not been scheduled for a long time.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    pub fn resume(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// # Errors
    /// The process has ended.
    pub fn memory(&self) -> Result<Memory> {
        Memory::of_process(self.pid())
    }

    /// The CPU time used so far.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let ticks = cpu_ticks(&stat).context("/proc/PID/stat has an unexpected format")?;
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

/// The sum of the samples with this name and these labels; `None` when no sample matches.
fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let samples = samples.iter().filter(|sample| sample.name == name && sample.has(labels));
    samples.map(|sample| sample.value).reduce(|sum, value| sum + value)
}

async fn get(admin: SocketAddr, path: &str) -> Result<(StatusCode, String)> {
    let (status, body) = plain_http::request(admin, Method::GET, path, "", ADMIN_DEADLINE).await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// User plus system time. They follow the process name in parentheses, which may contain any character.
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
    fn the_cpu_time_of_a_process_is_read_for_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 31 12 0 0 20 0 4 0 100 0 0";
        assert_eq!(cpu_ticks(stat), Some(43));
    }
}
