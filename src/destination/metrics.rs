//! The metrics of the destination server: the metrics of Go's gRPC middleware with the same names, and the operator's
//! own.

use std::{sync::Arc, time::Duration};

use prometheus::{
    Histogram, IntCounter, IntCounterVec, IntGauge, Registry, exponential_buckets,
    register_histogram_vec_with_registry, register_int_counter_vec_with_registry, register_int_counter_with_registry,
    register_int_gauge_vec_with_registry, register_int_gauge_with_registry,
};
use strum::VariantArray;
use tokio::time::Instant;
use tonic::Code;

use super::{
    http2::connection::ConnectionEnd,
    labels::{EndReason, MessageCounts, OverloadReason, RpcMethod, StreamState},
    settings::DestinationLimits,
};
use crate::grpc_metrics::{RpcMetrics, ServedMethod};

/// The name of the service in paths, metrics and health checks.
pub(super) const SERVICE: &str = "io.linkerd.proxy.destination.Destination";

pub(super) struct DiscoveryMetrics {
    methods: [RpcMetrics; RpcMethod::VARIANTS.len()],
    add: IntCounter,
    remove: IntCounter,
    no_endpoints: IntCounter,
    profile: IntCounter,
    pub(super) published: IntCounter,
    shared_deltas: IntCounter,
    own_deltas: IntCounter,
    states: [IntGauge; StreamState::VARIANTS.len()],
    streams_ended: IntCounterVec,
    applied: Histogram,
    encoded: Histogram,
    taken: Histogram,
    refused: IntCounterVec,
    connections: IntGauge,
    connections_ended: IntCounterVec,
}

/// Observes a call from its start to its end, however it ends.
pub(super) struct RpcObserver {
    pub(super) metrics: Arc<DiscoveryMetrics>,
    method: RpcMethod,
    started: Instant,
    code: Code,
}

// === impl DiscoveryMetrics ===

impl DiscoveryMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let messages = register_int_counter_vec_with_registry!(
            "linkerd_operator_discovery_messages_total",
            "Messages passed to the transport",
            &["message"],
            registry
        )?;
        let deltas = register_int_counter_vec_with_registry!(
            "linkerd_operator_discovery_deltas_total",
            "Changes sent to streams, encoded once for all streams of a view or alone for one stream",
            &["encoded"],
            registry
        )?;
        let states = register_int_gauge_vec_with_registry!(
            "linkerd_operator_discovery_streams",
            "Open streams, by state",
            &["state"],
            registry
        )?;
        let latency = register_histogram_vec_with_registry!(
            "linkerd_operator_discovery_latency_seconds",
            "Time from the receipt of a watch event until its change was applied to the state, encoded, and taken by a stream's transport",
            &["stage"],
            exponential_buckets(0.000_1, 2.0, 18)?,
            registry
        )?;
        let metrics = Self {
            methods: [
                RpcMetrics::register(&served(RpcMethod::Get), registry)?,
                RpcMetrics::register(&served(RpcMethod::GetProfile), registry)?,
            ],
            add: messages.with_label_values(&["add"]),
            remove: messages.with_label_values(&["remove"]),
            no_endpoints: messages.with_label_values(&["no_endpoints"]),
            profile: messages.with_label_values(&["profile"]),
            published: register_int_counter_with_registry!(
                "linkerd_operator_discovery_snapshots_total",
                "Snapshots and profiles published to views",
                registry
            )?,
            shared_deltas: deltas.with_label_values(&["once"]),
            own_deltas: deltas.with_label_values(&["alone"]),
            states: [StreamState::Opening, StreamState::Idle, StreamState::Blocked]
                .map(|state| states.with_label_values(&[state.into_str()])),
            streams_ended: register_int_counter_vec_with_registry!(
                "linkerd_operator_discovery_streams_ended_total",
                "Streams that ended, by reason",
                &["reason"],
                registry
            )?,
            applied: latency.with_label_values(&["applied"]),
            encoded: latency.with_label_values(&["encoded"]),
            taken: latency.with_label_values(&["taken"]),
            refused: register_int_counter_vec_with_registry!(
                "linkerd_operator_discovery_streams_refused_total",
                "Streams refused with UNAVAILABLE because a limit for clients was reached",
                &["reason"],
                registry
            )?,
            connections: register_int_gauge_with_registry!(
                "linkerd_operator_discovery_connections",
                "Open connections",
                registry
            )?,
            connections_ended: register_int_counter_vec_with_registry!(
                "linkerd_operator_discovery_connections_ended_total",
                "Connections that ended, by reason",
                &["reason"],
                registry
            )?,
        };
        // Linkerd's destination ends a stream whose queue is full and counts it here. This server has no queues, but
        // keeps the metric so that existing alerts stay valid.
        let overflow = register_int_counter_vec_with_registry!(
            "endpoint_updates_queue_overflow",
            "Always 0: streams have no queue",
            &["service"],
            registry
        )?;
        overflow.with_label_values(&[""]);
        for end in EndReason::VARIANTS {
            metrics.streams_ended.with_label_values(&[end.into_str()]);
        }
        for reason in OverloadReason::VARIANTS {
            metrics.refused.with_label_values(&[reason.into_str()]);
        }
        for end in ConnectionEnd::VARIANTS {
            metrics.connections_ended.with_label_values(&[end.into_str()]);
        }
        Ok(Arc::new(metrics))
    }

    /// Counts a call that starts.
    pub(super) fn observe(self: &Arc<Self>, method: RpcMethod) -> RpcObserver {
        self.method(method).started.inc();
        RpcObserver { metrics: Arc::clone(self), method, started: Instant::now(), code: Code::Ok }
    }

    fn method(&self, method: RpcMethod) -> &RpcMetrics {
        let [get, get_profile] = &self.methods;
        match method {
            RpcMethod::Get => get,
            RpcMethod::GetProfile => get_profile,
        }
    }

    pub(super) fn delta(&self, shared: bool) {
        if shared { &self.shared_deltas } else { &self.own_deltas }.inc();
    }

    /// Returns the gauge of the streams in a state.
    pub(super) fn streams(&self, state: StreamState) -> &IntGauge {
        let [opening, idle, blocked] = &self.states;
        match state {
            StreamState::Opening => opening,
            StreamState::Idle => idle,
            StreamState::Blocked => blocked,
        }
    }

    pub(super) fn stream_ended(&self, reason: EndReason) {
        self.streams_ended.with_label_values(&[reason.into_str()]).inc();
    }

    pub(super) fn stream_refused(&self, reason: OverloadReason) {
        self.refused.with_label_values(&[reason.into_str()]).inc();
    }

    /// Counts an open connection until the returned guard is dropped.
    pub(super) fn connection(&self) -> impl Drop + use<> {
        struct OpenConnection(IntGauge);
        impl Drop for OpenConnection {
            fn drop(&mut self) {
                self.0.dec();
            }
        }
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    pub(super) fn connection_ended(&self, end: ConnectionEnd) {
        self.connections_ended.with_label_values(&[end.into_str()]).inc();
    }

    pub(super) fn applied(&self, received: Instant) {
        self.applied.observe(seconds(received.elapsed()));
    }

    pub(super) fn encoded(&self, received: Instant) {
        self.encoded.observe(seconds(received.elapsed()));
    }

    pub(super) fn taken(&self, received: Instant) {
        self.taken.observe(seconds(received.elapsed()));
    }
}

fn served(method: RpcMethod) -> ServedMethod {
    ServedMethod {
        service: SERVICE,
        name: method.into_str(),
        type_: "server_stream",
        buckets: &[0.1, 1.0, 300.0, 3600.0],
        codes: &[
            Code::Ok,
            Code::InvalidArgument,
            Code::NotFound,
            Code::FailedPrecondition,
            Code::Unknown,
            Code::Unavailable,
            Code::Internal,
        ],
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// Exports the limits for clients, so that dashboards and alerts can compare them with what clients use.
pub(super) fn register_limits(registry: &Registry, limits: &DestinationLimits) -> prometheus::Result<()> {
    let per_connection = usize::try_from(limits.streams_per_connection).unwrap_or(usize::MAX);
    for (name, help, limit) in [
        ("linkerd_operator_discovery_max_connections", "Maximum number of connections", limits.connections),
        ("linkerd_operator_discovery_max_streams", "Maximum number of streams", limits.streams),
        (
            "linkerd_operator_discovery_max_streams_per_connection",
            "Maximum number of streams on one connection",
            per_connection,
        ),
    ] {
        let gauge = register_int_gauge_with_registry!(name, help, registry)?;
        gauge.set(i64::try_from(limit).unwrap_or(i64::MAX));
    }
    Ok(())
}

// === impl RpcObserver ===

impl RpcObserver {
    pub(super) fn received(&self) {
        self.metrics.method(self.method).received.inc();
    }

    pub(super) fn sent(&self, messages: MessageCounts) {
        let MessageCounts { add, remove, no_endpoints, profile } = messages;
        let metrics = &self.metrics;
        metrics.method(self.method).sent.inc_by(u64::from(add + remove + no_endpoints + profile));
        metrics.add.inc_by(add.into());
        metrics.remove.inc_by(remove.into());
        metrics.no_endpoints.inc_by(no_endpoints.into());
        metrics.profile.inc_by(profile.into());
    }

    /// Sets the status code of the call. The default is OK, because streams usually end when the client resets them.
    pub(super) fn set_code(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for RpcObserver {
    fn drop(&mut self) {
        let metrics = self.metrics.method(self.method);
        // A call that panics is dropped before it has a status.
        let code = if std::thread::panicking() { Code::Internal } else { self.code };
        metrics.handled(code, self.started);
    }
}
