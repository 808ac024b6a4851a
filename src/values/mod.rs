//! Linkerd's values document: the text under `values` of the ConfigMap `linkerd-config`, as Go reads it.
//!
//! In: a text, or JSON values. Out: the document, its text, its problems, its hashes. Always holds: keys have Linkerd's
//! own spelling; where Linkerd's type is a string, numbers and bools are converted to strings, as in Go; a parsed
//! document is bounded in size and depth; no error, problem or debug output shows the value of a secret.

mod canonical;
mod control_plane;
mod findings;
mod hash;
mod injection_hash_lines;
mod injection_hashes;
mod injection_subset;
mod invalid;
mod linkerd_version;
mod model;
mod path;
mod problems;
mod read;
mod redact;
mod rules;
mod tabs;
#[cfg(test)]
pub(crate) mod testing;
mod trust_bundle;
mod unknown_keys;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::{Map, Value, json};

pub use crate::api::CONFIG_HASH_ENV;
pub(crate) use model::{
    CapabilitiesValues, ConstraintsValues, ImageValues, MountValues, Parameters, ProbeValues, ProxyContainerValues,
    ProxyEnvVar, ProxyValues, ResourcesValues, TracingValues,
};
pub(crate) use rules::{
    forms::{Form, has_init_port, is_image, is_ipv4_network},
    mounts::{END_ENTITY_VOLUME, PODINFO_VOLUME, PROXY_MOUNTS, TOKEN_VOLUME, XTABLES_VOLUME},
    quantities::doubtful_quantity,
    security_context::unusable_fields,
    strings::unusable_string,
    variables::{is_variable_name, unusable_source},
};
pub use {
    control_plane::{control_plane_keys, control_plane_mismatch},
    findings::Problem,
    hash::Hash,
    injection_hash_lines::without_injection_hash_lines,
    injection_hashes::InjectionHashes,
    invalid::{InvalidDocument, LONGEST},
    linkerd_version::{EdgeRelease, LinkerdVersion},
    path::Path,
    problems::patch_problems,
    redact::{shown, visible},
    rules::strings::unusable_trust_anchors,
    trust_bundle::UnusableTrustBundle,
    unknown_keys::{MODEL_VERSION, meant_key, unknown_keys},
};

/// The list of environment variables that has the injection hash as an entry.
const INJECTION_HASH_LIST: [&str; 2] = ["proxy", "additionalEnv"];

/// Parses any other YAML text, as kubectl reads it.
///
/// # Errors
/// When the text is too long, is not YAML that can be read exactly, or is not a map.
pub fn manifest(text: &str) -> Result<Map<String, Value>, InvalidDocument> {
    read::manifest(text)
}

/// The result of [`Document::read`]: the document without our injection hash, and that hash.
pub type Reading = Result<(Document, Option<String>), InvalidDocument>;

/// One values document.
#[derive(Clone, Default, PartialEq)]
pub struct Document(Map<String, Value>);

// === impl Document ===

impl Document {
    /// Parses a text as Go does: with sigs.k8s.io/yaml, which is YAML 1.1 and then encoding/json into Linkerd's
    /// `Values`. Stricter where Go would choose silently: a key that occurs twice, or in two spellings, is rejected.
    pub fn parse(text: &str) -> Result<Self, InvalidDocument> {
        let mut map = read::map(text)?;
        match canonical::canonical(&mut map) {
            None => Ok(Self(map)),
            Some(canonical::TwoSpellings { path, one, other }) => {
                Err(InvalidDocument::TwoSpellings { path, one, other })
            }
        }
    }

    /// Parses a text and splits off the injection hash.
    pub fn read(text: &str) -> Reading {
        Self::parse(text).map(Self::split_injection_hash)
    }

    /// Returns the document without our injection hash, and that hash. A list that becomes empty is removed, because
    /// Linkerd treats an empty list like an absent one.
    pub fn split_injection_hash(mut self) -> (Self, Option<String>) {
        let path = Path::from(&INJECTION_HASH_LIST[..]);
        let mut variables = match self.remove(&path) {
            Some(Value::Array(variables)) => variables,
            None | Some(Value::Null) => return (self, None),
            Some(other) => {
                self.set(&path, other);
                return (self, None);
            }
        };
        let is_ours = |it: &Value| it.get("name").and_then(Value::as_str) == Some(CONFIG_HASH_ENV);
        let value = variables.iter().find(|it| is_ours(it)).and_then(|it| it.get("value"));
        let injection_hash = value.and_then(Value::as_str).map(str::to_owned);
        variables.retain(|it| !is_ours(it));
        if !variables.is_empty() {
            self.set(&path, Value::Array(variables));
        }
        (self, injection_hash)
    }

    /// Returns the document to write, with the injection hash after all other environment variables. The injector adds
    /// these to proxies.
    pub fn with_injection_hash(&self, injection_hash: &str) -> Self {
        let (mut document, _) = self.clone().split_injection_hash();
        let path = Path::from(&INJECTION_HASH_LIST[..]);
        let mut variables = match document.get(&path) {
            Some(Value::Array(variables)) => variables.clone(),
            _ => Vec::new(),
        };
        variables.push(json!({"name": CONFIG_HASH_ENV, "value": injection_hash}));
        document.set(&path, Value::Array(variables));
        document
    }

    /// Returns YAML in block style, with sorted keys, that parses the same by the rules of YAML 1.1 and of YAML 1.2.
    pub fn to_yaml(&self) -> String {
        // JSON is YAML too. An empty text instead would delete the configuration.
        write::to_yaml(&self.0).unwrap_or_else(|_| json!(self.0).to_string())
    }

    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    pub fn get(&self, path: &Path) -> Option<&Value> {
        let path = canonical::canonical_path(path);
        let (last, above) = path.keys().split_last()?;
        let map = above.iter().try_fold(&self.0, |map, key| map.get(&**key)?.as_object())?;
        map.get(&**last)
    }

    /// Sets a value. Missing maps above it are created, and a value of another type in the place of such a map is
    /// replaced.
    pub fn set(&mut self, path: &Path, value: Value) {
        let path = canonical::canonical_path(path);
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
        map.insert(last.to_string(), canonical::canonical_value(&path, value));
    }

    /// Removes a value, and returns it.
    pub fn remove(&mut self, path: &Path) -> Option<Value> {
        let path = canonical::canonical_path(path);
        let (last, above) = path.keys().split_last()?;
        let map = above.iter().try_fold(&mut self.0, |map, key| map.get_mut(&**key)?.as_object_mut())?;
        map.remove(&**last)
    }

    /// Applies a JSON merge patch (RFC 7386): null removes, maps merge, any other value replaces. Of two spellings of
    /// one key, Linkerd's own wins.
    pub fn merge(&mut self, patch: &Map<String, Value>) {
        let mut patch = patch.clone();
        let _ = canonical::canonical(&mut patch);
        let mut merged = Value::Object(std::mem::take(&mut self.0));
        json_patch::merge(&mut merged, &Value::Object(patch));
        if let Value::Object(merged) = merged {
            self.0 = merged;
        }
    }

    /// The hash of all values. The order of keys, quoting, comments and the form of numbers do not change it.
    pub fn hash(&self) -> Hash {
        Hash::of(&self.0)
    }

    /// The hash of the values that affect injection. Keys that only the control plane reads, keys that Linkerd does not
    /// have, LINKERD_CONFIG_HASH, and the difference between a key that is absent, null or Go's zero do not change it.
    pub fn injection_hash(&self) -> Hash {
        Hash::of(&injection_subset::injection_subset(&self.0))
    }

    /// Returns the part of the document that affects injection: two documents inject the same if it is equal.
    pub fn injection_subset(&self) -> Self {
        Self(injection_subset::injection_subset(&self.0))
    }

    /// Copies the values at these paths from another document. A path that it does not have is removed.
    pub fn copy_paths(&mut self, from: &Self, paths: &[Path]) {
        for path in paths {
            match from.get(path) {
                Some(value) => self.set(path, value.clone()),
                None => drop(self.remove(path)),
            }
        }
    }

    /// Returns the paths of leaves that only one document has, or that differ, sorted.
    pub fn differences(&self, other: &Self) -> Vec<Path> {
        let mut found = Vec::new();
        differences(&Path::default(), &self.0, &other.0, &mut found);
        found
    }

    /// Returns the values that are not maps, and the empty maps. A list is one leaf.
    pub fn leaves(&self) -> impl Iterator<Item = (Path, &Value)> {
        let mut found = Vec::new();
        leaves(&Path::default(), &self.0, &mut found);
        found.into_iter()
    }
}

/// Shows no value.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({} keys, {})", self.0.len(), self.hash())
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

/// Collects the paths in sorted order. Sorting them afterwards would compare their long common prefixes.
fn differences(above: &Path, one: &Map<String, Value>, other: &Map<String, Value>, found: &mut Vec<Path>) {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let (one, other) = (one.get(key), other.get(key));
        let maps = [one, other].map(|value| value.and_then(Value::as_object).filter(|map| !map.is_empty()));
        if let [Some(one), Some(other)] = maps {
            differences(&above.with(key), one, other, found);
        } else if one != other {
            let path = above.with(key);
            // At most one of the two is a map that is not empty.
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
#[path = "properties_tests.rs"]
mod properties;
#[cfg(test)]
#[path = "recorded_tests.rs"]
mod recorded;
#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
