//! ServiceProfiles through the validator, for the fuzzer.

use serde_json::value::RawValue;

use super::{rules::validate, warnings::warnings};

/// The most bytes of a message.
const LONGEST_MESSAGE: usize = 4096;

/// A ServiceProfile. It has one verdict, of bounded length.
pub(crate) fn service_profile(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<&RawValue>(data) else { return };
    let verdict = || validate(Some(object)).map(|profile| warnings(&profile, Some("cluster.local")));
    let first = verdict();
    assert_eq!(verdict(), first);
    match first {
        Ok(warnings) => assert!(warnings.iter().all(|warning| warning.len() <= LONGEST_MESSAGE), "{warnings:?}"),
        Err(message) => assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len()),
    }
}
