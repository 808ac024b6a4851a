//! Parses command lines as the process does.

use std::ffi::OsString;

use clap::Parser;

use super::{Args, Exit, ManagerArgs, Task, rewritten};

/// Returns the task of a process with these arguments, or its exit.
pub(super) fn run(args: &[&str]) -> Result<Task, Exit> {
    let args = std::iter::once("linkerd-operator").chain(args.iter().copied());
    match Args::try_parse_from(rewritten(args.map(OsString::from))) {
        Ok(args) => args.task(),
        Err(error) => Err(Exit {
            code: u8::try_from(error.exit_code()).unwrap(),
            text: error.to_string(),
            is_error: error.use_stderr(),
        }),
    }
}

pub(super) fn task(args: &[&str]) -> Result<Task, String> {
    run(args).map_err(|exit| exit.text)
}

pub(super) fn manager(args: &[&str]) -> Result<ManagerArgs, String> {
    match task(args)? {
        Task::Manager(args) => Ok(*args),
        other => panic!("{args:?} were parsed as {other:?}"),
    }
}
