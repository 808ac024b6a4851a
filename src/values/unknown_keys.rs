//! The keys that Linkerd does not have. Pure.
//!
//! In: a part of a document. Out: the paths of keys that Linkerd's Go types do not have, and the keys that the author
//! may mean. Always holds: such a key is kept in the document, because a newer Linkerd may have it; it counts as part
//! of an injection only for versions that the model does not know.

use serde_json::{Map, Value};

use super::{
    LinkerdVersion, Path,
    model::{GoStruct, ProxyValues, VALUES},
};
use crate::{go::types::GoType, text::suggestion::meant_path};

/// The version of Linkerd whose types the model has.
pub const MODEL_VERSION: &str = "edge-26.8.3";

/// The top-level keys of the chart that Linkerd's Go types do not have. Parts of the control plane have further such
/// keys.
pub(super) const OF_CHART: [&str; 4] = ["commonLabels", "enablePprof", "kubeAPI", "runtimeClassName"];

/// Returns the topmost unknown keys of a patch, sorted, except those below parts that only the chart reads. A null
/// removes a key and is not among them.
pub fn unknown_keys(patch: &Map<String, Value>) -> Vec<Path> {
    let mut found = Vec::new();
    for (key, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        match (VALUES.at(key), value) {
            (None, _) if OF_CHART.contains(&key.as_str()) => {}
            (None, _) => found.push(Path::default().with(key)),
            (Some((_, holds)), Value::Object(map)) if is_injected(key) => {
                collect(&Path::default().with(key), map, &holds, &mut found);
            }
            _ => {}
        }
    }
    found.sort();
    found
}

/// Returns the known path that the author of an unknown one may mean.
pub fn meant_key(unknown: &Path) -> Option<String> {
    let mut known = Vec::new();
    known_paths(&Path::default(), &VALUES, &mut known);
    meant_path(&unknown.to_string(), &known)
}

fn known_paths(above: &Path, holds: &GoType, known: &mut Vec<String>) {
    match holds {
        GoType::Struct(fields) => {
            for field in *fields {
                let path = above.with(field.name);
                known.push(path.to_string());
                known_paths(&path, &field.holds, known);
            }
        }
        GoType::Embedded(inner) => known_paths(above, inner, known),
        _ => {}
    }
}

/// Removes the unknown keys of a document, unless its version may have them.
pub(super) fn drop_unknown(map: &mut Map<String, Value>) {
    let version = map.get("linkerdVersion").and_then(Value::as_str).unwrap_or_default();
    if has_no_other_keys(version) {
        retain_known(map, &VALUES);
    }
}

/// Returns whether all keys below this one reach Pods.
fn is_injected(key: &str) -> bool {
    let injected = ProxyValues::INJECTED.iter().filter(|injected| **injected != "identity");
    injected.into_iter().any(|injected| injected.eq_ignore_ascii_case(key))
}

/// Returns whether a version is a release of Linkerd that the model knows. Other distributions may have keys of their
/// own.
fn has_no_other_keys(tag: &str) -> bool {
    let is_linkerds = ["edge-", "stable-"].iter().any(|prefix| tag.starts_with(prefix));
    let known = LinkerdVersion::parse(tag).zip(LinkerdVersion::parse(MODEL_VERSION));
    is_linkerds && known.is_some_and(|(version, model)| !version.is_newer_than(model))
}

fn collect(above: &Path, map: &Map<String, Value>, holds: &GoType, found: &mut Vec<Path>) {
    for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        match holds.at(key) {
            None => found.push(above.with(key)),
            Some((_, holds)) => {
                if let Value::Object(map) = value {
                    collect(&above.with(key), map, &holds, found);
                }
            }
        }
    }
}

fn retain_known(map: &mut Map<String, Value>, holds: &GoType) {
    map.retain(|key, value| {
        let Some((_, holds)) = holds.at(key) else { return false };
        if let Value::Object(map) = value {
            retain_known(map, &holds);
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::testing::{fixture, path},
        *,
    };

    fn unknown(patch: &Value) -> Vec<String> {
        unknown_keys(patch.as_object().unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keys_that_linkerd_does_not_have_are_found_and_the_installers_document_has_none() {
        assert_eq!(unknown(&Value::Object(fixture().as_map().clone())), [""; 0]);
        let patch = json!({
            "proxy": {
                "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "256Mi"}, "cpu": {"request": "1"}},
                "ignoreOutboundPorts": "443",
                "LogLevel": "debug",
                "inbound": {"server": {"http2": {"anything": 1}}},
                "removed": null,
            },
            "podLabels": {"any": "label"},
            "global": {"clusterDomain": "x"},
            // The chart has keys here that the Go types do not have.
            "proxyInjector": {"timeoutSeconds": 10},
            "kubeAPI": {},
        });
        assert_eq!(
            unknown(&patch),
            ["global", "proxy.ignoreOutboundPorts", "proxy.resources.limits", "proxy.resources.requests",]
        );
    }

    #[test]
    fn an_unknown_key_changes_the_injection_hash_only_for_a_version_that_may_have_it() {
        for (version, changes) in [
            ("edge-26.8.3", false),
            ("edge-24.2.4", false),
            ("stable-2.14.10", false),
            ("edge-26.9.1", true),
            ("enterprise-2.17.1", true),
            ("2.17.1", true),
            ("dev-abc", true),
        ] {
            let mut document = fixture();
            document.set(&path("linkerdVersion"), json!(version));
            let before = document.injection_hash();
            document.set(&path("proxy.resources.requests"), json!({"cpu": "100m"}));
            assert_eq!(document.injection_hash() != before, changes, "{version}");
            assert!(document.get(&path("proxy.resources.requests.cpu")).is_some());
        }
    }
}
