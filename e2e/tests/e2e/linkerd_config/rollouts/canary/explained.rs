//! `linkerd-operator explain` during a canary, and after one failed.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{command::Ended, workload::NEVER_READY};
use k8s_openapi::jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use super::{Canary, text};

impl Canary {
    /// Runs the command for these arguments. Returns its exit code and its output.
    async fn explain(&self, args: &[&str]) -> Result<(Option<i32>, String)> {
        let kubeconfig = self.mesh.installation.control_plane.kubeconfig().display().to_string();
        let args = [&["explain"], args, &["--kubeconfig", &kubeconfig]].concat();
        let Ended { code, stdout, stderr } = Ended::operator(&args, Duration::from_secs(30)).await?;
        ensure!(stderr.is_empty(), "{stderr}");
        Ok((code, stdout))
    }

    /// The resource with this merged into its spec, as a manifest in a file.
    async fn manifest(&self, directory: &Path, over: Value) -> Result<String> {
        let name = self.mesh.installation.full("mesh");
        let mut spec = self.mesh.installation.configs.get(&name).await?.data["spec"].take();
        super::put_over(&mut spec, &over);
        let object = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": {"name": name}, "spec": spec});
        let path = directory.join("manifest.json");
        tokio::fs::write(&path, object.to_string()).await?;
        Ok(path.display().to_string())
    }
}

fn line<'a>(output: &'a str, name: &str) -> Result<&'a str> {
    let found = output.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    found.map(str::trim).with_context(|| format!("no line {name} in {output}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_who_has_the_configuration_of_a_canary_and_what_promotes_it() -> Result<()> {
    let canary = Canary::adopted(json!({"canary": {"soak": "1h"}, "rollout": {"progressDeadline": "3s"}})).await?;
    let (name, app) = (canary.mesh.installation.full("mesh"), &canary.mesh.app);
    canary.mesh.configure(1).await?;
    let soaking = canary.is("Soaking").await?;
    let since = text(&soaking["since"])?;
    let command = format!("linkerd-operator rollout promote {name}");

    let (code, output) = canary.explain(&[&name]).await?;
    assert_eq!(code, Some(0), "{output}");
    let verdict = "Canary: 1 value would change for all namespaces once promoted";
    assert_eq!(line(&output, "Verdict")?, verdict);
    assert_eq!(line(&output, "Canary")?, format!("Soaking since {since}: {}", text(&soaking["message"])?));
    let pods =
        format!("only new Pods in {app} get: proxy.ports.inbound 5001; all other namespaces have the values in LIVE");
    assert_eq!(line(&output, "Canary Pods")?, pods);
    let ends = since.parse::<Timestamp>()?.checked_add(1.hour())?;
    assert_eq!(line(&output, "Promotion")?, format!("automatic, not before {ends}; at once with: {command}"));
    assert_eq!(line(&output, "New Pods")?, "no change before the configuration is promoted");
    assert_eq!(canary.explain(&[&name, "--exit-code"]).await?.0, Some(1));
    let workloads = canary.explain(&[&name, "--workloads"]).await?.1;
    for workload in [&canary.first, &canary.rest] {
        let row = workloads.lines().find(|line| line.split_whitespace().any(|word| word == workload.name()));
        assert!(row.is_some_and(|row| row.contains("UpToDate")), "{workloads}");
    }
    let report: Value = serde_json::from_str(&canary.explain(&[&name, "-o", "json"]).await?.1)?;
    assert_eq!(report["reason"], "Canary");
    for (field, expected) in [
        ("phase", json!("Soaking")),
        ("active", json!(true)),
        ("hash", soaking["hash"].clone()),
        ("since", soaking["since"].clone()),
        ("namespaces", json!([app])),
        ("soaksUntil", json!(ends.to_string())),
        ("promoteCommand", json!(command)),
        ("changes", json!([{"path": "proxy.ports.inbound", "value": 5001}])),
    ] {
        assert_eq!(report["canary"][field], expected, "{field}");
    }

    // The resource as a manifest has the same canary, and a changed manifest would begin another one.
    let directory = tempfile::tempdir()?;
    let same = canary.manifest(directory.path(), json!({})).await?;
    assert_eq!(line(&canary.explain(&["-f", &same]).await?.1, "Canary Pods")?, pods);
    let other = canary.manifest(directory.path(), json!({"proxy": {"inboundPort": 5002}})).await?;
    let (_, output) = canary.explain(&["-f", &other]).await?;
    assert!(line(&output, "Canary")?.starts_with("not begun: "), "{output}");
    assert!(
        line(&output, "Canary Pods")?.starts_with("their new Pods would get: proxy.ports.inbound 5002; "),
        "{output}"
    );

    canary.mesh.change(json!({"proxy": {"proxyVersion": NEVER_READY}})).await?;
    let failed = canary.is("Failed").await?;
    let (code, output) = canary.explain(&[&name]).await?;
    assert_eq!(code, Some(0), "{output}");
    let expected = format!("Failed since {}: {}", text(&failed["since"])?, text(&failed["message"])?);
    assert_eq!(line(&output, "Canary")?, expected);
    assert_eq!(line(&output, "Canary Pods")?, "no namespace has the configuration; all have the values in LIVE");
    assert_eq!(line(&output, "Promotion")?, "none, unless the configuration is retried");
    Ok(())
}
