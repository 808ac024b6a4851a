//! The reasons why a text is not a values document.

use super::{Path, read::DEEPEST};

/// The maximum length of a document's text, in bytes.
pub const LONGEST: usize = 512 << 10;

/// The reason why a text is not a values document. Messages name positions and keys, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDocument {
    #[error("the text is longer than {} KiB", LONGEST >> 10)]
    TooLong,
    #[error("not YAML that Go can parse: line {line}, column {column}: {reason}")]
    NotYaml { line: usize, column: usize, reason: String },
    #[error("not a map")]
    NotAMap,
    #[error("line {line}, column {column}: duplicate key {path}")]
    DuplicateKey { path: Path, line: usize, column: usize },
    #[error("duplicate key {path}: {one:?} and {other:?} are the same key for Linkerd")]
    TwoSpellings { path: Path, one: String, other: String },
    #[error("line {line}, column {column}: a key is not a string")]
    KeyIsNoString { line: usize, column: usize },
    #[error("line {line}, column {column}: {reason}")]
    Unsupported { line: usize, column: usize, reason: &'static str },
    #[error("line {line}, column {column}: nested more than {DEEPEST} levels deep")]
    TooDeep { line: usize, column: usize },
}
