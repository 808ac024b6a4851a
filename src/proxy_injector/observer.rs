//! The kinds that the injector watches. In: changes. Out: a notification when a ConfigMap has changed.

use std::sync::Arc;

use tokio::{sync::Notify, time::Instant};

use crate::cluster::{Change, Kind, Observer, State, WatchScope};

/// The kinds that are looked up for each object.
const LOOKED_UP: &[Kind] = &[Kind::Namespace, Kind::ReplicaSet, Kind::Job];
/// The same, with the source of the configuration.
const WITH_CONFIG_MAPS: &[Kind] = &[Kind::Namespace, Kind::ReplicaSet, Kind::Job, Kind::ConfigMap];

pub struct InjectorObserver {
    /// The namespace of the ConfigMaps; `None` if the configuration comes from files.
    namespace: Option<Arc<str>>,
    pub(super) changed: Arc<Notify>,
}

// === impl InjectorObserver ===

impl InjectorObserver {
    /// An observer that follows the ConfigMaps of a namespace, or none.
    pub fn new(namespace: Option<&str>) -> Arc<Self> {
        Arc::new(Self { namespace: namespace.map(Arc::from), changed: Arc::default() })
    }

    pub(super) fn config_maps(&self) -> Option<&Arc<str>> {
        self.namespace.as_ref()
    }
}

impl Observer for InjectorObserver {
    fn kinds(&self) -> &'static [Kind] {
        if self.namespace.is_some() { WITH_CONFIG_MAPS } else { LOOKED_UP }
    }

    fn scope(&self, kind: Kind) -> WatchScope {
        let namespace = self.namespace.clone().filter(|_| kind == Kind::ConfigMap);
        WatchScope { namespace, ..WatchScope::default() }
    }

    fn blocks_readiness(&self) -> bool {
        true
    }

    fn changed(&self, _: &State, changes: &[Change], _: Instant) {
        if changes.iter().any(|change| matches!(change, Change::ConfigMap(_))) {
            // One permit is kept while nothing waits.
            self.changed.notify_one();
        }
    }
}
