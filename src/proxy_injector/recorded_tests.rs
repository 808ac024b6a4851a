//! The answers that Linkerd's injector was recorded to give, about every annotation and every field of the values.
//!
//! The patches are applied, and the results compared. [`BETTER`] lists the cases in which this injector answers
//! otherwise on purpose, each with the reason. One difference is in every injected Pod: the variable
//! `LINKERD_CONFIG_HASH`, which Linkerd's injector does not add. [`without_hash`] removes it, and requires it.
//!
//! The recorded bundles have no certificates that a proxy could read, and this injector refuses such a bundle. It gets
//! the same bundles with [`readable`] certificates, and [`with_recorded_bundle`] replaces them in its answers.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    annotations::AnnotationMap,
    configuration::Configuration,
    inject::{Injector, ObjectKind, ReviewTarget},
    owner::{FoundOwner, workload},
    reviewed::{ReviewedObject, ReviewedOwner},
};
use crate::{
    cluster::kinds::owner::Owner,
    text::hex,
    values::{
        Document,
        testing::{OTHER_TRUST_ANCHORS, TRUST_ANCHORS},
    },
};

const RECORDED: &str = include_str!("testdata/injector.jsonl");

/// The names of the cases with another answer, and the reason.
const BETTER: &[(&str, &str)] = &[
    ("kind/deployment", "only Pods and Services are changed, because no other kind is sent"),
    ("ann/proxy-image/", "an empty image is ignored instead of creating a Pod that cannot start"),
    ("inherit/n-env/bare", "an annotation of a namespace cannot break the patch"),
    ("inherit/n-quote/bare", "an annotation of a namespace cannot break the patch"),
    ("skippatch/n-opaque-html/annotated", "an annotation is copied as it is, without HTML escapes"),
    ("values/uidgid", "ids are written in digits, because linkerd-init cannot parse an exponent"),
    ("values2/uid-2100000", "ids are written in digits, because linkerd-init cannot parse an exponent"),
    ("values/params", "numbers are written in digits"),
    ("values/init-xt", "the mount has the name of the volume, so that the Pod is valid"),
    ("values2/init-loglevel-num", "a string of digits stays a string"),
    ("values2/pull-odd", "the container is well-formed, and the API server names the invalid field"),
    ("values2/pull-odd-annotation", "the container is well-formed, and the API server names the invalid field"),
    ("values2/version-odd-annotation", "the container is well-formed, and the API server names the invalid field"),
    ("values/lv-empty", REFUSED),
    ("values/probe-startup-null/nonnative", REFUSED),
    ("values/tracing-proto", REFUSED),
    ("values2/domain-empty", REFUSED),
    ("values2/dup-top-key", REFUSED),
    ("values2/yaml11-anchors", REFUSED),
    ("values2/octal", REFUSED),
    ("values/raw-dupkey", NEVER_BREAKS),
    ("values/image-null", NEVER_BREAKS),
    ("values/proxyinit-null", NEVER_BREAKS),
    ("values/debugimg-null/debug", NEVER_BREAKS),
    ("values/proxy-null/notmeshed", NEVER_BREAKS),
    ("values/identity-null/notmeshed", NEVER_BREAKS),
    ("values/raw-empty/notmeshed", NEVER_BREAKS),
    ("values/type-bool-string/notmeshed", ONLY_INJECTED),
    ("roots/missing/svc", ONLY_INJECTED),
];
const REFUSED: &str =
    "a document that some Pods cannot be injected with, or that is read in several ways, is refused as a whole";
const NEVER_BREAKS: &str = "every request is answered";
const ONLY_INJECTED: &str = "without a configuration, Services and Pods that need no proxy are not denied";

struct Recording {
    fragments: HashMap<String, Value>,
    documents: HashMap<String, String>,
    roots: HashMap<String, String>,
    namespaces: HashMap<String, AnnotationMap>,
    objects: Vec<Value>,
    cases: Vec<Value>,
}

/// The answer to a case.
#[derive(Debug, PartialEq)]
enum Answer {
    /// The object after the patch.
    Allowed(Value),
    Denied,
    /// The connection broke, or the answer could not be used.
    Broken,
}

// === impl Recording ===

impl Recording {
    fn read() -> Self {
        let mut recording = Self {
            fragments: HashMap::new(),
            documents: HashMap::new(),
            roots: HashMap::new(),
            namespaces: HashMap::new(),
            objects: Vec::new(),
            cases: Vec::new(),
        };
        let text = |value: &Value, key: &str| value[key].as_str().unwrap().to_owned();
        for line in RECORDED.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            match line["t"].as_str().unwrap() {
                "frag" => drop(recording.fragments.insert(text(&line, "id"), line["v"].clone())),
                "roots" => drop(recording.roots.insert(text(&line, "name"), text(&line, "pem"))),
                "values" => {
                    let document = match line["raw"].as_str() {
                        Some(raw) => raw.to_owned(),
                        None => recording.patched(&text(&line, "base"), &line["merge"]),
                    };
                    recording.documents.insert(text(&line, "name"), document);
                }
                "ns" => {
                    let annotations = serde_json::from_value(line["annotations"].clone()).unwrap();
                    recording.namespaces.insert(text(&line, "name"), annotations);
                }
                "obj" => recording.objects.push(line["v"].clone()),
                "case" => recording.cases.push(line),
                _ => {}
            }
        }
        recording
    }

    /// Returns a document with a merge patch.
    fn patched(&self, base: &str, patch: &Value) -> String {
        let mut document = Value::Object(crate::values::manifest(&self.documents[base]).unwrap());
        merge(&mut document, patch);
        document.to_string()
    }

    /// Replaces the references to fragments.
    fn whole(&self, value: &Value) -> Value {
        match value {
            Value::Object(map) if map.len() == 1 && map.contains_key("$f") => {
                self.whole(&self.fragments[map["$f"].as_str().unwrap()])
            }
            Value::Object(map) => {
                map.iter().map(|(key, value)| (key.clone(), self.whole(value))).collect::<Map<_, _>>().into()
            }
            Value::Array(items) => items.iter().map(|item| self.whole(item)).collect::<Vec<_>>().into(),
            other => other.clone(),
        }
    }

    /// Returns the owner of a Pod with its own only owner.
    fn found(&self, namespace: &str, owner: &ReviewedOwner) -> Option<FoundOwner> {
        let found = self.objects.iter().find(|it| {
            it["kind"] == owner.kind.as_str()
                && it["metadata"]["name"] == owner.name.as_str()
                && it["metadata"]["namespace"] == namespace
        })?;
        let metadata = serde_json::from_value(found["metadata"].clone()).unwrap();
        Some(FoundOwner { above: Owner::only(&metadata), ..FoundOwner::default() })
    }
}

/// A merge patch in which `{"$null": true}` sets null.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (target, Value::Object(patch)) if patch.contains_key("$null") => *target = Value::Null,
        (Value::Object(target), Value::Object(patch)) => {
            for (key, patch) in patch {
                match patch {
                    Value::Null => drop(target.remove(key)),
                    patch => merge(target.entry(key).or_insert(json!({})), patch),
                }
            }
        }
        (target, patch) if patch.is_object() => {
            *target = json!({});
            merge(target, patch);
        }
        (target, patch) => *target = patch.clone(),
    }
}

/// Returns an object as the API server stores it: without nulls and without empty values of variables. A whole number is
/// always an integer.
fn normal(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, normal(value)))
            .filter(|(key, value)| !(value.is_null() || key == "value" && *value == ""))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(normal).collect::<Vec<_>>().into(),
        Value::Number(number) => match number.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "whole and small")]
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => json!(float as i64),
            _ => number.into(),
        },
        other => other,
    }
}

fn recorded(response: &Value, object: &Value) -> Answer {
    if response["allowed"] == false {
        return Answer::Denied;
    }
    if response.get("allowed").is_none() || response.get("patchInvalidJson").is_some() {
        return Answer::Broken;
    }
    let patch: json_patch::Patch = match &response["patch"] {
        Value::Null => json_patch::Patch::default(),
        patch => serde_json::from_value(patch.clone()).unwrap(),
    };
    let mut object = object.clone();
    json_patch::patch(&mut object, &patch).unwrap();
    Answer::Allowed(normal(object))
}

fn ours(recording: &Recording, case: &Value, object: &Value) -> Answer {
    let name = |key: &str| case[key].as_str().unwrap();
    let document = &recording.documents[name("values")];
    // A file may be missing.
    let roots = recording.roots.get(name("roots"));
    let readable_roots = roots.map(|roots| readable(roots)).unwrap_or_default();
    let configuration = roots.and_then(|_| Configuration::read(document, &readable_roots).ok());
    let (values, _) = Document::read(document).unwrap_or_default();
    let opaque_ports = values.get(&["proxy", "opaquePorts"].into_iter().collect());
    let opaque_ports = opaque_ports.and_then(Value::as_str).unwrap_or_default();
    let none = AnnotationMap::new();
    let namespace = recording.namespaces.get(name("ns")).unwrap_or(&none);
    let pod: ReviewedObject = serde_json::from_value(object.clone()).unwrap();
    let owners = &pod.metadata.owner_references;
    let found = owners.first().and_then(|owner| recording.found(name("ns"), owner));
    let workload = workload(&pod.metadata.name, owners, found.as_ref());
    let target = ReviewTarget { namespace, namespace_name: name("ns"), inject_label: None, workload: Some(&workload) };
    let injector = Injector { controller_namespace: "linkerd", version: "edge-26.8.3" };
    let kind = if name("kind") == "Pod" { ObjectKind::Pod } else { ObjectKind::Service };
    let Ok(outcome) = injector.decide(configuration.as_ref().ok_or(opaque_ports), kind, target, &pod) else {
        return Answer::Denied;
    };
    let mut object = object.clone();
    json_patch::patch(&mut object, &outcome.patch).unwrap();
    if let Some(configuration) = configuration.filter(|_| outcome.decision.injects()) {
        without_hash(&mut object, &configuration.injection_hash);
        object = with_recorded_bundle(&object, &readable_roots, &recording.roots[name("roots")]);
    }
    Answer::Allowed(normal(object))
}

/// Returns a recorded bundle with certificates in the place of its sections.
fn readable(recorded: &str) -> String {
    let section = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----");
    recorded.replace(&section("AAAA"), TRUST_ANCHORS.trim()).replace(&section("BBBB"), OTHER_TRUST_ANCHORS.trim())
}

/// Replaces a bundle in the variable of the proxy, and its SHA-256 in the annotation, by the recorded ones.
fn with_recorded_bundle(object: &Value, bundle: &str, recorded: &str) -> Value {
    let mut object = object.clone();
    let hash = |bundle: &str| json!(hex(Sha256::digest(bundle)));
    let annotation = &mut object["metadata"]["annotations"]["linkerd.io/trust-root-sha256"];
    assert_eq!(*annotation, hash(bundle));
    *annotation = hash(recorded);
    let mut replaced = 0;
    for list in ["initContainers", "containers"] {
        let containers = object["spec"][list].as_array_mut().into_iter().flatten();
        for variable in containers.flat_map(|container| container["env"].as_array_mut().into_iter().flatten()) {
            if variable["name"] == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS" {
                assert_eq!(variable["value"], json!(format!("{}\n", bundle.trim())));
                variable["value"] = json!(format!("{}\n", recorded.trim()));
                replaced += 1;
            }
        }
    }
    assert_eq!(replaced, 1);
    object
}

/// Removes the hash of the configuration from an injected Pod, in which it is the last variable of the proxy.
fn without_hash(object: &mut Value, hash: &str) {
    for list in ["initContainers", "containers"] {
        for container in object["spec"][list].as_array_mut().into_iter().flatten() {
            if container["name"] == "linkerd-proxy" {
                let last = container["env"].as_array_mut().and_then(Vec::pop);
                assert_eq!(last, Some(json!({"name": "LINKERD_CONFIG_HASH", "value": hash})));
            }
        }
    }
}

/// Returns the first few differences of two answers.
fn difference(expected: &Answer, seen: &Answer) -> String {
    let (Answer::Allowed(expected), Answer::Allowed(seen)) = (expected, seen) else {
        let short = |answer: &Answer| match answer {
            Answer::Allowed(_) => "Allowed",
            Answer::Denied => "Denied",
            Answer::Broken => "Broken",
        };
        return format!("recorded {}, ours {}", short(expected), short(seen));
    };
    let patch = json_patch::diff(expected, seen);
    patch.0.iter().take(4).map(ToString::to_string).collect::<Vec<_>>().join("\n    ")
}

#[test]
fn every_recorded_answer_is_given_unless_ours_is_better() {
    let recording = Recording::read();
    let (mut wrong, mut better) = (Vec::new(), 0);
    for case in &recording.cases {
        let name = case["name"].as_str().unwrap();
        let object = recording.whole(&case["object"]);
        let expected = recorded(&recording.whole(&case["response"]), &object);
        let seen = ours(&recording, case, &object);
        let reason = BETTER.iter().find(|(known, _)| *known == name);
        match (seen == expected, reason) {
            (true, None) => {}
            (false, Some(_)) => better += 1,
            (false, None) => wrong.push(format!("{name}\n    {}", difference(&expected, &seen))),
            (true, Some((_, reason))) => {
                wrong.push(format!("{name} has the recorded answer, although it is listed: {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), recording.cases.len(), wrong.join("\n"));
    assert_eq!(better, BETTER.len(), "a listed case does not exist");
}
