//! The report in Markdown.

use std::fmt::Write;

use crate::{answers::Answers, leases::HandOver, live::Live};

pub(crate) fn answers(answers: &Answers) -> String {
    let Answers { states, compared, equal, differences } = answers;
    let mut text = format!(
        "## Answers\n\n{states} states of random clusters, each with newly started servers: {compared} requests, {equal} \
         answers equal.\n\n| difference | row | seen | first seen |\n|---|---|---|---|\n"
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
