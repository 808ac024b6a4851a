//! The workload that a Pod belongs to, the Pods of a workload, and the workloads that replace their Pods.
//!
//! A Pod's workload is its owner. If that owner is a ReplicaSet or a Job that has an owner of any kind, this second
//! owner is the workload. Owners are followed no further. Always holds: [`State::pods_of`] is the inverse of
//! [`State::workload_of`], so each Pod belongs to one workload; a change that moves a Pod affects both the old and the
//! new workload.

use std::sync::Arc;

use super::{
    State,
    index::workload_key::{BARE_POD, JOB, OwnerPolicy, REPLICA_SET, WorkloadKey},
    kinds::{
        apps_workload::{AppsWorkload, WorkloadKind},
        owner::Owner,
        pod::Pod,
    },
};
use crate::api::NamespacedName;

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

    /// The Deployment, StatefulSet or DaemonSet with the key.
    pub fn apps_workload(&self, WorkloadKey { namespace, kind, name }: &WorkloadKey) -> Option<&Arc<AppsWorkload>> {
        match kind.parse().ok()? {
            WorkloadKind::Deployment => self.deployments.find(namespace, name).map(|it| &it.resource),
            WorkloadKind::StatefulSet => self.stateful_sets.find(namespace, name).map(|it| &it.resource),
            WorkloadKind::DaemonSet => self.daemon_sets.find(namespace, name).map(|it| &it.resource),
        }
    }

    /// All Deployments, StatefulSets and DaemonSets.
    pub fn apps_workloads(&self) -> impl Iterator<Item = &Arc<AppsWorkload>> {
        let deployments = self.deployments.iter().map(|it| &it.resource);
        let stateful_sets = self.stateful_sets.iter().map(|it| &it.resource);
        deployments.chain(stateful_sets).chain(self.daemon_sets.iter().map(|it| &it.resource))
    }

    /// The Deployments, StatefulSets and DaemonSets of a namespace.
    pub fn apps_workloads_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<AppsWorkload>> {
        let deployments = self.deployments.in_namespace(namespace).map(|it| &it.resource);
        let stateful_sets = self.stateful_sets.in_namespace(namespace).map(|it| &it.resource);
        deployments.chain(stateful_sets).chain(self.daemon_sets.in_namespace(namespace).map(|it| &it.resource))
    }
}

#[cfg(test)]
#[path = "workloads_tests.rs"]
mod tests;
