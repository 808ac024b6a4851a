//! `make demo`: virtual machines become endpoints of a Service, one resource owns the proxy configuration of the mesh,
//! running workloads are restarted for it, a Service has the endpoints of another cluster, and the root of a mesh is replaced
//! without a restart; step by step.
//!
//! The API server, its controllers and the manager are real. kwok sets the status of the Pods, which have no containers,
//! and a stand-in of the harness plays Linkerd's proxy injector. Each step is announced, executed with kubectl and
//! checked; the first failed check ends the demo with an error. Everything is removed at the end, except with `--keep`.

mod external_workload;
mod linkerd_config;
mod other_cluster;
mod rollout;
mod rotation;
mod watcher;

use std::{process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options, Process, Spawn, executable::operator_binary, mesh::SOON,
    shipped::in_repository,
};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let keep = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => false,
        ["--keep"] => true,
        _ => {
            eprintln!("usage: demo [--keep]");
            return ExitCode::FAILURE;
        }
    };
    match demo(keep).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(keep: bool) -> Result<()> {
    say(
        "A Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler. The Pods have no containers: kwok\n\
         sets their status.",
    );
    let control_plane = ControlPlane::start(Options::full()).await?;
    control_plane.add_node("node-1", "zone-a").await?;
    let show = Kubectl(&control_plane);
    show.run(&["version"]).await?;

    say(
        "Linkerd's ExternalWorkload CRD, our LinkerdConfig CRD, and the namespace of Linkerd's control plane, which will contain\n\
         the Leases.",
    );
    control_plane.install_crds("crd/linkerd").await?;
    control_plane.install_crds("crd").await?;
    show.run(&["create", "namespace", "linkerd"]).await?;
    show.run(&["get", "crd", "externalworkloads.workload.linkerd.io", "linkerdconfigs.config.linkerd.io"]).await?;

    say("Our manager as a separate process. It is ready when its caches have synced.");
    let args = ["--operator-namespace=linkerd", "--enable-multicluster"].map(str::to_owned).to_vec();
    let mut manager = Manager::start(&control_plane, ManagerOptions { args, ..ManagerOptions::default() })?;
    manager.ready(Duration::from_secs(30)).await?;
    println!("$ curl http://{}/ready\n{}", manager.admin_address(), manager.get("/ready").await?.1);

    external_workload::act(&control_plane, &manager).await?;
    // The third act needs the injector, too.
    let _injector = linkerd_config::act(&control_plane, &manager).await?;
    rollout::act(&control_plane, &manager).await?;
    other_cluster::act(&control_plane, &manager).await?;
    rotation::act().await?;

    let failed = manager.metric("linkerd_operator_reconcile_errors_total", &[]).await;
    ensure!(failed == Some(0.0), "{failed:?} reconciles failed:\n{}", manager.log());
    if keep {
        let kubeconfig = control_plane.kubeconfig().display();
        let namespace = external_workload::NAMESPACE;
        say(&format!(
            "The control plane runs until Ctrl-C:\n\n  export KUBECONFIG={kubeconfig}\n  kubectl -n {namespace} get externalworkloads,endpointslices,events\n  \
             kubectl get linkerdconfigs"
        ));
        tokio::signal::ctrl_c().await?;
    }
    say("SIGTERM: the manager ends its streams, finishes its writes, releases its Leases, and exits.");
    let status = manager.terminate(Duration::from_secs(20)).await?;
    ensure!(status.success(), "the manager ended with {status}");
    let holders = "-o=custom-columns=LEASE:.metadata.name,HOLDER:.spec.holderIdentity";
    show.run(&["-n", "linkerd", "get", "leases", holders]).await?;
    say("The demo is complete. Everything has been removed.");
    Ok(())
}

fn say(words: &str) {
    println!("\n# {}\n", words.replace('\n', "\n# "));
}

/// Prints the samples whose lines begin with these names; each must exist.
async fn metrics(manager: &Manager, names: &[&str]) -> Result<()> {
    let metrics = manager.get("/metrics").await?.1;
    for name in names {
        let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with(name)).collect();
        ensure!(!lines.is_empty(), "/metrics has no {name}");
        lines.iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

/// Runs a command of the operator's binary, and returns its output.
async fn operator(control_plane: &ControlPlane, args: &[String]) -> Result<String> {
    let log = tempfile::Builder::new().tempdir_in(control_plane.directory())?;
    let spawn = Spawn::new("linkerd-operator", operator_binary()?, log.path().join("log")).args(args);
    let mut process = Process::spawn(spawn)?;
    let status = process.wait(SOON).await?;
    ensure!(status.success(), "linkerd-operator {} ended with {status}:\n{}", args.join(" "), process.log());
    Ok(process.log())
}

/// The command line as a user types it.
fn shown(args: &[&str]) -> String {
    let quoted = |arg: &&str| if arg.contains([' ', '[', '{']) { format!("'{arg}'") } else { (*arg).to_owned() };
    format!("$ kubectl {}", args.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

/// Runs kubectl, and prints the command and its output.
struct Kubectl<'a>(&'a ControlPlane);

impl Kubectl<'_> {
    async fn run(&self, args: &[&str]) -> Result<()> {
        println!("{}", shown(args));
        println!("{}", self.0.kubectl(args).await?.trim_end());
        Ok(())
    }

    /// Applies a file or folder of the repository.
    async fn file(&self, flag: &str, path: &str) -> Result<()> {
        println!("$ kubectl apply {flag} {path}");
        println!("{}", self.0.kubectl(&["apply", flag, &in_repository(path)]).await?.trim_end());
        Ok(())
    }
}
