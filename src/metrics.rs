//! The registry of the process. Each module owns a small struct of metrics and registers it here.
//!
//! Most labels come from closed sets. The exceptions are bounded by what the process serves or configures: the series
//! of an endpoint or profile view carry the names of its Service, and exist only while a stream follows the view; the
//! series of a LinkerdConfig carry its name, and are removed with the resource.

use prometheus::{
    Encoder, IntGauge, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
    register_int_gauge_vec_with_registry,
};
use tokio::runtime::Handle;

use crate::version;

/// Returns a registry with the metrics of the process as a whole.
///
/// # Errors
/// Fails if a metric is registered twice.
pub fn registry() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    let info = register_int_gauge_vec_with_registry!(
        "linkerd_operator_build_info",
        "Always 1; the labels are the version, its commit and its build date",
        &["version", "commit", "date"],
        registry
    )?;
    info.with_label_values(&[version::VERSION, version::COMMIT, version::BUILD_DATE]).set(1);
    registry.register(Box::new(TaskCollector::new()?))?;
    Ok(registry)
}

/// Counts the tasks of the runtime at each scrape: a number that grows without limit is a leak.
struct TaskCollector(IntGauge);

impl TaskCollector {
    fn new() -> prometheus::Result<Self> {
        IntGauge::new("linkerd_operator_runtime_tasks", "Number of runtime tasks that have not ended").map(Self)
    }
}

impl Collector for TaskCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let tasks = Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks());
        self.0.set(i64::try_from(tasks).unwrap_or(i64::MAX));
        self.0.collect()
    }
}

/// Returns all metrics in Prometheus' text format.
///
/// # Errors
/// Fails if a metric family is inconsistent.
pub fn encode(registry: &Registry) -> prometheus::Result<Vec<u8>> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(text)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
