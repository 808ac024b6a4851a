//! The report as text: a head, a table of values and how many are left alone, a table of workloads and their sums.

use std::iter::once;

use super::{
    report::{Kept, Report, Row, Seen, counted},
    workloads::{self, Decision, Told},
};
use crate::{
    api::linkerd_config::{RolloutPods, RolloutWorkloads},
    cli::print::{line, widen},
};

/// The first column tells what would become of a value: `+` it would come, `-` go, `~` change.
const HEADER: [&str; 5] = [" ", "PATH", "FROM", "LIVE", "EFFECTIVE"];
/// Of the Pods of the mesh how many are current.
const WORKLOADS_HEADER: [&str; 6] = ["NAMESPACE", "KIND", "NAME", "PODS", "DECISION", "WHY"];

pub(super) fn text(report: &Report) -> String {
    let values = if report.known { values(report) } else { String::new() };
    let workloads = report.workloads.as_ref().map(workloads).unwrap_or_default();
    format!("{}{values}{workloads}", head(report))
}

fn values(report: &Report) -> String {
    let rows: Vec<[String; 5]> = report.values.iter().chain(&report.unmanaged_values).map(cells).collect();
    let others = counted(report.unmanaged, "other value");
    let stay =
        if report.unmanaged == 1 { "stays as the installer wrote it" } else { "stay as the installer wrote them" };
    format!("{}\nunmanaged: {others} {stay}\n", table(HEADER, &rows))
}

fn workloads(told: &Told) -> String {
    let row = |row: &workloads::Row| {
        let Decision { decision, reason, message } = &row.decision;
        let why = reason.iter().chain([message]).cloned().collect::<Vec<_>>().join(": ");
        let [namespace, kind, name] = [&row.namespace, &row.kind, &row.name].map(Clone::clone);
        [namespace, kind, name, format!("{}/{}", row.pods.current, row.pods.meshed), (*decision).to_owned(), why]
    };
    let rows: Vec<[String; 6]> = told.workloads.iter().map(row).collect();
    format!("{}\n{}", table(WORKLOADS_HEADER, &rows), sums(told))
}

/// Of those that opted in, and of all Pods of the mesh.
fn sums(told: &Told) -> String {
    if told.workloads.is_empty() {
        return "workloads: none\n".to_owned();
    }
    let RolloutWorkloads { selected, updated, updating, pending, failed, skipped } = told.rollout.workloads;
    let RolloutPods { meshed, current, outdated, pinned, unknown, uninjected, completed } = told.rollout.pods;
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
        (completed, "ended"),
    ]);
    format!("workloads: {updated} of {selected} selected are up to date{workloads}; Pods: {meshed} meshed{pods}\n")
}

/// A blank line and a table; nothing without rows.
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

fn head(report: &Report) -> String {
    let name = if report.applied { report.name.clone() } else { format!("{} (the manifest)", report.name) };
    let in_effect = match (&report.winner, report.in_effect, report.applied) {
        _ if report.deleting => "no: it is being deleted".to_owned(),
        (_, true, true) => "yes".to_owned(),
        (_, true, false) => "it would be".to_owned(),
        (Some(winner), ..) => format!("no: LinkerdConfig {winner} has a higher priority, or is older"),
        (None, ..) => "no".to_owned(),
    };
    let base = match &report.base {
        Some(Kept { revision, kept: true }) => format!("revision {revision}"),
        Some(Kept { revision, kept: false }) => format!("revision {revision}, which would be kept first"),
        None => "none is kept".to_owned(),
    };
    let condition = if report.in_effect { "" } else { ", if it were in effect" };
    let mut lines = vec![
        ("LinkerdConfig", name),
        ("Target", format!("ConfigMap {}", report.target)),
        ("Mode", format!("{:?}", report.mode)),
        ("In effect", in_effect),
        ("Base", base),
        ("Verdict", format!("{}: {}{condition}", report.reason, report.verdict)),
    ];
    if let Some(drift) = &report.drift {
        let what = if drift.paths.is_empty() { "the document" } else { &drift.paths.join(", ") };
        lines.push(("Drift", format!("{} changed {what}", drift.manager)));
    }
    if let Some(Told { rollout, .. }) = &report.workloads {
        let why = rollout.reason.iter().chain([&rollout.message]).cloned().collect::<Vec<_>>();
        lines.push(("Rollout", why.join(": ")));
    }
    if !report.deprecated_fields.is_empty() {
        lines.push(("Deprecated", format!("{}: without effect", report.deprecated_fields.join(", "))));
    }
    let mut text: String = lines.iter().map(|(name, value)| format!("{:<16}{value}\n", format!("{name}:"))).collect();
    if !report.problems.is_empty() {
        text.push_str("Problems:\n");
        text.extend(report.problems.iter().map(|problem| {
            let value = if problem.value.is_empty() { String::new() } else { format!(" {}", problem.value) };
            let path = if problem.path.is_empty() { "the document" } else { &problem.path };
            format!("  {path}{value}: {}\n", problem.reason)
        }));
    }
    text
}

fn cells(row: &Row) -> [String; 5] {
    let mark = match (row.changes, &row.live, &row.effective) {
        (false, ..) => "",
        (true, None, _) => "+",
        (true, _, None) => "-",
        (true, ..) => "~",
    };
    let cell = |value: &Option<Seen>| value.as_ref().map_or_else(|| "-".to_owned(), |value| value.text.clone());
    [mark.to_owned(), row.path.to_string(), row.from.to_owned(), cell(&row.live), cell(&row.effective)]
}
