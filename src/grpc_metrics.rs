//! The metrics of Go's gRPC middleware, with the same names, for the methods that this process serves.
//!
//! In: the calls of a method. Out: their series. Always holds: all methods have the same label names and help texts, as
//! one registry demands of one name.

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, register_histogram_with_registry,
    register_int_counter_vec_with_registry, register_int_counter_with_registry,
};
use tokio::time::Instant;
use tonic::Code;

/// A method of a service.
pub(crate) struct ServedMethod {
    pub(crate) service: &'static str,
    pub(crate) name: &'static str,
    /// `unary` or `server_stream`.
    pub(crate) type_: &'static str,
    /// The buckets of the durations, in seconds.
    pub(crate) buckets: &'static [f64],
    /// The codes whose series exist from the start.
    pub(crate) codes: &'static [Code],
}

/// The metrics of one method.
pub(crate) struct RpcMetrics {
    pub(crate) started: IntCounter,
    handled: IntCounterVec,
    pub(crate) received: IntCounter,
    pub(crate) sent: IntCounter,
    handling: Histogram,
}

// === impl RpcMetrics ===

impl RpcMetrics {
    pub(crate) fn register(method: &ServedMethod, registry: &Registry) -> prometheus::Result<Self> {
        let opts = |name, help| {
            Opts::new(name, help)
                .const_label("grpc_type", method.type_)
                .const_label("grpc_service", method.service)
                .const_label("grpc_method", method.name)
        };
        let counter = |name, help| register_int_counter_with_registry!(opts(name, help), registry);
        let handling = HistogramOpts {
            common_opts: opts("grpc_server_handling_seconds", "Time from the start of a call to its end"),
            buckets: method.buckets.to_vec(),
        };
        let handled = opts("grpc_server_handled_total", "Calls that ended, by code");
        let metrics = Self {
            started: counter("grpc_server_started_total", "Calls that were started")?,
            handled: register_int_counter_vec_with_registry!(handled, &["grpc_code"], registry)?,
            received: counter("grpc_server_msg_received_total", "Messages received from clients")?,
            sent: counter("grpc_server_msg_sent_total", "Messages sent to clients")?,
            handling: register_histogram_with_registry!(handling, registry)?,
        };
        for code in method.codes {
            metrics.handled.with_label_values(&[code_name(*code)]);
        }
        Ok(metrics)
    }

    /// Counts a call that ends with this code.
    pub(crate) fn handled(&self, code: Code, started: Instant) {
        self.handled.with_label_values(&[code_name(code)]).inc();
        self.handling.observe(started.elapsed().as_secs_f64());
    }
}

/// The names that Go's gRPC middleware uses.
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
