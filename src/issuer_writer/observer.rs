//! Maps changes of the cluster state to the LinkerdTrusts whose issuer must be reconciled.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    api::{self, INJECTORS_CONFIG_MAP, NamespacedName, TRUST_ROOTS},
    cluster::{Change, Kind, Observer, State, WatchScope},
    controller::ObjectNames,
    queue::WorkQueue,
};

/// The name of the queue in metrics.
const QUEUE: &str = "issuer_writer_workqueue";
/// The kinds that the controller reads.
pub(super) const KINDS: &[Kind] = &[Kind::LinkerdTrust, Kind::ConfigMap];

/// Adds LinkerdTrusts to the controller's queue.
pub struct IssuerObserver {
    pub(super) queue: Arc<WorkQueue>,
    pub(super) trusts: ObjectNames<api::LinkerdTrust>,
    control_plane_namespace: Arc<str>,
}

// === impl IssuerObserver ===

impl IssuerObserver {
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(control_plane_namespace: &str, registry: &prometheus::Registry) -> prometheus::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: WorkQueue::new(QUEUE, registry)?,
            trusts: ObjectNames::default(),
            control_plane_namespace: control_plane_namespace.into(),
        }))
    }
}

impl Observer for IssuerObserver {
    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn scope(&self, kind: Kind) -> WatchScope {
        let namespace = (kind == Kind::ConfigMap).then(|| Arc::clone(&self.control_plane_namespace));
        WatchScope { namespace, ..WatchScope::default() }
    }

    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, state: &State, changes: &[Change], _: Instant) {
        let mut has_changed = false;
        for change in changes {
            match change {
                Change::LinkerdTrust(diff) => {
                    let key = NamespacedName::cluster_scoped(&diff.latest().name);
                    self.trusts.update(&key, diff.old().map(|it| &*it.uid), diff.current().map(|it| &*it.uid));
                    has_changed = true;
                    // A deleted resource is queued too, so that the controller forgets it.
                    self.queue.add([key]);
                }
                Change::ConfigMap(diff) => {
                    has_changed |= [TRUST_ROOTS, INJECTORS_CONFIG_MAP].contains(&&*diff.latest().key.name);
                }
                _ => {}
            }
        }
        if has_changed {
            // Another resource may be in effect now.
            self.queue.add(state.linkerd_trusts.iter().map(|it| NamespacedName::cluster_scoped(&it.name)));
        }
    }
}
