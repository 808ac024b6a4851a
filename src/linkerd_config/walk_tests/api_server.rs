//! An API server with one LinkerdConfig, the ConfigMaps and the ControllerRevisions. It can die after any write.

use std::sync::Arc;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::api::FIELD_MANAGER;

#[derive(Clone)]
pub(super) struct ApiServer(Arc<Mutex<Objects>>);

pub(super) struct Objects {
    pub(super) config: Value,
    pub(super) config_map: Value,
    pub(super) canary: Option<Value>,
    pub(super) revisions: Vec<Value>,
    version: u64,
    /// After this number of writes every request fails; `None` is never.
    pub(super) dies_after: Option<u32>,
    /// The documents that the operator has written to the ConfigMap, since they were last taken.
    pub(super) written: Vec<String>,
}

// === impl ApiServer ===

impl ApiServer {
    pub(super) fn new(values: &str) -> Self {
        let config = json!({"metadata": {"name": "mesh", "uid": "mesh", "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}});
        let config_map = json!({"metadata": {"name": "linkerd-config", "namespace": "linkerd", "uid": "map",
            "resourceVersion": "1"}, "data": {}});
        let objects = Objects {
            config,
            config_map,
            canary: None,
            revisions: Vec::new(),
            version: 1,
            dies_after: None,
            written: Vec::new(),
        };
        let server = Self(Arc::new(Mutex::new(objects)));
        server.write_values("helm", values);
        server
    }

    pub(super) fn objects(&self) -> parking_lot::MutexGuard<'_, Objects> {
        self.0.lock()
    }

    /// Writes the document of the ConfigMap as this field manager.
    pub(super) fn write_values(&self, manager: &str, values: &str) {
        let mut objects = self.objects();
        let patch = json!({"data": {"values": values}});
        objects.patch_config_map(manager, &patch);
    }

    pub(super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let query = parts.uri.query().unwrap_or_default();
                let (code, answer) = server.objects().answer(&parts.method, parts.uri.path(), query, &body);
                let response = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        Client::new(service, "default")
    }
}

// === impl Objects ===

impl Objects {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: &Value) -> (u16, Value) {
        if self.dies_after == Some(0) {
            return failure(500, "the process was killed");
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let answer = match (method.as_str(), path.split('/').rev().nth(1).unwrap_or_default(), name) {
            ("GET", _, "controllerrevisions") => {
                let label = if query.contains("reverted-of") { "reverted-of" } else { "base-of" };
                let of_label = |it: &&Value| it["metadata"]["labels"].to_string().contains(label);
                let items: Vec<_> = self.revisions.iter().filter(of_label).cloned().collect();
                return (200, json!({"metadata": {}, "items": items}));
            }
            ("GET", "linkerdconfigs", _) => return (200, self.config.clone()),
            ("POST", _, "controllerrevisions") => {
                let is_same = |it: &Value| it["metadata"]["name"] == body["metadata"]["name"];
                if self.revisions.iter().any(is_same) {
                    return failure(409, "AlreadyExists");
                }
                self.revisions.push(body.clone());
                body.clone()
            }
            ("DELETE", "controllerrevisions", _) => {
                self.revisions.retain(|it| it["metadata"]["name"] != name);
                json!({"kind": "Status", "status": "Success"})
            }
            ("PATCH", "configmaps", "linkerd-config") => {
                if body["metadata"]["resourceVersion"] != self.config_map["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                self.patch_config_map(FIELD_MANAGER, body);
                self.written.extend(body["data"]["values"].as_str().map(str::to_owned));
                self.config_map.clone()
            }
            ("POST", _, "configmaps") => self.put_canary(body.clone()),
            ("PATCH", "configmaps", _) => {
                let mut canary = self.canary.clone().unwrap_or_default();
                json_patch::merge(&mut canary, body);
                self.put_canary(canary)
            }
            ("DELETE", "configmaps", _) => {
                self.canary = None;
                json!({"kind": "Status", "status": "Success"})
            }
            ("PUT", _, "status") => {
                self.config["status"] = body["status"].clone();
                let version = self.next_version();
                self.config["metadata"]["resourceVersion"] = json!(version);
                self.config.clone()
            }
            _ => panic!("{method} {path}"),
        };
        self.dies_after = self.dies_after.map(|left| left - 1);
        (200, answer)
    }

    pub(super) fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn patch_config_map(&mut self, manager: &str, patch: &Value) {
        json_patch::merge(&mut self.config_map, patch);
        let version = self.next_version();
        let owned = json!([{"manager": manager, "operation": "Update", "time": Timestamp::now().to_string(),
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:values": {}}}}]);
        json_patch::merge(
            &mut self.config_map["metadata"],
            &json!({"resourceVersion": version, "managedFields": owned}),
        );
    }

    pub(super) fn set_immutable(&mut self, immutable: bool) {
        let version = self.next_version();
        self.config_map["immutable"] = json!(immutable);
        self.config_map["metadata"]["resourceVersion"] = json!(version);
    }

    fn put_canary(&mut self, mut canary: Value) -> Value {
        let version = self.next_version();
        let metadata = json!({"namespace": "linkerd", "uid": format!("canary-{version}"), "resourceVersion": version});
        json_patch::merge(&mut canary["metadata"], &metadata);
        self.canary.insert(canary).clone()
    }
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
}
