//! What stands at the top of a Pod's owners, and the Pods that stand below it.
//!
//! One step is climbed, through a ReplicaSet or a Job, whatever made that. Always holds: [`State::pods_of`] is the inverse of
//! [`State::workload_of`], so each Pod is one workload's; and a change that moves a Pod affects both that it moves between.

use std::{fmt, sync::Arc};

use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{owner::Owner, pod::Pod},
    },
};

/// The kind of a workload that is a Pod without an owner, or with several.
pub const BARE_POD: &str = "Pod";
const REPLICA_SET: &str = "ReplicaSet";
const JOB: &str = "Job";

/// A workload, whatever it is: a Deployment, a CronJob, a bare Pod, something that we have never heard of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub namespace: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

/// The owners that stand for the Pods of their ReplicaSets and Jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerPolicy {
    /// Owners of any kind. Rollouts use it: a Pod is restarted through the object that creates its ReplicaSets, such as a Rollout
    /// of Argo.
    AnyKind,
    /// For ReplicaSets only the kinds that Linkerd knows, for Jobs any kind. Metric labels use it: they are Linkerd's labels.
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
    /// Returns the owner of the Pod, or the owner of its ReplicaSet or Job, if that is known and the policy accepts it. `None` for a
    /// bare Pod.
    pub fn top_owner<'a>(&'a self, pod: &'a Pod, policy: OwnerPolicy) -> Option<&'a Owner> {
        let owner = pod.owner.as_ref()?;
        let next = self.above(&pod.key.namespace, owner).filter(|next| policy.accepts(owner, next));
        Some(next.unwrap_or(owner))
    }

    /// Returns the workload that the Pod belongs to. A ReplicaSet or Job that is not known, or has no owner, is its own workload.
    pub fn workload_of(&self, pod: &Pod) -> WorkloadKey {
        let NamespacedName { namespace, name } = &pod.key;
        match self.top_owner(pod, OwnerPolicy::AnyKind) {
            Some(owner) => WorkloadKey::of_owner(namespace, owner),
            None => WorkloadKey::new(Arc::clone(namespace), BARE_POD, Arc::clone(name)),
        }
    }

    /// The Pods that belong to the workload. It costs them, and what stands between.
    pub fn pods_of(&self, workload: &WorkloadKey) -> impl Iterator<Item = &Arc<Pod>> + use<'_> {
        let WorkloadKey { namespace, kind, name } = workload;
        let owner = workload.as_owner();
        let stands_for_itself = self.above(namespace, &owner).is_none();
        let own = stands_for_itself.then(|| self.pods.owned(namespace, &owner));
        let bare = if **kind == *BARE_POD { self.pods.find(namespace, name) } else { None };
        let replica_sets = self.replica_sets.owned(namespace, &owner).map(|it| (REPLICA_SET, &it.key.name));
        let jobs = self.jobs.owned(namespace, &owner).map(|it| (JOB, &it.key.name));
        let owners = replica_sets.chain(jobs).map(|(kind, name)| Owner { kind: kind.into(), name: Arc::clone(name) });
        let between: Vec<&Arc<Pod>> = owners.flat_map(|owner| self.pods.owned(namespace, &owner)).collect();
        let bare = bare.filter(|pod| pod.owner.is_none());
        bare.into_iter().chain(own.into_iter().flatten()).chain(between)
    }

    /// The workloads that Pods belong to.
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
