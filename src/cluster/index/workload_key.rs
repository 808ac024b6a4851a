//! The workload that a Pod belongs to, and the Pods of a workload.
//!
//! A Pod's workload is its owner. If that owner is a ReplicaSet or a Job that has an owner of any kind, this second
//! owner is the workload. Owners are followed no further. Always holds: [`State::pods_of`] is the inverse of
//! [`State::workload_of`], so each Pod belongs to one workload; a change that moves a Pod affects both the old and the
//! new workload.

use std::{fmt, sync::Arc};

use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{owner::Owner, pod::Pod},
    },
};

/// The kind of a workload that is a bare Pod: a Pod without an owner or with several owners.
pub const BARE_POD: &str = "Pod";
const REPLICA_SET: &str = "ReplicaSet";
const JOB: &str = "Job";

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
    fn accepts(self, owner: &Owner, next: &Owner) -> bool {
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

    fn as_owner(&self) -> Owner {
        Owner { kind: Arc::clone(&self.kind), name: Arc::clone(&self.name) }
    }
}

impl fmt::Display for WorkloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind, self.name)
    }
}

// === impl State ===

impl State {
    /// Returns the owner of the Pod's ReplicaSet or Job if it is known and the policy accepts it, else the owner of the
    /// Pod. Returns `None` for a bare Pod.
    pub fn top_owner<'a>(&'a self, pod: &'a Pod, policy: OwnerPolicy) -> Option<&'a Owner> {
        let owner = pod.owner.as_ref()?;
        let next = self.above(&pod.key.namespace, owner).filter(|next| policy.accepts(owner, next));
        Some(next.unwrap_or(owner))
    }

    /// Returns the workload that the Pod belongs to. A ReplicaSet or Job that is not in the state, or has no owner, is
    /// itself the workload.
    pub fn workload_of(&self, pod: &Pod) -> WorkloadKey {
        let NamespacedName { namespace, name } = &pod.key;
        match self.top_owner(pod, OwnerPolicy::AnyKind) {
            Some(owner) => WorkloadKey::of_owner(namespace, owner),
            None => WorkloadKey::new(Arc::clone(namespace), BARE_POD, Arc::clone(name)),
        }
    }

    /// Returns the Pods that belong to the workload, in time proportional to these Pods and the ReplicaSets and Jobs
    /// between.
    pub fn pods_of(&self, workload: &WorkloadKey) -> impl Iterator<Item = &Arc<Pod>> + use<'_> {
        let WorkloadKey { namespace, kind, name } = workload;
        let owner = workload.as_owner();
        let is_top = self.above(namespace, &owner).is_none();
        let own = is_top.then(|| self.pods.owned(namespace, &owner));
        let bare = if **kind == *BARE_POD { self.pods.find(namespace, name) } else { None };
        let replica_sets = self.replica_sets.owned(namespace, &owner).map(|it| (REPLICA_SET, &it.key.name));
        let jobs = self.jobs.owned(namespace, &owner).map(|it| (JOB, &it.key.name));
        let owners = replica_sets.chain(jobs).map(|(kind, name)| Owner { kind: kind.into(), name: Arc::clone(name) });
        let between: Vec<&Arc<Pod>> = owners.flat_map(|owner| self.pods.owned(namespace, &owner)).collect();
        let bare = bare.filter(|pod| pod.owner.is_none());
        bare.into_iter().chain(own.into_iter().flatten()).chain(between)
    }

    /// Returns the workload of each Pod.
    pub fn workloads_of<'a>(
        &'a self,
        pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    ) -> impl Iterator<Item = WorkloadKey> {
        pods.into_iter().map(|pod| self.workload_of(pod))
    }

    fn above(&self, namespace: &Arc<str>, owner: &Owner) -> Option<&Owner> {
        let key = NamespacedName { namespace: Arc::clone(namespace), name: Arc::clone(&owner.name) };
        match &*owner.kind {
            REPLICA_SET => self.replica_sets.of(&key),
            JOB => self.jobs.of(&key),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "workload_key_tests.rs"]
mod tests;
