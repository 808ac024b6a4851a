//! Proxies whose certificates cannot be seen in this cluster: those of other clusters, and those outside of clusters.
//!
//! In: the API server, what a LinkerdTrust accepts, the roots that stay if some leave. Out: the objects that exist only for
//! such proxies, are not accepted, and have not shown that they need no other root. Always holds: an object that cannot be
//! listed is assumed to exist; a kind that the API server does not serve has no objects. A proxy outside of the cluster
//! without an ExternalWorkload is not detected.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::{join, join_all};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind, PartialObjectMeta},
    discovery,
    error::DiscoveryError,
};
use tokio::time::timeout;

use super::{bundle_writer::PERMIT, external_proxies};
use crate::{
    text::and_more,
    trust::{
        accepted::RotationWait,
        seen::{DeclaredRoots, MeshedWorkload},
    },
    x509::anchors::AnchorBundle,
};

/// Longer than the proxies of ExternalWorkloads have together.
const DEADLINE: Duration = Duration::from_secs(30);

/// Objects that exist only for proxies that are not seen.
struct UnseenKind {
    group: &'static str,
    kind: &'static str,
    /// A selector of labels.
    labels: &'static str,
    why: &'static str,
}

const EXTERNAL_WORKLOAD: UnseenKind = UnseenKind {
    group: "workload.linkerd.io",
    kind: "ExternalWorkload",
    labels: "",
    why: "is a proxy outside of the cluster, whose roots the operator does not see",
};
const SERVICE: &str = "Service";
const NAMESPACE: &str = "Namespace";
const OF_OTHER_CLUSTERS: [UnseenKind; 4] = [
    UnseenKind {
        group: "multicluster.linkerd.io",
        kind: "Link",
        labels: "",
        why: "links a cluster, whose proxies the operator does not see",
    },
    UnseenKind { group: "", kind: SERVICE, labels: "mirror.linkerd.io/exported", why: FOR_OTHERS },
    UnseenKind { group: "", kind: SERVICE, labels: "mirror.linkerd.io/federated", why: FOR_OTHERS },
    EXTENSION,
];
/// A cluster that others link has no object about them, and the label of the exported Services is a setting of theirs. So the
/// Namespace stands for all clusters that link this one, and for these Services.
const EXTENSION: UnseenKind = UnseenKind {
    group: "",
    kind: NAMESPACE,
    labels: "linkerd.io/extension=multicluster",
    why: "is for other clusters, which may use all exported Services, and whose proxies the operator does not see",
};
const PAGE: u32 = 500;
/// The maximum number of further objects in a sentence.
const SHOWN: usize = 5;
/// The maximum number of objects in one command.
const AT_ONCE: usize = 20;
const FOR_OTHERS: &str = "has Services for other clusters, whose proxies the operator does not see";

/// Why there may be proxies that are not seen.
pub(super) struct Unseen {
    /// Names the first object, or what could not be listed.
    pub(super) why: String,
    /// The command that accepts such objects; none if some could not be listed.
    pub(super) commands: Vec<String>,
}

/// Verifies that a step does not wait for an object which exists only for proxies that are not seen. `generation`: of the
/// LinkerdTrust. `staying`: the bundle after the step, if it removes roots.
pub(super) async fn check(
    client: &Client,
    declared: Option<&DeclaredRoots>,
    generation: i64,
    wait: &RotationWait,
    staying: Option<&AnchorBundle>,
) -> Result<(), Unseen> {
    let Some(DeclaredRoots { resource, accepted, .. }) = declared else { return Ok(()) };
    let unknown = |why| Unseen { why, commands: Vec::new() };
    let is_open = |object: &MeshedWorkload| !accepted.cover(object, wait);
    let of_others = join_all(OF_OTHER_CLUSTERS.iter().map(|kind| kind.listed(client)));
    let listed = timeout(DEADLINE, join(EXTERNAL_WORKLOAD.needing_others(client, staying, is_open), of_others)).await;
    let (external, of_others) =
        listed.map_err(|_| unknown(format!("the API server did not answer within {} s", DEADLINE.as_secs())))?;
    let listed = [external].into_iter().chain(of_others).collect::<Result<Vec<_>, _>>().map_err(unknown)?.concat();
    let has_extension = listed.iter().any(|(_, why)| why == EXTENSION.why);
    let listed = listed.into_iter().filter(|(object, why)| is_open(object) && !(has_extension && why == FOR_OTHERS));
    let open: Vec<_> = listed.collect::<BTreeMap<_, _>>().into_iter().collect();
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
    async fn listed(&self, client: &Client) -> Result<Vec<(MeshedWorkload, String)>, String> {
        let listed = self.list(client).await.map_err(|error| self.failure(&error))?;
        Ok(listed.into_iter().map(|object| (object, self.why.to_owned())).collect())
    }

    /// The same for ExternalWorkloads, without those whose proxies need only roots that stay.
    async fn needing_others(
        &self,
        client: &Client,
        staying: Option<&AnchorBundle>,
        is_open: impl Fn(&MeshedWorkload) -> bool,
    ) -> Result<Vec<(MeshedWorkload, String)>, String> {
        let Some(staying) = staying else { return self.listed(client).await };
        let found = async {
            let Some(resource) = self.resource(client).await? else { return Ok(Vec::new()) };
            external_proxies::needing_others(client, &resource, staying, is_open, AT_ONCE + 1).await
        };
        found.await.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &Error) -> String {
        let remedy = match error {
            Error::Api(status) if status.is_forbidden() => format!(". {PERMIT}"),
            _ => String::new(),
        };
        format!("cannot list {}s: {}{remedy}", self.kind, crate::client::describe(error))
    }

    /// Returns the newest stable version; `None` if the API server does not serve the kind.
    async fn resource(&self, client: &Client) -> kube::Result<Option<ApiResource>> {
        let group = match self.group {
            "" => return Ok(Some(ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", self.kind)))),
            group => discovery::group(client, group).await,
        };
        match group {
            Ok(found) => {
                let mut resources = found.resources_by_stability().into_iter();
                Ok(resources.find(|(resource, _)| resource.kind == self.kind).map(|(resource, _)| resource))
            }
            Err(Error::Discovery(DiscoveryError::MissingApiGroup(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, client: &Client) -> kube::Result<BTreeSet<MeshedWorkload>> {
        let Some(resource) = self.resource(client).await? else { return Ok(BTreeSet::new()) };
        let objects = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let mut params = ListParams::default().labels(self.labels).limit(PAGE);
        let mut found = BTreeSet::new();
        loop {
            let page = objects.list_metadata(&params).await?;
            found.extend(page.items.iter().map(|object| self.object(object)));
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => return Ok(found),
            }
        }
    }

    /// Returns what a LinkerdTrust accepts. A tenant may have more Services than it can list, so their Namespace stands for them.
    fn object(&self, object: &PartialObjectMeta<DynamicObject>) -> MeshedWorkload {
        let namespace = object.namespace().unwrap_or_default();
        match self.kind {
            SERVICE => MeshedWorkload { namespace: String::new(), kind: NAMESPACE.to_owned(), name: namespace },
            kind => MeshedWorkload { namespace, kind: kind.to_owned(), name: object.name_any() },
        }
    }
}
