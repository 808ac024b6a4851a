//! The report in Markdown.

use std::{fmt::Write, time::Duration};

use crate::{
    answers::Answers,
    cli::Printed,
    identity::IdentityStep,
    injector::{Burst, Reviews, Step, Steps},
    leases::HandOver,
    live::Live,
    service_profiles::ProfileCompared,
    traffic::Traffic,
};

pub(crate) fn answers(answers: &Answers) -> String {
    let of_states = format!("{} states of random clusters, each with newly started servers", answers.states);
    compared("Answers", &of_states, answers)
}

pub(crate) fn table(answers: &Answers) -> String {
    compared("Table of cases", &format!("{} sets of flags", answers.states), answers)
}

pub(crate) fn clusters(answers: &Answers) -> String {
    compared("Other clusters", &format!("{} states, with two API servers", answers.states), answers)
}

fn compared(title: &str, what: &str, Answers { compared, equal, differences, .. }: &Answers) -> String {
    let mut text = format!(
        "## {title}\n\n{what}: {compared} requests, {equal} answers equal.\n\n\
         | difference | row | seen | first seen |\n|---|---|---|---|\n"
    );
    for (difference, examples) in differences {
        let row = difference.number.map_or("**none**".to_owned(), |number| number.to_string());
        let _ = writeln!(text, "| {} | {row} | {} | {} |", difference.what, examples.count, examples.first);
    }
    text.push('\n');
    text
}

pub(crate) fn live(results: &[Live; 2]) -> String {
    let mut text = "## Open streams\n\n| server | compared | another answer than a new stream | ended streams |\n\
                    |---|---|---|---|\n"
        .to_owned();
    for (server, Live { compared, stale, ended, .. }) in ["ours", "Linkerd's"].iter().zip(results) {
        let kinds: Vec<String> = stale.iter().map(|(what, count)| format!("{what}: {count}")).collect();
        let total: usize = stale.values().sum();
        let ended: Vec<String> = ended.iter().map(|(status, count)| format!("{count} with {status}")).collect();
        let _ = writeln!(text, "| {server} | {compared} | {total} {} | {} |", kinds.join("; "), ended.join("; "));
    }
    for (server, Live { example, .. }) in ["ours", "Linkerd's"].iter().zip(results) {
        if let Some(example) = example {
            let _ = writeln!(text, "\nThe first one of {server}: {example}");
        }
    }
    text.push('\n');
    text
}

pub(crate) fn turns(turns: &[HandOver]) -> String {
    let mut text =
        "## Leases\n\n| hand-over | Lease taken after | a change is written after | slices written without a \
                    change |\n|---|---|---|---|\n"
            .to_owned();
    for HandOver { what, taken, rewritten, followed } in turns {
        let _ =
            writeln!(text, "| {what} | {:.1} s | {:.1} s | {rewritten} |", taken.as_secs_f64(), followed.as_secs_f64());
    }
    text.push('\n');
    text
}

pub(crate) fn steps(steps: &Steps) -> String {
    let Steps { document, steps, .. } = steps;
    let mut text = format!("## Injector\n\nFirst document: {document}.\n\n| step | seen | after |\n|---|---|---|\n");
    for Step { what, seen, took } in steps {
        let _ = writeln!(text, "| {what} | {seen} | {:.1} s |", took.as_secs_f64());
    }
    text.push('\n');
    text
}

pub(crate) fn bursts(bursts: &[Burst]) -> String {
    let mut text =
        "## Bursts of Pods\n\n| injector | Pods at once | without a proxy | time |\n|---|---|---|---|\n".to_owned();
    for Burst { injector, pods, lost, took } in bursts {
        let _ = writeln!(text, "| {injector} | {pods} | {lost} | {:.1} s |", took.as_secs_f64());
    }
    text.push('\n');
    text
}

pub(crate) fn reviews(Reviews { compared, operator, fields }: &Reviews) -> String {
    let mut text = "## Reviews\n\n".to_owned();
    let different: Vec<_> = compared.iter().filter(|it| it.stand_in != it.linkerd).collect();
    let _ =
        writeln!(text, "{} reviews; the stand-in answered {} of them differently.\n", compared.len(), different.len());
    for it in different {
        let _ = writeln!(text, "- {}: the stand-in {:?}, Linkerd {:?}", it.name, it.stand_in, it.linkerd);
    }
    let equal = operator.iter().filter(|it| it.is_equal()).count();
    let refused: Vec<_> = operator.iter().filter(|it| it.is_of_refused_document()).map(|it| it.name).collect();
    let _ = writeln!(
        text,
        "\nThe operator in place of the injector: {} reviews, {equal} with the same object or denial. Linkerd denies {} \
         that the operator allows with its last configuration: {}.\n",
        operator.len(),
        refused.len(),
        refused.join(", ")
    );
    for it in operator.iter().filter(|it| !it.is_equal() && !it.is_of_refused_document()) {
        let _ = writeln!(text, "- {}: {}", it.name, it.difference());
    }
    let _ = writeln!(
        text,
        "{} fields, {} documents: {} were refused. {} fields have other answers than at {}.\n",
        fields.fields,
        fields.asked,
        fields.refused,
        fields.changed.len(),
        fields.linkerd
    );
    for (field, now, before) in &fields.changed {
        let _ = writeln!(text, "- `{field}` refuses {now:?} instead of {before:?}");
    }
    text.push('\n');
    text
}

pub(crate) fn service_profiles(compared: &[ProfileCompared]) -> String {
    let equal = compared.iter().filter(|it| it.is_equal()).count();
    let mut text = format!(
        "## ServiceProfiles\n\nThe operator in place of the validator: {} reviews, {equal} with the same answer.\n\n",
        compared.len()
    );
    for ProfileCompared { review, linkerd, operator, is_documented } in compared.iter().filter(|it| !it.is_equal()) {
        let documented = if *is_documented { "documented" } else { "**not documented**" };
        let review: String = review.chars().take(300).collect();
        let _ = writeln!(text, "- {documented}: `{review}`: Linkerd {linkerd}, the operator {operator}");
    }
    text.push('\n');
    text
}

pub(crate) fn cli(commands: &[Printed]) -> String {
    let mut text = "## CLI\n\n| command | exit code | lines | equal |\n|---|---|---|---|\n".to_owned();
    for printed in commands {
        let Printed { command, theirs, .. } = printed;
        let code = theirs.code.map_or("none".to_owned(), |code| code.to_string());
        let equal = if printed.is_equal() { "yes" } else { "no" };
        let _ = writeln!(text, "| `linkerd {command} | {code} | {} | {equal} |", theirs.lines.len());
    }
    text.push('\n');
    for Printed { command, ours, theirs } in commands.iter().filter(|printed| !printed.is_equal()) {
        let only = |one: &[String], other: &[String]| -> Vec<String> {
            one.iter().filter(|line| !other.contains(line)).cloned().collect()
        };
        let (of_ours, of_theirs) = (only(&ours.lines, &theirs.lines), only(&theirs.lines, &ours.lines));
        let _ = writeln!(
            text,
            "- `linkerd {command}: only ours ({:?}) {of_ours:?}, only Linkerd's {of_theirs:?}",
            ours.code
        );
    }
    text.push('\n');
    text
}

pub(crate) fn traffic(traffic: &Traffic) -> String {
    let Traffic { operations, clients, encrypted, plain } = traffic;
    let mut text = format!(
        "## Traffic\n\n{clients} clients. Responses from the server's identity over TLS: {encrypted}; others: {plain}.\n\n\
         | operation | server | requests | failed | changes | p50 | p99 | longest |\n|---|---|---|---|---|---|---|---|\n"
    );
    for operation in operations {
        let mut followed = operation.followed.clone();
        followed.sort_unstable();
        let quantile = |share| milliseconds(at_quantile(&followed, share));
        let avoidable = operation.failed();
        let failed = match operation.unavoidable {
            0 => avoidable.to_string(),
            unavoidable => format!("{avoidable} ({unavoidable} while empty)"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {failed} | {} | {} | {} | {} |",
            operation.name,
            operation.server,
            operation.counts.requests,
            followed.len(),
            quantile(50),
            quantile(99),
            quantile(100)
        );
    }
    text.push('\n');
    for operation in operations {
        for (reason, count) in &operation.counts.reasons {
            let _ = writeln!(text, "- {}, {}: {count} times {reason}", operation.name, operation.server);
        }
    }
    text.push('\n');
    text
}

pub(crate) fn identity(title: &str, steps: &[IdentityStep]) -> String {
    let mut text = format!(
        "## {title}\n\n| step | identity service | renewals | new connections | requests | failed | time |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for step in steps {
        let renewals: Vec<String> = step.renewals.iter().map(|(pod, count)| format!("{pod} {count}")).collect();
        let failed = match step.unavoidable {
            0 => step.failed().to_string(),
            unavoidable => format!("{} ({unavoidable} unavoidable)", step.failed()),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {failed} | {:.0} s |",
            step.name,
            step.server,
            renewals.join(", "),
            step.connections,
            step.counts.requests,
            step.took.as_secs_f64()
        );
    }
    text.push('\n');
    for step in steps {
        for (reason, count) in &step.counts.reasons {
            let _ = writeln!(text, "- {}, {}: {count} times {reason}", step.name, step.server);
        }
    }
    text.push('\n');
    text
}

/// The smallest of the sorted values that is at least as large as this percentage of them.
fn at_quantile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).checked_sub(1)?).copied()
}

fn milliseconds(duration: Option<Duration>) -> String {
    duration.map_or_else(String::new, |duration| format!("{:.0} ms", duration.as_secs_f64() * 1000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let at = |percent| at_quantile(&values, percent).map(|value| value.as_millis());
        assert_eq!([at(50), at(99), at(100)], [Some(100), Some(198), Some(200)]);
        assert_eq!(at_quantile(&[], 99), None);
        assert_eq!(at_quantile(&values[..1], 50), Some(Duration::from_millis(1)));
    }
}
