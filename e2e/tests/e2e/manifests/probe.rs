//! One request for each permission, as the manager sends it. Writes are dry runs.

use anyhow::{Context, Result};
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::StatusCode;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::{object, rules::Permission};

/// The namespace of the requested objects where a permission is for all namespaces.
pub(super) const NAMESPACE: &str = "probe";
/// The name of the requested object where a permission names none.
const OBJECT: &str = "probe";

pub(super) struct Probe {
    method: Method,
    path: String,
    body: Option<Value>,
}

// === impl Probe ===

impl Probe {
    pub(super) fn get(path: &str) -> Self {
        Self::new(Method::GET, path.to_owned(), None)
    }

    pub(super) fn new(method: Method, path: String, body: Option<Value>) -> Self {
        Self { method, path, body }
    }

    /// Returns a request that needs the permission, in the namespace of the role if it has one.
    pub(super) async fn of(permission: &Permission, namespace: Option<&str>, admin: &Client) -> Result<Self> {
        let Permission { resource, group, name, verb } = permission;
        if resource == "services/finalizers" {
            return Self::owned_slice(admin).await;
        }
        let (plural, subresource) = resource.split_once('/').map_or((&**resource, None), |(it, sub)| (it, Some(sub)));
        let everywhere = is_cluster_wide(plural) || (namespace.is_none() && matches!(&**verb, "list" | "watch"));
        let namespace = (!everywhere).then(|| namespace.unwrap_or(NAMESPACE));
        let all = collection(group, plural, namespace);
        let object = format!("{all}/{}", name.as_deref().unwrap_or(OBJECT));
        let one = subresource.map_or(object.clone(), |subresource| format!("{object}/{subresource}"));
        let selector = name.as_ref().map(|name| format!("&fieldSelector=metadata.name%3D{name}")).unwrap_or_default();
        let live = async || -> Result<Value> { Ok(admin.request(Request::get(&object).body(Vec::new())?).await?) };
        let (method, path, body) = match (verb.as_str(), subresource) {
            ("get", _) => (Method::GET, one, None),
            ("list", _) => (Method::GET, format!("{all}?limit=1{selector}"), None),
            ("watch", _) => (Method::GET, format!("{all}?watch=true&timeoutSeconds=5{selector}"), None),
            ("create", Some("eviction")) => {
                let metadata = json!({"name": OBJECT, "namespace": namespace});
                let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata});
                (Method::POST, format!("{one}?dryRun=All"), Some(eviction))
            }
            ("create", _) => (Method::POST, format!("{all}?dryRun=All"), Some(another(live().await?))),
            ("update", _) => (Method::PUT, format!("{one}?dryRun=All"), Some(live().await?)),
            ("patch", _) => {
                let patch = json!({"metadata": {"annotations": {"probe": "patched"}}});
                (Method::PATCH, format!("{one}?dryRun=All"), Some(patch))
            }
            ("delete", _) => (Method::DELETE, format!("{one}?dryRun=All"), None),
            (verb, _) => anyhow::bail!("no probe for {verb}"),
        };
        Ok(Self { method, path, body })
    }

    /// Returns a request to create a slice that blocks the deletion of its Service.
    async fn owned_slice(admin: &Client) -> Result<Self> {
        let read =
            async |path: &str| -> Result<Value> { Ok(admin.request(Request::get(path).body(Vec::new())?).await?) };
        let service = read(&format!("/api/v1/namespaces/{NAMESPACE}/services/{OBJECT}")).await?;
        let all = collection("discovery.k8s.io", "endpointslices", Some(NAMESPACE));
        let mut slice = another(read(&format!("{all}/{OBJECT}")).await?);
        slice["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Service", "name": OBJECT, "uid": service["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true,
        }]);
        Ok(Self { method: Method::POST, path: format!("{all}?dryRun=All"), body: Some(slice) })
    }

    /// Sends the request. Returns the status, and for an error the request and the response. The body of a success is
    /// not read, because that of a watch does not end.
    pub(super) async fn send(&self, client: &Client) -> Result<(StatusCode, String)> {
        let request = Request::builder().method(&self.method).uri(&self.path);
        let kind = match self.method {
            // An apply must name its field manager.
            Method::PATCH if self.path.contains("fieldManager=") => "application/apply-patch+yaml",
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = self.body.as_ref().map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let response = client.send(request.header("content-type", kind).body(Body::from(body))?).await?;
        let status = response.status();
        if status.is_success() {
            return Ok((status, String::new()));
        }
        let text = response.into_body().collect().await.context("reading the body of the response")?.to_bytes();
        Ok((status, format!("{} {}: {}", self.method, self.path, String::from_utf8_lossy(&text))))
    }
}

fn is_cluster_wide(plural: &str) -> bool {
    matches!(
        plural,
        "nodes"
            | "namespaces"
            | "linkerdconfigs"
            | "linkerdtrusts"
            | "mutatingwebhookconfigurations"
            | "validatingwebhookconfigurations"
    )
}

fn collection(group: &str, plural: &str, namespace: Option<&str>) -> String {
    let version = match group {
        "config.linkerd.io" => "v1alpha1",
        "linkerd.io" => "v1alpha2",
        "policy.linkerd.io" => "v1beta3",
        "workload.linkerd.io" => "v1beta1",
        _ => "v1",
    };
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    }
}

/// Returns an object that can be created next to this one.
fn another(mut object: Value) -> Value {
    let namespace = object["metadata"]["namespace"].take();
    object["metadata"] = json!({"name": "another", "namespace": namespace});
    object
}

/// The objects that the probes request.
pub(super) fn objects() -> Vec<Value> {
    let (here, linkerd, operator) = (Some(NAMESPACE), Some("linkerd"), Some("linkerd-operator-system"));
    let pod = json!({"containers": [{"name": "web", "image": "web:1"}]});
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": pod});
    let mut job = json!({"spec": pod});
    job["spec"]["restartPolicy"] = json!("Never");
    let workload = json!({"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": &template}});
    let pod = json!({ "spec": pod });
    let event = json!({
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "e2e", "reportingInstance": "e2e",
        "action": "Probe", "reason": "Probe", "type": "Normal", "note": "a probe",
        "regarding": {"apiVersion": "v1", "kind": "Service", "name": OBJECT, "namespace": NAMESPACE},
    });
    let lease = |namespace, name| object("coordination.k8s.io/v1", "Lease", namespace, name, json!({"spec": {}}));
    vec![
        object("v1", "Namespace", None, NAMESPACE, json!({})),
        object("v1", "Service", here, OBJECT, json!({"spec": {"ports": [{"port": 80}]}})),
        object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            here,
            OBJECT,
            json!({"addressType": "IPv4", "endpoints": [], "ports": []}),
        ),
        object("v1", "Pod", here, OBJECT, pod.clone()),
        object("apps/v1", "Deployment", here, OBJECT, workload.clone()),
        object("apps/v1", "StatefulSet", here, OBJECT, workload.clone()),
        object("apps/v1", "DaemonSet", here, OBJECT, workload.clone()),
        object("apps/v1", "ReplicaSet", here, OBJECT, workload.clone()),
        object(
            "v1",
            "ReplicationController",
            here,
            OBJECT,
            json!({"spec": {"selector": {"app": "web"}, "template": template}}),
        ),
        object("batch/v1", "Job", here, OBJECT, json!({"spec": {"suspend": true, "template": job}})),
        object("events.k8s.io/v1", "Event", here, OBJECT, event),
        object("v1", "ConfigMap", linkerd, "linkerd-config", json!({"data": {"values": "{}"}})),
        object("v1", "ConfigMap", linkerd, "linkerd-config-canary", json!({"data": {"values": "{}"}})),
        object("v1", "ConfigMap", linkerd, OBJECT, json!({"data": {"values": "{}"}})),
        object("apps/v1", "ControllerRevision", linkerd, OBJECT, json!({"revision": 1, "data": {}})),
        object("v1", "Pod", linkerd, OBJECT, pod),
        object("apps/v1", "Deployment", linkerd, "linkerd-proxy-injector", workload),
        lease(linkerd, OBJECT),
        lease(linkerd, "linkerd-destination-endpoint-write"),
        lease(linkerd, "linkerd-operator"),
        lease(operator, OBJECT),
        lease(operator, "linkerd-operator"),
        lease(operator, "linkerd-operator-webhook-certificate"),
        object("v1", "Secret", operator, OBJECT, json!({})),
        object("v1", "Secret", operator, "linkerd-operator-webhook", json!({})),
        object("config.linkerd.io/v1alpha1", "LinkerdConfig", None, OBJECT, json!({"spec": {}})),
        object("config.linkerd.io/v1alpha1", "LinkerdTrust", None, OBJECT, json!({"spec": {}})),
        object(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            None,
            "linkerd-proxy-injector-webhook-config",
            json!({"webhooks": []}),
        ),
        object(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            None,
            "linkerd-operator-proxy-injector",
            json!({"webhooks": []}),
        ),
        object(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            None,
            "linkerd-sp-validator-webhook-config",
            json!({"webhooks": []}),
        ),
    ]
}
