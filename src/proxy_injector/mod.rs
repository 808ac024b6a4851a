//! The proxy injector: an admission webhook that adds a proxy to Pods.
//!
//! ```text
//!   files or ConfigMaps ──source──▶ Configuration ─┐                       (ConfigMaps: one more for canary namespaces)
//!   API server ──review──▶ handler: lookup ────────┴─▶ decision ─▶ overrides ─▶ containers ─▶ JSON patch, warnings
//! ```
//!
//! In: admission reviews of Pods and Services. Out: the same decision, patch and denial as those of Linkerd's injector,
//! except where `docs/internals/src/differences.md` says otherwise. Always holds: a configuration with which Pods cannot
//! be injected is never in use; what an author writes into annotations cannot break out of its value.

mod annotations;
mod canary;
mod configuration;
mod containers;
mod decision;
mod events;
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic of a target is what the fuzzer looks for"
)]
pub(crate) mod fuzzing;
mod handler;
mod inject;
mod lookup;
mod metrics;
mod observer;
mod opaque_ports;
mod overrides;
mod owner;
#[cfg(test)]
mod properties_tests;
#[cfg(test)]
mod recorded_tests;
mod reviewed;
mod source;
mod values;
mod warnings;

use std::{path::PathBuf, sync::Arc};

use kube::Client;
use prometheus::Registry;

use crate::{cluster::Cluster, events::Events, tasks::Tasks, webhook::Handler};
use handler::{DenialLog, InjectionHandler};
use lookup::ObjectLookup;
use metrics::{ConfigurationCollector, InjectorMetrics};
pub use observer::InjectorObserver;
use source::CurrentConfiguration;

/// The path of the webhook, where the server has several.
pub const PATH: &str = "/proxy-injector";

/// The parts of the process that the injector uses.
pub struct InjectorDeps<'a> {
    pub client: &'a Client,
    pub cluster: &'a Cluster,
    pub observer: Arc<InjectorObserver>,
    pub registry: &'a Registry,
    pub events: &'a Events,
}

#[derive(Clone, Debug)]
pub struct InjectorSettings {
    /// The namespace of the control plane.
    pub controller_namespace: String,
    /// The version that injected Pods name.
    pub version: String,
    /// The folder with the files of Linkerd's container.
    pub folder: PathBuf,
}

/// Whether the injector uses the latest configuration.
#[derive(Clone)]
pub struct ConfigurationStatus(Arc<CurrentConfiguration>);

/// Starts the tasks that follow the configuration. Returns the webhook.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    deps: InjectorDeps<'_>,
    settings: InjectorSettings,
    readers: &mut Tasks,
) -> prometheus::Result<(Arc<dyn Handler>, ConfigurationStatus)> {
    let InjectorDeps { client, cluster, observer, registry, events } = deps;
    let current = Arc::<CurrentConfiguration>::default();
    registry.register(Box::new(ConfigurationCollector::new(&current)?))?;
    match observer.config_maps() {
        None => readers.spawn("injector-files", source::follow_files(settings.folder, Arc::clone(&current))),
        Some(namespace) => {
            let (changed, followed) = (Arc::clone(&observer.changed), Arc::clone(&current));
            let follow = source::follow_config_maps(Arc::clone(namespace), cluster.clone(), changed, followed);
            readers.spawn("injector-config-maps", follow);
        }
    }
    let handler = InjectionHandler {
        lookup: ObjectLookup::new(cluster.clone(), client.clone()),
        denials: DenialLog::default(),
        current: Arc::clone(&current),
        controller_namespace: settings.controller_namespace,
        version: settings.version,
        metrics: InjectorMetrics::register(registry)?,
        events: events.clone(),
    };
    Ok((Arc::new(handler), ConfigurationStatus(current)))
}

// === impl ConfigurationStatus ===

impl ConfigurationStatus {
    /// Returns why the latest configuration is not in use, for `/ready`.
    pub fn problem(&self) -> Option<String> {
        self.0.problem()
    }

    /// Returns whether the injector can answer reviews: without a usable configuration, with denials that say why.
    pub fn is_ready(&self) -> bool {
        self.0.can_answer()
    }
}
