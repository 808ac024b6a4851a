//! `linkerd-operator version` prints the version of this binary.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args as ClapArgs;
use serde::Serialize;

use super::{OutputFormat, terminal::write};
use crate::version::{BUILD_DATE, COMMIT, VERSION, whole};

#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct VersionArgs {
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,
}

/// The output of `-o json` and `-o yaml`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionOutput {
    version: &'static str,
    commit: &'static str,
    build_date: &'static str,
}

pub(super) fn version(args: VersionArgs) -> Result<ExitCode> {
    let output = VersionOutput { version: VERSION, commit: COMMIT, build_date: BUILD_DATE };
    write(&args.output.print(&output, || format!("linkerd-operator {}\n", whole()))?)?;
    Ok(ExitCode::SUCCESS)
}
