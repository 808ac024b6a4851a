//! The endpoints of one Service, joined with their target objects. Pure.
//!
//! In: the state of the cluster or, for a federated Service, the states of the clusters of its members. Out: the
//! [`EndpointTarget`] of each ready endpoint in each slice of an existing Service. An endpoint whose Pod or
//! ExternalWorkload is not in the state is left out until that object arrives: it must not be treated as an endpoint
//! outside the mesh.
//!
//! A member holds only shared values, so that the lock of the state is released before views are encoded.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use super::{
    request::{Location, Query, declares},
    set_labels::{SetLabels, SourceTraits, source_labels},
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
    destination::{
        endpoint::target::EndpointTarget, multicluster::remote::RemoteNamespace, registry::Generation,
        settings::DestinationSettings,
    },
};

/// The endpoints of a Service at one generation of the state.
#[derive(Clone, Debug)]
pub(in crate::destination) struct Members {
    /// `None` if the Service does not exist. Then the sources, slices and members are empty.
    pub(in crate::destination) service: Option<Arc<Service>>,
    /// The Service itself, or the members of a federated Service.
    pub(super) sources: Vec<EndpointsSource>,
    /// The slices of each source, sorted by name.
    pub(super) slices: Vec<SourceSlice>,
    /// The members, in the order of the slices and of their endpoints.
    pub(in crate::destination) members: Vec<Member>,
    /// The generation of the state. Among several values for one Service, the one with the highest generation is
    /// newest.
    pub(in crate::destination) generation: Generation,
    /// Whether the endpoints are those of other Services.
    pub(super) is_federated: bool,
    /// Whether all clusters that may have endpoints of the Service are known.
    pub(super) is_complete: bool,
    /// Without and with the clusters of endpoints.
    labels: [OnceLock<SetLabels>; 2],
    by_node: OnceLock<Buckets>,
    by_hostname: OnceLock<Buckets>,
}

/// A Service with slices.
#[derive(Clone, Debug)]
pub(super) struct EndpointsSource {
    pub(super) key: NamespacedName,
    /// `None` if it does not exist.
    pub(super) service: Option<Arc<Service>>,
    /// Another cluster, with the settings for it; `None` for this cluster.
    pub(super) remote: Option<RemoteSource>,
}

#[derive(Clone, Debug)]
pub(super) struct RemoteSource {
    pub(super) namespace: Arc<RemoteNamespace>,
    pub(super) settings: Arc<DestinationSettings>,
}

#[derive(Clone, Debug)]
pub(super) struct SourceSlice {
    /// The index in [`Members::sources`].
    pub(super) source: usize,
    pub(super) content: Arc<ReadySlice>,
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
    /// Returns the endpoints in the slices of the Service.
    pub(in crate::destination) fn of(state: &State, key: &NamespacedName) -> Self {
        let mut members = Self::empty(state.services.get(key), state.generation.into());
        if members.service.is_some() {
            members.add(state, key.clone(), None);
        }
        members
    }

    /// Returns a federated Service without endpoints, to which those of its members have to be added.
    pub(super) fn federated(service: &Arc<Service>, generation: Generation) -> Self {
        Self { is_federated: true, ..Self::empty(Some(service), generation) }
    }

    fn empty(service: Option<&Arc<Service>>, generation: Generation) -> Self {
        Self {
            is_federated: false,
            service: service.cloned(),
            sources: Vec::new(),
            slices: Vec::new(),
            members: Vec::new(),
            generation,
            is_complete: true,
            labels: Default::default(),
            by_node: OnceLock::new(),
            by_hostname: OnceLock::new(),
        }
    }

    /// Adds the endpoints of a Service in this cluster, or in another one.
    pub(super) fn add(&mut self, state: &State, key: NamespacedName, remote: Option<Arc<RemoteNamespace>>) {
        let (source, service) = (self.sources.len(), state.services.get(&key).cloned());
        let exists = service.is_some();
        let first = self.slices.len();
        let slices = state.slices.ready_of_service(&key).filter(|_| exists);
        self.slices.extend(slices.map(|content| SourceSlice { source, content: Arc::clone(content) }));
        let added = self.slices.iter().enumerate().skip(first);
        self.members.reserve(added.clone().map(|(_, slice)| slice.content.endpoints.len()).sum());
        for (slice, SourceSlice { content, .. }) in added {
            for (endpoint, it) in content.endpoints.iter().enumerate() {
                if let Some(target) = EndpointTarget::of(state, &key.namespace, it) {
                    self.members.push(Member { slice, endpoint, target });
                }
            }
        }
        let remote = remote.map(|namespace| RemoteSource { settings: namespace.settings(), namespace });
        self.sources.push(EndpointsSource { key, service, remote });
    }

    pub(in crate::destination) fn slice(&self, member: &Member) -> Option<&ReadySlice> {
        self.slices.get(member.slice).map(|slice| &*slice.content)
    }

    /// Returns the index of the source of a member.
    pub(super) fn source(&self, member: &Member) -> Option<usize> {
        self.slices.get(member.slice).map(|slice| slice.source)
    }

    /// Returns whether the clients of this cluster's endpoints receive only those on their own node.
    pub(super) fn is_local_only(&self) -> bool {
        let local = self.sources.iter().filter(|source| source.remote.is_none());
        local.filter_map(|source| source.service.as_ref()).any(|service| service.local)
    }

    /// Returns whether one of the Services declares the port.
    pub(super) fn declare(&self, port: u16) -> bool {
        self.services().any(|service| declares(service, port))
    }

    /// Returns the Services that have the endpoints.
    pub(super) fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.sources.iter().filter_map(|source| source.service.as_ref())
    }

    fn is_remote(&self, member: &Member) -> bool {
        let source = self.source(member).and_then(|source| self.sources.get(source));
        source.is_some_and(|source| source.remote.is_some())
    }

    pub(super) fn has_sources(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Returns the other clusters' namespaces with the endpoints.
    pub(super) fn remotes(&self) -> impl Iterator<Item = &Arc<RemoteNamespace>> {
        self.sources.iter().filter_map(|source| Some(&source.remote.as_ref()?.namespace))
    }

    /// Returns the traits of the sources, and the metric labels of the whole set.
    pub(super) fn labels(&self, with_clusters: bool) -> &SetLabels {
        let [without, with] = &self.labels;
        let labels = if with_clusters { with } else { without };
        labels.get_or_init(|| {
            SetLabels::of(self.sources.iter().enumerate().map(|(index, source)| {
                let slices = self.slices.iter().filter(move |slice| slice.source == index);
                let mut labels = source_labels(&source.key, slices.filter_map(|slice| slice.content.mirror.as_deref()));
                let trust_domain = source.remote.as_ref().map(|remote| remote.settings.identity_trust_domain.clone());
                let cluster = source.remote.as_ref().filter(|_| with_clusters).map(|remote| &remote.namespace.name);
                labels.extend(cluster.map(|cluster| ("cluster".to_owned(), cluster.to_string())));
                SourceTraits { labels, trust_domain }
            }))
        })
    }

    /// Returns the members for clients at a location, in order, before hints for zones are applied. Many views of one
    /// Service are for one node each, so a view looks only at its own members.
    pub(in crate::destination) fn select(&self, query: &Query, location: &Location) -> impl Iterator<Item = &Member> {
        let has_remotes = self.remotes().next().is_some();
        let node = location.node.as_deref();
        let bucket = match (query.instance.as_deref(), node) {
            (Some(hostname), _) => Some(self.by_hostname().get(hostname)),
            (None, Some(node)) if !has_remotes || node.is_empty() => Some(self.by_node().get(node)),
            (None, _) => None,
        };
        let mut some = bucket.map(|bucket| Cow::Borrowed(bucket.map(Vec::as_slice).unwrap_or_default()));
        if let Some(node) = &location.hinted_node {
            let mut hinted = self.hinted_for(query.port, node);
            if has_remotes {
                hinted.extend(
                    (0..self.members.len()).filter(|it| self.members.get(*it).is_some_and(|it| self.is_remote(it))),
                );
                hinted.sort_unstable();
            }
            some = Some(Cow::Owned(hinted));
        }
        let all = if some.is_none() { self.members.as_slice() } else { &[] };
        let some = some.unwrap_or_default();
        let some = (0..some.len()).filter_map(move |it| self.members.get(*some.get(it)?));
        // `internalTrafficPolicy: Local` applies only to the endpoints of this cluster.
        let is_on = move |member: &&Member| {
            node.is_none_or(|node| !node.is_empty() && (member.node() == Some(node) || self.is_remote(member)))
        };
        all.iter().chain(some).filter(is_on)
    }

    pub(super) fn hostnames(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_hostname().keys()
    }

    /// Returns the nodes of this cluster with members that are Pods.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_node().keys().filter(|node| !node.is_empty())
    }

    fn by_node(&self) -> &Buckets {
        self.by_node.get_or_init(|| {
            self.buckets(|member| match &member.target {
                EndpointTarget::Pod(_) if self.is_remote(member) => None,
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
