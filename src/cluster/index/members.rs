//! The federated Services, by their members.

use std::{collections::HashMap, sync::Arc};

use crate::{api::NamespacedName, cluster::kinds::federated_service::ServiceMember};

/// The federated Services, by the cluster of a member; `None` for this one.
#[derive(Debug, Default)]
pub struct ByMember(HashMap<Option<Arc<str>>, FederatedNames>);

/// The names of the federated Services, by the key of a member. They are in the namespace of the member.
type FederatedNames = HashMap<NamespacedName, Vec<Arc<str>>>;

// === impl ByMember ===

impl ByMember {
    pub(in crate::cluster) fn insert<'a>(
        &mut self,
        NamespacedName { namespace, name }: &NamespacedName,
        members: impl Iterator<Item = &'a ServiceMember>,
    ) {
        for ServiceMember { cluster, service } in members {
            let of_cluster = self.0.entry(cluster.clone()).or_default();
            let member = NamespacedName { namespace: Arc::clone(namespace), name: Arc::clone(service) };
            of_cluster.entry(member).or_default().push(Arc::clone(name));
        }
    }

    pub(in crate::cluster) fn remove<'a>(
        &mut self,
        NamespacedName { namespace, name }: &NamespacedName,
        members: impl Iterator<Item = &'a ServiceMember>,
    ) {
        for ServiceMember { cluster, service } in members {
            let Some(of_cluster) = self.0.get_mut(cluster) else { continue };
            let member = NamespacedName { namespace: Arc::clone(namespace), name: Arc::clone(service) };
            if let Some(names) = of_cluster.get_mut(&member) {
                names.retain(|it| it != name);
                if names.is_empty() {
                    of_cluster.remove(&member);
                }
            }
            if of_cluster.is_empty() {
                self.0.remove(cluster);
            }
        }
    }

    /// Returns the federated Services of a member.
    pub fn of_member<'a>(
        &'a self,
        cluster: Option<&Arc<str>>,
        member: &'a NamespacedName,
    ) -> impl Iterator<Item = NamespacedName> + use<'a> {
        let names = self.0.get(&cluster.cloned()).and_then(|of_cluster| of_cluster.get(member));
        let named =
            |name: &Arc<str>| NamespacedName { namespace: Arc::clone(&member.namespace), name: Arc::clone(name) };
        names.into_iter().flatten().map(named)
    }

    /// Returns the federated Services with a member in a cluster, or in one of its namespaces. A Service may occur more
    /// than once.
    pub fn of_cluster_members<'a>(
        &'a self,
        cluster: &Arc<str>,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = NamespacedName> + use<'a> {
        let members = self.0.get(&Some(Arc::clone(cluster))).into_iter().flatten();
        let members = members.filter(move |(member, _)| namespace.is_none_or(|it| *member.namespace == *it));
        members.flat_map(|(member, names)| {
            names.iter().map(|name| NamespacedName { namespace: Arc::clone(&member.namespace), name: Arc::clone(name) })
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
