//! Properties of every review.

use std::sync::LazyLock;

use json_patch::Patch;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};
use serde_json::{Map, Value, json};

use super::{
    annotations::{AnnotationMap, INHERITED, PREFIX},
    configuration::Configuration,
    containers::NotRenderable,
    decision::NotInjected,
    inject::{AdmissionOutcome, Injector, ObjectKind, ReviewTarget},
    owner::{FoundOwner, workload},
    reviewed::ReviewedObject,
};
use crate::{
    cluster::kinds::owner::Owner,
    values::{Document, Path, testing::TRUST_ANCHORS},
    webhook::review::ReviewRequest,
};

/// The document that Linkerd's chart renders.
const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

static CONFIGURATION: LazyLock<Configuration> =
    LazyLock::new(|| Configuration::read(INSTALLED, TRUST_ANCHORS).unwrap());

/// Texts that have a meaning in some format.
const SPECIAL: [&str; 22] = [
    "",
    "enabled",
    "ingress",
    "disabled",
    "true",
    "false",
    "1",
    "-1",
    "99999999999999999999",
    "1e400",
    "10s",
    "100m",
    "\"",
    "\\",
    "\n",
    "\"}, {\"",
    "{{.Values}}",
    "$(_pod_ns)",
    "a: b",
    "[{\"name\": \"A\", \"value\": \"1\"}]",
    "null",
    "3306,80-90",
];
/// The annotations whose text becomes a part of the Pod without being parsed.
const FREE: [&str; 11] = [
    "access-log",
    "debug-image",
    "image-pull-policy",
    "proxy-image",
    "proxy-log-format",
    "proxy-log-level",
    "proxy-require-identity-inbound-ports",
    "proxy-version",
    "skip-inbound-ports",
    "skip-outbound-ports",
    "skip-subnets",
];
const OTHERS: [&str; 7] = [
    "linkerd.io/inject",
    "config.linkerd.io/close-wait-timeout",
    "config.linkerd.io/unknown",
    "config.alpha.linkerd.io/proxy-enable-native-sidecar",
    "resource.opentelemetry.io/key",
    "linkerd.io/created-by",
    "example.com/a~b",
];
const NAMES: [&str; 3] = ["linkerd-proxy", "linkerd-init", "istio-proxy"];
const KINDS: [&str; 3] = ["ReplicaSet", "Deployment", "Rollout"];
/// The fields that get a type that Kubernetes does not give them.
const READ: [&str; 9] = [
    "/metadata",
    "/metadata/annotations",
    "/metadata/ownerReferences",
    "/spec",
    "/spec/containers",
    "/spec/containers/0",
    "/spec/containers/0/ports",
    "/spec/containers/0/readinessProbe",
    "/spec/volumes",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![select(&SPECIAL[..]).prop_map(str::to_owned), vec(any::<char>(), 0..20).prop_map(String::from_iter)]
}

/// A text of these letters.
fn word(letters: &'static str, longest: usize) -> impl Strategy<Value = String> {
    vec(select(letters.chars().collect::<Vec<_>>()), 1..longest).prop_map(String::from_iter)
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // A text of JSON does not keep all digits of a float.
        any::<i32>().prop_map(|number| json!(f64::from(number) / 2.0)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(text(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Fields that the injector does not read.
fn unknown_fields() -> impl Strategy<Value = Map<String, Value>> {
    let name = word("abc/~", 3).prop_map(|name| format!("unknown{name}"));
    btree_map(name, any_json(), 0..3).prop_map(|map| map.into_iter().collect())
}

fn annotations() -> impl Strategy<Value = AnnotationMap> {
    let known = select(&INHERITED[..]).prop_map(|name| format!("{PREFIX}{name}"));
    btree_map(prop_oneof![known, select(&OTHERS[..]).prop_map(str::to_owned)], text(), 0..6)
}

fn container() -> impl Strategy<Value = Value> {
    let name = prop_oneof![9 => word("abc", 5), 1 => select(&NAMES[..]).prop_map(str::to_owned)];
    let (ports, probed) = (option::of(vec(any::<u16>(), 0..3)), option::of(any::<bool>()));
    (name, text(), ports, probed, unknown_fields()).prop_map(|(name, image, ports, probed, unknown)| {
        let mut container = json!({"name": name, "image": image});
        if let Some(ports) = ports {
            container["ports"] = ports.iter().map(|port| json!({"containerPort": port, "unknown": 1})).collect();
        }
        if let Some(probed) = probed {
            let port = if probed { json!(80) } else { json!("http") };
            container["readinessProbe"] = json!({"httpGet": {"port": port}});
        }
        with(container, unknown)
    })
}

/// A Pod as the API server sends it: with containers, and with a metadata that has at least a namespace.
fn pod() -> impl Strategy<Value = Value> {
    let lists = (vec(container(), 1..3), option::of(vec(container(), 0..3)), option::of(vec(any_json(), 0..3)));
    let labels = option::of(btree_map(word("abz/.~", 8), text(), 0..3));
    let owner = option::of((select(&KINDS[..]), text()));
    let unknown = (unknown_fields(), unknown_fields(), unknown_fields());
    (lists, option::of(annotations()), labels, owner, unknown).prop_map(
        |((containers, init_containers, volumes), annotations, labels, owner, (of_metadata, of_spec, of_pod))| {
            let owner = owner.map(|(kind, name)| json!([{"kind": kind, "name": name, "unknown": {}}]));
            let (annotations, labels) = (annotations.map(|it| json!(it)), labels.map(|it| json!(it)));
            let (init_containers, volumes) = (init_containers.map(Value::from), volumes.map(Value::from));
            let mut metadata = with(json!({"namespace": "shop"}), of_metadata);
            set(&mut metadata, "annotations", annotations.as_ref());
            set(&mut metadata, "labels", labels.as_ref());
            set(&mut metadata, "ownerReferences", owner.as_ref());
            let mut spec = with(json!({ "containers": containers }), of_spec);
            set(&mut spec, "initContainers", init_containers.as_ref());
            set(&mut spec, "volumes", volumes.as_ref());
            with(json!({"metadata": metadata, "spec": spec}), of_pod)
        },
    )
}

fn with(mut object: Value, fields: Map<String, Value>) -> Value {
    object.as_object_mut().unwrap().extend(fields);
    object
}

/// Sets a field, or removes it.
fn set(object: &mut Value, key: &str, value: Option<&Value>) {
    let object = object.as_object_mut().unwrap();
    match value {
        Some(value) => drop(object.insert(key.to_owned(), value.clone())),
        None => drop(object.remove(key)),
    }
}

fn read(request: &Value) -> Result<ReviewRequest<ReviewedObject>, String> {
    ReviewRequest::read(json!({ "request": request }).to_string().as_bytes())
}

/// Reviews a Pod through the bytes of a request, in a namespace with these annotations.
fn review(pod: &Value, namespace: &AnnotationMap) -> Result<AdmissionOutcome, NotRenderable> {
    let request = json!({"uid": "u", "kind": {"kind": "Pod"}, "namespace": "shop", "object": pod});
    decide(Some(&CONFIGURATION), &read(&request).unwrap(), namespace)
}

fn decide(
    configuration: Option<&Configuration>,
    request: &ReviewRequest<ReviewedObject>,
    namespace: &AnnotationMap,
) -> Result<AdmissionOutcome, NotRenderable> {
    let object = request.object.clone().unwrap_or_default();
    let owners = &object.metadata.owner_references;
    let above =
        owners.first().map(|owner| Owner { kind: owner.kind.as_str().into(), name: owner.name.as_str().into() });
    let found = FoundOwner { above, ..FoundOwner::default() };
    let workload = workload(&object.metadata.name, owners, Some(&found));
    let target = ReviewTarget { namespace, namespace_name: "shop", inject_label: None, workload: Some(&workload) };
    let injector = Injector { controller_namespace: "linkerd", version: "v" };
    let kind = ObjectKind::of(&request.kind.kind).unwrap_or(ObjectKind::Pod);
    injector.decide(configuration.ok_or("3306"), kind, target, &object)
}

fn patched(pod: &Value, outcome: &AdmissionOutcome) -> Value {
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &outcome.patch).unwrap();
    pod
}

fn enabled() -> AnnotationMap {
    AnnotationMap::from([("linkerd.io/inject".to_owned(), "enabled".to_owned())])
}

/// Returns the number of Linkerd's proxies in a Pod.
fn proxies(pod: &Value) -> usize {
    let lists = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array());
    lists.into_iter().flatten().flatten().filter(|container| container["name"] == "linkerd-proxy").count()
}

/// Removes what an injection may add to a Pod. Fails if anything else differs from the Pod before it.
fn without_added(mut after: Value, before: &Value) -> Value {
    for list in ["initContainers", "containers", "volumes"] {
        let of_before = before["spec"][list].as_array().cloned().unwrap_or_default();
        let mut expected = of_before.iter().peekable();
        let items = after["spec"][list].as_array().cloned().unwrap_or_default();
        // The former items are there, in the same order.
        let kept = items.iter().filter(|item| expected.next_if_eq(item).is_some()).count();
        assert_eq!(kept, of_before.len(), "{list}: {items:?}");
        set(&mut after["spec"], list, before["spec"].get(list));
    }
    for map in ["annotations", "labels"] {
        for (key, value) in before["metadata"][map].as_object().into_iter().flatten() {
            assert!(key == "linkerd.io/created-by" || after["metadata"][map][key] == *value, "{key}");
        }
        for key in after["metadata"][map].as_object().into_iter().flat_map(Map::keys) {
            assert!(key.contains("linkerd.io/") || before["metadata"][map].get(key).is_some(), "{key}");
        }
        set(&mut after["metadata"], map, before["metadata"].get(map));
    }
    after
}

/// Replaces a text in all strings and keys.
fn replaced(value: &Value, text: &str, by: &str) -> Value {
    match value {
        Value::String(it) => it.replace(text, by).into(),
        Value::Array(items) => items.iter().map(|item| replaced(item, text, by)).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.replace(text, by), replaced(value, text, by))).collect()
        }
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused(body in vec(any::<u8>(), 0..200)) {
        let _ = ReviewRequest::<ReviewedObject>::read(&body);
    }

    #[test]
    fn any_object_has_an_answer(object in any_json(), kind in text(), namespace in annotations(), more in unknown_fields()) {
        let request = with(json!({"uid": "u", "kind": {"kind": kind}, "object": object}), more);
        if let Ok(request) = read(&request) {
            for configuration in [Some(&*CONFIGURATION), None] {
                let answer = match decide(configuration, &request, &namespace) {
                    Ok(outcome) => request.allowed(&Patch(outcome.patch.clone()), outcome.into_warnings()),
                    Err(reason) => request.denied(&reason.to_string()),
                };
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                prop_assert_eq!(&answer["response"]["uid"], "u");
            }
        }
    }

    #[test]
    fn a_pod_with_a_field_of_a_wrong_type_has_an_answer_or_is_refused(
        mut pod in pod(),
        odd in any_json(),
        at in select(&READ[..]),
        namespace in annotations(),
    ) {
        if let Some(field) = pod.pointer_mut(at) {
            *field = odd;
        }
        if let Ok(request) = read(&json!({"uid": "u", "kind": {"kind": "Pod"}, "object": pod})) {
            let _ = decide(Some(&CONFIGURATION), &request, &namespace);
        }
    }

    #[test]
    fn an_injection_changes_nothing_that_the_pod_had(pod in pod(), mut namespace in annotations(), enable in any::<bool>()) {
        if enable {
            namespace.extend(enabled());
        }
        if let Ok(outcome) = review(&pod, &namespace) {
            let after = patched(&pod, &outcome);
            prop_assert_eq!(proxies(&after), proxies(&pod) + usize::from(outcome.decision.injects()));
            prop_assert_eq!(without_added(after, &pod), pod);
        }
    }

    #[test]
    fn an_injected_pod_gets_no_second_proxy(pod in pod(), mut namespace in annotations()) {
        namespace.extend(enabled());
        if let Ok(outcome) = review(&pod, &namespace) && outcome.decision.injects() {
            let once = patched(&pod, &outcome);
            let again = review(&once, &namespace).unwrap();
            prop_assert!(again.decision.skipped.contains(&NotInjected::SidecarExists));
            prop_assert_eq!(patched(&once, &again), once);
        }
    }

    /// An injection with any text is the one with a plain text, except inside of the strings that contain the text.
    #[test]
    fn the_text_of_an_annotation_stays_inside_of_a_string(
        name in select(&FREE[..]),
        hostile in text().prop_map(|text| format!("<{text}>")),
        is_of_namespace in any::<bool>(),
        is_native in any::<bool>(),
    ) {
        let injected = |text: &str| {
            let mut annotations = enabled();
            let mut insert = |name: &str, text: &str| annotations.insert(format!("{PREFIX}{name}"), text.to_owned());
            insert("enable-debug-sidecar", "true");
            insert("proxy-enable-native-sidecar", &is_native.to_string());
            insert(name, text);
            let (pod, namespace) =
                if is_of_namespace { (enabled(), annotations) } else { (annotations, AnnotationMap::new()) };
            let pod = json!({"metadata": {"annotations": pod}, "spec": {"containers": [{"name": "web"}]}});
            let outcome = review(&pod, &namespace).unwrap();
            assert!(outcome.decision.injects());
            patched(&pod, &outcome)
        };
        prop_assert_eq!(replaced(&injected(&hostile), &hostile, "plain"), injected("plain"));
    }
}

/// Values of several types, some of which fit at a few paths only.
fn declared_value() -> impl Strategy<Value = Value> {
    let texts = SPECIAL.map(|text| json!(text)).into_iter();
    let texts =
        texts.chain(["off", "no", "legacy", "insecure", "audit", "10.0.0.0/8", "70000"].map(|text| json!(text)));
    let others = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(70_000),
        json!(1.5),
        json!([]),
        json!({}),
        json!({"unknown": 1}),
        json!([{"name": "A", "value": "1"}]),
    ];
    select(texts.chain(others).collect::<Vec<_>>())
}

proptest! {
    /// Two parts of the program read the document: the LinkerdConfig controller before it is written, and the injector.
    #[test]
    fn a_document_without_problems_is_never_refused_by_the_injector(
        changes in vec((any::<prop::sample::Index>(), declared_value()), 1..6),
    ) {
        let mut document = Document::parse(INSTALLED).unwrap();
        let paths: Vec<Path> = document.leaves().map(|(path, _)| path).collect();
        for (at, value) in changes {
            document.set(at.get(&paths), value);
        }
        // The rules accept an installer's document without a mode, because earlier releases do. No patch may remove it.
        let mode = document.get(&Path::from(&["proxyInit", "iptablesMode"][..]));
        if document.problems().is_empty() && mode != Some(&Value::Null) {
            let read = Configuration::read(&document.to_yaml(), TRUST_ANCHORS);
            prop_assert!(read.is_ok(), "{}: {:?}", document.to_yaml(), read.err());
        }
    }
}
