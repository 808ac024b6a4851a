//! The deletion of a LinkerdConfig whose control plane's namespace is gone.
//!
//! ```text
//! cluster ──observer──▶ release: is the namespace gone? ─▶ read the resource ─▶ read the namespace ─▶ finalizer removed
//! ```
//!
//! The Lease and the Role of the controller are in that namespace. Without it no replica can lead, and the ConfigMaps
//! may never be listed, so the controller cannot decide about the finalizer. In: LinkerdConfigs and Namespaces. Out:
//! the removal of our finalizer, by any replica. Always holds: the API server confirmed that the namespace is missing
//! or is being deleted, so there is nothing to restore; the finalizer is removed only from the version of the resource
//! that was read, and only if that is being deleted; nothing else is written. So two replicas may do it at the same
//! time.

use std::{future::Future, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1 as core;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch},
};
use serde_json::json;
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    api::{LinkerdConfig, RESTORE_BASE_FINALIZER},
    cluster::{Cluster, Kind, State},
    linkerd_config::{BACKOFF_BASE, BACKOFF_CAP, writer::patch_params},
    retry::backoff,
    write::WriteError,
};

/// The kinds that decide whether a resource is released.
const KINDS: &[Kind] = &[Kind::LinkerdConfig, Kind::Namespace];
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Removes our finalizer from resources that no replica can restore.
pub(in crate::linkerd_config) struct Releaser {
    cluster: Cluster,
    configs: Api<LinkerdConfig>,
    namespaces: Api<core::Namespace>,
    control_plane: Arc<str>,
}

/// Returns the names of the resources that wait for the removal of our finalizer, if the control plane's namespace is
/// gone.
fn waiting(state: &State, control_plane: &str) -> Vec<Arc<str>> {
    if state.namespaces.find("", control_plane).is_some_and(|namespace| !namespace.deleting) {
        return Vec::new();
    }
    let configs = state.linkerd_configs.iter();
    let waiting = configs.filter(|it| it.deleting && it.finalized && *it.target.namespace == *control_plane);
    waiting.map(|config| Arc::clone(&config.name)).collect()
}

// === impl Releaser ===

impl Releaser {
    pub(in crate::linkerd_config) fn new(client: &Client, cluster: &Cluster, control_plane: &Arc<str>) -> Self {
        Self {
            cluster: cluster.clone(),
            configs: Api::all(client.clone()),
            namespaces: Api::all(client.clone()),
            control_plane: Arc::clone(control_plane),
        }
    }

    /// Runs until `stop` is cancelled. `changed` wakes it after a change of a resource or of the namespace.
    pub(in crate::linkerd_config) async fn run(self, changed: Arc<Notify>, stop: CancellationToken) {
        let releases = async {
            // Unknown is not empty: before the list, a namespace that is missing from the state may exist.
            self.cluster.synced(KINDS).await;
            let mut failures = 0;
            loop {
                if self.release_all().await {
                    failures = 0;
                    changed.notified().await;
                } else {
                    // There may be no further change: the cache may be ahead of the API server that answered, or behind
                    // it.
                    let delay = backoff(failures, BACKOFF_BASE, BACKOFF_CAP);
                    failures += 1;
                    let _ = timeout(delay, changed.notified()).await;
                }
            }
        };
        tokio::select! {
            () = releases => {}
            () = stop.cancelled() => {}
        }
    }

    /// Returns whether no resource waits any more.
    async fn release_all(&self) -> bool {
        let names = waiting(&self.cluster.read(), &self.control_plane);
        let mut are_released = true;
        for name in names {
            match self.release(&name).await {
                Ok(is_released) => are_released &= is_released,
                Err(error) => {
                    are_released = false;
                    if error.is_conflict() {
                        debug!(linkerd_config = %name, "the LinkerdConfig changed after it was read, retrying");
                    } else {
                        warn!(linkerd_config = %name, %error, "could not remove the finalizer of a LinkerdConfig whose control plane's namespace is gone, retrying");
                    }
                }
            }
        }
        are_released
    }

    /// Removes our finalizer. Returns false if the namespace exists after all.
    async fn release(&self, name: &str) -> Result<bool, WriteError> {
        let Some(config) = send(self.configs.get_opt(name)).await? else { return Ok(true) };
        let is_ours = config.spec.global.linkerd_namespace == *self.control_plane;
        let is_finalized = config.finalizers().iter().any(|it| it == RESTORE_BASE_FINALIZER);
        if config.metadata.deletion_timestamp.is_none() || !is_finalized || !is_ours {
            return Ok(true);
        }
        if !self.is_namespace_gone().await? {
            return Ok(false);
        }
        let others: Vec<_> = config.finalizers().iter().filter(|it| *it != RESTORE_BASE_FINALIZER).collect();
        let patch = json!({"metadata": {
            "uid": config.uid(), "resourceVersion": config.resource_version(), "finalizers": others,
        }});
        match send(self.configs.patch(name, &patch_params(), &Patch::Merge(&patch))).await {
            // Another replica was faster.
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(true),
            result => {
                result?;
                let namespace = &self.control_plane;
                info!(linkerd_config = %name, %namespace, "removed the finalizer without a restore: the control plane's namespace is gone");
                Ok(true)
            }
        }
    }

    /// Reads the namespace from the API server, because the cache may lag behind it. It sends a list, because the
    /// operator has no permission to get namespaces.
    async fn is_namespace_gone(&self) -> Result<bool, WriteError> {
        let params = ListParams::default().fields(&format!("metadata.name={}", self.control_plane));
        let found = send(self.namespaces.list_metadata(&params)).await?;
        let namespace = found.items.iter().find(|it| it.metadata.name.as_deref() == Some(&*self.control_plane));
        Ok(namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()))
    }
}

/// Sends a request with a deadline.
async fn send<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(WriteError::TimedOut),
    }
}

#[cfg(test)]
#[path = "release_tests.rs"]
mod tests;
