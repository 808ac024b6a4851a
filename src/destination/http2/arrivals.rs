//! Since when the requests of a connection may wait that its task accepts next.
//!
//! In: for each turn of the task, whether it read the socket empty and whether h2 holds more requests. Out: a time before
//! the arrival of each request. Always holds: the time advances although the client always has further requests waiting.
//!
//! A turn that begins with requests in h2 reads nothing. So when h2 holds none, the next ones have arrived after the last
//! turn that has read the socket empty.

use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Arrivals {
    /// A time before the arrival of the requests in h2; if it holds none, of those in the socket. `None` if both are
    /// empty: the next request wakes the task.
    held: Option<Instant>,
    /// A time before the arrival of the requests that are read after those in h2.
    later: Option<Instant>,
}

/// A turn of the task that has accepted requests.
pub(super) struct AcceptingTurn {
    /// A time before its first read.
    pub(super) began: Instant,
    /// The result of [`Arrivals::since`].
    pub(super) since: Instant,
    pub(super) read: TurnRead,
    /// Whether h2 may hold further requests.
    pub(super) leaves_requests: bool,
}

/// What a turn has read of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnRead {
    Nothing,
    Part,
    All,
}

// === impl Arrivals ===

impl Arrivals {
    /// Returns a time before the arrival of each request that is accepted in this turn. `woken` is when the task was
    /// woken for it.
    pub(super) fn since(&self, woken: Instant) -> Instant {
        self.held.unwrap_or(woken)
    }

    /// Requests that arrive now wait for the client, and not for the server.
    pub(super) fn wait_for_the_client(&mut self) {
        *self = Self::default();
    }

    pub(super) fn end_turn(&mut self, turn: &AcceptingTurn) {
        match turn.read {
            TurnRead::Nothing => {}
            TurnRead::Part => self.later = Some(turn.since),
            TurnRead::All => self.later = Some(turn.began),
        }
        self.held = match (turn.leaves_requests, turn.read) {
            (true, _) => Some(turn.since),
            (false, TurnRead::All) => None,
            (false, _) => self.later,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    use TurnRead::{All, Nothing, Part};

    /// Ends a turn in each millisecond, and returns since when the requests of each may have waited, in milliseconds
    /// before it began.
    fn waits(turns: &[(TurnRead, bool)]) -> Vec<u128> {
        let (start, mut arrivals) = (Instant::now(), Arrivals::default());
        let turns = (0..).zip(turns).map(|(number, (read, leaves_requests))| {
            let began = start + Duration::from_millis(number);
            let since = arrivals.since(began);
            let (read, leaves_requests) = (*read, *leaves_requests);
            arrivals.end_turn(&AcceptingTurn { began, since, read, leaves_requests });
            (began - since).as_millis()
        });
        turns.collect()
    }

    #[test]
    fn requests_that_wake_the_task_have_just_arrived() {
        assert_eq!(waits(&[(All, false), (All, false), (Part, false)]), [0, 0, 0]);
    }

    #[test]
    fn requests_in_h2_have_waited_since_they_were_read() {
        assert_eq!(waits(&[(All, true), (Nothing, true), (Nothing, true), (Nothing, false)]), [0, 1, 2, 3]);
    }

    #[test]
    fn requests_in_the_socket_have_arrived_after_the_last_turn_that_has_read_it_empty() {
        let batch = [(All, true), (Nothing, true), (Nothing, false)];
        assert_eq!(waits(&[batch, batch, batch].concat()), [0, 1, 2, 3, 4, 5, 3, 4, 5]);
    }

    #[test]
    fn requests_that_were_not_all_read_may_have_waited_since_the_first_of_them() {
        let first = [(All, false), (Part, true), (Nothing, false)];
        assert_eq!(waits(&[&first[..], &[(Part, true), (Nothing, false), (All, false)]].concat()), [0, 0, 1, 2, 3, 4]);
        assert_eq!(waits(&[(Part, false), (Part, false), (All, true), (Nothing, true)]), [0, 1, 2, 3]);
    }
}
