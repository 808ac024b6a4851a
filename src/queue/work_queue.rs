//! The objects that a controller has to look at, waiting for it.
//!
//! In: marks from the watches, from a change of leadership, from anybody who wants an object looked at. Out: a stream of
//! names for kube-runtime's Controller. Always holds: an object waits at most once, however often it is marked, so there
//! are never more entries than objects; and a mark made after [`Triggers::started`] is never lost, because a reconcile
//! reads the state only after that.
//!
//! This is what client-go's work queue is to Linkerd's Go controller, so it reports the same metrics under the same name.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use futures::{Stream, stream};
use kube::{Resource, runtime::reflector::ObjectRef};
use parking_lot::Mutex;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntGauge, Opts, Registry, exponential_buckets};
use tokio::{sync::Notify, time::Instant};

use crate::api::NamespacedName;

/// A coalescing queue of objects.
pub struct Triggers {
    queue: Mutex<Queue>,
    marked: Notify,
    metrics: Metrics,
}

#[derive(Default)]
struct Queue {
    /// Since when an object waits for its reconcile to start.
    waiting: HashMap<NamespacedName, Instant>,
    /// Those of them that the Controller has not been told of yet, oldest first.
    untold: VecDeque<NamespacedName>,
    /// Reconciles under way, and since when.
    working: HashMap<NamespacedName, Instant>,
}

struct Metrics {
    depth: IntGauge,
    adds: IntCounter,
    queue_duration: Histogram,
    work_duration: Histogram,
    retries: IntCounter,
}

/// A reconcile under way; its end is the end of the work, however it ends.
pub struct Work {
    triggers: Arc<Triggers>,
    key: NamespacedName,
}

// === impl Triggers ===

impl Triggers {
    /// `name` tells the metrics of several from each other.
    pub fn new(name: &'static str, registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let metrics = Metrics::register(name, registry)?;
        let triggers = Arc::new(Self { queue: Mutex::default(), marked: Notify::new(), metrics });
        registry.register(Box::new(Unfinished::new(name, Arc::clone(&triggers))?))?;
        Ok(triggers)
    }

    /// Has each object reconciled, once, as soon as there is room.
    pub fn mark(&self, objects: impl IntoIterator<Item = NamespacedName>) {
        let mut queue = self.queue.lock();
        let now = Instant::now();
        let mut any = false;
        for object in objects {
            if !queue.waiting.contains_key(&object) {
                queue.waiting.insert(object.clone(), now);
                queue.untold.push_back(object);
                self.metrics.adds.inc();
                any = true;
            }
        }
        self.metrics.depth.set(i64::try_from(queue.waiting.len()).unwrap_or(i64::MAX));
        drop(queue);
        if any {
            self.marked.notify_one();
        }
    }

    /// What was marked, for one Controller. Never ends.
    pub fn stream<K>(self: &Arc<Self>) -> impl Stream<Item = ObjectRef<K>> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + 'static,
    {
        stream::unfold(Arc::clone(self), |triggers| async move {
            loop {
                // `notify_one` keeps its permit, so a mark between the look and the wait is not missed.
                let next = triggers.queue.lock().untold.pop_front();
                if let Some(key) = next {
                    return Some((key.reference(), triggers));
                }
                triggers.marked.notified().await;
            }
        })
    }

    /// A reconcile begins, for a mark or for a timer. From now on a mark means another one.
    pub fn started(self: &Arc<Self>, key: &NamespacedName) -> Work {
        let now = Instant::now();
        if let Some(since) = self.forget(key) {
            self.metrics.queue_duration.observe((now - since).as_secs_f64());
        }
        self.queue.lock().working.insert(key.clone(), now);
        Work { triggers: Arc::clone(self), key: key.clone() }
    }

    /// The object is gone: no reconcile will start for its mark.
    pub fn forget(&self, key: &NamespacedName) -> Option<Instant> {
        let mut queue = self.queue.lock();
        let since = queue.waiting.remove(key);
        self.metrics.depth.set(i64::try_from(queue.waiting.len()).unwrap_or(i64::MAX));
        since
    }

    /// A reconcile failed and comes again after a delay.
    pub fn retried(&self) {
        self.metrics.retries.inc();
    }

    /// The seconds of all work under way, and of the longest.
    fn unfinished(&self) -> (f64, f64) {
        let queue = self.queue.lock();
        let seconds = queue.working.values().map(|since| since.elapsed().as_secs_f64());
        seconds.fold((0.0, 0.0), |(sum, longest): (f64, f64), age| (sum + age, longest.max(age)))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(since) = self.triggers.queue.lock().working.remove(&self.key) {
            self.triggers.metrics.work_duration.observe(since.elapsed().as_secs_f64());
        }
    }
}

// === impl Metrics ===

impl Metrics {
    fn register(queue: &'static str, registry: &Registry) -> prometheus::Result<Self> {
        let opts = |name, help| opts(queue, name, help);
        // client-go's buckets: 10 ns to 10 s.
        let histogram = |name, help| {
            Histogram::with_opts(
                HistogramOpts::new(name, help).const_label("name", queue).buckets(exponential_buckets(1e-8, 10.0, 10)?),
            )
        };
        let metrics = Self {
            depth: IntGauge::with_opts(opts("workqueue_depth", "Objects waiting to be reconciled"))?,
            adds: IntCounter::with_opts(opts("workqueue_adds_total", "Objects that began to wait"))?,
            queue_duration: histogram(
                "workqueue_queue_duration_seconds",
                "How long an object waited for its reconcile to start",
            )?,
            work_duration: histogram("workqueue_work_duration_seconds", "How long a reconcile took")?,
            retries: IntCounter::with_opts(opts("workqueue_retries_total", "Reconciles that failed and come again"))?,
        };
        registry.register(Box::new(metrics.depth.clone()))?;
        registry.register(Box::new(metrics.adds.clone()))?;
        registry.register(Box::new(metrics.queue_duration.clone()))?;
        registry.register(Box::new(metrics.work_duration.clone()))?;
        registry.register(Box::new(metrics.retries.clone()))?;
        // Linkerd drops a key after 15 failures and counts it here. Nothing is ever dropped by us; alerts on it stay valid.
        registry.register(Box::new(IntCounter::with_opts(opts(
            "workqueue_drops_total",
            "Always 0: no object is given up",
        ))?))?;
        Ok(metrics)
    }
}

fn opts(queue: &str, name: &str, help: &str) -> Opts {
    Opts::new(name, help).const_label("name", queue)
}

/// Work under way, measured when somebody looks.
struct Unfinished {
    triggers: Arc<Triggers>,
    sum: prometheus::Gauge,
    longest: prometheus::Gauge,
}

impl Unfinished {
    fn new(queue: &'static str, triggers: Arc<Triggers>) -> prometheus::Result<Self> {
        let gauge = |name, help| prometheus::Gauge::with_opts(opts(queue, name, help));
        Ok(Self {
            triggers,
            sum: gauge("workqueue_unfinished_work_seconds", "Seconds of all reconciles under way")?,
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "Seconds of the longest reconcile under way",
            )?,
        })
    }
}

impl prometheus::core::Collector for Unfinished {
    fn desc(&self) -> Vec<&prometheus::core::Desc> {
        self.sum.desc().into_iter().chain(self.longest.desc()).collect()
    }

    fn collect(&self) -> Vec<prometheus::proto::MetricFamily> {
        let (sum, longest) = self.triggers.unfinished();
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
    use crate::cluster::kinds::service::ServiceName;

    fn key(name: &str) -> NamespacedName {
        NamespacedName::new("ns", name)
    }

    #[tokio::test]
    async fn a_service_marked_many_times_waits_once_and_a_mark_during_its_work_means_another() {
        let triggers = Triggers::new("test", &Registry::new()).unwrap();
        let mut stream = pin!(triggers.stream::<ServiceName>());
        triggers.mark([key("a"), key("a"), key("b")]);
        triggers.mark([key("a")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        assert_eq!(stream.next().await.unwrap().name, "b");
        assert!(stream.next().now_or_never().is_none());
        // Told, but not started: it still waits, and its reconcile will see what happens until it starts.
        triggers.mark([key("a")]);
        assert!(stream.next().now_or_never().is_none());
        let work = triggers.started(&key("a"));
        triggers.mark([key("a")]);
        assert_eq!(stream.next().await.unwrap().name, "a");
        drop(work);
        assert_eq!(triggers.metrics.adds.get(), 3);
        assert_eq!(triggers.metrics.depth.get(), 2);
        assert_eq!(triggers.metrics.work_duration.get_sample_count(), 1);
    }

    #[tokio::test]
    async fn a_mark_wakes_a_waiting_stream() {
        let triggers = Triggers::new("test", &Registry::new()).unwrap();
        let mut stream = pin!(triggers.stream::<ServiceName>());
        let marker = Arc::clone(&triggers);
        let (next, ()) = tokio::join!(stream.next(), async move {
            tokio::task::yield_now().await;
            marker.mark([key("a")]);
        });
        assert_eq!(next.unwrap().name, "a");
    }
}
