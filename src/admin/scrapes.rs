//! The answers to `/metrics`.
//!
//! In: requests. Out: the metrics of the registry as one shared text. Always holds: a text is begun after the requests
//! that it answers have arrived; one text at a time is made, on a blocking thread, so that probes and other requests
//! are served meanwhile; continuous scrapes take about a fifth of a thread; at most [`TEXTS`] texts exist, however
//! slowly clients read them. With thousands of streams, a text has some MiB, and making it takes most of a second in a
//! debug build.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::body::Bytes;
use prometheus::Registry;
use tokio::{
    sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

use crate::metrics;

/// The maximum number of texts at a time: one that is being made, and two that clients have not taken yet.
const TEXTS: usize = 3;
/// The pause after a text, in multiples of the time that it took, and the longest pause. Requests that arrive meanwhile
/// share the next text.
const PAUSE: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The metrics in Prometheus' text format, or the reason why they cannot be encoded.
type Scrape = Result<Bytes, String>;

pub struct Scrapes {
    registry: Registry,
    /// Locked while a text is made, and in the pause before it.
    latest: Arc<Mutex<Option<LatestScrape>>>,
    /// The number of requests that wait for the lock.
    waiting: Arc<AtomicUsize>,
    texts: Arc<Semaphore>,
}

struct LatestScrape {
    begun: Instant,
    /// Not before this, the next text is made.
    next: Instant,
    /// The result, as long as requests wait that it answers.
    scrape: Option<Scrape>,
}

/// A request that waits for the lock. It is counted until it has the lock, or its client disconnects.
struct WaitingRequest(Arc<AtomicUsize>);

impl WaitingRequest {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A text with its place.
struct MetricsText {
    text: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for MetricsText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

// === impl Scrapes ===

impl Scrapes {
    pub fn new(registry: Registry) -> Self {
        Self { registry, latest: Arc::default(), waiting: Arc::default(), texts: Arc::new(Semaphore::new(TEXTS)) }
    }

    /// Answers a request that arrives now.
    ///
    /// # Errors
    /// Fails if a metric family is inconsistent.
    pub(super) async fn scrape(&self) -> Scrape {
        let arrived = Instant::now();
        let waiting = WaitingRequest::new(&self.waiting);
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        drop(waiting);
        if let Some(latest) = &mut *latest {
            if let Some(shared) = latest.scrape.take().filter(|_| arrived <= latest.begun) {
                latest.scrape = is_awaited(&self.waiting).then(|| shared.clone());
                return shared;
            }
            sleep_until(latest.next).await;
        }
        let Ok(place) = Arc::clone(&self.texts).acquire_owned().await else { return closed() };
        let (registry, waiting) = (self.registry.clone(), Arc::clone(&self.waiting));
        // The thread holds the lock, so that a client that disconnects does not make room for another text.
        spawn_blocking(move || make(&registry, place, latest, &waiting)).await.unwrap_or_else(|_| closed())
    }
}

/// Makes a text, and shares it with the requests that wait.
fn make(
    registry: &Registry,
    place: OwnedSemaphorePermit,
    mut latest: OwnedMutexGuard<Option<LatestScrape>>,
    waiting: &AtomicUsize,
) -> Scrape {
    let begun = Instant::now();
    let scrape = metrics::encode(registry).map_err(|error| error.to_string()).map(|mut text| {
        text.shrink_to_fit();
        Bytes::from_owner(MetricsText { text, _place: place })
    });
    let ended = Instant::now();
    let next = ended + (PAUSE * (ended - begun)).min(LONGEST_PAUSE);
    *latest = Some(LatestScrape { begun, next, scrape: is_awaited(waiting).then(|| scrape.clone()) });
    scrape
}

fn is_awaited(waiting: &AtomicUsize) -> bool {
    waiting.load(Ordering::Relaxed) > 0
}

/// The result if a collector panics, or if the process ends.
fn closed() -> Scrape {
    Err("the collection of metrics ended early".to_owned())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering::Relaxed},
            mpsc,
        },
        time::Duration,
    };

    use prometheus::{
        IntCounter,
        core::{Collector, Desc},
        proto::MetricFamily,
    };
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Reports the number of its collections. Each waits for permission.
    struct Slow {
        collections: Arc<AtomicUsize>,
        counter: IntCounter,
        permissions: parking_lot::Mutex<mpsc::Receiver<()>>,
    }

    impl Collector for Slow {
        fn desc(&self) -> Vec<&Desc> {
            self.counter.desc()
        }

        fn collect(&self) -> Vec<MetricFamily> {
            self.collections.fetch_add(1, Relaxed);
            self.permissions.lock().recv().unwrap();
            self.counter.inc();
            self.counter.collect()
        }
    }

    /// Returns the scrapes of a collector, the number of collections that have begun, and their permissions.
    fn slow() -> (Arc<Scrapes>, Arc<AtomicUsize>, mpsc::Sender<()>) {
        let (registry, collections, (permit, permissions)) = (Registry::new(), Arc::default(), mpsc::channel());
        let counter = IntCounter::new("collections", "Collections").unwrap();
        let permissions = parking_lot::Mutex::new(permissions);
        registry.register(Box::new(Slow { collections: Arc::clone(&collections), counter, permissions })).unwrap();
        (Arc::new(Scrapes::new(registry)), collections, permit)
    }

    async fn number(scrapes: &Scrapes) -> u32 {
        let text = timeout(SOON, scrapes.scrape()).await.unwrap().unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        text.lines().find_map(|line| line.strip_prefix("collections ")).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn requests_that_arrive_during_a_collection_share_the_next_one() {
        let (scrapes, collections, permit) = slow();
        let request = || {
            let scrapes = Arc::clone(&scrapes);
            tokio::spawn(async move { number(&scrapes).await })
        };
        let first = request();
        while collections.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let others: Vec<_> = (1..60).map(|_| request()).collect();
        tokio::task::yield_now().await;
        (0..60).for_each(|_| permit.send(()).unwrap());
        assert_eq!(first.await.unwrap(), 1);
        for other in others {
            assert_eq!(other.await.unwrap(), 2);
        }
        assert_eq!(collections.load(Relaxed), 2);
        // No text is kept.
        assert_eq!(scrapes.texts.available_permits(), TEXTS);
        assert_eq!(number(&scrapes).await, 3, "a text is not older than the request");
    }

    #[tokio::test]
    async fn clients_that_disconnect_do_not_make_room_for_another_collection() {
        let (scrapes, collections, permit) = slow();
        for _ in 0..20 {
            timeout(Duration::from_millis(5), scrapes.scrape()).await.unwrap_err();
        }
        (0..20).for_each(|_| permit.send(()).unwrap());
        assert_eq!(number(&scrapes).await, 2);
        assert_eq!(collections.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn texts_that_clients_have_not_taken_are_few() {
        let (scrapes, _, permit) = slow();
        (0..20).for_each(|_| permit.send(()).unwrap());
        let mut untaken = Vec::new();
        for _ in 0..TEXTS {
            untaken.push(timeout(SOON, scrapes.scrape()).await.unwrap().unwrap());
        }
        timeout(Duration::from_millis(200), scrapes.scrape()).await.unwrap_err();
        untaken.pop();
        timeout(SOON, scrapes.scrape()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_pause_follows_each_collection() {
        let (scrapes, _, permit) = slow();
        tokio::spawn(async move {
            for _ in 0..2 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                permit.send(()).unwrap();
            }
        });
        let begun = Instant::now();
        assert_eq!((number(&scrapes).await, number(&scrapes).await), (1, 2));
        assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_collector_that_panics_fails_its_own_scrape_alone() {
        let (scrapes, _, permit) = slow();
        drop(permit);
        let error = timeout(SOON, scrapes.scrape()).await.unwrap().unwrap_err();
        assert_eq!(error, "the collection of metrics ended early");
        timeout(SOON, scrapes.scrape()).await.unwrap().unwrap_err();
        assert_eq!(scrapes.texts.available_permits(), TEXTS);
    }
}
