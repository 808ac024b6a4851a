//! `control-plane build | build-node | build-helm | build-prometheus | build-release-tools | run | kubectl-path |
//! helm-path | crane-path`: the Kubernetes of the tests, and other programs, for manual use.
//!
//! * `build`: builds the binaries, and prints the progress.
//! * `build-node`: does the same for the kubelet and kube-proxy.
//! * `build-helm`: does the same for Helm 3 and 4.
//! * `build-prometheus`: does the same for Prometheus and promtool.
//! * `build-release-tools`: does the same for crane and Krew.
//! * `run`: starts everything with three nodes, and runs until Ctrl-C.
//! * `kubectl-path`: prints the path of its kubectl, for a Makefile on a host without kubectl.
//! * `helm-path` and `crane-path`: the same for Helm 4 and crane.

use anyhow::{Result, bail};
use e2e::{ControlPlane, Options, binaries::Binaries};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: control-plane build | build-node | build-helm | build-prometheus | build-release-tools | run | kubectl-path | helm-path | crane-path";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match command(&arguments) {
        Some("help") => {
            println!("{USAGE}");
            Ok(())
        }
        Some("build") => build("the Kubernetes binaries", Binaries::find_or_build).await,
        Some("build-node") => build("the kubelet and kube-proxy", Binaries::find_or_build_node).await,
        Some("build-helm") => build("Helm 3 and 4", Binaries::find_or_build_helm).await,
        Some("build-prometheus") => build("Prometheus and promtool", Binaries::find_or_build_prometheus).await,
        Some("build-release-tools") => {
            build("crane", Binaries::find_or_build_crane).await?;
            build("Krew", Binaries::find_or_build_krew).await
        }
        Some("run") => run().await,
        Some("kubectl-path") => print_path("kubectl", Binaries::find_or_build).await,
        Some("helm-path") => print_path("helm4", Binaries::find_or_build_helm).await,
        Some("crane-path") => print_path("crane", Binaries::find_or_build_crane).await,
        _ => bail!(USAGE),
    }
}

/// Returns the command, which has no arguments of its own: `run --help` must not start a control plane.
fn command(arguments: &[String]) -> Option<&str> {
    if arguments.iter().any(|it| matches!(&**it, "-h" | "--help")) {
        return Some("help");
    }
    match arguments {
        [command] => Some(command),
        _ => None,
    }
}

async fn build(what: &str, binaries: fn() -> Result<Binaries>) -> Result<()> {
    let binaries = tokio::task::spawn_blocking(binaries).await??;
    eprintln!("{what} are in {}", binaries.directory().display());
    Ok(())
}

async fn print_path(tool: &str, binaries: fn() -> Result<Binaries>) -> Result<()> {
    let binaries = tokio::task::spawn_blocking(binaries).await??;
    println!("{}", binaries.tool(tool)?.display());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_unknown_arguments_start_nothing() {
        for (arguments, expected) in [
            (&["run"][..], Some("run")),
            (&["--help"], Some("help")),
            (&["run", "--help"], Some("help")),
            (&["run", "-h"], Some("help")),
            (&["run", "--nodes=2"], None),
            (&[], None),
        ] {
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            assert_eq!(command(&arguments), expected, "{arguments:?}");
        }
    }
}
