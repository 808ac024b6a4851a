use serde_json::json;

use super::*;
use crate::{
    cluster::testing::pod,
    x509::testing::{TestCa, der, now},
};

fn chain(ca: &TestCa) -> Vec<ChainCertificate> {
    vec![ChainCertificate::parse(&der(&ca.pem)).unwrap()]
}

fn uid(number: u8) -> Uid {
    Uid::new(&format!("00000000-0000-0000-0000-0000000000{number:02}")).unwrap()
}

fn proxy(number: u8) -> (Uid, Arc<Pod>) {
    (uid(number), Arc::new(pod(&json!({}), &json!({})).0))
}

fn leaf(ca: &TestCa, issued: Timestamp, hours: i64) -> ObservedLeaf {
    let not_after = issued + SignedDuration::from_hours(hours);
    ObservedLeaf { not_before: issued, not_after, chain: chain(ca) }
}

fn app() -> Arc<str> {
    "app".into()
}

fn later(minutes: i64) -> Timestamp {
    now() + SignedDuration::from_mins(minutes)
}

#[test]
fn when_all_are_asked_again_new_pods_are_not_waited_for() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("root"));
    for (uid, _) in book.due(&[proxy(1), proxy(2)], 0, 9, now()) {
        book.note((&uid, &app()), Some(leaf(&ca, now(), 24)), book.change(), now());
    }
    book.due(&[proxy(1), proxy(2)], 0, 9, now());
    assert!(book.is_complete());
    book.ask_all(now());
    assert!(!book.is_complete());
    assert_eq!(book.due(&[proxy(1), proxy(2), proxy(3)], 0, 2, now()).len(), 2);
    assert!(!book.is_complete(), "nothing is concluded before each was asked again");
    for number in [1, 2] {
        book.note((&uid(number), &app()), None, book.change(), now());
    }
    book.due(&[proxy(1), proxy(2), proxy(3)], 0, 0, now());
    assert!(book.is_complete(), "the third is new, and not observed");
    assert_eq!(book.seen(now()).unobserved, 3);
}

fn numbers(proxies: &[(Uid, Arc<Pod>)]) -> Vec<u8> {
    proxies.iter().map(|(it, _)| (1..10).find(|number| uid(*number) == *it).unwrap()).collect()
}

#[test]
fn a_proxy_is_asked_at_once_and_again_when_it_must_have_renewed_its_certificate() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    let running = || vec![proxy(1), proxy(2)];
    assert_eq!(numbers(&book.due(&running(), 0, 1, now())), [1], "no more than the limit");
    assert!(book.note((&uid(1), &app()), Some(leaf(&ca, now(), 10)), book.change(), now()));
    assert!(!book.is_complete());
    assert_eq!(numbers(&book.due(&running(), 0, 9, now())), [2]);
    assert!(book.note((&uid(2), &app()), Some(leaf(&ca, now(), 100)), book.change(), now()));
    assert_eq!((book.due(&running(), 0, 9, now()).len(), book.is_complete()), (0, true));
    // 70 % of ten hours, and a minute.
    assert!(book.due(&running(), 0, 9, later(420)).is_empty());
    assert_eq!(numbers(&book.due(&running(), 0, 9, later(421))), [1]);
    assert!(
        !book.note((&uid(1), &app()), Some(leaf(&ca, now(), 10)), book.change(), later(421)),
        "it is the same chain"
    );
    assert!(book.due(&running(), 0, 9, later(421)).is_empty());
    assert_eq!(numbers(&book.due(&running(), 0, 9, later(422))), [1], "it had not renewed");
    // A certificate of 100 s.
    let short = ObservedLeaf { not_after: now() + SignedDuration::from_secs(100), ..leaf(&ca, now(), 1) };
    book.note((&uid(1), &app()), Some(short), book.change(), now());
    let after = |seconds: i64| now() + SignedDuration::from_secs(seconds);
    assert_eq!([79, 80].map(|seconds| book.due(&running(), 0, 9, after(seconds)).len()), [0, 1]);
    assert!(!book.note((&uid(1), &app()), Some(leaf(&ca, now(), 1)), book.change(), after(99)), "it is the same chain");
    assert!(
        book.note((&uid(1), &app()), Some(leaf(&ca, now(), 2)), book.change(), after(3601)),
        "the one before has ended"
    );
    book.note((&uid(1), &app()), None, book.change(), later(24 * 60 - 1));
    // At the latest after a day.
    assert_eq!(numbers(&book.due(&running(), 0, 9, later(24 * 60 + 1))), [1, 2]);
}

#[test]
fn a_proxy_that_does_not_answer_is_asked_less_and_less_and_is_not_observed() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    assert!(book.note((&uid(1), &app()), None, book.change(), now()), "a proxy that is not observed is news");
    assert_eq!(book.seen(now()).unobserved, 1);
    let (mut at, mut delays) = (now(), Vec::new());
    for _ in 0..7 {
        let after = |minutes: i64| at + SignedDuration::from_mins(minutes);
        let minutes = (1..).find(|minutes| !book.due(&[proxy(1)], 0, 9, after(*minutes)).is_empty()).unwrap();
        delays.push(minutes);
        at = after(minutes);
        assert!(!book.note((&uid(1), &app()), None, book.change(), at));
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 32]);
    assert!(book.note((&uid(1), &app()), Some(leaf(&ca, at, 10)), book.change(), at));
    assert_eq!((book.seen(at).unobserved, book.seen(at).chains()), (0, vec![(&chain(&ca)[..], 1)]));
    let ended = book.seen(at + SignedDuration::from_hours(10));
    assert_eq!(
        (ended.unobserved, ended.chains()),
        (1, vec![]),
        "it was renewed, and it is not known from which issuer"
    );
    // It is asked because it must have renewed its certificate.
    assert!(book.note((&uid(1), &app()), None, book.change(), at));
    assert_eq!((book.seen(at).unobserved, book.seen(at).chains()), (1, vec![]));
}

#[test]
fn what_was_seen_before_a_change_is_not_believed_after_it() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    book.due(&[proxy(1)], 0, 9, now());
    book.note((&uid(1), &app()), Some(leaf(&ca, now(), 10)), book.change(), now());
    let basis = |generation: i64, issuer: &str| LeafBasis {
        uid: "uid".into(),
        generation,
        trust_domain: "cluster.local".to_owned(),
        bundle: None,
        issuer: Some(issuer.to_owned()),
    };
    let (asked, unchanged) = (NextQuestion::Now, NextQuestion::OnChange);
    assert_eq!([(); 2].map(|()| book.ask_again(basis(1, "a"), now())), [unchanged; 2]);
    assert!(book.due(&[proxy(1)], 0, 9, now()).is_empty());
    let minute = NextQuestion::After(Duration::from_secs(60));
    assert_eq!(book.ask_again(basis(1, "b"), now()), minute, "for an issuer at most once a minute");
    assert_eq!([1, 2].map(|minutes| book.ask_again(basis(1, "b"), later(minutes))), [asked, unchanged]);
    let later_on = book.ask_again(basis(1, "a"), later(9));
    assert_eq!(later_on, unchanged, "before each proxy was asked, the issuer is not known");
    assert_eq!(book.ask_again(basis(2, "b"), later(1)), asked, "for what is declared at once");
    assert_eq!((book.seen(now()).unobserved, book.due(&[proxy(1)], 0, 9, later(1)).len()), (1, 1));
    assert!(!book.is_complete(), "nothing is concluded before it was asked");
    let before = book.change() - 1;
    book.note((&uid(1), &app()), Some(leaf(&ca, now(), 10)), before, now());
    assert_eq!(book.seen(now()).unobserved, 1, "the answer was on its way");
    assert!(
        book.note((&uid(1), &app()), Some(leaf(&ca, now(), 10)), book.change(), now()),
        "it is news that it is still so"
    );
    assert_eq!(book.seen(now()).unobserved, 0);
}

#[test]
fn a_proxy_that_was_not_asked_or_cannot_be_is_not_observed() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    assert_eq!(book.due(&[proxy(1), proxy(2)], 3, 9, now()).len(), 2);
    assert_eq!(book.seen(now()).unobserved, 5);
    book.note((&uid(1), &app()), Some(leaf(&ca, now(), 10)), book.change(), now());
    assert_eq!((book.seen(now()).unobserved, book.is_complete()), (4, false));
}

#[test]
fn a_proxy_that_must_be_asked_all_the_time_does_not_keep_others_waiting() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    let running = || (1..=4).map(proxy).collect::<Vec<_>>();
    let mut asked = Vec::new();
    for round in 0..8 {
        let at = later(round);
        for (it, pod) in book.due(&running(), 0, 1, at) {
            asked.extend(numbers(&[(it.clone(), pod)]));
            // Two of them present certificates of a second.
            let hours = if it == uid(1) || it == uid(2) { 0 } else { 100 };
            book.note((&it, &app()), Some(leaf(&ca, at, hours)), book.change(), at);
        }
    }
    assert_eq!(asked, [1, 2, 3, 4, 1, 2, 1, 2]);
}

#[test]
fn a_tenant_cannot_take_the_places_of_the_chains_of_others() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    for number in 10..30 {
        let own = TestCa::root("of the tenant");
        book.note((&uid(number), &"tenant".into()), Some(leaf(&own, now(), 10)), 0, now());
    }
    for number in 0..9 {
        book.note((&uid(number), &app()), Some(leaf(&ca, now(), 10)), 0, now());
    }
    let seen = book.seen(now());
    assert_eq!((seen.unobserved, seen.chains().len()), (16, 5));
    assert!(seen.chains().contains(&(&*chain(&ca), 9)));
}

#[test]
fn a_certificate_that_has_ended_is_told_from_a_proxy_that_does_not_answer() {
    let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
    book.note((&uid(1), &app()), Some(leaf(&ca, later(-120), 1)), 0, now());
    book.note((&uid(2), &app()), None, 0, now());
    let SeenLeaves { unobserved, ended, .. } = book.seen(now());
    assert_eq!((unobserved, ended), (2, 1));
    assert!(book.note((&uid(2), &app()), Some(leaf(&ca, later(-120), 1)), 0, now()), "it is known now why");
    assert!(!book.note((&uid(1), &app()), Some(leaf(&ca, later(-120), 1)), 0, now()), "it is the same one");
    assert!(book.note((&uid(1), &app()), Some(leaf(&ca, now(), 1)), 0, now()), "it was renewed");
}

#[test]
fn a_stopped_pod_is_forgotten_and_the_number_of_chains_is_bounded() {
    let mut book = LeafBook::default();
    let authorities: Vec<_> = (0..=MAX_CHAINS).map(|_| TestCa::root("any")).collect();
    for (number, ca) in (0_u8..).zip(&authorities) {
        book.note((&uid(number), &format!("app-{}", number % 10).into()), Some(leaf(ca, now(), 10)), 0, now());
    }
    assert_eq!(book.seen(now()).unobserved, 1, "there are too many different chains");
    book.due(&[proxy(1)], 0, 9, now());
    assert_eq!((book.entries.len(), book.seen(now()).unobserved), (1, 0));
    assert!(book.has_forgotten() && !book.has_forgotten());
    book.due(&[], 0, 9, now());
    assert!(book.chains.is_empty() && book.entries.is_empty() && book.has_forgotten());
}
