//! The objects that a controller has to reconcile.
//!
//! In: names, from cluster observers, changes of leadership, reconciles and other components. Out: a stream of names
//! for kube-runtime's Controller. Always holds: an object waits at most once, so there are never more entries than
//! objects; an object that is added after [`WorkQueue::start`] is never lost, because a reconcile reads the state only
//! after that; the object that has waited for the longest time is next.
//!
//! The Controller gets a name only when it has room for one, because it does not keep the order of names that wait: see
//! [`crate::controller`].
//!
//! The metrics have the names and meanings of client-go's work queue.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{Stream, stream};
use kube::{Resource, runtime::reflector::ObjectRef};
use parking_lot::{Mutex, MutexGuard};
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, exponential_buckets,
    register_histogram_with_registry, register_int_counter_with_registry, register_int_gauge_with_registry,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::fair_queue::FairQueue;
use crate::api::NamespacedName;

/// A coalescing queue of objects.
pub struct WorkQueue {
    queue: Mutex<FairQueue>,
    /// The number of consecutive failed reconciles of each object.
    failures: Mutex<HashMap<NamespacedName, u32>>,
    /// Notified when an object is added, or when there is more room.
    changed: Notify,
    metrics: WorkQueueMetrics,
}

struct WorkQueueMetrics {
    depth: IntGauge,
    adds: IntCounter,
    queue_duration: Histogram,
    work_duration: Histogram,
    retries: IntCounter,
}

/// A guard of a reconcile in progress, as client-go's set `processing`. Its drop ends the reconcile, with any result.
pub struct Processing {
    queue: Arc<WorkQueue>,
    object: NamespacedName,
}

// === impl WorkQueue ===

impl WorkQueue {
    /// Creates a queue and registers its metrics with the label `name`.
    pub fn new(name: &'static str, registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let metrics = WorkQueueMetrics::register(name, registry)?;
        let queue =
            Arc::new(Self { queue: Mutex::default(), failures: Mutex::default(), changed: Notify::new(), metrics });
        registry.register(Box::new(Unfinished::new(name, Arc::clone(&queue))?))?;
        Ok(queue)
    }

    /// Adds objects to reconcile. An object that waits already is not added again.
    pub fn add(&self, objects: impl IntoIterator<Item = NamespacedName>) {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        for object in objects {
            if queue.add(object, now) {
                self.metrics.adds.inc();
            }
        }
        self.notify(queue);
    }

    /// Adds an object after a delay, unless it is reconciled before that.
    pub fn add_after(&self, object: &NamespacedName, delay: Duration) {
        let mut queue = self.queue.lock();
        queue.add_at(object.clone(), Instant::now() + delay);
        self.notify(queue);
    }

    /// Returns the stream of added objects, for one Controller. It never ends. It yields an object while fewer than
    /// `concurrency` objects are being reconciled or about to be.
    pub fn stream<K>(self: &Arc<Self>, concurrency: u16) -> impl Stream<Item = ObjectRef<K>> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        stream::unfold(Arc::clone(self), move |queue| async move {
            loop {
                let (next, due) = queue.next(concurrency);
                if let Some(object) = next {
                    return Some((object.reference(), queue));
                }
                let due = async move {
                    match due {
                        Some(due) => sleep_until(due).await,
                        None => std::future::pending().await,
                    }
                };
                // `notify_one` keeps its permit, so a change between the check and the wait is not missed.
                tokio::select! {
                    () = queue.changed.notified() => {}
                    () = due => {}
                }
            }
        })
    }

    /// Returns the next object, if there is room for it, and when the next delay ends.
    fn next(&self, concurrency: u16) -> (Option<NamespacedName>, Option<Instant>) {
        let mut queue = self.queue.lock();
        self.metrics.adds.inc_by(queue.add_due(Instant::now()));
        self.metrics.show_depth(&queue);
        (queue.next(concurrency.into()), queue.next_due())
    }

    /// Starts the reconcile of an object. If it is added later, it is reconciled again.
    pub fn start(self: &Arc<Self>, object: &NamespacedName) -> Processing {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        if let Some(since) = queue.start(object, now) {
            self.metrics.queue_duration.observe((now - since).as_secs_f64());
        }
        self.metrics.show_depth(&queue);
        Processing { queue: Arc::clone(self), object: object.clone() }
    }

    /// Removes an object that was deleted, with its failures.
    pub fn forget(&self, object: &NamespacedName) {
        self.forget_failures(object);
        let mut queue = self.queue.lock();
        queue.remove(object);
        self.notify(queue);
    }

    /// Shows the depth, and wakes the stream, which may have something to yield.
    fn notify(&self, queue: MutexGuard<'_, FairQueue>) {
        self.metrics.show_depth(&queue);
        drop(queue);
        self.changed.notify_one();
    }

    /// Counts a reconcile that failed and is retried after a delay.
    pub fn count_retry(&self) {
        self.metrics.retries.inc();
    }

    /// Counts a failed reconcile. Returns the number of consecutive failures before it.
    pub fn count_failure(&self, object: &NamespacedName) -> u32 {
        let mut failures = self.failures.lock();
        let failures = failures.entry(object.clone()).or_default();
        *failures = failures.saturating_add(1);
        *failures - 1
    }

    /// Forgets the failures of an object whose reconcile succeeded. Returns their number.
    pub fn forget_failures(&self, object: &NamespacedName) -> u32 {
        self.failures.lock().remove(object).unwrap_or_default()
    }

    /// Forgets the failures of all objects.
    pub fn forget_all_failures(&self) {
        self.failures.lock().clear();
    }

    /// Removes and returns the objects that wait, sorted.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<NamespacedName> {
        std::mem::take(&mut *self.queue.lock()).into_waiting()
    }

    /// Returns the total seconds of all reconciles in progress, and the seconds of the longest.
    fn unfinished(&self) -> (f64, f64) {
        let queue = self.queue.lock();
        let seconds = queue.working.values().map(|since| since.elapsed().as_secs_f64());
        seconds.fold((0.0, 0.0), |(sum, longest): (f64, f64), age| (sum + age, longest.max(age)))
    }
}

impl Drop for Processing {
    fn drop(&mut self) {
        let mut queue = self.queue.queue.lock();
        if let Some(since) = queue.end(&self.object) {
            self.queue.metrics.work_duration.observe(since.elapsed().as_secs_f64());
        }
        self.queue.notify(queue);
    }
}

// === impl WorkQueueMetrics ===

impl WorkQueueMetrics {
    fn show_depth(&self, queue: &FairQueue) {
        self.depth.set(i64::try_from(queue.depth()).unwrap_or(i64::MAX));
    }

    fn register(queue: &'static str, registry: &Registry) -> prometheus::Result<Self> {
        let opts = |name, help| opts(queue, name, help);
        // client-go's buckets: 10 ns to 10 s.
        let buckets = exponential_buckets(1e-8, 10.0, 10)?;
        let histogram = |name, help| HistogramOpts::new(name, help).const_label("name", queue).buckets(buckets.clone());
        // Linkerd drops a key after 15 failures and counts it here. This queue drops no key; alerts on the metric stay
        // valid.
        register_int_counter_with_registry!(
            opts("workqueue_drops_total", "Always 0: retries are unlimited"),
            registry
        )?;
        Ok(Self {
            depth: register_int_gauge_with_registry!(
                opts("workqueue_depth", "Objects waiting to be reconciled"),
                registry
            )?,
            adds: register_int_counter_with_registry!(
                opts("workqueue_adds_total", "Objects added to the queue"),
                registry
            )?,
            queue_duration: register_histogram_with_registry!(
                histogram(
                    "workqueue_queue_duration_seconds",
                    "Seconds that an object waited in the queue before its reconcile"
                ),
                registry
            )?,
            work_duration: register_histogram_with_registry!(
                histogram("workqueue_work_duration_seconds", "Seconds that a reconcile took"),
                registry
            )?,
            retries: register_int_counter_with_registry!(
                opts("workqueue_retries_total", "Failed reconciles that are retried"),
                registry
            )?,
        })
    }
}

fn opts(queue: &str, name: &str, help: &str) -> Opts {
    Opts::new(name, help).const_label("name", queue)
}

/// The duration of the reconciles in progress, measured at each scrape.
struct Unfinished {
    queue: Arc<WorkQueue>,
    sum: prometheus::Gauge,
    longest: prometheus::Gauge,
}

impl Unfinished {
    fn new(name: &'static str, queue: Arc<WorkQueue>) -> prometheus::Result<Self> {
        let gauge = |metric, help| prometheus::Gauge::with_opts(opts(name, metric, help));
        Ok(Self {
            queue,
            sum: gauge("workqueue_unfinished_work_seconds", "Total seconds of all reconciles in progress")?,
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "Seconds of the longest reconcile in progress",
            )?,
        })
    }
}

impl prometheus::core::Collector for Unfinished {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        self.sum.desc().into_iter().chain(self.longest.desc()).collect()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        let (sum, longest) = self.queue.unfinished();
        self.sum.set(sum);
        self.longest.set(longest);
        self.sum.collect().into_iter().chain(self.longest.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::{FutureExt, StreamExt};

    use super::*;
    type ServiceName = kube::core::PartialObjectMeta<k8s_openapi::api::core::v1::Service>;

    fn key(name: &str) -> NamespacedName {
        NamespacedName::new("ns", name)
    }

    fn queue() -> Arc<WorkQueue> {
        WorkQueue::new("test", &Registry::new()).unwrap()
    }

    #[tokio::test]
    async fn an_object_added_many_times_waits_once() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(8));
        queue.add([key("a"), key("a"), key("b")]);
        queue.add([key("a")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert_eq!(stream.next().await.unwrap().name, "b");
        assert!(stream.next().now_or_never().is_none());
        // Yielded but not started: the object still waits, and its reconcile will read all changes up to its start.
        queue.add([key("a")]);
        assert!(stream.next().now_or_never().is_none());
        assert_eq!(queue.metrics.adds.get(), 2);
        assert_eq!(queue.metrics.depth.get(), 2);
    }

    #[tokio::test]
    async fn an_object_added_during_its_reconcile_is_reconciled_again_after_those_that_waited() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(2));
        queue.add([key("a"), key("b"), key("c")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        let work = queue.start(&key("a"));
        queue.add([key("a")]);
        assert_eq!(stream.next().await.unwrap().name, "b");
        drop(work);
        assert_eq!(stream.next().await.unwrap().name, "c");
        drop(queue.start(&key("b")));
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert_eq!(queue.metrics.adds.get(), 4);
        assert_eq!(queue.metrics.work_duration.get_sample_count(), 2);
    }

    #[tokio::test]
    async fn objects_are_yielded_only_while_there_is_room_for_their_reconciles() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(2));
        queue.add([key("a"), key("b"), key("c"), key("d")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert_eq!(stream.next().await.unwrap().name, "b");
        assert!(stream.next().now_or_never().is_none(), "two are about to be reconciled");
        let work = queue.start(&key("a"));
        assert!(stream.next().now_or_never().is_none(), "one is reconciled, one is about to be");
        let (next, ()) = tokio::join!(stream.next(), async { drop(work) });
        assert_eq!(next.unwrap().name, "c");
        // Deleted before its reconcile started.
        queue.forget(&key("b"));
        assert_eq!(stream.next().await.unwrap().name, "d");
        assert_eq!(queue.metrics.depth.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_object_is_added_when_its_delay_ends() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(8));
        let begun = Instant::now();
        queue.add_after(&key("late"), Duration::from_secs(20));
        queue.add_after(&key("soon"), Duration::from_secs(30));
        queue.add_after(&key("soon"), Duration::from_secs(10));
        queue.add_after(&key("soon"), Duration::from_secs(40));
        for (name, seconds) in [("soon", 10), ("late", 20)] {
            assert_eq!(queue.metrics.depth.get(), 0);
            assert_eq!(stream.next().await.unwrap().name, name);
            assert_eq!(begun.elapsed().as_secs(), seconds);
            assert_eq!(queue.metrics.depth.get(), 1);
            drop(queue.start(&key(name)));
        }
        assert!(stream.next().now_or_never().is_none());
        assert_eq!(queue.metrics.adds.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_ends_with_the_reconcile_of_a_change_or_the_deletion_of_the_object() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(8));
        queue.add_after(&key("changed"), Duration::from_secs(1));
        queue.add_after(&key("deleted"), Duration::from_secs(1));
        queue.add([key("changed")]);
        assert_eq!(stream.next().await.unwrap().name, "changed");
        // It waits for its reconcile, so it need not be added.
        queue.add_after(&key("changed"), Duration::from_secs(1));
        drop(queue.start(&key("changed")));
        queue.forget(&key("deleted"));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(stream.next().now_or_never().is_none());
        assert_eq!(queue.queue.lock().next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_object_waits_for_room_as_others_do() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(1));
        queue.add([key("a"), key("b")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        let work = queue.start(&key("a"));
        queue.add_after(&key("a"), Duration::ZERO);
        assert!(stream.next().now_or_never().is_none());
        drop(work);
        assert_eq!(stream.next().await.unwrap().name, "b");
        drop(queue.start(&key("b")));
        assert_eq!(stream.next().await.unwrap().name, "a");
    }

    #[test]
    fn failures_are_counted_until_a_reconcile_succeeds_or_the_object_is_deleted() {
        let queue = queue();
        assert_eq!([queue.count_failure(&key("a")), queue.count_failure(&key("a"))], [0, 1]);
        assert_eq!(queue.count_failure(&key("b")), 0, "another object");
        assert_eq!([queue.forget_failures(&key("a")), queue.forget_failures(&key("a"))], [2, 0]);
        queue.forget(&key("b"));
        assert_eq!([queue.count_failure(&key("a")), queue.count_failure(&key("b"))], [0, 0]);
        queue.forget_all_failures();
        assert!(queue.failures.lock().is_empty());
    }

    #[tokio::test]
    async fn an_object_whose_reconcile_starts_does_not_wait_any_more() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(1));
        queue.add([key("a"), key("b")]);
        drop(queue.start(&key("a")));
        assert_eq!(stream.next().await.unwrap().name, "b");
    }

    #[tokio::test]
    async fn an_added_key_wakes_a_waiting_stream() {
        let queue = queue();
        let mut stream = pin!(queue.stream::<ServiceName>(1));
        let other = Arc::clone(&queue);
        let (next, ()) = tokio::join!(stream.next(), async move {
            tokio::task::yield_now().await;
            other.add([key("a")]);
        });
        assert_eq!(next.unwrap().name, "a");
    }
}
