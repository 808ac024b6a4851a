//! Proxies whose certificates cannot be seen in this cluster: those of other clusters, and those outside of clusters.
//!
//! In: the API server, what a LinkerdTrust accepts. Out: the objects that exist only for such proxies, and are not accepted.
//! Always holds: an object that cannot be listed is assumed to exist; a kind that the API server does not serve has no
//! objects. A proxy outside of the cluster without an ExternalWorkload is not detected.

use std::time::Duration;

use futures::future::join_all;
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind, PartialObjectMeta},
    discovery,
    error::DiscoveryError,
};
use tokio::time::timeout;

use super::bundle_writer::PERMIT;
use crate::{
    text::and_more,
    trust::{
        accepted::RotationWait,
        seen::{DeclaredRoots, MeshedWorkload},
    },
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Objects that exist only for proxies that are not seen.
struct UnseenKind {
    group: &'static str,
    kind: &'static str,
    /// A selector of labels.
    labels: &'static str,
    why: &'static str,
}

const SERVICE: &str = "Service";
const NAMESPACE: &str = "Namespace";
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
    UnseenKind { group: "", kind: SERVICE, labels: "mirror.linkerd.io/exported", why: FOR_OTHERS },
    UnseenKind { group: "", kind: SERVICE, labels: "mirror.linkerd.io/federated", why: FOR_OTHERS },
    // A cluster that others link has no object about them, and the label of the exported Services is a setting of theirs.
    // So the Namespace stands for all clusters that link this one, and for these Services.
    UnseenKind { group: "", kind: NAMESPACE, labels: "linkerd.io/extension=multicluster", why: EXTENSION },
];
/// More than a LinkerdTrust can accept.
const LISTED: u32 = 101;
/// The maximum number of further objects in a sentence.
const SHOWN: usize = 5;
/// The maximum number of objects in one command.
const AT_ONCE: usize = 20;
const EXTENSION: &str =
    "is for other clusters, which may use all exported Services, and whose proxies the operator does not see";
const FOR_OTHERS: &str = "is for other clusters, whose proxies the operator does not see";

/// Why there may be proxies that are not seen.
pub(super) struct Unseen {
    /// Names the first object, or what could not be listed.
    pub(super) why: String,
    /// The command that accepts such objects; none if some could not be listed.
    pub(super) commands: Vec<String>,
}

/// Verifies that a step does not wait for an object which exists only for proxies that are not seen. `generation`: of the
/// LinkerdTrust.
pub(super) async fn check(
    client: &Client,
    declared: Option<&DeclaredRoots>,
    generation: i64,
    wait: &RotationWait,
) -> Result<(), Unseen> {
    let Some(DeclaredRoots { resource, accepted, .. }) = declared else { return Ok(()) };
    let unknown = |why| Unseen { why, commands: Vec::new() };
    let listed = timeout(DEADLINE, join_all(KINDS.iter().map(|kind| kind.listed(client)))).await;
    let listed =
        listed.map_err(|_| unknown(format!("the API server did not answer within {} s", DEADLINE.as_secs())))?;
    let listed: Vec<_> = listed.into_iter().collect::<Result<Vec<_>, _>>().map_err(unknown)?.concat();
    let has_extension = listed.iter().any(|(object, _)| object.kind == NAMESPACE);
    let listed = listed.iter().filter(|(object, _)| object.kind != SERVICE || !has_extension);
    let open: Vec<_> = listed.filter(|(object, _)| !accepted.cover(object, wait)).collect();
    let Some((first, why)) = open.first() else { return Ok(()) };
    let named = |MeshedWorkload { namespace, kind, name }: &MeshedWorkload| match namespace.is_empty() {
        true => format!("{kind} {name}"),
        false => format!("{kind} {namespace}/{name}"),
    };
    let further = open.iter().skip(1).take(SHOWN).map(|(object, _)| named(object));
    let further = match open.len() - 1 {
        0 => String::new(),
        count => format!(" (and there are {})", and_more(further, count, ", ")),
    };
    let shown: Vec<_> = open.iter().take(AT_ONCE).map(|(object, _)| object.clone()).collect();
    let command = accepted.command((resource, generation), &shown, wait);
    Err(Unseen { why: format!("{} {why}{further}", named(first)), commands: vec![command] })
}

// === impl UnseenKind ===

impl UnseenKind {
    /// Returns the objects, and why they matter.
    async fn listed(&self, client: &Client) -> Result<Vec<(MeshedWorkload, &'static str)>, String> {
        let listed = self.list(client).await.map_err(|error| {
            let remedy = match &error {
                Error::Api(status) if status.is_forbidden() => format!(". {PERMIT}"),
                _ => String::new(),
            };
            format!("cannot list {}s: {}{remedy}", self.kind, crate::client::describe(&error))
        })?;
        Ok(listed.into_iter().map(|object| (object, self.why)).collect())
    }

    async fn list(&self, client: &Client) -> kube::Result<Vec<MeshedWorkload>> {
        let resource = match self.group {
            "" => ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", self.kind)),
            group => match discovery::group(client, group).await {
                Ok(found) => {
                    let mut resources = found.resources_by_stability().into_iter();
                    match resources.find(|(resource, _)| resource.kind == self.kind) {
                        Some((resource, _)) => resource,
                        None => return Ok(Vec::new()),
                    }
                }
                Err(Error::Discovery(DiscoveryError::MissingApiGroup(_))) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            },
        };
        let params = ListParams::default().labels(self.labels).limit(LISTED);
        let found = Api::<DynamicObject>::all_with(client.clone(), &resource).list_metadata(&params).await?;
        let object = |object: &PartialObjectMeta<DynamicObject>| MeshedWorkload {
            namespace: object.namespace().unwrap_or_default(),
            kind: self.kind.to_owned(),
            name: object.name_any(),
        };
        Ok(found.items.iter().map(object).collect())
    }
}
