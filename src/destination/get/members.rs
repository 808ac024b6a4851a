//! The endpoints of one Service, joined with their target objects. Pure.
//!
//! In: the cluster's state. Out: the [`EndpointTarget`] of each ready endpoint in each slice of an existing Service. An
//! endpoint whose Pod or ExternalWorkload is not in the state is left out until that object arrives: it must not be
//! treated as an endpoint outside the mesh.
//!
//! A member holds only shared values, so that the lock of the state is released before views are encoded.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{
            endpoint_slice::ready::{ReadyEndpoint, ReadySlice},
            service::Service,
        },
    },
    destination::endpoint::target::EndpointTarget,
};

/// The endpoints of a Service at one generation of the state.
#[derive(Clone, Debug)]
pub(in crate::destination) struct Members {
    /// `None` if the Service does not exist. Then `slices` and `members` are empty.
    pub(in crate::destination) service: Option<Arc<Service>>,
    /// The slices, sorted by name.
    pub(in crate::destination) slices: Vec<Arc<ReadySlice>>,
    /// The members, in the order of the slices and of their endpoints.
    pub(in crate::destination) members: Vec<Member>,
    pub(in crate::destination) generation: u64,
    by_node: OnceLock<Buckets>,
    by_hostname: OnceLock<Buckets>,
}

/// The indices of members by a name.
type Buckets = HashMap<Arc<str>, Vec<usize>>;

#[derive(Clone, Debug)]
pub(in crate::destination) struct Member {
    /// The index in [`Members::slices`].
    pub(in crate::destination) slice: usize,
    /// The index in the slice.
    pub(in crate::destination) endpoint: usize,
    pub(in crate::destination) target: EndpointTarget,
}

// === impl Members ===

impl Members {
    pub(in crate::destination) fn of(state: &State, key: &NamespacedName) -> Self {
        let service = state.services.get(key).cloned();
        let exists = service.is_some();
        let slices: Vec<_> = state.slices.ready_of_service(key).filter(|_| exists).cloned().collect();
        let mut members = Vec::with_capacity(slices.iter().map(|slice| slice.endpoints.len()).sum());
        for (slice, content) in slices.iter().enumerate() {
            for (endpoint, it) in content.endpoints.iter().enumerate() {
                if let Some(target) = EndpointTarget::of(state, &key.namespace, it) {
                    members.push(Member { slice, endpoint, target });
                }
            }
        }
        let (by_node, by_hostname) = <(OnceLock<_>, OnceLock<_>)>::default();
        Self { service, slices, members, generation: state.generation, by_node, by_hostname }
    }

    pub(in crate::destination) fn slice(&self, member: &Member) -> Option<&ReadySlice> {
        self.slices.get(member.slice).map(|slice| &**slice)
    }

    /// Returns the members with a hostname and on a node, if these are given, in order. Many views of one Service are for
    /// one node each, so a view looks only at its own members.
    pub(in crate::destination) fn select(
        &self,
        hostname: Option<&str>,
        node: Option<&str>,
    ) -> impl Iterator<Item = &Member> {
        let bucket = match (hostname, node) {
            (Some(hostname), _) => Some(self.by_hostname().get(hostname)),
            (None, Some(node)) => Some(self.by_node().get(node)),
            (None, None) => None,
        };
        let all = if bucket.is_none() { self.members.as_slice() } else { &[] };
        let some = bucket.flatten().into_iter().flatten().filter_map(|index| self.members.get(*index));
        let is_on = move |member: &&Member| node.is_none_or(|node| !node.is_empty() && member.node() == Some(node));
        all.iter().chain(some).filter(is_on)
    }

    pub(super) fn hostnames(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_hostname().keys()
    }

    /// Returns the nodes of the Pods.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_node().keys().filter(|node| !node.is_empty())
    }

    fn by_node(&self) -> &Buckets {
        self.by_node.get_or_init(|| {
            self.buckets(|member| match &member.target {
                EndpointTarget::Pod(target) => Some(&target.pod.node),
                EndpointTarget::Workload(_) | EndpointTarget::Address => None,
            })
        })
    }

    fn by_hostname(&self) -> &Buckets {
        self.by_hostname.get_or_init(|| self.buckets(|member| self.endpoint(member)?.hostname.as_ref()))
    }

    fn buckets<'a>(&'a self, name: impl Fn(&'a Member) -> Option<&'a Arc<str>>) -> Buckets {
        let mut buckets = Buckets::new();
        for (index, member) in self.members.iter().enumerate() {
            if let Some(name) = name(member) {
                buckets.entry(Arc::clone(name)).or_default().push(index);
            }
        }
        buckets
    }

    pub(in crate::destination) fn endpoint(&self, member: &Member) -> Option<&ReadyEndpoint> {
        self.slice(member)?.endpoints.get(member.endpoint)
    }
}

// === impl Member ===

impl Member {
    /// Returns the node of a Pod.
    fn node(&self) -> Option<&str> {
        match &self.target {
            EndpointTarget::Pod(target) => Some(&target.pod.node),
            EndpointTarget::Workload(_) | EndpointTarget::Address => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::Kind,
        destination::testing::{endpoint, members, members_of, slice},
    };

    #[test]
    fn an_endpoint_is_no_member_while_its_target_is_another_object_of_the_same_name() {
        let with_uid = |address: &str, kind: &str, name: &str, uid: &str| {
            let mut endpoint = endpoint(address, kind, name);
            endpoint["targetRef"]["uid"] = json!(uid);
            endpoint
        };
        let endpoints = [
            with_uid("10.0.0.1", "Pod", "db-0", "old"),
            with_uid("10.0.0.2", "Pod", "db-0", "new"),
            endpoint("10.0.0.3", "Pod", "db-0"),
            with_uid("10.0.0.4", "Pod", "without-uid", "old"),
            with_uid("10.0.0.5", "ExternalWorkload", "vm", "old"),
            with_uid("10.0.0.6", "ExternalWorkload", "vm", "new"),
            endpoint("10.0.0.7", "ExternalWorkload", "vm"),
        ];
        let members = members([
            (Kind::Pod, json!({"metadata": {"name": "db-0", "uid": "new"}})),
            (Kind::Pod, json!({"metadata": {"name": "without-uid"}})),
            (Kind::ExternalWorkload, json!({"metadata": {"name": "vm", "uid": "new"}})),
            slice("a", &json!([{"port": 80}]), &endpoints),
        ]);
        assert_eq!(addresses(&members), ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.6", "10.0.0.7"]);
    }

    fn addresses(members: &Members) -> Vec<String> {
        let endpoints = members.members.iter().filter_map(|member| members.endpoint(member));
        endpoints.map(|endpoint| endpoint.addresses[0].to_string()).collect()
    }

    #[test]
    fn an_endpoint_is_a_member_if_its_service_and_its_target_exist() {
        let ports = json!([{"port": 80}]);
        let endpoints = [
            endpoint("10.0.0.1", "Pod", "web-1"),
            endpoint("10.0.0.2", "Pod", "deleted"),
            endpoint("10.0.0.3", "ExternalWorkload", "vm"),
            endpoint("10.0.0.4", "ExternalWorkload", "web-1"),
            endpoint("10.0.0.5", "Pod", "elsewhere"),
            json!({"addresses": ["10.0.0.6"]}),
        ];
        let objects = [
            (Kind::Pod, json!({"metadata": {"name": "web-1"}})),
            (Kind::Pod, json!({"metadata": {"name": "elsewhere", "namespace": "other"}})),
            (Kind::ExternalWorkload, json!({"metadata": {"name": "vm"}})),
            slice("a", &ports, &endpoints),
        ];
        assert_eq!(addresses(&members(objects.clone())), ["10.0.0.1", "10.0.0.3", "10.0.0.6"]);
        let without = members_of(objects);
        assert!(without.service.is_none() && without.slices.is_empty() && without.members.is_empty());
    }
}
