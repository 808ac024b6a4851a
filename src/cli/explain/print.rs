//! The report as text: a head, a table, and how much is left alone.

use std::iter::once;

use super::report::{Kept, Report, Row, Seen, counted};
use crate::cli::print::{line, widen};

/// The first column tells what would become of a value: `+` it would come, `-` go, `~` change.
const HEADER: [&str; 5] = [" ", "PATH", "FROM", "LIVE", "EFFECTIVE"];

pub(super) fn text(report: &Report) -> String {
    let mut text = head(report);
    if !report.known {
        return text;
    }
    let rows: Vec<[String; 5]> = report.values.iter().chain(&report.unmanaged_values).map(cells).collect();
    if !rows.is_empty() {
        let header = HEADER.map(str::to_owned);
        let mut widths = HEADER.map(str::len);
        for row in &rows {
            widen(&mut widths, row);
        }
        text.push('\n');
        text.extend(once(&header).chain(&rows).map(|row| line(row, &widths)));
    }
    let others = counted(report.unmanaged, "other value");
    let stay =
        if report.unmanaged == 1 { "stays as the installer wrote it" } else { "stay as the installer wrote them" };
    text.push_str(&format!("\nunmanaged: {others} {stay}\n"));
    text
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
