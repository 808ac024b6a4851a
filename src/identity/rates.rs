//! How often certificates are issued for one Pod. Pure.
//!
//! In: the Pod of a token, or the identity of a token that is not bound to a Pod. Out: whether another certificate is
//! issued. Always holds: the memory is bounded. Many Pods have one identity, so the rate of a Pod is low and that of an
//! identity is high: all Pods of a Deployment may start together.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// The rate of a Pod, whose proxy needs a certificate every few hours.
const OF_POD: IssuanceRate = IssuanceRate { interval: Duration::from_secs(1), burst: 10 };
/// The rate of an identity for tokens that are not bound to a Pod: the rate of Linkerd for all identities together.
const OF_IDENTITY: IssuanceRate = IssuanceRate { interval: Duration::from_millis(10), burst: 200 };
/// The maximum number of remembered Pods and identities.
const REMEMBERED: usize = 50_000;
/// The shortest time between two searches for those whose burst is available again.
const SEARCH: Duration = Duration::from_secs(1);

struct IssuanceRate {
    interval: Duration,
    burst: u32,
}

/// The client whose rate is limited.
#[derive(Clone, Copy, Debug)]
pub(super) enum RateOf<'a> {
    /// By its uid.
    Pod(&'a str),
    Identity(&'a str),
}

#[derive(Default)]
pub(super) struct IssuanceRates {
    /// When the whole burst of a client is available again.
    available: HashMap<String, Instant>,
    searched: Option<Instant>,
}

// === impl IssuanceRates ===

impl IssuanceRates {
    /// Returns whether a certificate may be issued now, and counts it.
    pub(super) fn allow(&mut self, client: RateOf<'_>, now: Instant) -> bool {
        let (key, rate) = match client {
            RateOf::Pod(uid) => (uid, OF_POD),
            RateOf::Identity(name) => (name, OF_IDENTITY),
        };
        let available = self.available.get(key).copied().unwrap_or(now).max(now);
        if available - now > rate.interval * (rate.burst - 1) {
            return false;
        }
        if self.available.len() >= REMEMBERED && self.searched.is_none_or(|last| now - last >= SEARCH) {
            self.searched = Some(now);
            self.available.retain(|_, available| *available > now);
        }
        let next = available + rate.interval;
        if let Some(known) = self.available.get_mut(key) {
            *known = next;
        } else if self.available.len() < REMEMBERED {
            self.available.insert(key.to_owned(), next);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(rates: &mut IssuanceRates, client: RateOf<'_>, at: Instant) -> usize {
        (0..1_000).filter(|_| rates.allow(client, at)).count()
    }

    #[test]
    fn a_pod_gets_a_burst_of_ten_and_then_one_a_second() {
        let (mut rates, now) = (IssuanceRates::default(), Instant::now());
        let pod = RateOf::Pod("1-2");
        assert_eq!(allowed(&mut rates, pod, now), 10);
        assert_eq!(allowed(&mut rates, pod, now + Duration::from_secs(3)), 3);
        assert_eq!(allowed(&mut rates, pod, now + Duration::from_secs(60)), 10);
    }

    #[test]
    fn pods_of_one_identity_do_not_delay_each_other() {
        let (mut rates, now) = (IssuanceRates::default(), Instant::now());
        let served = (0..500).filter(|pod| rates.allow(RateOf::Pod(&pod.to_string()), now)).count();
        assert_eq!(served, 500);
        assert_eq!(allowed(&mut rates, RateOf::Identity("web"), now), 200);
    }

    #[test]
    fn the_memory_is_bounded() {
        let (mut rates, mut now) = (IssuanceRates::default(), Instant::now());
        for pod in 0..3 * REMEMBERED {
            now += Duration::from_micros(100);
            rates.allow(RateOf::Pod(&pod.to_string()), now);
            assert!(rates.available.len() <= REMEMBERED);
        }
    }
}
