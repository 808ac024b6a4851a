//! PINGs: whether the peer is still there, and how far it has read.
//!
//! In: time, and small frames under way ([`Pace`]). Out: the end of a connection whose peer does not answer; the word that
//! small frames have arrived. Always holds: one PING at a time, as h2 allows.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use super::budget::Pace;

/// A quiet peer is asked this often.
const INTERVAL: Duration = Duration::from_secs(10);
/// And has this long to answer.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(in crate::destination) struct Pulse {
    /// h2 hands it out once, to the first who asks.
    pings: Option<PingPong>,
    /// How many small frames had been sent before the PING that is under way.
    under_way: Option<usize>,
    /// The next PING, or the end of the patience with the one under way.
    timer: Pin<Box<Sleep>>,
}

// === impl Pulse ===

impl Pulse {
    pub(in crate::destination) fn new(pings: Option<PingPong>) -> Self {
        Self { pings, under_way: None, timer: Box::pin(sleep(INTERVAL)) }
    }

    /// Ready when the peer is gone. To be called after what was handed to h2 was written, as far as the socket took it: a PING
    /// overtakes DATA that was not.
    pub(in crate::destination) fn poll_gone(&mut self, pace: &Pace, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        if let Some(covered) = self.under_way
            && let Poll::Ready(answer) = pings.poll_pong(cx)
        {
            if answer.is_err() {
                return Poll::Ready(());
            }
            pace.answered(covered);
            // Streams may have waited for it.
            cx.waker().wake_by_ref();
            self.under_way = None;
            self.timer.as_mut().reset(Instant::now() + INTERVAL);
        }
        let is_time = self.timer.as_mut().poll(cx).is_ready();
        match self.under_way {
            Some(_) if is_time => return Poll::Ready(()),
            None if is_time || (pace.wants_answer() && !pace.is_full()) => {
                if pings.send_ping(Ping::opaque()).is_err() {
                    return Poll::Ready(());
                }
                self.under_way = Some(if pace.is_full() { 0 } else { pace.small() });
                self.timer.as_mut().reset(Instant::now() + TIMEOUT);
                // Its answer, and the timer that now stands elsewhere, are to wake us.
                cx.waker().wake_by_ref();
            }
            Some(_) | None => {}
        }
        Poll::Pending
    }
}
