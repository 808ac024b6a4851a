use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use crate::{cluster::testing::Feed, linkerd_config::LinkerdConfigObserver};

const DELETED: &str = "2026-01-01T00:00:00Z";

fn config(over: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
        "metadata": {
            "name": "mesh", "uid": "uid-1", "resourceVersion": "7", "deletionTimestamp": DELETED,
            "finalizers": ["config.linkerd.io/restore-base", "example.org/kept"],
        },
        "spec": {},
    });
    json_patch::merge(&mut object, over);
    object
}

fn namespace(deleted: Option<&str>) -> Value {
    json!({"metadata": {"name": "linkerd", "deletionTimestamp": deleted}})
}

/// An API server with one LinkerdConfig, and with Linkerd's namespace or without.
#[derive(Clone)]
struct Server {
    config: Arc<Mutex<Value>>,
    namespace: Option<Value>,
    /// The method and the path of each request.
    requests: Arc<Mutex<Vec<String>>>,
    /// The bodies of the writes.
    patches: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn new(config: Value, namespace: Option<Value>) -> Self {
        Self { config: Arc::new(Mutex::new(config)), namespace, requests: Arc::default(), patches: Arc::default() }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.serve(request).await) }
        });
        Client::new(service, "default")
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        self.requests.lock().push(format!("{} {}", parts.method, parts.uri.path()));
        if parts.method == Method::PATCH {
            let body = body.collect().await.unwrap().to_bytes();
            let patch: Value = serde_json::from_slice(&body).unwrap();
            json_patch::merge(&mut self.config.lock(), &patch);
            self.patches.lock().push(patch);
        }
        let answer = match parts.uri.path() {
            "/api/v1/namespaces" => json!({"metadata": {}, "items": self.namespace.as_slice()}),
            _ => self.config.lock().clone(),
        };
        Response::new(Body::from(answer.to_string().into_bytes()))
    }

    /// Returns whether the resource is released, and the patches.
    async fn release(config: Value, namespace: Option<Value>) -> (bool, Vec<Value>) {
        let server = Self::new(config, namespace);
        let releaser = Releaser::new(&server.client(), &Feed::default().cluster, &"linkerd".into());
        let is_released = releaser.release("mesh").await.unwrap();
        let patches = std::mem::take(&mut *server.patches.lock());
        (is_released, patches)
    }
}

#[test]
fn a_deleted_resource_waits_for_a_release_only_if_its_namespace_is_gone() {
    let mut feed = Feed::default();
    let mut names = |namespaces: &[Value], config: Value| {
        feed.list(Kind::Namespace, namespaces.iter().cloned());
        feed.list(Kind::LinkerdConfig, [config]);
        waiting(&feed.cluster.read(), "linkerd").iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(&[namespace(None)], config(&json!({}))), [""; 0]);
    assert_eq!(names(&[namespace(Some(DELETED))], config(&json!({}))), ["mesh"]);
    assert_eq!(names(&[], config(&json!({}))), ["mesh"]);
    assert_eq!(names(&[], config(&json!({"metadata": {"deletionTimestamp": null}}))), [""; 0]);
    assert_eq!(names(&[], config(&json!({"metadata": {"finalizers": ["example.org/kept"]}}))), [""; 0]);
    let of_another = config(&json!({"spec": {"global": {"linkerdNamespace": "linkerd-other"}}}));
    assert_eq!(names(&[], of_another), [""; 0], "another operator serves it");
}

#[tokio::test]
async fn only_our_finalizer_is_removed_from_exactly_the_version_that_was_read() {
    for gone in [None, Some(namespace(Some(DELETED)))] {
        let (is_released, patches) = Server::release(config(&json!({})), gone).await;
        let metadata = json!({"uid": "uid-1", "resourceVersion": "7", "finalizers": ["example.org/kept"]});
        assert_eq!((is_released, patches), (true, vec![json!({ "metadata": metadata })]));
    }
}

#[tokio::test]
async fn a_namespace_that_the_cache_does_not_show_yet_keeps_the_finalizer() {
    let (is_released, patches) = Server::release(config(&json!({})), Some(namespace(None))).await;
    assert_eq!((is_released, patches), (false, Vec::new()));
}

#[tokio::test]
async fn a_resource_that_was_created_again_under_the_same_name_keeps_its_finalizer() {
    let again = config(&json!({"metadata": {"uid": "uid-2", "deletionTimestamp": null}}));
    assert_eq!(Server::release(again, None).await, (true, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_concluded_from_namespaces_before_their_first_list() {
    let observer = LinkerdConfigObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
    let changed = Arc::clone(&observer.released);
    let mut feed = Feed::unlisted(KINDS, observer);
    let server = Server::new(config(&json!({})), None);
    let releaser = Releaser::new(&server.client(), &feed.cluster, &"linkerd".into());
    let task = tokio::spawn(releaser.run(changed, CancellationToken::new()));
    feed.list(Kind::LinkerdConfig, [config(&json!({}))]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(*server.requests.lock(), [""; 0]);
    feed.list(Kind::Namespace, []);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.patches.lock().len(), 1);
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_namespace_and_the_deletion_of_the_resource_wake_the_release_in_any_order() {
    for namespace_first in [true, false] {
        let observer = LinkerdConfigObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
        let changed = Arc::clone(&observer.released);
        let mut feed = Feed::unlisted(KINDS, observer);
        let server = Server::new(config(&json!({})), None);
        let releaser = Releaser::new(&server.client(), &feed.cluster, &"linkerd".into());
        let task = tokio::spawn(releaser.run(changed, CancellationToken::new()));
        feed.list(Kind::Namespace, [namespace(None)]);
        feed.list(Kind::LinkerdConfig, [config(&json!({"metadata": {"deletionTimestamp": null}}))]);
        let mut steps = [
            (Kind::Namespace, namespace(Some(DELETED))),
            (Kind::LinkerdConfig, config(&json!({"metadata": {"resourceVersion": "8"}}))),
        ];
        if !namespace_first {
            steps.reverse();
        }
        for (kind, object) in steps {
            assert_eq!(server.patches.lock().len(), 0);
            feed.apply(kind, kube::runtime::watcher::Event::Apply(object));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(server.patches.lock().len(), 1);
        task.abort();
    }
}
