//! The entries of the fuzzer: they send any bytes through the code that the servers use.
//!
//! In: any bytes. Out: nothing; a panic is a finding. Always holds: a target depends on its input alone, so that a finding
//! is found again; it opens no connection to other hosts and writes no file.
//!
//! `make fuzz` runs them with libFuzzer. The unit tests run them over the corpus in `e2e/fuzz/corpus` and over mutations of
//! it. The entries are in the modules that they test, because most of what they call is private there.

#[cfg(test)]
mod corpus_tests;
mod validation_review;

pub use validation_review::validation_review;

use crate::{destination, proxy_injector, service_profile_validator, webhook};

/// A target: its name and its entry.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets. Each has a binary in `e2e/fuzz/targets` and a folder in `e2e/fuzz/corpus`.
pub const TARGETS: [FuzzTarget; 8] = [
    ("admission_review", admission_review),
    ("annotations", annotations),
    ("get_request", get_request),
    ("http2_frames", http2_frames),
    ("service_profile", service_profile),
    ("validation_review", validation_review),
    ("values_document", values_document),
    ("webhook_body", webhook_body),
];

/// The body of a review of a Pod or a Service.
pub fn admission_review(data: &[u8]) {
    proxy_injector::fuzzing::admission_review(data);
}

/// Lines `NAME=VALUE`: annotations of a Pod, and of its namespace where the line begins with `@`.
pub fn annotations(data: &[u8]) {
    proxy_injector::fuzzing::annotations(data);
}

/// A request of the Destination API: a path and a context token on two lines, or an encoded message.
pub fn get_request(data: &[u8]) {
    destination::fuzzing::get_request(data);
}

/// The bytes that a client of the Destination API sends after the preface of HTTP/2.
pub fn http2_frames(data: &[u8]) {
    destination::fuzzing::http2_frames(data);
}

/// A ServiceProfile in JSON.
pub fn service_profile(data: &[u8]) {
    service_profile_validator::fuzzing::service_profile(data);
    destination::fuzzing::service_profile(data);
}

/// The text of the installer's values, in YAML.
pub fn values_document(data: &[u8]) {
    proxy_injector::fuzzing::values_document(data);
}

/// How the body of a webhook request arrives, in two bytes, and the body.
pub fn webhook_body(data: &[u8]) {
    webhook::fuzzing::webhook_body(data);
}
