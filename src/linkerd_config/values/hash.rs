//! Hashes of documents, as they are written into annotations, statuses and the environment of proxies.

use std::fmt;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::text::hex;

/// Sixteen hex characters of a SHA-256 over canonical JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash([u8; 8]);

// === impl Hash ===

impl Hash {
    pub(super) fn of(map: &Map<String, Value>) -> Self {
        let mut text = String::new();
        write_map(map, &mut text);
        let mut kept = [0; 8];
        for (kept, byte) in kept.iter_mut().zip(Sha256::digest(text)) {
            *kept = byte;
        }
        Self(kept)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
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
