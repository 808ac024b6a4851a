//! Fixtures for the values tests.

use super::{Document, Path};

/// The document that Linkerd's chart renders.
pub(crate) const FIXTURE: &str = include_str!("testdata/installed.yaml");

/// A root certificate that proxies can use.
pub(crate) const TRUST_ANCHORS: &str = include_str!("testdata/root.pem");

/// Another one.
pub(crate) const OTHER_TRUST_ANCHORS: &str = include_str!("testdata/other-root.pem");

pub(super) fn fixture() -> Document {
    Document::parse(FIXTURE).unwrap()
}

pub(super) fn path(text: &str) -> Path {
    text.split('.').collect()
}
