//! The operator's commands, run as a user runs them.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::executable::operator_binary;

/// The exit code and the output of a finished command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

// === impl Ended ===

impl Ended {
    /// Runs the operator's binary with these arguments, without the kubeconfig of the environment.
    ///
    /// # Errors
    /// Fails if the command does not end in time, or prints what is not UTF-8.
    pub async fn operator(args: &[&str], deadline: Duration) -> Result<Self> {
        let mut command = Command::new(operator_binary()?);
        command.args(args).env_remove("KUBECONFIG");
        Self::of(command, deadline).await
    }

    /// Runs a command without input.
    ///
    /// # Errors
    /// Fails if the command does not end in time, or prints what is not UTF-8.
    pub async fn of(mut command: Command, deadline: Duration) -> Result<Self> {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output =
            timeout(deadline, command.output()).await.with_context(|| format!("{command:?} did not end"))??;
        let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        Ok(Self { code: output.status.code(), stdout, stderr })
    }

    /// Returns stdout.
    ///
    /// # Errors
    /// Fails with the whole output if the command failed.
    pub fn succeeded(self) -> Result<String> {
        ensure!(self.code == Some(0), "{}{}", self.stdout, self.stderr.trim());
        Ok(self.stdout)
    }

    /// Fails unless stdout contains all of these.
    ///
    /// # Errors
    /// Names the first part that is missing, with the whole output.
    pub fn has(&self, parts: &[&str]) -> Result<()> {
        for part in parts {
            ensure!(self.stdout.contains(part), "no {part:?} in:\n{}{}", self.stdout, self.stderr);
        }
        Ok(())
    }

    /// Returns the document on stdout.
    ///
    /// # Errors
    /// Fails with the whole output if it is not JSON.
    pub fn document(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("{}{}", self.stdout, self.stderr))
    }
}
