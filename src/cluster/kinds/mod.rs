//! The watched kinds: one file for each, with its projection from the wire shape, and the one table that lists them all.
//!
//! A projection has the name of its kind, though `api` has custom resources of the same name: those are the wire shapes.

pub mod apps_workload;
pub mod config_map;
pub mod disruption_budget;
pub mod endpoint_slice;
pub mod external_workload;
pub mod inject;
pub mod linkerd_config;
pub mod namespace;
pub mod node;
pub mod owner;
pub mod pod;
pub mod port_ranges;
pub mod proxy;
pub mod server;
pub mod service;
pub mod service_profile;

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::api::{apps::v1::ReplicaSet, batch::v1::Job};
use kube::Resource;
use serde::de::DeserializeOwned;

use super::{Diff, Problems, index::store::Store};
use crate::api::{CONFIG_GROUP, NamespacedName};
use {
    apps_workload::{AppsWorkloadOf, AppsWorkloads, DaemonSetObject, DeploymentObject, StatefulSetObject},
    config_map::ConfigMap,
    disruption_budget::DisruptionBudget,
    endpoint_slice::Slice,
    external_workload::ExternalWorkload,
    linkerd_config::LinkerdConfig,
    namespace::Namespace,
    node::Node,
    owner::IntermediateOwner,
    pod::Pod,
    server::Server,
    service::Service,
    service_profile::ServiceProfile,
};

/// A watched kind: its names, how its objects are reduced, and where the [`State`] has them.
pub trait Projected: Sized + Send + 'static {
    /// The object as the API server sends it: only the fields that [`Projected::project`] reads.
    type Wire: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static;
    /// The object as the state holds it.
    type Object;
    const KIND: Kind;
    /// The resource, as RBAC rules spell it.
    const RESOURCE: &'static str;
    /// The metric for how many of them the cache holds, as Linkerd names it.
    const CACHE_SIZE: &'static str;
    /// Linkerd's metric for how late its updates arrive. Linkerd has none for kinds of which it watches only the metadata, or nothing.
    const INFORMER_LAG: Option<&'static str> = None;
    /// Whether clusters may be without the kind: its CRD is Linkerd's or ours, and not every cluster has it.
    const IS_OPTIONAL: bool = false;

    /// Total: every value that decodes as [`Projected::Wire`] becomes an object. Parts that cannot be used are left out, and named.
    fn project(wire: Self::Wire, problems: &mut Problems) -> Self;
    /// Puts the object in the place of the one with its key. Returns `None` where nothing changed that an observer could see.
    fn apply(self, state: &mut State) -> Option<Change>;
    fn remove(key: &NamespacedName, state: &mut State) -> Option<Change>;
    /// The keys of all objects that the state holds.
    fn keys(state: &State) -> Vec<NamespacedName>;
    fn count(state: &State) -> usize;
}

/// A function of the projection of a kind, which [`Kind::visit`] calls.
pub trait KindVisitor {
    type Output;
    fn visit<T: Projected>(self) -> Self::Output;
}

/// Defines [`Kind`], [`State`] and [`Change`] from a table: the field of the state, its type, and the kinds in it with their projections.
macro_rules! watched_kinds {
    ($($(#[$doc:meta])* $field:ident: $store:ty { $($kind:ident($projection:ty)),+ })+) => {
        /// A watched kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($($kind,)+)+
        }

        /// What the watches have said so far.
        #[derive(Default)]
        pub struct State {
            /// Grows with every change: of two values made from the state, the one of the higher generation is newer.
            pub generation: u64,
            $($(#[$doc])* pub $field: $store,)+
        }

        /// A change of one object of a kind.
        #[derive(Clone, Debug)]
        pub enum Change {
            $($($kind(Diff<<$projection as Projected>::Object>),)+)+
        }

        impl Kind {
            pub const ALL: &[Self] = &[$($(Self::$kind,)+)+];

            /// Calls the visitor with the projection of the kind.
            pub fn visit<V: KindVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $($(Self::$kind => visitor.visit::<$projection>(),)+)+
                }
            }

            /// The resource, as RBAC rules spell it.
            pub const fn resource(self) -> &'static str {
                match self {
                    $($(Self::$kind => <$projection as Projected>::RESOURCE,)+)+
                }
            }

            pub(in crate::cluster) const fn cache_size(self) -> &'static str {
                match self {
                    $($(Self::$kind => <$projection as Projected>::CACHE_SIZE,)+)+
                }
            }

            pub(in crate::cluster) const fn informer_lag(self) -> Option<&'static str> {
                match self {
                    $($(Self::$kind => <$projection as Projected>::INFORMER_LAG,)+)+
                }
            }

            pub(in crate::cluster) const fn is_optional(self) -> bool {
                match self {
                    $($(Self::$kind => <$projection as Projected>::IS_OPTIONAL,)+)+
                }
            }

            pub(in crate::cluster) fn count(self, state: &State) -> usize {
                match self {
                    $($(Self::$kind => <$projection as Projected>::count(state),)+)+
                }
            }
        }
    };
}

watched_kinds! {
    services: Store<Service> { Service(Service) }
    slices: Store<Slice> { EndpointSlice(Slice) }
    external_workloads: Store<ExternalWorkload> { ExternalWorkload(ExternalWorkload) }
    pods: Store<Pod> { Pod(Pod) }
    servers: Store<Server> { Server(Server) }
    service_profiles: Store<ServiceProfile> { ServiceProfile(ServiceProfile) }
    nodes: Store<Node> { Node(Node) }
    replica_sets: Store<IntermediateOwner<ReplicaSet>> { ReplicaSet(IntermediateOwner<ReplicaSet>) }
    jobs: Store<IntermediateOwner<Job>> { Job(IntermediateOwner<Job>) }
    linkerd_configs: Store<LinkerdConfig> { LinkerdConfig(LinkerdConfig) }
    config_maps: Store<ConfigMap> { ConfigMap(ConfigMap) }
    apps_workloads: AppsWorkloads {
        Deployment(AppsWorkloadOf<DeploymentObject>),
        StatefulSet(AppsWorkloadOf<StatefulSetObject>),
        DaemonSet(AppsWorkloadOf<DaemonSetObject>)
    }
    namespaces: Store<Namespace> { Namespace(Namespace) }
    disruption_budgets: Store<DisruptionBudget> { PodDisruptionBudget(DisruptionBudget) }
}

/// Returns the annotations of the LinkerdConfig group.
pub(in crate::cluster) fn config_annotations(
    annotations: Option<BTreeMap<String, String>>,
) -> BTreeMap<Box<str>, Box<str>> {
    let is_ours = |key: &str| key.strip_prefix(CONFIG_GROUP).is_some_and(|rest| rest.starts_with('/'));
    let ours = annotations.into_iter().flatten().filter(|(key, _)| is_ours(key));
    ours.map(|(key, value)| (key.into(), value.into())).collect()
}
