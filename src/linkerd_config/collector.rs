//! The metrics of LinkerdConfigs, collected from their statuses at each scrape.

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::cluster::Cluster;

pub(super) struct LinkerdConfigCollector {
    cluster: Cluster,
    /// Serializes scrapes: gauges are reset and refilled during collection.
    collecting: Mutex<()>,
    info: GaugeVec,
    conditions: GaugeVec,
}

impl LinkerdConfigCollector {
    pub(super) fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        Ok(Self {
            cluster: cluster.clone(),
            collecting: Mutex::default(),
            info: GaugeVec::new(
                Opts::new(
                    "linkerd_operator_linkerdconfig_info",
                    "Information about each LinkerdConfig; the value is always 1",
                ),
                &["name", "active", "config_hash"],
            )?,
            conditions: GaugeVec::new(
                Opts::new(
                    "linkerd_operator_linkerdconfig_condition",
                    "The current status and reason of each condition of a LinkerdConfig; the value is always 1",
                ),
                &["name", "type", "status", "reason"],
            )?,
        })
    }
}

impl Collector for LinkerdConfigCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.info.desc(), self.conditions.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _collecting = self.collecting.lock();
        self.info.reset();
        self.conditions.reset();
        let configs: Vec<_> = self.cluster.read().linkerd_configs.iter().cloned().collect();
        for config in configs {
            let status = &config.status;
            let active = if status.active == Some(true) { "true" } else { "false" };
            let hash = status.config_hash.as_deref().unwrap_or_default();
            self.info.with_label_values(&[&*config.name, active, hash]).set(1.0);
            for condition in &status.conditions {
                let labels = [&*config.name, &*condition.type_, &*condition.status, &*condition.reason];
                self.conditions.with_label_values(&labels).set(1.0);
            }
        }
        [self.info.collect(), self.conditions.collect()].concat()
    }
}
