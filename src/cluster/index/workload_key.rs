//! What stands at the top of a Pod's owners, and the Pods that stand below it.
//!
//! One step is climbed, through a ReplicaSet or a Job, whatever made that. Always holds: [`State::pods_of`] is the inverse of
//! [`State::workload_of`], so each Pod is one workload's; and a change that moves a Pod affects both that it moves between.

use std::{collections::BTreeSet, fmt, sync::Arc};

use crate::{
    api::NamespacedName,
    cluster::{
        State,
        kinds::{
            owner::{IntermediateOwners, Owner},
            pod::Pod,
        },
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

// === impl WorkloadKey ===

impl WorkloadKey {
    pub fn new(namespace: impl Into<Arc<str>>, kind: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), kind: kind.into(), name: name.into() }
    }

    pub(in crate::cluster) fn of_owner(namespace: &Arc<str>, owner: &Owner) -> Self {
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
    /// The workload that the Pod belongs to. A ReplicaSet or Job that is not known, or has no owner, stands for itself.
    pub fn workload_of(&self, pod: &Pod) -> WorkloadKey {
        let NamespacedName { namespace, name } = &pod.key;
        match &pod.owner {
            Some(owner) => WorkloadKey::of_owner(namespace, self.above(namespace, owner).unwrap_or(owner)),
            None => WorkloadKey::new(Arc::clone(namespace), BARE_POD, Arc::clone(name)),
        }
    }

    /// The Pods that belong to the workload. It costs them, and what stands between.
    pub fn pods_of(&self, workload: &WorkloadKey) -> impl Iterator<Item = &Arc<Pod>> + use<'_> {
        let WorkloadKey { namespace, kind, name } = workload;
        let owner = workload.as_owner();
        let stands_for_itself = self.above(namespace, &owner).is_none();
        let own = stands_for_itself.then(|| self.pods.owned(namespace, &owner));
        let bare = if **kind == *BARE_POD { self.pods.get(namespace, name) } else { None };
        let between = [(REPLICA_SET, &self.replica_sets), (JOB, &self.jobs)].map(|(kind, owners)| {
            let owned = owners.owned(workload).cloned();
            let owners = owned.map(|name| Owner { kind: kind.into(), name });
            owners.flat_map(|owner| self.pods.owned(namespace, &owner)).collect::<Vec<_>>()
        });
        let bare = bare.filter(|pod| pod.owner.is_none());
        bare.into_iter().chain(own.into_iter().flatten()).chain(between.into_iter().flatten())
    }

    /// What rollouts have to look at because of Pods; nothing where nobody rolls.
    pub(in crate::cluster) fn workloads_of<'a>(
        &self,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> BTreeSet<WorkloadKey> {
        if !self.rolls {
            return BTreeSet::new();
        }
        pods.into_iter().map(|pod| self.workload_of(pod)).collect()
    }

    /// What rollouts have to look at when something in a namespace holds for all of it.
    pub(in crate::cluster) fn workloads_in(&self, namespace: &str) -> BTreeSet<WorkloadKey> {
        let mut workloads = self.workloads_of(self.pods.in_namespace(namespace).map(|pod| &**pod));
        if self.rolls {
            let resources = self.apps_workloads.in_namespace(namespace);
            workloads.extend(resources.map(|resource| resource.workload.clone()));
        }
        workloads
    }

    fn above(&self, namespace: &Arc<str>, owner: &Owner) -> Option<&Owner> {
        let owners: &IntermediateOwners = match &*owner.kind {
            REPLICA_SET => &self.replica_sets,
            JOB => &self.jobs,
            _ => return None,
        };
        owners.of(&NamespacedName { namespace: Arc::clone(namespace), name: Arc::clone(&owner.name) })
    }
}

#[cfg(test)]
#[path = "workload_key_tests.rs"]
mod tests;
