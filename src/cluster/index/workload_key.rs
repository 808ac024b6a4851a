//! The key of a workload, and the owners that count as the workload of a Pod.

use std::{fmt, sync::Arc};

use crate::cluster::kinds::owner::Owner;

/// The kind of a workload that is a bare Pod: a Pod without an owner or with several owners.
pub const BARE_POD: &str = "Pod";
pub(in crate::cluster) const REPLICA_SET: &str = "ReplicaSet";
pub(in crate::cluster) const JOB: &str = "Job";

/// The key of a workload of any kind: a Deployment, a CronJob, a bare Pod, a custom resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub namespace: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// The owners of ReplicaSets and Jobs that count as owners of their Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerPolicy {
    /// Owners of any kind. Rollouts use this policy: a Pod is restarted through the object that creates its
    /// ReplicaSets, such as an Argo Rollout.
    AnyKind,
    /// For ReplicaSets only the kinds that Linkerd recognizes, for Jobs any kind. Metric labels use this policy,
    /// because they are Linkerd's labels.
    LinkerdKinds,
}

// === impl OwnerPolicy ===

impl OwnerPolicy {
    pub(in crate::cluster) fn accepts(self, owner: &Owner, next: &Owner) -> bool {
        const OF_REPLICA_SETS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", JOB];
        match self {
            Self::AnyKind => true,
            Self::LinkerdKinds => {
                !owner.is(REPLICA_SET) || OF_REPLICA_SETS.iter().any(|kind| next.kind.eq_ignore_ascii_case(kind))
            }
        }
    }
}

// === impl WorkloadKey ===

impl WorkloadKey {
    pub fn new(namespace: impl Into<Arc<str>>, kind: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), kind: kind.into(), name: name.into() }
    }

    pub fn of_owner(namespace: &Arc<str>, owner: &Owner) -> Self {
        Self { namespace: Arc::clone(namespace), kind: Arc::clone(&owner.kind), name: Arc::clone(&owner.name) }
    }

    pub(in crate::cluster) fn as_owner(&self) -> Owner {
        Owner { kind: Arc::clone(&self.kind), name: Arc::clone(&self.name) }
    }
}

impl fmt::Display for WorkloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind, self.name)
    }
}
