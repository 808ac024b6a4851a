//! The canonical form of a document: Linkerd's spelling of keys, strings where Go converts to strings, one form of
//! whole numbers.

use std::collections::{BTreeMap, btree_map::Entry};

use serde_json::{Map, Value};

use super::{Path, model::VALUES};
use crate::go::{
    number::{as_text, whole},
    types::GoType,
};

/// Two keys of one map that are the same key for Go's decoder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TwoSpellings {
    /// The path in Linkerd's spelling.
    pub(super) path: Path,
    pub(super) one: String,
    pub(super) other: String,
}

/// Converts every key to Linkerd's spelling and every value to the form that Go gives it. Returns the first pair of
/// keys that are two spellings of one key; the exact spelling wins.
pub(super) fn canonical(map: &mut Map<String, Value>) -> Option<TwoSpellings> {
    let mut found = None;
    *map = canonical_map(std::mem::take(map), &VALUES, true, &Path::default(), &mut found);
    found
}

pub(super) fn canonical_path(path: &Path) -> Path {
    let mut holds = GoType::clone(&VALUES);
    let mut keys: Vec<&str> = Vec::with_capacity(path.keys().len());
    for key in path.keys() {
        let (name, below) = holds.at(key).unwrap_or((key, GoType::Any));
        keys.push(name);
        holds = below;
    }
    keys.into_iter().collect()
}

/// Returns the canonical form of a value at a canonical path.
pub(super) fn canonical_value(path: &Path, value: Value) -> Value {
    let (mut holds, mut coerced) = (GoType::clone(&VALUES), true);
    for key in path.keys() {
        coerced &= !matches!(holds, GoType::Embedded(_));
        holds = holds.below(key);
    }
    canonical_of(value, &holds, coerced, path, &mut None)
}

fn canonical_map(
    map: Map<String, Value>,
    holds: &GoType,
    coerced: bool,
    above: &Path,
    found: &mut Option<TwoSpellings>,
) -> Map<String, Value> {
    // Maps Linkerd's spelling to the spelling in the document and the value.
    let mut spelled: BTreeMap<&str, (&String, Value)> = BTreeMap::new();
    let keys: Vec<_> = map.keys().cloned().collect();
    for (key, value) in keys.iter().zip(map.into_iter().map(|(_, value)| value)) {
        let (name, holds) = holds.at(key).unwrap_or((key, GoType::Any));
        let path = above.with(name);
        let value = canonical_of(value, &holds, coerced, &path, found);
        match spelled.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert((key, value));
            }
            Entry::Occupied(mut entry) => {
                let one = entry.get().0.clone();
                found.get_or_insert_with(|| TwoSpellings { path, one, other: key.clone() });
                if name == key {
                    entry.insert((key, value));
                }
            }
        }
    }
    spelled.into_iter().map(|(name, (_, value))| (name.to_owned(), value)).collect()
}

fn canonical_of(value: Value, holds: &GoType, coerced: bool, path: &Path, found: &mut Option<TwoSpellings>) -> Value {
    let (holds, coerced) = match holds {
        GoType::Embedded(inner) => (*inner, false),
        holds => (holds, coerced),
    };
    match (value, holds) {
        (Value::Object(map), _) => Value::Object(canonical_map(map, holds, coerced, path, found)),
        (Value::Array(items), _) => {
            let item = if let GoType::List(item) = holds { *item } else { &GoType::Any };
            items.into_iter().map(|value| canonical_of(value, item, coerced, path, found)).collect()
        }
        (Value::Bool(it), GoType::Text) if coerced => Value::from(it.to_string()),
        (Value::Number(it), GoType::Text) if coerced => Value::from(as_text(&it)),
        (Value::Number(it), _) => Value::Number(whole(it)),
        (value, _) => value,
    }
}
