//! What a watch makes of failures, and of objects that make no sense.

use super::*;

#[test]
fn a_kind_that_the_api_server_does_not_serve_is_told_from_one_that_cannot_be_reached() {
    let status = |code, reason: &str| kube::core::Status::failure("404 page not found", reason).with_code(code).boxed();
    let failure = |status| Failure::of(&watcher::Error::InitialListFailed(kube::Error::Api(status)));
    assert_eq!(failure(status(404, "Failed to parse error data")), Failure::KindMissing);
    assert_eq!(failure(status(404, "NotFound")), Failure::KindMissing);
    assert!(matches!(failure(status(403, "Forbidden")), Failure::Denied(_)));
    assert!(matches!(failure(status(503, "ServiceUnavailable")), Failure::Unreachable(_)));
}

#[tokio::test(start_paused = true)]
async fn failures_slow_down_and_two_quiet_minutes_forgive_them() {
    let mut failures = Failures::default();
    let pauses: Vec<f64> = (0..8).map(|_| failures.pause().as_secs_f64()).collect();
    assert!(pauses[0] <= 0.2 && (9.0..=10.0).contains(&pauses[7]), "{pauses:?}");
    tokio::time::advance(Duration::from_secs(121)).await;
    assert!(failures.pause() <= Duration::from_millis(200));
}

#[test]
fn only_a_kind_that_clusters_may_lack_is_known_to_be_absent() {
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
        let mut status = Status { kind, synced: false, absent: false, failure: None };
        failed(&mut status, Failure::KindMissing);
        assert_eq!(status.is_known(), known, "{kind:?}");
        assert_eq!(status.problem().map(|problem| problem.blocks_readiness), Some(!known), "{kind:?}");
    }
}

fn context() -> Context {
    let state = Arc::<RwLock<State>>::default();
    let metrics = Metrics::register(&prometheus::Registry::new(), &state).unwrap();
    Context { state, readers: Readers::default(), relist: Arc::default(), metrics }
}

/// A kind whose objects cannot be reduced.
struct Bomb;

impl Projected for Bomb {
    type Wire = crate::cluster::pod::PodObject;
    const KIND: Kind = Kind::Pod;

    fn project(_: Self::Wire, _: &mut Problems) -> Self {
        panic!("out of bounds")
    }

    fn apply(self, _: &mut State) -> Affected {
        Affected::default()
    }

    fn remove(_: &NamespacedName, _: &mut State) -> Affected {
        Affected::default()
    }

    fn keys(_: &State) -> Vec<NamespacedName> {
        Vec::new()
    }
}

#[test]
fn an_object_that_makes_us_panic_costs_only_itself() {
    let context = context();
    let object = serde_json::from_str(r#"{"metadata": {"name": "a", "namespace": "ns"}}"#).unwrap();
    context.apply::<Bomb>(Event::Apply(object), &mut Relist::default(), &mut Memory::default());
    assert_eq!(context.metrics.undecodable.with_label_values(&["pods"]).get(), 1);
}

#[test]
fn a_list_in_which_everything_concerns_one_service_remembers_it_once() {
    use serde_json::{Value, from_value, json};

    use crate::cluster::{pod::Pod, server::Server, slices::Slice};

    fn apply<T: Projected>(context: &Context, relist: &mut Relist, object: Value) {
        context.apply::<T>(Event::InitApply(from_value(object).unwrap()), relist, &mut Memory::default());
    }
    let context = context();
    let mut relist = Relist::default();
    let endpoints: Vec<Value> = (0..5)
        .map(|n| json!({"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": format!("web-{n}")}}))
        .collect();
    apply::<Slice>(
        &context,
        &mut relist,
        json!({"endpoints": endpoints, "metadata":
        {"name": "a", "namespace": "ns", "labels": {"kubernetes.io/service-name": "web"}}}),
    );
    for n in 0..5 {
        apply::<Pod>(&context, &mut relist, json!({"metadata": {"name": format!("web-{n}"), "namespace": "ns"}}));
    }
    let mut relist = Relist::default();
    for n in 0..5 {
        let spec = json!({"podSelector": {}, "port": n, "proxyProtocol": "opaque"});
        apply::<Server>(
            &context,
            &mut relist,
            json!({"metadata": {"name": format!("{n}"), "namespace": "ns"}, "spec": spec}),
        );
    }
    assert_eq!(relist.affected.discovered.len(), 1);
}
