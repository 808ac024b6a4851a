//! The metrics of the injector: those of Linkerd's injector, without its labels for the text of each annotation, which
//! tenants control.

use prometheus::{IntCounterVec, Opts, Registry, register_int_counter_vec_with_registry};

use super::decision::InjectionDecision;

#[derive(Clone)]
pub(super) struct InjectorMetrics {
    requests: IntCounterVec,
    responses: IntCounterVec,
    denied: IntCounterVec,
}

/// The labels of a request.
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
        Ok(Self {
            requests: register_int_counter_vec_with_registry!(requests, &labels, registry)?,
            responses: register_int_counter_vec_with_registry!(responses, &skipped, registry)?,
            denied: register_int_counter_vec_with_registry!(denied, &["namespace"], registry)?,
        })
    }

    pub(super) fn allowed(&self, labels: &RequestLabels<'_>, decision: &InjectionDecision, is_patched: bool) {
        self.request(labels);
        let reasons: Vec<_> = decision.skipped.iter().map(|reason| reason.key()).collect();
        let reasons = if is_patched { String::new() } else { reasons.join(",") };
        let skip = if is_patched { "false" } else { "true" };
        let RequestLabels { owner_kind, namespace, annotation_at } = labels;
        self.responses.with_label_values(&[*owner_kind, namespace, annotation_at, skip, &reasons]).inc();
    }

    pub(super) fn denied(&self, labels: &RequestLabels<'_>) {
        self.request(labels);
        self.denied.with_label_values(&[labels.namespace]).inc();
    }

    fn request(&self, labels: &RequestLabels<'_>) {
        let RequestLabels { owner_kind, namespace, annotation_at } = labels;
        self.requests.with_label_values(&[*owner_kind, namespace, annotation_at]).inc();
    }
}
