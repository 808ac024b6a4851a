//! `make e2e-node`: the image and the manifests as they are shipped, on a real node.
//!
//! * In: `node check`, or `node ARCHIVE REFERENCE` with the image that `make image` made. Root, and Debian's containerd packages.
//! * Out: each step, checked, with what it took; the first that fails ends it with an error and the logs.
//! * Always: leaves nothing on the machine, and looks for itself whether that is so.
//!
//! A program and no test of `make test`: it needs root, and interfaces and cgroups of the whole machine.

mod churn;
mod clients;
mod deployment;
mod dns;
mod from_pod;
mod jobs;
mod roll;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, RealNode,
    real_node::{requirement, trace::Traces},
    wait::eventually,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::deployment::Deployment;

/// For the kernel to take away what was in the namespaces.
const GONE_DEADLINE: Duration = Duration::from_secs(15);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\n{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["check"] => requirement::check(),
        [archive, reference] => {
            requirement::check()?;
            // In the node's namespaces there is another working directory.
            leaving_nothing(&std::path::absolute(archive)?, reference).await
        }
        _ => bail!("usage: node check | node ARCHIVE REFERENCE"),
    }
}

async fn leaving_nothing(archive: &Path, reference: &str) -> Result<()> {
    let before = Traces::now()?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let result = tokio::select! {
        result = on_a_node(archive, reference) => result,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
    };
    let begun = Instant::now();
    let clean = eventually(GONE_DEADLINE, "the machine to be as it was", async || {
        let differences = Traces::now()?.differences(&before);
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        Ok(())
    })
    .await;
    if clean.is_ok() {
        step(
            "The machine is as it was: no process, mount, interface, route, table, sysctl, cgroup or directory more",
            begun,
        );
    }
    match (result, clean) {
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}"))),
        (result, clean) => result.and(clean),
    }
}

async fn on_a_node(archive: &Path, reference: &str) -> Result<()> {
    let begun = Instant::now();
    let mut node = RealNode::start(&[archive]).await?;
    step("containerd runs in namespaces of its own, and has the image", begun);
    let control_plane = ControlPlane::start(RealNode::control_plane()).await?;
    node.join(&control_plane).await?;
    step("The node is ready", begun);
    let result = scenario(&node, &control_plane, reference).await;
    if result.is_err() {
        eprintln!("\n{}\n{}", shown(&control_plane).await, node.logs());
    }
    result
}

async fn scenario(node: &RealNode, control_plane: &ControlPlane, reference: &str) -> Result<()> {
    let client = control_plane.client().await?;
    let deployment = Deployment::new(control_plane, &client, reference);

    let begun = Instant::now();
    deployment.deploy().await?;
    step("make install deploy: both replicas are available, under restricted Pod Security", begun);

    let outside = deployment.outside().await?;
    jobs::external_workload(control_plane, &client, outside).await?;
    jobs::linkerd_config(control_plane).await?;
    from_pod::resolves(control_plane, &client, reference, deployment.cluster_address().await?).await?;
    roll::under_load(control_plane, &deployment, &client, outside).await?;
    deployment.was_never_forbidden().await?;

    let begun = Instant::now();
    deployment.undeploy().await?;
    step("make undeploy uninstall: nothing of ours is left, and all that is Linkerd's is unharmed", begun);
    ensure!(!node.processes().is_empty(), "the node is gone");
    Ok(())
}

/// What an operator would look at first.
async fn shown(control_plane: &ControlPlane) -> String {
    let mut all = String::new();
    for args in [
        &["get", "pods", "--all-namespaces", "-o", "wide"][..],
        &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
        &[
            "-n",
            deployment::NAMESPACE,
            "logs",
            "-l",
            "app.kubernetes.io/name=linkerd-operator",
            "--tail=40",
            "--prefix",
        ],
    ] {
        let said = control_plane.kubectl(args).await.unwrap_or_else(|error| format!("{error:#}"));
        all += &format!("$ kubectl {}\n{said}\n", args.join(" "));
    }
    all
}

/// Says that something was done and seen, and how long it took.
fn step(what: &str, begun: Instant) {
    println!("{what} ({:.1} s)", begun.elapsed().as_secs_f64());
}

fn in_repository(path: &str) -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository has no root")?;
    Ok(root.join(path).display().to_string())
}
