//! The report in Markdown.

use std::fmt::Write;

use crate::{answers::Answers, leases::HandOver};

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
