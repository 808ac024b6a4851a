//! Linkerd's values document: the text under `values` of the ConfigMap `linkerd-config`, and what Go makes of it.
//!
//! In: a text, or JSON of ours. Out: the document, its text, what is wrong with it, its hashes. Always holds: keys have
//! Linkerd's own spelling; where Linkerd wants a string, numbers and bools are strings already, as Go makes them; what was
//! read is bounded in size and depth; no error, problem or debug output shows the value of a secret.

mod check;
mod hash;
mod invalid;
mod path;
mod read;
mod rules;
mod scalar;
mod schema;
mod show;
mod table;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::{Map, Value, json};

pub use crate::api::MARKER;
pub use {
    check::{Problem, patch_problems},
    hash::Hash,
    invalid::InvalidDocument,
    path::Path,
    show::{shown, visible},
};

/// A longer text is no document.
pub const LONGEST: usize = 512 << 10;
/// Where the marker stands.
const MARKED: [&str; 2] = ["proxy", "additionalEnv"];

/// Any other text of YAML, as kubectl reads it.
///
/// # Errors
/// When it is too long, no YAML, or no map.
pub fn manifest(text: &str) -> Result<Map<String, Value>, InvalidDocument> {
    read::map(text)
}

/// A text as it was read: the document as people declare it, and the marker that stood in it.
pub type Reading = Result<(Document, Option<String>), InvalidDocument>;

/// One values document.
#[derive(Clone, Default, PartialEq)]
pub struct Document(Map<String, Value>);

// === impl Document ===

impl Document {
    /// As Go reads it: sigs.k8s.io/yaml, which is YAML 1.1 and then encoding/json into Linkerd's `Values`. Stricter where Go
    /// would choose in silence: a key twice, or in two spellings, is refused.
    pub fn parse(text: &str) -> Result<Self, InvalidDocument> {
        let mut map = read::map(text)?;
        match schema::canonical(&mut map) {
            None => Ok(Self(map)),
            Some(schema::TwoSpellings { path, one, other }) => Err(InvalidDocument::TwoSpellings { path, one, other }),
        }
    }

    /// What a text declares, and its marker.
    pub fn read(text: &str) -> Reading {
        Self::parse(text).map(Self::unmarked)
    }

    /// The document as people declare it, and the marker that stood in it. Without others, the list that the marker stood in
    /// is none: whoever reads the document takes it for the same.
    pub fn unmarked(mut self) -> (Self, Option<String>) {
        let path = Path::from(&MARKED[..]);
        let mut variables = match self.remove(&path) {
            Some(Value::Array(variables)) => variables,
            None | Some(Value::Null) => return (self, None),
            Some(other) => {
                self.set(&path, other);
                return (self, None);
            }
        };
        let is_marker = |it: &Value| it.get("name").and_then(Value::as_str) == Some(MARKER);
        let value = variables.iter().find(|it| is_marker(it)).and_then(|it| it.get("value"));
        let marker = value.and_then(Value::as_str).map(str::to_owned);
        variables.retain(|it| !is_marker(it));
        if !variables.is_empty() {
            self.set(&path, Value::Array(variables));
        }
        (self, marker)
    }

    /// The document as it is written: what proxies are injected with says so. The marker comes last, after all variables of
    /// others.
    pub fn marked(&self, marker: &str) -> Self {
        let (mut document, _) = self.clone().unmarked();
        let path = Path::from(&MARKED[..]);
        let mut variables = match document.get(&path) {
            Some(Value::Array(variables)) => variables.clone(),
            _ => Vec::new(),
        };
        variables.push(json!({"name": MARKER, "value": marker}));
        document.set(&path, Value::Array(variables));
        document
    }

    /// Block style, keys sorted. Reads the same by the rules of YAML 1.1 and of 1.2.
    pub fn to_yaml(&self) -> String {
        write::document(&self.0)
    }

    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    pub fn get(&self, path: &Path) -> Option<&Value> {
        let path = schema::canonical_path(path);
        let (last, above) = path.keys().split_last()?;
        let map = above.iter().try_fold(&self.0, |map, key| map.get(&**key)?.as_object())?;
        map.get(&**last)
    }

    /// Makes the maps on the way; what stood there in place of a map is gone.
    pub fn set(&mut self, path: &Path, value: Value) {
        let path = schema::canonical_path(path);
        let Some((last, above)) = path.keys().split_last() else { return };
        let mut map = &mut self.0;
        for key in above {
            let below = map.entry(&**key).or_insert_with(|| Value::Object(Map::new()));
            if !below.is_object() {
                *below = Value::Object(Map::new());
            }
            let Some(below) = below.as_object_mut() else { return };
            map = below;
        }
        map.insert(last.to_string(), schema::canonical_value(&path, value));
    }

    pub fn remove(&mut self, path: &Path) -> Option<Value> {
        let path = schema::canonical_path(path);
        let (last, above) = path.keys().split_last()?;
        let map = above.iter().try_fold(&mut self.0, |map, key| map.get_mut(&**key)?.as_object_mut())?;
        map.remove(&**last)
    }

    /// A JSON merge patch (RFC 7386): null removes, maps merge, all else replaces. Of two spellings of one key Linkerd's own
    /// counts.
    pub fn merge(&mut self, patch: &Map<String, Value>) {
        let mut patch = patch.clone();
        let _ = schema::canonical(&mut patch);
        merge(&mut self.0, patch);
    }

    /// Everything that would make the injector deny Pods or crash, make Pods that cannot start, or leak a key: all at once.
    pub fn problems(&self) -> Vec<Problem> {
        check::problems(self)
    }

    /// Those of them that must not even be copied.
    pub fn private_keys(&self) -> Vec<Problem> {
        check::private_keys(self)
    }

    /// Of the whole meaning: blind to the order of keys, quoting, comments and the spelling of numbers.
    pub fn hash(&self) -> Hash {
        Hash::of(&self.0)
    }

    /// Of what shapes an injected Pod: blind besides to keys that are only the control plane's, to the marker, and to the
    /// difference between a key that is absent, null, or Go's zero.
    pub fn injection_hash(&self) -> Hash {
        Hash::of(&schema::injection_subset(&self.0))
    }

    /// The leaves that only one has, or that differ. Sorted.
    pub fn differences(&self, other: &Self) -> Vec<Path> {
        let mut found = Vec::new();
        differences(&Path::default(), &self.0, &other.0, &mut found);
        found
    }

    /// What is no map, an empty map, and lists as a whole.
    pub fn leaves(&self) -> impl Iterator<Item = (Path, &Value)> {
        let mut found = Vec::new();
        leaves(&Path::default(), &self.0, &mut found);
        found.into_iter()
    }
}

/// Never what stands in it.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({} keys, {})", self.0.len(), self.hash())
    }
}

fn merge(into: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                into.remove(&key);
            }
            Value::Object(patch) => {
                let mut below = match into.remove(&key) {
                    Some(Value::Object(below)) => below,
                    _ => Map::new(),
                };
                merge(&mut below, patch);
                into.insert(key, Value::Object(below));
            }
            value => {
                into.insert(key, value);
            }
        }
    }
}

fn leaves<'a>(above: &Path, map: &'a Map<String, Value>, found: &mut Vec<(Path, &'a Value)>) {
    let sorted: BTreeMap<&String, &Value> = map.iter().collect();
    for (key, value) in sorted {
        match value {
            Value::Object(below) if !below.is_empty() => leaves(&above.with(key), below, found),
            _ => found.push((above.with(key), value)),
        }
    }
}

/// Found in the order of paths: sorting paths would compare their long common beginnings again and again.
fn differences(above: &Path, one: &Map<String, Value>, other: &Map<String, Value>, found: &mut Vec<Path>) {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let (one, other) = (one.get(key), other.get(key));
        let maps = [one, other].map(|value| value.and_then(Value::as_object).filter(|map| !map.is_empty()));
        if let [Some(one), Some(other)] = maps {
            differences(&above.with(key), one, other, found);
        } else if one != other {
            let path = above.with(key);
            // At most one of them is a map with something below it.
            let is_leaf = |value: Option<&Value>, map: Option<_>| value.is_some() && map.is_none();
            let [one_map, other_map] = maps;
            if is_leaf(one, one_map) || is_leaf(other, other_map) {
                found.push(path.clone());
            }
            let mut below = Vec::new();
            for map in maps.into_iter().flatten() {
                leaves(&path, map, &mut below);
            }
            found.extend(below.into_iter().map(|(path, _)| path));
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
