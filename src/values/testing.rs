//! Fixtures for the values tests.

use super::{Document, Path};

/// The document that Linkerd's chart renders.
pub(crate) const FIXTURE: &str = include_str!("testdata/installed.yaml");

pub(super) fn fixture() -> Document {
    Document::parse(FIXTURE).unwrap()
}

pub(super) fn path(text: &str) -> Path {
    text.split('.').collect()
}
