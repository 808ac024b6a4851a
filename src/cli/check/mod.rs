//! `linkerd-operator check` verifies the installation: the API server, the CRDs, the replicas, the Leases, the
//! LinkerdConfigs and the other clusters.
//!
//! ```text
//! read: API server, /ready and /metrics of the replicas ──▶ CheckFacts ──▶ judge (pure) ──▶ CheckReport ──▶ print
//! ```
//!
//! * In: a cluster, which it only reads. Out: text, or JSON in the form that `linkerd check` reads from its extensions;
//!   an exit code.
//! * Always: a read that fails is a result and does not end the command; each request has a deadline.

mod judge;
mod metrics;
mod print;
mod read;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args as ClapArgs;
use k8s_openapi::jiff::SignedDuration;
use prometheus::Registry;
use serde_json::json;
use tokio::time::{Instant, sleep};

use self::judge::CheckReport;
use super::{OutputFormat, write};
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
        default_value = "linkerd-operator-system"
    )]
    pub operator_namespace: String,

    /// Namespace of Linkerd's control plane
    #[arg(long, short = 'L', visible_alias = "controller-namespace", value_name = "NAME", default_value = "linkerd")]
    pub linkerd_namespace: String,

    /// Path of the kubeconfig; if unset, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod, in this order
    #[arg(long, env = "LINKERD_OPERATOR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig; if unset, the current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// User to impersonate
    #[arg(long = "as", value_name = "USER")]
    pub impersonate: Option<String>,

    /// Group to impersonate; can be repeated
    #[arg(long = "as-group", value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,

    #[command(flatten)]
    pub of_linkerd: LinkerdCheckFlags,
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
    write(&match args.output {
        OutputFormat::Table => print::text(&report),
        OutputFormat::Json => format!("{}\n", serde_json::to_string_pretty(&report)?),
    })?;
    Ok(if report.success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what `linkerd check` reads to find the extensions that it always includes.
pub(super) fn extension_metadata() -> Result<ExitCode> {
    write(&format!("{}\n", json!({"name": "linkerd-operator", "checks": "always"})))?;
    Ok(ExitCode::SUCCESS)
}

async fn attempt(args: &CheckArgs) -> CheckReport {
    let client = async {
        let (user, groups) = (args.impersonate.as_deref(), groups(&args.impersonate_groups));
        let config = client::config_of(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        client::client(client::impersonating(config, user, &groups), &Registry::new())
    };
    match client.await {
        Err(error) => judge::without_client(&client::describe(&*error)),
        Ok(client) if args.pre => judge::preflight(&read::preflight(&client, &args.linkerd_namespace).await),
        Ok(client) => {
            judge::installation(&read::installation(&client, &args.operator_namespace, &args.linkerd_namespace).await)
        }
    }
}

/// Returns the groups to impersonate. `linkerd check` passes its own flag as Go prints a list: `[]`, or `[one,two]`.
fn groups(flags: &[String]) -> Vec<String> {
    let lists = flags.iter().map(|flag| {
        let list = flag.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        list.map_or_else(|| vec![flag.as_str()], |list| list.split(',').collect())
    });
    lists.flatten().filter(|group| !group.is_empty()).map(str::to_owned).collect()
}

/// Parses a duration that is not negative.
fn duration(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration = text.parse().map_err(|error: k8s_openapi::jiff::Error| error.to_string())?;
    Duration::try_from(duration).map_err(|_| "it must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_repeated_flags_or_a_list_as_go_prints_it() {
        let read = |flags: &[&str]| groups(&flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&["system:masters", "dev"]), ["system:masters", "dev"]);
        assert_eq!(read(&["[]"]), Vec::<String>::new());
        assert_eq!(read(&["[one,two]", "three"]), ["one", "two", "three"]);
    }
}
