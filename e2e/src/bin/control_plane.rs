//! `control-plane build | build-node | build-helm | build-prometheus | run | kubectl-path | helm-path`: the Kubernetes of
//! the tests, for manual use.
//!
//! * `build`: builds the binaries, and prints the progress.
//! * `build-node`: does the same for the kubelet and kube-proxy.
//! * `build-helm`: does the same for Helm 3 and 4.
//! * `build-prometheus`: does the same for Prometheus and promtool.
//! * `run`: starts everything with three nodes, and runs until Ctrl-C.
//! * `kubectl-path`: prints the path of its kubectl, for a Makefile on a host without kubectl.
//! * `helm-path`: the same for Helm 4.

use anyhow::{Result, bail};
use e2e::{ControlPlane, Options, binaries::Binaries};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("build") => build("the Kubernetes binaries", Binaries::find_or_build).await,
        Some("build-node") => build("the kubelet and kube-proxy", Binaries::find_or_build_node).await,
        Some("build-helm") => build("Helm 3 and 4", Binaries::find_or_build_helm).await,
        Some("build-prometheus") => build("Prometheus and promtool", Binaries::find_or_build_prometheus).await,
        Some("run") => run().await,
        Some("kubectl-path") => {
            let binaries = tokio::task::spawn_blocking(Binaries::find_or_build).await??;
            println!("{}", binaries.tool("kubectl")?.display());
            Ok(())
        }
        Some("helm-path") => {
            let binaries = tokio::task::spawn_blocking(Binaries::find_or_build_helm).await??;
            println!("{}", binaries.tool("helm4")?.display());
            Ok(())
        }
        _ => bail!(
            "usage: control-plane build | build-node | build-helm | build-prometheus | run | kubectl-path | helm-path"
        ),
    }
}

async fn build(what: &str, binaries: fn() -> Result<Binaries>) -> Result<()> {
    let binaries = tokio::task::spawn_blocking(binaries).await??;
    eprintln!("{what} are in {}", binaries.directory().display());
    Ok(())
}

async fn run() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let control_plane = ControlPlane::start(Options::full()).await?;
    for letter in ["a", "b", "c"] {
        control_plane.add_node(&format!("node-{letter}"), &format!("zone-{letter}")).await?;
    }
    println!("The control plane is ready. In another terminal:\n");
    println!("  export KUBECONFIG={}", control_plane.kubeconfig().display());
    println!("  export PATH=\"$PATH:{}\"", Binaries::find_or_build()?.directory().display());
    println!("  kubectl get nodes\n");
    println!("Its logs are in {}. Ctrl-C ends it and removes them.", control_plane.directory().display());
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
