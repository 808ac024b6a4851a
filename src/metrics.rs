//! The registry of the process. Each module owns a small struct of metrics and registers it here; labels come from closed
//! sets, never from the names of objects.

use prometheus::{
    Encoder, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;

use crate::version;

/// A registry with what concerns the process as a whole.
///
/// # Errors
/// When a metric is registered twice.
pub fn registry() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    let info =
        Opts::new("linkerd_operator_build_info", "1, with the version, its commit and when it was built as labels");
    let info = IntGaugeVec::new(info, &["version", "commit", "date"])?;
    info.with_label_values(&[version::VERSION, version::COMMIT, version::BUILD_DATE]).set(1);
    registry.register(Box::new(info))?;
    registry.register(Box::new(Tasks::new()?))?;
    Ok(registry)
}

/// The tasks of the runtime that asks: a number that grows for ever is a leak.
struct Tasks(IntGauge);

impl Tasks {
    fn new() -> prometheus::Result<Self> {
        IntGauge::new("linkerd_operator_runtime_tasks", "Tasks that have not ended").map(Self)
    }
}

impl Collector for Tasks {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let tasks = Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks());
        self.0.set(i64::try_from(tasks).unwrap_or(i64::MAX));
        self.0.collect()
    }
}

/// All metrics in Prometheus' text format.
///
/// # Errors
/// When a metric family is inconsistent.
pub fn encode(registry: &Registry) -> prometheus::Result<Vec<u8>> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
