//! Failures of watches, incomplete lists, and objects that cannot be read.

use std::convert::Infallible;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, from_value, json};
use tokio::sync::{Mutex, mpsc};
use tower::Layer;

use super::{status::ABSENCE_CONFIRMED, *};
use crate::{
    cluster::kinds::{
        endpoint_slice::Slice,
        pod::{Pod, PodObject},
        server::Server,
    },
    contain,
    response_limit::ResponseLimitLayer,
    testing::LoggedLines,
};

/// Reads Pods. The field is whether it blocks readiness.
struct Reader(bool);

impl Observer for Reader {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Pod]
    }

    fn blocks_readiness(&self) -> bool {
        self.0
    }

    fn changed(&self, _: &State, _: &[Change], _: Instant) {}
}

#[test]
fn a_kind_that_is_not_served_is_distinguished_from_one_that_cannot_be_reached() {
    let status = |code, reason: &str| kube::core::Status::failure("404 page not found", reason).with_code(code).boxed();
    let failure = |status| WatchFailure::of(&watcher::Error::InitialListFailed(kube::Error::Api(status)));
    assert_eq!(failure(status(404, "Failed to parse error data")), WatchFailure::KindMissing);
    assert_eq!(failure(status(404, "NotFound")), WatchFailure::KindMissing);
    assert!(matches!(failure(status(403, "Forbidden")), WatchFailure::Denied(_)));
    assert!(matches!(failure(status(503, "ServiceUnavailable")), WatchFailure::Unreachable(_)));
}

#[test]
fn a_failure_is_one_line_that_says_what_the_api_server_answered() {
    let failure = |code, message: &str| {
        let status = kube::core::Status::failure(message, "").with_code(code).boxed();
        WatchFailure::of(&watcher::Error::WatchStartFailed(kube::Error::Api(status))).to_string()
    };
    assert_eq!(failure(429, ""), "the API server answers with status 429");
    assert_eq!(failure(401, "Unauthorized"), "the credentials are refused: Unauthorized");
    let forged = failure(403, "\u{1b}[31mno\u{7}\nready\nwaiting: \u{202e}x");
    assert_eq!(forged, "\\u001b[31mno\\u0007\\nready\\nwaiting: \\u202ex");
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_with_failures_and_reset_after_two_minutes_without_one() {
    let mut failures = Failures::default();
    let pauses: Vec<f64> = (0..8).map(|_| failures.pause().as_secs_f64()).collect();
    assert!(pauses[0] <= 0.2 && (9.0..=10.0).contains(&pauses[7]), "{pauses:?}");
    tokio::time::advance(Duration::from_secs(121)).await;
    assert!(failures.pause() <= Duration::from_millis(200));
}

/// The watch of a kind whose requests a test answers. Except in tests of streams, the API server has refused to send the
/// list in a stream.
struct Scripted {
    responses: mpsc::UnboundedSender<Response<Body>>,
    /// The queries of the requests.
    queries: Arc<parking_lot::Mutex<Vec<String>>>,
    status: channel::Receiver<WatchStatus>,
    _tasks: Tasks,
}

// === impl Scripted ===

impl Scripted {
    async fn start<T: Watched>() -> Self {
        Self::start_with::<T>(MemoryBudget::UNLIMITED).await
    }

    async fn start_with<T: Watched>(memory: MemoryBudget) -> Self {
        Self::start_in::<T>(WatchContext { memory, ..context() }).await
    }

    async fn start_in<T: Watched>(context: WatchContext) -> Self {
        let watch = Self::start_streaming_in::<T>(context);
        assert!(watch.answers(422, &refusal(422)).await.failure.is_none(), "no failure: it lists pages at once");
        let refused = watch.queries.lock().remove(0);
        assert!(refused.contains("sendInitialEvents=true"), "{refused}");
        watch
    }

    fn start_streaming<T: Watched>(memory: MemoryBudget) -> Self {
        Self::start_streaming_in::<T>(WatchContext { memory, ..context() })
    }

    fn start_streaming_in<T: Watched>(context: WatchContext) -> Self {
        let (responses, received) = mpsc::unbounded_channel();
        let received = Arc::new(Mutex::new(received));
        // A request waits for its response for as long as the test takes.
        let queries = Arc::<parking_lot::Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&queries);
        let service = tower::service_fn(move |request: Request<Body>| {
            let received = Arc::clone(&received);
            seen.lock().push(request.uri().query().unwrap_or_default().to_owned());
            async move {
                match received.lock().await.recv().await {
                    Some(response) => Ok::<_, Infallible>(response),
                    None => std::future::pending().await,
                }
            }
        });
        let mut tasks = Tasks::default();
        let clients = Clients::always(&Client::new(ResponseLimitLayer::new().layer(service), "default"));
        let scope = WatchScope { namespace: Some("ns".into()), ..WatchScope::default() };
        let status = Spawn { context, clients, scope, tasks: &mut tasks }.visit::<T>();
        Self { responses, queries, status, _tasks: tasks }
    }

    /// Answers the next request, and waits until the watch has sent another one.
    async fn answers(&self, code: u16, body: &Value) -> WatchStatus {
        self.answers_with(code, Body::from(body.to_string().into_bytes())).await
    }

    async fn answers_with(&self, code: u16, body: Body) -> WatchStatus {
        let response = Response::builder().status(code).body(body).unwrap();
        self.responses.send(response).unwrap();
        sleep(Duration::from_millis(500)).await;
        self.status.borrow().clone()
    }
}

/// The response to a list of slices; another page follows if there is a token.
fn page(slices: &[&str], token: &str) -> Value {
    let items: Vec<_> = slices
        .iter()
        .map(|name| json!({"metadata": {"name": name, "namespace": "ns"}, "addressType": "IPv4", "endpoints": []}))
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
        "metadata": {"resourceVersion": "7", "continue": token}, "items": items})
}

fn refusal(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "", "reason": "", "code": code})
}

#[tokio::test(start_paused = true)]
async fn every_log_line_of_a_watch_of_another_cluster_names_the_cluster_and_the_namespace() {
    for (cluster, named) in [(Some("east".into()), true), (None, false)] {
        let log = LoggedLines::record();
        let watch = Scripted::start_in::<Slice>(WatchContext { cluster, ..context() }).await;
        let mut unusable = page(&["a"], "");
        unusable["items"][0]["metadata"]["labels"] = json!({"kubernetes.io/service-name": "web"});
        unusable["items"][0]["endpoints"] = json!([{"addresses": ["not an address"]}]);
        assert!(watch.answers(200, &unusable).await.is_followed());
        watch.answers(503, &refusal(503)).await;
        watch.answers(410, &refusal(410)).await;
        watch.answers(200, &page(&["a"], "")).await;
        for text in [
            "listing in another way",
            "ignoring unusable parts of an object",
            "completed the first list",
            "list or watch failed, retrying",
            "watch recovered",
        ] {
            let lines = log.with(text);
            assert!(!lines.is_empty(), "{text}");
            for line in lines {
                let names = line.contains("cluster=\"east\"") && line.contains("namespace=\"ns\"");
                assert_eq!(names, named, "{line}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_followed_again_only_after_its_last_page() {
    let watch = Scripted::start::<Slice>().await;
    assert!(watch.answers(200, &page(&["a"], "")).await.is_followed());
    // The start of the watch fails, and the version of the list has expired.
    assert!(!watch.answers(503, &refusal(503)).await.is_followed());
    assert!(!watch.answers(410, &refusal(410)).await.is_followed());
    assert!(!watch.answers(200, &page(&["a"], "next")).await.is_followed(), "followed after the first page");
    assert!(watch.status.borrow().failing_for().is_some(), "not stale after the first page");
    assert!(watch.answers(200, &page(&["b"], "")).await.is_followed());
    assert!(watch.status.borrow().failing_for().is_none());
}

/// The events of a list in a stream.
fn stream(slices: &[&str], is_complete: bool) -> Body {
    let object = |name: &str| json!({"metadata": {"name": name, "namespace": "ns", "resourceVersion": "6"}, "addressType": "IPv4", "endpoints": []});
    let metadata = json!({"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}});
    let end = json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata});
    let listed = slices.iter().map(|name| ("ADDED", object(name)));
    let events = listed.chain(is_complete.then_some(("BOOKMARK", end)));
    // As the API server writes it: the type comes first.
    let lines = events.map(|(of, object)| format!("{{\"type\": \"{of}\", \"object\": {object}}}\n"));
    let lines: Vec<String> = lines.collect();
    Body::from(lines.concat().into_bytes())
}

#[tokio::test(start_paused = true)]
async fn a_list_in_a_stream_is_complete_at_its_bookmark_and_the_watch_resumes_from_there() {
    let watch = Scripted::start_streaming::<Slice>(MemoryBudget::UNLIMITED);
    assert!(watch.answers_with(200, stream(&["a", "b"], true)).await.is_followed());
    let queries = watch.queries.lock().clone();
    assert!(queries[1].ends_with("resourceVersion=7") && !queries[1].contains("sendInitialEvents"), "{queries:?}");
    // The history has expired: everything is listed again, in a stream.
    assert!(!watch.answers(410, &refusal(410)).await.is_followed());
    assert!(watch.queries.lock()[2].contains("sendInitialEvents=true"), "{:?}", watch.queries.lock());
    assert!(watch.answers_with(200, stream(&["a"], true)).await.is_followed());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_the_api_server_does_not_complete_in_a_stream_is_repeated_in_pages() {
    let watch = Scripted::start_streaming::<Slice>(MemoryBudget::UNLIMITED);
    let status = watch.answers_with(200, stream(&["a"], false)).await;
    assert!(!status.synced && status.failure.is_none(), "{status:?}");
    // kube has requested another stream before it is known that the first has ended.
    watch.answers_with(200, stream(&[], false)).await;
    assert!(watch.queries.lock().last().unwrap().contains("limit=250"), "{:?}", watch.queries.lock());
    assert!(watch.answers(200, &page(&["a"], "")).await.is_followed());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_fit_into_the_memory_is_a_failure_and_is_repeated_after_a_minute() {
    let watch = Scripted::start_with::<Slice>(MemoryBudget::EXHAUSTED).await;
    let status = watch.answers(200, &page(&["a"], "")).await;
    assert_eq!((status.failure, status.synced), (Some(WatchFailure::NoMemory), false));
    let requests = || watch.queries.lock().len();
    sleep(Duration::from_secs(59)).await;
    assert_eq!(requests(), 1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(requests(), 2);
    // An empty list fits.
    assert!(watch.answers(200, &page(&[], "")).await.is_followed());
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_pages_are_too_large_is_repeated_with_smaller_pages() {
    let watch = Scripted::start::<Slice>().await;
    let mut large = page(&["a"], "");
    large["items"][0]["metadata"]["annotations"] = json!({ "large": "x".repeat(9 * 1024 * 1024) });
    sleep(Duration::from_millis(1)).await;
    for objects in ["limit=250", "limit=125", "limit=62"] {
        assert!(watch.queries.lock().last().unwrap().contains(objects), "{:?}", watch.queries.lock());
        assert!(watch.answers(200, &large).await.failure.is_none(), "no failure: it is repeated at once");
    }
    assert!(watch.answers(200, &page(&["a"], "")).await.is_followed());
    // The history has expired, so the kind is listed again.
    watch.answers(410, &refusal(410)).await;
    assert!(watch.queries.lock().last().unwrap().contains("limit=31"), "{:?}", watch.queries.lock());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_too_large_for_any_page_is_a_failure() {
    let watch = Scripted::start::<Slice>().await;
    let mut large = page(&["a"], "");
    large["items"][0]["metadata"]["annotations"] = json!({ "large": "x".repeat(33 * 1024 * 1024) });
    for _ in 0..7 {
        assert!(watch.answers(200, &large).await.failure.is_none());
    }
    let failure = watch.answers(200, &large).await.failure;
    assert!(format!("{failure:?}").contains("a page of the list has more than"), "{failure:?}");
}

#[tokio::test(start_paused = true)]
async fn one_404_at_the_start_does_not_mean_that_an_optional_kind_is_absent() {
    let watch = Scripted::start::<Server>().await;
    let status = watch.answers(404, &refusal(404)).await;
    assert!(!status.is_known(), "absent after one 404");
    let servers = json!({"apiVersion": "policy.linkerd.io/v1beta3", "kind": "ServerList",
        "metadata": {"resourceVersion": "7"}, "items": []});
    let status = watch.answers(200, &servers).await;
    assert!(status.is_followed() && !status.absent, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_404_that_lasts_means_that_an_optional_kind_is_absent() {
    let mut status = WatchStatus::new(Kind::Server, true);
    let mut is_known_after = async |millis, failure| {
        sleep(Duration::from_millis(millis)).await;
        status.failed(failure);
        status.is_known()
    };
    assert!(!is_known_after(0, WatchFailure::KindMissing).await);
    assert!(!is_known_after(900, WatchFailure::KindMissing).await);
    assert!(!is_known_after(900, WatchFailure::Unreachable("503".to_owned())).await, "the 404 did not last");
    assert!(!is_known_after(0, WatchFailure::KindMissing).await);
    assert!(is_known_after(1_000, WatchFailure::KindMissing).await);
    assert!(is_known_after(0, WatchFailure::Unreachable("503".to_owned())).await, "an outage does not install a CRD");
}

#[tokio::test(start_paused = true)]
async fn only_an_optional_kind_is_known_to_be_absent() {
    for (kind, known) in [
        (Kind::Server, true),
        (Kind::ExternalWorkload, true),
        (Kind::Service, false),
        (Kind::EndpointSlice, false),
        (Kind::Pod, false),
        (Kind::Node, false),
        (Kind::ReplicaSet, false),
        (Kind::Job, false),
    ] {
        let mut status = WatchStatus::new(kind, true);
        status.failed(WatchFailure::KindMissing);
        tokio::time::advance(ABSENCE_CONFIRMED).await;
        status.failed(WatchFailure::KindMissing);
        assert_eq!(status.is_known(), known, "{kind:?}");
        assert_eq!(status.problem().map(|problem| problem.blocks_readiness), Some(!known), "{kind:?}");
    }
}

#[test]
fn a_kind_blocks_readiness_only_if_one_of_its_observers_does() {
    for (observers, blocks) in [(&[][..], false), (&[false], false), (&[true], true), (&[false, true], true)] {
        let observers = observers.iter().map(|blocks| Arc::new(Reader(*blocks)) as Arc<dyn Observer>).collect();
        let context = WatchContext { observers, ..context() };
        let mut status = WatchStatus::new(Kind::Pod, context.blocks_readiness());
        status.failed(WatchFailure::Denied("no".to_owned()));
        assert_eq!(status.problem().map(|problem| problem.blocks_readiness), Some(blocks));
    }
}

fn context() -> WatchContext {
    let state = Arc::<RwLock<State>>::default();
    let metrics = WatchMetrics::register(&prometheus::Registry::new()).unwrap();
    let memory = MemoryBudget::UNLIMITED;
    WatchContext { cluster: None, state, observers: Arc::new([]), relist: Arc::default(), metrics, memory }
}

/// A kind whose projection panics.
struct Bomb;

impl Projected for Bomb {
    type Wire = PodObject;
    fn project(_: Self::Wire, _: &mut Problems) -> Self {
        panic!("out of bounds")
    }
}

#[test]
fn an_object_that_causes_a_panic_is_counted_as_undecodable() {
    let context = context();
    let object = serde_json::from_str(r#"{"metadata": {"name": "a", "namespace": "ns"}}"#).unwrap();
    assert!(context.project::<Bomb>(Kind::Pod, object, &mut WatchMemory::default()).is_none());
    assert_eq!(context.metrics.undecodable.with_label_values(&["pods"]).get(), 1);
}

/// Panics at a change of one Pod, and notes the names of the others.
#[derive(Default)]
struct Fragile(parking_lot::Mutex<Vec<String>>);

impl Observer for Fragile {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Pod]
    }

    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, _: &State, changes: &[Change], _: Instant) {
        let names: Vec<String> = changes.iter().map(|change| change.key().name.to_string()).collect();
        assert!(!names.contains(&"bad".to_owned()));
        self.0.lock().extend(names);
    }
}

#[test]
fn a_panic_of_an_observer_costs_one_change_and_no_other_observer() {
    let (fragile, other) = (Arc::new(Fragile::default()), Arc::new(Fragile::default()));
    let observers: [Arc<dyn Observer>; 2] = [Arc::clone(&fragile) as _, Arc::clone(&other) as _];
    let context = WatchContext { observers: Arc::new(observers), ..context() };
    let (mut relist, mut memory) = (Relist::<Pod>::default(), WatchMemory::default());
    let pod = |name: &str| from_value(json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap();
    let listed = ["a", "bad", "b"].map(|name| Event::InitApply(pod(name)));
    for event in [Event::Init].into_iter().chain(listed).chain([Event::InitDone, Event::Apply(pod("c"))]) {
        context.apply::<Pod>(event, &mut relist, &mut memory);
    }
    for observer in [fragile, other] {
        assert_eq!(*observer.0.lock(), ["a", "b", "c"]);
    }
    assert_eq!(context.state.read().pods.len(), 4, "the state has all objects");
}

#[test]
fn an_object_that_causes_a_panic_is_left_out_and_the_watch_goes_on() {
    let (context, mut relist, mut memory) = (context(), Relist::<Slice>::default(), WatchMemory::default());
    context.apply::<Slice>(Event::Init, &mut relist, &mut memory);
    for name in ["a", "bad", "b"] {
        let object = slice(name, "1", &["10.0.0.1"]);
        if name == "bad" {
            contain::testing::panic_in_next(Work::Reading);
        }
        context.apply::<Slice>(Event::InitApply(object), &mut relist, &mut memory);
    }
    context.apply::<Slice>(Event::InitDone, &mut relist, &mut memory);
    let has = |name: &str| context.state.read().slices.find("ns", name).is_some();
    assert_eq!(["a", "bad", "b"].map(has), [true, false, true]);
    context.apply::<Slice>(Event::Apply(slice("bad", "2", &["10.0.0.1"])), &mut relist, &mut memory);
    assert!(has("bad"), "a later version is read again");
}

fn slice(name: &str, version: &str, addresses: &[&str]) -> Guarded<<Slice as Projected>::Wire> {
    let metadata = json!({"name": name, "namespace": "ns", "resourceVersion": version,
        "labels": {"kubernetes.io/service-name": "web"}});
    from_value(json!({"metadata": metadata, "ports": [], "endpoints": [{"addresses": addresses}]})).unwrap()
}

#[test]
fn an_incomplete_list_is_not_applied() {
    let (context, mut relist, mut memory) = (context(), Relist::<Slice>::default(), WatchMemory::default());
    let web = NamespacedName::new("ns", "web");
    let addresses = || -> Vec<String> {
        let state = context.state.read();
        let slices = state.slices.ready_of_service(&web);
        slices.flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.addresses[0].to_string()).collect()
    };
    let mut happens = |event| context.apply::<Slice>(event, &mut relist, &mut memory);
    happens(Event::Apply(slice("a", "1", &["10.0.0.1"])));
    // The endpoint moved to the second slice while the watch was interrupted.
    happens(Event::Init);
    happens(Event::InitApply(slice("a", "3", &[])));
    assert_eq!(addresses(), ["10.0.0.1"]);
    // The list failed, and starts again.
    happens(Event::Init);
    happens(Event::InitApply(slice("a", "3", &[])));
    happens(Event::InitApply(slice("b", "2", &["10.0.0.1"])));
    assert_eq!(addresses(), ["10.0.0.1"]);
    happens(Event::InitDone);
    assert_eq!(addresses(), ["10.0.0.1"]);
    assert_eq!(context.state.read().slices.len(), 2);
}
