use std::sync::Mutex;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::linkerd_config::{RolloutStatus, TargetStatus},
    lease::Leadership,
};

/// An API server with one LinkerdConfig. A PUT of the status replaces the status, if uid and resourceVersion match.
#[derive(Clone)]
struct FakeApiServer {
    object: Arc<Mutex<Value>>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl FakeApiServer {
    fn new(uid: &str, version: &str) -> Self {
        let metadata = json!({"name": "mesh", "uid": uid, "resourceVersion": version});
        let object = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": LINKERD_CONFIG_KIND,
            "metadata": metadata, "spec": {"priority": 7}});
        Self { object: Arc::new(Mutex::new(object)), lines: Arc::default() }
    }

    fn writer(&self) -> ConfigWriter {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.serve(request).await) }
        });
        let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
        ConfigWriter::new(&Client::new(service, "default"), "linkerd", fence, &Registry::new()).unwrap()
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        self.lines.lock().unwrap().push(format!("{} {}", parts.method, parts.uri.path()));
        let mut object = self.object.lock().unwrap();
        let of = |field: &str| (&body["metadata"][field], &object["metadata"][field]);
        let answer = match parts.method {
            Method::GET => object.clone(),
            _ if [of("uid"), of("resourceVersion")].iter().any(|(sent, is)| sent != is) => {
                json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict"})
            }
            _ => {
                let version: u64 = body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                object["status"] = body["status"].clone();
                object.clone()
            }
        };
        let code = answer["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
        Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap()
    }

    fn status(&self) -> Value {
        self.object.lock().unwrap()["status"].clone()
    }
}

const PUT: &str = "PUT /apis/config.linkerd.io/v1alpha1/linkerdconfigs/mesh/status";
const GET: &str = "GET /apis/config.linkerd.io/v1alpha1/linkerdconfigs/mesh";

#[tokio::test]
async fn a_field_that_is_no_longer_set_disappears_from_the_status() {
    let server = FakeApiServer::new("a", "1");
    let writer = server.writer();
    let target = TargetStatus { uid: Some("uid".into()), name: Some("linkerd-config".into()), namespace: None };
    let rollout = RolloutStatus { retry: Some("1".into()), hash: Some("hash".into()), ..RolloutStatus::default() };
    let full = LinkerdConfigStatus {
        observed_generation: Some(1),
        active: Some(true),
        target: Some(target.clone()),
        config_hash: Some("hash".into()),
        rollout: Some(rollout.clone()),
        deprecated_fields: vec!["spec.proxy.proxyInitImage".into()],
        ..LinkerdConfigStatus::default()
    };
    let version = writer.update_status("mesh", "a", "1", &full).await.unwrap();
    assert_eq!((version.as_deref(), server.status()), (Some("2"), serde_json::to_value(&full).unwrap()));
    let next = LinkerdConfigStatus {
        active: Some(false),
        target: Some(TargetStatus { uid: None, ..target }),
        rollout: Some(RolloutStatus { hash: None, ..rollout }),
        ..LinkerdConfigStatus::default()
    };
    let version = writer.update_status("mesh", "a", "2", &next).await.unwrap();
    assert_eq!(version.as_deref(), Some("3"));
    let expected = json!({"active": false, "target": {"name": "linkerd-config"}, "rollout": {"retry": "1"}});
    assert_eq!(server.status(), expected);
    assert_eq!(*server.lines.lock().unwrap(), [PUT, PUT]);
    assert_eq!(server.object.lock().unwrap()["spec"], json!({"priority": 7}));
}

#[tokio::test]
async fn a_conflict_is_retried_unless_the_resource_was_recreated() {
    let status = LinkerdConfigStatus { active: Some(true), ..LinkerdConfigStatus::default() };
    let server = FakeApiServer::new("a", "5");
    assert_eq!(server.writer().update_status("mesh", "a", "1", &status).await.unwrap().as_deref(), Some("6"));
    assert_eq!(*server.lines.lock().unwrap(), [PUT, GET, PUT]);
    let server = FakeApiServer::new("b", "5");
    assert_eq!(server.writer().update_status("mesh", "a", "5", &status).await.unwrap(), None);
    assert_eq!((server.status(), server.lines.lock().unwrap().len()), (Value::Null, 2));
}

#[tokio::test]
async fn a_reverted_document_that_an_older_list_lacks_is_kept_once() {
    let kept = serde_json::to_value(kept::to_object("linkerd-config", 1, "a: 1", "helm")).unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&requests);
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_older = request.uri().query().unwrap_or_default().contains("resourceVersion=0");
        log.lock().unwrap().push(format!("{} {}", request.method(), if is_older { "older" } else { "latest" }));
        let list = |items: &[&Value]| json!({"metadata": {}, "items": items});
        let (code, answer) = match (request.method(), is_older) {
            (&Method::GET, true) => (200, list(&[])),
            (&Method::GET, false) => (200, list(&[&kept])),
            _ => (409, json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists"})),
        };
        let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
        async move { response }
    });
    let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
    let writer = ConfigWriter::new(&Client::new(service, "default"), "linkerd", fence, &Registry::new()).unwrap();
    let name = writer.keep_reverted("linkerd-config", "a: 1", "helm").await.unwrap();
    assert_eq!(name.as_deref(), Some("linkerd-config-reverted-1"));
    assert_eq!(*requests.lock().unwrap(), ["GET older", "POST latest", "GET latest"]);
}

/// Another client may create ControllerRevisions with such names, without the label.
#[tokio::test]
async fn a_base_gets_the_next_number_whose_name_is_free() {
    let known = serde_json::to_value(Base::new(15, "a: 1", None).unwrap().to_object("linkerd-config")).unwrap();
    let foreign = ["linkerd-config-base-16", "linkerd-config-base-17", "linkerd-config-base-9223372036854775807"];
    let created = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&created);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (log, known) = (Arc::clone(&log), known.clone());
        async move {
            let (parts, body) = request.into_parts();
            let is_labelled = parts.uri.query().unwrap_or_default().contains("labelSelector");
            let others = foreign.map(|name| json!({"metadata": {"name": name}}));
            let (code, answer) = if parts.method == Method::GET {
                let items: Vec<_> = [known].into_iter().chain(others.into_iter().filter(|_| !is_labelled)).collect();
                (200, json!({"metadata": {}, "items": items}))
            } else {
                let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                let is_taken = foreign.contains(&&*name);
                log.lock().unwrap().push(name);
                let exists = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists"});
                if is_taken { (409, exists) } else { (201, body) }
            };
            Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
        }
    });
    let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
    let writer = ConfigWriter::new(&Client::new(service, "default"), "linkerd", fence, &Registry::new()).unwrap();
    let base = Base::new(0, "a: 2", None).unwrap();
    let saved = writer.save_base(&base, "linkerd-config", &[]).await.unwrap();
    assert_eq!((saved.revision, &*saved.text), (18, "a: 2"));
    assert_eq!(*created.lock().unwrap(), ["linkerd-config-base-16", "linkerd-config-base-18"]);
}
