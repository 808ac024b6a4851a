//! Sends the same AdmissionReviews to the stand-in and to Linkerd's injector.
//!
//! * In: a running replica of Linkerd's injector. Out: per review what both answered, as far as the operator, its tests
//!   and its documentation rely on it.
//! * Always: both have the same values document and the same trust roots.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use e2e::{Injector, injector::stand_in_answer};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{
    documents::INSTALLED,
    scene::{APP, LINKERD},
};
use e2e::mesh::merge;

pub(super) const TRUST_ROOTS: &str = "roots\n";

/// A review, and what was seen of both answers.
pub(crate) struct Compared {
    pub(crate) name: &'static str,
    pub(crate) stand_in: Seen,
    pub(crate) linkerd: Seen,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    /// The connection was closed without an answer.
    Broken,
    Denied,
    /// Allowed without a proxy.
    Uninjected,
    Injected(Box<Injected>),
}

/// The injected proxy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Injected {
    /// The list that has the proxy, and its position there.
    pub(crate) place: (&'static str, usize),
    pub(crate) image: Value,
    pub(crate) pull_policy: Value,
    pub(crate) restart_policy: Value,
    pub(crate) user: Value,
    pub(crate) group: Value,
    pub(crate) log: Value,
    /// The value of LINKERD_CONFIG_HASH.
    pub(crate) marker: Value,
    /// The name of the last variable of the environment.
    pub(crate) last_variable: Value,
    /// Linkerd's annotations, without `config.linkerd.io`.
    pub(crate) annotations: BTreeMap<String, Value>,
    /// The namespaces in labels.
    pub(crate) labels: BTreeMap<String, Value>,
}

/// A review: a document, and an object.
struct Review {
    name: &'static str,
    document: String,
    kind: &'static str,
    object: Value,
}

pub(super) async fn compare(injector: &Injector) -> Result<Vec<Compared>> {
    let folder = injector.directory(0)?;
    fs::write(folder.join("identity/trust-roots/ca-bundle.crt"), TRUST_ROOTS)?;
    let mut compared = Vec::new();
    for Review { name, document, kind, object } in reviews()? {
        fs::write(folder.join("config/values"), &document).context("writing the document")?;
        let body = review(kind, &object).to_string();
        let linkerd = match injector.post(0, body.clone()).await {
            Ok((_, answer)) => seen(&serde_json::from_slice(&answer)?, &object).context(name)?,
            Err(_) => Seen::Broken,
        };
        let stand_in = match stand_in_answer(body.as_bytes(), &document, TRUST_ROOTS, LINKERD)? {
            Some(answer) => seen(&answer, &object).context(name)?,
            None => Seen::Broken,
        };
        compared.push(Compared { name, stand_in, linkerd });
    }
    Ok(compared)
}

/// The request that an API server sends before it creates this object.
pub(super) fn review(kind: &str, object: &Value) -> Value {
    let group_kind = json!({"group": "", "version": "v1", "kind": kind});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "e2e", "kind": group_kind, "requestKind": group_kind, "operation": "CREATE", "userInfo": {},
            "resource": {"group": "", "version": "v1", "resource": format!("{}s", kind.to_lowercase())},
            "namespace": APP, "object": object, "oldObject": null, "dryRun": true,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions", "dryRun": ["All"]},
        },
    })
}

/// Applies the answer to the object.
pub(super) fn seen(answer: &Value, object: &Value) -> Result<Seen> {
    let response = answer.get("response").context("no response")?;
    if response.get("allowed") != Some(&json!(true)) {
        return Ok(Seen::Denied);
    }
    let Some(patch) = response.get("patch") else { return Ok(Seen::Uninjected) };
    let ByteString(patch) = serde_json::from_value(patch.clone())?;
    let mut patched = object.clone();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).context("the patch is not JSON")?;
    json_patch::patch(&mut patched, &patch).context("the patch cannot be applied")?;
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(|list| {
        let of_list = patched.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        of_list.enumerate().map(move |(at, container)| ((list, at), container))
    });
    let is_proxy = |container: &Value| container.get("name") == Some(&json!("linkerd-proxy"));
    let had = |list: &str| {
        object.pointer(&format!("/spec/{list}")).and_then(Value::as_array).is_some_and(|it| it.iter().any(is_proxy))
    };
    let found = containers.into_iter().find(|(_, container)| is_proxy(container));
    let Some((place, proxy)) = found.filter(|_| !had("containers") && !had("initContainers")) else {
        return Ok(Seen::Uninjected);
    };
    let field = |pointer: &str| proxy.pointer(pointer).cloned().unwrap_or_default();
    let env: Vec<&Value> = proxy.get("env").and_then(Value::as_array).into_iter().flatten().collect();
    let variable =
        |name: &str| env.iter().find(|it| it.get("name") == Some(&json!(name))).and_then(|it| it.get("value"));
    let metadata = |map: &str, prefix: &str| -> BTreeMap<String, Value> {
        let map = patched.pointer(&format!("/metadata/{map}")).and_then(Value::as_object).into_iter().flatten();
        map.filter(|(key, _)| key.starts_with(prefix)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    Ok(Seen::Injected(Box::new(Injected {
        place,
        image: field("/image"),
        pull_policy: field("/imagePullPolicy"),
        restart_policy: field("/restartPolicy"),
        user: field("/securityContext/runAsUser"),
        group: field("/securityContext/runAsGroup"),
        log: variable("LINKERD2_PROXY_LOG").cloned().unwrap_or_default(),
        marker: variable("LINKERD_CONFIG_HASH").cloned().unwrap_or_default(),
        last_variable: env.last().and_then(|last| last.get("name")).cloned().unwrap_or_default(),
        annotations: metadata("annotations", "linkerd.io/"),
        labels: metadata("labels", "linkerd.io/"),
    })))
}

/// The Pod of the operator's probe.
pub(super) fn probe() -> Value {
    pod(
        &[("linkerd.io/inject", "enabled")],
        &json!({
            "containers": [{
                "name": "probe", "image": "pause",
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            }],
            "volumes": [{"name": "token", "emptyDir": {}}],
        }),
    )
}

/// A Pod with these annotations, and this merged into its spec.
fn pod(annotations: &[(&str, &str)], spec: &Value) -> Value {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "web-", "annotations": annotations},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    });
    merge(&mut pod, json!({ "spec": spec }));
    pod
}

fn meshed(annotation: &str, value: &str) -> Value {
    pod(&[("linkerd.io/inject", "enabled"), (annotation, value)], &json!({}))
}

fn containers(containers: &Value) -> Value {
    pod(&[("linkerd.io/inject", "enabled")], &json!({ "containers": containers }))
}

fn reviews() -> Result<Vec<Review>> {
    let enabled = || pod(&[("linkerd.io/inject", "enabled")], &json!({}));
    let inject = |value: &str| pod(&[("linkerd.io/inject", value)], &json!({}));
    let enabled_with = |spec: Value| pod(&[("linkerd.io/inject", "enabled")], &spec);
    let mut without_annotations = enabled();
    merge(&mut without_annotations, json!({"metadata": {"annotations": null}}));
    let mut labelled = enabled();
    merge(&mut labelled, json!({"metadata": {"labels": {"app": "web", "linkerd.io/control-plane-ns": "other"}}}));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 3306}]}});
    let installed = || INSTALLED.to_owned();
    let objects = [
        ("the probe's Pod", probe()),
        ("enabled", enabled()),
        ("ingress", inject("ingress")),
        ("disabled", inject("disabled")),
        ("an empty annotation", inject("")),
        ("an invalid annotation", inject("Enabled")),
        ("no annotations", without_annotations),
        ("labels", labelled),
        ("hostNetwork", enabled_with(json!({"hostNetwork": true}))),
        ("no ServiceAccount token", enabled_with(json!({"automountServiceAccountToken": false}))),
        ("init containers", enabled_with(json!({"initContainers": [{"name": "one", "image": "one"}]}))),
        ("two containers", containers(&json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]))),
        ("an opaque port", containers(&json!([{"name": "db", "image": "db", "ports": [{"containerPort": 3306}]}]))),
        ("a container linkerd-proxy", containers(&json!([{"name": "linkerd-proxy", "image": "a"}]))),
        ("a container istio-proxy", containers(&json!([{"name": "istio-proxy", "image": "a"}]))),
        ("a proxy by its image", containers(&json!([{"name": "a", "image": "cr.l5d.io/linkerd/proxy:edge-1"}]))),
        ("a proxy by its digest", containers(&json!([{"name": "a", "image": "cr.l5d.io/linkerd/proxy@sha256:1"}]))),
        ("a native sidecar", enabled_with(json!({"initContainers": [{"name": "linkerd-proxy", "image": "a"}]}))),
        (
            "an init container linkerd-init",
            enabled_with(json!({"initContainers": [{"name": "linkerd-init", "image": "a"}]})),
        ),
        (
            "an init container istio-init",
            enabled_with(json!({"initContainers": [{"name": "istio-init", "image": "a"}]})),
        ),
        ("a container linkerd-init", containers(&json!([{"name": "linkerd-init", "image": "a"}]))),
        ("a pinned version", meshed("config.linkerd.io/proxy-version", "edge-1")),
        ("an empty pinned version", meshed("config.linkerd.io/proxy-version", "")),
        ("a pinned image", meshed("config.linkerd.io/proxy-image", "example.com/proxy")),
        ("a pull policy", meshed("config.linkerd.io/image-pull-policy", "Always")),
        ("a log level", meshed("config.linkerd.io/proxy-log-level", "debug")),
        ("log HTTP headers", meshed("config.linkerd.io/proxy-log-http-headers", "insecure")),
        ("invalid log HTTP headers", meshed("config.linkerd.io/proxy-log-http-headers", "loud")),
        ("not a native sidecar", meshed("config.linkerd.io/proxy-enable-native-sidecar", "false")),
        ("not a native sidecar, beta", meshed("config.beta.linkerd.io/proxy-enable-native-sidecar", "false")),
        ("an invalid native sidecar", meshed("config.linkerd.io/proxy-enable-native-sidecar", "no")),
        ("no await", meshed("config.linkerd.io/proxy-await", "disabled")),
        (
            "an additional variable",
            meshed("config.linkerd.io/proxy-additional-env", r#"[{"name": "A", "value": "a"}]"#),
        ),
        ("a uid", meshed("config.linkerd.io/proxy-uid", "7")),
        ("a close-wait timeout", meshed("config.linkerd.io/close-wait-timeout", "10s")),
    ];
    let objects = objects.into_iter().map(|(name, object)| Review { name, document: installed(), kind: "Pod", object });
    let others = [
        Review { name: "a Service", document: installed(), kind: "Service", object: service },
        Review {
            name: "a ConfigMap",
            document: installed(),
            kind: "ConfigMap",
            object: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}),
        },
    ];
    let marker = json!({"name": "LINKERD_CONFIG_HASH", "value": "v1"});
    let documents = [
        ("document: the marker", json!({"proxy": {"additionalEnv": [{"name": "A", "value": "a"}, marker]}})),
        (
            "document: two markers",
            json!({"proxy": {"additionalEnv": [marker, {"name": "LINKERD_CONFIG_HASH", "value": "v2"}]}}),
        ),
        (
            "document: the marker before experimental",
            json!({"proxy": {"additionalEnv": [marker], "experimentalEnv": [{"name": "B"}]}}),
        ),
        ("document: not a native sidecar", json!({"proxy": {"nativeSidecar": false}})),
        ("document: not a native sidecar, no await", json!({"proxy": {"nativeSidecar": false, "await": false}})),
        ("document: CNI", json!({"cniEnabled": true})),
        ("document: a version of the image", json!({"proxy": {"image": {"version": "v7"}}})),
        ("document: a pull policy", json!({"proxy": {"image": {"pullPolicy": "Never"}}})),
        ("document: a gid", json!({"proxy": {"gid": 7}})),
        ("document: no gid", json!({"proxy": {"gid": null}})),
        ("document: a number as log level", json!({"proxy": {"logLevel": 7}})),
        ("document: a string as uid", json!({"proxy": {"uid": "2102"}})),
        ("document: a string as bool", json!({"proxy": {"await": "true"}})),
        ("document: a map as string", json!({"proxy": {"logFormat": {}}})),
        ("document: wrong log HTTP headers", json!({"proxy": {"logHTTPHeaders": "loud"}})),
        ("document: a wrong network", json!({"clusterNetworks": "ten"})),
        ("document: a wrong iptables mode", json!({"proxyInit": {"iptablesMode": "ipvs"}})),
        ("document: close-wait without root", json!({"proxyInit": {"closeWaitTimeoutSecs": 7}})),
        ("document: no proxy", json!({"proxy": null})),
        ("document: no ports", json!({"proxy": {"ports": null}})),
        ("document: no image", json!({"proxy": {"image": null}})),
        ("document: no resources", json!({"proxy": {"resources": null}})),
        ("document: no identity", json!({"identity": null})),
        ("document: no proxyInit", json!({"proxyInit": null})),
        ("document: no debugContainer", json!({"debugContainer": null})),
        ("document: no unknown keys", json!({"unknown": {"a": [1]}})),
        ("document: no token projection", json!({"identity": {"serviceAccountTokenProjection": false}})),
    ];
    let mut all: Vec<Review> = objects.chain(others).collect();
    for (name, patch) in documents {
        let mut document: Value = serde_yaml::from_str(INSTALLED)?;
        merge(&mut document, patch);
        all.push(Review { name, document: document.to_string(), kind: "Pod", object: probe() });
    }
    for (name, document) in [
        ("document: empty", ""),
        ("document: null", "null"),
        ("document: a list", "[]"),
        ("document: a text", "text"),
        ("document: not YAML", "proxy: {"),
    ] {
        all.push(Review { name, document: document.to_owned(), kind: "Pod", object: probe() });
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}});
        all.push(Review { name, document: document.to_owned(), kind: "Service", object });
    }
    Ok(all)
}
