//! Proxies whose certificates cannot be seen in this cluster: those of other clusters, and those outside of clusters.
//!
//! In: the API server. Out: the objects that show that there may be such proxies. Always holds: what cannot be listed may
//! exist; a kind that the API server does not have, does not.

use std::time::Duration;

use kube::{
    Api, Client, Error, ResourceExt,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
    discovery,
    error::DiscoveryError,
};
use tokio::time::timeout;

use super::bundle_writer::PERMIT;

const DEADLINE: Duration = Duration::from_secs(10);

/// Objects of a kind, and what they show.
struct UnseenKind {
    group: &'static str,
    kind: &'static str,
    /// A selector of labels.
    labels: &'static str,
    why: &'static str,
}

const KINDS: [UnseenKind; 4] = [
    UnseenKind {
        group: "workload.linkerd.io",
        kind: "ExternalWorkload",
        labels: "",
        why: "is a proxy outside of the cluster, whose certificate the operator does not see",
    },
    UnseenKind {
        group: "multicluster.linkerd.io",
        kind: "Link",
        labels: "",
        why: "links a cluster, whose proxies the operator does not see",
    },
    UnseenKind { group: "", kind: "Service", labels: "mirror.linkerd.io/exported", why: EXPORTED },
    UnseenKind { group: "", kind: "Service", labels: "mirror.linkerd.io/federated", why: EXPORTED },
];
const EXPORTED: &str = "is exported to other clusters, whose proxies the operator does not see";

/// Verifies that no object shows proxies that are not seen.
///
/// # Errors
/// Names the first one, or what could not be listed.
pub(super) async fn check(client: &Client) -> Result<(), String> {
    for kind in &KINDS {
        let found = timeout(DEADLINE, kind.first(client)).await;
        let found = found.map_err(|_| format!("no list of {}s within {} s", kind.kind, DEADLINE.as_secs()))?;
        match found {
            Ok(None) => {}
            Ok(Some(name)) => {
                return Err(format!(
                    "{} {name} {}. Once none of these proxies needs them, run the command in status.commands",
                    kind.kind, kind.why
                ));
            }
            Err(error) => {
                let remedy = match &error {
                    Error::Api(status) if status.is_forbidden() => format!(". {PERMIT}"),
                    _ => String::new(),
                };
                return Err(format!("cannot list {}s: {}{remedy}", kind.kind, crate::client::describe(&error)));
            }
        }
    }
    Ok(())
}

// === impl UnseenKind ===

impl UnseenKind {
    /// Returns the name of the first object.
    async fn first(&self, client: &Client) -> kube::Result<Option<String>> {
        let resource = match self.group {
            "" => ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", self.kind)),
            group => match discovery::group(client, group).await {
                Ok(found) => match found.recommended_kind(self.kind) {
                    Some((resource, _)) => resource,
                    None => return Ok(None),
                },
                Err(Error::Discovery(DiscoveryError::MissingApiGroup(_))) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let params = ListParams::default().labels(self.labels).limit(1);
        let found = Api::<DynamicObject>::all_with(client.clone(), &resource).list_metadata(&params).await?;
        Ok(found.items.first().map(|object| match object.namespace() {
            Some(namespace) => format!("{namespace}/{}", object.name_any()),
            None => object.name_any(),
        }))
    }
}
