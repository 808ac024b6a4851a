//! The connections that have no permit yet: their clients have not sent the preface, or wait for a permit.
//!
//! In: the tasks of these connections, and the addresses of their clients. Out: room for another one. Always holds:
//! there are at most [`MAX_HANDSHAKES`]; a further one closes the oldest of the client that has several and has most of
//! them; if no client has several, each has [`MIN_TIME`] before the oldest is closed.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

const MAX_HANDSHAKES: usize = 256;
/// When many clients reconnect at once, those that were just accepted must not be closed before their preface can
/// arrive. Further connections wait in the kernel's queue meanwhile.
const MIN_TIME: Duration = Duration::from_millis(500);

/// The connections without a permit, oldest first.
#[derive(Default)]
pub(in crate::destination) struct Handshakes(VecDeque<Handshake>);

struct Handshake {
    client: Option<IpAddr>,
    task: JoinHandle<()>,
    until: Instant,
}

impl Handshakes {
    /// Waits until there is room for another one.
    pub(in crate::destination) async fn make_room(&mut self) {
        if self.0.len() >= MAX_HANDSHAKES {
            self.0.retain(|handshake| !handshake.task.is_finished());
        }
        if self.0.len() < MAX_HANDSHAKES {
            return;
        }
        if let Some(greedy) = self.of_greedy_client().and_then(|index| self.0.remove(index)) {
            greedy.task.abort();
        } else if let Some(mut oldest) = self.0.pop_front()
            && timeout_at(oldest.until, &mut oldest.task).await.is_err()
        {
            oldest.task.abort();
        }
    }

    /// `client` is its [`limited_peer`](crate::destination::permits::limited_peer).
    pub(in crate::destination) fn push(&mut self, client: Option<IpAddr>, task: JoinHandle<()>) {
        self.0.push_back(Handshake { client, task, until: Instant::now() + MIN_TIME });
    }

    /// Returns the index of the oldest connection of the client with the most connections, if it has several.
    fn of_greedy_client(&self) -> Option<usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for client in self.0.iter().filter_map(|handshake| handshake.client) {
            *counts.entry(client).or_default() += 1;
        }
        let most = counts.values().copied().max().filter(|most| *most > 1)?;
        self.0.iter().position(|handshake| handshake.client.is_some_and(|client| counts.get(&client) == Some(&most)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::{task::AbortHandle, time::sleep};

    use super::*;

    fn client(number: usize) -> Option<IpAddr> {
        Some(Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number).unwrap()).into())
    }

    /// Adds one that takes this time. Returns its handle.
    fn add(handshakes: &mut Handshakes, client: Option<IpAddr>, time: Duration) -> AbortHandle {
        let task = tokio::spawn(sleep(time));
        let handle = task.abort_handle();
        handshakes.push(client, task);
        handle
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn connections_whose_prefaces_arrive_in_time_are_not_closed() {
        let (mut handshakes, begun) = (Handshakes::default(), Instant::now());
        for number in 0..MAX_HANDSHAKES {
            add(&mut handshakes, client(number), Duration::from_millis(400));
        }
        handshakes.make_room().await;
        assert_eq!(begun.elapsed(), Duration::from_millis(400), "a further one waits for the oldest");
        for handshake in handshakes.0 {
            handshake.task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_silent_connection_is_closed_after_its_time() {
        // Each of another client, or all of the Pod's own address.
        for of in [client, |_| None] {
            let (mut handshakes, begun) = (Handshakes::default(), Instant::now());
            let all: Vec<_> = (0..MAX_HANDSHAKES).map(|number| add(&mut handshakes, of(number), LONG)).collect();
            handshakes.make_room().await;
            assert_eq!(begun.elapsed(), Duration::from_millis(500));
            tokio::task::yield_now().await;
            assert!(all[0].is_finished() && !all[1].is_finished());
            assert_eq!(handshakes.0.len(), MAX_HANDSHAKES - 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_many_silent_connections_delays_no_other() {
        let (mut handshakes, begun) = (Handshakes::default(), Instant::now());
        let other = add(&mut handshakes, client(1), LONG);
        let greedy: Vec<_> = (1..MAX_HANDSHAKES).map(|_| add(&mut handshakes, client(0), LONG)).collect();
        for closed in 1..=10 {
            handshakes.make_room().await;
            // An aborted task ends when the runtime gets to it.
            for _ in 0..MAX_HANDSHAKES {
                tokio::task::yield_now().await;
            }
            assert!(greedy[closed - 1].is_finished() && !greedy[closed].is_finished());
            add(&mut handshakes, client(0), LONG);
        }
        assert!(begun.elapsed().is_zero() && !other.is_finished());
    }
}
