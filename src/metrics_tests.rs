//! The page of metrics, the alerts and the dashboard name only existing metrics, and the page names all of them.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::Value;

use crate::testing::{files, repository};

const PAGE: &str = include_str!("../docs/src/reference/metrics.md");
const RUNBOOKS: &str = "docs/src/operate/runbooks";
const ALERTS: &str = include_str!("../config/prometheus/alerts.yaml");
const RECORDING_RULES: &str = include_str!("../config/prometheus/recording_rules.yaml");
const DASHBOARD: &str = include_str!("../config/prometheus/dashboard.json");

/// The beginnings, ends and whole names by which metrics are found among the words of the sources.
const BEGINNINGS: [&str; 6] =
    ["linkerd_operator_", "grpc_server_", "http_client_", "process_", "proxy_inject_", "workqueue_"];
const ENDS: [&str; 5] = ["_cache_size", "_informer_lag_seconds", "_queue_overflow", "_subscribers", "_updates"];
const OTHERS: [&str; 4] = ["cluster_store_size", "endpoints_exists", "endpoints_pods", "issuer_cert_ttl_seconds"];

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

fn is_metric(word: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| word.starts_with(beginning) && word != *beginning)
        || ENDS.iter().any(|end| word.ends_with(end))
        || OTHERS.contains(&word)
}

/// Returns the histogram that a series belongs to.
fn metric_of(series: &str) -> &str {
    ["_bucket", "_sum", "_count"].into_iter().find_map(|part| series.strip_suffix(part)).unwrap_or(series)
}

/// Returns the metrics that the sources have as literals, and those of the library's process collector.
fn defined() -> BTreeSet<String> {
    let is_source = |path: &PathBuf| !path.file_name().unwrap().to_string_lossy().ends_with("tests.rs");
    let text: String = files("src", "rs")
        .iter()
        .filter(|path| is_source(path))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let is_literal = |piece: &&str| is_metric(piece) && words(piece).count() == 1;
    let mut literals: BTreeSet<String> = text.split('"').filter(is_literal).map(str::to_owned).collect();
    let of_process = String::from_utf8(super::encode(&super::registry().unwrap()).unwrap()).unwrap();
    literals.extend(words(&of_process).filter(|word| word.starts_with("process_")).map(str::to_owned));
    literals
}

/// Returns the names in the first column of the tables of the page: the text in backticks, without labels.
fn documented() -> BTreeSet<String> {
    let cells = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let code = cells.flat_map(|cell| cell.split('`').step_by(2));
    let names = code.filter_map(|code| code.split('{').next()).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

#[test]
fn the_page_of_metrics_has_every_metric_and_no_other() {
    let (defined, documented) = (defined(), documented());
    let missing: Vec<_> = defined.difference(&documented).collect();
    assert!(missing.is_empty(), "reference/metrics.md lacks {missing:?}");
    let invented: Vec<_> = documented.difference(&defined).collect();
    assert!(invented.is_empty(), "reference/metrics.md has {invented:?}, which no source defines");
}

#[test]
fn alerts_and_dashboard_query_existing_metrics() {
    let defined = defined();
    let files = [("alerts.yaml", ALERTS), ("recording_rules.yaml", RECORDING_RULES), ("dashboard.json", DASHBOARD)];
    for (file, text) in files {
        // The names of recorded series contain colons.
        let lines = text.lines().filter(|line| !line.contains("record: ")).collect::<Vec<_>>().join("\n");
        let queried: Vec<_> = words(&lines).filter(|word| is_metric(word)).collect();
        assert!(queried.len() > 5, "{file}: {queried:?}");
        for series in queried {
            assert!(defined.contains(metric_of(series)), "{file}: no source defines {series}");
        }
    }
}

#[test]
fn the_dashboard_is_json_and_each_of_its_panels_has_a_query() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (rows, panels): (Vec<_>, Vec<_>) = panels.iter().partition(|panel| panel["type"] == "row");
    assert!(!rows.is_empty() && panels.len() > rows.len());
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty() && targets.iter().all(|target| target["expr"].is_string()), "{}", panel["title"]);
    }
}

/// Other programs export some of the metrics too, and `All` with `allValue` would match them.
#[test]
fn every_selector_of_the_dashboard_has_the_job_and_the_pod() {
    assert!(!DASHBOARD.contains("allValue"));
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    for query in targets.map(|target| target["expr"].as_str().unwrap()) {
        let metrics = words(query).filter(|word| is_metric(word)).count();
        let selectors = query.matches(r#"{job=~"$job",pod=~"$pod""#).count();
        assert!(metrics > 0 && metrics == selectors, "{query}");
    }
}

/// Returns the tests of an alert in `config/prometheus/tests`: whether each of them expects that it fires.
fn tests_of(alert: &str, tests: &[Value]) -> Vec<bool> {
    let checks = |test: &Value| -> Vec<Value> {
        let checks = test["alert_rule_test"].as_array().cloned().unwrap_or_default();
        checks.into_iter().filter(|check| check["alertname"] == alert).collect()
    };
    let fires = |check: &Value| check["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
    let of_alert = tests.iter().map(checks).filter(|checks| !checks.is_empty());
    of_alert.map(|checks| checks.iter().any(fires)).collect()
}

#[test]
fn every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let mut tests = Vec::new();
    for file in files("config/prometheus/tests", "yaml") {
        let text: Value = serde_yaml::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        tests.extend(text["tests"].as_array().unwrap().iter().cloned());
    }
    let alerts: Vec<_> = ALERTS.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
    assert!((10..=16).contains(&alerts.len()), "{alerts:?}");
    for alert in alerts {
        let found = tests_of(alert, &tests);
        assert!(found.contains(&true) && found.contains(&false), "{alert}: {found:?}");
    }
    for record in RECORDING_RULES.lines().filter_map(|line| line.trim_start().strip_prefix("- record: ")) {
        let samples = |test: &&Value| test["promql_expr_test"].to_string().contains(record);
        assert!(tests.iter().any(|test| samples(&test)), "{record} has no test");
    }
}

/// One incident fires one alert, or none.
#[test]
fn no_incident_fires_two_alerts() {
    let file = repository().join("config/prometheus/tests/incidents.yaml");
    let incidents: Value = serde_yaml::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let incidents = incidents["tests"].as_array().unwrap();
    assert!(incidents.len() >= 15);
    for incident in incidents {
        let checks = incident["promql_expr_test"].as_array().unwrap();
        assert!(!checks.is_empty() && incident.get("alert_rule_test").is_none(), "{}", incident["name"]);
        for check in checks {
            assert_eq!(check["expr"], "ALERTS{alertstate=\"firing\"}", "{}", incident["name"]);
            assert!(check["exp_samples"].as_array().unwrap().len() <= 1, "{}: {check}", incident["name"]);
        }
    }
}

#[test]
fn every_alert_has_its_annotations_and_a_runbook() {
    let count = |key: &str| ALERTS.lines().filter(|line| line.trim_start().starts_with(key)).count();
    let values = |key| ALERTS.lines().filter_map(move |line| line.trim_start().strip_prefix(key));
    let alerts: Vec<_> = values("- alert: ").collect();
    for key in ["summary: ", "description: ", "severity: ", "runbook: "] {
        assert_eq!(count(key), alerts.len(), "{key}");
    }
    let runbooks: Vec<_> = alerts.iter().map(|alert| format!("linkerd-operator runbook {alert}")).collect();
    assert_eq!(values("runbook: ").collect::<Vec<_>>(), runbooks);
    let pages = files(RUNBOOKS, "md").into_iter().map(|page| page.file_name().unwrap().to_string_lossy().into_owned());
    let pages: BTreeSet<_> = pages.filter(|page| page != "README.md").collect();
    assert_eq!(pages, alerts.iter().map(|alert| format!("{alert}.md")).collect());
    let index = fs::read_to_string(repository().join(RUNBOOKS).join("README.md")).unwrap();
    for alert in alerts {
        assert!(index.contains(&format!("({alert}.md)")), "the index of runbooks lacks {alert}");
    }
}

/// They are read at night, and printed in a terminal.
#[test]
fn every_runbook_is_short_and_has_the_same_sections() {
    for page in files(RUNBOOKS, "md") {
        let text = fs::read_to_string(&page).unwrap();
        let headings: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let (most, sections) = match page.ends_with("README.md") {
            true => (150, &[][..]),
            false => (190, &["Meaning", "Impact", "Diagnosis", "Mitigation"][..]),
        };
        assert_eq!(headings, sections, "{}", page.display());
        assert!(text.split_whitespace().count() <= most, "{}", page.display());
    }
}

#[test]
fn runbooks_query_existing_metrics() {
    let defined = defined();
    for page in files(RUNBOOKS, "md") {
        let text = fs::read_to_string(&page).unwrap();
        for series in words(&text).filter(|word| is_metric(word)) {
            assert!(defined.contains(metric_of(series)), "{}: no source defines {series}", page.display());
        }
    }
}

#[test]
fn the_memory_limit_and_the_budgets_of_the_page_of_sizing_are_exported() {
    const MIB: u64 = 1024 * 1024;
    let registry = super::registry().unwrap();
    super::register_memory_limit(&registry, 250 * MIB).unwrap();
    let text = String::from_utf8(super::encode(&registry).unwrap()).unwrap();
    // 60 %, 40 % and 70 % of the limit.
    for (series, mib) in [
        ("limit_bytes", 250),
        (r#"budget_bytes{use="clients"}"#, 150),
        (r#"budget_bytes{use="other_clusters"}"#, 100),
        (r#"budget_bytes{use="blocked_clients"}"#, 175),
    ] {
        let line = format!("linkerd_operator_memory_{series} {}\n", mib * MIB);
        assert!(text.contains(&line), "{line} is missing in {text}");
    }
}
