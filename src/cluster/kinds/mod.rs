//! The watched kinds: what RBAC, logs and metrics call them, and one file for each with its projection from the wire shape.

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

use std::collections::BTreeMap;

use crate::api::CONFIG_GROUP;

/// A watched kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    ExternalWorkload,
    Pod,
    Server,
    ServiceProfile,
    Node,
    ReplicaSet,
    Job,
    LinkerdConfig,
    ConfigMap,
    Deployment,
    StatefulSet,
    DaemonSet,
    Namespace,
    PodDisruptionBudget,
}

/// A job of the process, as far as it reads watched kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    ExternalWorkload,
    Destination,
    LinkerdConfig,
    /// The part of it that restarts workloads.
    Rollout,
}

impl Kind {
    pub const ALL: [Self; 16] = [
        Self::Service,
        Self::EndpointSlice,
        Self::ExternalWorkload,
        Self::Pod,
        Self::Server,
        Self::ServiceProfile,
        Self::Node,
        Self::ReplicaSet,
        Self::Job,
        Self::LinkerdConfig,
        Self::ConfigMap,
        Self::Deployment,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Namespace,
        Self::PodDisruptionBudget,
    ];

    /// The resource, as RBAC rules spell it.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices.discovery.k8s.io",
            Self::ExternalWorkload => "externalworkloads.workload.linkerd.io",
            Self::Pod => "pods",
            Self::Server => "servers.policy.linkerd.io",
            Self::ServiceProfile => "serviceprofiles.linkerd.io",
            Self::Node => "nodes",
            Self::ReplicaSet => "replicasets.apps",
            Self::Job => "jobs.batch",
            Self::LinkerdConfig => "linkerdconfigs.config.linkerd.io",
            Self::ConfigMap => "configmaps",
            Self::Deployment => "deployments.apps",
            Self::StatefulSet => "statefulsets.apps",
            Self::DaemonSet => "daemonsets.apps",
            Self::Namespace => "namespaces",
            Self::PodDisruptionBudget => "poddisruptionbudgets.policy",
        }
    }

    /// The metric for how many of them the cache holds, as Linkerd calls it.
    pub(in crate::cluster) const fn cache_size(self) -> &'static str {
        match self {
            Self::Service => "service_cache_size",
            Self::EndpointSlice => "endpointslices_cache_size",
            Self::ExternalWorkload => "externalworkload_cache_size",
            Self::Pod => "pod_cache_size",
            Self::Server => "server_cache_size",
            Self::ServiceProfile => "serviceprofile_cache_size",
            Self::Node => "node_cache_size",
            Self::ReplicaSet => "replicaset_cache_size",
            Self::Job => "job_cache_size",
            Self::LinkerdConfig => "linkerdconfig_cache_size",
            Self::ConfigMap => "configmap_cache_size",
            Self::Deployment => "deployment_cache_size",
            Self::StatefulSet => "statefulset_cache_size",
            Self::DaemonSet => "daemonset_cache_size",
            Self::Namespace => "namespace_cache_size",
            Self::PodDisruptionBudget => "poddisruptionbudget_cache_size",
        }
    }

    /// Linkerd's metric for how late its updates arrive; it has none for kinds of which it watches only the metadata, or nothing.
    pub(in crate::cluster) const fn informer_lag(self) -> Option<&'static str> {
        match self {
            Self::Service => Some("services_informer_lag_seconds"),
            Self::EndpointSlice => Some("endpointslices_informer_lag_seconds"),
            Self::ExternalWorkload => Some("externalworkload_informer_lag_seconds"),
            Self::Pod => Some("pods_informer_lag_seconds"),
            Self::Server => Some("servers_informer_lag_seconds"),
            Self::ServiceProfile => Some("serviceprofiles_informer_lag_seconds"),
            Self::Node | Self::ReplicaSet | Self::Job | Self::LinkerdConfig | Self::ConfigMap => None,
            Self::Deployment | Self::StatefulSet | Self::DaemonSet => None,
            Self::Namespace | Self::PodDisruptionBudget => None,
        }
    }

    /// Whether clusters may be without it: its CRD is Linkerd's or ours, and not everybody installs all of them.
    pub(in crate::cluster) const fn is_optional(self) -> bool {
        matches!(self, Self::ExternalWorkload | Self::Server | Self::ServiceProfile | Self::LinkerdConfig)
    }

    pub(in crate::cluster) const fn is_read_by(self, reader: Reader) -> bool {
        match reader {
            Reader::ExternalWorkload => matches!(self, Self::Service | Self::EndpointSlice | Self::ExternalWorkload),
            Reader::LinkerdConfig => matches!(self, Self::LinkerdConfig | Self::ConfigMap | Self::EndpointSlice),
            Reader::Destination => matches!(
                self,
                Self::Service
                    | Self::EndpointSlice
                    | Self::ExternalWorkload
                    | Self::Pod
                    | Self::Server
                    | Self::ServiceProfile
                    | Self::Node
                    | Self::ReplicaSet
                    | Self::Job
            ),
            Reader::Rollout => matches!(
                self,
                Self::Pod
                    | Self::ReplicaSet
                    | Self::Job
                    | Self::LinkerdConfig
                    | Self::Deployment
                    | Self::StatefulSet
                    | Self::DaemonSet
                    | Self::Namespace
                    | Self::PodDisruptionBudget
            ),
        }
    }
}

/// Returns the annotations of the LinkerdConfig group.
pub(in crate::cluster) fn config_annotations(
    annotations: Option<BTreeMap<String, String>>,
) -> BTreeMap<Box<str>, Box<str>> {
    let is_ours = |key: &str| key.strip_prefix(CONFIG_GROUP).is_some_and(|rest| rest.starts_with('/'));
    let ours = annotations.into_iter().flatten().filter(|(key, _)| is_ours(key));
    ours.map(|(key, value)| (key.into(), value.into())).collect()
}
