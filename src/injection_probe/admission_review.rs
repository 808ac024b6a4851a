//! Builds the AdmissionReview for a replica of the proxy injector, and evaluates its answer. Pure.
//!
//! In: the bytes of an AdmissionReview, or the Pod that the API server would create. Out: a [`ProbeAnswer`]. Always
//! holds: the patch is applied as the API server applies it, so that the resulting Pod decides; a text of the injector
//! is one line of at most [`MAX_TEXT_BYTES`].

use std::collections::BTreeMap;

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::{Value, json};
use strum::{IntoStaticStr, VariantNames};

use crate::{
    api::{OPERATOR, WEBHOOK_AUDIT_ANNOTATION},
    text::truncated,
    values::CONFIG_HASH_ENV,
};

/// The maximum length of a text of the injector.
const MAX_TEXT_BYTES: usize = 1024;
const PROXY: &str = "linkerd-proxy";
/// The JSON pointer of Linkerd's annotation with the hash of the bundle that the proxy of a Pod trusts.
const TRUST_ROOT_POINTER: &str = "/metadata/annotations/linkerd.io~1trust-root-sha256";
/// Any UID works, because a connection has one request and one answer.
const UID: &str = "linkerd-operator";

/// The values that a replica injects if it uses the current configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedInjection {
    /// The value of [`CONFIG_HASH_ENV`].
    pub(crate) injection_hash: String,
    /// The SHA-256 of the bundle; `None` if the mesh has none.
    pub(crate) trust_roots: Option<String>,
}

/// The reaction of a replica to the probe Pod.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(super) enum ProbeAnswer {
    /// The replica injects the current configuration.
    Current,
    /// The replica injects an older configuration.
    Stale(Stale),
    /// The replica denies the Pod, with this message.
    Denied(String),
    /// The answer is invalid, or the connection broke.
    Broken(String),
    /// The replica accepts the Pod without a proxy.
    Uninjected,
    /// The connection failed, or the answer did not arrive in time.
    Unreachable(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    Configuration,
    TrustRoots,
    /// The replica denies Pods, perhaps because of an older document.
    Denying,
    /// The replica does not inject the configuration of the canary into Pods of a canary namespace.
    Canary,
}

#[derive(Deserialize)]
struct AdmissionReview {
    response: AdmissionResponse,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionResponse {
    #[serde(default)]
    uid: String,
    allowed: bool,
    #[serde(default)]
    status: AdmissionStatus,
    #[serde(default)]
    patch: Option<ByteString>,
    #[serde(default)]
    audit_annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct AdmissionStatus {
    #[serde(default)]
    message: String,
}

/// Returns the probe Pod, which requests injection. The Pod is never created.
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
                // Unless Linkerd projects a token, it injects only Pods that mount a service account token.
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
            "volumes": [{"name": "token", "emptyDir": {}}],
        },
    })
}

/// Returns the request that an API server sends before it creates this Pod.
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

/// Evaluates the answer to the AdmissionReview of this Pod.
pub(super) fn answer(bytes: &[u8], mut pod: Value, expected: &ExpectedInjection) -> ProbeAnswer {
    let response = match serde_json::from_slice::<AdmissionReview>(bytes) {
        Ok(review) => review.response,
        Err(error) => return ProbeAnswer::Broken(line(&format!("its answer is not an AdmissionReview: {error}"))),
    };
    if response.uid != UID {
        return ProbeAnswer::Broken("its answer has the UID of another request".to_owned());
    }
    if !response.allowed {
        let message = line(&response.status.message);
        return ProbeAnswer::Denied(if message.is_empty() { "it gives no reason".to_owned() } else { message });
    }
    let Some(ByteString(patch)) = response.patch else { return ProbeAnswer::Uninjected };
    let patched = serde_json::from_slice::<Patch>(&patch)
        .map_err(|error| error.to_string())
        .and_then(|patch| json_patch::patch(&mut pod, &patch).map_err(|error| error.to_string()));
    match patched {
        Ok(()) => injected(&pod, expected),
        Err(error) => ProbeAnswer::Broken(line(&format!("its patch cannot be applied to a Pod: {error}"))),
    }
}

/// Whether the operator's injector gave this answer; `None` if that is unknown.
pub(super) fn is_operators(bytes: &[u8]) -> Option<bool> {
    let response = serde_json::from_slice::<AdmissionReview>(bytes).ok()?.response;
    let server = response.audit_annotations.get(WEBHOOK_AUDIT_ANNOTATION);
    // Denials of the operator's injector have no annotation.
    response.allowed.then(|| server.is_some_and(|server| server.starts_with(OPERATOR)))
}

/// Evaluates a Pod that the injector has mutated.
pub(super) fn injected(pod: &Value, expected: &ExpectedInjection) -> ProbeAnswer {
    let containers = |path| pod.pointer(path).and_then(Value::as_array).into_iter().flatten();
    let name = |it: &Value| it.get("name").and_then(Value::as_str).map(str::to_owned);
    let proxy = containers("/spec/initContainers")
        .chain(containers("/spec/containers"))
        .find(|container| name(container).as_deref() == Some(PROXY));
    let Some(proxy) = proxy else { return ProbeAnswer::Uninjected };
    let mut variables = proxy.get("env").and_then(Value::as_array).into_iter().flatten();
    let injection_hash = variables.find(|variable| name(variable).as_deref() == Some(CONFIG_HASH_ENV));
    if injection_hash.and_then(|it| it.get("value")).and_then(Value::as_str) != Some(&expected.injection_hash) {
        return ProbeAnswer::Stale(Stale::Configuration);
    }
    let trusted = pod.pointer(TRUST_ROOT_POINTER).and_then(Value::as_str);
    match &expected.trust_roots {
        Some(wanted) if trusted != Some(wanted) => ProbeAnswer::Stale(Stale::TrustRoots),
        _ => ProbeAnswer::Current,
    }
}

/// Returns a text of the injector as one line of bounded length.
pub(super) fn line(text: &str) -> String {
    let mut line: String = text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    if line.len() > MAX_TEXT_BYTES {
        line = truncated(line, MAX_TEXT_BYTES - '…'.len_utf8());
        line.push('…');
    }
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> ExpectedInjection {
        ExpectedInjection { injection_hash: "0123456789abcdef".to_owned(), trust_roots: Some("roots".to_owned()) }
    }

    fn patch(injection_hash: &str, roots: &str) -> Value {
        let env = json!([{"name": "LINKERD2_PROXY_LOG", "value": "warn"}, {"name": CONFIG_HASH_ENV, "value": injection_hash}]);
        json!([
            {"op": "add", "path": "/spec/initContainers", "value": []},
            {"op": "add", "path": "/spec/initContainers/0", "value": {"name": "linkerd-init"}},
            {"op": "add", "path": "/spec/initContainers/1", "value": {"name": PROXY, "env": env}},
            {"op": "add", "path": "/metadata/annotations/linkerd.io~1trust-root-sha256", "value": roots},
        ])
    }

    fn answer_to(response: &Value) -> ProbeAnswer {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        answer(review.to_string().as_bytes(), pod("linkerd"), &expected())
    }

    fn patched(patch: &Value) -> ProbeAnswer {
        let patch = serde_json::to_value(ByteString(patch.to_string().into_bytes())).unwrap();
        answer_to(&json!({"uid": UID, "allowed": true, "patchType": "JSONPatch", "patch": patch}))
    }

    #[test]
    fn the_patched_pod_shows_whether_a_replica_is_current() {
        assert_eq!(patched(&patch("0123456789abcdef", "roots")), ProbeAnswer::Current);
        assert_eq!(patched(&patch("fedcba9876543210", "roots")), ProbeAnswer::Stale(Stale::Configuration));
        assert_eq!(patched(&patch("0123456789abcdef", "others")), ProbeAnswer::Stale(Stale::TrustRoots));
        // Without the native sidecar the proxy is among the containers.
        let env = json!([{"name": CONFIG_HASH_ENV, "value": "0123456789abcdef"}]);
        let sidecar = json!([{"op": "add", "path": "/spec/containers/0", "value": {"name": PROXY, "env": env}}]);
        assert_eq!(patched(&sidecar), ProbeAnswer::Stale(Stale::TrustRoots));
        let any_roots = ExpectedInjection { trust_roots: None, ..expected() };
        let mut pod = pod("linkerd");
        json_patch::patch(&mut pod, &serde_json::from_value::<Patch>(sidecar).unwrap()).unwrap();
        assert_eq!(injected(&pod, &any_roots), ProbeAnswer::Current);
    }

    #[test]
    fn a_pod_without_a_proxy_is_uninjected() {
        assert_eq!(answer_to(&json!({"uid": UID, "allowed": true})), ProbeAnswer::Uninjected);
        assert_eq!(patched(&json!([])), ProbeAnswer::Uninjected);
    }

    #[test]
    fn a_denial_has_the_message_of_the_injector_cut_to_one_line() {
        let denied = |message: &str| answer_to(&json!({"uid": UID, "allowed": false, "status": {"message": message}}));
        assert_eq!(denied("template: bad\n\tvalue"), ProbeAnswer::Denied("template: bad  value".to_owned()));
        assert_eq!(
            answer_to(&json!({"uid": UID, "allowed": false})),
            ProbeAnswer::Denied("it gives no reason".to_owned())
        );
        let ProbeAnswer::Denied(long) = denied(&"ü".repeat(5000)) else { panic!("it is not a denial") };
        assert!(long.len() <= MAX_TEXT_BYTES && long.ends_with("ü…"), "{}", long.len());
    }

    #[test]
    fn an_answer_that_an_api_server_could_not_use_is_broken() {
        let patch_of = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
        let allowed = |patch: Value| answer_to(&json!({"uid": UID, "allowed": true, "patch": patch}));
        for answer in [
            answer(b"", pod("linkerd"), &expected()),
            answer(b"{}", pod("linkerd"), &expected()),
            answer(b"\xff\xfe", pod("linkerd"), &expected()),
            answer_to(&json!({"uid": "another", "allowed": true})),
            allowed(json!("no base64!")),
            allowed(patch_of("no JSON")),
            allowed(patch_of(r#"[{"op": "add", "path": "/spec/initContainers/0", "value": {}}]"#)),
        ] {
            assert!(matches!(answer, ProbeAnswer::Broken(_)), "{answer:?}");
        }
    }

    #[test]
    fn the_operators_injector_is_recognized_by_its_audit_annotation() {
        let is_operators = |response: &Value| is_operators(json!({"response": response}).to_string().as_bytes());
        let with = |annotations: Value| json!({"uid": UID, "allowed": true, "auditAnnotations": annotations});
        assert_eq!(is_operators(&with(json!({"answered-by": "linkerd-operator/1.2.3"}))), Some(true));
        assert_eq!(is_operators(&with(json!({"answered-by": "another"}))), Some(false));
        assert_eq!(is_operators(&json!({"uid": UID, "allowed": true})), Some(false));
        assert_eq!(is_operators(&json!({"uid": UID, "allowed": false})), None, "denials have no annotation");
        assert_eq!(super::is_operators(b"no JSON"), None);
    }

    #[test]
    fn the_request_is_a_review_of_a_pod_that_requests_injection() {
        let review = review(&pod("linkerd"));
        let review: kube::core::DynamicObject = serde_json::from_value(review).unwrap();
        let request = &review.data["request"];
        assert_eq!((request["namespace"].as_str(), request["dryRun"].as_bool()), (Some("linkerd"), Some(true)));
        assert_eq!(request["object"]["metadata"]["annotations"]["linkerd.io/inject"], "enabled");
        let pod = serde_json::from_value::<k8s_openapi::api::core::v1::Pod>(request["object"].clone()).unwrap();
        assert_eq!(pod.spec.unwrap().containers.len(), 1);
    }
}
