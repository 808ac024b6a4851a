//! The registry of the process. Each module owns a small struct of metrics and registers it here.
//!
//! Most labels come from closed sets. The exceptions are bounded by what the process serves or configures: the series
//! of an endpoint or profile view carry the names of its Service, and exist only while a stream follows the view; the
//! series of a LinkerdConfig carry its name, and are removed with the resource.

use parking_lot::Mutex;
use prometheus::{
    Encoder, IntCounter, IntGauge, Registry, TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
    register_int_gauge_vec_with_registry, register_int_gauge_with_registry,
};
use tokio::runtime::Handle;

use crate::{
    contain,
    memory::{self, MemoryBudget},
    version,
};

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
    registry.register(Box::new(RuntimeCollector::new()?))?;
    Ok(registry)
}

/// Exports the memory limit of the process in bytes, and the budgets that follow from it.
///
/// # Errors
/// Fails if a metric is registered twice.
pub fn register_memory_limit(registry: &Registry, limit: u64) -> prometheus::Result<()> {
    let bytes = register_int_gauge_with_registry!(
        "linkerd_operator_memory_limit_bytes",
        "The memory limit of the process: the lowest of its control groups and of its resource limit",
        registry
    )?;
    bytes.set(i64::try_from(limit).unwrap_or(i64::MAX));
    let budgets = register_int_gauge_vec_with_registry!(
        "linkerd_operator_memory_budget_bytes",
        "Allocated bytes up to which memory is added for a use",
        &["use"],
        registry
    )?;
    for (use_, bytes) in MemoryBudget::of_limit(limit).bytes() {
        budgets.with_label_values(&[use_]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// Reads the number of tasks, the allocated memory and the number of panics at each scrape. A number of tasks or bytes that
/// grows without limit is a leak.
struct RuntimeCollector {
    tasks: IntGauge,
    allocated: IntGauge,
    panics: IntCounter,
    /// Locked while `panics` is brought up to date, because two scrapes may happen at the same time.
    counting: Mutex<()>,
}

impl RuntimeCollector {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            tasks: IntGauge::new("linkerd_operator_runtime_tasks", "Number of runtime tasks that have not ended")?,
            allocated: IntGauge::new(
                "linkerd_operator_memory_allocated_bytes",
                "Bytes that the process has allocated and not freed",
            )?,
            panics: IntCounter::new(
                "linkerd_operator_contained_panics_total",
                "Panics that ended only the work on one object or one client",
            )?,
            counting: Mutex::default(),
        })
    }
}

impl Collector for RuntimeCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.tasks.desc(), self.allocated.desc(), self.panics.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let tasks = Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks());
        self.tasks.set(i64::try_from(tasks).unwrap_or(i64::MAX));
        self.allocated.set(i64::try_from(memory::allocated()).unwrap_or(i64::MAX));
        let counting = self.counting.lock();
        self.panics.inc_by(contain::contained().saturating_sub(self.panics.get()));
        drop(counting);
        [self.tasks.collect(), self.allocated.collect(), self.panics.collect()].concat()
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
