//! What all reports of measurements have: the properties of the host and of the measured software, and a file.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::{executable::operator_binary, shipped::in_repository};

/// The processor, the kernel, the date, the commit, the version of the operator and the profile of this program.
pub fn properties() -> Map<String, Value> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The checked-out commit, with `-dirty` if the working tree differs from it.
    let commit = output(Command::new("git").args(["describe", "--always", "--exclude=*", "--dirty"]));
    // The version of the measured binary, which may be from another build.
    let operator = operator_binary().ok().and_then(|binary| output(Command::new(binary).arg("--version")));
    [
        ("cpu", json!(model.unwrap_or("unknown"))),
        // All cores of the host, although this process may be pinned to one.
        ("cores", json!(cpu.lines().filter(|line| line.starts_with("processor")).count())),
        ("kernel", json!(kernel.trim())),
        ("date", json!(k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%d").to_string())),
        ("commit", json!(commit.as_deref().unwrap_or("unknown"))),
        ("operator", json!(operator.as_deref().unwrap_or("unknown"))),
        ("profile of this program", json!(if cfg!(debug_assertions) { "debug" } else { "release" })),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes a report to this file in the repository's folder `target`.
///
/// # Errors
/// Fails when the file cannot be written.
pub fn write(file: &str, report: &Value) -> Result<()> {
    let path = in_repository("target");
    let directory = Path::new(&path);
    // Cargo's own directory may be another one.
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    fs::write(directory.join(file), report.to_string()).with_context(|| format!("writing target/{file}"))?;
    println!("\nAll samples are in target/{file}.");
    Ok(())
}
