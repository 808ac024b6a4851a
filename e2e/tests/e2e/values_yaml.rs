//! Parses the operator's YAML with kubectl, that is, with Go's parser for YAML 1.1. No API server is needed.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::binaries::Binaries;
use serde_json::Value;

/// A document as the operator writes it, and its values. A unit test checks that the operator still writes this text.
const WRITTEN: &str = include_str!("../../../src/values/testdata/written.yaml");
const EXPECTED: &str = include_str!("../../../src/values/testdata/written.json");

/// Returns the values that kubectl parses from a YAML document.
fn read(document: &str) -> Result<Value> {
    let kubectl = Binaries::find_or_build()?.tool("kubectl")?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("object.yaml");
    // kubectl accepts only objects, so the document becomes a field of one.
    let indented: String = document.lines().map(|line| format!("  {line}\n")).collect();
    let object = format!("apiVersion: example.com/v1\nkind: Values\nmetadata:\n  name: values\nvalues:\n{indented}");
    std::fs::write(&file, object)?;
    let output = Command::new(kubectl)
        .args(["patch", "--local", "--type=merge", "--patch={}", "--output=json", "--filename"])
        .arg(&file)
        .env("HOME", directory.path())
        .env("KUBECONFIG", directory.path().join("none"))
        .output()
        .context("running kubectl")?;
    ensure!(output.status.success(), "kubectl: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut object: Value = serde_json::from_slice(&output.stdout)?;
    Ok(object.get_mut("values").map(Value::take).unwrap_or_default())
}

/// Compares numbers by value: kubectl writes 1e+20 in full, and a `u64` as a float.
fn assert_same(one: &Value, other: &Value, at: &str) {
    match (one, other) {
        (Value::Object(map), Value::Object(others)) => {
            assert_eq!(map.keys().collect::<Vec<_>>(), others.keys().collect::<Vec<_>>(), "{at}");
            for (key, value) in map {
                assert_same(value, &others[key], &format!("{at}[{key:?}]"));
            }
        }
        (Value::Array(items), Value::Array(others)) => {
            assert_eq!(items.len(), others.len(), "{at}");
            for (number, (item, other)) in items.iter().zip(others).enumerate() {
                assert_same(item, other, &format!("{at}[{number}]"));
            }
        }
        (Value::Number(number), Value::Number(other)) => assert_eq!(number.as_f64(), other.as_f64(), "{at}"),
        (one, other) => assert_eq!(one, other, "{at}"),
    }
}

#[test]
fn go_parses_the_documents_that_the_operator_writes() -> Result<()> {
    assert_same(&read(WRITTEN)?, &serde_json::from_str(EXPECTED)?, "");
    Ok(())
}

/// Without this rule the test above would prove nothing.
#[test]
fn kubectl_parses_yaml_1_1() -> Result<()> {
    let found = read("a: off\nb: \"off\"\nc: 0777\nd: 1_000\ny: 1\n")?;
    assert_eq!(found, serde_json::json!({"a": false, "b": "off", "c": 511, "d": 1000, "true": 1}));
    Ok(())
}
