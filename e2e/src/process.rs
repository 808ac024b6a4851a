//! A child process that cannot outlive this process: it runs under the `supervisor`, which ends it when our end of a
//! pipe closes.
//!
//! * In: a command, and the file for its output.
//! * Out: its process id, signals sent to it, its exit status, its log.
//! * Always: dropping a [`Process`] ends its whole process group before the drop returns (within the grace period plus
//!   seconds), and so does the end of this process, however it happens. It does not depend on an async runtime.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::{
    process::{Pid, kill_process},
    thread::{CpuSet, sched_setaffinity},
};

use crate::executable::beside_this_executable;

pub use rustix::process::Signal;

const START_DEADLINE: Duration = Duration::from_secs(45);
/// Variables of the caller's environment that would change a child's behavior, and so the result of a test.
const NOT_INHERITED: [&str; 13] = [
    "KUBECONFIG",
    "RUST_LOG",
    "HOSTNAME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
];

/// A command to run.
pub struct Spawn {
    /// The name used in messages.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(String, String)>,
    /// The file to which the output is appended.
    pub log: PathBuf,
    /// The time from SIGTERM to SIGKILL when the process is dropped; zero kills immediately.
    pub grace: Duration,
    /// A directory to remove after the process was ended by a drop.
    pub remove: Option<PathBuf>,
    /// The most memory in bytes that the process can use: beyond it, the kernel kills it, as in a container. Where this
    /// process may not make control groups, it is the most that it can map (`RLIMIT_DATA`).
    pub memory_limit: Option<u64>,
}

impl Spawn {
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: log.into(),
            grace: Duration::from_secs(5),
            remove: None,
            memory_limit: None,
        }
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }
}

/// Pins all threads of a process, and their future children, to one core.
pub fn pin_to_core(pid: u32, core: usize) -> Result<()> {
    pin_to_cores(pid, &[core])
}

/// As [`pin_to_core`], to any of several cores.
pub fn pin_to_cores(pid: u32, allowed: &[usize]) -> Result<()> {
    let mut cores = CpuSet::new();
    allowed.iter().for_each(|core| cores.set(*core));
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let id: i32 = thread?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(id), &cores)
            .with_context(|| format!("cannot pin process {pid} to the cores {allowed:?}"))?;
    }
    Ok(())
}

/// A running (or ended) child.
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    grace: Duration,
    supervisor: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    pub fn spawn(spawn: Spawn) -> Result<Self> {
        let Spawn { name, program, args, env, log, grace, remove, memory_limit } = spawn;
        let supervisor_path = beside_this_executable("supervisor", "E2E_SUPERVISOR")?;
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let output = open().with_context(|| format!("opening {}", log.display()))?;
        let mut command = Command::new(supervisor_path);
        command.arg("--grace").arg(grace.as_secs_f64().to_string());
        if let Some(directory) = remove {
            command.arg("--remove").arg(directory);
        }
        if let Some(bytes) = memory_limit {
            command.arg("--memory-limit").arg(bytes.to_string());
        }
        command.arg("--").arg(&program).args(args);
        for variable in NOT_INHERITED {
            command.env_remove(variable);
        }
        // In a separate process group; otherwise Ctrl-C would end the supervisor before it could end its child.
        command.envs(env).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(output);
        let mut supervisor = command.spawn().context("starting the supervisor")?;
        let pid = supervisor.stdout.take().context("the supervisor has no output").and_then(read_pid);
        match pid {
            Ok(pid) => Ok(Self { name, pid, log, grace, supervisor, ended: None }),
            Err(error) => {
                drop(supervisor.stdin.take());
                let _ = wait_until(&mut supervisor, Instant::now() + Duration::from_secs(5));
                let _ = supervisor.kill();
                Err(error.context(format!("starting {name} ({}): {}", program.display(), tail(&log, 5))))
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id of the command itself, not of its supervisor.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Sends a signal to the command alone, not to its group.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        ensure!(self.is_running(), "{} is not running", self.name);
        kill_process(self.pid, signal).with_context(|| format!("signalling {}", self.name))?;
        if signal == Signal::STOP { self.stopped() } else { Ok(()) }
    }

    /// Waits until SIGSTOP takes effect: otherwise a signal sent shortly after it may overtake it.
    fn stopped(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(5);
        while self.is_running() && Instant::now() < end {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
            if stat.contains(") T ") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("{} did not stop", self.name)
    }

    pub fn is_running(&mut self) -> bool {
        self.exit_status().is_none()
    }

    /// `None` while it runs. A command ended by signal N has the exit code 128 + N.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.supervisor.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until the process exits.
    pub async fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exit_status() {
                return Ok(status);
            }
            if Instant::now() >= end {
                bail!("{} is still running after {timeout:?}; its log ends with:\n{}", self.name, self.log_tail(20));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The complete output so far.
    pub fn log(&self) -> String {
        read_lossy(&self.log)
    }

    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }

    /// Ends the process group: SIGTERM, the grace period, SIGKILL. Blocks for that time plus some seconds at most.
    pub fn end(&mut self) {
        drop(self.supervisor.stdin.take());
        if self.ended.is_none() {
            self.ended = wait_until(&mut self.supervisor, Instant::now() + self.grace + Duration::from_secs(15));
        }
    }

    /// Closes the pipe without waiting, so that several processes can end concurrently.
    pub(crate) fn begin_end(&mut self) {
        drop(self.supervisor.stdin.take());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads the first line. A thread is required, because reads from a pipe have no timeout.
fn read_pid(output: ChildStdout) -> Result<Pid> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let line = receiver.recv_timeout(START_DEADLINE).context("the supervisor printed no process id in time")??;
    let id: i32 = line.trim().parse().map_err(|_| anyhow!("the command did not start"))?;
    Pid::from_raw(id).context("the supervisor printed an invalid process id")
}

fn wait_until(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn read_lossy(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let _ = std::io::Read::read_to_end(&mut file, &mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tail(path: &Path, lines: usize) -> String {
    let text = read_lossy(path);
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}
