//! What the destination tells Prometheus: gRPC's metrics by the names that Go's middleware gives them, and our own.

use std::{sync::Arc, time::Duration};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    exponential_buckets,
};
use tokio::time::Instant;
use tonic::Code;

use super::http2::connection::Ended;

const SERVICE: &str = "io.linkerd.proxy.destination.Destination";

pub(super) struct Metrics {
    methods: [Calls; 2],
    add: IntCounter,
    remove: IntCounter,
    no_endpoints: IntCounter,
    profile: IntCounter,
    pub(super) published: IntCounter,
    shared_deltas: IntCounter,
    own_deltas: IntCounter,
    states: [IntGauge; 3],
    ended: IntCounterVec,
    applied: Histogram,
    encoded: Histogram,
    taken: Histogram,
    refused: IntCounterVec,
    connections: IntGauge,
    connections_ended: IntCounterVec,
}

/// A method of the Destination API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    GetProfile,
}

/// What Go's middleware counts of one method.
struct Calls {
    started: IntCounter,
    handled: IntCounterVec,
    received: IntCounter,
    sent: IntCounter,
    handling: Histogram,
}

/// How many messages of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Messages {
    pub(super) add: u32,
    pub(super) remove: u32,
    pub(super) no_endpoints: u32,
    pub(super) profile: u32,
}

/// What a stream is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// Nothing of it was taken by the transport yet.
    Opening,
    /// Its client has all there is.
    Idle,
    /// Something waits for its client.
    Blocked,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client went away, or its connection did.
    Client,
    /// The process stops.
    Shutdown,
    /// The target is answered in another way now; the client asks again.
    Rerouted,
    /// The client took nothing for too long.
    Stalled,
}

/// Why a stream was refused that could be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Its request had waited too long for its turn.
    Waited,
    /// There were as many as there may be.
    Full,
}

/// From the start of a call to its end, however it ends.
pub(super) struct Call {
    metrics: Arc<Metrics>,
    method: Method,
    begun: Instant,
    code: Code,
}

// === impl Metrics ===

impl Metrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let messages = IntCounterVec::new(
            Opts::new("linkerd_operator_discovery_messages_total", "Messages handed to the transport"),
            &["message"],
        )?;
        let deltas = IntCounterVec::new(
            Opts::new(
                "linkerd_operator_discovery_deltas_total",
                "Changes sent to streams: encoded once for all of a view, or for one stream that had fallen behind",
            ),
            &["encoded"],
        )?;
        let states = IntGaugeVec::new(
            Opts::new("linkerd_operator_discovery_streams", "Open streams, by what they are doing"),
            &["state"],
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new(
                "linkerd_operator_discovery_latency_seconds",
                "From the receipt of a watch event until its change was applied to the state, encoded, and taken by a stream's transport",
            )
            .buckets(exponential_buckets(0.000_1, 2.0, 18)?),
            &["stage"],
        )?;
        let metrics = Self {
            methods: [Calls::register(Method::Get, registry)?, Calls::register(Method::GetProfile, registry)?],
            add: messages.with_label_values(&["add"]),
            remove: messages.with_label_values(&["remove"]),
            no_endpoints: messages.with_label_values(&["no_endpoints"]),
            profile: messages.with_label_values(&["profile"]),
            published: IntCounter::new(
                "linkerd_operator_discovery_snapshots_total",
                "Snapshots and profiles published to views",
            )?,
            shared_deltas: deltas.with_label_values(&["once"]),
            own_deltas: deltas.with_label_values(&["alone"]),
            states: StreamState::ALL.map(|state| states.with_label_values(&[state.as_str()])),
            ended: IntCounterVec::new(
                Opts::new("linkerd_operator_discovery_streams_ended_total", "Streams that ended, by why"),
                &["reason"],
            )?,
            applied: latency.with_label_values(&["applied"]),
            encoded: latency.with_label_values(&["encoded"]),
            taken: latency.with_label_values(&["taken"]),
            refused: IntCounterVec::new(
                Opts::new(
                    "linkerd_operator_discovery_streams_refused_total",
                    "Streams refused with UNAVAILABLE: their requests had waited too long, or there were too many",
                ),
                &["reason"],
            )?,
            connections: IntGauge::new("linkerd_operator_discovery_connections", "Open connections")?,
            connections_ended: IntCounterVec::new(
                Opts::new("linkerd_operator_discovery_connections_ended_total", "Connections that ended, by why"),
                &["reason"],
            )?,
        };
        // Linkerd's destination ends a stream whose queue is full and counts it here. Ours has no queue; alerts stay valid.
        let overflow = IntCounterVec::new(
            Opts::new("endpoint_updates_queue_overflow", "Always 0: streams have no queue"),
            &["service"],
        )?;
        overflow.with_label_values(&[""]);
        for end in [End::Client, End::Shutdown, End::Rerouted, End::Stalled] {
            metrics.ended.with_label_values(&[end.as_str()]);
        }
        for busy in [Busy::Waited, Busy::Full] {
            metrics.refused.with_label_values(&[busy.as_str()]);
        }
        for ended in Ended::ALL {
            metrics.connections_ended.with_label_values(&[ended.as_str()]);
        }
        registry.register(Box::new(messages))?;
        registry.register(Box::new(metrics.published.clone()))?;
        registry.register(Box::new(deltas))?;
        registry.register(Box::new(states))?;
        registry.register(Box::new(metrics.ended.clone()))?;
        registry.register(Box::new(latency))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.connections_ended.clone()))?;
        registry.register(Box::new(overflow))?;
        Ok(Arc::new(metrics))
    }

    pub(super) fn began(self: &Arc<Self>, method: Method) -> Call {
        self.calls(method).started.inc();
        Call { metrics: Arc::clone(self), method, begun: Instant::now(), code: Code::Ok }
    }

    fn calls(&self, method: Method) -> &Calls {
        let [get, get_profile] = &self.methods;
        match method {
            Method::Get => get,
            Method::GetProfile => get_profile,
        }
    }

    pub(super) fn delta(&self, shared: bool) {
        if shared { &self.shared_deltas } else { &self.own_deltas }.inc();
    }

    pub(super) fn state(&self, state: StreamState) -> &IntGauge {
        let [opening, idle, blocked] = &self.states;
        match state {
            StreamState::Opening => opening,
            StreamState::Idle => idle,
            StreamState::Blocked => blocked,
        }
    }

    pub(super) fn ended(&self, end: End) {
        self.ended.with_label_values(&[end.as_str()]).inc();
    }

    pub(super) fn refused(&self, busy: Busy) {
        self.refused.with_label_values(&[busy.as_str()]).inc();
    }

    /// Counts a connection for as long as it is kept.
    pub(super) fn connection(&self) -> impl Drop + use<> {
        struct Open(IntGauge);
        impl Drop for Open {
            fn drop(&mut self) {
                self.0.dec();
            }
        }
        self.connections.inc();
        Open(self.connections.clone())
    }

    pub(super) fn connection_ended(&self, ended: Ended) {
        self.connections_ended.with_label_values(&[ended.as_str()]).inc();
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

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

// === impl Calls ===

impl Calls {
    fn register(method: Method, registry: &Registry) -> prometheus::Result<Self> {
        let call = |opts: Opts| {
            opts.const_label("grpc_type", "server_stream")
                .const_label("grpc_service", SERVICE)
                .const_label("grpc_method", method.as_str())
        };
        let counter = |name, help| IntCounter::with_opts(call(Opts::new(name, help)));
        let handling = HistogramOpts {
            common_opts: call(Opts::new("grpc_server_handling_seconds", "From the start of a stream to its end")),
            buckets: vec![0.1, 1.0, 300.0, 3600.0],
        };
        let handled = call(Opts::new("grpc_server_handled_total", "Streams that ended, by code"));
        let calls = Self {
            started: counter("grpc_server_started_total", "Streams that began")?,
            handled: IntCounterVec::new(handled, &["grpc_code"])?,
            received: counter("grpc_server_msg_received_total", "Messages received from clients")?,
            sent: counter("grpc_server_msg_sent_total", "Messages sent to clients")?,
            handling: Histogram::with_opts(handling)?,
        };
        for code in [
            Code::Ok,
            Code::InvalidArgument,
            Code::NotFound,
            Code::FailedPrecondition,
            Code::Unknown,
            Code::Unavailable,
            Code::Internal,
        ] {
            calls.handled.with_label_values(&[code_name(code)]);
        }
        for counter in [&calls.started, &calls.received, &calls.sent] {
            registry.register(Box::new(counter.clone()))?;
        }
        registry.register(Box::new(calls.handled.clone()))?;
        registry.register(Box::new(calls.handling.clone()))?;
        Ok(calls)
    }
}

// === impl Call ===

impl Call {
    pub(super) fn received(&self) {
        self.metrics.calls(self.method).received.inc();
    }

    pub(super) fn sent(&self, messages: Messages) {
        let Messages { add, remove, no_endpoints, profile } = messages;
        let metrics = &self.metrics;
        metrics.calls(self.method).sent.inc_by(u64::from(add + remove + no_endpoints + profile));
        metrics.add.inc_by(add.into());
        metrics.remove.inc_by(remove.into());
        metrics.no_endpoints.inc_by(no_endpoints.into());
        metrics.profile.inc_by(profile.into());
    }

    /// The code it will have ended with. A stream that its client leaves ended well: that is how streams end.
    pub(super) fn will_end(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let calls = self.metrics.calls(self.method);
        calls.handled.with_label_values(&[code_name(self.code)]).inc();
        calls.handling.observe(seconds(self.begun.elapsed()));
    }
}

// === impl Method ===

impl Method {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "Get",
            Self::GetProfile => "GetProfile",
        }
    }

    /// By the path of a request.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let name = path.strip_prefix('/')?.strip_prefix(SERVICE)?.strip_prefix('/')?;
        [Self::Get, Self::GetProfile].into_iter().find(|method| method.as_str() == name)
    }
}

// === impl StreamState ===

impl StreamState {
    const ALL: [Self; 3] = [Self::Opening, Self::Idle, Self::Blocked];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Idle => "idle",
            Self::Blocked => "blocked",
        }
    }
}

// === impl Busy ===

impl Busy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Waited => "waited",
            Self::Full => "full",
        }
    }
}

// === impl End ===

impl End {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Shutdown => "shutdown",
            Self::Rerouted => "rerouted",
            Self::Stalled => "stalled",
        }
    }
}

/// The names that Go's middleware uses.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
