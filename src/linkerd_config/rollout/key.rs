//! The key of a rollout: what workloads are restarted for. Pure.
//!
//! Always holds: two targets with one [`RolloutKey`] require the same of every Pod, so a workload that was restarted for a key is
//! not restarted for it again.

use std::{fmt, sync::Arc};

use crate::linkerd_config::sha256;

/// On a LinkerdConfig: another value has the operator retry the workloads that failed.
pub const RETRY_ANNOTATION: &str = "config.linkerd.io/retry";

/// Digits of a hash that a key has.
const SHOWN: usize = 8;

/// The value of the annotation of templates: the injection hash, a part of the hash of the trust anchors, and, where a person
/// requested another try, a part of the hash of that request.
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

    /// Returns the value that templates get at the n-th attempt, from 1.
    pub fn value(&self, attempt: u32) -> String {
        if attempt <= 1 { self.0.to_string() } else { format!("{}.{attempt}", self.0) }
    }

    /// Returns the number of the attempt for this key that a value stands for; 0 for a value of another key.
    pub fn attempt(&self, value: &str) -> u32 {
        match value.strip_prefix(&*self.0) {
            Some("") => 1,
            Some(rest) => rest.strip_prefix('.').and_then(|number| number.parse().ok()).unwrap_or_default(),
            None => 0,
        }
    }

    /// Whether the key is for this hash, whichever try of it.
    pub fn is_of(&self, hash: &str) -> bool {
        Self::from(hash).begins(&self.0)
    }

    /// Whether a value belongs to this key, or to a later try of it.
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

/// A hash, because an annotation may hold any text and a key may not.
fn short_hash(text: &str) -> String {
    sha256(text).get(..SHOWN).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_of_its_values_which_attempt_they_are() {
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
}
