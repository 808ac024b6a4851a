//! Linkerd's `endpoints_*` metrics: one line for each Service, port, instance and, where it matters, node that anybody looks
//! at, made when somebody asks. A line goes with its last client, so there are never more than views.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    CounterVec, GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::views::{Group, Views};

const LABELS: [&str; 6] = ["cluster", "namespace", "service", "port", "hostname", "nodename"];

pub(in crate::destination) struct Groups {
    views: Arc<Views>,
    /// Held by who looks: what is set anew must not be read by another meanwhile.
    looking: Mutex<()>,
    subscribers: GaugeVec,
    updates: CounterVec,
    pods: GaugeVec,
    exists: GaugeVec,
    clusters: prometheus::Gauge,
}

impl Groups {
    pub(in crate::destination) fn new(views: &Arc<Views>) -> prometheus::Result<Self> {
        let gauge = |name, help| GaugeVec::new(Opts::new(name, help), &LABELS);
        Ok(Self {
            views: Arc::clone(views),
            looking: Mutex::default(),
            subscribers: gauge("endpoints_subscribers", "Streams that follow the endpoints")?,
            updates: CounterVec::new(
                Opts::new("endpoints_updates", "How often the endpoints were looked at for changes"),
                &LABELS,
            )?,
            pods: gauge("endpoints_pods", "Endpoints that streams were told of")?,
            exists: gauge("endpoints_exists", "1 while the Service exists")?,
            clusters: prometheus::Gauge::new("cluster_store_size", "Linked clusters")?,
        })
    }
}

impl Collector for Groups {
    fn desc(&self) -> Vec<&Desc> {
        let groups =
            [self.subscribers.desc(), self.pods.desc(), self.exists.desc(), self.updates.desc(), self.clusters.desc()];
        groups.concat()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<MetricFamily> {
        let _looking = self.looking.lock();
        for gauge in [&self.subscribers, &self.pods, &self.exists] {
            gauge.reset();
        }
        self.updates.reset();
        for Group { service, query, node, subscribers, updates, pods, exists } in self.views.groups() {
            let port = query.port.to_string();
            let instance = query.instance.as_deref().unwrap_or_default();
            let labels = ["local", &*service.namespace, &*service.name, &port, instance, &*node];
            self.subscribers.with_label_values(&labels).set(subscribers as f64);
            self.updates.with_label_values(&labels).inc_by(updates as f64);
            self.pods.with_label_values(&labels).set(pods as f64);
            self.exists.with_label_values(&labels).set(f64::from(u8::from(exists)));
        }
        let families = [
            self.subscribers.collect(),
            self.updates.collect(),
            self.pods.collect(),
            self.exists.collect(),
            self.clusters.collect(),
        ];
        families.concat()
    }
}
