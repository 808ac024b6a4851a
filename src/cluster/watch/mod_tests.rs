//! Failures of watches, incomplete lists, and objects that cannot be read.

use serde_json::{from_value, json};

use super::*;
use crate::cluster::kinds::{endpoint_slice::Slice, pod::PodObject};

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

#[tokio::test(start_paused = true)]
async fn pauses_grow_with_failures_and_reset_after_two_minutes_without_one() {
    let mut failures = Failures::default();
    let pauses: Vec<f64> = (0..8).map(|_| failures.pause().as_secs_f64()).collect();
    assert!(pauses[0] <= 0.2 && (9.0..=10.0).contains(&pauses[7]), "{pauses:?}");
    tokio::time::advance(Duration::from_secs(121)).await;
    assert!(failures.pause() <= Duration::from_millis(200));
}

#[test]
fn only_an_optional_kind_is_known_to_be_absent() {
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
    let metrics = WatchMetrics::register(&prometheus::Registry::new(), &state).unwrap();
    WatchContext { state, observers: Arc::new([]), relist: Arc::default(), metrics }
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
