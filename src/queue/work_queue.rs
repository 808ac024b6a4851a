//! The objects that a controller has to reconcile.
//!
//! In: keys, from cluster observers, changes of leadership and other components. Out: a stream of names for
//! kube-runtime's Controller. Always holds: an object waits at most once, so there are never more entries than objects;
//! a key that is added after [`WorkQueue::start`] is never lost, because a reconcile reads the state only after that.
//!
//! The metrics have the names and meanings of client-go's work queue.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use futures::{Stream, stream};
use kube::{Resource, runtime::reflector::ObjectRef};
use parking_lot::Mutex;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, exponential_buckets,
    register_histogram_with_registry, register_int_counter_with_registry, register_int_gauge_with_registry,
};
use tokio::{sync::Notify, time::Instant};

use crate::api::NamespacedName;

/// A coalescing queue of objects.
pub struct WorkQueue {
    queue: Mutex<Queue>,
    added: Notify,
    metrics: WorkQueueMetrics,
}

#[derive(Default)]
struct Queue {
    /// When each object that waits for its reconcile was added.
    waiting: HashMap<NamespacedName, Instant>,
    /// The waiting objects that the stream has not yielded yet, oldest first.
    unsent: VecDeque<NamespacedName>,
    /// When each reconcile in progress started.
    working: HashMap<NamespacedName, Instant>,
}

struct WorkQueueMetrics {
    depth: IntGauge,
    adds: IntCounter,
    queue_duration: Histogram,
    work_duration: Histogram,
    retries: IntCounter,
}

/// A reconcile in progress. Dropping it records the end, with any result.
pub struct Processing {
    queue: Arc<WorkQueue>,
    key: NamespacedName,
}

// === impl WorkQueue ===

impl WorkQueue {
    /// Creates a queue and registers its metrics with the label `name`.
    pub fn new(name: &'static str, registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let metrics = WorkQueueMetrics::register(name, registry)?;
        let queue = Arc::new(Self { queue: Mutex::default(), added: Notify::new(), metrics });
        registry.register(Box::new(Unfinished::new(name, Arc::clone(&queue))?))?;
        Ok(queue)
    }

    /// Adds objects to reconcile. An object that waits already is not added again.
    pub fn add(&self, objects: impl IntoIterator<Item = NamespacedName>) {
        let mut queue = self.queue.lock();
        let now = Instant::now();
        let mut any = false;
        for object in objects {
            if !queue.waiting.contains_key(&object) {
                queue.waiting.insert(object.clone(), now);
                queue.unsent.push_back(object);
                self.metrics.adds.inc();
                any = true;
            }
        }
        self.metrics.depth.set(i64::try_from(queue.waiting.len()).unwrap_or(i64::MAX));
        drop(queue);
        if any {
            self.added.notify_one();
        }
    }

    /// Returns the stream of added objects, for one Controller. It never ends.
    pub fn stream<K>(self: &Arc<Self>) -> impl Stream<Item = ObjectRef<K>> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        stream::unfold(Arc::clone(self), |queue| async move {
            loop {
                // `notify_one` keeps its permit, so a key that is added between the check and the wait is not missed.
                let next = queue.queue.lock().unsent.pop_front();
                if let Some(key) = next {
                    return Some((key.reference(), queue));
                }
                queue.added.notified().await;
            }
        })
    }

    /// Starts the reconcile of a key, which was added or requeued by a timer. A key that is added later causes another
    /// reconcile.
    pub fn start(self: &Arc<Self>, key: &NamespacedName) -> Processing {
        let now = Instant::now();
        if let Some(since) = self.forget(key) {
            self.metrics.queue_duration.observe((now - since).as_secs_f64());
        }
        self.queue.lock().working.insert(key.clone(), now);
        Processing { queue: Arc::clone(self), key: key.clone() }
    }

    /// Removes an object that was deleted or whose reconcile starts. Returns when it was added.
    pub fn forget(&self, key: &NamespacedName) -> Option<Instant> {
        let mut queue = self.queue.lock();
        let since = queue.waiting.remove(key);
        self.metrics.depth.set(i64::try_from(queue.waiting.len()).unwrap_or(i64::MAX));
        since
    }

    /// Counts a reconcile that failed and is retried after a delay.
    pub fn count_retry(&self) {
        self.metrics.retries.inc();
    }

    /// Removes and returns the keys that wait, sorted.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<NamespacedName> {
        let mut queue = self.queue.lock();
        queue.waiting.clear();
        let mut keys: Vec<_> = queue.unsent.drain(..).collect();
        keys.sort();
        keys
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
        if let Some(since) = self.queue.queue.lock().working.remove(&self.key) {
            self.queue.metrics.work_duration.observe(since.elapsed().as_secs_f64());
        }
    }
}

// === impl WorkQueueMetrics ===

impl WorkQueueMetrics {
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

    #[tokio::test]
    async fn an_object_added_many_times_waits_once_and_one_added_during_its_reconcile_is_reconciled_again() {
        let queue = WorkQueue::new("test", &Registry::new()).unwrap();
        let mut stream = pin!(queue.stream::<ServiceName>());
        queue.add([key("a"), key("a"), key("b")]);
        queue.add([key("a")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert_eq!(stream.next().await.unwrap().name, "b");
        assert!(stream.next().now_or_never().is_none());
        // Yielded but not started: the object still waits, and its reconcile will read all changes up to its start.
        queue.add([key("a")]);
        assert!(stream.next().now_or_never().is_none());
        let work = queue.start(&key("a"));
        queue.add([key("a")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        drop(work);
        assert_eq!(queue.metrics.adds.get(), 3);
        assert_eq!(queue.metrics.depth.get(), 2);
        assert_eq!(queue.metrics.work_duration.get_sample_count(), 1);
    }

    #[tokio::test]
    async fn an_added_key_wakes_a_waiting_stream() {
        let queue = WorkQueue::new("test", &Registry::new()).unwrap();
        let mut stream = pin!(queue.stream::<ServiceName>());
        let other = Arc::clone(&queue);
        let (next, ()) = tokio::join!(stream.next(), async move {
            tokio::task::yield_now().await;
            other.add([key("a")]);
        });
        assert_eq!(next.unwrap().name, "a");
    }
}
