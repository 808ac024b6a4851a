//! The order in which reviews are sent: so many at a time, then a queue that is fair to namespaces.
//!
//! In: reviews, each with the namespace that its token claims. Out: a permit for each, in turns of one for each
//! namespace. Always holds: no more permits than the limit are held; a namespace that sends many reviews delays itself,
//! and cannot fill the queue; the queue is bounded; a review whose expected wait ends after its deadline is refused at
//! once.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

/// The maximum number of reviews that wait.
const WAITING: usize = 10_000;
/// The number of further places for namespaces with fewer than [`FEW`] reviews that wait.
const RESERVED: usize = 1_000;
const FEW: usize = 20;
/// The shortest time between two searches of a full queue for reviews that are cancelled.
const SEARCH: Duration = Duration::from_millis(100);
/// The part of a new duration in the average.
const WEIGHT: f64 = 0.1;

/// The queue of reviews.
pub(super) struct ReviewQueue {
    limit: usize,
    turns: Mutex<Turns<oneshot::Sender<ReviewPermit>>>,
}

/// The permit to send a review, held until it is dropped.
pub(super) struct ReviewPermit {
    /// `None` if the permit was handed to another review.
    queue: Option<Arc<ReviewQueue>>,
    since: Instant,
}

/// The review is refused, because it would not be sent before its deadline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

/// The waiting reviews of all namespaces, and whose turn it is. Pure.
struct Turns<W> {
    free: usize,
    waiting: HashMap<Arc<str>, VecDeque<W>>,
    /// The namespaces with waiting reviews, next first.
    order: VecDeque<Arc<str>>,
    total: usize,
    /// The average duration of a review.
    average: Duration,
    searched: Option<Instant>,
}

// === impl ReviewQueue ===

impl ReviewQueue {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, turns: Mutex::new(Turns::new(limit)) })
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// When no permit is free before the deadline, or when it is known that none will be.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        namespace: &str,
        deadline: Instant,
    ) -> Result<ReviewPermit, QueueFull> {
        let now = Instant::now();
        if deadline <= now {
            return Err(QueueFull);
        }
        let waiting = {
            let mut turns = self.turns.lock();
            if turns.take() {
                None
            } else {
                if turns.is_full(namespace) && turns.may_search(now) {
                    turns.forget(oneshot::Sender::is_closed);
                }
                if turns.is_full(namespace) || now + turns.expected_wait(namespace, self.limit) > deadline {
                    return Err(QueueFull);
                }
                let (granted, permit) = oneshot::channel();
                turns.add(namespace, granted);
                Some(permit)
            }
        };
        match waiting {
            None => Ok(self.permit()),
            Some(permit) => match timeout_at(deadline, permit).await {
                Ok(Ok(mut permit)) => {
                    permit.since = Instant::now();
                    Ok(permit)
                }
                _ => Err(QueueFull),
            },
        }
    }

    fn permit(self: &Arc<Self>) -> ReviewPermit {
        ReviewPermit { queue: Some(Arc::clone(self)), since: Instant::now() }
    }

    /// Hands a permit to the next review that still waits, or takes it back.
    fn release(self: &Arc<Self>, held: Duration) {
        self.turns.lock().record(held);
        loop {
            // The lock is not held while a permit is sent: a permit that is dropped takes it.
            let next = self.turns.lock().next_or_free();
            let Some(next) = next else { return };
            match next.send(self.permit()) {
                Ok(()) => return,
                // The review was cancelled. Its permit is for the next one.
                Err(mut permit) => permit.queue = None,
            }
        }
    }
}

// === impl ReviewPermit ===

impl Drop for ReviewPermit {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.release(self.since.elapsed());
        }
    }
}

// === impl Turns ===

impl<W> Turns<W> {
    fn new(free: usize) -> Self {
        let (waiting, order, average) = (HashMap::new(), VecDeque::new(), Duration::ZERO);
        Self { free, waiting, order, total: 0, average, searched: None }
    }

    /// Takes a free permit.
    fn take(&mut self) -> bool {
        let is_free = self.free > 0;
        self.free -= usize::from(is_free);
        is_free
    }

    /// Returns whether there is no place for a review of this namespace.
    fn is_full(&self, namespace: &str) -> bool {
        let places = if self.waiting_of(namespace) < FEW { WAITING + RESERVED } else { WAITING };
        self.total >= places
    }

    fn waiting_of(&self, namespace: &str) -> usize {
        self.waiting.get(namespace).map_or(0, VecDeque::len)
    }

    fn may_search(&mut self, now: Instant) -> bool {
        let is_due = self.searched.is_none_or(|last| now - last >= SEARCH);
        if is_due {
            self.searched = Some(now);
        }
        is_due
    }

    /// Returns the wait that a new review of a namespace has to expect. Each review of this namespace waits for at most
    /// one of every other namespace.
    fn expected_wait(&self, namespace: &str, limit: usize) -> Duration {
        let turns = (self.waiting_of(namespace) + 1).saturating_mul(self.order.len().max(1));
        let ahead = turns.min(self.total + 1);
        let rounds = u32::try_from(ahead.div_ceil(limit.max(1))).unwrap_or(u32::MAX);
        self.average.saturating_mul(rounds)
    }

    fn add(&mut self, namespace: &str, waiter: W) {
        if let Some(queue) = self.waiting.get_mut(namespace) {
            queue.push_back(waiter);
        } else {
            let name: Arc<str> = namespace.into();
            self.order.push_back(Arc::clone(&name));
            self.waiting.insert(name, VecDeque::from([waiter]));
        }
        self.total += 1;
    }

    /// Returns the next review; without one, a permit is free again.
    fn next_or_free(&mut self) -> Option<W> {
        while let Some(namespace) = self.order.pop_front() {
            let Some(queue) = self.waiting.get_mut(&namespace) else { continue };
            let next = queue.pop_front();
            if queue.is_empty() {
                self.waiting.remove(&namespace);
            } else {
                self.order.push_back(namespace);
            }
            if next.is_some() {
                self.total = self.total.saturating_sub(1);
                return next;
            }
        }
        self.free += 1;
        None
    }

    /// Removes the reviews that are cancelled.
    fn forget(&mut self, is_cancelled: impl Fn(&W) -> bool) {
        self.waiting.retain(|_, queue| {
            queue.retain(|waiter| !is_cancelled(waiter));
            !queue.is_empty()
        });
        let Self { waiting, order, .. } = self;
        order.retain(|namespace| waiting.contains_key(namespace));
        self.total = waiting.values().map(VecDeque::len).sum();
    }

    fn record(&mut self, duration: Duration) {
        self.average = if self.average.is_zero() {
            duration
        } else {
            self.average.mul_f64(1.0 - WEIGHT) + duration.mul_f64(WEIGHT)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn namespaces_take_turns_whatever_they_send() {
        let mut turns = Turns::new(0);
        for waiter in ["a1", "a2", "a3", "b1", "c1", "c2"] {
            turns.add(&waiter[..1], waiter);
        }
        let order: Vec<_> = std::iter::from_fn(|| turns.next_or_free()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert_eq!((turns.total, turns.free, turns.order.len(), turns.waiting.len()), (0, 1, 0, 0));
    }

    #[test]
    fn the_expected_wait_of_a_namespace_depends_on_its_own_reviews() {
        let mut turns = Turns::new(0);
        turns.record(SECOND);
        for number in 0..100 {
            turns.add("greedy", number);
        }
        assert_eq!(turns.expected_wait("greedy", 10), 11 * SECOND);
        assert_eq!(turns.expected_wait("other", 10), SECOND);
    }

    #[test]
    fn reviews_that_are_cancelled_leave_their_places() {
        let mut turns = Turns::new(0);
        for number in 0..10 {
            turns.add(if number < 5 { "a" } else { "b" }, number);
        }
        turns.forget(|number| *number != 7);
        assert_eq!((turns.total, turns.next_or_free(), turns.next_or_free()), (1, Some(7), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_sends_many_reviews_leaves_places_for_others() {
        let queue = ReviewQueue::new(1);
        let deadline = Instant::now() + 8 * SECOND;
        let held = queue.acquire("greedy", deadline).await.unwrap();
        let wait = |namespace: &'static str| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.acquire(namespace, deadline).await.map(drop) })
        };
        let greedy: Vec<_> = (0..WAITING + 10).map(|_| wait("greedy")).collect();
        tokio::time::sleep(SECOND).await;
        assert_eq!(greedy.iter().filter(|review| review.is_finished()).count(), 10, "they are refused");
        let other = wait("other");
        tokio::time::sleep(SECOND).await;
        drop(held);
        assert_eq!(other.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_so_many_permits_are_held_and_the_next_one_waits() {
        let queue = ReviewQueue::new(2);
        let deadline = Instant::now() + 8 * SECOND;
        let held = [queue.acquire("a", deadline).await.unwrap(), queue.acquire("a", deadline).await.unwrap()];
        let next = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.acquire("b", deadline).await.is_ok() }
        });
        tokio::time::sleep(SECOND).await;
        assert!(!next.is_finished());
        drop(held);
        assert!(next.await.unwrap());
        assert_eq!(queue.turns.lock().free, 2, "all permits are free again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_that_is_cancelled_takes_no_permit() {
        let queue = ReviewQueue::new(1);
        let deadline = Instant::now() + 8 * SECOND;
        let held = queue.acquire("a", deadline).await.unwrap();
        let wait = || {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.acquire("a", deadline).await.map(drop) })
        };
        let (cancelled, waits) = (wait(), wait());
        tokio::time::sleep(SECOND).await;
        cancelled.abort();
        tokio::time::sleep(SECOND).await;
        drop(held);
        assert_eq!(waits.await.unwrap(), Ok(()));
        assert_eq!(queue.turns.lock().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_without_a_permit_before_its_deadline_is_refused_and_at_once_if_that_is_known() {
        let queue = ReviewQueue::new(1);
        let now = Instant::now();
        let held = queue.acquire("a", now + 8 * SECOND).await.unwrap();
        assert!(queue.acquire("a", now + 8 * SECOND).await.is_err());
        assert_eq!(now.elapsed(), 8 * SECOND);
        drop(held);
        // The last review took 8 s.
        let now = Instant::now();
        let held = queue.acquire("a", now + 4 * SECOND).await.unwrap();
        assert!(queue.acquire("a", now + 4 * SECOND).await.is_err());
        assert_eq!(now.elapsed(), Duration::ZERO);
        drop(held);
        assert!(queue.acquire("a", now).await.is_err(), "its deadline has passed");
    }
}
