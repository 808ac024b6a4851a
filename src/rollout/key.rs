//! The key of a rollout, which identifies the configuration that workloads are restarted for. Pure.
//!
//! Always holds: two targets with the same [`RolloutKey`] require the same of every Pod, so a workload that is up to
//! date for a key is not restarted for it.

use std::{fmt, sync::Arc};

use crate::text::sha256;

/// Number of digits of a shortened hash in a key.
const SHOWN: usize = 8;

/// The value of the annotation of Pod templates: the injection hash, a prefix of the hash of the trust anchors, and, if
/// a user requested a retry, a prefix of the hash of that request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutKey(Arc<str>);

// === impl RolloutKey ===

impl RolloutKey {
    pub fn of(injection_hash: &str, trust_roots: Option<&str>, retry: Option<&str>) -> Self {
        let roots = trust_roots.and_then(|hash| hash.get(..SHOWN)).unwrap_or("none");
        let retry = retry.map(|retry| format!("-r{}", short_hash(retry))).unwrap_or_default();
        Self(format!("{injection_hash}-{roots}{retry}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the annotation value of the n-th attempt, counted from 1.
    pub fn value(&self, attempt: u32) -> String {
        if attempt <= 1 { self.0.to_string() } else { format!("{}.{attempt}", self.0) }
    }

    /// Returns the number of the attempt in an annotation value; 0 for a value of another key.
    pub fn attempt(&self, value: &str) -> u32 {
        match value.strip_prefix(&*self.0) {
            Some("") => 1,
            Some(rest) => rest.strip_prefix('.').and_then(|number| number.parse().ok()).unwrap_or_default(),
            None => 0,
        }
    }

    /// Whether the key is for this hash, with any retry.
    pub fn is_of(&self, hash: &str) -> bool {
        Self::from(hash).begins(&self.0)
    }

    /// Whether an annotation value of this or another key has the same request for a retry, or none as well.
    pub fn has_retry_of(&self, value: &str) -> bool {
        let retry = |value: &str| {
            let (value, _attempt) = value.split_once('.').unwrap_or((value, ""));
            value.rsplit_once("-r").map(|(_, retry)| retry.to_owned())
        };
        retry(&self.0) == retry(value)
    }

    /// Whether a value belongs to this key, or to a retry of it.
    pub fn begins(&self, value: &str) -> bool {
        value.strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    }
}

impl fmt::Display for RolloutKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for RolloutKey {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// Returns a short hash of a text, because the retry annotation may have any value and a key must not.
fn short_hash(text: &str) -> String {
    sha256(text).get(..SHOWN).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_parsed_from_its_annotation_value() {
        let key = RolloutKey::of("0123456789abcdef", Some(&"a".repeat(64)), None);
        assert_eq!(key.as_str(), "0123456789abcdef-aaaaaaaa");
        for attempt in [1, 2, 17] {
            assert_eq!(key.attempt(&key.value(attempt)), attempt);
        }
        let again = RolloutKey::of("0123456789abcdef", Some(&"a".repeat(64)), Some("monday"));
        for other in ["", "0123456789abcdef-aaaaaaab", "0123456789abcdef-aaaaaaaa.x", again.as_str()] {
            assert_eq!(key.attempt(other), 0, "{other}");
        }
        assert!(key.begins(&again.value(2)) && key.begins(&key.value(3)) && !again.begins(key.as_str()));
        assert_eq!(RolloutKey::of("m", None, None).as_str(), "m-none");
    }

    #[test]
    fn a_request_for_a_retry_is_compared_across_keys() {
        let of = |hash: &str, retry| RolloutKey::of(hash, Some("aaaaaaaa"), retry);
        assert!(of("old", None).has_retry_of(&of("new", None).value(2)));
        assert!(of("old", Some("monday")).has_retry_of(&of("new", Some("monday")).value(2)));
        assert!(!of("old", Some("monday")).has_retry_of(of("new", None).as_str()));
        assert!(!of("old", None).has_retry_of(of("old", Some("tuesday")).as_str()));
    }
}
