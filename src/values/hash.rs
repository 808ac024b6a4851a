//! Hashes of documents, as they are written into annotations, statuses and the environment of proxies.

use std::fmt;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::text::hex;

/// The version of the hashes. Increase it with each change of a function or a table that changes the hash of any
/// document. Proxies keep the hash that they were given: see [`super::InjectionHashes`].
const VERSION: u8 = 1;

/// The version, and sixteen hex characters of a SHA-256 over canonical JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash {
    version: u8,
    digest: [u8; 8],
}

// === impl Hash ===

impl Hash {
    pub(super) fn of(map: &Map<String, Value>) -> Self {
        Self::of_version(map, VERSION)
    }

    fn of_version(map: &Map<String, Value>, version: u8) -> Self {
        let mut text = String::new();
        write_map(map, &mut text);
        let mut kept = [0; 8];
        for (kept, byte) in kept.iter_mut().zip(Sha256::digest(text)) {
            *kept = byte;
        }
        Self { version, digest: kept }
    }

    /// Whether two hashes, as texts, are of the same version. Hashes of different versions differ for equal documents.
    pub fn is_comparable(one: &str, other: &str) -> bool {
        version(one) == version(other)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first version has no prefix.
        if self.version > 1 {
            write!(f, "v{}_", self.version)?;
        }
        f.write_str(&hex(self.digest))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn version(hash: &str) -> &str {
    hash.split_once('_').map_or("v1", |(version, _)| version)
}

/// Sorts the keys, because whether a map of serde_json is sorted depends on features that other crates may enable.
fn write_map(map: &Map<String, Value>, text: &mut String) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    text.push('{');
    for (at, (key, value)) in entries.into_iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(key.as_str()).to_string());
        text.push(':');
        write(value, text);
    }
    text.push('}');
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => write_map(map, text),
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        value => text.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_different_versions_are_not_comparable() {
        let [first, second] = [1, 2].map(|version| Hash::of_version(&Map::new(), version).to_string());
        assert_eq!((&*first, &*second), ("44136fa355b3678a", "v2_44136fa355b3678a"));
        assert!(Hash::is_comparable(&first, "0123456789abcdef") && !Hash::is_comparable(&first, &second));
    }
}
