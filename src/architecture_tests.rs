//! Tests of the source layout: imports and type names of production code.

mod file_graph;
mod workflows;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use self::file_graph::{circles, file_graph, one_way_around};
use crate::testing::{files, repository};

/// The jobs of the architecture. No job imports another one.
const JOBS: [&str; 9] = [
    "destination",
    "external_workload",
    "identity",
    "issuer_writer",
    "linkerd_config",
    "linkerd_trust",
    "proxy_injector",
    "service_profile_validator",
    "webhook_certificates",
];

/// The modules of the crate that each module may import. A module is listed after all modules that it imports.
const ARROWS: &[(&str, &[&str])] = &[
    ("go", &[]),
    ("api", &["go"]),
    ("drop_in", &[]),
    ("proto", &[]),
    ("retry", &[]),
    ("tasks", &[]),
    ("text", &[]),
    ("x509", &["text"]),
    ("contain", &["text"]),
    ("values", &["api", "go", "text"]),
    ("version", &[]),
    ("listen", &[]),
    ("reasons", &[]),
    ("memory", &[]),
    ("resources", &["memory"]),
    ("metrics", &["contain", "memory", "version"]),
    ("grpc_client", &[]),
    ("grpc_metrics", &[]),
    ("response_limit", &[]),
    ("client", &["response_limit", "retry", "text"]),
    ("write", &["client"]),
    ("queue", &["api"]),
    ("cluster", &["api", "client", "contain", "go", "response_limit", "memory", "retry", "tasks", "text", "x509"]),
    ("lease", &["client", "retry", "tasks", "write"]),
    ("events", &["api", "client", "tasks", "text"]),
    ("controller", &["api", "cluster", "contain", "events", "lease", "queue", "retry"]),
    (
        "destination",
        &[
            "api",
            "client",
            "cluster",
            "contain",
            "grpc_metrics",
            "listen",
            "memory",
            "proto",
            "queue",
            "resources",
            "tasks",
            "text",
        ],
    ),
    ("webhook", &["api", "contain", "listen", "memory", "resources", "text"]),
    (
        "external_workload",
        &[
            "api",
            "cluster",
            "client",
            "controller",
            "events",
            "lease",
            "queue",
            "retry",
            "tasks",
            "text",
            "webhook",
            "write",
        ],
    ),
    (
        "injection_probe",
        &["api", "client", "cluster", "contain", "controller", "lease", "queue", "tasks", "text", "values", "write"],
    ),
    (
        "rollout",
        &[
            "api",
            "cluster",
            "contain",
            "controller",
            "events",
            "go",
            "lease",
            "queue",
            "retry",
            "tasks",
            "text",
            "values",
            "write",
            "x509",
        ],
    ),
    (
        "linkerd_config",
        &[
            "api",
            "cluster",
            "controller",
            "events",
            "injection_probe",
            "lease",
            "queue",
            "retry",
            "rollout",
            "tasks",
            "text",
            "values",
            "webhook",
            "write",
            "x509",
        ],
    ),
    ("proxy_injector", &["api", "client", "cluster", "contain", "events", "go", "tasks", "text", "values", "webhook"]),
    ("service_profile_validator", &["api", "cluster", "go", "text", "values", "webhook"]),
    (
        "webhook_certificates",
        &["api", "client", "contain", "events", "lease", "retry", "tasks", "webhook", "write", "x509"],
    ),
    ("destination_client", &["client", "grpc_client", "proto"]),
    (
        "fuzz_targets",
        &[
            "cluster",
            "destination",
            "external_workload",
            "linkerd_config",
            "proxy_injector",
            "service_profile_validator",
            "webhook",
        ],
    ),
    ("trust", &["api", "cluster", "go", "text", "values", "x509"]),
    (
        "identity",
        &[
            "api",
            "client",
            "cluster",
            "contain",
            "events",
            "grpc_metrics",
            "listen",
            "proto",
            "resources",
            "retry",
            "tasks",
            "text",
            "trust",
            "x509",
        ],
    ),
    ("summary", &["api", "cluster", "reasons", "text"]),
    (
        "linkerd_trust",
        &[
            "api",
            "client",
            "cluster",
            "contain",
            "controller",
            "events",
            "grpc_client",
            "lease",
            "proto",
            "queue",
            "retry",
            "tasks",
            "text",
            "trust",
            "values",
            "write",
            "x509",
        ],
    ),
    (
        "issuer_writer",
        &[
            "api",
            "client",
            "cluster",
            "controller",
            "events",
            "lease",
            "queue",
            "retry",
            "tasks",
            "text",
            "trust",
            "values",
            "write",
        ],
    ),
    ("explain", &["api", "cluster", "linkerd_config", "rollout", "summary", "text", "values"]),
    (
        "dashboard",
        &[
            "api",
            "client",
            "cluster",
            "destination",
            "destination_client",
            "events",
            "explain",
            "identity",
            "lease",
            "linkerd_config",
            "rollout",
            "summary",
            "text",
            "version",
            "webhook",
        ],
    ),
    ("admin", &["client", "dashboard", "identity", "listen", "metrics"]),
    (
        "cli",
        &[
            "api",
            "client",
            "cluster",
            "dashboard",
            "destination_client",
            "drop_in",
            "explain",
            "external_workload",
            "go",
            "linkerd_config",
            "proto",
            "response_limit",
            "summary",
            "text",
            "trust",
            "values",
            "version",
            "x509",
        ],
    ),
    (
        "args",
        &[
            "api",
            "cli",
            "cluster",
            "dashboard",
            "destination",
            "drop_in",
            "go",
            "identity",
            "resources",
            "text",
            "version",
        ],
    ),
    (
        "manager",
        &[
            "admin",
            "api",
            "args",
            "client",
            "cluster",
            "controller",
            "dashboard",
            "destination",
            "drop_in",
            "events",
            "external_workload",
            "identity",
            "issuer_writer",
            "lease",
            "linkerd_config",
            "linkerd_trust",
            "listen",
            "metrics",
            "proxy_injector",
            "resources",
            "rollout",
            "service_profile_validator",
            "tasks",
            "version",
            "webhook",
            "webhook_certificates",
        ],
    ),
];

/// Type names that are defined more than once, with the reason.
const DEFINED_AGAIN: &[(&str, &str)] = &[
    ("ExternalWorkload", WIRE_AND_PROJECTION),
    ("Server", WIRE_AND_PROJECTION),
    ("ServiceProfile", WIRE_AND_PROJECTION),
];
const WIRE_AND_PROJECTION: &str =
    "api has the custom resource, cluster/kinds its projection: both have the name of the kind";

/// The maximum number of files that may all use names of each other, over other files of the same circle. A reader must
/// know all of them to understand one.
const FILES_IN_A_CIRCLE: usize = 4;

/// The maximum number of files in a folder.
const FILES_IN_A_FOLDER: usize = 22;

/// Returns the path below `src`, and the code without comments; `None` for tests, fixtures and generated code.
fn production(file: &Path) -> Option<(String, String)> {
    let below = file.strip_prefix(repository().join("src")).unwrap();
    let below = below.to_str().unwrap().to_owned();
    let is_test = below.split('/').any(|part| {
        let part = part.trim_end_matches(".rs");
        part.ends_with("_tests") || part == "tests" || part == "testing"
    });
    if is_test || below.starts_with("proto/io.") {
        return None;
    }
    Some((below, code(file)))
}

/// Returns the text of a file without comments and inline tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    // Inline tests are the last item of a file.
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    code.join("\n")
}

/// Returns the first segments of all `crate::` paths in the code, in `use` trees and elsewhere.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut segment = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.insert(first_segment(&segment));
                        segment.clear();
                        continue;
                    }
                    _ => {}
                }
                segment.push(c);
            }
            found.insert(first_segment(&segment));
        } else {
            found.insert(first_segment(rest));
        }
    }
    found.remove("");
    found
}

fn first_segment(path: &str) -> String {
    path.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn module_of(below: &str) -> &str {
    below.split('/').next().unwrap().trim_end_matches(".rs")
}

#[test]
fn imports_of_a_use_tree_and_of_paths_are_found() {
    let code = "use crate::{\n    api::{self, a::B},\n    cluster::State,\n};\nuse crate::text::hex;\nlet x = crate::client::describe();";
    let expected = ["api", "client", "cluster", "text"].map(str::to_owned);
    assert_eq!(imports(code), expected.into());
    assert_eq!(imports("pub(in crate::cluster) fn f() {}"), ["cluster".to_owned()].into());
}

#[test]
fn modules_import_only_modules_below_them() {
    let arrows: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    for (at, (module, allowed)) in ARROWS.iter().enumerate() {
        for import in *allowed {
            assert!(ARROWS[..at].iter().any(|(below, _)| below == import), "{module} is listed above {import}");
            let jobs = JOBS.contains(module) && JOBS.contains(import);
            assert!(!jobs, "{module} and {import} are jobs, and jobs do not import each other");
        }
    }
    let mut wrong = Vec::new();
    for (below, code) in files("src", "rs").iter().filter_map(|file| production(file)) {
        let module = module_of(&below);
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let Some(allowed) = arrows.get(module) else {
            wrong.push(format!("{module} is not a module of the architecture: add it to ARROWS"));
            continue;
        };
        let forbidden = imports(&code).into_iter().filter(|it| it != module && !allowed.contains(&it.as_str()));
        wrong.extend(forbidden.map(|import| format!("{below} imports {import}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_do_not_use_each_other_in_large_circles() {
    let sources: Vec<_> = files("src", "rs").iter().filter_map(|file| production(file)).collect();
    let graph = file_graph(sources.iter().map(|(below, code)| (below.as_str(), code.as_str())));
    let mut wrong = Vec::new();
    for circle in circles(&graph) {
        if circle.len() > FILES_IN_A_CIRCLE {
            wrong.push((circle.len(), one_way_around(&graph, &circle), circle));
        }
    }
    assert!(wrong.is_empty(), "move a name that closes the circle to the file below: {wrong:#?}");
}

/// Returns the files that define each type, of these files with their code.
fn definitions(code: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, code) in code {
        for line in code.lines() {
            // Types of functions and of traits' implementations are local.
            let line = match line.strip_prefix("pub") {
                Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, rest)| rest),
                Some(rest) => rest.trim_start(),
                None => line,
            };
            let keyword = ["struct ", "enum ", "trait ", "type "].into_iter().find(|keyword| line.starts_with(keyword));
            if let Some(keyword) = keyword {
                let name = first_segment(&line[keyword.len()..]);
                defined.entry(name).or_default().push(file.clone());
            }
        }
    }
    defined
}

fn are_defined_once(defined: BTreeMap<String, Vec<String>>) {
    assert!(defined.len() > 100, "{} types were found", defined.len());
    let again: Vec<_> = defined
        .into_iter()
        .filter(|(name, files)| files.len() > 1 && !DEFINED_AGAIN.iter().any(|(known, _)| known == name))
        .collect();
    assert!(again.is_empty(), "rename one of them, or add the reason to DEFINED_AGAIN: {again:#?}");
}

#[test]
fn a_type_name_is_defined_once() {
    // The structs of a macro are indented.
    let of_macros = |(file, code): (String, String)| (file, code.replace("\n    struct ", "\nstruct "));
    are_defined_once(definitions(files("src", "rs").iter().filter_map(|file| production(file)).map(of_macros)));
    // The harness has types of its own for objects that the operator reads. Its tests are production code, too.
    let harness = ["e2e/src", "e2e/tests"].into_iter().flat_map(|folder| files(folder, "rs"));
    are_defined_once(definitions(harness.map(|file| (file.display().to_string(), code(&file)))));
}

#[test]
fn a_folder_does_not_have_too_many_files() {
    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for file in files("src", "rs") {
        *folders.entry(file.parent().unwrap().to_owned()).or_default() += 1;
    }
    let full: Vec<_> = folders.iter().filter(|(_, count)| **count > FILES_IN_A_FOLDER).collect();
    assert!(full.is_empty(), "{full:?}");
}
