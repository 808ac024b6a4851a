//! `make demo`: a virtual machine becomes an endpoint of a Service, and proxies are told; step by step.
//!
//! Everything is real: etcd, kube-apiserver, kube-controller-manager, and our manager as a process of its own. Each step says
//! what will happen, does it with kubectl, and checks that it did; the first thing that is not as told ends the demo with
//! an error. Nothing stays behind, except with `--keep`.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options, Process, Spawn,
    mesh::{Mesh, SOON},
    process::beside_this_executable,
    wait::eventually,
};

const NAMESPACE: &str = "mixed";
const SLICES: [&str; 7] = [
    "-n",
    NAMESPACE,
    "get",
    "endpointslices",
    "-l",
    "kubernetes.io/service-name=legacy",
    "-o=custom-columns=SLICE:.metadata.name,ADDRESSES:.endpoints[*].addresses[0],READY:.endpoints[*].conditions.ready,PORT:.ports[*].port",
];

#[tokio::main]
async fn main() -> ExitCode {
    let keep = std::env::args().any(|argument| argument == "--keep");
    match demo(keep).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nNot as told: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(keep: bool) -> Result<()> {
    say(
        "A Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler. No containers needed.",
    );
    let control_plane = ControlPlane::start(Options::full()).await?;
    control_plane.add_node("node-1", "zone-a").await?;
    let show = Kubectl(&control_plane);
    show.run(&["version"]).await?;

    say("Linkerd's ExternalWorkload CRD, and the namespace of its control plane, where the Lease will be.");
    control_plane.install_crds("crd/linkerd").await?;
    show.run(&["create", "namespace", "linkerd"]).await?;
    show.run(&["get", "crd", "externalworkloads.workload.linkerd.io"]).await?;

    say("Our manager, as a process of its own. It is ready when it has listed what it watches.");
    let mut manager = Manager::start(&control_plane, ManagerOptions::default())?;
    manager.ready(Duration::from_secs(30)).await?;
    println!("$ curl http://{}/ready\n{}", manager.admin_address(), manager.get("/ready").await?.1);

    say("A Service over two virtual machines and one Pod (config/samples/external-workload.yaml).");
    show.file("-k", "config/samples").await?;
    let mesh = Mesh::new(&control_plane.client().await?, NAMESPACE);
    mesh.shows("legacy", &[("vm-1", false), ("vm-2", false)]).await?;
    eventually(SOON, "the Pod to be an endpoint too", async || {
        let slices = control_plane.kubectl(&SLICES).await?;
        ensure!(slices.lines().count() == 3, "{slices}");
        Ok(())
    })
    .await?;
    say(
        "One slice is ours, with the machines; the other is Kubernetes' own, with the Pod. Readers take both together.\n\
         The machines are not ready yet: nobody has said that they are.",
    );
    show.run(&SLICES).await?;

    say("Whoever checks their health says so in their status.");
    for machine in ["vm-1", "vm-2"] {
        show.set_ready(machine, true).await?;
    }
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    show.run(&SLICES).await?;

    say(
        "What a Linkerd proxy is told that asks for the Service: the machines and the Pod, from the same process. The stream\n\
         stays open, as a proxy's does.",
    );
    let mut proxy = Watcher::start(&control_plane, &manager, "legacy.mixed.svc.cluster.local:80")?;
    proxy.prints(&["vm-1", "vm-2", "pod-1"]).await?;

    say("vm-2 becomes unready: it stays in the slice, and the proxy is told to send it no more traffic.");
    show.set_ready("vm-2", false).await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", false)]).await?;
    show.run(&SLICES).await?;
    proxy.prints(&["vm-2"]).await?;

    say("And back.");
    show.set_ready("vm-2", true).await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    show.run(&SLICES).await?;
    proxy.prints(&["vm-2"]).await?;

    say(
        "A third machine comes with a typing error in its address. It is left out, its owner is told, the others stay.",
    );
    show.file("-f", "config/samples/bad-address.yaml").await?;
    mesh.tells("vm-3", "InvalidWorkloadIP").await?;
    mesh.shows("legacy", &[("vm-1", true), ("vm-2", true)]).await?;
    show.run(&SLICES).await?;

    say("What it told, as `kubectl describe` and `kubectl events` show it.");
    mesh.tells("vm-2", "BecameUnready").await?;
    let columns = "-o=custom-columns=TYPE:.type,REASON:.reason,OBJECT:.regarding.name,NOTE:.note";
    show.run(&[
        "-n",
        NAMESPACE,
        "get",
        "events.events.k8s.io",
        "--field-selector=reportingController=linkerd-operator",
        columns,
    ])
    .await?;

    say("What its metrics say: slices written, endpoints by readiness, who leads, who listens.");
    let metrics = manager.get("/metrics").await?.1;
    for name in [
        "linkerd_operator_endpointslice_writes_total{result=\"ok\"",
        "linkerd_operator_external_workload_endpoints",
        "linkerd_operator_leader{",
        "externalworkload_cache_size",
        "workqueue_adds_total",
        "endpoints_subscribers",
        "linkerd_operator_discovery_messages_total",
    ] {
        let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with(name)).collect();
        ensure!(!lines.is_empty(), "/metrics has no {name}");
        lines.iter().for_each(|line| println!("{line}"));
    }
    let failed: f64 = manager.metric("linkerd_operator_reconcile_errors_total", &[]).await.unwrap_or(0.0);
    ensure!(failed == 0.0, "{failed} reconciles failed:\n{}", manager.log());

    if keep {
        let kubeconfig = control_plane.kubeconfig().display();
        say(&format!(
            "It is yours until Ctrl-C:\n\n  export KUBECONFIG={kubeconfig}\n  kubectl -n {NAMESPACE} get externalworkloads,endpointslices,events"
        ));
        tokio::signal::ctrl_c().await?;
    }
    say("SIGTERM: the manager ends its streams, finishes its writes, hands its Lease over, and ends.");
    let status = manager.terminate(Duration::from_secs(20)).await?;
    ensure!(status.success(), "it ended with {status}");
    let holder = "-o=jsonpath=holder: {.spec.holderIdentity}";
    show.run(&["-n", "linkerd", "get", "lease", "linkerd-destination-endpoint-write", holder]).await?;
    say("That was all. Everything is cleaned up.");
    Ok(())
}

fn say(words: &str) {
    println!("\n# {}\n", words.replace('\n', "\n# "));
}

/// A client of the Destination API that stays, and what it printed since somebody looked.
struct Watcher {
    process: Process,
    shown: usize,
}

impl Watcher {
    fn start(control_plane: &ControlPlane, manager: &Manager, authority: &str) -> Result<Self> {
        let address = manager.destination_address().to_string();
        println!("$ linkerd-operator endpoints --watch --addr {address} {authority}");
        let binary = beside_this_executable("linkerd-operator", "LINKERD_OPERATOR_BIN")?;
        let spawn = Spawn::new("endpoints --watch", binary, control_plane.directory().join("endpoints.log")).args([
            "endpoints",
            "--watch",
            "--addr",
            &address,
            authority,
        ]);
        Ok(Self { process: Process::spawn(spawn)?, shown: 0 })
    }

    /// Waits until all of these are named in what is new, and shows it.
    async fn prints(&mut self, names: &[&str]) -> Result<()> {
        let news = eventually(SOON, "the proxy to be told", async || {
            let log = self.process.log();
            let news = log.get(self.shown..).unwrap_or_default().to_owned();
            ensure!(names.iter().all(|name| news.contains(name)), "{news}");
            Ok(news)
        })
        .await?;
        self.shown += news.len();
        println!("{}", news.trim_end());
        Ok(())
    }
}

/// kubectl, with the command shown above its output.
struct Kubectl<'a>(&'a ControlPlane);

impl Kubectl<'_> {
    async fn run(&self, args: &[&str]) -> Result<()> {
        let shown: Vec<String> = args
            .iter()
            .map(|arg| if arg.contains([' ', '[', '{']) { format!("'{arg}'") } else { (*arg).to_owned() })
            .collect();
        println!("$ kubectl {}", shown.join(" "));
        println!("{}", self.0.kubectl(args).await?.trim_end());
        Ok(())
    }

    /// Applies what lies in the repository, as a user does who stands in it.
    async fn file(&self, flag: &str, path: &str) -> Result<()> {
        let absolute = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        println!("$ kubectl apply {flag} {path}");
        println!("{}", self.0.kubectl(&["apply", flag, &absolute.display().to_string()]).await?.trim_end());
        Ok(())
    }

    async fn set_ready(&self, machine: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let patch = format!(r#"{{"status":{{"conditions":[{{"type":"Ready","status":"{status}"}}]}}}}"#);
        self.run(&[
            "-n",
            NAMESPACE,
            "patch",
            "externalworkload",
            machine,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
    }
}
