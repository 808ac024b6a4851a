//! Finds the problems of a document, and of a patch before it is merged.
//!
//! Always holds: all problems are reported together, up to a limit; no problem shows the value of a secret.

use serde_json::{Map, Value};

use super::{
    Document, Path,
    findings::{Findings, KEY, Problem},
    injection_subset::injected_part,
    model::VALUES,
    read::DEEPEST,
    rules,
};
use crate::{api::quantity::Quantity, go::types::GoType};

impl Document {
    /// Returns all known reasons why the injector would deny Pods or crash, why injected Pods would be rejected or
    /// could not start, and private keys.
    pub fn problems(&self) -> Vec<Problem> {
        found(|problems| {
            for (key, value) in self.as_map() {
                let path = Path::default().with(key);
                check_private(&path, value, problems);
                if !is_within(value, DEEPEST - 1) {
                    problems.add(&path, None, format!("must not be nested more than {DEEPEST} levels deep"));
                }
            }
            check_map(&Path::default(), self.as_map(), &VALUES, problems);
            rules::check(self, problems);
        })
    }

    /// Returns the problems with which no Pod that the operator's own injector injects can run.
    pub fn injection_problems(&self) -> Vec<Problem> {
        found(|problems| {
            check_map(&Path::default(), &injected_part(self.as_map()), &VALUES, problems);
            rules::check_injected(self, problems);
        })
    }

    /// Returns the values that affect injection and have no effect, because the program that reads them ignores them.
    pub fn ineffective_values(&self) -> Vec<Problem> {
        found(|problems| rules::check_ineffective(self, problems))
    }

    /// Returns the amounts that the API server accepts, and with which no proxy can run: probably their unit is wrong.
    pub fn doubtful_values(&self) -> Vec<Problem> {
        found(|problems| rules::check_doubtful(self, problems))
    }

    /// Returns the problems that the other document does not have.
    pub fn problems_added_to(&self, other: &Self) -> Vec<Problem> {
        let known = other.problems();
        self.problems().into_iter().filter(|problem| !known.contains(problem)).collect()
    }

    /// Returns the private keys in the document. A document with private keys must not even be copied.
    pub fn private_keys(&self) -> Vec<Problem> {
        found(|problems| {
            for (key, value) in self.as_map() {
                check_private(&Path::default().with(key), value, problems);
            }
        })
    }
}

fn found(check: impl FnOnce(&mut Findings)) -> Vec<Problem> {
    let mut problems = Findings::default();
    check(&mut problems);
    problems.sorted()
}

/// Checks `spec.values` for keys that differ from one of Linkerd's only in case, for private keys, and for nulls that
/// remove required keys. The types of values are checked in the merged document.
pub fn patch_problems(patch: &Map<String, Value>) -> Vec<Problem> {
    found(|problems| {
        for (key, value) in patch {
            check_private(&Path::default().with(key), value, problems);
        }
        check_patch(&Path::default(), patch, &VALUES, problems);
    })
}

fn check_patch(above: &Path, patch: &Map<String, Value>, holds: &GoType, problems: &mut Findings) {
    for (key, value) in patch {
        let path = above.with(key);
        let name = holds.at(key).map_or(&**key, |(name, _)| name);
        if name != key {
            problems.add(&path, None, format!("Linkerd spells this key {name:?} and ignores case"));
        }
        if value.is_null() && rules::is_needed(&path) {
            problems.add(&path, Some(value), "must not be removed: the injector requires it");
        }
        if let Value::Object(patch) = value {
            check_patch(&path, patch, &holds.below(key), problems);
        }
    }
}

/// Returns whether the reader accepts a value of this depth.
fn is_within(value: &Value, depth: usize) -> bool {
    let below = |value: &Value| depth.checked_sub(1).is_some_and(|depth| is_within(value, depth));
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(below),
        Value::Object(map) => depth > 0 && map.values().all(below),
        _ => true,
    }
}

fn check_private(path: &Path, value: &Value, problems: &mut Findings) {
    let named = path.keys().last().is_some_and(|key| key.eq_ignore_ascii_case("keyPEM"));
    match value {
        Value::String(text) if text.contains(KEY) || named && !text.trim().is_empty() => {
            problems.add(
                path,
                Some(value),
                "a private key must not be stored in a ConfigMap, which many users may read",
            );
        }
        Value::Array(items) => {
            for item in items {
                check_private(path, item, problems);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                check_private(&path.with(key), value, problems);
            }
        }
        _ => {}
    }
}

pub(super) fn check_map(above: &Path, map: &Map<String, Value>, holds: &GoType, problems: &mut Findings) {
    for (key, value) in map {
        check(&above.with(key), value, &holds.below(key), problems);
    }
}

/// Checks that encoding/json accepts a value. It accepts null for every type.
fn check(path: &Path, value: &Value, holds: &GoType, problems: &mut Findings) {
    let wanted = match (holds, value) {
        (GoType::Any, _) | (_, Value::Null) | (GoType::Text, Value::String(_)) | (GoType::Bool, Value::Bool(_)) => {
            return;
        }
        (GoType::Float(most), Value::Number(number)) => {
            if number.as_f64().is_some_and(|it| it.abs() <= *most) {
                return;
            }
            format!("a number of at most {most:e}")
        }
        (GoType::Scalar, Value::String(_) | Value::Number(_) | Value::Bool(_)) => return,
        (GoType::Quantity, value) if is_quantity(value) => return,
        (GoType::Quantity, _) => "a quantity".to_owned(),
        (GoType::Embedded(inner), _) => return check(path, value, inner, problems),
        (GoType::Struct(_) | GoType::Map(_), Value::Object(map)) => return check_map(path, map, holds, problems),
        (GoType::List(item), Value::Array(items)) => {
            for value in items {
                check(path, value, item, problems);
            }
            return;
        }
        (GoType::Int(least, most), Value::Number(number)) => {
            if number.as_i64().is_some_and(|it| (*least..=*most).contains(&it)) {
                return;
            }
            format!("a whole number from {least} to {most}")
        }
        (GoType::Uint, Value::Number(number)) if number.is_u64() => return,
        (GoType::Text, _) => "a string".to_owned(),
        (GoType::Bool, _) => "true or false".to_owned(),
        (GoType::Int(..), _) => "a whole number".to_owned(),
        (GoType::Uint, _) => "a whole number, not less than 0".to_owned(),
        (GoType::Float(_), _) => "a number".to_owned(),
        (GoType::Scalar, _) => "a string or a number".to_owned(),
        (GoType::List(_), _) => "a list".to_owned(),
        (GoType::Struct(_) | GoType::Map(_), _) => "a map".to_owned(),
    };
    problems.add(path, Some(value), format!("must be {wanted}: otherwise the injector denies every Pod"));
}

/// Whether Kubernetes reads a value as a quantity. It trims a text, and reads a number by its digits.
fn is_quantity(value: &Value) -> bool {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return false,
    };
    text.parse::<Quantity>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::testing::{fixture, path},
        *,
    };

    fn patched(patch: &Value) -> Vec<(String, String)> {
        let problems = patch_problems(patch.as_object().unwrap());
        problems.into_iter().map(|problem| (problem.path.to_string(), problem.value)).collect()
    }

    #[test]
    fn values_must_fit_the_go_types_and_scalars_become_strings() {
        for (at, value, fits) in [
            ("proxy.logLevel", json!(5), true),
            ("proxy.accessLog", json!(true), true),
            ("proxy.accessLog", json!([]), false),
            ("proxy.await", json!("true"), false),
            ("controller.podDisruptionBudget.maxUnavailable", json!(1), true),
            ("controller.podDisruptionBudget.maxUnavailable", json!("25%"), true),
            ("controller.podDisruptionBudget.maxUnavailable", json!({}), false),
            ("identity.kubeAPI.clientQPS", json!(1e38), true),
            ("identity.kubeAPI.clientQPS", json!(-1e39), false),
            ("proxy.await", json!(1), false),
            ("proxy.uid", json!(1200.0), true),
            ("proxy.uid", json!(1.5), false),
            ("proxy.uid", json!("2102"), false),
            ("proxy.uid", json!(u64::MAX), false),
            ("proxy.ports.admin", json!("4191"), false),
            ("proxy.cores", json!(null), true),
            ("proxy.waitBeforeExitSeconds", json!(-1), false),
            ("proxy.runtime.workers.maximumCPURatio", json!(0.5), true),
            ("proxy.runtime.workers.maximumCPURatio", json!("0.5"), false),
            ("proxy.resources", json!("small"), false),
            ("proxy.inbound", json!({"a": {"b": {"c": [1]}}}), true),
            ("proxy.inbound", json!({"a": {"b": 1}}), false),
            ("proxy.additionalEnv", json!([{"name": 5, "value": true}]), true),
            ("proxy.additionalEnv", json!({"name": "a"}), false),
            ("proxy.additionalEnv", json!(["a"]), false),
            ("proxyInjector.caBundle", json!(5), false),
            ("podLabels", json!({"a": 5, "b": null}), true),
            ("podLabels", json!({"a": {}}), false),
            ("policyController.probeNetworks", json!("0.0.0.0/0"), false),
            ("imagePullSecrets", json!([{"name": "a"}]), true),
            ("tolerations", json!({}), false),
            ("somethingNew", json!([1, {"proxy": "a"}]), true),
        ] {
            let mut document = fixture();
            document.set(&path(at), value.clone());
            let problems = document.problems();
            assert_eq!(problems.is_empty(), fits, "{at}: {value}: {problems:?}");
            assert!(problems.iter().all(|problem| problem.path.starts_with(&path(at))), "{problems:?}");
        }
    }

    #[test]
    fn a_private_key_is_found_anywhere_and_never_shown() {
        let key = "-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----\n";
        for (at, value) in [
            ("identity.issuer.tls.keyPEM", json!("SECRET")),
            ("identity.issuer.tls.crtPEM", json!(key)),
            ("proxyInjector.KeyPem", json!("SECRET")),
            ("new.thing.keypem", json!("SECRET")),
            ("new.list", json!([1, {"a": key}])),
            ("proxy.additionalEnv", json!([{"name": "KEY", "value": key}])),
        ] {
            let mut document = fixture();
            document.set(&path(at), value.clone());
            let problems = document.problems();
            assert_eq!(problems.len(), 1, "{at}: {problems:?}");
            assert!(!format!("{problems:?}{document:?}").contains("SECRET"), "{problems:?}");
            let problems = patch_problems(document.as_map());
            assert_eq!((problems.len(), format!("{problems:?}").contains("SECRET")), (1, false), "{problems:?}");
        }
        let mut document = fixture();
        document.set(&path("identity.issuer.tls.keyPEM"), json!(""));
        document.set(&path("proxy.additionalEnv"), json!("SECRET"));
        assert_eq!(document.problems().len(), 1);
        assert!(!format!("{:?}", document.problems()).contains("SECRET"));
    }

    #[test]
    fn a_patch_must_use_linkerds_spelling_and_keep_required_keys() {
        let shown = |path: &str, value: &str| (path.to_owned(), value.to_owned());
        assert_eq!(
            patched(&json!({"proxy": {"logLevel": "debug", "cores": null}, "podLabels": {"PROXY": "x"}, "PrOxY2": 1})),
            []
        );
        assert_eq!(
            patched(
                &json!({"Proxy": {"LogLevel": "x"}, "proxy": {"image": {"Name": 1}}, "proxyinjector": {"NamespaceSelector": {}}})
            ),
            [
                shown("Proxy", ""),
                shown("Proxy.LogLevel", ""),
                shown("proxy.image.Name", ""),
                shown("proxyinjector", ""),
                shown("proxyinjector.NamespaceSelector", ""),
            ]
        );
        assert_eq!(
            patched(
                &json!({"proxy": {"ports": null, "metrics": null, "uid": null}, "identity": null, "proxyInit": {"iptablesMode": null}})
            ),
            [
                shown("identity", "null"),
                shown("proxy.metrics", "null"),
                shown("proxy.ports", "null"),
                shown("proxy.uid", "null"),
                shown("proxyInit.iptablesMode", "null"),
            ]
        );
    }

    #[test]
    fn problems_are_bounded_in_number_and_length() {
        let mut document = fixture();
        for at in 0..1_000 {
            document.set(
                &Path::from_iter(["podLabels", &format!("{at}{}", "x".repeat(1_000))]),
                json!(["x".repeat(1_000)]),
            );
        }
        document.set(&path("proxy.logHTTPHeaders"), json!("é".repeat(10_000)));
        assert!(is_within(&json!([[], {}, 1]), 2) && !is_within(&json!([[], {}, 1]), 1));
        let problems = document.problems();
        assert_eq!(problems.len(), super::super::findings::MOST);
        assert!(
            problems
                .iter()
                .all(|problem| problem.path.to_string().len() + problem.value.len() + problem.reason.len() < 600)
        );
    }
}
