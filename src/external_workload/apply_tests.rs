//! The requests that a plan causes, and the outcome for each response, against a minimal fake API server.

use std::sync::Mutex;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::endpoint_slice::Endpoint,
    cluster::{Problems, Projected},
    lease::Leadership,
};

/// A fake API server. It records a line for each request, and responds with the sent object at version 100 unless
/// configured otherwise.
#[derive(Clone, Default)]
struct Server {
    lines: Arc<Mutex<Vec<String>>>,
    refusals: Arc<Mutex<Vec<(&'static str, Value)>>>,
    live: Arc<Mutex<Option<Value>>>,
}

impl Server {
    /// Responds with this `Status` to requests whose line begins with `line`.
    fn refuse(self, line: &'static str, code: u16, reason: &str) -> Self {
        self.answer(line, status(code, reason))
    }

    fn answer(self, line: &'static str, status: Value) -> Self {
        self.refusals.lock().unwrap().push((line, status));
        self
    }

    fn writer(&self, leadership: Leadership) -> SliceWriter {
        self.writer_until(leadership, CancellationToken::new())
    }

    fn writer_until(&self, leadership: Leadership, stop: CancellationToken) -> SliceWriter {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.serve(request).await) }
        });
        let client = Client::new(service, "default");
        SliceWriter::new(&client, Fence::new(leadership, stop), &Registry::new()).unwrap()
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let name = parts.uri.path().rsplit('/').next().unwrap().to_owned();
        let line = match parts.method {
            Method::POST => format!("create {}", body["metadata"]["name"].as_str().unwrap()),
            Method::PUT => format!("update {name} with {}", names(&body).join(",")),
            Method::DELETE => {
                let preconditions = &body["preconditions"];
                format!("delete {name} if {}@{}", preconditions["uid"], preconditions["resourceVersion"])
                    .replace('"', "")
            }
            _ => format!("get {name}"),
        };
        self.lines.lock().unwrap().push(line.clone());
        let refusals = self.refusals.lock().unwrap();
        let refusal = refusals.iter().find(|(refused, _)| line.starts_with(refused)).map(|(_, status)| status.clone());
        let answer = match (refusal, parts.method) {
            (Some(status), _) => status,
            (None, Method::GET) => self.live.lock().unwrap().clone().unwrap_or_else(|| status(404, "NotFound")),
            (None, Method::DELETE) => json!({"kind": "Status", "status": "Success"}),
            (None, _) => {
                let mut stored = body;
                stored["metadata"]["resourceVersion"] = json!("100");
                stored
            }
        };
        let code = answer["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
        Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap()
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": format!("injected {reason}")})
}

fn names(slice: &Value) -> Vec<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints.map(|endpoint| endpoint["targetRef"]["name"].as_str().unwrap().to_owned()).collect()
}

fn service() -> Service {
    let object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "service-uid"}, "spec": {"selector": {"app": "web"}}});
    Service::project(serde_json::from_value(object).unwrap(), &mut Problems::default())
}

fn slice(name: &str, port: u16, workloads: &[&str]) -> EndpointSlice {
    let endpoints: Vec<Endpoint> = workloads
        .iter()
        .map(|workload| {
            let target = json!({"kind": "ExternalWorkload", "namespace": "ns", "name": workload});
            serde_json::from_value(json!({"addresses": ["192.0.2.1"], "targetRef": target})).unwrap()
        })
        .collect();
    let mut slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": crate::api::MANAGED_BY},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "service-uid"}]},
        "addressType": "IPv4", "ports": [{"port": port}],
    }))
    .unwrap();
    slice.endpoints = endpoints;
    slice
}

fn update(name: &str, before: &[&str], after: &[&str]) -> SliceUpdate {
    SliceUpdate { base: Arc::new(slice(name, 80, before)), slice: slice(name, 80, after) }
}

async fn apply(server: &Server, plan: SlicePlan) -> Outcome {
    server.writer(Leadership::for_test()).apply(&service(), plan).await
}

#[tokio::test]
async fn creates_come_first_then_updates_that_add_workloads_and_a_slice_is_emptied_before_it_is_deleted() {
    let server = Server::default();
    let plan = SlicePlan {
        creates: vec![slice("new", 81, &["a"])],
        updates: vec![update("loses", &["a", "b", "c"], &["c"]), update("gains", &["d"], &["d", "b"])],
        retires: vec![Arc::new(slice("old", 80, &["e"])), Arc::new(slice("empty", 80, &[]))],
        ..SlicePlan::default()
    };
    let outcome = apply(&server, plan).await;
    assert_eq!(
        server.lines(),
        [
            "create new",
            "update gains with d,b",
            "update loses with c",
            "update old with ",
            "delete old if uid-old@100",
            "delete empty if uid-empty@7",
        ]
    );
    assert!(outcome.failures.is_empty() && outcome.taken.is_empty() && !outcome.stale);
    assert_eq!(outcome.written.len(), 6);
    let before = ["loses", "gains", "old", "empty"].map(|name| Arc::new(slice(name, 80, &["x"])));
    let mut after: Vec<_> = outcome.after(&before).iter().map(|s| (s.name().to_owned(), s.endpoints.len())).collect();
    after.sort();
    assert_eq!(after, [("gains".to_owned(), 2), ("loses".to_owned(), 1), ("new".to_owned(), 1)]);
}

#[tokio::test]
async fn a_workload_whose_new_slice_is_refused_stays_in_its_slice_and_the_rest_is_written() {
    let server = Server::default().refuse("create", 403, "Forbidden").refuse("update gains", 422, "Invalid");
    let plan = SlicePlan {
        creates: vec![slice("new", 81, &["a"])],
        updates: vec![
            update("loses", &["a", "b", "c", "d"], &["c"]),
            update("gains", &["e"], &["e", "b"]),
            update("only-loses", &["a"], &[]),
        ],
        retires: vec![Arc::new(slice("holds-b", 80, &["b"])), Arc::new(slice("old", 80, &["f"]))],
        ..SlicePlan::default()
    };
    let outcome = apply(&server, plan).await;
    // d is no longer desired and is removed; the new slices of a and b were refused, so both stay.
    assert_eq!(
        server.lines(),
        [
            "create new",
            "update gains with e,b",
            "update loses with c,a,b",
            "update old with ",
            "delete old if uid-old@100"
        ]
    );
    assert_eq!(outcome.failures.len(), 2);
    assert_eq!(outcome.failures[0].to_string(), "cannot create EndpointSlice ns/new: injected Forbidden");
}

#[tokio::test]
async fn a_create_that_fails_with_already_exists_reads_the_existing_slice() {
    let plan = || SlicePlan { creates: vec![slice("new", 80, &["a"])], ..SlicePlan::default() };
    let server = Server::default().refuse("create", 409, "AlreadyExists");
    *server.live.lock().unwrap() = Some(serde_json::to_value(slice("new", 80, &["a"])).unwrap());
    let outcome = apply(&server, plan()).await;
    assert!(
        outcome.stale && matches!(outcome.written[..], [Written::Version(7)]),
        "an earlier create of ours was delayed"
    );
    assert_eq!(server.lines(), ["create new", "get new"]);

    for (key, value) in
        [("labels", json!({})), ("ownerReferences", json!([])), ("deletionTimestamp", json!("2026-01-01T00:00:00Z"))]
    {
        let mut live = serde_json::to_value(slice("new", 80, &["a"])).unwrap();
        live["metadata"][key] = value;
        *server.live.lock().unwrap() = Some(live);
        assert_eq!(apply(&server, plan()).await.taken, ["new"], "{key}");
    }

    *server.live.lock().unwrap() = None;
    let outcome = apply(&server, plan()).await;
    assert!(outcome.stale && outcome.taken.is_empty(), "the slice was deleted in between");
}

#[tokio::test]
async fn a_slice_that_changed_or_was_deleted_in_between_is_not_a_failure() {
    for (code, reason) in [(409, "Conflict"), (404, "NotFound")] {
        let server = Server::default().refuse("update", code, reason);
        let plan = SlicePlan { updates: vec![update("s", &["a"], &["a", "b"])], ..SlicePlan::default() };
        let outcome = apply(&server, plan).await;
        assert!(outcome.stale && outcome.failures.is_empty(), "{reason}");
    }
    let server = Server::default().refuse("delete", 404, "NotFound");
    let plan = SlicePlan { retires: vec![Arc::new(slice("s", 80, &[]))], ..SlicePlan::default() };
    let outcome = apply(&server, plan).await;
    assert!(!outcome.stale && outcome.failures.is_empty());
}

#[tokio::test]
async fn a_create_refused_by_a_terminating_namespace_is_not_a_failure() {
    let mut terminating = status(403, "Forbidden");
    terminating["details"] = json!({"causes": [{"reason": "NamespaceTerminating"}]});
    let server = Server::default().answer("create", terminating);
    let outcome = apply(&server, SlicePlan { creates: vec![slice("new", 80, &["a"])], ..SlicePlan::default() }).await;
    assert!(outcome.failures.is_empty());
}

#[tokio::test]
async fn without_leadership_nothing_is_sent() {
    let server = Server::default();
    let plan = SlicePlan { creates: vec![slice("new", 80, &["a"])], ..SlicePlan::default() };
    let outcome = server.writer(Leadership::for_test_of_a_follower()).apply(&service(), plan).await;
    assert_eq!(server.lines(), Vec::<String>::new());
    assert!(matches!(outcome.failures[0].error, WriteError::NotLeading));
}

#[tokio::test]
async fn nothing_is_sent_after_the_process_began_to_stop() {
    let server = Server::default();
    let stop = CancellationToken::new();
    let writer = server.writer_until(Leadership::for_test(), stop.clone());
    stop.cancel();
    let outcome =
        writer.apply(&service(), SlicePlan { creates: vec![slice("new", 80, &["a"])], ..SlicePlan::default() }).await;
    assert_eq!(server.lines(), Vec::<String>::new());
    assert_eq!(outcome.failures.len(), 1);
}
