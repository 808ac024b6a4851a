//! The Helm charts: their templates, values and reference page are generated, and up to date.
//!
//! In: the manifests in `config` and `crd`, the flags of the manager, and the schema of each chart's values. Out: the
//! generated files of `charts`, and `docs/src/reference/helm.md`. Always holds: `UPDATE_CHARTS=1 cargo test --lib
//! charts` writes them; otherwise a file that differs fails a test.

mod manifests;
mod values;

use std::{env, fs};

use crate::testing::{files, repository};

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Compares a file with its generated text, or writes it.
fn assert_generated(path: &str, text: &str) {
    let file = repository().join(path);
    if env::var_os("UPDATE_CHARTS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
    }
    assert!(read(path) == text, "{path} is out of date: UPDATE_CHARTS=1 cargo test --lib charts");
}

/// The version of the operator is that of both charts, and of the image that they run by default.
#[test]
fn the_version_of_the_charts_is_that_of_the_operator() {
    let version = env!("CARGO_PKG_VERSION");
    for chart in ["linkerd-operator", "linkerd-operator-crds"] {
        let path = format!("charts/{chart}/Chart.yaml");
        let line = |line: &str| match line.split_once(": ") {
            Some((key @ ("version" | "appVersion"), _)) => format!("{key}: {version}\n"),
            _ => format!("{line}\n"),
        };
        let text: String = read(&path).lines().map(line).collect();
        assert!(text.contains(&format!("\nversion: {version}\n")), "{text}");
        assert!(text.contains(&format!("\nappVersion: {version}\n")), "{text}");
        assert_generated(&path, &text);
    }
}

/// So that two renderings are equal: nothing in a template depends on the cluster, the time, chance or the release's
/// history.
#[test]
fn no_template_reads_the_cluster_or_makes_a_random_value() {
    const FUNCTIONS: [&str; 14] = [
        "lookup",
        "rand",
        "shuffle",
        "uuidv4",
        "genCA",
        "genSigned",
        "genSelfSigned",
        "genPrivateKey",
        "htpasswd",
        "derivePassword",
        "now",
        ".Capabilities",
        ".Release.Is",
        ".Release.Revision",
    ];
    let mut templates: Vec<_> = ["yaml", "tpl", "txt"].iter().flat_map(|it| files("charts", it)).collect();
    templates.retain(|file| file.components().any(|part| part.as_os_str() == "templates"));
    assert!(templates.len() > 40, "{templates:?}");
    for file in templates {
        let text = fs::read_to_string(&file).unwrap();
        for action in text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            let words: Vec<_> = action.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '|')).collect();
            let used =
                FUNCTIONS.iter().find(|name| words.iter().any(|word| word.trim_start_matches('$').starts_with(**name)));
            assert!(used.is_none() || action.contains("/*"), "{}: {used:?} in {action:?}", file.display());
        }
    }
}
