//! The registry of the process. Each module owns a small struct of metrics and registers it here; labels come from closed
//! sets, never from the names of objects.

use prometheus::{Encoder, IntGaugeVec, Opts, Registry, TextEncoder};

/// A registry with what concerns the process as a whole.
///
/// # Errors
/// When a metric is registered twice.
pub fn registry() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    let info =
        IntGaugeVec::new(Opts::new("linkerd_operator_build_info", "1, with the version as a label"), &["version"])?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    registry.register(Box::new(info))?;
    Ok(registry)
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
