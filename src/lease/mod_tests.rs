use std::{collections::HashMap, sync::Arc};

use http_body_util::BodyExt;
use kube::client::Body;
use parking_lot::Mutex;

use super::*;

fn settings() -> ElectionSettings {
    ElectionSettings {
        namespace: "linkerd".to_owned(),
        name: "linkerd-destination-endpoint-write",
        identity: "us".to_owned(),
        duration: Duration::from_secs(30),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    }
}

fn held_by(holder: &str, seconds: i32) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(seconds),
        ..LeaseSpec::default()
    }
}

#[test]
fn a_lease_is_taken_when_it_is_missing_released_or_expired_and_renewed_when_it_is_ours() {
    let seconds = Duration::from_secs;
    assert_eq!(decide(None, &settings()), ElectionStep::Create);
    assert_eq!(decide(Some((None, seconds(0))), &settings()), ElectionStep::TakeOver);
    assert_eq!(decide(Some((Some(&held_by("", 1)), seconds(0))), &settings()), ElectionStep::TakeOver);
    assert_eq!(decide(Some((Some(&held_by("us", 30)), seconds(99))), &settings()), ElectionStep::Renew);
    assert_eq!(decide(Some((Some(&held_by("them", 30)), seconds(29))), &settings()), ElectionStep::Wait);
    assert_eq!(decide(Some((Some(&held_by("them", 30)), seconds(30))), &settings()), ElectionStep::TakeOver);
}

#[test]
fn the_duration_in_the_record_counts_and_not_ours() {
    let seconds = Duration::from_secs;
    assert_eq!(decide(Some((Some(&held_by("them", 60)), seconds(31))), &settings()), ElectionStep::Wait);
    assert_eq!(decide(Some((Some(&held_by("them", 15)), seconds(15))), &settings()), ElectionStep::TakeOver);
    let unspecified = LeaseSpec { lease_duration_seconds: None, ..held_by("them", 0) };
    assert_eq!(decide(Some((Some(&unspecified), seconds(29))), &settings()), ElectionStep::Wait);
}

#[tokio::test(start_paused = true)]
async fn a_write_may_start_until_the_renew_deadline_and_must_end_before_the_lease_expires() {
    let (sender, receiver) = watch::channel(LeaderState::default());
    let leadership = Leadership(receiver);
    assert_eq!(leadership.write_deadline(), None);
    let renewed = Instant::now();
    let term =
        LeaderTerm { writes_until: renewed + settings().renew_deadline, deadline: renewed + Duration::from_secs(25) };
    sender.send_modify(|state| state.term = Some(term));
    tokio::time::advance(Duration::from_millis(9_999)).await;
    assert_eq!(leadership.write_deadline(), Some(renewed + Duration::from_secs(25)));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(leadership.write_deadline(), None);
}

/// An elector that sends no request.
fn elector() -> (Elector, Leadership) {
    let unused = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
    });
    let api = Api::default_namespaced(Client::new(unused, "linkerd"));
    let metrics = ElectionMetrics::register(&Registry::new()).unwrap();
    let (state, receiver) = watch::channel(LeaderState::default());
    let elector = Elector {
        settings: settings(),
        api,
        state,
        metrics,
        seen: None,
        stale: false,
        claimed: false,
        renewed: None,
        required: None,
    };
    (elector, Leadership(receiver))
}

#[tokio::test(start_paused = true)]
async fn a_renewal_continues_the_term_unless_writes_had_stopped() {
    let (mut elector, mut leadership) = elector();
    elector.win(Instant::now());
    assert_eq!(leadership.next_term(0).await, 1);
    tokio::time::advance(Duration::from_secs(9)).await;
    elector.win(Instant::now());
    let next = timeout(Duration::from_millis(1), leadership.next_term(1)).await;
    assert!(next.is_err(), "the renewal started a new term: {next:?}");
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(leadership.write_deadline(), None);
    elector.win(Instant::now());
    assert_eq!(leadership.next_term(1).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_term_ends_with_the_term_of_the_required_election() {
    let (mut elector, leadership) = elector();
    let (former, required) = watch::channel(LeaderState::default());
    elector.required = Some(Leadership(required));
    elector.win(Instant::now());
    assert_eq!(leadership.term(), None, "it leads without the required Lease");

    let start = Instant::now();
    let until = |seconds| start + Duration::from_secs(seconds);
    former.send_modify(|state| state.term = Some(LeaderTerm { writes_until: until(4), deadline: until(20) }));
    elector.win(start);
    assert_eq!(leadership.write_deadline(), Some(until(20)));
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(leadership.write_deadline(), None);
}

const FORMER: &str = "linkerd-operator-system";
const PRESENT: &str = "linkerd";

/// An API server with one Lease in each of two namespaces. A killed leader holds both.
#[derive(Clone)]
struct LeaseServer {
    started: Instant,
    leases: Arc<Mutex<HashMap<String, Lease>>>,
    /// The namespaces of the writes, with their times.
    writes: Arc<Mutex<Vec<(String, Duration)>>>,
}

impl LeaseServer {
    fn new() -> Self {
        let server = Self { started: Instant::now(), leases: Arc::default(), writes: Arc::default() };
        for namespace in [FORMER, PRESENT] {
            server.renew_for_killed_leader(namespace);
        }
        server
    }

    /// Changes the record, as a renewal by the killed leader that was under way.
    fn renew_for_killed_leader(&self, namespace: &str) {
        let after = i64::try_from(self.started.elapsed().as_secs()).unwrap();
        let renewed = MicroTime(Timestamp::from_second(after).unwrap());
        let spec = LeaseSpec { renew_time: Some(renewed), ..held_by("killed", 30) };
        let lease = Lease { spec: Some(spec), ..Lease::default() };
        self.leases.lock().insert(namespace.to_owned(), lease);
    }

    async fn serve(&self, request: http::Request<Body>) -> http::Response<Body> {
        let (parts, body) = request.into_parts();
        let namespace = parts.uri.path().split('/').nth(5).unwrap().to_owned();
        if parts.method != http::Method::GET {
            let body = body.collect().await.unwrap().to_bytes();
            self.leases.lock().insert(namespace.clone(), serde_json::from_slice(&body).unwrap());
            self.writes.lock().push((namespace.clone(), self.started.elapsed()));
        }
        let lease = serde_json::to_vec(&self.leases.lock()[&namespace]).unwrap();
        http::Response::new(Body::from(lease))
    }

    /// Starts the two elections of a replica. Returns the leadership of the second one.
    fn replica(&self, tasks: &mut crate::tasks::Tasks) -> Leadership {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, std::convert::Infallible>(server.serve(request).await) }
        });
        let client = Client::new(service, "default");
        let mut elect = |namespace: &str, required| {
            let settings = ElectionSettings { namespace: namespace.to_owned(), ..settings() };
            let metrics = ElectionMetrics::register(&Registry::new()).unwrap();
            spawn(&client, settings, required, &metrics, CancellationToken::new(), tasks)
        };
        let former = elect(FORMER, None);
        elect(PRESENT, Some(former))
    }

    /// Returns when a Lease was first written, in whole seconds.
    fn taken(&self, namespace: &str) -> Option<u64> {
        self.writes.lock().iter().find(|(it, _)| it == namespace).map(|(_, after)| after.as_secs())
    }
}

#[tokio::test(start_paused = true)]
async fn both_leases_of_a_killed_leader_are_taken_over_after_the_duration_of_one() {
    let server = LeaseServer::new();
    let mut tasks = crate::tasks::Tasks::default();
    let leadership = server.replica(&mut tasks);
    tokio::time::sleep(Duration::from_millis(29_900)).await;
    assert_eq!(server.writes.lock().len(), 0, "a Lease that may still be renewed was written");
    assert_eq!(leadership.holder().as_deref(), Some("killed"), "the Lease is read before it can be acquired");
    timeout(Duration::from_secs(3), leadership.held()).await.expect("the second Lease took a duration of its own");
    let order: Vec<_> = server.writes.lock().iter().map(|(namespace, _)| namespace.clone()).take(2).collect();
    assert_eq!(order, [FORMER, PRESENT]);
}

#[tokio::test(start_paused = true)]
async fn the_second_lease_is_not_written_before_it_has_expired_and_the_first_one_is_held() {
    let server = LeaseServer::new();
    let mut tasks = crate::tasks::Tasks::default();
    let leadership = server.replica(&mut tasks);
    // The second Lease has expired by now, and the first one has not.
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        server.renew_for_killed_leader(FORMER);
    }
    assert_eq!((server.taken(FORMER), server.taken(PRESENT)), (None, None));
    // Now it is the other way around.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        server.renew_for_killed_leader(PRESENT);
    }
    leadership.held().await;
    let (former, present) = (server.taken(FORMER).unwrap(), server.taken(PRESENT).unwrap());
    assert!((80..83).contains(&former), "{former}");
    assert!((100..103).contains(&present), "{present}");
}
