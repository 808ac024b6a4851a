//! The notices of the libraries that are compiled into a binary: their licenses require that copies contain them.
//!
//! * In: `cargo metadata` and the license files in the sources of each library. Out: one text, sorted by library, in which
//!   libraries with the same files share them.
//! * Always: the same dependencies produce the same text; a library without a license file is listed with the license that
//!   its manifest names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::shipped::in_repository;

/// The beginnings of the names of license files, in upper case.
const FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
const RULE: &str = "================================================================================";

struct Library {
    /// The name and the version.
    title: String,
    license: String,
    folder: String,
}

/// Returns the notices of the libraries of this package on this host's platform.
///
/// # Errors
/// Fails if cargo fails, or if a source cannot be read.
pub fn of_dependencies(package: &str) -> Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", &host()?]);
    let output = command.current_dir(in_repository("")).output().context("cannot start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata = serde_json::from_slice(&output.stdout).context("cannot read the output of cargo metadata")?;
    let mut by_text: BTreeMap<Vec<String>, Vec<Library>> = BTreeMap::new();
    for library in libraries(&metadata, package)? {
        by_text.entry(license_files(&library)?).or_default().push(library);
    }
    Ok(text(package, &by_text))
}

fn host() -> Result<String> {
    let output = Command::new("rustc").args(["--version", "--verbose"]).output().context("cannot start rustc")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not print its host")?;
    Ok(host.to_owned())
}

/// Returns what is compiled into the package: its normal dependencies, and theirs.
fn libraries(metadata: &Value, package: &str) -> Result<Vec<Library>> {
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let packages = list(metadata, "packages");
    let root = packages.iter().find(|it| text(it, "name") == package).context("cargo metadata lacks the package")?;
    let nodes = list(metadata.get("resolve").unwrap_or(&Value::Null), "nodes");
    let dependencies: BTreeMap<String, Vec<String>> = nodes
        .iter()
        .map(|node| {
            // The kind of a normal dependency is null.
            let normal =
                |it: &Value| list(it, "dep_kinds").iter().any(|kind| kind.get("kind").is_some_and(Value::is_null));
            let ids = list(node, "deps").iter().filter(|it| normal(it)).map(|it| text(it, "pkg")).collect();
            (text(node, "id"), ids)
        })
        .collect();
    let mut found = BTreeSet::new();
    let mut waiting = vec![text(root, "id")];
    while let Some(id) = waiting.pop() {
        for id in dependencies.get(&id).into_iter().flatten() {
            if found.insert(id.clone()) {
                waiting.push(id.clone());
            }
        }
    }
    let mut libraries: Vec<Library> = packages
        .iter()
        .filter(|it| found.contains(&text(it, "id")))
        .map(|it| Library {
            title: format!("{} {}", text(it, "name"), text(it, "version")),
            license: text(it, "license"),
            folder: text(it, "manifest_path").trim_end_matches("/Cargo.toml").to_owned(),
        })
        .collect();
    libraries.sort_by(|one, other| one.title.cmp(&other.title));
    Ok(libraries)
}

/// Returns the texts of the license files of a library, sorted by name.
fn license_files(library: &Library) -> Result<Vec<String>> {
    let folder = Path::new(&library.folder);
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read the sources of {}", library.title))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_license = FILES.iter().any(|file| name.to_ascii_uppercase().starts_with(file));
        if is_license && folder.join(&name).is_file() {
            names.push(name);
        }
    }
    names.sort();
    let read = |name: &String| {
        fs::read(folder.join(name)).map(|text| String::from_utf8_lossy(&text).replace('\r', "").trim_end().to_owned())
    };
    names.iter().map(|name| read(name).with_context(|| format!("cannot read {name} of {}", library.title))).collect()
}

fn text(package: &str, by_text: &BTreeMap<Vec<String>, Vec<Library>>) -> String {
    let mut groups: Vec<_> = by_text.iter().collect();
    groups.sort_by_key(|(_, libraries)| libraries.first().map(|library| library.title.clone()));
    let mut all = format!("{package} contains the following libraries.\n");
    for (files, libraries) in groups {
        let _ = writeln!(all, "\n{RULE}");
        for Library { title, license, .. } in libraries {
            let _ = writeln!(all, "{title}: {license}");
        }
        for file in files {
            let _ = writeln!(all, "\n{file}");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str) -> Value {
        json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "manifest_path": format!("/src/{name}/Cargo.toml")})
    }

    fn dependency(name: &str, kind: &Value) -> Value {
        json!({"pkg": name, "dep_kinds": [{"kind": kind}]})
    }

    #[test]
    fn only_what_is_compiled_into_the_binary_is_listed() {
        let packages = ["operator", "direct", "below", "build-tool", "test-tool", "other"].map(package);
        let metadata = json!({
            "packages": packages,
            "resolve": {"nodes": [
                {"id": "operator", "deps": [
                    dependency("direct", &Value::Null), dependency("build-tool", &json!("build")), dependency("test-tool", &json!("dev")),
                ]},
                {"id": "direct", "deps": [dependency("below", &Value::Null)]},
                {"id": "below", "deps": []},
                {"id": "other", "deps": []},
            ]},
        });
        let titles = libraries(&metadata, "operator").unwrap().into_iter().map(|it| it.title).collect::<Vec<_>>();
        assert_eq!(titles, ["below 1.0.0", "direct 1.0.0"]);
    }

    #[test]
    fn libraries_with_the_same_files_share_them() {
        let library = |title: &str| Library { title: title.into(), license: "MIT".into(), folder: String::new() };
        let by_text = BTreeMap::from([
            (vec!["Copyright B".to_owned()], vec![library("b 1")]),
            (vec!["Copyright A".to_owned()], vec![library("a 1"), library("c 2")]),
        ]);
        let expected = format!(
            "operator contains the following libraries.\n\n{RULE}\na 1: MIT\nc 2: MIT\n\nCopyright A\n\n{RULE}\nb 1: MIT\n\nCopyright B\n"
        );
        assert_eq!(text("operator", &by_text), expected);
    }

    #[test]
    fn the_notices_of_the_operator_have_the_licenses_of_kube_and_tokio() {
        let notices = of_dependencies("linkerd-operator").unwrap();
        for line in ["kube ", "tokio ", "Apache License", "Permission is hereby granted"] {
            assert!(notices.contains(line), "{line}");
        }
        assert!(!notices.contains("\nproptest "), "a test dependency is listed");
    }
}
