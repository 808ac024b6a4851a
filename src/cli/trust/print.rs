//! The text of `trust`. Pure.

use std::fmt::Write;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    api::{LinkerdTrust, linkerd_trust::TrustCondition},
    text::{
        printable,
        table::{line, widen},
    },
    trust::{TrustReport, behind::BehindState, problems::TrustVerdict, words::in_time},
};

/// The number of digits of a fingerprint, unless the output is wide.
const DIGITS: usize = 8;

pub(super) fn text(report: &TrustReport, now: Timestamp, wide: bool) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        let mark = if problem.verdict == TrustVerdict::Broken { "PROBLEM" } else { "WARNING" };
        // Writing to a String cannot fail.
        _ = writeln!(text, "{mark}   {}", printable(&problem.message));
    }
    if report.problems.is_empty() {
        text.push_str("OK   all proxies accept the certificates of all others\n");
    }
    _ = writeln!(text, "Next   {}", printable(&report.next_step.sentence));
    for command in &report.next_step.commands {
        _ = writeln!(text, "       {}", printable(command));
    }
    text.push('\n');
    table(&mut text, &roots(report, now, wide));
    if report.more_roots > 0 {
        _ = writeln!(text, "and {} more, which few proxies trust", report.more_roots);
    }
    text.push('\n');
    issuer(&mut text, report, now);
    proxies(&mut text, report);
    if !report.behind.is_empty() {
        text.push('\n');
        table(&mut text, &behind(report));
    }
    text
}

/// Returns what the operator has observed, which this command cannot: the certificates of proxies.
pub(super) fn observed(trust: Option<&LinkerdTrust>) -> String {
    let Some((name, status)) = trust.and_then(|trust| Some((trust.name_any(), trust.status.as_ref()?))) else {
        return String::new();
    };
    let (accepted, next) = (status.condition(TrustCondition::Accepted), printable(&status.next_step));
    match (accepted.filter(|accepted| accepted.status == "False"), status.phase) {
        (Some(refused), _) => format!("\nLinkerdTrust {name}   not in effect: {}\n", printable(&refused.message)),
        (None, Some(phase)) => {
            let phase = phase.as_str();
            let commands: String =
                status.commands.iter().map(|command| format!("       {}\n", printable(command))).collect();
            format!("\nLinkerdTrust {name}   {phase}, by the certificates that proxies present: {next}\n{commands}")
        }
        (None, None) => String::new(),
    }
}

fn table(text: &mut String, rows: &[Vec<String>]) {
    let mut widths = vec![0; rows.first().map(Vec::len).unwrap_or_default()];
    rows.iter().for_each(|row| widen(&mut widths, row));
    rows.iter().for_each(|row| text.push_str(&line(row, &widths)));
}

fn roots(report: &TrustReport, now: Timestamp, wide: bool) -> Vec<Vec<String>> {
    let header = ["ROOT", "SHA-256", "ENDS", "IN BUNDLE", "TRUSTED BY", "REACHED"];
    let proxies = report.proxies.total - report.proxies.from_config_map;
    let rows = report.roots.iter().map(|root| {
        let digits = if wide { root.sha256.len() } else { DIGITS };
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        vec![
            root.name.clone(),
            root.sha256.get(..digits).unwrap_or_default().to_owned(),
            root.expires.map_or_else(String::new, |expires| in_time(expires, now)),
            yes(root.in_bundle),
            format!("{} of {proxies}", root.trusted_by),
            root.reached.map_or_else(|| "unknown".to_owned(), yes),
        ]
    });
    [header.map(str::to_owned).to_vec()].into_iter().chain(rows).collect()
}

fn issuer(text: &mut String, report: &TrustReport, now: Timestamp) {
    let issuer = &report.issuer;
    if let Some(why) = &issuer.unknown {
        _ = writeln!(text, "Issuer    unknown: {}", printable(why));
        return;
    }
    let name = printable(issuer.name.as_deref().unwrap_or_default()).into_owned();
    let ends = issuer.expires.map_or_else(String::new, |expires| format!(", ends {}", in_time(expires, now)));
    let written = issuer.written.map_or_else(String::new, |written| format!(", written {}", in_time(written, now)));
    _ = writeln!(text, "Issuer    {name}{ends}{written}");
    for end in &issuer.others {
        _ = writeln!(text, "          one more certificate is sent, ends {}", in_time(*end, now));
    }
}

fn proxies(text: &mut String, report: &TrustReport) {
    let it = &report.proxies;
    let parts = [
        (it.current, "trust the whole bundle"),
        (it.behind, "lack a root of it"),
        (it.refusing, "refuse new certificates"),
        (it.from_config_map, "read the bundle when they start, and do not show it"),
        (it.exposed, "trust a distrusted root"),
        (it.cut_off, "trust no root of the mesh"),
        (it.accepted, "may lack the root of the issuer, by spec.accept"),
        (it.unread, "have too many different sets of roots to compare"),
    ];
    let parts: Vec<_> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let colon = if parts.is_empty() { "" } else { ": " };
    _ = writeln!(text, "Proxies   {}{colon}{}", it.total, parts.join("; "));
}

fn behind(report: &TrustReport) -> Vec<Vec<String>> {
    let header = ["NAMESPACE", "WORKLOAD", "PODS", "LACKS", "WHAT TO DO"].map(str::to_owned).to_vec();
    let mut rows = vec![header];
    rows.extend(report.behind.iter().map(|row| {
        let state = match row.state {
            BehindState::Refuses => "refuses new certificates",
            BehindState::Holds => "holds the next issuer",
            BehindState::Exposed => "trusts a distrusted root",
            BehindState::CutOff => "trusts no root of the mesh",
            BehindState::Behind => "",
            BehindState::Accepted => "accepted",
        };
        let lacks = [row.lacks.join(", "), state.to_owned()];
        let lacks: Vec<_> = lacks.into_iter().filter(|it| !it.is_empty()).collect();
        vec![
            row.namespace.clone(),
            format!("{}/{}", row.kind, row.name),
            row.pods.to_string(),
            lacks.join("; "),
            row.what_to_do.clone(),
        ]
    }));
    let more = report.workloads_behind.saturating_sub(report.behind.len());
    if more > 0 {
        rows.push(vec![format!("and {more} more"), String::new(), String::new(), String::new(), String::new()]);
    }
    rows
}
