//! Injects a Pod.
//!
//! * In: a [`AdmissionReview`], and the contents of the two mounted files. Out: a [`Verdict`].
//! * Always: the files are validated before the object, so that an invalid document denies everything, including
//!   Services.
//! * Only the Pod's own annotation enables injection, not that of its namespace: the operator's probe sets it on the
//!   Pod. Of the annotations that override values, those in [`overrides`] are supported.
//! * `make e2e-linkerd` compares the verdicts with those of Linkerd's injector.

use std::io;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    admission::AdmissionReview,
    overrides,
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
pub(super) fn decide(review: &AdmissionReview, mounts: Mounts, namespace: &str) -> Verdict {
    let read = match mounts.values {
        Ok(text) => Values::read(&String::from_utf8_lossy(&text)),
        Err(error) => return Verdict::Deny(unreadable("/var/run/linkerd/config/values", &error)),
    };
    let mut values = match read {
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
    if !review.is_about_a_pod() || !needs_a_proxy(review.object(), &values) {
        return Verdict::Leave;
    }
    overrides::apply(&mut values, review.object());
    match values.unfit_to_inject() {
        Some(Unfit::Unreadable(text)) => Verdict::Deny(text),
        Some(Unfit::Panics) => Verdict::Panic,
        None => Verdict::Patch(patch(review, &values, &trust_roots, namespace)),
    }
}

/// An error in Go's format.
fn unreadable(path: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("open {path}: no such file or directory"),
        _ => format!("open {path}: {error}"),
    }
}

fn needs_a_proxy(pod: &Value, values: &Values) -> bool {
    let annotation = pod.pointer("/metadata/annotations/linkerd.io~1inject").and_then(Value::as_str);
    let is_on_host = pod.pointer("/spec/hostNetwork") == Some(&json!(true));
    matches!(annotation, Some("enabled" | "ingress")) && !is_on_host && !has_a_sidecar(pod) && has_a_token(pod, values)
}

fn has_a_sidecar(pod: &Value) -> bool {
    let is = |container: &Value, names: &[&str], images: &[&str]| {
        let text = |key: &str| container.get(key).and_then(Value::as_str).unwrap_or_default();
        names.contains(&text("name")) || images.iter().any(|image| text("image").starts_with(image))
    };
    let proxy = |container: &Value| {
        let images = ["cr.l5d.io/linkerd/proxy:", "gcr.io/istio-release/proxyv2:"];
        is(container, &["linkerd-proxy", "istio-proxy"], &images)
    };
    let init = |container: &Value| {
        let images = ["cr.l5d.io/linkerd/proxy-init:", "gcr.io/istio-release/proxy_init:"];
        is(container, &["linkerd-init", "istio-init"], &images)
    };
    let inits = || array(pod, "/spec/initContainers");
    inits().chain(array(pod, "/spec/containers")).any(proxy) || inits().any(init)
}

/// Whether the proxy can read a token: a projected one, or the one of the first container.
fn has_a_token(pod: &Value, values: &Values) -> bool {
    let mut mounts = array(pod, "/spec/containers/0/volumeMounts");
    let path = "/var/run/secrets/kubernetes.io/serviceaccount";
    let is_mounted = pod.pointer("/spec/automountServiceAccountToken") != Some(&json!(false))
        && mounts.any(|mount| mount.get("mountPath").and_then(Value::as_str) == Some(path));
    values.identity.service_account_token_projection == Some(true) || is_mounted
}

fn patch(review: &AdmissionReview, values: &Values, trust_roots: &[u8], namespace: &str) -> Vec<Value> {
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
    let (init, proxy) = (init(values), proxy(values, trust_roots, namespace));
    let is_native = values.proxy.native_sidecar == Some(true);
    put(if is_native { "/spec/initContainers/0" } else { "/spec/initContainers/-" }, init);
    let place = match (is_native, values.proxy.wait) {
        (true, _) => "/spec/initContainers/1",
        (false, Some(true)) => "/spec/containers/0",
        (false, _) => "/spec/containers/-",
    };
    put(place, proxy);
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
    let headers = if proxy.log_http_headers.as_str() == "insecure" { "" } else { ",[{headers}]=off,[{request}]=off" };
    let variables = [
        ("_l5d_ns", namespace.to_owned()),
        ("LINKERD2_PROXY_LOG", format!("{}{headers}", proxy.log_level.as_str())),
        ("LINKERD2_PROXY_LOG_FORMAT", proxy.log_format.as_str().to_owned()),
        ("LINKERD2_PROXY_CONTROL_LISTEN_ADDR", format!("0.0.0.0:{}", number(proxy.ports.control))),
        ("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", format!("0.0.0.0:{}", number(proxy.ports.admin))),
        ("LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR", format!("127.0.0.1:{}", number(proxy.ports.outbound))),
        ("LINKERD2_PROXY_INBOUND_LISTEN_ADDR", format!("0.0.0.0:{}", number(proxy.ports.inbound))),
        ("LINKERD2_PROXY_DESTINATION_SVC_ADDR", service("linkerd-dst-headless", 8086)),
        ("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", String::from_utf8_lossy(trust_roots).into_owned()),
        ("LINKERD2_PROXY_POLICY_SVC_ADDR", service("linkerd-policy", 8090)),
        (
            "LINKERD2_PROXY_POLICY_SVC_NAME",
            format!("linkerd-destination.{namespace}.serviceaccount.identity.{namespace}"),
        ),
    ];
    let env = variables.into_iter().map(|(name, value)| json!({"name": name, "value": value}));
    let more = proxy.additional_env.iter().chain(&proxy.experimental_env).flatten().cloned().map(Value::Object);
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
    let gid = values.proxy.gid.unwrap_or_default();
    if gid >= 0 {
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
    use super::{
        super::reviews::{self, BROKEN, DENIED, INSTALLED, LEFT},
        *,
    };

    fn review(kind: &str, object: &Value) -> AdmissionReview {
        AdmissionReview::parse(reviews::request(kind, object).to_string().as_bytes()).unwrap().unwrap()
    }

    fn judge(review: &AdmissionReview, values: &str) -> Verdict {
        let mounts = Mounts { values: Ok(values.into()), trust_roots: Ok("roots".into()) };
        decide(review, mounts, "linkerd")
    }

    fn operations(object: &Value, values: &str) -> Vec<Value> {
        let verdict = judge(&review("Pod", object), values);
        let Verdict::Patch(operations) = verdict else { panic!("{verdict:?}") };
        operations
    }

    fn paths(operations: &[Value]) -> Vec<&str> {
        operations.iter().filter_map(|operation| operation["path"].as_str()).collect()
    }

    /// The verdict in short: the place of the proxy and its image, or the reason why no proxy is injected.
    fn shown(verdict: Verdict) -> String {
        match verdict {
            Verdict::Leave => LEFT.to_owned(),
            Verdict::Deny(_) => DENIED.to_owned(),
            Verdict::Panic => BROKEN.to_owned(),
            Verdict::Patch(operations) => {
                let proxy = operations.iter().find(|operation| operation["value"]["name"] == "linkerd-proxy").unwrap();
                format!("{} {}", proxy["path"].as_str().unwrap(), proxy["value"]["image"].as_str().unwrap())
            }
        }
    }

    #[test]
    fn each_review_gets_its_verdict() {
        for reviews::Review { name, document, kind, object, verdict } in reviews::reviews().unwrap() {
            assert_eq!(shown(judge(&review(kind, &object), &document)), verdict, "{name}");
        }
    }

    #[test]
    fn a_pod_gets_both_containers_and_the_additional_env_comes_last() {
        let more = "additionalEnv: [{name: A, value: a}, {name: B, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]";
        let operations = operations(&reviews::probe(), &INSTALLED.replacen("additionalEnv: null", more, 1));
        let [.., root, init, proxy] = &operations[..] else { panic!() };
        assert_eq!(*root, json!({"op": "add", "path": "/spec/initContainers", "value": []}));
        assert_eq!((&init["path"], &init["value"]["name"]), (&json!("/spec/initContainers/0"), &json!("linkerd-init")));
        assert_eq!(proxy["path"], "/spec/initContainers/1");
        assert_eq!(proxy["value"]["imagePullPolicy"], "IfNotPresent");
        assert_eq!(proxy["value"]["ports"][0], json!({"name": "linkerd-proxy", "containerPort": 4143}));
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
        let document = INSTALLED.replace("nativeSidecar: true", "nativeSidecar: false");
        let operations = operations(&reviews::probe(), &document);
        assert!(paths(&operations).ends_with(&["/spec/initContainers/-", "/spec/containers/0"]), "{operations:?}");
    }

    #[test]
    fn existing_labels_and_init_containers_are_kept() {
        let pod = json!({
            "metadata": {"labels": {"app": "web"}, "annotations": {"linkerd.io/inject": "ingress"}},
            "spec": {"initContainers": [{"name": "mine"}]},
        });
        let operations = operations(&pod, INSTALLED);
        assert!(!paths(&operations).iter().any(|path| path.ends_with("/labels") || path.ends_with("/initContainers")));
    }

    #[test]
    fn a_missing_file_denies_objects_that_need_no_injection() {
        let denied =
            |values, trust_roots| decide(&review("Service", &json!({})), Mounts { values, trust_roots }, "linkerd");
        let missing = || Err(io::Error::from(io::ErrorKind::NotFound));
        let text = |path: &str| Verdict::Deny(format!("open /var/run/linkerd/{path}: no such file or directory"));
        assert_eq!(denied(Ok(INSTALLED.into()), missing()), text("identity/trust-roots/ca-bundle.crt"));
        assert_eq!(denied(missing(), Ok(Vec::new())), text("config/values"));
    }
}
