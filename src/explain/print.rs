//! The output as text: a head, a table of values and the number of unmanaged values, a table of workloads and their
//! totals.

use std::{collections::BTreeMap, iter::once, time::Duration};

use super::{
    canary::CanaryOutput,
    output::{BaseRevision, ExplainOutput, PodChange, ShownValue, ValueRow},
    workloads::{DECISIONS, Decision, UncoveredPod, WorkloadRow, WorkloadsOutput},
};
use crate::{
    api::linkerd_config::{RolloutPods, RolloutWorkloads},
    summary::rounded,
    text::{
        and_more, counted, printable,
        table::{line, widen},
    },
};

/// The first column shows the change of a value: `+` it would be added, `-` removed, `~` changed.
const HEADER: [&str; 5] = [" ", "PATH", "FROM", "LIVE", "EFFECTIVE"];
/// PODS is the number of current Pods and of all meshed Pods.
const WORKLOADS_HEADER: [&str; 6] = ["NAMESPACE", "KIND", "NAME", "PODS", "DECISION", "WHY"];
const NAMESPACES_HEADER: [&str; 4] = ["NAMESPACE", "WORKLOADS", "PODS", "DECISIONS"];
const UNCOVERED_HEADER: [&str; 4] = ["NAMESPACE", "POD", "PROBLEM", "WHY"];

/// The maximum number of Pods in the table of those without a proxy as configured.
const MAX_UNCOVERED: usize = 100;
/// The maximum number of changes in the line about new Pods.
const MAX_SHOWN: usize = 10;

/// The text with one row for each workload.
pub fn text(output: &ExplainOutput) -> String {
    text_with(output, |workloads| each_workload(&workloads.workloads))
}

/// The text with one row of workloads for each namespace.
pub fn text_by_namespace(output: &ExplainOutput) -> String {
    text_with(output, |workloads| each_namespace(&workloads.workloads))
}

fn text_with(output: &ExplainOutput, table: impl Fn(&WorkloadsOutput) -> String) -> String {
    let values = if output.known { values(output) } else { String::new() };
    let workloads = output.workloads.as_ref().map(|it| format!("{}{}\n{}", table(it), uncovered(it), totals(it)));
    format!("{}{values}{}", head(output), workloads.unwrap_or_default())
}

fn values(output: &ExplainOutput) -> String {
    let rows: Vec<[String; 5]> = output.values.iter().chain(&output.unmanaged_values).map(cells).collect();
    let others = counted(output.unmanaged, "other value");
    let stay =
        if output.unmanaged == 1 { "stays as the installer wrote it" } else { "stay as the installer wrote them" };
    format!("{}\nunmanaged: {others} {stay}\n", table(HEADER, &rows))
}

fn each_workload(workloads: &[WorkloadRow]) -> String {
    let row = |row: &WorkloadRow| {
        let Decision { decision, reason, message } = &row.decision;
        let why = reason.iter().chain([message]).cloned().collect::<Vec<_>>().join(": ");
        let [namespace, kind, name] = [&row.namespace, &row.kind, &row.name].map(Clone::clone);
        [namespace, kind, name, format!("{}/{}", row.pods.current, row.pods.meshed), (*decision).to_owned(), why]
    };
    let rows: Vec<[String; 6]> = workloads.iter().map(row).collect();
    table(WORKLOADS_HEADER, &rows)
}

/// The workloads, their Pods and the decisions about them, for each namespace.
fn each_namespace(workloads: &[WorkloadRow]) -> String {
    let mut namespaces = BTreeMap::<&str, Vec<&WorkloadRow>>::new();
    for row in workloads {
        namespaces.entry(&row.namespace).or_default().push(row);
    }
    let row = |(namespace, rows): (&str, Vec<&WorkloadRow>)| {
        let of = |decision: &str| rows.iter().filter(|row| row.decision.decision == decision).count();
        let decisions = DECISIONS.iter().chain(&["Nothing"]);
        let counts = decisions.map(|&decision| (of(decision), decision)).filter(|(count, _)| *count > 0);
        let counts: Vec<_> = counts.map(|(count, decision)| format!("{count} {decision}")).collect();
        let current: i64 = rows.iter().map(|row| row.pods.current).sum();
        let meshed: i64 = rows.iter().map(|row| row.pods.meshed).sum();
        [namespace.to_owned(), rows.len().to_string(), format!("{current}/{meshed}"), counts.join(", ")]
    };
    let rows: Vec<[String; 4]> = namespaces.into_iter().map(row).collect();
    table(NAMESPACES_HEADER, &rows)
}

/// The Pods whose proxy is missing or does not have the configured shape, or that wait for their network.
fn uncovered(output: &WorkloadsOutput) -> String {
    let pods = || output.workloads.iter().flat_map(|row| row.uncovered.iter().map(move |pod| (row, pod)));
    let cells = |(row, pod): (&WorkloadRow, &UncoveredPod)| {
        [row.namespace.clone(), pod.pod.clone(), pod.reason.to_owned(), pod.message.clone()]
    };
    let rows: Vec<[String; 4]> = pods().take(MAX_UNCOVERED).map(cells).collect();
    let more = pods().count() - rows.len();
    let more = if more == 0 { String::new() } else { format!("and {more} more: see the output as JSON\n") };
    format!("{}{more}", table(UNCOVERED_HEADER, &rows))
}

/// The totals of the workloads that opted in, and of all meshed Pods.
fn totals(output: &WorkloadsOutput) -> String {
    if output.workloads.is_empty() {
        return "workloads: none\n".to_owned();
    }
    let RolloutWorkloads { selected, updated, updating, pending, failed, skipped } = output.rollout.workloads;
    let RolloutPods { meshed, current, outdated, pinned, unknown, uninjected, completed, .. } = output.rollout.pods;
    let RolloutPods { waiting_for_network, other_shape, .. } = output.rollout.pods;
    let listed = |counts: &[(i64, &str)]| {
        let some = counts.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!(", {count} {what}")).collect::<String>()
    };
    let workloads = listed(&[(updating, "updating"), (pending, "pending"), (failed, "failed"), (skipped, "skipped")]);
    let pods = listed(&[
        (current, "current"),
        (outdated, "outdated"),
        (pinned, "pinned"),
        (unknown, "unknown"),
        (uninjected, "without a proxy"),
        (waiting_for_network, "waiting for the network"),
        (other_shape, "of another shape"),
        (completed, "ended"),
    ]);
    let time = output.rollout.at_least_seconds.map(Duration::from_secs).map(|time| {
        let time = rounded(time);
        format!(
            "remaining restarts: at least {time} by the limits of spec.rollout, and the time until Pods are ready\n"
        )
    });
    let time = time.unwrap_or_default();
    format!(
        "workloads: {updated} of {selected} selected are up to date{workloads}; Pods: {meshed} meshed{pods}\n{time}"
    )
}

/// Returns a blank line and a table, or nothing if there are no rows.
fn table<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut widths = header.map(str::len);
    for row in rows {
        widen(&mut widths, row);
    }
    let lines = once(&header.map(str::to_owned)).chain(rows).map(|row| line(row, &widths)).collect::<String>();
    format!("\n{lines}")
}

fn head(output: &ExplainOutput) -> String {
    let name = if output.applied { output.name.clone() } else { format!("{} (the manifest)", output.name) };
    let in_effect = match (&output.winner, output.in_effect, output.applied) {
        _ if output.deleting => "no: it is being deleted".to_owned(),
        (_, true, true) => "yes".to_owned(),
        (_, true, false) => "it would be".to_owned(),
        (Some(winner), ..) => {
            format!("no: LinkerdConfig {winner} has a higher priority, is older, or is first by name")
        }
        (None, ..) => "no".to_owned(),
    };
    let base = match &output.base {
        Some(BaseRevision { revision, kept: true }) => format!("revision {revision}"),
        Some(BaseRevision { revision, kept: false }) => format!("revision {revision}, which would be saved first"),
        None => "none saved".to_owned(),
    };
    let condition = if output.in_effect { "" } else { ", if it were in effect" };
    let mut lines = vec![
        ("LinkerdConfig", name),
        ("Target", format!("ConfigMap {}", output.target)),
        ("Mode", format!("{:?}", output.mode)),
        ("In effect", in_effect),
        ("Base", base),
        ("Verdict", format!("{}: {}{condition}", output.reason, output.verdict)),
    ];
    lines.extend(output.canary.iter().flat_map(CanaryOutput::lines));
    if output.known {
        lines.push(("New Pods", format!("{}{condition}", new_pods(output))));
    }
    for warning in [&output.control_plane_mismatch, &output.suspect_base].into_iter().flatten() {
        lines.push(("Warning", warning.clone()));
    }
    if let Some(drift) = &output.drift {
        let what = if drift.paths.is_empty() { "the document" } else { &drift.paths.join(", ") };
        lines.push(("Drift", format!("{} changed {what}", drift.manager)));
    }
    if let Some(WorkloadsOutput { rollout, .. }) = &output.workloads {
        let why = rollout.reason.iter().chain([&rollout.message]).cloned().collect::<Vec<_>>();
        lines.push(("Rollout", why.join(": ")));
    }
    if !output.deprecated_fields.is_empty() {
        lines.push(("Deprecated", format!("{}: without effect", output.deprecated_fields.join(", "))));
    }
    lines.extend(output.warnings.iter().map(|warning| ("Warning", warning.clone())));
    let mut text: String =
        lines.iter().map(|(name, value)| format!("{:<16}{}\n", format!("{name}:"), printable(value))).collect();
    if !output.problems.is_empty() {
        text.push_str("Problems:\n");
        text.extend(output.problems.iter().map(|problem| {
            let value = if problem.value.is_empty() { String::new() } else { format!(" {}", problem.value) };
            let path = if problem.path.is_empty() { "the document" } else { &problem.path };
            format!("  {}\n", printable(&format!("{path}{value}: {}", problem.reason)))
        }));
    }
    text
}

/// Describes the immediate effect of the write on new Pods, which does not depend on the rollout.
fn new_pods(output: &ExplainOutput) -> String {
    let changes = &output.new_pods.changes;
    match (changes.is_empty(), &output.canary) {
        (true, None) => "no change".to_owned(),
        (true, Some(_)) => "no change before the configuration is promoted".to_owned(),
        (false, None) => {
            let changes = changes_text(changes);
            format!("every Pod that is created from now on gets: {changes}; spec.rollout cannot delay it")
        }
        (false, Some(_)) => {
            let changes = changes_text(changes);
            format!("every Pod that is created from now on gets, also outside of the canary namespaces: {changes}")
        }
    }
}

/// Returns the first changes, and the number of the others.
pub fn changes_text(changes: &[PodChange]) -> String {
    let shown = changes.iter().take(MAX_SHOWN).map(|change| match &change.value {
        Some(value) => format!("{} {}", change.path, value.text),
        None => format!("{} unset", change.path),
    });
    and_more(shown, changes.len(), ", ")
}

fn cells(row: &ValueRow) -> [String; 5] {
    let mark = match (row.changes, &row.live, &row.effective) {
        (false, ..) => "",
        (true, None, _) => "+",
        (true, _, None) => "-",
        (true, ..) => "~",
    };
    let cell = |value: &Option<ShownValue>| value.as_ref().map_or_else(|| "-".to_owned(), |value| value.text.clone());
    [mark.to_owned(), row.path.to_string(), row.from.to_owned(), cell(&row.live), cell(&row.effective)]
}
