//! The metrics of the webhooks' certificates.

use std::sync::Arc;

use jiff::Timestamp;
use prometheus::{
    IntCounterVec, IntGauge, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
    register_int_counter_vec_with_registry,
};

use super::secret::{AUTHORITY_PART, LEAF_PART};
use crate::{webhook::ServingCertificate, write::WriteError};

pub(super) struct CertificateMetrics {
    rotations: IntCounterVec,
    bundles: IntCounterVec,
}

/// Computes the gauge when it is read.
struct ExpiryCollector {
    certificate: Arc<ServingCertificate>,
    gauge: IntGauge,
}

/// Publishes when the certificate in use expires.
///
/// # Errors
/// When the metric is registered already.
pub fn publish_expiry(certificate: &Arc<ServingCertificate>, registry: &Registry) -> prometheus::Result<()> {
    let gauge = IntGauge::with_opts(Opts::new(
        "linkerd_operator_webhook_certificate_expiry_timestamp_seconds",
        "When the certificate of the webhooks expires, in seconds since the Unix epoch; 0 without a certificate",
    ))?;
    registry.register(Box::new(ExpiryCollector { certificate: Arc::clone(certificate), gauge }))
}

// === impl CertificateMetrics ===

impl CertificateMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            rotations: register_int_counter_vec_with_registry!(
                "linkerd_operator_webhook_certificate_rotations_total",
                "Writes of a new certificate of the webhooks or of its authority, by part and result",
                &["part", "result"],
                registry
            )?,
            bundles: register_int_counter_vec_with_registry!(
                "linkerd_operator_webhook_ca_bundle_writes_total",
                "Writes of the caBundle of webhook configurations",
                &["result"],
                registry
            )?,
        };
        for result in WriteError::RESULTS {
            metrics.bundles.with_label_values(&[result]);
            for part in [AUTHORITY_PART, LEAF_PART] {
                metrics.rotations.with_label_values(&[part, result]);
            }
        }
        Ok(metrics)
    }

    pub(super) fn rotated<T>(&self, part: &'static str, result: &Result<T, WriteError>) {
        if let Some(result) = WriteError::result(result) {
            self.rotations.with_label_values(&[part, result]).inc();
        }
    }

    pub(super) fn published<T>(&self, result: &Result<T, WriteError>) {
        if let Some(result) = WriteError::result(result) {
            self.bundles.with_label_values(&[result]).inc();
        }
    }
}

// === impl ExpiryCollector ===

impl Collector for ExpiryCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(self.certificate.not_after().map_or(0, Timestamp::as_second));
        self.gauge.collect()
    }
}
