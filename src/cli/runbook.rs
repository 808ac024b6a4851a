//! `linkerd-operator runbook` prints the page of an alert, or lists the alerts.
//!
//! In: the name of an alert. Out: its page of `docs/src/operate/runbooks`, which the binary contains. Always holds: the
//! page is printed as it is, without a cluster and without a network.

use std::{fmt::Write, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Args as ClapArgs, builder::PossibleValuesParser};

use super::terminal::write;

/// The page of an alert.
#[derive(Clone, Copy, Debug)]
struct Runbook {
    /// The name of the alert, and of the file.
    name: &'static str,
    page: &'static str,
}

/// Defines [`RUNBOOKS`]. The build fails if a page is missing.
macro_rules! runbooks {
    ($($name:literal),+ $(,)?) => {
        [$(Runbook {
            name: $name,
            page: include_str!(concat!("../../docs/src/operate/runbooks/", $name, ".md")),
        },)+]
    };
}

/// All pages, in the order of `config/prometheus/alerts.yaml`.
const RUNBOOKS: [Runbook; 16] = runbooks![
    "LinkerdOperatorDown",
    "LinkerdOperatorDegraded",
    "LinkerdOperatorWatchStale",
    "LinkerdOperatorForbidden",
    "LinkerdOperatorSliceWritesFail",
    "LinkerdConfigDenied",
    "LinkerdConfigStalled",
    "LinkerdConfigNotReady",
    "LinkerdTrustBroken",
    "LinkerdTrustNeedsAction",
    "LinkerdConfigRolloutHalted",
    "LinkerdConfigPodsWithoutProxy",
    "LinkerdOperatorInjectorDown",
    "LinkerdOperatorWebhookCertificateExpires",
    "LinkerdOperatorStreamsRefused",
    "LinkerdOperatorRemoteClusterStale",
];

#[derive(Clone, Debug, ClapArgs)]
pub struct RunbookArgs {
    /// Name of an alert; without it, all of them are listed
    #[arg(
        value_parser = PossibleValuesParser::new(RUNBOOKS.map(|runbook| runbook.name)),
        hide_possible_values = true,
        ignore_case = true
    )]
    pub name: Option<String>,
}

pub(super) fn runbook(args: &RunbookArgs) -> Result<ExitCode> {
    match &args.name {
        None => write(&list())?,
        Some(name) => {
            let runbook = RUNBOOKS.iter().find(|runbook| runbook.name.eq_ignore_ascii_case(name));
            write(runbook.with_context(|| format!("there is no runbook {name}"))?.page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each alert: its name and the first sentence of its page.
fn list() -> String {
    let width = RUNBOOKS.iter().map(|runbook| runbook.name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for runbook in RUNBOOKS {
        // Writing into a String does not fail.
        let _ = writeln!(text, "{:width$}   {}", runbook.name, runbook.summary());
    }
    text
}

// === impl Runbook ===

impl Runbook {
    /// Returns the line below the title.
    fn summary(self) -> &'static str {
        self.page.lines().skip(1).find(|line| !line.is_empty()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        testing::{files, repository},
        text::printable_lines,
    };

    #[test]
    fn the_table_has_each_alert_and_each_page_in_their_order() {
        let alerts = fs::read_to_string(repository().join("config/prometheus/alerts.yaml")).unwrap();
        let alerts: Vec<_> = alerts.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
        assert_eq!(RUNBOOKS.map(|runbook| runbook.name).to_vec(), alerts);
        let pages = files("docs/src/operate/runbooks", "md");
        assert_eq!(pages.len(), RUNBOOKS.len() + 1, "the pages, and the index: {pages:?}");
    }

    #[test]
    fn a_page_is_printed_as_it_is_and_its_second_paragraph_is_one_line_for_the_list() {
        for runbook in RUNBOOKS {
            assert_eq!(printable_lines(runbook.page), runbook.page, "{}", runbook.name);
            assert!(runbook.page.starts_with(&format!("# {}\n\n", runbook.name)), "{}", runbook.page);
            let summary = runbook.summary();
            assert!(summary.ends_with('.') && summary.len() <= 100, "{}: {summary:?}", runbook.name);
            assert!(runbook.page.contains(&format!("\n\n{summary}\n\n## Meaning\n")), "{}", runbook.page);
        }
        assert_eq!(list().lines().count(), RUNBOOKS.len());
    }
}
