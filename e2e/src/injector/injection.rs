//! Injects a Pod.
//!
//! * In: a [`Review`], and the contents of the two mounted files. Out: a [`Verdict`].
//! * Always: the files are validated before the object, so that an invalid document denies everything, including
//!   Services.
//! * Only the Pod's own annotation enables injection, not that of its namespace: the operator's probe sets it on the
//!   Pod. Annotations that override ports, volumes and probes are not supported.

use std::io;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    admission::Review,
    values::{Unfit, Values},
};

/// The version of the injector itself; proxies have the version from the document.
pub(super) const VERSION: &str = "edge-26.8.3";

/// The two mounted files, which are read for every request.
pub(super) struct Mounts {
    pub(super) values: io::Result<Vec<u8>>,
    pub(super) trust_roots: io::Result<Vec<u8>>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Leave,
    Patch(Vec<Value>),
    Deny(String),
    /// The connection is closed without an answer.
    Panic,
}

/// Decides on a review, for a control plane in this namespace.
pub(super) fn decide(review: &Review, mounts: Mounts, namespace: &str) -> Verdict {
    let read = match mounts.values {
        Ok(text) => Values::read(&String::from_utf8_lossy(&text)),
        Err(error) => return Verdict::Deny(unreadable("/var/run/linkerd/config/values", &error)),
    };
    let values = match read {
        Ok(values) => values,
        Err(Unfit::Unreadable(text)) => return Verdict::Deny(text),
        Err(Unfit::Panics) => return Verdict::Panic,
    };
    let trust_roots = match mounts.trust_roots {
        Ok(bytes) => bytes,
        Err(error) => {
            return Verdict::Deny(unreadable("/var/run/linkerd/identity/trust-roots/ca-bundle.crt", &error));
        }
    };
    if !review.is_about_a_pod() || !needs_a_proxy(review.object()) {
        return Verdict::Leave;
    }
    let headers = values.proxy.log_http_headers.as_str();
    if !["off", "insecure", ""].contains(&headers) {
        return Verdict::Deny(format!(
            "template: linkerd2/templates/patch.json:1:1: executing \"linkerd2/templates/patch.json\" at <include \
             \"partials.proxy\" .>: error calling include: error calling fail: logHTTPHeaders must be one of: \
             insecure | off, not {headers}"
        ));
    }
    Verdict::Patch(patch(review, &values, &trust_roots, namespace))
}

/// An error in Go's format.
fn unreadable(path: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("open {path}: no such file or directory"),
        _ => format!("open {path}: {error}"),
    }
}

fn needs_a_proxy(pod: &Value) -> bool {
    let annotation = pod.pointer("/metadata/annotations/linkerd.io~1inject").and_then(Value::as_str);
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter();
    let mut names = containers.flat_map(|at| array(pod, at)).filter_map(|container| container.get("name"));
    matches!(annotation, Some("enabled" | "ingress")) && !names.any(|name| name == "linkerd-proxy")
}

fn patch(review: &Review, values: &Values, trust_roots: &[u8], namespace: &str) -> Vec<Value> {
    let pod = review.object();
    let mut patch = Vec::new();
    let mut put = |path: &str, value: Value| patch.push(json!({"op": "add", "path": path, "value": value}));
    // The annotations exist, because `linkerd.io/inject` is one of them.
    for (name, value) in annotations(values, trust_roots) {
        put(&format!("/metadata/annotations/linkerd.io~1{name}"), json!(value));
    }
    if pod.pointer("/metadata/labels").is_none_or(Value::is_null) {
        put("/metadata/labels", json!({}));
    }
    put("/metadata/labels/linkerd.io~1control-plane-ns", json!(namespace));
    put("/metadata/labels/linkerd.io~1workload-ns", json!(review.namespace()));
    if pod.pointer("/spec/initContainers").is_none_or(Value::is_null) {
        put("/spec/initContainers", json!([]));
    }
    let proxy = proxy(values, trust_roots, namespace);
    if values.proxy.native_sidecar == Some(true) {
        put("/spec/initContainers/0", init(values));
        put("/spec/initContainers/1", proxy);
    } else {
        put("/spec/initContainers/-", init(values));
        put("/spec/containers/0", proxy);
    }
    patch
}

fn annotations(values: &Values, trust_roots: &[u8]) -> [(&'static str, String); 3] {
    let hash = Sha256::digest(trust_roots).iter().map(|byte| format!("{byte:02x}")).collect();
    [
        ("created-by", format!("linkerd/proxy-injector {VERSION}")),
        ("proxy-version", values.proxy_version().to_owned()),
        ("trust-root-sha256", hash),
    ]
}

fn init(values: &Values) -> Value {
    let ports = &values.proxy.ports;
    json!({
        "name": "linkerd-init",
        "image": image(values),
        "imagePullPolicy": values.pull_policy(),
        "args": [
            "--incoming-proxy-port", number(ports.inbound),
            "--outgoing-proxy-port", number(ports.outbound),
            "--proxy-uid", values.proxy.uid.unwrap_or_default().to_string(),
        ],
    })
}

fn proxy(values: &Values, trust_roots: &[u8], namespace: &str) -> Value {
    let Values { proxy, cluster_domain, .. } = values;
    let service = |name: &str, port: u16| format!("{name}.{namespace}.svc.{}:{port}", cluster_domain.as_str());
    let variables = [
        ("_l5d_ns", namespace.to_owned()),
        ("LINKERD2_PROXY_LOG", proxy.log_level.as_str().to_owned()),
        ("LINKERD2_PROXY_LOG_FORMAT", proxy.log_format.as_str().to_owned()),
        ("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", format!("0.0.0.0:{}", number(proxy.ports.control))),
        ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", format!("0.0.0.0:{}", number(proxy.ports.admin))),
        ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", format!("127.0.0.1:{}", number(proxy.ports.outbound))),
        ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", format!("0.0.0.0:{}", number(proxy.ports.inbound))),
        ("LINKERD2_PROXY_DESTINATION_SVC_ADDR", service("linkerd-dst-headless", 8086)),
        ("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", String::from_utf8_lossy(trust_roots).into_owned()),
    ];
    let env = variables.into_iter().map(|(name, value)| json!({"name": name, "value": value}));
    let more = proxy.additional_env.iter().flatten().cloned().map(Value::Object);
    let mut container = json!({
        "name": "linkerd-proxy",
        "image": image(values),
        "imagePullPolicy": values.pull_policy(),
        "env": env.chain(more).collect::<Vec<_>>(),
        "ports": [
            {"name": "linkerd-proxy", "containerPort": proxy.ports.inbound},
            {"name": "linkerd-admin", "containerPort": proxy.ports.admin},
        ],
        "securityContext": security_context(values),
    });
    if proxy.native_sidecar == Some(true)
        && let Some(container) = container.as_object_mut()
    {
        container.insert("restartPolicy".to_owned(), json!("Always"));
    }
    container
}

fn security_context(values: &Values) -> Map<String, Value> {
    let mut context = Map::from_iter([("runAsUser".to_owned(), json!(values.proxy.uid.unwrap_or_default()))]);
    // A negative gid is ignored.
    if let Some(gid) = values.proxy.gid.filter(|gid| *gid >= 0) {
        context.insert("runAsGroup".to_owned(), json!(gid));
    }
    context
}

fn image(values: &Values) -> String {
    format!("{}:{}", values.proxy.image.name.as_str(), values.proxy_version())
}

fn number(port: Option<i32>) -> String {
    port.unwrap_or_default().to_string()
}

fn array<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: &str = include_str!("../../../src/linkerd_config/values/testdata/installed.yaml");

    fn review(kind: &str, object: &Value) -> Review {
        let body = json!({"request": {"uid": "7", "namespace": "app", "kind": {"kind": kind}, "object": object}});
        Review::parse(body.to_string().as_bytes()).unwrap().unwrap()
    }

    fn meshed() -> Review {
        review(
            "Pod",
            &json!({"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}, "spec": {"containers": []}}),
        )
    }

    fn judge(review: &Review, values: &str) -> Verdict {
        let mounts = Mounts { values: Ok(values.into()), trust_roots: Ok("roots".into()) };
        decide(review, mounts, "linkerd")
    }

    fn operations(verdict: Verdict) -> Vec<Value> {
        let Verdict::Patch(operations) = verdict else { panic!("{verdict:?}") };
        operations
    }

    fn paths(operations: &[Value]) -> Vec<&str> {
        operations.iter().filter_map(|operation| operation["path"].as_str()).collect()
    }

    #[test]
    fn a_pod_gets_both_containers_and_the_additional_env_comes_last() {
        let more = "additionalEnv: [{name: A, value: a}, {name: B, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]";
        let operations = operations(judge(&meshed(), &CHART.replacen("additionalEnv: null", more, 1)));
        let [.., root, init, proxy] = &operations[..] else { panic!() };
        assert_eq!(*root, json!({"op": "add", "path": "/spec/initContainers", "value": []}));
        assert_eq!((&init["path"], &init["value"]["name"]), (&json!("/spec/initContainers/0"), &json!("linkerd-init")));
        assert_eq!(proxy["path"], "/spec/initContainers/1");
        assert_eq!(proxy["value"]["image"], "cr.l5d.io/linkerd/proxy:edge-26.8.3");
        let env = proxy["value"]["env"].as_array().unwrap();
        let b = json!({"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
        assert_eq!(env[env.len() - 2..], [json!({"name": "A", "value": "a"}), b]);
        // `printf roots | sha256sum`
        let hash = "a4e3c20a327766600f2e45b9b0735d26e2f809088dd323d7a5ad5d71d757dc69";
        let hashed = operations.iter().find(|operation| operation["path"].as_str().unwrap().ends_with("sha256"));
        assert_eq!(hashed.unwrap()["value"], hash);
    }

    #[test]
    fn the_proxy_is_the_first_container_without_native_sidecars() {
        let operations = operations(judge(&meshed(), &CHART.replace("nativeSidecar: true", "nativeSidecar: false")));
        assert!(paths(&operations).ends_with(&["/spec/initContainers/-", "/spec/containers/0"]), "{operations:?}");
    }

    #[test]
    fn existing_labels_and_init_containers_are_kept() {
        let pod = json!({
            "metadata": {"labels": {"app": "web"}, "annotations": {"linkerd.io/inject": "ingress"}},
            "spec": {"initContainers": [{"name": "mine"}]},
        });
        let operations = operations(judge(&review("Pod", &pod), CHART));
        assert!(!paths(&operations).iter().any(|path| path.ends_with("/labels") || path.ends_with("/initContainers")));
    }

    #[test]
    fn only_a_pod_with_the_annotation_and_without_a_proxy_is_injected() {
        let disabled = json!({"metadata": {"annotations": {"linkerd.io/inject": "disabled"}}});
        let done = json!({
            "metadata": {"annotations": {"linkerd.io/inject": "enabled"}},
            "spec": {"initContainers": [{"name": "linkerd-proxy"}]},
        });
        for (kind, object) in [("Pod", json!({})), ("Pod", disabled), ("Pod", done), ("Service", json!({}))] {
            assert_eq!(judge(&review(kind, &object), CHART), Verdict::Leave);
        }
    }

    #[test]
    fn an_invalid_document_denies_objects_that_need_no_injection() {
        let service = review("Service", &json!({}));
        assert!(matches!(judge(&service, "proxy: {"), Verdict::Deny(_)));
        assert_eq!(judge(&service, ""), Verdict::Panic);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let mounts = Mounts { values: Ok(CHART.into()), trust_roots: Err(missing()) };
        let text = "open /var/run/linkerd/identity/trust-roots/ca-bundle.crt: no such file or directory";
        assert_eq!(decide(&service, mounts, "linkerd"), Verdict::Deny(text.to_owned()));
        let mounts = Mounts { values: Err(missing()), trust_roots: Ok(Vec::new()) };
        let text = "open /var/run/linkerd/config/values: no such file or directory";
        assert_eq!(decide(&service, mounts, "linkerd"), Verdict::Deny(text.to_owned()));
    }

    #[test]
    fn a_template_error_affects_only_injected_pods() {
        let loud = CHART.replace("logHTTPHeaders: \"off\"", "logHTTPHeaders: loud");
        assert!(matches!(judge(&meshed(), &loud), Verdict::Deny(text) if text.contains("logHTTPHeaders")));
        assert_eq!(judge(&review("Pod", &json!({})), &loud), Verdict::Leave);
    }
}
