//! A cluster in which a page is followed, with simulated nodes.
//!
//! * In: a version of Linkerd; the operator, installed by the page. Out: the output of commands.
//! * Always: a process is in the place of the operator's Pod. The API server reaches it at the address and ports of
//!   that Pod, so that `linkerd-operator check` and the webhooks work. A Pod of Linkerd's destination is forwarded to it,
//!   as after Linkerd's container was replaced.

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    Manager, ManagerOptions, Rig, eventually,
    injector::machine_address,
    mesh::SOON,
    port,
    process::Process,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE},
};
use serde_json::{Value, json};

use super::linkerd;
use crate::{
    manifests::components::{lacks_nothing, manager_options},
    page::{Shell, ShellBlock, shown},
};

/// The node whose kubelet forwards a port to the operator.
const FORWARDING: &str = "forwarding";
/// The port of the Destination API.
const DESTINATION: u16 = 8086;

pub(super) struct TutorialRig {
    rig: Rig,
    shell: Shell,
    /// The operator, and the kubelet that forwards a port to it.
    running: Option<(Manager, Process)>,
}

// === impl TutorialRig ===

impl TutorialRig {
    /// A cluster with Linkerd and without the operator.
    pub(super) async fn start(version: &str) -> Result<Self> {
        let rig = Rig::full().crds("crd/linkerd").namespace("linkerd").start().await?;
        let manifest = rig.directory().join("installed.json");
        tokio::fs::write(&manifest, linkerd::manifest(version)?).await?;
        rig.kubectl(&["apply", "-f", &manifest.display().to_string()]).await?;
        let shell = Shell::new(&rig, "helm4").await?;
        shell.add_script("linkerd", &linkerd::script(rig.directory())?)?;
        Ok(Self { rig, shell, running: None })
    }

    /// Runs a text, and returns what a terminal shows.
    pub(super) async fn output(&self, text: &str) -> Result<String> {
        let output = self.shell.output(&format!("exec 2>&1\n{text}"), "true").await?;
        ensure!(output.code == Some(0), "{text}\nexited with {:?}: {}", output.code, output.stdout);
        Ok(output.stdout)
    }

    /// Runs the blocks of a page, and compares their outputs.
    pub(super) async fn follow(&self, page: &str, blocks: &[ShellBlock]) -> Result<()> {
        for block in blocks {
            let output = match self.output(&block.text).await {
                Ok(output) => output,
                // The cause comes first, because the rest is long.
                Err(error) => bail!("{page}: {error:#}\n\n{}", self.state().await),
            };
            if let Some(shown) = &block.shown {
                shown::ends_with(&output, shown).with_context(|| format!("{page}:\n{}", block.text))?;
            }
        }
        Ok(())
    }

    /// The end of the operator's log, the workloads and their Pods, the last Events, and the LinkerdConfigs.
    async fn state(&self) -> String {
        let log = self.running.as_ref().map(|(manager, _)| manager.log()).unwrap_or_default();
        let mut state = vec![last_lines(&log, 15)];
        for (what, lines) in [
            (&["deployments,pods,nodes", "-o", "wide"][..], usize::MAX),
            (&["events", "--sort-by=.lastTimestamp"], 20),
            (&["lcfg", "-o", "jsonpath={.items[*].status}"], usize::MAX),
        ] {
            let shown = self.rig.kubectl(&[&["get", "--all-namespaces"], what].concat()).await;
            state.push(shown.map_or_else(|error| format!("{error:#}"), |shown| last_lines(&shown, lines)));
        }
        state.join("\n\n")
    }

    /// Starts the operator in the place of its Pods, of which one stays.
    pub(super) async fn run_operator(&mut self) -> Result<()> {
        let deployments = self.rig.operator_deployments().await?;
        let mut ports = deployments[0]["spec"]["template"]["spec"]["containers"][0]["ports"].clone();
        let address = machine_address()?;
        let webhook = port::free_at(address)?;
        let serves_webhooks = ports.as_array().is_some_and(|ports| ports.iter().any(|port| port["name"] == "webhook"));
        let flags: Vec<_> =
            serves_webhooks.then(|| format!("--webhook-addr={address}:{webhook}")).into_iter().collect();
        let options = manager_options(&self.rig, &deployments, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, &flags).await?;
        let mut manager = ManagerOptions { address: Some(address), ..options }.start(&self.rig)?;
        lacks_nothing(&mut manager).await?;

        for port in ports.as_array_mut().context("no ports")? {
            port["containerPort"] = match port["name"].as_str() {
                Some("admin") => json!(manager.admin_address().port()),
                Some("grpc") => json!(manager.destination_address().port()),
                _ => json!(webhook),
            };
        }
        self.has_one_pod(address.to_string(), &ports).await?;
        let kubelet = self.forward(&manager).await?;
        self.running = Some((manager, kubelet));
        Ok(())
    }

    /// Leaves one Pod of the operator, with this address and these ports.
    async fn has_one_pod(&self, address: String, ports: &Value) -> Result<()> {
        let patch = json!([
            {"op": "replace", "path": "/spec/replicas", "value": 1},
            {"op": "replace", "path": "/spec/template/spec/containers/0/ports", "value": ports},
        ])
        .to_string();
        let kubectl = async |args: &[&str]| self.rig.kubectl(&[&["-n", OPERATOR_NAMESPACE], args].concat()).await;
        kubectl(&["patch", "deployment", OPERATOR_ACCOUNT, "--type=json", "-p", &patch]).await?;
        kubectl(&["rollout", "status", &format!("deployment/{OPERATOR_ACCOUNT}"), "--timeout=45s"]).await?;
        let pod = eventually(SOON, "one Pod of the operator", async || {
            let pods = kubectl(&["get", "pods", "-o", "name"]).await?;
            let pods: Vec<_> = pods.lines().collect();
            let [pod] = pods[..] else { anyhow::bail!("{pods:?}") };
            Ok(pod.to_owned())
        })
        .await?;
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}).to_string();
        kubectl(&["patch", &pod, "--subresource=status", "--type=merge", "-p", &status]).await.map(drop)
    }

    /// Forwards the port of a Pod of Linkerd's destination to the operator.
    async fn forward(&self, manager: &Manager) -> Result<Process> {
        self.rig.add_node_without_kubelet(FORWARDING).await?;
        let kubelet = self.rig.start_kubelet(FORWARDING, DESTINATION, manager.destination_address())?;
        let labels = json!({"linkerd.io/control-plane-component": "destination"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            // Of several Pods, the first one by name is used.
            "metadata": {"name": "a-linkerd-destination", "namespace": "linkerd", "labels": labels},
            "spec": {"nodeName": FORWARDING, "serviceAccountName": "default",
                "containers": [{"name": "destination", "image": "destination"}]},
        });
        self.rig.apply(&[pod]).await?;
        Ok(kubelet)
    }

    /// Waits until new Pods get a proxy.
    pub(super) async fn injects(&self) -> Result<()> {
        eventually(SOON, "the operator to inject a Pod", async || {
            let run = ["run", "new", "--image=new", "--annotations=linkerd.io/inject=enabled", "--dry-run=server"];
            let over = r#"--overrides={"spec": {"serviceAccountName": "default"}}"#;
            let pod = self.rig.kubectl(&[&run[..], &[over, "-o", "yaml"]].concat()).await?;
            ensure!(pod.contains("name: linkerd-proxy"), "{pod}");
            Ok(())
        })
        .await
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
