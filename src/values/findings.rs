//! The problems that were found in a document, up to a limit.
//!
//! Always holds: no problem shows the value of a secret.

use std::fmt;

use serde_json::Value;

use super::path::{Path, shortened};

/// The maximum number of problems that are reported.
pub(super) const MOST: usize = 100;
const SHOWN: usize = 60;
pub(super) const HIDDEN: &str = "(not shown)";
pub(super) const KEY: &str = "PRIVATE KEY-----";

/// A reason not to write a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: Path,
    /// The shortened value; empty for an absent value, and hidden if it may be a secret.
    pub value: String,
    pub reason: String,
}

#[derive(Default)]
pub(super) struct Findings(Vec<Problem>);

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, value, reason } = self;
        match (path.keys().is_empty(), value.as_str()) {
            // A problem of the whole document.
            (true, _) => write!(f, "the document: {reason}"),
            (false, "") => write!(f, "{path}: {reason}"),
            (false, HIDDEN) => write!(f, "{path} {HIDDEN}: {reason}"),
            (false, value) => write!(f, "{path} ({value}): {reason}"),
        }
    }
}

// === impl Findings ===

impl Findings {
    pub(super) fn add(&mut self, path: &Path, value: Option<&Value>, reason: impl Into<String>) {
        if self.0.len() < MOST {
            let value = value.map(|value| shown(path, value)).unwrap_or_default();
            self.0.push(Problem { path: path.clone(), value, reason: reason.into() });
        }
    }

    pub(super) fn sorted(mut self) -> Vec<Problem> {
        self.0.sort_by(|one, other| one.path.cmp(&other.path));
        self.0
    }
}

fn shown(path: &Path, value: &Value) -> String {
    match value {
        _ if is_secret(path) => HIDDEN.to_owned(),
        Value::String(text) if text.contains(KEY) => HIDDEN.to_owned(),
        Value::String(text) => Value::from(shortened(text, SHOWN)).to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        value => value.to_string(),
    }
}

/// Returns whether a value may be a secret. Environment variables may contain secrets too.
pub(super) fn is_secret(path: &Path) -> bool {
    path.keys().iter().any(|key| {
        let key = key.to_ascii_lowercase();
        key == "keypem" || key.ends_with("env")
    })
}
