//! The writes that the admission policies are tested with. All are dry runs, so their order has no effect.

mod config_maps;

use http::Method;
use serde_json::{Value, json};

use super::{super::object, Probe};

const BUNDLE: &str = "linkerd-identity-trust-roots";
const ISSUER: &str = "linkerd-identity-issuer";
pub(super) const APP: &str = "app";
/// A namespace that is exempt from Linkerd's webhooks.
const EXEMPT: &str = "exempt";
const EXCLUDED: [&str; 5] = ["kube-system", "cert-manager", "linkerd", "linkerd-operator-system", EXEMPT];
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const OURS: &str = "linkerd-external-workloads-controller";

#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    Operator,
    /// The process that writes the issuer of the mesh.
    IssuerWriter,
    /// An administrator of the cluster, who is not the operator.
    Admin,
    /// The user [`IMPOSTOR`](super::IMPOSTOR).
    Impostor,
}

pub(super) struct PolicyCase {
    pub(super) what: String,
    pub(super) by: By,
    method: Method,
    path: String,
    body: Option<Value>,
    dry_run: bool,
    /// `None` if the write must pass.
    pub(super) refused_by: Option<&'static str>,
}

// === impl PolicyCase ===

impl PolicyCase {
    pub(super) fn probe(&self) -> Probe {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let path = if self.dry_run { format!("{}{separator}dryRun=All", self.path) } else { self.path.clone() };
        Probe::new(self.method.clone(), path, self.body.clone())
    }

    /// The request without dry run.
    pub(super) fn live(&self) -> Probe {
        Probe::new(self.method.clone(), self.path.clone(), self.body.clone())
    }

    fn refused_by(self, policy: &'static str) -> Self {
        Self { refused_by: Some(policy), ..self }
    }

    fn by(self, by: By) -> Self {
        Self { by, ..self }
    }

    fn called(self, what: &str) -> Self {
        Self { what: format!("{:?}: {what}", self.by), ..self }
    }
}

fn case(method: Method, path: String, body: Option<Value>) -> PolicyCase {
    let what = format!("{method} {path} {}", body.as_ref().map(Value::to_string).unwrap_or_default());
    PolicyCase { what, by: By::Operator, method, path, body, dry_run: true, refused_by: None }
}

fn patch(path: String, patch: Value) -> PolicyCase {
    case(Method::PATCH, path, Some(patch))
}

fn apps(plural: &str, namespace: &str, name: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/{plural}/{name}")
}

fn core(plural: &str, namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

fn slices(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

fn template_annotation(value: Option<&str>) -> Value {
    json!({"template": {"metadata": {"annotations": {"config.linkerd.io/restarted-for": value}}}})
}

/// The patch that restarts a workload.
pub(super) fn restart(plural: &str, namespace: &str, name: &str, hash: &str) -> PolicyCase {
    let annotations = json!({
        "config.linkerd.io/rollout-hash": hash,
        "config.linkerd.io/rollout-state": "updating",
        "config.linkerd.io/rollout-started-at": "2026-01-01T00:00:00Z",
        "config.linkerd.io/rollout-previous": "old",
        "config.linkerd.io/rollout-message": null,
    });
    let body = json!({"metadata": {"annotations": annotations}, "spec": template_annotation(Some(hash))});
    patch(apps(plural, namespace, name), body)
}

pub(super) fn all() -> Vec<PolicyCase> {
    let groups = [
        workloads(),
        evictions(),
        pods(),
        config_maps::all(),
        revisions(),
        configs(),
        endpoint_slices(),
        leases(),
        secrets(),
        trusts(),
    ];
    groups.into_iter().flatten().chain(annotations()).collect()
}

fn workloads() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-workloads";
    let mut cases = Vec::new();
    for plural in ["deployments", "statefulsets", "daemonsets"] {
        cases.push(restart(plural, APP, "web", "new"));
        let finish = json!({"metadata": {"annotations": {"config.linkerd.io/rollout-state": "updated"}}});
        cases.push(patch(apps(plural, APP, "web"), finish));
        cases.push(patch(apps(plural, APP, "web"), json!({"spec": template_annotation(None)})));
        for namespace in EXCLUDED {
            cases.push(restart(plural, namespace, "web", "new").refused_by(POLICY));
        }
        let container = json!([{"name": "web", "image": "evil"}]);
        for spec in [
            json!({"template": {"spec": {"containers": container}}}),
            json!({"template": {"spec": {"serviceAccountName": "admin"}}}),
            json!({"template": {"spec": {"volumes": [{"name": "key", "secret": {"secretName": "key"}}]}}}),
            json!({"template": {"spec": {"hostNetwork": true}}}),
            json!({"template": {"spec": {"securityContext": {"runAsUser": 0}}}}),
            json!({"template": {"metadata": {"labels": {"more": "label"}}}}),
            json!({"template": {"metadata": {"annotations": {"linkerd.io/inject": "disabled"}}}}),
            json!({"template": {"metadata": {"annotations": {"config.linkerd.io/proxy-image": "evil"}}}}),
            json!({"template": {"metadata": {"annotations": {"kept": null}}}}),
            json!({"revisionHistoryLimit": 0}),
        ] {
            cases.push(patch(apps(plural, APP, "web"), json!({ "spec": spec })).refused_by(POLICY));
        }
        for metadata in [
            json!({"labels": {"config.linkerd.io/reconcile": "auto"}}),
            json!({"labels": {"kept": null}}),
            json!({"annotations": {"other": "annotation"}}),
            json!({"annotations": {"kept": null}}),
            json!({"annotations": {"kept": "changed"}}),
            json!({"annotations": {"config.linkerd.io/rollout-method": "evict"}}),
            json!({"finalizers": ["example.com/mine"]}),
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "1"}]}),
        ] {
            cases.push(patch(apps(plural, APP, "web"), json!({ "metadata": metadata })).refused_by(POLICY));
        }
    }
    for (plural, spec) in [
        ("deployments", json!({"replicas": 0})),
        ("statefulsets", json!({"replicas": 0})),
        ("deployments", json!({"paused": true})),
        ("deployments", json!({"strategy": {"type": "Recreate", "rollingUpdate": null}})),
        ("statefulsets", json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}})),
        ("daemonsets", json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}})),
    ] {
        cases.push(patch(apps(plural, APP, "web"), json!({ "spec": spec })).refused_by(POLICY));
    }
    let injector = apps("deployments", "linkerd", "linkerd-proxy-injector");
    cases.push(patch(injector.clone(), json!({"spec": template_annotation(Some("new"))})));
    let image = json!({"template": {"spec": {"containers": [{"name": "web", "image": "evil"}]}}});
    cases.push(patch(injector, json!({ "spec": image })).refused_by(POLICY));
    cases
}

fn evictions() -> Vec<PolicyCase> {
    let evict = |namespace: &str| {
        let metadata = json!({"name": "web", "namespace": namespace});
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata});
        case(Method::POST, core("pods", namespace, "web/eviction"), Some(body))
    };
    let refused = EXCLUDED.map(|namespace| evict(namespace).refused_by("linkerd-operator-evictions"));
    [evict(APP)].into_iter().chain(refused).collect()
}

fn pods() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-pods";
    let mut cases = vec![patch(
        core("pods", "linkerd", "web"),
        json!({"metadata": {"annotations": {"config.linkerd.io/nudge": "1"}}}),
    )];
    for body in [
        json!({"spec": {"containers": [container("evil:1")]}}),
        json!({"spec": {"activeDeadlineSeconds": 1}}),
        json!({"metadata": {"labels": {"app": "other"}}}),
        json!({"metadata": {"labels": {"kept": null}}}),
        json!({"metadata": {"finalizers": ["example.com/mine"]}}),
        json!({"metadata": {"annotations": {"other": "annotation"}}}),
        json!({"metadata": {"annotations": {"kept": null}}}),
    ] {
        cases.push(patch(core("pods", "linkerd", "web"), body).refused_by(POLICY));
    }
    let body = json!({"metadata": {"name": "new"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let create = || case(Method::POST, "/api/v1/namespaces/default/pods".to_owned(), Some(body.clone()));
    cases.push(create());
    // Without the policies this Pod is created once, and a second creation would conflict.
    let mut body = body.clone();
    body["metadata"] = json!({"generateName": "new-"});
    let live = PolicyCase { body: Some(body), dry_run: false, ..create() };
    cases.push(live.refused_by(POLICY).called("create a Pod without dry run"));
    cases
}

fn revisions() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-controller-revisions";
    let all = "/apis/apps/v1/namespaces/linkerd/controllerrevisions";
    let create = |labels: Value| {
        let body = json!({"metadata": {"name": "linkerd-config-base-2", "labels": labels}, "revision": 2, "data": {}});
        case(Method::POST, all.to_owned(), Some(body))
    };
    let delete = |name: &str| case(Method::DELETE, format!("{all}/{name}"), None);
    vec![
        create(json!({"config.linkerd.io/base-of": "linkerd-config"})),
        create(json!({"app": "web"})).refused_by(POLICY),
        delete("linkerd-config-base-1"),
        delete("of-a-daemon-set").refused_by(POLICY),
        delete("of-an-opted-in-daemon-set").refused_by(POLICY),
    ]
}

fn configs() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-linkerd-configs";
    let mesh = "/apis/config.linkerd.io/v1alpha1/linkerdconfigs/mesh";
    let change = |body: Value| patch(mesh.to_owned(), body);
    let mine = "example.com/mine";
    vec![
        change(json!({"metadata": {"finalizers": [mine, "config.linkerd.io/restore-base"]}})),
        patch(
            "/apis/config.linkerd.io/v1alpha1/linkerdconfigs/restoring".to_owned(),
            json!({"metadata": {"finalizers": null}}),
        ),
        change(json!({"metadata": {"finalizers": []}})).refused_by(POLICY),
        change(json!({"metadata": {"finalizers": [mine, "example.com/other"]}})).refused_by(POLICY),
        change(json!({"metadata": {"annotations": {"config.linkerd.io/retry": "1"}}})).refused_by(POLICY),
        change(json!({"metadata": {"labels": {"more": "label"}}})).refused_by(POLICY),
        change(json!({"spec": {"proxy": {"image": {"name": "evil"}}}})).refused_by(POLICY),
        change(json!({"spec": {"priority": 1000}})).refused_by(POLICY),
    ]
}

fn endpoint_slices() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-endpoint-slices";
    let body = |name: &str, managed_by: &str| {
        let labels = json!({MANAGED_BY: managed_by, "kubernetes.io/service-name": "web"});
        json!({"metadata": {"name": name, "labels": labels}, "addressType": "IPv4", "endpoints": [], "ports": []})
    };
    let create =
        |namespace: &str, managed_by: &str| case(Method::POST, slices(namespace), Some(body("new", managed_by)));
    let update = |name: &str, managed_by: &str| {
        case(Method::PUT, format!("{}/{name}", slices(APP)), Some(body(name, managed_by)))
    };
    let delete = |name: &str| case(Method::DELETE, format!("{}/{name}", slices(APP)), None);
    vec![
        create(APP, OURS),
        update("ours", OURS),
        delete("ours"),
        create(APP, "endpointslice-controller.k8s.io").refused_by(POLICY),
        create("kube-system", OURS).refused_by(POLICY),
        update("of-pods", "endpointslice-controller.k8s.io").refused_by(POLICY),
        update("of-pods", OURS).refused_by(POLICY),
        update("ours", "endpointslice-controller.k8s.io").refused_by(POLICY),
        delete("of-pods").refused_by(POLICY),
    ]
}

fn leases() -> Vec<PolicyCase> {
    let create = |namespace: &str, name: &str| {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        case(Method::POST, path, Some(json!({"metadata": {"name": name}, "spec": {"holderIdentity": "me"}})))
    };
    vec![
        create("linkerd-operator-system", "linkerd-operator"),
        create("linkerd", "linkerd-destination-endpoint-write"),
        create("linkerd", "policy-controller-write").refused_by("linkerd-operator-leases"),
    ]
}

/// The status of a LinkerdTrust decides about restarts.
fn trusts() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-linkerd-trusts";
    let change = |status: Value| {
        patch("/apis/config.linkerd.io/v1alpha1/linkerdtrusts/mesh/status".to_owned(), json!({ "status": status }))
    };
    let by_writer = |status: Value, what: &str| change(status).by(By::IssuerWriter).called(what);
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "Synced", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    vec![
        by_writer(json!({"conditions": [condition("IssuerSynced")]}), "its condition"),
        by_writer(json!({"conditions": [condition("Ready")]}), "another condition").refused_by(POLICY),
        by_writer(json!({"phase": "Steady"}), "the phase").refused_by(POLICY),
        by_writer(json!({"distrustedAnchors": ["a"]}), "roots that workloads must lose").refused_by(POLICY),
    ]
}

/// A Secret of the type of tokens gets a token of the ServiceAccount that its annotation names.
fn secrets() -> Vec<PolicyCase> {
    const POLICY: &str = "linkerd-operator-secrets";
    const TOKEN: &str = "kubernetes.io/service-account-token";
    let secret = |name: &str, kind: &str, account: &str| {
        let annotations = json!({"kubernetes.io/service-account.name": account});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "annotations": annotations}, "type": kind})
    };
    let previous = |kind: &str| {
        const NAME: &str = "linkerd-identity-issuer-previous";
        let path = format!("{}?fieldManager=e2e&force=true", core("secrets", "linkerd", NAME));
        patch(path, secret(NAME, kind, "default"))
            .by(By::IssuerWriter)
            .called(&format!("save the issuer in a Secret {kind}"))
    };
    let webhook = |name: &str, kind: &str| {
        let path = "/api/v1/namespaces/linkerd-operator-system/secrets".to_owned();
        case(Method::POST, path, Some(secret(name, kind, "linkerd-operator-issuer")))
    };
    const WEBHOOK: &str = "linkerd-operator-webhook";
    let issuer = patch(core("secrets", "linkerd", ISSUER), json!({"data": {"crt.pem": "eA=="}}));
    vec![
        previous("Opaque"),
        previous(TOKEN).refused_by(POLICY),
        webhook(WEBHOOK, "Opaque"),
        webhook(WEBHOOK, TOKEN).refused_by(POLICY),
        webhook("another", "Opaque").refused_by(POLICY),
        issuer.by(By::IssuerWriter).called("write the issuer"),
    ]
}

/// Writes of other users to the annotations of the operator.
pub(super) fn annotations() -> Vec<PolicyCase> {
    const POLICY: &str = super::ANNOTATIONS;
    let mut cases = Vec::new();
    for plural in ["deployments", "statefulsets", "daemonsets"] {
        let annotate = |annotations: Value| {
            patch(apps(plural, APP, "web"), json!({"metadata": {"annotations": annotations}})).by(By::Admin)
        };
        for annotations in [
            json!({"config.linkerd.io/rollout-state": "failed"}),
            json!({"config.linkerd.io/rollout-started-at": "2100-01-01T00:00:00Z"}),
            json!({"config.linkerd.io/rollout-hash": "forged"}),
            json!({"config.linkerd.io/rollout-message": "Uninjected: forged"}),
            json!({"config.linkerd.io/rollout-previous": ""}),
            json!({"config.linkerd.io/rollout-of-the-future": "x"}),
        ] {
            let text = annotations.to_string();
            cases.push(annotate(annotations).refused_by(POLICY).called(&format!("{plural} {text}")));
        }
        let forged = json!({"metadata": {"annotations": {"config.linkerd.io/rollout-state": "failed"}}});
        let by_status = patch(apps(plural, APP, "web/status"), forged).by(By::Admin);
        cases.push(by_status.refused_by(POLICY).called(&format!("{plural}: through the status")));
        let removed = json!({"config.linkerd.io/rollout-state": null, "config.linkerd.io/rollout-hash": null});
        cases.push(annotate(removed).called("remove the annotations"));
        let method = json!({"config.linkerd.io/rollout-method": "evict"});
        cases.push(annotate(method).called("set the method of restarts"));
        let unchanged = json!({"config.linkerd.io/rollout-hash": "old", "other": "changed"});
        cases.push(annotate(unchanged).called("change another annotation"));
        let full = workload(kind(plural), APP, "web");
        let update = case(Method::PUT, apps(plural, APP, "web"), Some(full));
        cases.push(update.by(By::Admin).called("update the whole object, with the annotations unchanged"));
        let image = json!({"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}});
        cases.push(patch(apps(plural, APP, "web"), json!({ "spec": image })).by(By::Admin).called("a new image"));
        let restart = restart(plural, APP, "web", "new").by(By::Admin);
        cases.push(restart.called("change the annotations together with the template, as kubectl rollout undo does"));
        let copy = workload(kind(plural), APP, "copy");
        let all = format!("/apis/apps/v1/namespaces/{APP}/{plural}");
        cases.push(case(Method::POST, all, Some(copy)).by(By::Admin).called("create a copy"));
    }
    let forged = json!({"metadata": {"annotations": {"config.linkerd.io/rollout-state": "failed"}}});
    let impostor = patch(apps("deployments", APP, "web"), forged).by(By::Impostor).refused_by(POLICY);
    cases.push(impostor.called("an account with the operator's name in another namespace"));
    let image = json!({"template": {"spec": {"containers": [{"name": "web", "image": "web:2"}]}}});
    let impostor = patch(apps("deployments", "kube-system", "web"), json!({ "spec": image })).by(By::Impostor);
    cases.push(impostor.called("the limits of the operator do not apply to an account in another namespace"));
    cases
}

fn kind(plural: &str) -> &'static str {
    match plural {
        "deployments" => "Deployment",
        "statefulsets" => "StatefulSet",
        _ => "DaemonSet",
    }
}

/// The container of the Pods. The operator's namespace admits only restricted ones.
fn container(image: &str) -> Value {
    let restricted = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    json!({"name": "web", "image": image, "securityContext": restricted})
}

/// A workload that the operator has restarted.
pub(super) fn workload(kind: &str, namespace: &str, name: &str) -> Value {
    let annotations = json!({
        "kept": "yes", "config.linkerd.io/rollout-hash": "old", "config.linkerd.io/rollout-state": "updated",
    });
    let template = json!({
        "metadata": {
            "labels": {"app": name},
            "annotations": {"kept": "yes", "config.linkerd.io/restarted-for": "old"},
        },
        "spec": {"containers": [{"name": "web", "image": "web:1"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"app": name}}, "template": template});
    let metadata = json!({"labels": {"kept": "yes"}, "annotations": annotations});
    object("apps/v1", kind, Some(namespace), name, json!({"metadata": metadata, "spec": spec}))
}

pub(super) fn namespaces() -> Vec<Value> {
    let namespace = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    vec![
        namespace(APP, json!({})),
        namespace("cert-manager", json!({})),
        namespace(EXEMPT, json!({"config.linkerd.io/admission-webhooks": "disabled"})),
    ]
}

/// The objects that the cases change.
pub(super) fn objects() -> Vec<Value> {
    let mut objects = vec![workload("Deployment", "linkerd", "linkerd-proxy-injector")];
    for namespace in [APP].into_iter().chain(EXCLUDED) {
        objects.extend(["Deployment", "StatefulSet", "DaemonSet"].map(|kind| workload(kind, namespace, "web")));
        let spec = json!({"containers": [container("web:1")]});
        let metadata = json!({"labels": {"kept": "yes"}, "annotations": {"kept": "yes"}});
        objects.push(object("v1", "Pod", Some(namespace), "web", json!({"metadata": metadata, "spec": spec})));
    }
    let owner = |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "name": "mesh", "uid": kind});
    let metadata = json!({
        "labels": {"kept": "yes"}, "annotations": {"kept": "yes"},
        "ownerReferences": [owner("ConfigMap", "v1"), owner("LinkerdConfig", "config.linkerd.io/v1alpha1")],
    });
    let data = json!({"values": "{}", "kept": "yes"});
    let map = json!({"metadata": metadata, "data": data});
    objects.push(object("v1", "ConfigMap", Some("linkerd"), "linkerd-config", map));
    let data = json!({"data": {"ca-bundle.crt": config_maps::ANCHORS, "kept": "yes"}});
    objects.push(object("v1", "ConfigMap", Some("linkerd"), BUNDLE, data));
    objects.push(object("v1", "Secret", Some("linkerd"), ISSUER, json!({"data": {"crt.pem": ""}})));
    let revision = |name: &str, labels: Value, owners: Value| {
        let metadata = json!({"labels": labels, "ownerReferences": owners});
        let rest = json!({"metadata": metadata, "revision": 1, "data": {}});
        object("apps/v1", "ControllerRevision", Some("linkerd"), name, rest)
    };
    let of_daemon_set = json!([owner("DaemonSet", "apps/v1")]);
    objects.push(revision("linkerd-config-base-1", json!({"config.linkerd.io/base-of": "linkerd-config"}), json!([])));
    objects.push(revision("of-a-daemon-set", json!({"app": "web"}), json!([])));
    objects.push(revision("of-an-opted-in-daemon-set", json!({"config.linkerd.io/reconcile": "auto"}), of_daemon_set));
    for (name, finalizer) in [("mesh", "example.com/mine"), ("restoring", "config.linkerd.io/restore-base")] {
        objects.push(json!({
            "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
            "metadata": {"name": name, "finalizers": [finalizer]}, "spec": {},
        }));
    }
    objects
        .push(json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust", "metadata": {"name": "mesh"},
        "spec": {}}));
    for (name, managed_by) in [("ours", OURS), ("of-pods", "endpointslice-controller.k8s.io")] {
        let labels = json!({MANAGED_BY: managed_by, "kubernetes.io/service-name": "web"});
        let rest = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": [], "ports": []});
        objects.push(object("discovery.k8s.io/v1", "EndpointSlice", Some(APP), name, rest));
    }
    objects
}
