//! The Helm charts, with the real Helm, versions 3 and 4: what they render, compared with kustomize, and what a release
//! does to a cluster.

mod compared;
mod lifecycle;
mod permissions;
mod rendered;
mod test_hook;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, binaries::Binaries, command::Ended, shipped::in_repository};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

/// Longer than a Pod of the releases waits.
const DEADLINE: Duration = Duration::from_secs(150);
pub(crate) const OPERATOR: &str = "linkerd-operator";
pub(crate) const CRDS: &str = "linkerd-operator-crds";
pub(crate) const VERSIONS: [&str; 2] = ["helm3", "helm4"];
/// The image of the kustomizations.
const IMAGE: [&str; 2] = ["image.repository=linkerd-operator", "image.tag=dev"];

/// One version of Helm, for a cluster.
pub(crate) struct Helm<'a> {
    binary: PathBuf,
    control_plane: &'a ControlPlane,
}

// === impl Helm ===

impl<'a> Helm<'a> {
    pub(crate) async fn new(version: &str, control_plane: &'a ControlPlane) -> Result<Self> {
        let binary = tokio::task::spawn_blocking(Binaries::find_or_build_helm).await??.tool(version)?;
        Ok(Self { binary, control_plane })
    }

    pub(crate) async fn output(&self, args: &[&str]) -> Result<Ended> {
        let mut command = Command::new(&self.binary);
        command.args(args).env_clear().env("KUBECONFIG", self.control_plane.kubeconfig());
        command.env("HOME", self.control_plane.directory());
        Ended::of(command, DEADLINE).await
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Result<String> {
        let Ended { code, stdout, stderr } = self.output(args).await?;
        ensure!(code == Some(0), "helm {}: {}", args.join(" "), stderr.trim());
        Ok(stdout)
    }

    /// Expects that Helm fails. Returns its stderr.
    async fn fails(&self, args: &[&str]) -> Result<String> {
        let Ended { code, stderr, .. } = self.output(args).await?;
        ensure!(code != Some(0), "helm {} succeeded", args.join(" "));
        Ok(stderr)
    }

    /// The manifest of a chart with these values. The version of Kubernetes is explicit, because `helm template` has no
    /// cluster.
    async fn manifest(&self, chart: &str, namespace: &str, values: &[&str]) -> Result<String> {
        let chart = path(chart);
        let mut args = vec!["template", OPERATOR, &chart, "--namespace", namespace, "--kube-version=v1.36.3"];
        args.extend(values.iter().flat_map(|value| ["--set", value]));
        self.run(&args).await
    }

    async fn template(&self, chart: &str, namespace: &str, values: &[&str]) -> Result<Vec<Value>> {
        objects(&self.manifest(chart, namespace, values).await?)
    }
}

/// The path of a chart of the repository.
pub(crate) fn path(chart: &str) -> String {
    in_repository(&format!("charts/{chart}"))
}

fn objects(manifest: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(manifest).map(Value::deserialize);
    let objects: Vec<_> = documents.collect::<Result<_, _>>().context("Helm rendered invalid YAML")?;
    Ok(objects.into_iter().filter(|object| !object.is_null()).collect())
}

/// Writes a copy of a chart with another version, and an image of that version.
async fn copy(chart: &str, version: &str, folder: &Path) -> Result<String> {
    let copy = folder.join(format!("{chart}-{version}"));
    let output = Command::new("cp").arg("-r").arg(path(chart)).arg(&copy).output().await?;
    ensure!(output.status.success(), "cp: {}", String::from_utf8_lossy(&output.stderr));
    let file = copy.join("Chart.yaml");
    let text = tokio::fs::read_to_string(&file).await?;
    let line = |line: &str| match line.split_once(": ") {
        Some((key @ ("version" | "appVersion"), _)) => format!("{key}: {version}\n"),
        _ => format!("{line}\n"),
    };
    tokio::fs::write(&file, text.lines().map(line).collect::<String>()).await?;
    Ok(copy.display().to_string())
}
