//! The real Helm, versions 3 and 4, and kubectl apply of what Helm renders. The chart renders Linkerd's ConfigMap from
//! the values [`HELM`](super::HELM).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{Manager, binaries::Binaries, command::Ended};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{FINALIZER, Installation, OPERATOR, WELL, put_over};

const DEADLINE: Duration = Duration::from_secs(60);
const RELEASE: &str = "linkerd-control-plane";

/// One version of Helm, and the installation that it installs Linkerd's configuration into.
struct HelmInstallation {
    binary: PathBuf,
    installation: Installation,
}

impl HelmInstallation {
    async fn new(version: &str) -> Result<Self> {
        let binary = Self::binary(version).await?;
        let installation = Installation::empty().await?;
        installation.put_trust_roots(&installation.base_anchors().await?).await?;
        Ok(Self { binary, installation })
    }

    async fn binary(version: &str) -> Result<PathBuf> {
        tokio::task::spawn_blocking(Binaries::find_or_build_helm).await??.tool(version)
    }

    /// Runs `helm VERB linkerd-control-plane …`, with the chart and its values if the verb needs them.
    async fn run(&self, verb: &str, args: &[&str]) -> Result<String> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("helm/chart");
        let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/values/testdata/installed.yaml");
        let mut command = tokio::process::Command::new(&self.binary);
        command.args([verb, RELEASE, "--namespace", &self.installation.namespace]);
        if ["install", "upgrade", "template"].contains(&verb) {
            command.arg(chart).arg("--values").arg(values);
        }
        let cluster = &self.installation.control_plane;
        command.args(args).env_clear().env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.directory());
        let Ended { code, stdout, stderr } = Ended::of(command, DEADLINE).await?;
        ensure!(code == Some(0), "helm {verb} {}: {}", args.join(" "), stderr.trim());
        Ok(stdout)
    }

    /// Expects that Helm fails because the operator owns the document. Returns its error.
    async fn conflicts(&self, verb: &str, args: &[&str]) -> Result<String> {
        let before = self.installation.text().await?;
        let Err(error) = self.run(verb, args).await else { bail!("helm {verb} succeeded") };
        let error = error.to_string();
        for part in ["conflict", OPERATOR, ".data.values"] {
            ensure!(error.contains(part), "{part} is missing in: {error}");
        }
        ensure!(self.installation.text().await? == before, "the failed helm {verb} changed the document");
        Ok(error)
    }

    /// Installs the chart, and declares an access log. Returns the document that Helm installed.
    async fn adopted(&self) -> Result<(Manager, String)> {
        self.run("install", &[]).await?;
        let base = self.installation.text().await?;
        let manager = self.installation.manager().await?;
        let spec = json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"});
        self.installation.declare("mesh", spec).await?;
        self.is_declared_over(&base).await?;
        Ok((manager, base))
    }

    /// Waits until the ConfigMap has the access log over this document, and the resource is well: not stalled.
    async fn is_declared_over(&self, base: &str) -> Result<()> {
        self.installation.document_is(&self.installation.with_access_log(base).await?).await?;
        self.installation.reaches("mesh", &WELL).await?;
        Ok(())
    }

    /// The document that Helm renders with this value set.
    async fn rendered(&self, set: &str) -> Result<String> {
        let manifest = self.run("template", &["--set", set]).await?;
        let (_, values) = manifest.split_once("  values: |\n").context("the manifest has no values")?;
        let lines = values.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
        Ok(lines.map(|line| format!("{line}\n")).collect())
    }

    /// The release is deleted before the resource, which restores the base on deletion: its finalizer must not wait.
    async fn is_uninstalled(&self) -> Result<()> {
        self.run("uninstall", &[]).await?;
        self.installation.reaches("mesh", &["Accepted=False/TargetNotFound", "Ready=False/TargetNotFound"]).await?;
        assert_eq!(self.installation.finalizers("mesh").await?, [FINALIZER]);
        self.installation.delete_and_wait("mesh").await
    }

    async fn saw_no_drift(&self) -> Result<()> {
        for reason in ["DriftDetected", "DriftReverted", "InstallerReverts"] {
            assert_eq!(self.installation.event_count("mesh", reason).await?, 0, "{reason}");
        }
        Ok(())
    }
}

/// An upgrade and a rollback with server-side apply, which is the default of Helm 4.
#[tokio::test(flavor = "multi_thread")]
async fn helm_4_needs_force_conflicts_and_its_upgrade_and_rollback_keep_the_overlay() -> Result<()> {
    let helm = HelmInstallation::new("helm4").await?;
    let (_manager, base) = helm.adopted().await?;
    let uid = helm.installation.map().await?.uid();
    let set = ["--set", "proxy.logFormat=json"];
    let error = helm.conflicts("upgrade", &set).await?;
    println!("{error}");
    helm.is_declared_over(&base).await?;

    helm.run("upgrade", &[&set[..], &["--force-conflicts"]].concat()).await?;
    let upgraded = helm.rendered("proxy.logFormat=json").await?;
    ensure!(upgraded != base, "the upgrade changes nothing");
    helm.is_declared_over(&upgraded).await?;
    helm.installation.expect_event("mesh", "BaseUpdated").await?;
    assert_eq!(helm.installation.bases().await?, [base.clone(), upgraded.clone()]);
    // The same document again, as of a scheduled pipeline, is not a new base.
    helm.run("upgrade", &[&set[..], &["--force-conflicts"]].concat()).await?;
    helm.is_declared_over(&upgraded).await?;
    assert_eq!(helm.installation.bases().await?, [base.clone(), upgraded.clone()]);

    helm.conflicts("rollback", &["1"]).await?;
    helm.run("rollback", &["1", "--force-conflicts"]).await?;
    helm.is_declared_over(&base).await?;
    assert_eq!(helm.installation.bases().await?, [base.clone(), upgraded, base]);
    assert_eq!(helm.installation.map().await?.uid(), uid);
    helm.saw_no_drift().await?;
    helm.is_uninstalled().await
}

/// Helm 3 merges on the client, so it never conflicts.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_and_a_rollback_by_helm_3_keep_the_overlay() -> Result<()> {
    let helm = HelmInstallation::new("helm3").await?;
    let (_manager, base) = helm.adopted().await?;
    helm.run("upgrade", &["--set", "proxy.logFormat=json"]).await?;
    let upgraded = helm.rendered("proxy.logFormat=json").await?;
    helm.is_declared_over(&upgraded).await?;
    assert_eq!(helm.installation.bases().await?, [base.clone(), upgraded.clone()]);
    helm.run("rollback", &["1"]).await?;
    helm.is_declared_over(&base).await?;
    assert_eq!(helm.installation.bases().await?, [base.clone(), upgraded, base]);
    helm.saw_no_drift().await?;
    helm.is_uninstalled().await
}

/// Helm 4 keeps the method of a release that Helm 3 installed, unless `--server-side` says otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn helm_4_upgrades_a_release_of_helm_3_without_a_conflict() -> Result<()> {
    let mut helm = HelmInstallation::new("helm3").await?;
    let (_manager, base) = helm.adopted().await?;
    helm.binary = HelmInstallation::binary("helm4").await?;
    helm.run("upgrade", &["--set", "proxy.logFormat=json"]).await?;
    let upgraded = helm.rendered("proxy.logFormat=json").await?;
    helm.is_declared_over(&upgraded).await?;
    assert_eq!(helm.installation.bases().await?, [base, upgraded]);
    helm.conflicts("upgrade", &["--set", "proxy.logFormat=plain", "--server-side=true"]).await?;
    helm.saw_no_drift().await?;
    Ok(())
}

/// After the deletion of the resource, the next upgrade is as before the adoption.
#[tokio::test(flavor = "multi_thread")]
async fn after_restore_base_helm_4_needs_force_conflicts_once() -> Result<()> {
    let helm = HelmInstallation::new("helm4").await?;
    let (_manager, base) = helm.adopted().await?;
    helm.installation.delete_and_wait("mesh").await?;
    assert_eq!(helm.installation.text().await?, base);
    helm.conflicts("upgrade", &["--set", "proxy.logFormat=json"]).await?;
    helm.run("upgrade", &["--set", "proxy.logFormat=json", "--force-conflicts"]).await?;
    helm.run("upgrade", &["--set", "proxy.logFormat=plain"]).await?;
    assert_eq!(helm.installation.text().await?, base);
    Ok(())
}

/// `linkerd upgrade | kubectl apply` does the same: kubectl applies rendered manifests. The version stays the same, so
/// that neither `linkerd.io/created-by` nor `cliVersion` identifies the installer.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_apply_of_a_rendered_chart_is_an_installation_and_of_an_edited_copy_is_drift() -> Result<()> {
    let helm = HelmInstallation::new("helm4").await?;
    let (_manager, base) = helm.adopted().await?;
    let installation = &helm.installation;
    let file = installation.control_plane.directory().join(format!("{}.yaml", installation.namespace));
    let path = file.display().to_string();
    let mut expected = vec![base];
    for (format, server_side) in [("json", &["--server-side", "--force-conflicts"][..]), ("plain", &[])] {
        let set = format!("proxy.logFormat={format}");
        let apply = [&["apply", "--namespace", &installation.namespace, "--filename", &path], server_side].concat();
        tokio::fs::write(&file, helm.run("template", &["--set", &set]).await?).await?;
        installation.control_plane.kubectl(&apply).await?;
        expected.push(helm.rendered(&set).await?);
        helm.is_declared_over(expected.last().context("no base")?).await?;
        assert_eq!(installation.bases().await?, expected, "{server_side:?}");
        assert_eq!(installation.event_count("mesh", "DriftDetected").await?, 0, "{server_side:?}");
    }

    // A person reads the ConfigMap, edits the copy, and applies it.
    let mut copy = serde_json::to_value(installation.map().await?)?;
    let mut document = installation.parse(&installation.text().await?).await?;
    put_over(&mut document, &json!({"proxy": {"logLevel": "debug"}}));
    copy["apiVersion"] = json!("v1");
    copy["kind"] = json!("ConfigMap");
    copy["data"]["values"] = json!(serde_json::to_string_pretty(&document)?);
    copy["metadata"]["managedFields"] = Value::Null;
    copy["metadata"]["resourceVersion"] = Value::Null;
    for (number, server_side) in (1..).zip([&["--server-side", "--force-conflicts"][..], &[]]) {
        let apply = [&["apply", "--namespace", &installation.namespace, "--filename", &path], server_side].concat();
        tokio::fs::write(&file, copy.to_string()).await?;
        installation.control_plane.kubectl(&apply).await?;
        helm.is_declared_over(expected.last().context("no base")?).await?;
        assert_eq!(installation.bases().await?, expected, "{server_side:?}");
        assert_eq!(installation.reports_drifts("mesh", number).await?["drift"]["paths"], json!(["proxy.logLevel"]));
    }
    Ok(())
}
