//! Linkerd's `endpoints_*` metrics: one time series for each Service, port, hostname and, where it matters, node that a
//! client subscribes to. The metrics are collected from the views when Prometheus scrapes. A series ends with its last
//! client, so the number of series never exceeds the number of views.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    CounterVec, GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::views::{EndpointViews, EndpointsSeries};

const LABELS: [&str; 6] = ["cluster", "namespace", "service", "port", "hostname", "nodename"];

pub(in crate::destination) struct EndpointsCollector {
    views: Arc<EndpointViews>,
    /// Serializes scrapes: metrics are reset and filled again during collection.
    scraping: Mutex<()>,
    subscribers: GaugeVec,
    updates: CounterVec,
    pods: GaugeVec,
    exists: GaugeVec,
}

impl EndpointsCollector {
    pub(in crate::destination) fn new(views: &Arc<EndpointViews>) -> prometheus::Result<Self> {
        let gauge = |name, help| GaugeVec::new(Opts::new(name, help), &LABELS);
        Ok(Self {
            views: Arc::clone(views),
            scraping: Mutex::default(),
            subscribers: gauge("endpoints_subscribers", "Streams that subscribe to the endpoints")?,
            updates: CounterVec::new(
                Opts::new("endpoints_updates", "How often the endpoints were checked for changes"),
                &LABELS,
            )?,
            pods: gauge("endpoints_pods", "Endpoints that streams receive")?,
            exists: gauge("endpoints_exists", "1 while the Service exists")?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 4] {
        let Self { views: _, scraping: _, subscribers, updates, pods, exists } = self;
        [subscribers, updates, pods, exists]
    }
}

impl Collector for EndpointsCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<MetricFamily> {
        let _scraping = self.scraping.lock();
        for gauge in [&self.subscribers, &self.pods, &self.exists] {
            gauge.reset();
        }
        self.updates.reset();
        let all = self.views.registry.index().series();
        for EndpointsSeries { service, port, instance, node, subscribers, updates, pods, exists } in all {
            let port = port.to_string();
            let instance = instance.as_deref().unwrap_or_default();
            let labels = ["local", &*service.namespace, &*service.name, &port, instance, &*node];
            self.subscribers.with_label_values(&labels).set(subscribers as f64);
            self.updates.with_label_values(&labels).inc_by(updates as f64);
            self.pods.with_label_values(&labels).set(pods as f64);
            self.exists.with_label_values(&labels).set(f64::from(u8::from(exists)));
        }
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}
