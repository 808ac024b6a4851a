//! The watched kinds: one file for each, with its projection from the wire shape, and one table that lists all kinds.
//!
//! A projection has the name of its kind. The custom resources of the same name in `api` are the wire shapes.

pub mod apps_workload;
pub mod config_map;
pub mod container_port;
pub mod disruption_budget;
pub mod endpoint_slice;
pub mod external_workload;
pub mod federated_service;
pub mod inject;
pub mod linkerd_config;
pub mod linkerd_trust;
pub mod namespace;
pub mod node;
pub mod owner;
pub mod pod;
pub mod port_ranges;
pub mod proxy;
pub mod remote_kubeconfig;
pub mod server;
pub mod service;
pub mod service_profile;
pub mod sidecar;
pub mod windows;

use std::sync::Arc;

use k8s_openapi::api::{apps::v1 as apps, batch::v1 as batch};

use super::{
    Diff, Projected,
    index::store::{Store, Stored},
};
use crate::api::NamespacedName;
use {
    apps_workload::AppsWorkloadOf, config_map::ConfigMap, disruption_budget::DisruptionBudget, endpoint_slice::Slice,
    external_workload::ExternalWorkload, linkerd_config::LinkerdConfig, linkerd_trust::LinkerdTrust,
    namespace::Namespace, node::Node, owner::IntermediateOwner, pod::Pod, remote_kubeconfig::RemoteKubeconfig,
    server::Server, service::Service, service_profile::ServiceProfile,
};

/// A watched kind: the projection of its objects, and where the [`State`] holds them. The table below implements it.
pub trait Watched: Projected + Stored {
    const KIND: Kind;

    fn store(state: &State) -> &Store<Self>;
    fn store_mut(state: &mut State) -> &mut Store<Self>;
    fn change(diff: Diff<Self>) -> Change;

    /// Stores the object, replacing the one with the same key. Returns `None` if observers would see no difference.
    fn apply(self, state: &mut State) -> Option<Change> {
        Self::apply_shared(Arc::new(self), state)
    }

    /// As [`Watched::apply`], without a copy.
    fn apply_shared(object: Arc<Self>, state: &mut State) -> Option<Change> {
        Self::store_mut(state).apply(object).map(Self::change)
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Option<Change> {
        Self::store_mut(state).delete(key).map(Self::change)
    }
}

/// A function of the projection of a kind, which [`Kind::visit`] calls.
pub trait KindVisitor {
    type Output;
    fn visit<T: Watched>(self) -> Self::Output;
}

/// Defines [`Kind`], [`State`] and [`Change`], and implements [`Watched`], from a table of: the field of the state; the
/// kind and its projection; the resource, as RBAC rules spell it; the metric for the number of cached objects, as
/// Linkerd names it.
macro_rules! watched_kinds {
    ($($field:ident: $kind:ident($projection:ty), $resource:literal, $cache_size:literal;)+) => {
        /// A watched kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($kind,)+
        }

        /// The objects of all watched kinds, as the watches last delivered them.
        #[derive(Default)]
        pub struct State {
            /// Grows with every change: of two values computed from the state, the one of the higher generation is
            /// newer.
            pub generation: u64,
            $(pub $field: Store<$projection>,)+
        }

        /// A change of one object of a kind.
        #[derive(Clone, Debug)]
        pub enum Change {
            $($kind(Diff<$projection>),)+
        }

        impl Change {
            /// The object that changed.
            pub(in crate::cluster) fn key(&self) -> NamespacedName {
                match self {
                    $(Self::$kind(diff) => diff.latest().key(),)+
                }
            }
        }

        $(impl Watched for $projection {
            const KIND: Kind = Kind::$kind;

            fn store(state: &State) -> &Store<Self> {
                &state.$field
            }

            fn store_mut(state: &mut State) -> &mut Store<Self> {
                &mut state.$field
            }

            fn change(diff: Diff<Self>) -> Change {
                Change::$kind(diff)
            }
        })+

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// Calls the visitor with the projection of the kind.
            pub fn visit<V: KindVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$kind => visitor.visit::<$projection>(),)+
                }
            }

            /// The resource, as RBAC rules spell it.
            pub const fn resource(self) -> &'static str {
                match self {
                    $(Self::$kind => $resource,)+
                }
            }

            pub(in crate::cluster) const fn cache_size(self) -> &'static str {
                match self {
                    $(Self::$kind => $cache_size,)+
                }
            }

            pub(in crate::cluster) const fn informer_lag(self) -> Option<&'static str> {
                match self {
                    $(Self::$kind => <$projection as Projected>::INFORMER_LAG,)+
                }
            }

            pub(in crate::cluster) const fn is_optional(self) -> bool {
                match self {
                    $(Self::$kind => <$projection as Projected>::IS_OPTIONAL,)+
                }
            }

            /// The number of objects of the kind.
            pub fn count(self, state: &State) -> usize {
                match self {
                    $(Self::$kind => state.$field.len(),)+
                }
            }
        }
    };
}

watched_kinds! {
    services: Service(Service), "services", "service_cache_size";
    slices: EndpointSlice(Slice), "endpointslices.discovery.k8s.io", "endpointslices_cache_size";
    external_workloads: ExternalWorkload(ExternalWorkload),
        "externalworkloads.workload.linkerd.io", "externalworkload_cache_size";
    pods: Pod(Pod), "pods", "pod_cache_size";
    servers: Server(Server), "servers.policy.linkerd.io", "server_cache_size";
    service_profiles: ServiceProfile(ServiceProfile), "serviceprofiles.linkerd.io", "serviceprofile_cache_size";
    nodes: Node(Node), "nodes", "node_cache_size";
    replica_sets: ReplicaSet(IntermediateOwner<apps::ReplicaSet>), "replicasets.apps", "replicaset_cache_size";
    jobs: Job(IntermediateOwner<batch::Job>), "jobs.batch", "job_cache_size";
    linkerd_configs: LinkerdConfig(LinkerdConfig), "linkerdconfigs.config.linkerd.io", "linkerdconfig_cache_size";
    linkerd_trusts: LinkerdTrust(LinkerdTrust), "linkerdtrusts.config.linkerd.io", "linkerdtrust_cache_size";
    config_maps: ConfigMap(ConfigMap), "configmaps", "configmap_cache_size";
    deployments: Deployment(AppsWorkloadOf<apps::Deployment>), "deployments.apps", "deployment_cache_size";
    stateful_sets: StatefulSet(AppsWorkloadOf<apps::StatefulSet>), "statefulsets.apps", "statefulset_cache_size";
    daemon_sets: DaemonSet(AppsWorkloadOf<apps::DaemonSet>), "daemonsets.apps", "daemonset_cache_size";
    namespaces: Namespace(Namespace), "namespaces", "namespace_cache_size";
    remote_kubeconfigs: Secret(RemoteKubeconfig), "secrets", "secret_cache_size";
    disruption_budgets: PodDisruptionBudget(DisruptionBudget), "poddisruptionbudgets.policy", "poddisruptionbudget_cache_size";
}
