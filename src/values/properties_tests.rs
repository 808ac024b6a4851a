//! Properties of every document.

use proptest::prelude::*;
use serde_json::json;

use super::{
    testing::{FIXTURE, fixture},
    *,
};

/// Strings that some YAML reader parses as another type.
pub(super) const NASTY: [&str; 96] = [
    "",
    " ",
    "  ",
    " lead",
    "trail ",
    "\t",
    "a\tb",
    "\ta",
    "a\t",
    "y",
    "Y",
    "yes",
    "Yes",
    "YES",
    "n",
    "N",
    "no",
    "No",
    "NO",
    "on",
    "On",
    "ON",
    "off",
    "Off",
    "OFF",
    "true",
    "True",
    "TRUE",
    "false",
    "False",
    "FALSE",
    "null",
    "Null",
    "NULL",
    "~",
    "0x1F",
    "0o7",
    "0777",
    "08",
    "0b1",
    "1_000",
    "1:30",
    "190:20:30.15",
    "12e03",
    "1e3",
    ".5",
    "1.",
    "-.5",
    "+1",
    "-1",
    "0",
    ".inf",
    "-.INF",
    ".NaN",
    ".",
    "-",
    "--",
    "---",
    "...",
    "2001-01-01",
    "2001-12-14t21:59:43.10-05:00",
    "=",
    "<<",
    "!",
    "!!str",
    "&a",
    "*a",
    "- a",
    "? a",
    ": a",
    "a: b",
    "a:b",
    "a:",
    ":a",
    "#",
    "a #b",
    "a#b",
    "%",
    "%YAML 1.1",
    "@",
    "`",
    "'",
    "\"",
    "\\",
    "{a",
    "[a",
    "a,b",
    "|",
    ">",
    "é",
    "\u{1f600}",
    "\u{feff}a",
    "\u{85}",
    "a\u{2028}b",
    "\u{7f}\u{0}",
    "a\r\nb",
];

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(&NASTY[..]).prop_map(str::to_owned),
        ".{0,12}",
        "[-+0-9_.:eExobTZ ]{1,10}",
        "(?s)[ \na#:-]{0,8}",
        prop::collection::vec("[ -~]{0,6}", 0..5).prop_map(|lines| lines.join("\n")),
        prop::collection::vec("[a-z]{0,6}", 0..5).prop_map(|lines| lines.join("\n") + "\n"),
        prop::collection::vec(any::<char>(), 0..6).prop_map(String::from_iter),
        Just("x".repeat(2_000)),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any_text().prop_map(Value::from),
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |it| it.is_finite().then(|| it.into())),
        (-100i32..100).prop_map(|it| json!(f64::from(it) / 8.0)),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(any_text(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

pub(super) fn any_map() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::hash_map(any_text(), any_value(), 0..6).prop_map(|map| map.into_iter().collect())
}

/// A patch as a resource may declare it, with keys of Linkerd's, other keys, and removed keys.
fn any_patch() -> impl Strategy<Value = Map<String, Value>> {
    let paths: Vec<Path> = fixture().leaves().map(|(path, _)| path).collect();
    let edits = prop::collection::vec((prop::sample::select(paths), any_value()), 0..6);
    (edits, any_map()).prop_map(|(edits, others)| {
        let mut patch = Document::default();
        patch.merge(&others);
        for (path, value) in edits {
            patch.set(&path, value);
        }
        patch.as_map().clone()
    })
}

proptest! {
    #[test]
    fn a_written_document_parses_to_the_same_document(map in any_map()) {
        let mut document = Document::default();
        for (key, value) in map {
            document.set(&[&*key].into_iter().collect(), value);
        }
        let text = document.to_yaml();
        let again = Document::parse(&text);
        prop_assert_eq!(again.as_ref().map(Document::as_map), Ok(document.as_map()), "{}", text);
        prop_assert_eq!(again.map(|it| it.hash()), Ok(document.hash()));
    }

    #[test]
    fn merging_a_patch_is_idempotent(patch in any_patch()) {
        let mut once = fixture();
        once.merge(&patch);
        let mut twice = once.clone();
        twice.merge(&patch);
        prop_assert_eq!(once.as_map(), twice.as_map());
        prop_assert_eq!(once.to_yaml(), twice.to_yaml());
    }

    #[test]
    fn any_text_is_parsed_or_rejected_and_has_bounded_problems(text in prop_oneof![
        any_text(),
        "(?s)[-a&*<!|>'\"{}\\[\\],:?# \n\t%0-9.]{0,60}",
        prop::collection::vec(any::<char>(), 0..40).prop_map(String::from_iter),
        (any::<prop::sample::Index>(), any::<char>()).prop_map(|(at, c)| {
            let mut text: Vec<char> = FIXTURE.chars().collect();
            let at = at.index(text.len());
            text[at] = c;
            text.into_iter().collect()
        }),
    ]) {
        if let Ok(document) = Document::parse(&text) {
            prop_assert!(document.problems().len() <= 200);
            prop_assert!(patch_problems(document.as_map()).len() <= 200);
            let again = Document::parse(&document.to_yaml());
            prop_assert_eq!(again.as_ref().map(Document::as_map), Ok(document.as_map()));
        }
    }

    #[test]
    fn hashes_ignore_the_order_and_the_spelling_of_keys(seed in any::<u64>()) {
        let document = fixture();
        let text = reordered(&document, seed);
        let again = Document::parse(&text).unwrap();
        prop_assert_eq!(again.hash(), document.hash());
        prop_assert_eq!(again.injection_hash(), document.injection_hash());
    }

    #[test]
    fn documents_differ_exactly_if_their_hashes_differ(patch in any_patch()) {
        let mut other = fixture();
        other.merge(&patch);
        let differences = fixture().differences(&other);
        prop_assert!(differences.is_sorted());
        prop_assert_eq!(differences.is_empty(), other.hash() == fixture().hash());
        let here: BTreeSet<Path> = fixture().leaves().chain(other.leaves()).map(|(path, _)| path).collect();
        prop_assert!(differences.iter().all(|path| here.contains(path)));
    }
}

/// Returns the same document in flow style, with rotated keys in another case, and numbers in another form.
fn reordered(document: &Document, seed: u64) -> String {
    fn write(above: &Path, value: &Value, seed: &mut u64, text: &mut String) {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match value {
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                let turn = usize::try_from(*seed >> 33).unwrap() % entries.len().max(1);
                entries.rotate_left(turn);
                text.push_str("{ # a comment\n");
                for (key, value) in entries {
                    let (path, loud) = (above.with(key), above.with(&key.to_uppercase()));
                    let loud = *seed >> 40 & 1 == 0 && canonical::canonical_path(&loud) == path;
                    let key = if loud { key.to_uppercase() } else { key.clone() };
                    text.push_str(&format!("{}: ", json!(key)));
                    write(&path, value, seed, text);
                    text.push_str(",\n");
                }
                text.push('}');
            }
            Value::Array(items) => {
                text.push('[');
                for item in items {
                    write(above, item, seed, text);
                    text.push(',');
                }
                text.push(']');
            }
            Value::Number(number) if *seed >> 50 & 1 == 0 => text.push_str(&format!("{number}.0")),
            Value::Number(number) if number.as_i64().is_some_and(|it| it >= 0) => text.push_str(&format!("+{number}")),
            Value::Bool(it) if *seed >> 51 & 1 == 0 => text.push_str(if *it { "yes" } else { "Off" }),
            other => text.push_str(&other.to_string()),
        }
    }
    let (mut text, mut seed) = (String::new(), seed);
    write(&Path::default(), &Value::Object(document.as_map().clone()), &mut seed, &mut text);
    text + "\n"
}
