//! Parses command lines as the process does.

use std::ffi::OsString;

use clap::Parser;

use super::{Args, Exit, ManagerArgs, Task, rewritten};

/// Returns the task of a process with these arguments, or its exit.
pub(super) fn run(args: &[&str]) -> Result<Task, Exit> {
    let args = std::iter::once("linkerd-operator").chain(args.iter().copied());
    match Args::try_parse_from(rewritten(args.map(OsString::from))) {
        Ok(args) => args.task(),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn task(args: &[&str]) -> Result<Task, String> {
    run(args).map_err(|exit| exit.text)
}

/// Returns the settings of a manager with these flags.
pub(super) fn manager(flags: &[&str]) -> Result<ManagerArgs, String> {
    command(&[&["manager"], flags].concat())
}

/// Returns the settings of the manager that a command with its flags runs.
pub(super) fn command(flags: &[&str]) -> Result<ManagerArgs, String> {
    match task(flags)? {
        Task::Manager(args) => Ok(*args),
        other => panic!("{flags:?} were parsed as {other:?}"),
    }
}
