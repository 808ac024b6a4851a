//! Proxies whose certificates cannot be seen in this cluster: those of other clusters, and those outside of clusters.
//!
//! In: the API server. Out: the first object that exists only for such proxies. Always holds: an object that cannot be
//! listed is assumed to exist; a kind that the API server does not serve has no objects. A proxy outside of the cluster
//! without an ExternalWorkload is not detected.

use std::time::Duration;

use futures::future::join_all;
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

/// Objects that exist only for proxies that are not seen.
struct UnseenKind {
    group: &'static str,
    kind: &'static str,
    /// A selector of labels.
    labels: &'static str,
    why: &'static str,
}

const KINDS: [UnseenKind; 5] = [
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
    UnseenKind { group: "", kind: "Service", labels: "mirror.linkerd.io/exported", why: FOR_OTHERS },
    UnseenKind { group: "", kind: "Service", labels: "mirror.linkerd.io/federated", why: FOR_OTHERS },
    // A cluster that others link has no object about them, and the label of the exported Services is a setting of theirs.
    UnseenKind { group: "", kind: "Namespace", labels: "linkerd.io/extension=multicluster", why: FOR_OTHERS },
];
const FOR_OTHERS: &str = "is for other clusters, whose proxies the operator does not see";

/// Why there may be proxies that are not seen.
pub(super) struct Unseen {
    /// Names the first object, or what could not be listed.
    pub(super) why: String,
    /// Whether there is such an object.
    pub(super) is_found: bool,
}

/// Verifies that no object exists only for proxies that are not seen.
pub(super) async fn check(client: &Client) -> Result<(), Unseen> {
    let all = join_all(KINDS.iter().map(|kind| kind.check(client)));
    let all = timeout(DEADLINE, all).await;
    let all = all.map_err(|_| {
        let why = format!("the API server did not answer within {} s", DEADLINE.as_secs());
        Unseen { why, is_found: false }
    })?;
    all.into_iter().collect()
}

// === impl UnseenKind ===

impl UnseenKind {
    async fn check(&self, client: &Client) -> Result<(), Unseen> {
        match self.first(client).await {
            Ok(None) => Ok(()),
            Ok(Some(name)) => {
                let Self { kind, why, .. } = self;
                Err(Unseen { why: format!("{kind} {name} {why}"), is_found: true })
            }
            Err(error) => {
                let remedy = match &error {
                    Error::Api(status) if status.is_forbidden() => format!(". {PERMIT}"),
                    _ => String::new(),
                };
                let why = format!("cannot list {}s: {}{remedy}", self.kind, crate::client::describe(&error));
                Err(Unseen { why, is_found: false })
            }
        }
    }

    /// Returns the name of the first object.
    async fn first(&self, client: &Client) -> kube::Result<Option<String>> {
        let resource = match self.group {
            "" => ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", self.kind)),
            group => match discovery::group(client, group).await {
                Ok(found) => {
                    let mut resources = found.resources_by_stability().into_iter();
                    match resources.find(|(resource, _)| resource.kind == self.kind) {
                        Some((resource, _)) => resource,
                        None => return Ok(None),
                    }
                }
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
