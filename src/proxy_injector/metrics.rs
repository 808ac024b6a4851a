//! The metrics of the injector: those of Linkerd's injector, without its labels for the text of each annotation, which
//! tenants control.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{
    Histogram, IntCounterVec, IntGauge, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
    register_histogram_with_registry, register_int_counter_vec_with_registry,
};

use super::{decision::InjectionDecision, source::CurrentConfiguration};

/// The maximum number of namespaces that have series: what a cluster supports at most. The series of a namespace stay
/// when it is deleted.
const MAX_NAMESPACES: usize = 10_000;

#[derive(Clone)]
pub(super) struct InjectorMetrics {
    namespaces: Arc<Mutex<HashSet<Box<str>>>>,
    requests: IntCounterVec,
    responses: IntCounterVec,
    denied: IntCounterVec,
    seconds: Histogram,
}

/// Shows at each scrape whether the latest configuration is in use.
pub(super) struct ConfigurationCollector {
    current: Arc<CurrentConfiguration>,
    is_ready: IntGauge,
    is_refused: IntGauge,
}

/// The labels of a request.
#[derive(Clone, Copy)]
pub(super) struct RequestLabels<'a> {
    pub(super) owner_kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) annotation_at: &'a str,
}

// === impl InjectorMetrics ===

impl InjectorMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests = Opts::new(
            "proxy_inject_admission_requests_total",
            "Admission requests about Pods and Services that the proxy injector has received",
        );
        let responses = Opts::new(
            "proxy_inject_admission_responses_total",
            "Allowed admission requests, and whether a proxy was not injected, and why",
        );
        let denied = Opts::new(
            "linkerd_operator_proxy_injector_denied_total",
            "Pods that were denied because they cannot be injected",
        );
        let labels = ["owner_kind", "namespace", "annotation_at"];
        let skipped = ["owner_kind", "namespace", "annotation_at", "skip", "skip_reason"];
        let seconds = register_histogram_with_registry!(
            "linkerd_operator_proxy_injector_review_seconds",
            "Time from a whole request to its answer, with the look-ups at the API server, in seconds",
            vec![0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 3.0],
            registry
        )?;
        Ok(Self {
            namespaces: Arc::default(),
            seconds,
            requests: register_int_counter_vec_with_registry!(requests, &labels, registry)?,
            responses: register_int_counter_vec_with_registry!(responses, &skipped, registry)?,
            denied: register_int_counter_vec_with_registry!(denied, &["namespace"], registry)?,
        })
    }

    pub(super) fn allowed(&self, labels: &RequestLabels<'_>, decision: &InjectionDecision, is_patched: bool) {
        let labels = &self.limited(labels);
        self.request(labels);
        let reasons: Vec<_> = decision.skipped.iter().map(|reason| reason.key()).collect();
        let reasons = if is_patched { String::new() } else { reasons.join(",") };
        let skip = if is_patched { "false" } else { "true" };
        let RequestLabels { owner_kind, namespace, annotation_at } = labels;
        self.responses.with_label_values(&[*owner_kind, namespace, annotation_at, skip, &reasons]).inc();
    }

    pub(super) fn denied(&self, labels: &RequestLabels<'_>) {
        let labels = &self.limited(labels);
        self.request(labels);
        self.denied.with_label_values(&[labels.namespace]).inc();
    }

    pub(super) fn answered(&self, after: Duration) {
        self.seconds.observe(after.as_secs_f64());
    }

    /// Leaves out the namespace if too many others have series.
    fn limited<'a>(&self, labels: &RequestLabels<'a>) -> RequestLabels<'a> {
        let mut namespaces = self.namespaces.lock();
        let is_known = namespaces.contains(labels.namespace);
        if !is_known && namespaces.len() >= MAX_NAMESPACES {
            return RequestLabels { namespace: "", ..*labels };
        }
        if !is_known {
            namespaces.insert(labels.namespace.into());
        }
        *labels
    }

    fn request(&self, labels: &RequestLabels<'_>) {
        let RequestLabels { owner_kind, namespace, annotation_at } = labels;
        self.requests.with_label_values(&[*owner_kind, namespace, annotation_at]).inc();
    }
}

// === impl ConfigurationCollector ===

impl ConfigurationCollector {
    pub(super) fn new(current: &Arc<CurrentConfiguration>) -> prometheus::Result<Self> {
        let is_ready = IntGauge::new(
            "linkerd_operator_proxy_injector_configuration_in_use",
            "1 if the proxy injector has a configuration, otherwise 0",
        )?;
        let is_refused = IntGauge::new(
            "linkerd_operator_proxy_injector_configuration_refused",
            "1 if the latest configuration is not in use, otherwise 0",
        )?;
        Ok(Self { current: Arc::clone(current), is_ready, is_refused })
    }
}

impl Collector for ConfigurationCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.is_ready.desc(), self.is_refused.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.is_ready.set(self.current.get().is_some().into());
        self.is_refused.set(self.current.problem().is_some().into());
        [self.is_ready.collect(), self.is_refused.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_ten_thousand_namespaces_are_kept_and_no_more() {
        let registry = Registry::new();
        let metrics = InjectorMetrics::register(&registry).unwrap();
        for number in 0..20_000 {
            let namespace = format!("namespace-{number}");
            metrics.denied(&RequestLabels { owner_kind: "", namespace: &namespace, annotation_at: "" });
        }
        let families = registry.gather();
        let denied = families.iter().find(|it| it.name() == "linkerd_operator_proxy_injector_denied_total").unwrap();
        // One more is for all others.
        assert_eq!(denied.get_metric().len(), MAX_NAMESPACES + 1);
    }

    #[test]
    fn a_replica_that_has_read_nothing_has_no_configuration_in_use() {
        let collector = ConfigurationCollector::new(&Arc::default()).unwrap();
        let values =
            collector.collect().iter().map(|it| it.get_metric()[0].get_gauge().get_value()).collect::<Vec<_>>();
        assert_eq!(values, [0.0, 1.0]);
    }
}
