//! The observer of one namespace of another cluster. In: changes of its objects. Out: the keys whose responses may
//! differ because of them.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    cluster::{Change, Cluster, Kind, Observer, State, WatchScope},
    destination::observer::{DestinationObserver, DirtyKey, RemoteChange, add_keys},
};

/// The kinds that discovery reads in other clusters, as the role of Linkerd's links permits. Linkerd follows neither
/// ExternalWorkloads nor Jobs there.
pub(in crate::destination) const KINDS: &[Kind] =
    &[Kind::Service, Kind::EndpointSlice, Kind::Pod, Kind::Server, Kind::ReplicaSet];

pub(in crate::destination) struct RemoteObserver {
    cluster: Arc<str>,
    namespace: Arc<str>,
    observer: Arc<DestinationObserver>,
}

// === impl RemoteObserver ===

impl RemoteObserver {
    pub(in crate::destination) fn new(
        cluster: &Arc<str>,
        namespace: &Arc<str>,
        observer: &Arc<DestinationObserver>,
    ) -> Arc<Self> {
        let (cluster, namespace) = (Arc::clone(cluster), Arc::clone(namespace));
        Arc::new(Self { cluster, namespace, observer: Arc::clone(observer) })
    }

    /// Marks all Services of the namespace when it becomes known, then waits forever.
    pub(in crate::destination) async fn announce(self: Arc<Self>, cluster: Cluster) {
        cluster.known(KINDS).await;
        let change = RemoteChange::Namespace(Arc::clone(&self.namespace));
        self.observer.dirty.mark([DirtyKey::Remote(Arc::clone(&self.cluster), change)], Instant::now());
        std::future::pending::<()>().await;
    }
}

impl Observer for RemoteObserver {
    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn scope(&self, _: Kind) -> WatchScope {
        WatchScope { namespace: Some(Arc::clone(&self.namespace)), ..WatchScope::default() }
    }

    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, state: &State, changes: &[Change], received: Instant) {
        let mut keys = Vec::new();
        for change in changes {
            add_keys(&mut keys, state, change);
        }
        let keys = keys.into_iter().filter_map(|key| key.of_cluster(&self.cluster));
        self.observer.dirty.mark(keys, received);
    }
}
