//! The PINGs of a connection, which detect a dead peer and acknowledge small frames.
//!
//! In: time, and unacknowledged small frames ([`Budget`]). Out: the end of a connection whose peer does not answer; the
//! acknowledgement of small frames. Always holds: at most one PING is in flight, because h2 allows only one.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use super::budget::Budget;

/// Time between the answer to a PING and the next PING.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time that the peer has to answer a PING.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Keepalive {
    /// The PING handle of h2. h2 returns it only to its first caller.
    pings: Option<PingPong>,
    /// The number of bytes that the answer to the PING in flight acknowledges ([`Budget::unacknowledged`]).
    in_flight: Option<usize>,
    /// When the next PING is sent, or when the PING in flight times out.
    timer: Pin<Box<Sleep>>,
}

// === impl Keepalive ===

impl Keepalive {
    pub(super) fn new(pings: Option<PingPong>) -> Self {
        Self { pings, in_flight: None, timer: Box::pin(sleep(INTERVAL)) }
    }

    /// Ready when the peer is dead. Call this after h2 has written as much as the socket accepts, because a PING
    /// overtakes DATA that h2 still holds.
    pub(super) fn poll_dead(&mut self, budget: &Budget, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        if let Some(covered) = self.in_flight
            && let Poll::Ready(answer) = pings.poll_pong(cx)
        {
            if answer.is_err() {
                return Poll::Ready(());
            }
            budget.acknowledge(covered);
            // Streams may have waited for the answer.
            cx.waker().wake_by_ref();
            self.in_flight = None;
            self.timer.as_mut().reset(Instant::now() + INTERVAL);
        }
        let is_time = self.timer.as_mut().poll(cx).is_ready();
        match self.in_flight {
            Some(_) if is_time => return Poll::Ready(()),
            None if is_time || (budget.needs_ping() && !budget.is_socket_full()) => {
                if pings.send_ping(Ping::opaque()).is_err() {
                    return Poll::Ready(());
                }
                budget.record_ping();
                self.in_flight = Some(if budget.is_socket_full() { 0 } else { budget.unacknowledged() });
                self.timer.as_mut().reset(Instant::now() + TIMEOUT);
                // The answer and the new deadline have to wake this task.
                cx.waker().wake_by_ref();
            }
            Some(_) | None => {}
        }
        Poll::Pending
    }
}
