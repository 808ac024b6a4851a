//! `linkerd-operator check` verifies the installation: the API server, the CRDs, the replicas, the admission policies,
//! the Leases, the LinkerdConfigs, the issuer of certificates and the other clusters.
//!
//! ```text
//! read: API server, /ready and /metrics of the replicas ──▶ CheckFacts ──▶ judge (pure) ──▶ CheckReport ──▶ print
//! ```
//!
//! In: a cluster, which it only reads. Out: text, or JSON in the form that `linkerd check` reads from its extensions;
//! an exit code. Always holds: a read that fails is a result and does not end the command; each request has a deadline.

mod answer;
mod identity;
mod judge;
mod metrics;
mod policies;
mod print;
mod read;
mod unread;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args as ClapArgs;
use clap_complete::ArgValueCompleter;
use k8s_openapi::jiff::SignedDuration;
use serde_json::json;
use tokio::time::{Instant, sleep};

use self::judge::CheckReport;
pub(super) use self::read::waiting_for;
use super::{OutputFormat, cluster_flags::ClusterFlags, completion::CompletedName, terminal::write};
use crate::client;

/// The interval of the attempts with `--wait`.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, ClapArgs)]
pub struct CheckArgs {
    /// Verify only what must hold before the operator is installed: the API server, Linkerd, and your permissions
    #[arg(long, visible_alias = "preflight")]
    pub pre: bool,

    /// Output format; with json, the output has the form of Linkerd's extensions
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    /// Time to wait until no check fails, such as 5m
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub wait: Duration,

    /// Namespace of the operator
    #[arg(
        long,
        env = "LINKERD_OPERATOR_OPERATOR_NAMESPACE",
        value_name = "NAME",
        default_value = "linkerd-operator-system",
        add = ArgValueCompleter::new(CompletedName::Namespace)
    )]
    pub operator_namespace: String,

    /// Namespace of Linkerd's control plane
    #[arg(
        long,
        short = 'L',
        visible_alias = "controller-namespace",
        value_name = "NAME",
        default_value = "linkerd",
        add = ArgValueCompleter::new(CompletedName::Namespace)
    )]
    pub linkerd_namespace: String,

    #[command(flatten)]
    pub of_linkerd: LinkerdCheckFlags,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// The flags that `linkerd check` passes to each extension, and that mean nothing here.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct LinkerdCheckFlags {
    #[arg(long, hide = true)]
    api_addr: Option<String>,
    #[arg(long, short, hide = true)]
    namespace: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    proxy: Option<Option<bool>>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    verbose: Option<Option<bool>>,
}

pub(super) async fn check(args: CheckArgs) -> Result<ExitCode> {
    let deadline = Instant::now() + args.wait;
    let mut report = attempt(&args).await;
    while !report.success && Instant::now() + RETRY_INTERVAL < deadline {
        sleep(RETRY_INTERVAL).await;
        report = attempt(&args).await;
    }
    write(&args.output.print(&report, || print::text(&report))?)?;
    Ok(if report.success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what `linkerd check` reads to find the extensions that it always includes.
pub(super) fn extension_metadata() -> Result<ExitCode> {
    write(&format!("{}\n", json!({"name": "linkerd-operator", "checks": "always"})))?;
    Ok(ExitCode::SUCCESS)
}

async fn attempt(args: &CheckArgs) -> CheckReport {
    match args.cluster.client() {
        Err(error) => judge::without_client(&client::describe(&*error)),
        Ok(client) if args.pre => judge::preflight(&read::preflight(&client, &args.linkerd_namespace).await),
        Ok(client) => {
            judge::installation(&read::installation(&client, &args.operator_namespace, &args.linkerd_namespace).await)
        }
    }
}

/// Parses a duration that is not negative.
fn duration(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration = text.parse().map_err(|error: k8s_openapi::jiff::Error| error.to_string())?;
    Duration::try_from(duration).map_err(|_| "it must not be negative".to_owned())
}
