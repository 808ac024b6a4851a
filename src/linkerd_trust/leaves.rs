//! What each proxy presented when it was asked for its certificate. Pure.
//!
//! In: the running proxies, the certificates that they presented. Out: the proxies to ask next, and [`SeenLeaves`]. Always
//! holds: a proxy is asked again only when it must have renewed its certificate, so at rest each is asked about once in
//! the lifetime of a certificate; a proxy that does not answer is asked less and less; a stopped Pod is forgotten.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{api::Uid, trust::seen::SeenLeaves, x509::certificate::ChainCertificate};

/// The maximum number of different chains. A mesh has a few; tenants may present any.
const MAX_CHAINS: usize = 20;
/// A proxy renews its certificate when this part of its validity is over, in percent.
const RENEWED_AT: i32 = 70;
/// But at the latest after this time.
const LONGEST_RENEWAL: SignedDuration = SignedDuration::from_hours(24);
/// The time that a proxy has for the renewal, and the shortest time until it is asked again.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// The number of doublings of the time until a proxy that does not answer is asked again.
const MAX_DOUBLINGS: u32 = 5;

/// A proxy that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbedProxy {
    pub(super) uid: Uid,
    pub(super) address: std::net::SocketAddr,
    pub(super) identity: String,
}

/// What a proxy presented.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedLeaf {
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
    /// The certificates that the proxy sent after its own.
    pub(super) chain: Vec<ChainCertificate>,
}

/// What is known about all proxies.
#[derive(Default)]
pub(super) struct LeafBook {
    entries: HashMap<Uid, LeafEntry>,
    chains: HashSet<Arc<[ChainCertificate]>>,
    /// Whether each running proxy was asked once.
    is_complete: bool,
}

struct LeafEntry {
    known: Option<KnownLeaf>,
    failures: u32,
    due: Timestamp,
}

struct KnownLeaf {
    not_before: Timestamp,
    not_after: Timestamp,
    chain: Arc<[ChainCertificate]>,
}

// === impl LeafBook ===

impl LeafBook {
    /// Returns the proxies that must be asked now, at most `limit`. Forgets those that do not run anymore.
    pub(super) fn due(&mut self, running: Vec<ProbedProxy>, limit: usize, now: Timestamp) -> Vec<ProbedProxy> {
        let uids: HashSet<&Uid> = running.iter().map(|proxy| &proxy.uid).collect();
        self.entries.retain(|uid, _| uids.contains(uid));
        self.chains.retain(|chain| Arc::strong_count(chain) > 1);
        self.is_complete |= running.iter().all(|proxy| self.entries.contains_key(&proxy.uid));
        let is_due = |proxy: &ProbedProxy| self.entries.get(&proxy.uid).is_none_or(|entry| entry.due <= now);
        running.into_iter().filter(is_due).take(limit).collect()
    }

    /// Notes what a proxy presented, or that it did not answer. Returns whether that is news.
    pub(super) fn note(&mut self, uid: &Uid, leaf: Option<ObservedLeaf>, now: Timestamp) -> bool {
        let known = leaf.and_then(|leaf| {
            let chain: Arc<[ChainCertificate]> = leaf.chain.into();
            let chain = match self.chains.get(&chain) {
                Some(known) => Arc::clone(known),
                None if self.chains.len() < MAX_CHAINS => chain,
                None => return None,
            };
            self.chains.insert(Arc::clone(&chain));
            Some(KnownLeaf { not_before: leaf.not_before, not_after: leaf.not_after, chain })
        });
        let Some(before) = self.entries.get_mut(uid) else {
            let due = due(known.as_ref(), 0, now);
            self.entries.insert(uid.clone(), LeafEntry { known, failures: 0, due });
            return true;
        };
        before.failures = if known.is_some() { 0 } else { before.failures.saturating_add(1) };
        before.due = due(known.as_ref(), before.failures, now);
        // The certificate that a proxy had is still its own if the connection failed.
        let Some(known) = known else { return false };
        let is_news = before.known.as_ref().is_none_or(|it| !Arc::ptr_eq(&it.chain, &known.chain));
        before.known = Some(known);
        is_news
    }

    /// Whether each proxy that ran at some time was asked. Before that, nothing is concluded.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns what the proxies present.
    pub(super) fn seen(&self, now: Timestamp) -> SeenLeaves {
        let mut proxies = HashMap::<&Arc<[ChainCertificate]>, (usize, Timestamp)>::new();
        let mut leaves = SeenLeaves::default();
        for entry in self.entries.values() {
            match &entry.known {
                // With an expired certificate, a proxy cannot connect.
                Some(known) if known.not_after <= now => {}
                Some(known) => {
                    let (count, newest) = proxies.entry(&known.chain).or_insert((0, Timestamp::MIN));
                    *count += 1;
                    *newest = known.not_before.max(*newest);
                }
                None => leaves.unobserved += 1,
            }
        }
        for (chain, (count, newest)) in proxies {
            leaves.add(chain, count, newest);
        }
        leaves
    }
}

/// Returns when a proxy is asked again.
fn due(known: Option<&KnownLeaf>, failures: u32, now: Timestamp) -> Timestamp {
    let delay = match known {
        Some(leaf) => {
            let part = leaf.not_after.duration_since(leaf.not_before) / 100 * RENEWED_AT;
            let renewed = leaf.not_before.checked_add(part.min(LONGEST_RENEWAL)).unwrap_or(now);
            (renewed.duration_since(now) + AGAIN).max(AGAIN)
        }
        None => AGAIN * 2_i32.pow(failures.min(MAX_DOUBLINGS)),
    };
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::testing::{TestCa, der, now};

    fn chain(ca: &TestCa) -> Vec<ChainCertificate> {
        vec![ChainCertificate::parse(&der(&ca.pem)).unwrap()]
    }

    fn uid(number: u8) -> Uid {
        Uid::new(&format!("00000000-0000-0000-0000-0000000000{number:02}")).unwrap()
    }

    fn proxy(number: u8) -> ProbedProxy {
        ProbedProxy { uid: uid(number), address: ([10, 0, 0, number], 4191).into(), identity: "web".to_owned() }
    }

    fn leaf(ca: &TestCa, issued: Timestamp, hours: i64) -> ObservedLeaf {
        let not_after = issued + SignedDuration::from_hours(hours);
        ObservedLeaf { not_before: issued, not_after, chain: chain(ca) }
    }

    fn later(minutes: i64) -> Timestamp {
        now() + SignedDuration::from_mins(minutes)
    }

    fn numbers(proxies: &[ProbedProxy]) -> Vec<u8> {
        proxies.iter().map(|proxy| (1..10).find(|number| uid(*number) == proxy.uid).unwrap()).collect()
    }

    #[test]
    fn a_proxy_is_asked_at_once_and_again_when_it_must_have_renewed_its_certificate() {
        let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
        let running = || vec![proxy(1), proxy(2)];
        assert_eq!(numbers(&book.due(running(), 1, now())), [1], "no more than the limit");
        assert!(book.note(&uid(1), Some(leaf(&ca, now(), 10)), now()));
        assert!(!book.is_complete());
        assert_eq!(numbers(&book.due(running(), 9, now())), [2]);
        assert!(book.note(&uid(2), Some(leaf(&ca, now(), 100)), now()));
        assert_eq!((book.due(running(), 9, now()), book.is_complete()), (vec![], true));
        // 70 % of ten hours, and a minute.
        assert!(book.due(running(), 9, later(420)).is_empty());
        assert_eq!(numbers(&book.due(running(), 9, later(421))), [1]);
        assert!(!book.note(&uid(1), Some(leaf(&ca, now(), 10)), later(421)), "it is the same chain");
        assert!(book.due(running(), 9, later(421)).is_empty());
        assert_eq!(numbers(&book.due(running(), 9, later(422))), [1], "it had not renewed");
        // At the latest after a day.
        assert_eq!(numbers(&book.due(running(), 9, later(24 * 60 + 1))), [1, 2]);
    }

    #[test]
    fn a_proxy_that_does_not_answer_is_asked_less_and_less_and_keeps_what_it_presented() {
        let (mut book, ca) = (LeafBook::default(), TestCa::root("issuer"));
        assert!(book.note(&uid(1), None, now()), "a proxy that is not observed is news");
        assert_eq!(book.seen(now()).unobserved, 1);
        let (mut at, mut delays) = (now(), Vec::new());
        for _ in 0..7 {
            let after = |minutes: i64| at + SignedDuration::from_mins(minutes);
            let minutes = (1..).find(|minutes| !book.due(vec![proxy(1)], 9, after(*minutes)).is_empty()).unwrap();
            delays.push(minutes);
            at = after(minutes);
            assert!(!book.note(&uid(1), None, at));
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 32]);
        assert!(book.note(&uid(1), Some(leaf(&ca, at, 10)), at));
        assert!(!book.note(&uid(1), None, at));
        assert_eq!((book.seen(at).unobserved, book.seen(at).chains()), (0, vec![(&chain(&ca)[..], 1)]));
        assert_eq!(book.seen(at + SignedDuration::from_hours(10)).chains(), [], "the certificate has ended");
    }

    #[test]
    fn a_stopped_pod_is_forgotten_and_the_number_of_chains_is_bounded() {
        let mut book = LeafBook::default();
        let authorities: Vec<_> = (0..=MAX_CHAINS).map(|_| TestCa::root("any")).collect();
        for (number, ca) in (0_u8..).zip(&authorities) {
            book.note(&uid(number), Some(leaf(ca, now(), 10)), now());
        }
        assert_eq!(book.seen(now()).unobserved, 1, "there are too many different chains");
        book.due(vec![proxy(1)], 9, now());
        assert_eq!((book.entries.len(), book.seen(now()).unobserved), (1, 0));
        book.due(vec![], 9, now());
        assert!(book.chains.is_empty() && book.entries.is_empty());
    }
}
