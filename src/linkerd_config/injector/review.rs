//! What a replica of the proxy-injector is asked, and what its answer shows. Pure.
//!
//! In: an AdmissionReview's bytes, or a Pod that the API server would have made. Out: an [`Answer`]. Always holds: the patch is
//! applied as an API server applies it, so that what counts is the Pod that would come of it; no text of the injector's is
//! longer than [`LONGEST_TEXT`], or more than one line.

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::linkerd_config::values::MARKER;

/// What a text from outside may have, in bytes.
const LONGEST_TEXT: usize = 1024;
const PROXY: &str = "linkerd-proxy";
/// As Linkerd annotates Pods with the bundle that their proxies trust.
const TRUST_ROOT_ANNOTATION: &str = "/metadata/annotations/linkerd.io~1trust-root-sha256";
/// Whatever it is: an answer belongs to its connection.
const UID: &str = "linkerd-operator";

/// What an injected Pod shows of a replica that is current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::linkerd_config) struct Expected {
    /// The value of [`MARKER`].
    pub(in crate::linkerd_config) marker: String,
    /// `None`: the mesh has no bundle to compare with.
    pub(in crate::linkerd_config) trust_roots: Option<String>,
}

/// What a replica was found to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It injects what is wanted.
    Current,
    /// It injects something else, still.
    Stale(Stale),
    /// It refuses to have the Pod created, and says why.
    Denied(String),
    /// It answers with nothing that an API server could use, or breaks off.
    Broken(String),
    /// It lets the Pod through without a proxy.
    Uninjected,
    /// It could not be asked, or did not answer.
    Unreachable(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    Configuration,
    TrustRoots,
    /// It denies Pods in the words in which it denied them before the document was another.
    Denying,
}

#[derive(Deserialize)]
struct Review {
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    uid: String,
    allowed: bool,
    #[serde(default)]
    status: Status,
    #[serde(default)]
    patch: Option<ByteString>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

/// A Pod of this namespace that asks to be injected. It is never made.
pub(super) fn pod(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "linkerd-operator-probe-",
            "namespace": namespace,
            "annotations": {"linkerd.io/inject": "enabled"},
        },
        "spec": {
            "containers": [{
                "name": "probe",
                "image": "registry.k8s.io/pause:3.10",
                // Without a token of its own no Pod is injected where Linkerd does not project one.
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
            "volumes": [{"name": "token", "emptyDir": {}}],
        },
    })
}

/// The request of an API server that is about to create this Pod.
pub(super) fn review(pod: &Value) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": UID,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "namespace": pod.pointer("/metadata/namespace"),
            "operation": "CREATE",
            "userInfo": {},
            "object": pod,
            "oldObject": null,
            "dryRun": true,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions", "dryRun": ["All"]},
        },
    })
}

/// What the bytes of an AdmissionReview make of this Pod.
pub(super) fn answer(bytes: &[u8], mut pod: Value, expected: &Expected) -> Answer {
    let response = match serde_json::from_slice::<Review>(bytes) {
        Ok(review) => review.response,
        Err(error) => return Answer::Broken(line(&format!("its answer is no AdmissionReview: {error}"))),
    };
    if response.uid != UID {
        return Answer::Broken("its answer is to another request".to_owned());
    }
    if !response.allowed {
        let message = line(&response.status.message);
        return Answer::Denied(if message.is_empty() { "it gives no reason".to_owned() } else { message });
    }
    let Some(ByteString(patch)) = response.patch else { return Answer::Uninjected };
    let patched = serde_json::from_slice::<Patch>(&patch)
        .map_err(|error| error.to_string())
        .and_then(|patch| json_patch::patch(&mut pod, &patch).map_err(|error| error.to_string()));
    match patched {
        Ok(()) => injected(&pod, expected),
        Err(error) => Answer::Broken(line(&format!("its patch cannot be applied to a Pod: {error}"))),
    }
}

/// What a Pod shows that has passed the injector.
pub(super) fn injected(pod: &Value, expected: &Expected) -> Answer {
    let containers = |path| pod.pointer(path).and_then(Value::as_array).into_iter().flatten();
    let name = |it: &Value| it.get("name").and_then(Value::as_str).map(str::to_owned);
    let proxy = containers("/spec/initContainers")
        .chain(containers("/spec/containers"))
        .find(|container| name(container).as_deref() == Some(PROXY));
    let Some(proxy) = proxy else { return Answer::Uninjected };
    let mut variables = proxy.get("env").and_then(Value::as_array).into_iter().flatten();
    let marker = variables.find(|variable| name(variable).as_deref() == Some(MARKER));
    if marker.and_then(|it| it.get("value")).and_then(Value::as_str) != Some(&expected.marker) {
        return Answer::Stale(Stale::Configuration);
    }
    let trusted = pod.pointer(TRUST_ROOT_ANNOTATION).and_then(Value::as_str);
    match &expected.trust_roots {
        Some(wanted) if trusted != Some(wanted) => Answer::Stale(Stale::TrustRoots),
        _ => Answer::Current,
    }
}

/// One line, not too long, of a text from outside.
pub(super) fn line(text: &str) -> String {
    let mut line: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    if line.len() > LONGEST_TEXT {
        line.truncate(line.floor_char_boundary(LONGEST_TEXT - '…'.len_utf8()));
        line.push('…');
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected { marker: "0123456789abcdef".to_owned(), trust_roots: Some("roots".to_owned()) }
    }

    fn patch(marker: &str, roots: &str) -> Value {
        let env = json!([{"name": "LINKERD2_PROXY_LOG", "value": "warn"}, {"name": MARKER, "value": marker}]);
        json!([
            {"op": "add", "path": "/spec/initContainers", "value": []},
            {"op": "add", "path": "/spec/initContainers/0", "value": {"name": "linkerd-init"}},
            {"op": "add", "path": "/spec/initContainers/1", "value": {"name": PROXY, "env": env}},
            {"op": "add", "path": "/metadata/annotations/linkerd.io~1trust-root-sha256", "value": roots},
        ])
    }

    fn told(response: &Value) -> Answer {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        answer(review.to_string().as_bytes(), pod("linkerd"), &expected())
    }

    fn patched(patch: &Value) -> Answer {
        let patch = serde_json::to_value(ByteString(patch.to_string().into_bytes())).unwrap();
        told(&json!({"uid": UID, "allowed": true, "patchType": "JSONPatch", "patch": patch}))
    }

    #[test]
    fn the_pod_that_would_come_of_it_shows_whether_a_replica_is_current() {
        assert_eq!(patched(&patch("0123456789abcdef", "roots")), Answer::Current);
        assert_eq!(patched(&patch("fedcba9876543210", "roots")), Answer::Stale(Stale::Configuration));
        assert_eq!(patched(&patch("0123456789abcdef", "others")), Answer::Stale(Stale::TrustRoots));
        // Without the native sidecar the proxy is among the containers.
        let env = json!([{"name": MARKER, "value": "0123456789abcdef"}]);
        let sidecar = json!([{"op": "add", "path": "/spec/containers/0", "value": {"name": PROXY, "env": env}}]);
        assert_eq!(patched(&sidecar), Answer::Stale(Stale::TrustRoots));
        let any_roots = Expected { trust_roots: None, ..expected() };
        let mut pod = pod("linkerd");
        json_patch::patch(&mut pod, &serde_json::from_value::<Patch>(sidecar).unwrap()).unwrap();
        assert_eq!(injected(&pod, &any_roots), Answer::Current);
    }

    #[test]
    fn without_a_proxy_it_is_not_injected() {
        assert_eq!(told(&json!({"uid": UID, "allowed": true})), Answer::Uninjected);
        assert_eq!(patched(&json!([])), Answer::Uninjected);
    }

    #[test]
    fn a_denial_is_told_in_the_injectors_words_cut_to_one_line() {
        let denied = |message: &str| told(&json!({"uid": UID, "allowed": false, "status": {"message": message}}));
        assert_eq!(denied("template: bad\n\tvalue"), Answer::Denied("template: bad  value".to_owned()));
        assert_eq!(told(&json!({"uid": UID, "allowed": false})), Answer::Denied("it gives no reason".to_owned()));
        let Answer::Denied(long) = denied(&"ü".repeat(5000)) else { panic!("it is no denial") };
        assert!(long.len() <= LONGEST_TEXT && long.ends_with("ü…"), "{}", long.len());
    }

    #[test]
    fn what_no_api_server_could_use_is_broken() {
        let patch_of = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
        let allowed = |patch: Value| told(&json!({"uid": UID, "allowed": true, "patch": patch}));
        for answer in [
            answer(b"", pod("linkerd"), &expected()),
            answer(b"{}", pod("linkerd"), &expected()),
            answer(b"\xff\xfe", pod("linkerd"), &expected()),
            told(&json!({"uid": "another", "allowed": true})),
            allowed(json!("no base64!")),
            allowed(patch_of("no JSON")),
            allowed(patch_of(r#"[{"op": "add", "path": "/spec/initContainers/0", "value": {}}]"#)),
        ] {
            assert!(matches!(answer, Answer::Broken(_)), "{answer:?}");
        }
    }

    #[test]
    fn the_request_is_a_review_of_a_pod_that_asks_to_be_injected() {
        let review = review(&pod("linkerd"));
        let review: kube::core::DynamicObject = serde_json::from_value(review).unwrap();
        let request = &review.data["request"];
        assert_eq!((request["namespace"].as_str(), request["dryRun"].as_bool()), (Some("linkerd"), Some(true)));
        assert_eq!(request["object"]["metadata"]["annotations"]["linkerd.io/inject"], "enabled");
        let pod = serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(request["object"].clone()).unwrap();
        assert_eq!(pod.spec.unwrap().containers.len(), 1);
    }
}
