//! `linkerd-operator explain` prints the changes that a LinkerdConfig would make, the source of each value, and the
//! state of the workloads.
//!
//! In: a name or a manifest; the API server, from which it only reads. Out: text or JSON; an exit code. Always holds:
//! the controller's own functions decide; nothing is written; no secret is shown.

mod lists;
mod read;
mod unknown_fields;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args as ClapArgs, builder::NonEmptyStringValueParser};
use clap_complete::ArgValueCompleter;

use super::{OutputFormat, cluster_flags::ClusterFlags, completion::CompletedName, terminal::write};
use crate::explain::{WorkloadsInput, output::ExplainOutput, print, workloads::DECISIONS};

/// The exit code of a failure with `--exit-code`. As for `kubectl diff`, 1 is a difference.
pub(super) const FAILED: u8 = 2;

#[derive(Clone, Debug, ClapArgs)]
pub struct ExplainArgs {
    /// Name of the LinkerdConfig; if absent, the one in effect for the ConfigMap linkerd-config in the namespace
    /// linkerd
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(CompletedName::LinkerdConfig))]
    pub name: Option<String>,

    /// Manifest to explain instead, which need not be applied; - for standard input. The API server validates it in a
    /// dry run
    #[arg(long, short, value_name = "FILE", conflicts_with = "name")]
    pub file: Option<PathBuf>,

    /// Also list the values that stay as the installer wrote them
    #[arg(long)]
    pub all: bool,

    /// Also list each workload with meshed Pods, the rollout's decision about it, and the reason
    #[arg(long)]
    pub workloads: bool,

    /// With --workloads: list only workloads with these decisions, such as failed,updating. The totals count all
    #[arg(long, value_name = "DECISION", value_delimiter = ',', ignore_case = true, requires = "workloads", value_parser = DECISIONS)]
    pub only: Vec<String>,

    /// With --workloads: count the workloads of each namespace by decision; only in the table
    #[arg(long, requires = "workloads")]
    pub by_namespace: bool,

    /// Exit with 0 if the ConfigMap holds the declared configuration, with 1 if it differs, and with 2 after an error
    /// or if the resource is not, or would not be, in effect
    #[arg(long)]
    pub exit_code: bool,

    /// With --workloads: namespace of the operator, in which no workload is restarted; if unset, the control plane's
    /// namespace
    #[arg(long, env = "LINKERD_OPERATOR_OPERATOR_NAMESPACE", value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), add = ArgValueCompleter::new(CompletedName::Namespace))]
    pub operator_namespace: Option<String>,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: OutputFormat,

    #[command(flatten)]
    pub cluster: ClusterFlags,
}

pub(super) async fn explain(args: ExplainArgs) -> Result<ExitCode> {
    let client = args.cluster.client()?;
    let mut input = read::read(&client, args.name.as_deref(), args.file.as_deref()).await?;
    if args.workloads {
        let operator_namespace = args.operator_namespace.as_deref().unwrap_or(&input.config.target.namespace).into();
        let state = lists::workloads(&client).await?;
        input.trust = state.linkerd_trusts.in_effect(&input.config.target.namespace).cloned();
        input.workloads = Some(WorkloadsInput { state, operator_namespace });
    }
    let mut output = ExplainOutput::new(&input, args.all);
    if let Some(workloads) = output.workloads.as_mut().filter(|_| !args.only.is_empty()) {
        let is_shown = |decision: &str| args.only.iter().any(|only| only.eq_ignore_ascii_case(decision));
        workloads.workloads.retain(|row| is_shown(row.decision.decision));
    }
    let text = if args.by_namespace { print::text_by_namespace } else { print::text };
    write(&args.output.print(&output, || text(&output))?)?;
    Ok(ExitCode::from(exit_code(&output, args.exit_code)))
}

fn exit_code(output: &ExplainOutput, shows_differences: bool) -> u8 {
    match (shows_differences, output.is_accepted()) {
        (true, true) => u8::from(output.is_different()),
        (true, false) => FAILED,
        (false, is_accepted) => u8::from(!is_accepted),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::explain::testing::{config, input};

    #[test]
    fn with_exit_code_a_difference_is_1_and_a_failure_is_2() {
        let codes = |spec: &serde_json::Value, is_in_effect: bool| {
            let mut input = input(spec);
            if !is_in_effect {
                input.winner = Some(config("other", &json!({})));
            }
            let output = ExplainOutput::new(&input, false);
            (exit_code(&output, true), exit_code(&output, false))
        };
        let change = json!({"proxy": {"logLevel": "debug"}});
        let observed = json!({"mode": "Observe", "proxy": {"logLevel": "debug"}});
        for (spec, is_in_effect, expected) in [
            (json!({}), true, (0, 0)),
            (change.clone(), true, (1, 0)),
            (observed, true, (1, 0)),
            (change, false, (2, 1)),
            (json!({"values": {"proxy": {"await": 1}}}), true, (2, 1)),
            (json!({"mode": "Suspend"}), true, (2, 1)),
        ] {
            assert_eq!(codes(&spec, is_in_effect), expected, "{spec}");
        }
    }
}
