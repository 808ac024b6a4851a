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
