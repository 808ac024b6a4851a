//! The metrics of the identity service: those of Linkerd with the same names, and the operator's own.
//!
//! Always holds: the labels `issuer` and `anchor` have at most [`LABELS`] values each.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{
    Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, Registry, exponential_buckets,
    register_gauge_vec_with_registry, register_gauge_with_registry, register_histogram_with_registry,
    register_int_counter_vec_with_registry, register_int_counter_with_registry, register_int_gauge_with_registry,
};
use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;
use tonic::Code;

use super::issuer::{Issuer, Leaf};
use crate::{
    grpc_metrics::{RpcMetrics, ServedMethod},
    text,
    x509::anchors::AnchorBundle,
};

/// The names of the service and of its method, in paths and metrics.
pub(super) const SERVICE: &str = "io.linkerd.proxy.identity.Identity";
pub(super) const METHOD: &str = "Certify";

/// The maximum number of issuers, and of trust anchors, with series of their own.
pub(super) const LABELS: usize = 20;
/// The number of hexadecimal digits that identify an issuer or a trust anchor.
const DIGITS: usize = 12;

/// The result of a change of the files, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Reload {
    Loaded,
    Unchanged,
    Invalid,
    Held,
}

/// The result of a review of a token, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum ReviewResult {
    Authenticated,
    /// Authenticated without the audience of the identity service.
    ApiAudience,
    Invalid,
    Unauthenticated,
    OtherAudience,
    Denied,
    Unavailable,
    Overloaded,
    /// An answer of a moment ago.
    Known,
}

/// The method, with the codes of its answers.
const CERTIFY: ServedMethod = ServedMethod {
    service: SERVICE,
    name: METHOD,
    type_: "unary",
    buckets: &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
    codes: &[
        Code::Ok,
        Code::InvalidArgument,
        Code::FailedPrecondition,
        Code::ResourceExhausted,
        Code::Unknown,
        Code::Unavailable,
        Code::Internal,
    ],
};

pub(super) struct IdentityMetrics {
    pub(super) certify: RpcMetrics,
    /// Linkerd's gauge.
    ttl: Gauge,
    issuer_start: GaugeVec,
    issuer_expiry: GaugeVec,
    anchor_expiry: GaugeVec,
    anchor_expired: IntGauge,
    reloads: IntCounterVec,
    reloaded: Gauge,
    differs: IntGauge,
    held: IntGauge,
    held_expires: IntGauge,
    lifetime: Histogram,
    clamped: IntCounter,
    issued: IntCounterVec,
    last_expiry: GaugeVec,
    reviews: ReviewMetrics,
    refused: IntCounterVec,
    /// The issuers with series, oldest first.
    issuers: Mutex<VecDeque<String>>,
}

/// The reviews of tokens.
struct ReviewMetrics {
    results: IntCounterVec,
    seconds: Histogram,
    in_flight: IntGauge,
    queue_seconds: Histogram,
}

/// A review that waits for the API server.
pub(super) struct ReviewUnderWay {
    metrics: Arc<IdentityMetrics>,
    since: Instant,
}

// === impl ReviewMetrics ===

impl ReviewMetrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            results: register_int_counter_vec_with_registry!(
                "linkerd_operator_identity_token_reviews_total",
                "Reviews of tokens, by result",
                &["result"],
                registry
            )?,
            seconds: register_histogram_with_registry!(
                "linkerd_operator_identity_token_review_seconds",
                "Time of a review of a token with its retries, without its time in the queue",
                exponential_buckets(0.001, 2.0, 14)?,
                registry
            )?,
            in_flight: register_int_gauge_with_registry!(
                "linkerd_operator_identity_token_reviews_in_flight",
                "Reviews of tokens that wait for the API server",
                registry
            )?,
            queue_seconds: register_histogram_with_registry!(
                "linkerd_operator_identity_queue_seconds",
                "Time that a review of a token waited for its turn",
                exponential_buckets(0.001, 2.0, 14)?,
                registry
            )?,
        })
    }
}

// === impl IdentityMetrics ===

impl IdentityMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let metrics = Self {
            certify: RpcMetrics::register(&CERTIFY, registry)?,
            ttl: register_gauge_with_registry!(
                "issuer_cert_ttl_seconds",
                "Seconds until the certificate of the issuer expires",
                registry
            )?,
            issuer_start: register_gauge_vec_with_registry!(
                "linkerd_operator_identity_issuer_not_before_timestamp_seconds",
                "When the certificate of the issuer begins to be valid, in seconds since 1970",
                &["issuer"],
                registry
            )?,
            issuer_expiry: register_gauge_vec_with_registry!(
                "linkerd_operator_identity_issuer_expiry_timestamp_seconds",
                "When the certificate of the issuer expires, in seconds since 1970",
                &["issuer"],
                registry
            )?,
            anchor_expiry: register_gauge_vec_with_registry!(
                "linkerd_operator_identity_trust_anchor_expiry_timestamp_seconds",
                "When a trust anchor expires, in seconds since 1970",
                &["anchor"],
                registry
            )?,
            anchor_expired: register_int_gauge_with_registry!(
                "linkerd_operator_identity_trust_anchor_expired",
                "1 if a trust anchor of the issuer has expired, which proxies ignore; else 0",
                registry
            )?,
            reloads: register_int_counter_vec_with_registry!(
                "linkerd_operator_identity_issuer_reloads_total",
                "Changes of the files of the issuer or of the trust anchors, by result",
                &["result"],
                registry
            )?,
            reloaded: register_gauge_with_registry!(
                "linkerd_operator_identity_issuer_reload_success_timestamp_seconds",
                "When the issuer in use was loaded, in seconds since 1970",
                registry
            )?,
            differs: register_int_gauge_with_registry!(
                "linkerd_operator_identity_issuer_differs_from_files",
                "1 if the issuer in use is not that of the files, because those cannot be used or are held; else 0",
                registry
            )?,
            held: register_int_gauge_with_registry!(
                "linkerd_operator_identity_issuer_held",
                "1 if a new issuer is held because not all proxies trust its root; else 0",
                registry
            )?,
            held_expires: register_int_gauge_with_registry!(
                "linkerd_operator_identity_issuer_held_expires",
                "1 if also less than two lifetimes of certificates are left for the issuer in use; else 0",
                registry
            )?,
            lifetime: register_histogram_with_registry!(
                "linkerd_operator_identity_leaf_lifetime_seconds",
                "Time from the issuance of a certificate to its end, in seconds",
                exponential_buckets(60.0, 4.0, 9)?,
                registry
            )?,
            clamped: register_int_counter_with_registry!(
                "linkerd_operator_identity_leaf_clamped_total",
                "Certificates that end earlier than configured, because the chain of the issuer ends",
                registry
            )?,
            issued: register_int_counter_vec_with_registry!(
                "linkerd_operator_identity_certificates_issued_total",
                "Certificates that were issued",
                &["issuer"],
                registry
            )?,
            last_expiry: register_gauge_vec_with_registry!(
                "linkerd_operator_identity_last_leaf_expiry_timestamp_seconds",
                "When the last certificate of an issuer expires, in seconds since 1970",
                &["issuer"],
                registry
            )?,
            reviews: ReviewMetrics::register(registry)?,
            refused: register_int_counter_vec_with_registry!(
                "linkerd_operator_identity_refused_total",
                "Calls without a certificate, by reason",
                &["reason"],
                registry
            )?,
            issuers: Mutex::default(),
        };
        metrics.expose_results();
        Ok(Arc::new(metrics))
    }

    /// Exposes each result from the start: Prometheus computes no increase for a series that begins with 1.
    fn expose_results(&self) {
        for reload in Reload::VARIANTS {
            self.reloads.with_label_values(&[reload.into_str()]);
        }
        for result in ReviewResult::VARIANTS {
            self.reviews.results.with_label_values(&[result.into_str()]);
        }
    }

    pub(super) fn reload(&self, result: Reload) {
        self.reloads.with_label_values(&[result.into_str()]).inc();
    }

    pub(super) fn differs(&self, differs: bool) {
        self.differs.set(differs.into());
    }

    /// Records whether a new issuer is held, and whether the one in use also ends soon.
    pub(super) fn held(&self, is_held: bool, is_urgent: bool) {
        self.held.set(is_held.into());
        self.held_expires.set(is_urgent.into());
    }

    /// Records the issuer and the trust anchors that are used from now on.
    pub(super) fn loaded(&self, issuer: &Issuer, anchors: &AnchorBundle, now: Timestamp) {
        self.reloaded.set(seconds(now));
        for (gauge, time) in [(&self.issuer_start, issuer.not_before()), (&self.issuer_expiry, issuer.expires())] {
            gauge.reset();
            gauge.with_label_values(&[label(issuer.key_id())]).set(seconds(time));
        }
        self.anchor_expiry.reset();
        for anchor in anchors.roots().iter().take(LABELS) {
            if let Some(end) = anchor.not_after {
                let digits = text::hex(anchor.sha256);
                self.anchor_expiry.with_label_values(&[label(&digits)]).set(seconds(end));
            }
        }
        let mut issuers = self.issuers.lock();
        if issuers.iter().all(|known| known != label(issuer.key_id())) {
            if issuers.len() >= LABELS
                && let Some(oldest) = issuers.pop_front()
            {
                // The series may not exist.
                _ = self.issued.remove_label_values(&[&oldest]);
                _ = self.last_expiry.remove_label_values(&[&oldest]);
            }
            issuers.push_back(label(issuer.key_id()).to_owned());
        }
    }

    /// Records what changes with the time alone.
    pub(super) fn time(&self, issuer_expires: Timestamp, anchor_expired: bool, now: Timestamp) {
        self.ttl.set(seconds(issuer_expires) - seconds(now));
        self.anchor_expired.set(anchor_expired.into());
    }

    pub(super) fn issued(&self, issuer: &Issuer, leaf: &Leaf, now: Timestamp) {
        let (issuer, end) = (label(issuer.key_id()), seconds(leaf.not_after));
        // A call that began long ago does not expose the series of an issuer again that were removed meanwhile. The lock
        // is held, so that they are not removed in between.
        let issuers = self.issuers.lock();
        if issuers.iter().any(|known| known == issuer) {
            self.issued.with_label_values(&[issuer]).inc();
            let last = self.last_expiry.with_label_values(&[issuer]);
            last.set(last.get().max(end));
        }
        drop(issuers);
        self.lifetime.observe((end - seconds(now)).max(0.0));
        self.clamped.inc_by(leaf.is_clamped.into());
    }

    pub(super) fn refused(&self, reason: &'static str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    pub(super) fn token_review(&self, result: ReviewResult) {
        self.reviews.results.with_label_values(&[result.into_str()]).inc();
    }

    pub(super) fn queued(&self, since: Instant) {
        self.reviews.queue_seconds.observe(since.elapsed().as_secs_f64());
    }

    /// Counts a review until the returned guard is dropped.
    pub(super) fn review_under_way(self: &Arc<Self>) -> ReviewUnderWay {
        self.reviews.in_flight.inc();
        ReviewUnderWay { metrics: Arc::clone(self), since: Instant::now() }
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.as_second() as f64
}

/// Returns the label of an issuer or a trust anchor with these hexadecimal digits.
pub(super) fn label(digits: &str) -> &str {
    digits.get(..DIGITS).unwrap_or(digits)
}

// === impl ReviewUnderWay ===

impl Drop for ReviewUnderWay {
    fn drop(&mut self) {
        self.metrics.reviews.in_flight.dec();
        self.metrics.reviews.seconds.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        identity::testing::{issue, load_of},
        x509::testing::{TestCa, now},
    };

    #[test]
    fn the_number_of_issuers_with_series_is_bounded_also_while_calls_with_older_ones_finish() {
        let registry = Registry::new();
        let metrics = IdentityMetrics::register(&registry).unwrap();
        let root = TestCa::root("root");
        let anchors = AnchorBundle::parse(root.pem.as_bytes()).unwrap();
        let issuers = (0..LABELS + 2).map(|number| load_of(&[&root.signs(&number.to_string(), |_| {})], &[&root]));
        let issuers: Vec<_> = issuers.collect::<Result<_, _>>().unwrap();
        for issuer in &issuers {
            metrics.loaded(issuer, &anchors, now());
        }
        for issuer in &issuers {
            metrics.issued(issuer, &issue(issuer), now());
        }
        let text = String::from_utf8(crate::metrics::encode(&registry).unwrap()).unwrap();
        for name in ["certificates_issued_total", "last_leaf_expiry_timestamp_seconds"] {
            let series = text.matches(&format!("linkerd_operator_identity_{name}{{issuer=\"")).count();
            assert_eq!(series, LABELS, "{name}");
        }
        assert_eq!(metrics.lifetime.get_sample_count(), issuers.len() as u64);
    }
}
