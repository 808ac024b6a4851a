//! Why a text is not a values document.

use super::{LONGEST, Path, read::DEEPEST};

/// Messages name places and keys, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDocument {
    #[error("longer than {} KiB", LONGEST >> 10)]
    TooLong,
    #[error("no YAML that Go reads: line {line}, column {column}: {reason}")]
    NotYaml { line: usize, column: usize, reason: String },
    #[error("no map")]
    NotAMap,
    #[error("line {line}, column {column}: {path} is there twice")]
    DuplicateKey { path: Path, line: usize, column: usize },
    #[error("{path} is there twice: as {one:?} and as {other:?}, which are one key for Linkerd")]
    TwoSpellings { path: Path, one: String, other: String },
    #[error("line {line}, column {column}: a key that is no string")]
    KeyIsNoString { line: usize, column: usize },
    #[error("line {line}, column {column}: {reason}")]
    Unsupported { line: usize, column: usize, reason: &'static str },
    #[error("line {line}, column {column}: nested more than {DEEPEST} deep")]
    TooDeep { line: usize, column: usize },
}
