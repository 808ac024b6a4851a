//! The metrics of LinkerdTrusts, collected from their statuses at each scrape.

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::cluster::Cluster;

/// The number of digits of a fingerprint in a label.
const SHOWN: usize = 12;

pub(super) struct LinkerdTrustCollector {
    cluster: Cluster,
    /// Serializes scrapes: gauges are reset and refilled during collection.
    collecting: Mutex<()>,
    gauges: [GaugeVec; 6],
}

// === impl LinkerdTrustCollector ===

impl LinkerdTrustCollector {
    pub(super) fn new(cluster: &Cluster) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        Ok(Self {
            cluster: cluster.clone(),
            collecting: Mutex::default(),
            gauges: [
                gauge(
                    "linkerd_operator_trust_phase",
                    "The phase of each LinkerdTrust; the value is always 1",
                    &["name", "phase"],
                )?,
                gauge(
                    "linkerd_operator_trust_condition",
                    "The current status and reason of each condition of a LinkerdTrust; the value is always 1",
                    &["name", "type", "status", "reason"],
                )?,
                gauge(
                    "linkerd_operator_trust_anchor_expiry_timestamp_seconds",
                    "The end of each trust anchor that a LinkerdTrust declares or the bundle has",
                    &["name", "anchor"],
                )?,
                gauge(
                    "linkerd_operator_trust_anchor_proxies",
                    "The proxies that trust each trust anchor (trusted), and whose certificates reach it (presented)",
                    &["name", "anchor", "use"],
                )?,
                gauge(
                    "linkerd_operator_trust_issuer_expiry_timestamp_seconds",
                    "The end of the issuer of the newest certificate",
                    &["name"],
                )?,
                gauge(
                    "linkerd_operator_trust_proxies",
                    "The proxies of the mesh, by whether they trust the bundle",
                    &["name", "state"],
                )?,
            ],
        })
    }
}

impl Collector for LinkerdTrustCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "seconds and counts are small")]
    fn collect(&self) -> Vec<MetricFamily> {
        let _collecting = self.collecting.lock();
        self.gauges.iter().for_each(GaugeVec::reset);
        let [phases, conditions, ends, anchors, issuers, proxies] = &self.gauges;
        let trusts: Vec<_> = self.cluster.read().linkerd_trusts.iter().cloned().collect();
        for trust in trusts {
            let (name, status) = (&*trust.name, &trust.status);
            if let Some(phase) = status.phase {
                phases.with_label_values(&[name, phase.as_str()]).set(1.0);
            }
            for condition in &status.conditions {
                let labels = [name, &*condition.type_, &*condition.status, &*condition.reason];
                conditions.with_label_values(&labels).set(1.0);
            }
            // Others are chosen by tenants.
            for anchor in status.anchors.iter().filter(|anchor| anchor.desired || anchor.in_bundle) {
                let id = anchor.sha256.get(..SHOWN).unwrap_or_default();
                if let Some(end) = &anchor.expires {
                    ends.with_label_values(&[name, id]).set(end.0.as_second() as f64);
                }
                anchors.with_label_values(&[name, id, "trusted"]).set(anchor.trusted_by as f64);
                anchors.with_label_values(&[name, id, "presented"]).set(anchor.presented_by as f64);
            }
            if let Some(end) = status.issuer.as_ref().and_then(|issuer| issuer.expires.as_ref()) {
                issuers.with_label_values(&[name]).set(end.0.as_second() as f64);
            }
            if let Some(counted) = &status.proxies {
                for (state, count) in [
                    ("current", counted.current),
                    ("behind", counted.behind),
                    ("refusing", counted.refusing),
                    ("cut_off", counted.cut_off),
                    ("accepted", counted.accepted),
                    ("exposed", counted.exposed),
                    ("from_config_map", counted.from_config_map),
                    ("unobserved", counted.unobserved),
                ] {
                    proxies.with_label_values(&[name, state]).set(count as f64);
                }
            }
        }
        self.gauges.iter().flat_map(Collector::collect).collect()
    }
}
