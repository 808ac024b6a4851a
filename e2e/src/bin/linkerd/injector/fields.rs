//! Every field of the values document, with values of every type: which of them Linkerd's injector refuses.
//!
//! * In: the recorded answers, which the operator's unit tests hold its rules against; running replicas. Out: the
//!   fields whose answers have changed, and the answers as a new recording.
//! * Always: the probe's Pod is reviewed. A value is refused if the Pod does not get a proxy, for whatever reason.

use std::{collections::BTreeMap, fmt::Write, fs};

use anyhow::{Context, Result};
use e2e::{
    Injector,
    injector::reviews::{INSTALLED, TRUST_ROOTS, probe, request},
};
use futures::future::try_join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reviews::{SeenAnswer, seen};

/// Answers of the injector at the commit that the file names.
const RECORDED: &str = include_str!("../../../../../src/values/testdata/injector-answers.json");
/// Stands for the value in a document.
const PLACE: &str = "the value";

/// The answers about all fields.
#[derive(Deserialize)]
pub(crate) struct Recording {
    /// The commit of Linkerd.
    linkerd: String,
    /// The values, as YAML.
    values: Vec<String>,
    classes: Vec<FieldClass>,
}

/// The fields that refuse the same values. In the path of a field, `[]` is the item of a list, and `*` any key.
#[derive(Deserialize)]
struct FieldClass {
    refuses: Vec<String>,
    fields: Vec<String>,
}

/// The result of a comparison with the recording.
pub(crate) struct ComparedFields {
    pub(crate) linkerd: String,
    pub(crate) fields: usize,
    pub(crate) asked: usize,
    pub(crate) refused: usize,
    /// The fields with other answers: the values that are refused now, and those that were.
    pub(crate) changed: Vec<(String, Vec<String>, Vec<String>)>,
    /// The present answers, in the format of the recording.
    pub(crate) recording: String,
}

pub(super) async fn compare(injector: &Injector) -> Result<ComparedFields> {
    let Recording { linkerd, values, classes } = serde_json::from_str(RECORDED).context("the recorded answers")?;
    let recorded: BTreeMap<&String, &Vec<String>> =
        classes.iter().flat_map(|class| class.fields.iter().map(|field| (field, &class.refuses))).collect();
    let paths: Vec<&String> = recorded.keys().copied().collect();
    let replicas = injector.replicas();
    let shares = paths.chunks(paths.len().div_ceil(replicas.len().max(1)).max(1));
    let asked = replicas.into_iter().zip(shares).map(|(replica, share)| refusals(injector, replica, share, &values));
    let answers: Vec<(String, Vec<String>)> = try_join_all(asked).await?.into_iter().flatten().collect();
    let changed = answers.iter().filter_map(|(field, refuses)| {
        let before = recorded.get(field).copied().filter(|before| *before != refuses)?;
        Some((field.clone(), refuses.clone(), before.clone()))
    });
    Ok(ComparedFields {
        fields: answers.len(),
        asked: answers.len() * values.len(),
        refused: answers.iter().map(|(_, refuses)| refuses.len()).sum(),
        changed: changed.collect(),
        recording: recording(&linkerd, &values, &answers),
        linkerd,
    })
}

/// The refused values of each field, from one replica.
async fn refusals(
    injector: &Injector,
    replica: usize,
    fields: &[&String],
    values: &[String],
) -> Result<Vec<(String, Vec<String>)>> {
    let folder = injector.directory(replica)?;
    fs::write(folder.join("identity/trust-roots/ca-bundle.crt"), TRUST_ROOTS)?;
    let (file, probe) = (folder.join("config/values"), probe());
    let body = request("Pod", &probe).to_string();
    let mut answers = Vec::new();
    for field in fields {
        let document = with_place(field)?;
        let mut refused = Vec::new();
        for value in values {
            fs::write(&file, document.replace(&json!(PLACE).to_string(), value))?;
            let seen = match injector.post(replica, body.clone()).await {
                Ok((_, answer)) => seen(&serde_json::from_slice(&answer)?, &probe).ok(),
                Err(_) => None,
            };
            if !matches!(seen, Some(SeenAnswer::Injected(_))) {
                refused.push(value.clone());
            }
        }
        answers.push(((*field).clone(), refused));
    }
    Ok(answers)
}

/// The installed document with [`PLACE`] as this field.
fn with_place(field: &str) -> Result<String> {
    let mut document: Value = serde_yaml::from_str(INSTALLED)?;
    put(&mut document, &field.split('.').collect::<Vec<_>>());
    Ok(document.to_string())
}

/// Sets the field, and creates what is missing above it. A variable of the environment gets a name.
fn put(at: &mut Value, path: &[&str]) {
    match path {
        [] => *at = json!(PLACE),
        ["[]", rest @ ..] => {
            *at = json!([{}]);
            if let Some(item) = at.get_mut(0) {
                if !rest.is_empty() {
                    *item = json!({"name": "A"});
                }
                put(item, rest);
            }
        }
        [key, rest @ ..] => {
            if !at.is_object() {
                *at = json!({});
            }
            if let Some(map) = at.as_object_mut() {
                put(map.entry(if *key == "*" { "any" } else { *key }).or_insert(Value::Null), rest);
            }
        }
    }
}

/// Writes a recording, with one class of fields per block.
fn recording(linkerd: &str, values: &[String], answers: &[(String, Vec<String>)]) -> String {
    let mut classes: BTreeMap<&Vec<String>, Vec<&String>> = BTreeMap::new();
    for (field, refuses) in answers {
        classes.entry(refuses).or_default().push(field);
    }
    let classes = classes.into_iter().map(|(refuses, fields)| {
        let fields = fields.iter().map(|field| format!("    {}", json!(field))).collect::<Vec<_>>();
        format!("  {{\"refuses\": {}, \"fields\": [\n{}\n  ]}}", json!(refuses), fields.join(",\n"))
    });
    let mut text = String::new();
    let _ = writeln!(text, "{{\"linkerd\": {},\n\"values\": {},\n\"classes\": [", json!(linkerd), json!(values));
    let _ = writeln!(text, "{}\n]}}", classes.collect::<Vec<_>>().join(",\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_put_below_lists_and_maps() {
        let mut document = json!({"a": {"b": 1}, "c": "text"});
        put(&mut document, &["a", "list", "[]", "value"]);
        put(&mut document, &["c", "*", "d"]);
        put(&mut document, &["names", "[]"]);
        let expected = json!({
            "a": {"b": 1, "list": [{"name": "A", "value": PLACE}]},
            "c": {"any": {"d": PLACE}},
            "names": [PLACE],
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn a_recording_is_read_back() {
        let answers = [("a", vec!["[]"]), ("b.c", vec![]), ("d", vec!["[]"])];
        let answers =
            answers.map(|(field, values)| (field.to_owned(), values.into_iter().map(str::to_owned).collect()));
        let text = recording("commit", &["[]".to_owned(), "\"5\"".to_owned()], &answers);
        let read: Recording = serde_json::from_str(&text).unwrap();
        assert_eq!(read.values, ["[]", "\"5\""]);
        let read: Vec<_> = read.classes.iter().map(|class| (class.fields.clone(), class.refuses.clone())).collect();
        assert_eq!(read[0], (vec!["b.c".to_owned()], vec![]));
        assert_eq!(read[1], (vec!["a".to_owned(), "d".to_owned()], vec!["[]".to_owned()]));
    }
}
