//! The metrics of the watches: cache sizes, lag and failures.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::RwLock;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
    register_histogram_vec_with_registry, register_histogram_with_registry, register_int_counter_vec_with_registry,
};

use strum::VariantNames;

use super::status::WatchFailure;
use crate::cluster::{Cluster, Kind, State};

/// From the duration of one change to that of a relist of a large cluster.
const WRITE_LOCK_SECONDS: [f64; 10] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// The buckets of Linkerd's informer lag metrics.
const LAG_SECONDS: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0];

/// The classes of failures, as metric labels.
pub const FAILURE_CLASSES: &[&str] = WatchFailure::VARIANTS;

/// The metrics of the watches of a cluster.
#[derive(Clone)]
pub struct WatchMetrics {
    pub(in crate::cluster) undecodable: IntCounterVec,
    pub(in crate::cluster) unusable: IntCounterVec,
    pub(in crate::cluster) failures: IntCounterVec,
    pub(in crate::cluster) events: IntCounterVec,
    /// The failures of another cluster by class.
    remote_failures: Option<(IntCounterVec, Arc<str>)>,
    write_lock: HistogramVec,
    lag: Arc<HashMap<&'static str, Histogram>>,
}

impl WatchMetrics {
    /// Creates the metrics of this cluster.
    ///
    /// # Errors
    /// The metrics are already registered.
    pub(in crate::cluster) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let by_resource = |name, help| register_int_counter_vec_with_registry!(name, help, &["resource"], registry);
        // Linkerd's dashboards also use this metric. It stays empty, because EndpointSlices replace Endpoints.
        let not_watched = ["endpoints_informer_lag_seconds"];
        let mut lag = HashMap::new();
        for name in Kind::ALL.iter().copied().filter_map(Kind::informer_lag).chain(not_watched) {
            let help = "Time from an object's newest managedFields update (whole seconds, API server clock) to its watch event";
            let opts = HistogramOpts::new(name, help).buckets(LAG_SECONDS.to_vec());
            lag.insert(name, register_histogram_with_registry!(opts, registry)?);
        }
        let write_lock = HistogramOpts::new(
            "linkerd_operator_state_write_lock_seconds",
            "Time for which the cache was locked for a change or a whole list of a kind; discovery waits meanwhile",
        );
        let write_lock = write_lock.buckets(WRITE_LOCK_SECONDS.to_vec());
        let metrics = Self {
            undecodable: by_resource(
                "linkerd_operator_undecodable_objects_total",
                "Objects that could not be read; the last readable version is kept",
            )?,
            unusable: by_resource(
                "linkerd_operator_unusable_parts_total",
                "Parts of objects (an address, a port, a reference, a selector) that are unusable and were ignored",
            )?,
            failures: by_resource("linkerd_operator_watch_failures_total", "Failed lists and watches")?,
            events: by_resource("linkerd_operator_watch_events_total", "Objects received by list and watch")?,
            remote_failures: None,
            write_lock: register_histogram_vec_with_registry!(write_lock, &["resource"], registry)?,
            lag: Arc::new(lag),
        };
        for counter in [&metrics.undecodable, &metrics.unusable, &metrics.failures, &metrics.events] {
            for kind in Kind::ALL {
                counter.with_label_values(&[kind.resource()]);
            }
        }
        for kind in Kind::ALL {
            metrics.write_lock.with_label_values(&[kind.resource()]);
        }
        Ok(metrics)
    }

    /// Creates the metrics of all other clusters together. They are not exported.
    ///
    /// # Errors
    /// If a metric of this file is defined twice.
    pub fn of_remotes() -> prometheus::Result<Self> {
        Self::register(&Registry::new())
    }

    /// Returns the same metrics for one other cluster, whose failures are exported: `failures` has the labels `cluster`
    /// and `class`.
    #[must_use]
    pub fn of_remote(&self, cluster: &Arc<str>, failures: &IntCounterVec) -> Self {
        for class in FAILURE_CLASSES {
            failures.with_label_values(&[&**cluster, class]);
        }
        Self { remote_failures: Some((failures.clone(), Arc::clone(cluster))), ..self.clone() }
    }

    pub(in crate::cluster) fn observe_lag(&self, kind: Kind, seconds: f64) {
        if let Some(histogram) = kind.informer_lag().and_then(|name| self.lag.get(name)) {
            histogram.observe(seconds);
        }
    }

    pub(in crate::cluster) fn observe_write_lock(&self, kind: Kind, held: Duration) {
        self.write_lock.with_label_values(&[kind.resource()]).observe(held.as_secs_f64());
    }

    /// Returns the number of times that the state was locked for a change of the kind.
    #[cfg(test)]
    pub(in crate::cluster) fn write_locks(&self, kind: Kind) -> u64 {
        self.write_lock.with_label_values(&[kind.resource()]).get_sample_count()
    }

    pub(in crate::cluster) fn failed(&self, kind: Kind, class: &str) {
        self.failures.with_label_values(&[kind.resource()]).inc();
        if let Some((failures, cluster)) = &self.remote_failures {
            failures.with_label_values(&[&**cluster, class]).inc();
        }
    }
}

/// Exports the number of objects in the state, for how long watches have been failing, and which kinds are not served.
pub(in crate::cluster) fn register_cluster(registry: &Registry, cluster: &Cluster) -> prometheus::Result<()> {
    registry.register(Box::new(Sizes::new(&cluster.state)?))?;
    registry.register(Box::new(Staleness::new(cluster)?))
}

/// The number of objects of each kind in the state, measured at each scrape.
struct Sizes {
    state: Arc<RwLock<State>>,
    kinds: Vec<(Kind, Gauge)>,
    not_watched: Gauge,
}

impl Sizes {
    fn new(state: &Arc<RwLock<State>>) -> prometheus::Result<Self> {
        let size = |name: &str| {
            Gauge::with_opts(Opts::new(name, "Objects of this kind in the cache").const_label("cluster", "local"))
        };
        Ok(Self {
            state: Arc::clone(state),
            kinds: Kind::ALL
                .iter()
                .map(|kind| Ok((*kind, size(kind.cache_size())?)))
                .collect::<prometheus::Result<_>>()?,
            not_watched: size("endpoints_cache_size")?,
        })
    }

    fn gauges(&self) -> impl Iterator<Item = &Gauge> {
        self.kinds.iter().map(|(_, gauge)| gauge).chain([&self.not_watched])
    }
}

impl Collector for Sizes {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().flat_map(Collector::desc).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<MetricFamily> {
        let state = self.state.read();
        for (kind, gauge) in &self.kinds {
            gauge.set(kind.count(&state) as f64);
        }
        drop(state);
        self.gauges().flat_map(Collector::collect).collect()
    }
}

/// The time for which the watch of each kind has been failing, and whether the API server serves the kind.
struct Staleness {
    cluster: Cluster,
    seconds: GaugeVec,
    not_served: GaugeVec,
}

impl Staleness {
    fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "linkerd_operator_watch_staleness_seconds",
            "Time for which the watch of a kind has been failing and its objects may be out of date; 0 while it works",
        );
        let not_served = Opts::new(
            "linkerd_operator_watch_not_served",
            "1 while the API server does not serve a kind that is optional, such as a CRD that is not installed; otherwise 0",
        );
        Ok(Self {
            cluster: cluster.clone(),
            seconds: GaugeVec::new(opts, &["resource"])?,
            not_served: GaugeVec::new(not_served, &["resource"])?,
        })
    }
}

impl Collector for Staleness {
    fn desc(&self) -> Vec<&Desc> {
        [self.seconds.desc(), self.not_served.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for kind in Kind::ALL {
            let age = self.cluster.failing_for(&[*kind]).unwrap_or(Duration::ZERO);
            self.seconds.with_label_values(&[kind.resource()]).set(age.as_secs_f64());
            let not_served = f64::from(self.cluster.is_not_served(*kind));
            self.not_served.with_label_values(&[kind.resource()]).set(not_served);
        }
        [self.seconds.collect(), self.not_served.collect()].concat()
    }
}
