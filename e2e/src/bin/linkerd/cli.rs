//! Linkerd's CLI against the operator, and against Linkerd's own destination.
//!
//! * In: the paths of the CLI and of Linkerd's controller. Out: per command, what it printed with each of the two.
//! * Always: one cluster, which `linkerd install` has set up; its Pods have no processes. Both servers run beside it. A
//!   port-forward to a destination Pod is connected to one of them, by a stand-in for the kubelet of the Pod's node.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Options, Process, eventually,
    mesh::Mesh,
    workload::{self, Kind},
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::replica::{EitherReplica, ServerKind, chart_flags};

const NAMESPACE: &str = "shop";
/// The node of all Pods, whose destination is ours.
const NODE: &str = "node";
/// A node, and a destination Pod on it, for Linkerd's server.
const THEIRS: &str = "theirs";
/// The port of the destination container.
const PORT: u16 = 8086;
const DEADLINE: Duration = Duration::from_secs(120);
const VERSION: &str = "edge-26.8.3";

/// A command, and what it printed with each of the two servers.
pub(crate) struct Printed {
    pub(crate) command: String,
    pub(crate) ours: Output,
    pub(crate) theirs: Output,
}

/// The output of a command that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    /// In the order of the server's messages, which is not defined: sorted.
    pub(crate) lines: Vec<String>,
}

/// The CLI with one kubeconfig.
struct Cli {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

pub(crate) async fn compare(cli: &Path, controller: &Path) -> Result<Vec<Printed>> {
    let options = Options { controller_manager: true, scheduler: true, ..Options::default() };
    let control_plane = ControlPlane::start(options).await?;
    let cli = Cli {
        program: cli.to_owned(),
        kubeconfig: control_plane.kubeconfig().to_owned(),
        home: control_plane.directory().to_owned(),
    };
    install(&cli, &control_plane).await?;
    let ours = EitherReplica::start(ServerKind::Ours, controller, &control_plane, &chart_flags()).await?;
    let _kubelet = control_plane.start_kubelet(NODE, PORT, ours.address())?;
    let addresses = shop(&control_plane).await?;
    // Linkerd's server does not start without any EndpointSlice in the cluster.
    let theirs = EitherReplica::start(ServerKind::Theirs, controller, &control_plane, &chart_flags()).await?;
    available(&control_plane).await?;
    let mut printed = Vec::new();
    let commands = commands(&addresses);
    for command in &commands {
        let (ours, theirs) = (ours.address(), theirs.address());
        let (ours, theirs) = tokio::try_join!(cli.at(command, Some(ours)), cli.at(command, Some(theirs)))?;
        printed.push(Printed { command: format!("{} --api-addr=…`", command.join(" ")), ours, theirs });
    }
    let _other = put_pod_of_theirs(&control_plane, theirs.address()).await?;
    for command in [commands.first(), commands.get(2)].into_iter().flatten() {
        let by_name = [command.clone(), vec![format!("--destination-pod={THEIRS}")]].concat();
        let (ours, theirs) = (cli.forwarded(command).await?, cli.forwarded(&by_name).await?);
        printed.push(Printed { command: format!("{}` by a port-forward", command.join(" ")), ours, theirs });
    }
    control_plane.kubectl(&["-n", "linkerd", "delete", "pod", THEIRS, "--now"]).await?;
    printed.push(check(&cli, &control_plane).await?);
    ours.kill().await?;
    Ok(printed)
}

/// Installs Linkerd as its documentation says. Its Pods run when the node has a kubelet.
async fn install(cli: &Cli, control_plane: &ControlPlane) -> Result<()> {
    control_plane.add_node_without_kubelet(NODE).await?;
    // The injector's Pods have no processes, so the API server must not wait for them.
    let quick = "--set=proxyInjector.timeoutSeconds=1";
    for args in [&["install", "--crds", "--set=installGatewayAPI=true"][..], &["install", "--ignore-cluster", quick]] {
        let manifest = cli.output(args).await?;
        ensure!(manifest.0 == Some(0), "linkerd {}: {}", args.join(" "), manifest.2);
        let file = control_plane.directory().join("linkerd-install.yaml");
        tokio::fs::write(&file, manifest.1).await?;
        eventually(DEADLINE, format_args!("linkerd {} to be applied", args.join(" ")), async || {
            control_plane.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()]).await
        })
        .await?;
    }
    Ok(())
}

/// Creates a destination Pod whose port is forwarded to this server.
async fn put_pod_of_theirs(control_plane: &ControlPlane, server: SocketAddr) -> Result<Process> {
    control_plane.add_node_without_kubelet(THEIRS).await?;
    let kubelet = control_plane.start_kubelet(THEIRS, PORT, server)?;
    let pod = json!({
        "metadata": {"name": THEIRS, "labels": {"linkerd.io/control-plane-component": "destination"}},
        "spec": {"nodeName": THEIRS, "containers": [{"name": "destination", "image": "destination"}]},
    });
    let pods: Api<Pod> = Api::namespaced(control_plane.client().await?, "linkerd");
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await.context("creating a Pod")?;
    Ok(kubelet)
}

async fn available(control_plane: &ControlPlane) -> Result<()> {
    for deployment in ["linkerd-destination", "linkerd-identity", "linkerd-proxy-injector"] {
        let deployment = format!("deployment/{deployment}");
        control_plane.kubectl(&["-n", "linkerd", "rollout", "status", &deployment, "--timeout=50s"]).await?;
    }
    Ok(())
}

/// The addresses of a Service.
struct Shop {
    web: String,
    api: String,
}

/// Services over ExternalWorkloads and over Pods, and an empty one.
async fn shop(control_plane: &ControlPlane) -> Result<Shop> {
    control_plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let client = control_plane.client().await?;
    let mesh = Mesh::new(&client, NAMESPACE);
    let address = |service: &Service| {
        let spec = service.spec.as_ref();
        spec.and_then(|spec| spec.cluster_ip.clone()).context("a Service without address")
    };
    let web = address(&mesh.put_service("web", json!({})).await?)?;
    for (number, name) in ["vm-1", "vm-2"].into_iter().enumerate() {
        mesh.put_workload(name, "web", &[&format!("192.0.2.{}", number + 1)]).await?;
    }
    mesh.shows("web", &[("vm-1", true), ("vm-2", true)]).await?;
    let api = address(&mesh.put_service("api", json!({})).await?)?;
    mesh.put_service("empty", json!({})).await?;
    let ports = json!({"spec": {"template": {"spec": {"containers": [{"name": "api", "image": "api", "ports": [{"containerPort": 80}]}]}}}});
    let deployment = workload::put(&client, NAMESPACE, Kind::Deployment, "api", 2, ports).await?;
    deployment.is_settled(2).await?;
    Ok(Shop { web, api })
}

fn commands(shop: &Shop) -> Vec<Vec<String>> {
    let name = |service: &str, port: u16| format!("{service}.{NAMESPACE}.svc.cluster.local:{port}");
    let (web, api) = (&name("web", 80), &name("api", 80));
    let token = &format!(r#"{{"ns":"{NAMESPACE}","nodeName":"{NODE}"}}"#);
    let commands: [&[&str]; 14] = [
        &["endpoints", web, api],
        &["endpoints", "-o", "json", web, api],
        &["profile", &format!("{}:80", shop.web)],
        &["endpoints", &name("empty", 80)],
        &["endpoints", &name("none", 80)],
        &["endpoints", "example.com:80"],
        &["endpoints", &name("web", 81)],
        &["endpoints", "--token", token, api],
        &["profile", &format!("{}:80", shop.api)],
        &["profile", "192.0.2.1:80"],
        &["profile", "192.0.2.99:80"],
        &["profile", web],
        &["profile", &name("none", 80)],
        &["policy", "-n", NAMESPACE, "svc/web", "80"],
    ];
    let command = |args: &&[&str]| [&["diagnostics"], *args].concat().into_iter().map(str::to_owned).collect();
    commands.iter().map(command).collect()
}

/// `linkerd check` with Linkerd's image of the destination container, and with the operator's.
async fn check(cli: &Cli, control_plane: &ControlPlane) -> Result<Printed> {
    let (expected, own) = (format!("--expected-version={VERSION}"), format!("--cli-version-override={VERSION}"));
    let args = ["check", "--wait=30s", &expected, &own];
    let theirs = cli.run(&args).await?;
    let image = "destination=example.com/linkerd-operator:v0";
    control_plane.kubectl(&["-n", "linkerd", "set", "image", "deployment/linkerd-destination", image]).await?;
    available(control_plane).await?;
    let ours = cli.run(&args).await?;
    Ok(Printed { command: format!("{}`", args.join(" ")), ours, theirs })
}

// === impl Printed ===

impl Printed {
    pub(crate) fn is_equal(&self) -> bool {
        self.ours == self.theirs
    }
}

// === impl Cli ===

impl Cli {
    /// Runs a command against the server at this address.
    async fn at(&self, args: &[String], address: Option<SocketAddr>) -> Result<Output> {
        let address = address.map(|address| format!("--api-addr={address}"));
        let args: Vec<&str> = args.iter().chain(&address).map(String::as_str).collect();
        self.run(&args).await
    }

    /// Runs a command that finds a destination Pod by itself, until its port is forwarded.
    async fn forwarded(&self, args: &[String]) -> Result<Output> {
        eventually(DEADLINE, format_args!("linkerd {} to succeed", args.join(" ")), async || {
            let output = self.at(args, None).await?;
            ensure!(output.code == Some(0), "{output:?}");
            Ok(output)
        })
        .await
    }

    async fn run(&self, args: &[&str]) -> Result<Output> {
        let (code, stdout, stderr) = self.output(args).await?;
        let mut lines: Vec<String> = match serde_json::from_str::<Value>(&stdout) {
            Ok(Value::Array(items)) => items.iter().map(Value::to_string).collect(),
            Ok(Value::Object(map)) if args.contains(&"json") => map.values().map(Value::to_string).collect(),
            _ => stdout.lines().chain(stderr.lines()).map(str::to_owned).collect(),
        };
        if args.contains(&"endpoints") {
            lines.sort();
        }
        Ok(Output { code, lines })
    }

    /// The exit code, the standard output and the standard error of a command.
    async fn output(&self, args: &[&str]) -> Result<(Option<i32>, String, String)> {
        let mut command = Command::new(&self.program);
        command.args(args).env_clear().env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(DEADLINE, command.output()).await;
        let output = output.with_context(|| format!("linkerd {} did not end", args.join(" ")))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }
}
