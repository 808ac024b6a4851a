//! The runbooks: each command of each page is run on a real API server, in an installation with Helm and in one with
//! kustomize. Nodes and Pods are simulated, and a process is in the place of the operator's Pods.

use std::{collections::BTreeSet, fs, process::Stdio};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    Manager, Rig,
    command::Ended,
    eventually,
    executable::operator_binary,
    link::link,
    mesh::SOON,
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, in_repository},
};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::{
    manifests::components::{lacks_nothing, start_manager},
    page::{Shell, commands, in_the_checkout, shell_blocks},
};

const FOLDER: &str = "docs/src/operate/runbooks";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The placeholders of the pages, with what they stand for in the test.
const PLACEHOLDERS: [(&str, &str); 5] =
    [("NAMESPACE", "shop"), ("NAME", "web"), ("POD", "waiting"), ("CLUSTER", "east"), ("TAG", VERSION)];
/// The subcommands of kubectl that need a kubelet, so that only their flags are checked.
const NEEDS_A_KUBELET: [&str; 4] = ["exec", "logs", "port-forward", "top"];
/// The commands that may exit with 1, and the reason.
const MAY_EXIT_WITH_1: [(&str, &str); 2] = [
    ("linkerd-operator check", "a check of the replicas fails, because no kubelet forwards a port to their Pods"),
    ("linkerd-operator trust", "this mesh has no Secret with an issuer"),
];

/// How the operator is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Helm,
    Kustomize,
}

/// A command of a page.
#[derive(Debug)]
struct PageCommand {
    page: String,
    /// `None` if it is for each installation.
    way: Option<Way>,
    text: String,
}

// === impl PageCommand ===

impl PageCommand {
    /// The subcommand of kubectl in the first command of a pipeline.
    fn subcommand_of_kubectl(&self) -> Option<&str> {
        let mut words = self.text.split_whitespace();
        if words.next() != Some("kubectl") {
            return None;
        }
        while let Some(word) = words.next() {
            match word {
                "-n" | "--namespace" => drop(words.next()),
                flag if flag.starts_with('-') => {}
                subcommand => return Some(subcommand),
            }
        }
        None
    }

    fn needs_a_kubelet(&self) -> bool {
        self.subcommand_of_kubectl().is_some_and(|it| NEEDS_A_KUBELET.contains(&it))
    }
}

/// All commands of all pages, in their order.
fn all_commands() -> Result<Vec<PageCommand>> {
    let mut pages = Vec::new();
    for file in fs::read_dir(in_repository(FOLDER))? {
        pages.push(file?.path());
    }
    pages.sort();
    let mut found = Vec::new();
    for path in pages {
        let page = path.file_stem().context("a page without a name")?.to_string_lossy().into_owned();
        for block in shell_blocks(&fs::read_to_string(&path)?) {
            let way = match block.before.trim_end() {
                before if before.ends_with("Helm:") => Some(Way::Helm),
                before if before.ends_with("kustomize:") => Some(Way::Kustomize),
                _ => None,
            };
            for text in commands(&block.text) {
                found.push(PageCommand { page: page.clone(), way, text });
            }
        }
    }
    Ok(found)
}

/// Replaces the placeholders, which are whole words, in a command.
fn with_names(command: &str) -> String {
    let mut text = String::new();
    let mut word = String::new();
    let end = |word: &mut String, text: &mut String| {
        let name = PLACEHOLDERS.iter().find(|(placeholder, _)| word == placeholder).map(|(_, name)| *name);
        text.push_str(name.unwrap_or(word));
        word.clear();
    };
    for c in command.chars() {
        if c.is_ascii_alphanumeric() || c == '_' {
            word.push(c);
        } else {
            end(&mut word, &mut text);
            text.push(c);
        }
    }
    end(&mut word, &mut text);
    text
}

/// An installation of the operator, in a cluster with what the pages are about.
struct InstalledRig {
    rig: Rig,
    shell: Shell,
    way: Way,
    _manager: Manager,
}

// === impl InstalledRig ===

impl InstalledRig {
    async fn start(way: Way) -> Result<Self> {
        let rig = Rig::full().crds("crd/linkerd").namespace("linkerd").namespace("shop").start().await?;
        rig.install_linkerd().await?;
        let shell = Shell::new(&rig, "helm4").await?;
        for command in installation(way) {
            shell.run(&in_the_checkout(&rig, command)?, "true").await?;
        }
        let deployments = rig.operator_deployments().await?;
        let mut manager = start_manager(&rig, &deployments, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, &[]).await?;
        lacks_nothing(&mut manager).await?;
        Ok(Self { rig, shell, way, _manager: manager })
    }

    /// Creates what the pages are about, and what an earlier page has deleted.
    async fn prepare(&self) -> Result<()> {
        let certificate = k8s_openapi::ByteString(self.rig.ca_pem()?.as_bytes().to_vec());
        let objects = [
            json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig", "metadata": {"name": "mesh"},
                "spec": {"proxy": {"accessLog": "apache"}}}),
            deployment("shop", "web", "web"),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waiting", "namespace": "shop"},
                "spec": {"containers": [{"name": "web", "image": "i"}]}}),
            deployment("linkerd", "linkerd-proxy-injector", "proxy-injector"),
            deployment("linkerd", "linkerd-destination", "destination"),
            link("east", "cluster.local", "no kubeconfig"),
            json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "linkerd-operator-webhook", "namespace": OPERATOR_NAMESPACE},
                "data": {"tls.crt": certificate, "tls.key": ""}}),
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": "linkerd-operator-webhook-certificate", "namespace": OPERATOR_NAMESPACE}}),
            // It matches nothing.
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "linkerd-operator-proxy-injector"},
                "webhooks": [{"name": "proxy-injector.linkerd-operator.linkerd.io", "sideEffects": "None",
                    "failurePolicy": "Fail", "admissionReviewVersions": ["v1"], "matchPolicy": "Exact",
                    "clientConfig": {"service": {"name": "none", "namespace": OPERATOR_NAMESPACE}},
                    "rules": [{"operations": ["CREATE"], "apiGroups": ["none.example.com"], "apiVersions": ["v1"],
                        "resources": ["none"]}]}]}),
        ];
        self.rig.apply(&objects).await?;
        eventually(SOON, "the LinkerdConfig to be accepted", async || {
            let wait = ["wait", "--for=condition=Accepted", "linkerdconfig/mesh", "--timeout=5s"];
            self.rig.kubectl(&wait).await.map(drop)
        })
        .await
    }

    /// Makes the ConfigMap immutable. A page says how to undo that.
    async fn make_immutable(&self) -> Result<()> {
        let patch = ["-n", "linkerd", "patch", "configmap", "linkerd-config", "-p", r#"{"immutable":true}"#];
        self.rig.kubectl(&patch).await.map(drop)
    }

    async fn is_mutable_and_has_its_document(&self) -> Result<()> {
        let config_map = self.rig.get(&["-n", "linkerd", "configmap", "linkerd-config"]).await?;
        ensure!(config_map.get("immutable").is_none(), "{config_map}");
        let values = config_map["data"]["values"].as_str().context("no document")?;
        ensure!(values.contains("linkerdVersion"), "{values}");
        Ok(())
    }

    async fn run(&self, command: &PageCommand) -> Result<()> {
        let text = with_names(&command.text);
        if command.needs_a_kubelet() {
            // With this flag, kubectl parses all flags and prints its help.
            let first = text.split('|').next().unwrap_or_default();
            return self.shell.run(&format!("{first} --help"), "true").await;
        }
        let text = in_the_checkout(&self.rig, &text)?;
        let output = self.shell.output(&text, "true").await?;
        let may_fail = MAY_EXIT_WITH_1.iter().any(|(prefix, _)| command.text.starts_with(prefix));
        let is_well = output.code == Some(0) || (may_fail && output.code == Some(1));
        ensure!(is_well, "{}: {text}\n{}{}", command.page, output.stdout, output.stderr);
        Ok(())
    }
}

/// The commands that install the operator. The second version of each Deployment is the one that a rollback leaves.
fn installation(way: Way) -> Vec<&'static str> {
    const NAMESPACE: &str = "kubectl create namespace linkerd-operator-system";
    match way {
        Way::Helm => vec![
            NAMESPACE,
            "helm install linkerd-operator-crds charts/linkerd-operator-crds -n linkerd-operator-system",
            "helm install linkerd-operator charts/linkerd-operator -n linkerd-operator-system \
                --set image.repository=registry.example.com/team/linkerd-operator --set image.tag=first",
            "helm upgrade linkerd-operator charts/linkerd-operator -n linkerd-operator-system \
                --reset-then-reuse-values --set image.tag=second",
        ],
        Way::Kustomize => vec![
            "make install",
            "make deploy IMAGE=registry.example.com/team/linkerd-operator:first",
            "make deploy IMAGE=registry.example.com/team/linkerd-operator:second",
        ],
    }
}

fn deployment(namespace: &str, name: &str, container: &str) -> Value {
    let labels = json!({"app": name, "linkerd.io/control-plane-component": container});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": container, "image": "i"}]}}}})
}

async fn runs_each_command(way: Way) -> Result<()> {
    let cluster = InstalledRig::start(way).await?;
    let mut page = String::new();
    for command in all_commands()?.iter().filter(|command| command.way.is_none_or(|it| it == cluster.way)) {
        if command.page != page {
            cluster.is_mutable_and_has_its_document().await.with_context(|| format!("after the page {page}"))?;
            cluster.prepare().await?;
            page.clone_from(&command.page);
            if page == "LinkerdConfigNotReady" {
                cluster.make_immutable().await?;
            }
        }
        cluster.run(command).await?;
    }
    Ok(())
}

#[test]
fn every_command_is_known_and_what_changes_an_installation_is_there_for_helm_and_kustomize() -> Result<()> {
    let commands = all_commands()?;
    let pages: BTreeSet<_> = commands.iter().map(|command| &command.page).collect();
    ensure!(pages.len() >= 10 && commands.len() > 50, "{} commands", commands.len());
    for command in &commands {
        let program = command.text.split_whitespace().next().unwrap_or_default();
        match (program, command.way) {
            ("kubectl", None) => {
                let changes = [" -k ", " set image "].iter().any(|part| command.text.contains(part));
                ensure!(!changes, "{}: for Helm, too? {}", command.page, command.text);
            }
            ("linkerd-operator", None) | ("helm", Some(Way::Helm)) | ("kubectl" | "make", Some(Way::Kustomize)) => {}
            _ => bail!("{}: {}", command.page, command.text),
        }
    }
    for page in pages {
        let has = |way| commands.iter().any(|command| &command.page == page && command.way == Some(way));
        ensure!(has(Way::Helm) == has(Way::Kustomize), "{page} lacks the commands for Helm or for kustomize");
    }
    for (prefix, reason) in MAY_EXIT_WITH_1 {
        ensure!(commands.iter().any(|command| command.text.starts_with(prefix)), "{prefix} ({reason}) is not used");
    }
    Ok(())
}

#[tokio::test]
async fn the_command_line_lists_the_runbooks_and_prints_one() -> Result<()> {
    let run = async |args: &[&str]| Ended::operator(&[&["runbook"], args].concat(), SOON).await;
    let list = run(&[]).await?.stdout;
    let line = list.lines().find(|line| line.starts_with("LinkerdOperatorDown ")).context("no line of this alert")?;
    ensure!(line.ends_with("  No replica of the operator is scraped, or none is the leader."), "{line}");
    let page = fs::read_to_string(in_repository(&format!("{FOLDER}/LinkerdOperatorDown.md")))?;
    assert_eq!(run(&["LinkerdOperatorDown"]).await?.stdout, page);
    let unknown = run(&["LinkerdOperatorUp"]).await?;
    ensure!(unknown.code == Some(2) && unknown.stderr.contains("LinkerdOperatorDown"), "{}", unknown.stderr);
    Ok(())
}

/// As `head` exits after its lines.
#[tokio::test]
async fn a_reader_that_has_exited_is_no_error() -> Result<()> {
    for args in [&["runbook"][..], &["runbook", "LinkerdOperatorDown"], &["completion", "bash"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = Command::new(operator_binary()?);
        command.args(args).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).kill_on_drop(true);
        let output = timeout(SOON, command.output()).await.context("the command did not end")??;
        let error = String::from_utf8(output.stderr)?;
        ensure!(output.status.success() && error.is_empty(), "{args:?}: {:?} {error}", output.status);
    }
    Ok(())
}

#[test]
fn placeholders_are_whole_words() {
    let command = "kubectl -n NAMESPACE get deployment/NAME pod POD -o jsonpath={.metadata.NAMES} TAG";
    let expected = format!("kubectl -n shop get deployment/web pod waiting -o jsonpath={{.metadata.NAMES}} {VERSION}");
    assert_eq!(with_names(command), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_of_the_runbooks_runs_in_an_installation_with_helm() -> Result<()> {
    runs_each_command(Way::Helm).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_of_the_runbooks_runs_in_an_installation_with_kustomize() -> Result<()> {
    runs_each_command(Way::Kustomize).await
}
