//! `supervisor [--grace SECONDS] [--remove DIR] [--memory-limit BYTES] -- COMMAND [ARG]...`
//!
//! Runs one command in a separate process group, and never outlives its parent: standard input is a pipe whose other
//! end the parent holds. When it is closed, because the parent closed it or died in any way, the whole group is ended.
//!
//! * In: the pipe; SIGTERM, SIGINT and SIGHUP have the same effect.
//! * Out: the command's process id on the first line of standard output; the command's exit status (128 + N after
//!   signal N).
//! * Always: when this process ends, no process of the group is left; after the pipe was closed, DIR has been removed.

use std::{
    io::{Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{sleep, timeout},
};

use crate::memory::MemoryLimit;

mod memory;

struct Arguments {
    grace: Duration,
    remove: Option<PathBuf>,
    memory_limit: Option<u64>,
    command: Vec<String>,
}

fn main() {
    match run() {
        // `exit` instead of a return: the thread that reads the pipe may be blocked as long as the parent lives.
        Ok(code) => std::process::exit(code),
        Err(error) => {
            eprintln!("supervisor: {error:#}");
            std::process::exit(127);
        }
    }
}

fn run() -> Result<i32> {
    let arguments = parse(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(supervise(&arguments))?;
    // The runtime must not wait for that thread either.
    runtime.shutdown_background();
    Ok(code)
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments> {
    let mut arguments =
        Arguments { grace: Duration::from_secs(5), remove: None, memory_limit: None, command: Vec::new() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--grace" => {
                let seconds = words.next().context("--grace needs seconds")?;
                arguments.grace = Duration::try_from_secs_f64(seconds.parse()?)?;
            }
            "--remove" => {
                arguments.remove = Some(words.next().context("--remove needs a directory")?.into());
            }
            "--memory-limit" => {
                arguments.memory_limit = Some(words.next().context("--memory-limit needs bytes")?.parse()?);
            }
            "--" => arguments.command = words.by_ref().collect(),
            other => bail!("unknown argument {other}"),
        }
    }
    Ok(arguments)
}

async fn supervise(arguments: &Arguments) -> Result<i32> {
    // Handlers are installed before the command starts, so that no signal has its default action while a child runs.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let parent_closed = watch_parent();

    let (program, rest) = arguments.command.split_first().context("no command after --")?;
    // The command inherits it. It is dropped when no process of the command is left.
    let limit = arguments.memory_limit.map(MemoryLimit::enter).transpose().context("limiting the memory")?;
    let mut command = std::process::Command::new(program);
    command.args(rest).process_group(0).stdin(std::process::Stdio::null());
    // The command's output goes to our standard error, because standard output contains only the process id.
    command.stdout(std::io::stderr());
    let mut child = Command::from(command).spawn().with_context(|| format!("starting {program}"))?;
    if let Some(limit) = &limit {
        limit.leave().context("leaving the control group of the command")?;
    }
    let group = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
        .context("the command has no process id")?;
    // A parent that has died already is detected through the pipe.
    let _ = writeln!(std::io::stdout(), "{}", group.as_raw_nonzero()).and_then(|()| std::io::stdout().flush());

    tokio::select! {
        status = child.wait() => {
            // Processes that the command left in its group are killed.
            let _ = kill_process_group(group, Signal::KILL);
            return Ok(code(status?));
        }
        _ = parent_closed => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
    let code = end(&mut child, group, arguments.grace).await;
    if let Some(directory) = &arguments.remove {
        remove(directory).await;
    }
    Ok(code)
}

/// Resolves when the parent's end of the pipe is closed.
fn watch_parent() -> oneshot::Receiver<()> {
    let (closed, parent_closed) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while !matches!(std::io::stdin().read(&mut buffer), Ok(0) | Err(_)) {}
        let _ = closed.send(());
    });
    parent_closed
}

async fn end(child: &mut Child, group: Pid, grace: Duration) -> i32 {
    if !grace.is_zero() {
        let _ = kill_process_group(group, Signal::TERM);
        // A suspended process handles the signal only after it continues.
        let _ = kill_process_group(group, Signal::CONT);
        let _ = timeout(grace, child.wait()).await;
    }
    let _ = kill_process_group(group, Signal::KILL);
    match timeout(Duration::from_secs(10), child.wait()).await {
        Ok(Ok(status)) => code(status),
        _ => 128 + 9,
    }
}

/// Retries, because other ending processes may still write into the directory.
async fn remove(directory: &Path) {
    for _ in 0..50 {
        let _ = std::fs::remove_dir_all(directory);
        if !directory.exists() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
