//! `make bench`: what the operator costs, as ratios and distributions. Nothing here passes or fails on time.
//!
//! Without arguments the figures that are known to come out; else those named: of the ExternalWorkload controller `memory`, `converge`, `rest`, `flip`,
//! `hand-over`; of discovery `start`, `streams`, `noise`, `change`, `churn`. Printed as a table with the machine and the
//! versions, and written as JSON to `target/bench.json`. Everything runs on one machine: API server, etcd, manager and this
//! client share its cores, so absolute times are those of a busy machine.

mod controller;
mod discovery;
mod report;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use report::Report;

const FIGURES: [&str; 10] =
    ["memory", "converge", "rest", "flip", "hand-over", "start", "streams", "noise", "change", "churn"];
/// Not without being named: with a thousand connections at once some were reset, for a reason that is not found yet.
const ONLY_NAMED: [&str; 3] = ["streams", "noise", "churn"];

#[tokio::main]
async fn main() -> ExitCode {
    let named: Vec<String> = std::env::args().skip(1).collect();
    match bench(&named).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn bench(named: &[String]) -> Result<()> {
    for name in named {
        ensure!(FIGURES.contains(&name.as_str()), "no figure is called {name}; there are {}", FIGURES.join(", "));
    }
    let wanted = |name: &str| match named {
        [] => !ONLY_NAMED.contains(&name),
        named => named.iter().any(|named| named == name),
    };
    let mut report = Report::new();
    if ["memory", "converge", "rest", "flip"].iter().any(|name| wanted(name)) {
        controller::steady(&mut report, wanted).await?;
    }
    if wanted("hand-over") {
        controller::hand_over(&mut report).await?;
    }
    if ["start", "streams", "noise", "change", "churn"].iter().any(|name| wanted(name)) {
        discovery::discovery(&mut report, wanted).await?;
    }
    report.publish()
}
