//! The clusters that are linked with this one.
//!
//! In: the Links of Linkerd's multicluster extension, in the versions that API servers serve. Out: the names of the
//! clusters. Links of other clusters to this one leave no object here.

use std::collections::BTreeSet;

use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};

/// The newest first.
const VERSIONS: [&str; 3] = ["v1alpha3", "v1alpha2", "v1alpha1"];

/// Returns the names; none without the extension, or if Links cannot be read.
pub(super) async fn linked_clusters(client: &Client) -> BTreeSet<String> {
    for version in VERSIONS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("multicluster.linkerd.io", version, "Link"));
        let links = Api::<DynamicObject>::all_with(client.clone(), &resource);
        if let Ok(found) = links.list(&ListParams::default()).await {
            let name = |link: DynamicObject| Some(link.data.pointer("/spec/targetClusterName")?.as_str()?.to_owned());
            return found.items.into_iter().filter_map(name).collect();
        }
    }
    BTreeSet::new()
}
