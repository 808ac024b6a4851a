//! Prints a report as text, in the form of `linkerd check`.

use std::fmt::Write;

use super::judge::{CheckReport, CheckResult};
use crate::text::printable;

pub(super) fn text(report: &CheckReport) -> String {
    let mut text = String::new();
    for category in &report.categories {
        let name = &category.category_name;
        // Writing to a String cannot fail.
        _ = writeln!(text, "{name}\n{}", "-".repeat(name.len()));
        for check in &category.checks {
            _ = writeln!(text, "{} {}", mark(check.result), printable(&check.description));
            for line in check.error.iter().flat_map(|error| error.lines()) {
                _ = writeln!(text, "    {line}");
            }
        }
        text.push('\n');
    }
    _ = writeln!(text, "Status check results are {}", mark(report.worst()));
    text
}

fn mark(result: CheckResult) -> char {
    match result {
        CheckResult::Success => '√',
        CheckResult::Warning => '‼',
        CheckResult::Error => '×',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::judge::{CheckCategory, InstallationCheck};

    #[test]
    fn a_report_is_printed_as_linkerd_prints_one() {
        let categories = vec![CheckCategory {
            category_name: "linkerd-operator".to_owned(),
            checks: vec![
                InstallationCheck::success("a works"),
                InstallationCheck::warning("b works", "it is slow"),
                InstallationCheck::error("c works", "no\nway"),
            ],
        }];
        let expected = "\
linkerd-operator
----------------
√ a works
‼ b works
    it is slow
× c works
    no
    way

Status check results are ×
";
        assert_eq!(text(&CheckReport { success: false, categories }), expected);
        assert!(text(&CheckReport { success: true, categories: Vec::new() }).ends_with("are √\n"));
    }
}
