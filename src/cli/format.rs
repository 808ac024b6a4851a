//! The format of a command's output.
//!
//! In: a value that a command prints, and its text. Out: the text, or one document of JSON or YAML.

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use serde_saphyr::ser_options;

/// The format of a command that prints text by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Table,
    /// The table with more columns. As for kubectl, a table without more columns stays as it is.
    Wide,
    Json,
    Yaml,
}

/// The format of a command that prints documents only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    Json,
    Yaml,
}

// === impl OutputFormat ===

impl OutputFormat {
    /// Returns the format of documents, unless the output is text.
    pub(super) fn document(self) -> Option<DocumentFormat> {
        match self {
            Self::Table | Self::Wide => None,
            Self::Json => Some(DocumentFormat::Json),
            Self::Yaml => Some(DocumentFormat::Yaml),
        }
    }

    /// Returns the text, or the value as one document.
    ///
    /// # Errors
    /// If the value cannot be serialized.
    pub(super) fn print(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<String> {
        self.document().map_or_else(|| Ok(text()), |format| format.print(value))
    }
}

// === impl DocumentFormat ===

impl DocumentFormat {
    /// Returns one document over several lines.
    ///
    /// # Errors
    /// If the value cannot be serialized.
    pub(super) fn print(self, value: &impl Serialize) -> Result<String> {
        Ok(match self {
            Self::Json => format!("{}\n", serde_json::to_string_pretty(value)?),
            Self::Yaml => yaml(value)?,
        })
    }

    /// Returns one document of several that follow each other: a line of JSON, or YAML that begins with `---`.
    ///
    /// # Errors
    /// If the value cannot be serialized.
    pub(super) fn next(self, value: &impl Serialize) -> Result<String> {
        Ok(match self {
            Self::Json => format!("{}\n", serde_json::to_string(value)?),
            Self::Yaml => format!("---\n{}", yaml(value)?),
        })
    }
}

/// Returns YAML with the fields of the JSON, in the same order.
fn yaml(value: &impl Serialize) -> Result<String> {
    Ok(serde_saphyr::to_string_with_options(value, ser_options! { prefer_block_scalars: false })?)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn yaml_has_the_same_values_as_json_in_the_same_order() {
        #[derive(Serialize)]
        struct Row {
            pod: &'static str,
            ip: &'static str,
            weight: u32,
            empty: [u8; 0],
        }
        let rows = [Row { pod: "on", ip: "fd00::1", weight: 1, empty: [] }];
        let yaml = DocumentFormat::Yaml.print(&rows).unwrap();
        assert_eq!(yaml, "- pod: \"on\"\n  ip: fd00::1\n  weight: 1\n  empty: []\n");
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, json!([{"pod": "on", "ip": "fd00::1", "weight": 1, "empty": []}]));
    }

    #[test]
    fn documents_of_a_watch_can_be_told_apart() {
        let value = json!({"a": 1});
        assert_eq!(DocumentFormat::Json.next(&value).unwrap(), "{\"a\":1}\n");
        assert_eq!(DocumentFormat::Yaml.next(&value).unwrap(), "---\na: 1\n");
    }
}
