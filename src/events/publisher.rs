//! The task that writes Events.
//!
//! A repeated Event with the same note increments the count of the existing one, as in client-go's recorder. kube's
//! `Recorder` does so for a different note as well, and sends the old note; it also keeps incrementing an Event that
//! was deleted.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    time::Duration,
};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{self as core, ObjectReference},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use prometheus::IntCounterVec;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

use super::{Cause, EventsApi, Notice, RateLimits, Reason, RecentEvent, RecentEvents, rate_limit::Refusal};
use crate::client::{describe, is_namespace_terminating};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A repetition after a longer time creates a new Event, as in client-go.
const SERIES_TTL: Duration = Duration::from_secs(360);

pub(super) struct Publisher {
    pub(super) client: Client,
    pub(super) api: EventsApi,
    /// The identity of this replica.
    pub(super) instance: String,
    pub(super) limits: RateLimits,
    pub(super) series: HashMap<SeriesKey, Series>,
    pub(super) sent: IntCounterVec,
    pub(super) dropped: IntCounterVec,
    pub(super) recent: RecentEvents,
}

/// The reason and the two objects.
type SeriesKey = (Reason, String, String);

/// The last Event of a key.
pub(super) struct Series {
    name: String,
    /// The hash of the note, because notes are long.
    note: u64,
    count: i32,
    last: Instant,
}

// === impl Publisher ===

impl Publisher {
    /// Writes the Events of controllers before those of reviews.
    pub(super) async fn run(mut self, mut notices: mpsc::Receiver<Notice>, mut reviews: mpsc::Receiver<Notice>) {
        loop {
            let notice = tokio::select! {
                biased;
                Some(notice) = notices.recv() => notice,
                Some(notice) = reviews.recv() => notice,
                else => return,
            };
            let cause = match self.limits.admit(&notice, Instant::now()) {
                Ok(()) => self.write(notice).await.err(),
                Err(cause) => Some(cause),
            };
            if let Some(cause) = cause {
                self.dropped.with_label_values(&[<&str>::from(cause)]).inc();
            }
        }
    }

    async fn write(&mut self, notice: Notice) -> Result<(), Cause> {
        let reason = notice.reason.as_str();
        let namespace = notice.regarding.namespace.clone().unwrap_or_default();
        let recent = RecentEvent::of(&notice);
        match timeout(REQUEST_TIMEOUT, self.publish(notice)).await {
            Ok(Ok(())) => {
                self.sent.with_label_values(&[reason]).inc();
                if let Some(event) = recent {
                    self.recent.add(event);
                }
                if self.limits.allow(&namespace) {
                    info!(namespace, "Events are accepted again");
                }
                return Ok(());
            }
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
                let refusal = if is_namespace_terminating(&status) { Refusal::Terminating } else { Refusal::Forbidden };
                if self.limits.deny(&namespace, refusal, Instant::now()) {
                    let error = status.message;
                    warn!(
                        namespace,
                        error,
                        "Events are denied in this namespace; retrying at most every ten minutes, or every ten seconds while it is being deleted"
                    );
                }
            }
            Ok(Err(error)) => debug!(namespace, error = describe(&error), "could not write an Event"),
            Err(_) => debug!(namespace, "could not write an Event: the request timed out"),
        }
        Err(Cause::Failed)
    }

    /// Creates an Event, or increments the count of the last one if the note is the same.
    async fn publish(&mut self, notice: Notice) -> kube::Result<()> {
        let now = Instant::now();
        let key = (notice.reason, id(Some(&notice.regarding)), id(notice.related.as_ref()));
        // Events about cluster-scoped objects belong in the namespace `default`.
        let namespace = notice.regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = self.event(notice);
        let note = BuildHasherDefault::<DefaultHasher>::default().hash_one(&event.note);
        if let Some(series) = self.series.get_mut(&key)
            && series.note == note
            && now - series.last < SERIES_TTL
        {
            let observed = json!({"count": series.count + 1, "lastObservedTime": event.event_time});
            let patch = json!({ "series": observed });
            match self.api.patch(&self.client, &namespace, &series.name, patch).await {
                // The Event was deleted: create a new one.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                result => {
                    result?;
                    series.count += 1;
                    series.last = now;
                    return Ok(());
                }
            }
        }
        self.api.create(&self.client, &namespace, &event).await?;
        // The overall rate bounds the number of entries within SERIES_TTL.
        self.series.retain(|_, series| now - series.last < SERIES_TTL);
        let name = event.metadata.name.unwrap_or_default();
        self.series.insert(key, Series { name, note, count: 1, last: now });
        Ok(())
    }

    fn event(&self, notice: Notice) -> Event {
        let Notice { reason, regarding, related, note } = notice;
        let (now, reporter) = (Timestamp::now(), reason.reporter());
        let name = format!("{}.{:x}", regarding.name.as_deref().unwrap_or(reporter.name()), now.as_nanosecond());
        Event {
            metadata: ObjectMeta { name: Some(name), namespace: regarding.namespace.clone(), ..ObjectMeta::default() },
            event_time: Some(MicroTime(now)),
            type_: Some(reason.type_().to_owned()),
            reason: Some(reason.as_str().to_owned()),
            action: Some(reporter.action().to_owned()),
            note: Some(note),
            regarding: Some(regarding),
            related,
            reporting_controller: Some(reporter.name().to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}

// === impl EventsApi ===

impl EventsApi {
    async fn create(self, client: &Client, namespace: &str, event: &Event) -> kube::Result<()> {
        match self {
            Self::Events => create(client, namespace, event).await,
            Self::Core => create(client, namespace, &of_core(event.clone())).await,
        }
    }

    async fn patch(self, client: &Client, namespace: &str, name: &str, patch: Value) -> kube::Result<()> {
        match self {
            Self::Events => merge::<Event>(client, namespace, name, patch).await,
            Self::Core => merge::<core::Event>(client, namespace, name, patch).await,
        }
    }
}

async fn create<K>(client: &Client, namespace: &str, event: &K) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug + Serialize + DeserializeOwned,
{
    let events: Api<K> = Api::namespaced(client.clone(), namespace);
    events.create(&PostParams::default(), event).await.map(drop)
}

async fn merge<K>(client: &Client, namespace: &str, name: &str, patch: Value) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug + DeserializeOwned,
{
    let events: Api<K> = Api::namespaced(client.clone(), namespace);
    events.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Returns the same Event in the API group of the core. Its series has the same form in both.
fn of_core(event: Event) -> core::Event {
    core::Event {
        metadata: event.metadata,
        event_time: event.event_time,
        type_: event.type_,
        reason: event.reason,
        action: event.action,
        message: event.note,
        involved_object: event.regarding.unwrap_or_default(),
        related: event.related,
        reporting_component: event.reporting_controller,
        reporting_instance: event.reporting_instance,
        ..core::Event::default()
    }
}

fn id(object: Option<&ObjectReference>) -> String {
    let parts =
        object.map(|it| [&it.kind, &it.namespace, &it.name, &it.uid].map(|part| part.clone().unwrap_or_default()));
    parts.map(|parts| parts.join("/")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use parking_lot::Mutex;
    use prometheus::Opts;
    use serde_json::Value;

    use super::*;

    /// An API server that records requests. If `has_deleted` is set, a patch returns 404.
    #[derive(Clone, Default)]
    struct Server {
        requests: Arc<Mutex<Vec<(Method, Value)>>>,
        paths: Arc<Mutex<Vec<String>>>,
        has_deleted: Arc<Mutex<bool>>,
    }

    impl Server {
        fn publisher(&self) -> Publisher {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            });
            let counter = |name| IntCounterVec::new(Opts::new(name, name), &["label"]).unwrap();
            Publisher {
                client: Client::new(service, "default"),
                api: EventsApi::Events,
                instance: "replica".to_owned(),
                limits: RateLimits::new(Instant::now()),
                series: HashMap::new(),
                sent: counter("sent"),
                dropped: counter("dropped"),
                recent: RecentEvents::default(),
            }
        }

        async fn answer(&self, request: Request<Body>) -> Response<Body> {
            let method = request.method().clone();
            self.paths.lock().push(request.uri().path().to_owned());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let object: Value = serde_json::from_slice(&body).unwrap();
            self.requests.lock().push((method.clone(), object.clone()));
            let is_deleted = method == Method::PATCH && *self.has_deleted.lock();
            let (status, answer) = match is_deleted {
                true => (
                    StatusCode::NOT_FOUND,
                    json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}),
                ),
                false => (StatusCode::OK, json!({"metadata": object["metadata"]})),
            };
            Response::builder().status(status).body(Body::from(serde_json::to_vec(&answer).unwrap())).unwrap()
        }

        fn methods(&self) -> Vec<Method> {
            self.requests.lock().drain(..).map(|(method, _)| method).collect()
        }
    }

    fn notice(name: &str, note: &str) -> Notice {
        let regarding = ObjectReference {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some(name.to_owned()),
            ..ObjectReference::default()
        };
        Notice { reason: Reason::Conflicted, regarding, related: None, note: note.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_has_the_fields_that_kubectl_shows() {
        let server = Server::default();
        server.publisher().publish(notice("web", "one")).await.unwrap();
        let (method, event) = server.requests.lock().remove(0);
        assert_eq!(method, Method::POST);
        for (pointer, expected) in [
            ("/type", "Warning"),
            ("/reason", "Conflicted"),
            ("/action", "Reconcile"),
            ("/metadata/namespace", "ns"),
            ("/regarding/name", "web"),
            ("/note", "one"),
            ("/reportingController", "linkerd-operator"),
            ("/reportingInstance", "replica"),
        ] {
            assert_eq!(event.pointer(pointer), Some(&json!(expected)), "{pointer}");
        }
        assert!(event["eventTime"].is_string() && event["series"].is_null());
        assert!(event["metadata"]["name"].as_str().unwrap().starts_with("web."));
    }

    /// Linkerd's Role for its injector permits only this API.
    #[tokio::test(start_paused = true)]
    async fn in_place_of_linkerds_injector_events_are_those_of_the_core() {
        let server = Server::default();
        let mut publisher = server.publisher();
        publisher.api = EventsApi::Core;
        for _ in 0..2 {
            let injected = Notice { reason: Reason::Injected, ..notice("web", "one") };
            publisher.publish(injected).await.unwrap();
        }
        let paths = server.paths.lock().clone();
        assert_eq!(paths[0], "/api/v1/namespaces/ns/events");
        assert!(paths[1].starts_with("/api/v1/namespaces/ns/events/web."), "{paths:?}");
        let (_, event) = server.requests.lock().remove(0);
        for (pointer, expected) in [
            ("/type", "Normal"),
            ("/reason", "Injected"),
            ("/action", "Inject"),
            ("/involvedObject/name", "web"),
            ("/message", "one"),
            ("/reportingComponent", "linkerd-proxy-injector"),
            ("/reportingInstance", "replica"),
        ] {
            assert_eq!(event.pointer(pointer), Some(&json!(expected)), "{pointer}");
        }
        assert!(event["eventTime"].is_string());
        assert_eq!(server.methods(), [Method::PATCH]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_repeated_note_increments_the_count() {
        let server = Server::default();
        let mut publisher = server.publisher();
        publisher.publish(notice("web", "one")).await.unwrap();
        publisher.publish(notice("web", "one")).await.unwrap();
        publisher.publish(notice("other", "one")).await.unwrap();
        publisher.publish(notice("web", "one")).await.unwrap();
        let counts: Vec<Value> =
            server.requests.lock().iter().map(|(_, body)| body["series"]["count"].clone()).collect();
        assert_eq!(counts, [json!(null), json!(2), json!(null), json!(3)]);
        assert_eq!(server.methods(), [Method::POST, Method::PATCH, Method::POST, Method::PATCH]);
        publisher.publish(notice("web", "two")).await.unwrap();
        assert_eq!(server.methods(), [Method::POST], "the note differs");
        tokio::time::advance(SERIES_TTL).await;
        publisher.publish(notice("web", "two")).await.unwrap();
        assert_eq!(server.methods(), [Method::POST], "the series has expired");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_was_written_is_among_the_recent_ones() {
        let mut publisher = Server::default().publisher();
        publisher.write(notice("web", "one")).await.unwrap();
        let recent = publisher.recent.latest_first();
        let shown: Vec<_> = recent.iter().map(|it| (it.type_, it.reason, it.note.as_str())).collect();
        assert_eq!(shown, [("Warning", "Conflicted", "one")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_event_is_created_again() {
        let server = Server::default();
        let mut publisher = server.publisher();
        publisher.publish(notice("web", "one")).await.unwrap();
        *server.has_deleted.lock() = true;
        publisher.publish(notice("web", "one")).await.unwrap();
        assert_eq!(server.methods(), [Method::POST, Method::PATCH, Method::POST]);
    }
}
