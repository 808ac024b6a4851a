//! The metrics of other clusters, collected when Prometheus scrapes. A series ends with the link of its cluster.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{Multicluster, observer::KINDS};

pub(in crate::destination) struct RemoteClustersCollector {
    multicluster: Arc<Multicluster>,
    /// Serializes scrapes: metrics are reset and filled again during collection.
    scraping: Mutex<()>,
    synced: GaugeVec,
    staleness: GaugeVec,
    namespaces: GaugeVec,
    objects: GaugeVec,
    clusters: Gauge,
}

impl RemoteClustersCollector {
    pub(in crate::destination) fn new(multicluster: &Arc<Multicluster>) -> prometheus::Result<Self> {
        let by_cluster = |name, help| GaugeVec::new(Opts::new(name, help), &["cluster"]);
        Ok(Self {
            multicluster: Arc::clone(multicluster),
            scraping: Mutex::default(),
            synced: by_cluster(
                "linkerd_operator_remote_cluster_synced",
                "1 if every watched namespace of another cluster was listed once",
            )?,
            staleness: by_cluster(
                "linkerd_operator_remote_cluster_staleness_seconds",
                "Time for which a watch of another cluster has been failing and its endpoints may be out of date; 0 while all work",
            )?,
            namespaces: by_cluster(
                "linkerd_operator_remote_cluster_namespaces",
                "Namespaces of another cluster that are watched",
            )?,
            objects: GaugeVec::new(
                Opts::new("linkerd_operator_remote_cluster_objects", "Objects of another cluster in the cache"),
                &["cluster", "resource"],
            )?,
            clusters: Gauge::new("cluster_store_size", "Linked clusters")?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 5] {
        let Self { multicluster: _, scraping: _, synced, staleness, namespaces, objects, clusters } = self;
        [synced, staleness, namespaces, objects, clusters]
    }
}

impl Collector for RemoteClustersCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<MetricFamily> {
        let _scraping = self.scraping.lock();
        for gauge in [&self.synced, &self.staleness, &self.namespaces, &self.objects] {
            gauge.reset();
        }
        let clusters = self.multicluster.clusters();
        self.clusters.set(clusters.len() as f64);
        for cluster in clusters {
            let (name, states) = ([&*cluster.name], cluster.states());
            let synced = states.iter().all(|state| state.knows(KINDS));
            let failing = states.iter().filter_map(|state| state.failing_for(KINDS)).max();
            self.synced.with_label_values(&name).set(f64::from(u8::from(synced)));
            self.staleness.with_label_values(&name).set(failing.unwrap_or(Duration::ZERO).as_secs_f64());
            self.namespaces.with_label_values(&name).set(states.len() as f64);
            let mut objects: HashMap<&str, usize> = HashMap::new();
            for state in &states {
                let state = state.read();
                for kind in KINDS {
                    *objects.entry(kind.resource()).or_default() += kind.count(&state);
                }
            }
            for kind in KINDS {
                let count = objects.get(kind.resource()).copied().unwrap_or_default();
                self.objects.with_label_values(&[&cluster.name, kind.resource()]).set(count as f64);
            }
        }
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}
