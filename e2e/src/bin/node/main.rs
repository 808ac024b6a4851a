//! `make e2e-node`: tests the shipped image and manifests on a real node.
//!
//! * In: `node check`, or `node ARCHIVE REFERENCE` with the image of `make image`. Requires root, and Debian's
//!   containerd packages.
//! * Out: each step with its duration, after it was checked; the first failure ends the run with an error and the logs.
//! * Always: leaves nothing on the host, and verifies that.
//!
//! This is a separate program and not a part of `make test`, because it needs root, and interfaces and cgroups of the
//! host.

mod churn;
mod clients;
mod deployment;
mod dns;
mod from_pod;
mod identity;
mod injection;
mod jobs;
mod roll;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use e2e::{
    ControlPlane, RealNode,
    real_node::{requirement, trace::Traces},
    wait::eventually,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::deployment::Deployment;

/// Time for the kernel to destroy the namespaces.
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
            // The path must be absolute, because the node's namespaces have another working directory.
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
    let clean = eventually(GONE_DEADLINE, "the host to be unchanged", async || {
        let differences = Traces::now()?.differences(&before);
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        Ok(())
    })
    .await;
    if clean.is_ok() {
        step(
            "The host is unchanged: no additional process, mount, interface, route, table, sysctl, cgroup or directory",
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
    step("containerd runs in separate namespaces, and has the image", begun);
    let control_plane = ControlPlane::start(RealNode::control_plane()).await?;
    node.join(&control_plane).await?;
    step("The node is ready", begun);
    let result = scenario(&node, &control_plane, reference).await;
    if result.is_err() {
        eprintln!("\n{}\n{}", diagnosis(&control_plane).await, node.logs());
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
    // The roll deletes the replicas, with their logs.
    deployment.was_never_forbidden().await?;
    roll::under_load(control_plane, &deployment, &client, outside).await?;
    deployment.was_never_forbidden().await?;
    injection::injects(control_plane, &deployment).await?;
    deployment.was_never_forbidden().await?;

    let begun = Instant::now();
    injection::delete(control_plane).await?;
    deployment.undeploy().await?;
    step("make undeploy uninstall: all objects of the operator are deleted, and those of Linkerd are unchanged", begun);
    identity::issues(control_plane, reference).await?;
    ensure!(!node.processes().is_empty(), "the node has no processes");
    Ok(())
}

/// The output of the first commands for a diagnosis.
async fn diagnosis(control_plane: &ControlPlane) -> String {
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
        let output = control_plane.kubectl(args).await.unwrap_or_else(|error| format!("{error:#}"));
        all += &format!("$ kubectl {}\n{output}\n", args.join(" "));
    }
    all
}

/// Prints a completed step and its duration.
fn step(what: &str, begun: Instant) {
    println!("{what} ({:.1} s)", begun.elapsed().as_secs_f64());
}
