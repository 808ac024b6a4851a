//! The requests whose signatures were verified. Pure.
//!
//! In: the hash of a request. Out: whether its signature was verified before. Always holds: the caller adds only requests
//! with a valid token and a valid signature; the memory is bounded; a request that is sent again stays longer than others.
//!
//! A proxy sends the same request at each renewal, and a verification takes longer than a signature.

use std::collections::HashSet;

use super::csr::RequestHash;

/// The maximum number of remembered requests.
const REMEMBERED: usize = 200_000;

/// Requests in two halves: when the first is full, it replaces the second.
#[derive(Default)]
pub(super) struct ProvenRequests {
    recent: HashSet<RequestHash>,
    older: HashSet<RequestHash>,
}

// === impl ProvenRequests ===

impl ProvenRequests {
    pub(super) fn contains(&mut self, request: RequestHash) -> bool {
        if self.recent.contains(&request) {
            return true;
        }
        let is_older = self.older.contains(&request);
        if is_older {
            self.insert(request);
        }
        is_older
    }

    pub(super) fn insert(&mut self, request: RequestHash) {
        if self.recent.len() >= REMEMBERED / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_were_added_are_known() {
        let mut proven = ProvenRequests::default();
        proven.insert(RequestHash::for_test(1));
        assert!(proven.contains(RequestHash::for_test(1)));
        assert!(!proven.contains(RequestHash::for_test(2)) && !proven.contains(RequestHash::for_test(2)));
    }

    #[test]
    fn the_memory_is_bounded_and_requests_that_are_sent_again_stay() {
        let mut proven = ProvenRequests::default();
        let last = 3 * REMEMBERED;
        for number in 0..=last {
            proven.insert(RequestHash::for_test(number));
            assert!(proven.contains(RequestHash::for_test(0)), "{number}");
            assert!(proven.recent.len() + proven.older.len() <= REMEMBERED);
        }
        assert!(proven.contains(RequestHash::for_test(last - REMEMBERED / 2)));
        assert!(!proven.contains(RequestHash::for_test(last - REMEMBERED)));
    }
}
