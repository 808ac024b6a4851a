//! For the fuzzer: any Pods, annotations and values, through the injector.

use std::{cell::RefCell, sync::LazyLock};

use json_patch::Patch;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{
    annotations::{AnnotationMap, PREFIX},
    configuration::Configuration,
    containers::NotRenderable,
    inject::{AdmissionOutcome, Injector, ObjectKind, ReviewTarget},
    owner::workload,
    reviewed::{ReviewedObject, TOKEN_FOLDER},
};
use crate::{
    api::{INJECT_ANNOTATION, PROXY_NAME},
    cluster::{Kind, testing::Feed},
    values::{Document, Path, manifest, patch_problems},
    webhook::review::ReviewRequest,
};

/// The document that Linkerd's chart renders.
const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");
const TRUST_ANCHORS: &str = include_str!("../values/testdata/root.pem");
/// The kinds whose annotations the watches read.
const ANNOTATED: [Kind; 7] = [
    Kind::ConfigMap,
    Kind::Deployment,
    Kind::ExternalWorkload,
    Kind::Namespace,
    Kind::Pod,
    Kind::ReplicaSet,
    Kind::Service,
];
/// The most bytes of an answer about an object without any text.
const LONGEST_ANSWER: usize = 64 * 1024;
/// How often an answer may repeat a text of its review.
const REPETITIONS: usize = 16;
/// The most problems of a document.
const MOST_PROBLEMS: usize = 200;
/// The most bytes of a sentence about a document.
const LONGEST_SENTENCE: usize = 8 * 1024;

static CONFIGURATION: LazyLock<Configuration> =
    LazyLock::new(|| Configuration::read(INSTALLED, TRUST_ANCHORS).expect("the installed document is usable"));

thread_local! {
    static CLUSTER: RefCell<Feed> = RefCell::default();
}

/// The body of a review. Its answer is the same each time and bounded; its patch applies to an object that Kubernetes
/// accepts, and adds one proxy at most.
pub(crate) fn admission_review(data: &[u8]) {
    let Ok(request) = ReviewRequest::<ReviewedObject>::read(data) else { return };
    let Some(kind) = ObjectKind::of(&request.kind.kind) else { return };
    let object = request.object.clone().unwrap_or_default();
    let sent = serde_json::from_slice::<Value>(data).map(|mut review| review["request"]["object"].take());
    for namespace in [AnnotationMap::new(), enabled()] {
        for configuration in [Some(&*CONFIGURATION), None] {
            let answer = || answered(&request, decide(configuration, kind, &namespace, &object));
            let (answer, patch) = answer();
            assert_eq!(answered(&request, decide(configuration, kind, &namespace, &object)).0, answer);
            assert!(answer.len() <= LONGEST_ANSWER + REPETITIONS * data.len(), "{} bytes", answer.len());
            let read: Value = serde_json::from_slice(&answer).expect("an answer is JSON");
            assert!(read["response"]["allowed"].is_boolean(), "{read}");
            if let (Ok(sent), Some((patch, injects))) = (&sent, patch) {
                apply(sent, kind, &patch, injects);
            }
        }
    }
}

/// Annotations of a Pod and of its namespace. A Pod that is not denied is still one that Kubernetes can read, and no
/// object of a watched kind ends the process.
pub(crate) fn annotations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (mut of_pod, mut of_namespace) = (AnnotationMap::new(), enabled());
    for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let (annotations, name) = match name.strip_prefix('@') {
            Some(name) => (&mut of_namespace, name),
            None => (&mut of_pod, name),
        };
        let name = if name.contains('/') { name.to_owned() } else { format!("{PREFIX}{name}") };
        // A value in quotes may have escapes.
        annotations.insert(name, serde_json::from_str(value).unwrap_or_else(|_| value.to_owned()));
    }
    let metadata =
        json!({"name": "web", "namespace": "shop", "uid": "u", "annotations": of_pod, "labels": of_namespace});
    let ports = json!([{"name": "http", "containerPort": 8080}, {"name": "db", "containerPort": 3306}]);
    let containers = json!([{"name": "web", "image": "web", "ports": ports}]);
    let pod = json!({"metadata": metadata, "spec": {"containers": containers}});
    let read: ReviewedObject = serde_json::from_value(pod.clone()).expect("the Pod is readable");
    for kind in [ObjectKind::Pod, ObjectKind::Service] {
        if let Ok(outcome) = decide(Some(&CONFIGURATION), kind, &of_namespace, &read) {
            apply(&pod, kind, &Patch(outcome.patch.clone()), outcome.decision.injects());
        }
    }
    CLUSTER.with_borrow_mut(|cluster| {
        let template = json!({"metadata": metadata, "spec": {"containers": containers}});
        for kind in ANNOTATED {
            let spec = json!({"containers": containers, "template": template, "ports": []});
            cluster.apply(kind, Event::Apply(json!({"metadata": metadata, "spec": spec})));
        }
    });
}

/// The text of a document. One that is read is written so that it is read again, and one without a problem is never refused
/// by the injector; a sentence about it is bounded.
pub(crate) fn values_document(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // The reader of manifests has the same parser.
    let _ = manifest(text);
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(invalid) => return assert!(invalid.to_string().len() <= LONGEST_SENTENCE, "{invalid}"),
    };
    let written = document.to_yaml();
    let again = Document::parse(&written).expect("a written document is readable");
    assert_eq!((again.as_map(), again.hash()), (document.as_map(), document.hash()), "{written}");
    assert_eq!(again.injection_hash(), document.injection_hash());
    assert_eq!(document.differences(&again), []);
    assert_eq!(document.with_injection_hash("h").split_injection_hash().1.as_deref(), Some("h"));
    let problems = document.problems();
    for problems in [&problems, &patch_problems(document.as_map()), &document.doubtful_values()] {
        assert!(problems.len() <= MOST_PROBLEMS, "{} problems", problems.len());
        assert!(problems.iter().all(|problem| problem.to_string().len() <= LONGEST_SENTENCE), "{problems:?}");
    }
    let mode = document.get(&Path::from(&["proxyInit", "iptablesMode"][..]));
    match Configuration::read(text, TRUST_ANCHORS) {
        Ok(configuration) => {
            // Without a token, a Pod gets a proxy only if the document projects one.
            let mounts = json!([{"name": "token", "mountPath": TOKEN_FOLDER}]);
            let containers = json!([{"name": "web", "volumeMounts": mounts}]);
            let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": containers, "volumes": [{"name": "token"}]}});
            let read: ReviewedObject = serde_json::from_value(pod.clone()).expect("the Pod is readable");
            let outcome = decide(Some(&configuration), ObjectKind::Pod, &enabled(), &read);
            let outcome = outcome.expect("a configuration in use injects a plain Pod");
            assert!(outcome.decision.injects());
            apply(&pod, ObjectKind::Pod, &Patch(outcome.patch), true);
        }
        // The rules accept a document without a mode, because earlier releases do. No patch may remove it.
        Err(refused) => {
            assert!(!problems.is_empty() || mode.is_none_or(Value::is_null), "{refused}");
            assert!(refused.to_string().len() <= LONGEST_SENTENCE, "{refused}");
        }
    }
}

fn enabled() -> AnnotationMap {
    AnnotationMap::from([(INJECT_ANNOTATION.to_owned(), "enabled".to_owned())])
}

fn decide(
    configuration: Option<&Configuration>,
    kind: ObjectKind,
    namespace: &AnnotationMap,
    object: &ReviewedObject,
) -> Result<AdmissionOutcome, NotRenderable> {
    let workload = workload(&object.metadata.name, &object.metadata.owner_references, None);
    let target = ReviewTarget { namespace, namespace_name: "shop", inject_label: None, workload: Some(&workload) };
    let injector = Injector { controller_namespace: "linkerd", version: "v" };
    injector.decide(configuration.ok_or("25,3306"), kind, target, object)
}

/// Returns the answer, and the patch of an object that is allowed with whether it injects a proxy.
fn answered(
    request: &ReviewRequest<ReviewedObject>,
    outcome: Result<AdmissionOutcome, NotRenderable>,
) -> (Vec<u8>, Option<(Patch, bool)>) {
    match outcome {
        Ok(mut outcome) => {
            let (patch, injects) = (Patch(std::mem::take(&mut outcome.patch)), outcome.decision.injects());
            (request.allowed_by_name(&patch, outcome.into_warnings()), Some((patch, injects)))
        }
        Err(reason) => (request.denied(&reason.to_string()), None),
    }
}

/// Applies a patch, as the API server does, to an object that it accepts.
fn apply(sent: &Value, kind: ObjectKind, patch: &Patch, injects: bool) {
    let is_accepted = match kind {
        ObjectKind::Service => true,
        ObjectKind::Pod => {
            let read = serde_json::from_value::<Pod>(sent.clone()).ok().and_then(|pod| pod.spec);
            read.is_some_and(|spec| !spec.containers.is_empty())
        }
    };
    if !is_accepted || !sent["metadata"].is_object() {
        return;
    }
    let mut patched = sent.clone();
    json_patch::patch(&mut patched, patch).unwrap_or_else(|error| panic!("the patch does not apply: {error}"));
    if kind == ObjectKind::Pod {
        serde_json::from_value::<Pod>(patched.clone()).unwrap_or_else(|error| panic!("{error}: {patched}"));
        assert_eq!(proxies(&patched), proxies(sent) + usize::from(injects), "{patched}");
    }
}

/// Returns the number of Linkerd's proxies in a Pod.
fn proxies(pod: &Value) -> usize {
    let lists = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array());
    lists.into_iter().flatten().flatten().filter(|container| container["name"] == PROXY_NAME).count()
}
