//! Reviews for which the stand-in and Linkerd's injector must give the same verdict: Pods of different shapes and with
//! different annotations, and Pods under different documents.
//!
//! * Out: each review with its verdict. A unit test holds the stand-in against the verdicts, and `make e2e-linkerd` holds
//!   both injectors against each other.
//! * Linkerd's injector at b24cd405 agreed about all reviews.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use crate::mesh::merge;

/// A bundle of trust anchors.
pub const TRUST_ROOTS: &str = include_str!("../../../src/values/testdata/root.pem");

/// Linkerd's document, as its chart renders it.
pub const INSTALLED: &str = include_str!("../../../src/values/testdata/installed.yaml");

/// A review: a document, and an object.
pub struct Review {
    pub name: &'static str,
    pub document: String,
    pub kind: &'static str,
    pub object: Value,
    pub verdict: &'static str,
}

/// Allowed without a change.
pub(super) const LEFT: &str = "left";
pub(super) const DENIED: &str = "denied";
/// The connection is closed without an answer.
pub(super) const BROKEN: &str = "broken";
/// The place of the proxy, and its image.
const NATIVE: &str = "/spec/initContainers/1 cr.l5d.io/linkerd/proxy:edge-26.8.3";
const FIRST: &str = "/spec/containers/0 cr.l5d.io/linkerd/proxy:edge-26.8.3";
const LAST: &str = "/spec/containers/- cr.l5d.io/linkerd/proxy:edge-26.8.3";

/// The request that an API server sends before it creates this object.
pub fn request(kind: &str, object: &Value) -> Value {
    let group_kind = json!({"group": "", "version": "v1", "kind": kind});
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "e2e", "kind": group_kind, "requestKind": group_kind, "operation": "CREATE", "userInfo": {},
            "resource": {"group": "", "version": "v1", "resource": format!("{}s", kind.to_lowercase())},
            "namespace": "app", "object": object, "oldObject": null, "dryRun": true,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions", "dryRun": ["All"]},
        },
    })
}

/// The Pod of the operator's probe.
pub fn probe() -> Value {
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

/// All reviews.
///
/// # Errors
/// Fails when the installed document is not YAML.
pub fn reviews() -> Result<Vec<Review>> {
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
        (NATIVE, "the probe's Pod", probe()),
        (NATIVE, "enabled", enabled()),
        (NATIVE, "ingress", inject("ingress")),
        (LEFT, "disabled", inject("disabled")),
        (LEFT, "an empty annotation", inject("")),
        (LEFT, "an invalid annotation", inject("Enabled")),
        (LEFT, "no annotations", without_annotations),
        (NATIVE, "labels", labelled),
        (LEFT, "hostNetwork", enabled_with(json!({"hostNetwork": true}))),
        (NATIVE, "no ServiceAccount token", enabled_with(json!({"automountServiceAccountToken": false}))),
        (NATIVE, "init containers", enabled_with(json!({"initContainers": [{"name": "one", "image": "one"}]}))),
        (NATIVE, "two containers", containers(&json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]))),
        (
            NATIVE,
            "an opaque port",
            containers(&json!([{"name": "db", "image": "db", "ports": [{"containerPort": 3306}]}])),
        ),
        (LEFT, "a container linkerd-proxy", containers(&json!([{"name": "linkerd-proxy", "image": "a"}]))),
        (LEFT, "a container istio-proxy", containers(&json!([{"name": "istio-proxy", "image": "a"}]))),
        (LEFT, "a proxy by its image", containers(&json!([{"name": "a", "image": "cr.l5d.io/linkerd/proxy:edge-1"}]))),
        (
            NATIVE,
            "a proxy by its digest",
            containers(&json!([{"name": "a", "image": "cr.l5d.io/linkerd/proxy@sha256:1"}])),
        ),
        (LEFT, "a native sidecar", enabled_with(json!({"initContainers": [{"name": "linkerd-proxy", "image": "a"}]}))),
        (
            LEFT,
            "an init container linkerd-init",
            enabled_with(json!({"initContainers": [{"name": "linkerd-init", "image": "a"}]})),
        ),
        (
            LEFT,
            "an init container istio-init",
            enabled_with(json!({"initContainers": [{"name": "istio-init", "image": "a"}]})),
        ),
        (NATIVE, "a container linkerd-init", containers(&json!([{"name": "linkerd-init", "image": "a"}]))),
        (
            "/spec/initContainers/1 cr.l5d.io/linkerd/proxy:edge-1",
            "a pinned version",
            meshed("config.linkerd.io/proxy-version", "edge-1"),
        ),
        (NATIVE, "an empty pinned version", meshed("config.linkerd.io/proxy-version", "")),
        (
            "/spec/initContainers/1 example.com/proxy:edge-26.8.3",
            "a pinned image",
            meshed("config.linkerd.io/proxy-image", "example.com/proxy"),
        ),
        (NATIVE, "a pull policy", meshed("config.linkerd.io/image-pull-policy", "Always")),
        (NATIVE, "a log level", meshed("config.linkerd.io/proxy-log-level", "debug")),
        (NATIVE, "log HTTP headers", meshed("config.linkerd.io/proxy-log-http-headers", "insecure")),
        (DENIED, "invalid log HTTP headers", meshed("config.linkerd.io/proxy-log-http-headers", "loud")),
        (FIRST, "not a native sidecar", meshed("config.linkerd.io/proxy-enable-native-sidecar", "false")),
        (FIRST, "not a native sidecar, beta", meshed("config.beta.linkerd.io/proxy-enable-native-sidecar", "false")),
        (NATIVE, "an invalid native sidecar", meshed("config.linkerd.io/proxy-enable-native-sidecar", "no")),
        (NATIVE, "no await", meshed("config.linkerd.io/proxy-await", "disabled")),
        (
            NATIVE,
            "an additional variable",
            meshed("config.linkerd.io/proxy-additional-env", r#"[{"name": "A", "value": "a"}]"#),
        ),
        (NATIVE, "a uid", meshed("config.linkerd.io/proxy-uid", "7")),
        (DENIED, "a close-wait timeout", meshed("config.linkerd.io/close-wait-timeout", "10s")),
        (NATIVE, "an invalid close-wait timeout", meshed("config.linkerd.io/close-wait-timeout", "soon")),
    ];
    let objects = objects.into_iter().map(|(verdict, name, object)| Review {
        name,
        document: installed(),
        kind: "Pod",
        object,
        verdict,
    });
    let others = [
        Review { name: "a Service", document: installed(), kind: "Service", object: service, verdict: LEFT },
        Review {
            name: "a ConfigMap",
            document: installed(),
            kind: "ConfigMap",
            object: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}),
            verdict: LEFT,
        },
    ];
    let marker = json!({"name": "LINKERD_CONFIG_HASH", "value": "v1"});
    let documents = [
        (NATIVE, "document: the marker", json!({"proxy": {"additionalEnv": [{"name": "A", "value": "a"}, marker]}})),
        (
            NATIVE,
            "document: two markers",
            json!({"proxy": {"additionalEnv": [marker, {"name": "LINKERD_CONFIG_HASH", "value": "v2"}]}}),
        ),
        (
            NATIVE,
            "document: the marker before experimental",
            json!({"proxy": {"additionalEnv": [marker], "experimentalEnv": [{"name": "B"}]}}),
        ),
        (FIRST, "document: not a native sidecar", json!({"proxy": {"nativeSidecar": false}})),
        (LAST, "document: not a native sidecar, no await", json!({"proxy": {"nativeSidecar": false, "await": false}})),
        (NATIVE, "document: CNI", json!({"cniEnabled": true})),
        (
            "/spec/initContainers/1 cr.l5d.io/linkerd/proxy:v7",
            "document: a version of the image",
            json!({"proxy": {"image": {"version": "v7"}}}),
        ),
        (NATIVE, "document: a pull policy", json!({"proxy": {"image": {"pullPolicy": "Never"}}})),
        (NATIVE, "document: a gid", json!({"proxy": {"gid": 7}})),
        (NATIVE, "document: no gid", json!({"proxy": {"gid": null}})),
        (NATIVE, "document: a number as log level", json!({"proxy": {"logLevel": 7}})),
        (DENIED, "document: a string as uid", json!({"proxy": {"uid": "2102"}})),
        (DENIED, "document: a string as bool", json!({"proxy": {"await": "true"}})),
        (DENIED, "document: a map as string", json!({"proxy": {"logFormat": {}}})),
        (DENIED, "document: wrong log HTTP headers", json!({"proxy": {"logHTTPHeaders": "loud"}})),
        (DENIED, "document: a wrong network", json!({"clusterNetworks": "ten"})),
        (DENIED, "document: a wrong iptables mode", json!({"proxyInit": {"iptablesMode": "ipvs"}})),
        (DENIED, "document: close-wait without root", json!({"proxyInit": {"closeWaitTimeoutSecs": 7}})),
        (DENIED, "document: a number as map", json!({"proxy": 7})),
        (DENIED, "document: a list as map", json!({"proxy": []})),
        (BROKEN, "document: no proxy", json!({"proxy": null})),
        (DENIED, "document: no ports", json!({"proxy": {"ports": null}})),
        (BROKEN, "document: no image", json!({"proxy": {"image": null}})),
        (DENIED, "document: no resources", json!({"proxy": {"resources": null}})),
        (DENIED, "document: no identity", json!({"identity": null})),
        (BROKEN, "document: no proxyInit", json!({"proxyInit": null})),
        (NATIVE, "document: no debugContainer", json!({"debugContainer": null})),
        (NATIVE, "document: no unknown keys", json!({"unknown": {"a": [1]}})),
        (NATIVE, "document: no token projection", json!({"identity": {"serviceAccountTokenProjection": false}})),
    ];
    let mut all: Vec<Review> = objects.chain(others).collect();
    let documents = documents.map(|(verdict, name, patch)| (verdict, name, patch, probe()));
    let of_other_pods = [
        (LEFT, "document: no token", json!({"identity": {"serviceAccountTokenProjection": false}}), enabled()),
        (
            LEFT,
            "document: wrong headers, not injected",
            json!({"proxy": {"logHTTPHeaders": "loud"}}),
            inject("disabled"),
        ),
    ];
    for (verdict, name, patch, object) in documents.into_iter().chain(of_other_pods) {
        let mut document: Value = serde_yaml::from_str(INSTALLED)?;
        merge(&mut document, patch);
        all.push(Review { name, document: document.to_string(), kind: "Pod", object, verdict });
    }
    for (verdict, name, document) in [
        (BROKEN, "document: empty", ""),
        (BROKEN, "document: null", "null"),
        (BROKEN, "document: an empty map", "{}"),
        (DENIED, "document: a list", "[]"),
        (DENIED, "document: a text", "text"),
        (DENIED, "document: not YAML", "proxy: {"),
        (DENIED, "document: wrong indentation", "a: 1\n b: 2"),
    ] {
        all.push(Review { name, document: document.to_owned(), kind: "Pod", object: probe(), verdict });
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}});
        all.push(Review { name, document: document.to_owned(), kind: "Service", object, verdict });
    }
    Ok(all)
}
