//! `make bench`: the cost of the operator, as ratios and distributions. A figure that misses its target is not a
//! failure.
//!
//! ```text
//!   bench [--server IP:PORT [--pid PID]] [NAME …]
//! ```
//!
//! * Without names, all figures are measured; otherwise the named ones. ExternalWorkload controller: `memory`,
//!   `converge`, `rest`, `flip`, `flips`, `hand-over`. LinkerdConfig controller: `revert`, `no-op`. Rollouts:
//!   `rollout-plan`, `rollout-memory`, `rollout-speed`. Discovery: `start`, `connect`, `streams`, `change`, `churn`,
//!   `profiles`, `threads`, `servers`, `profile-servers`, `noise`, `profile-noise`, `relist`, `giant`, `unread`,
//!   `recovery`, `clusters`, `attacks`. Proxy injector: `injector`. Identity service: `identity`. Trust: `trust`, `trust-restarts`. Only by name:
//!   `largest`, `long-outage`.
//! * With `--server`, only discovery is measured, on another server of the Destination API that watches the cluster.
//!   The cluster is printed; `E2E_KUBECONFIG` selects an existing one. With `--pid`, memory and CPU of that server are
//!   measured, too. With `identity`, the server is another identity service, which is measured after the operator.
//! * The result is printed as a table with the host and the versions, and written as JSON to `target/bench.json`.
//!   Everything runs on one host: API server, etcd and this client share a core, so absolute times are those of a
//!   loaded host.

mod controller;
mod discovery;
mod identity;
mod linkerd_config;
mod proxy_injector;
mod report;
mod rollout;
mod spent;
mod trust;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use discovery::Other;
use report::Report;

const OF_THE_CONTROLLER: [&str; 6] = ["memory", "converge", "rest", "flip", "flips", "hand-over"];

#[derive(Default)]
struct BenchArguments {
    named: Vec<String>,
    other: Option<Other>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let run = async { bench(arguments(std::env::args().skip(1))?).await };
    match run.await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn arguments(given: impl IntoIterator<Item = String>) -> Result<BenchArguments> {
    let mut given = given.into_iter();
    let mut arguments = BenchArguments::default();
    let mut pid = None;
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--server" => {
                let address = given.next().context("--server needs an IP:PORT")?;
                let address = address.parse().with_context(|| format!("--server {address} is not an IP:PORT"))?;
                arguments.other = Some(Other { address, pid: None });
            }
            "--pid" => {
                let number = given.next().context("--pid needs a process id")?;
                pid = Some(number.parse().with_context(|| format!("--pid {number} is not a number"))?);
            }
            name => {
                let of_jobs = [
                    &linkerd_config::FIGURES[..],
                    &rollout::FIGURES,
                    &proxy_injector::FIGURES,
                    &[identity::FIGURE],
                    &trust::FIGURES,
                ];
                let known: Vec<&str> =
                    [&OF_THE_CONTROLLER[..], &of_jobs.concat(), &discovery::FIGURES, &[discovery::LARGEST]].concat();
                ensure!(known.contains(&name), "unknown figure {name}; the figures are {}", known.join(", "));
                arguments.named.push(name.to_owned());
            }
        }
    }
    match &mut arguments.other {
        Some(other) => other.pid = pid,
        None => ensure!(pid.is_none(), "--pid requires --server"),
    }
    Ok(arguments)
}

async fn bench(BenchArguments { named, other }: BenchArguments) -> Result<ExitCode> {
    let wanted = |name: &str| match named.as_slice() {
        [] => !discovery::ONLY_BY_NAME.contains(&name),
        named => named.iter().any(|named| named == name),
    };
    let mut report = Report::new();
    if other.is_none() {
        if ["memory", "converge", "rest", "flip", "flips"].iter().any(|name| wanted(name)) {
            controller::steady(&mut report, wanted).await?;
        }
        if wanted("hand-over") {
            controller::hand_over(&mut report).await?;
        }
        if linkerd_config::FIGURES.iter().any(|name| wanted(name)) {
            linkerd_config::figures(&mut report, wanted).await?;
        }
        if rollout::FIGURES.iter().any(|name| wanted(name)) {
            rollout::figures(&mut report, wanted).await?;
        }
        if wanted("injector") {
            proxy_injector::figures(&mut report).await?;
        }
        if trust::FIGURES.iter().any(|name| wanted(name)) {
            trust::figures(&mut report, wanted).await?;
        }
    }
    // Without names, another server is one of the Destination API.
    if wanted(identity::FIGURE) && (other.is_none() || !named.is_empty()) {
        identity::figures(&mut report, other).await?;
    }
    if discovery::FIGURES.iter().any(|name| wanted(name)) {
        discovery::discovery(&mut report, other, wanted).await?;
    }
    if other.is_none() && wanted(discovery::LARGEST) {
        discovery::largest(&mut report).await?;
    }
    report.publish()
}
