//! The documents that Linkerd's installers write to the ConfigMap `linkerd-config`.
//!
//! * In: the path of Linkerd's charts, or of its CLI. Out: the text under `values`.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use e2e::{binaries::Binaries, injector::reviews::INSTALLED};
use serde_json::{Value, json};

/// A document, and the program that rendered it.
pub(super) struct InstallerDocument {
    pub(super) from: &'static str,
    pub(super) text: String,
}

/// Renders the chart `linkerd-control-plane` in this directory of charts.
pub(super) fn of_chart(charts: &Path) -> Result<InstallerDocument> {
    let helm = Binaries::find_or_build_helm()?.tool("helm4")?;
    let directory = tempfile::tempdir()?;
    let chart = directory.path().join("linkerd-control-plane");
    copy(&charts.join("linkerd-control-plane"), &chart)?;
    copy(&charts.join("partials"), &chart.join("charts/partials"))?;
    let installed: Value = serde_yaml::from_str(INSTALLED)?;
    let anchors = installed.get("identityTrustAnchorsPEM").context("no trust anchors")?;
    // The sources of the chart have no version. The issuer's certificate is not part of the document's use.
    let values = json!({
        "linkerdVersion": installed.get("linkerdVersion"),
        "identityTrustAnchorsPEM": anchors,
        "identity": {"issuer": {"tls": {"crtPEM": anchors, "keyPEM": "none"}}},
    });
    let file = directory.path().join("values.json");
    fs::write(&file, values.to_string())?;
    let mut command = Command::new(helm);
    command.args(["template", "linkerd-control-plane", "--namespace=linkerd"]).arg(&chart).arg("--values").arg(&file);
    // Helm must not read the user's settings.
    command.env_clear().env("HOME", directory.path());
    Ok(InstallerDocument { from: "the chart", text: values_of(&output(command)?)? })
}

/// Renders with `linkerd install`.
pub(super) fn of_cli(cli: &Path) -> Result<InstallerDocument> {
    let mut command = Command::new(cli);
    command.args(["install", "--ignore-cluster"]);
    Ok(InstallerDocument { from: "`linkerd install`", text: values_of(&output(command)?)? })
}

fn output(mut command: Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8(stdout)?)
}

/// Returns the text under `values` of the ConfigMap in a manifest.
fn values_of(manifest: &str) -> Result<String> {
    let (_, after) = manifest.split_once("\n  values: |\n").context("the manifest has no values")?;
    let lines = after.lines().map_while(|line| if line.is_empty() { Some("") } else { line.strip_prefix("    ") });
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_end_where_the_indentation_ends() {
        let manifest = "data:\n  other: a\n  values: |\n    a: |\n      b\n\n    c: 1\n---\nkind: Role\n";
        assert_eq!(values_of(manifest).unwrap(), "a: |\n  b\n\nc: 1\n");
        assert!(values_of("data: {}\n").is_err());
    }
}
