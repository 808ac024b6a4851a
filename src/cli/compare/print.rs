//! The differences as text and as a document.
//!
//! In: comparisons. Out: whole lines. Always holds: equal answers are only counted.

use serde::Serialize;

use super::{
    difference::{Comparison, Verdict},
    requests::RequestKind,
};
use crate::text::{
    counted,
    table::{line, widen},
};

const HEADER: [&str; 3] = ["REQUEST", "AUTHORITY", "DIFFERENCE"];
/// The number of lines that the table has for one request. JSON has all of them.
const MAX_LINES: usize = 10;

/// The output of `-o json` and `-o yaml`.
#[derive(Serialize)]
pub(super) struct CompareOutput<'a> {
    servers: &'a [String; 2],
    compared: usize,
    differences: Vec<DifferenceOutput<'a>>,
}

#[derive(Serialize)]
struct DifferenceOutput<'a> {
    request: RequestKind,
    authority: &'a str,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// Returns a row for each difference. Without a difference, the text is empty.
pub(super) fn table(comparisons: &[Comparison], no_headers: bool) -> String {
    let mut rows = Vec::new();
    for Comparison { request, verdict } in comparisons {
        let method = match request.method {
            RequestKind::Endpoints => "endpoints",
            RequestKind::Profile => "profile",
        };
        let row = |text: String| [method.to_owned(), request.authority.clone(), text];
        match verdict {
            Verdict::Equal => {}
            Verdict::Failed(why) => rows.push(row(format!("no answer: {why}"))),
            Verdict::Different(lines) => {
                rows.extend(lines.iter().take(MAX_LINES).map(|line| row(line.clone())));
                if lines.len() > MAX_LINES {
                    rows.push(row(format!("and {} more", lines.len() - MAX_LINES)));
                }
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    if !no_headers {
        rows.insert(0, HEADER.map(str::to_owned));
    }
    let mut widths = [0; HEADER.len()];
    for row in &rows {
        widen(&mut widths, row);
    }
    rows.iter().map(|row| line(row, &widths)).collect()
}

/// Returns all requests with different answers, or without an answer.
pub(super) fn document<'a>(comparisons: &'a [Comparison], servers: &'a [String; 2]) -> CompareOutput<'a> {
    let differences = comparisons.iter().filter(|comparison| comparison.verdict != Verdict::Equal);
    CompareOutput {
        servers,
        compared: comparisons.len(),
        differences: differences
            .map(|Comparison { request, verdict }| DifferenceOutput {
                request: request.method,
                authority: &request.authority,
                verdict,
            })
            .collect(),
    }
}

/// Returns the line for standard error.
pub(super) fn summary(comparisons: &[Comparison], [one, other]: &[String; 2]) -> String {
    let count = |wanted: fn(&Verdict) -> bool| comparisons.iter().filter(|it| wanted(&it.verdict)).count();
    let different = count(|verdict| matches!(verdict, Verdict::Different(_)));
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_)));
    let requests = counted(comparisons.len(), "request");
    let missing =
        if failed == 0 { String::new() } else { format!(", {} without an answer", counted(failed, "request")) };
    format!("Compared {one} with {other}: {requests}, {different} with different answers{missing}.")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::compare::requests::CompareRequest;

    fn comparison(method: RequestKind, authority: &str, verdict: Verdict) -> Comparison {
        Comparison { request: CompareRequest { method, authority: authority.to_owned() }, verdict }
    }

    fn servers() -> [String; 2] {
        ["ours:1", "theirs:2"].map(str::to_owned)
    }

    fn comparisons() -> Vec<Comparison> {
        let lines = ["10.0.0.1:80 only from ours:1", "10.0.0.2:80 differs in weight (1, 2)"].map(str::to_owned);
        vec![
            comparison(RequestKind::Endpoints, "web.prod.svc.cluster.local:80", Verdict::Different(lines.to_vec())),
            comparison(RequestKind::Profile, "web.prod.svc.cluster.local:80", Verdict::Equal),
            comparison(RequestKind::Profile, "10.9.0.1:80", Verdict::Failed("theirs:2: it restarts".to_owned())),
        ]
    }

    #[test]
    fn each_difference_is_a_row_and_equal_answers_are_counted() {
        let expected = "\
REQUEST     AUTHORITY                       DIFFERENCE
endpoints   web.prod.svc.cluster.local:80   10.0.0.1:80 only from ours:1
endpoints   web.prod.svc.cluster.local:80   10.0.0.2:80 differs in weight (1, 2)
profile     10.9.0.1:80                     no answer: theirs:2: it restarts
";
        assert_eq!(table(&comparisons(), false), expected);
        assert_eq!(
            summary(&comparisons(), &servers()),
            "Compared ours:1 with theirs:2: 3 requests, 1 with different answers, 1 request without an answer."
        );
        let rows = table(&comparisons(), true);
        assert!(rows.starts_with("endpoints   web.prod") && rows.lines().count() == 3, "{rows}");
    }

    #[test]
    fn without_a_difference_there_is_no_table() {
        let equal = [comparison(RequestKind::Profile, "10.9.0.1:80", Verdict::Equal)];
        assert_eq!(table(&equal, false), "");
        let expected = "Compared ours:1 with theirs:2: 1 request, 0 with different answers.";
        assert_eq!(summary(&equal, &servers()), expected);
    }

    #[test]
    fn many_differences_of_one_request_are_shortened_in_the_table() {
        let lines = (0..12).map(|at| format!("10.0.0.{at}:80 only from ours:1")).collect();
        let text = table(&[comparison(RequestKind::Endpoints, "a:1", Verdict::Different(lines))], false);
        assert_eq!(text.lines().count(), 12);
        assert!(text.ends_with("and 2 more\n"), "{text}");
    }

    #[test]
    fn json_has_the_servers_the_count_and_all_differences() {
        let written: Value = serde_json::to_value(document(&comparisons(), &servers())).unwrap();
        let expected = json!({
            "servers": ["ours:1", "theirs:2"],
            "compared": 3,
            "differences": [
                {
                    "request": "endpoints", "authority": "web.prod.svc.cluster.local:80",
                    "different": ["10.0.0.1:80 only from ours:1", "10.0.0.2:80 differs in weight (1, 2)"],
                },
                {"request": "profile", "authority": "10.9.0.1:80", "failed": "theirs:2: it restarts"},
            ],
        });
        assert_eq!(written, expected);
    }
}
