//! The workload that a Pod belongs to.
//!
//! In: the owner references of a Pod, and the owner of its ReplicaSet or Job. Out: the workload, for a label, Events and
//! metrics. Always holds: an owner that cannot be looked up is itself the workload, so it never denies a Pod.

use super::reviewed::ReviewedOwner;
use crate::api::LONGEST_LABEL;

/// The kinds that a ReplicaSet may belong to. Another owner, such as a Rollout, leaves the ReplicaSet as the workload.
const OWNERS_OF_REPLICA_SETS: [&str; 4] = ["Job", "StatefulSet", "DaemonSet", "Deployment"];
/// The kinds that have a label on their Pods.
const LABELLED: [&str; 6] = ["deployment", "replicationcontroller", "replicaset", "job", "daemonset", "statefulset"];
/// The kinds that metrics name. Others are custom resources.
const KNOWN: [&str; 9] =
    ["deployment", "replicationcontroller", "replicaset", "job", "daemonset", "statefulset", "cronjob", "node", "pod"];

/// The workload of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// The kind as Kubernetes writes it.
    pub(super) kind: String,
    pub(super) name: String,
}

/// Returns the only owner, if its own owner must be looked up.
pub(super) fn intermediate(owners: &[ReviewedOwner]) -> Option<&ReviewedOwner> {
    let [owner] = owners else { return None };
    ["Job", "ReplicaSet"].contains(&owner.kind.as_str()).then_some(owner)
}

/// Returns the workload of a Pod. `above` is the only owner of its [`intermediate`] one.
pub(super) fn workload(pod: &str, owners: &[ReviewedOwner], above: Option<&ReviewedOwner>) -> Workload {
    let [owner] = owners else { return Workload { kind: "Pod".to_owned(), name: pod.to_owned() } };
    let is_known =
        |above: &&ReviewedOwner| owner.kind != "ReplicaSet" || OWNERS_OF_REPLICA_SETS.contains(&above.kind.as_str());
    let found = above.filter(is_known).unwrap_or(owner);
    Workload { kind: found.kind.clone(), name: found.name.clone() }
}

// === impl Workload ===

impl Workload {
    /// The label of the Pod that names its workload. A name that is too long for a label has none: the API server would
    /// reject the Pod.
    pub(super) fn label(&self) -> Option<(String, String)> {
        let kind = self.kind.to_lowercase();
        let is_labelled = LABELLED.contains(&kind.as_str()) && self.name.len() <= LONGEST_LABEL;
        is_labelled.then(|| (format!("linkerd.io/proxy-{kind}"), self.name.clone()))
    }

    /// The kind in metrics; empty for a custom resource.
    pub(super) fn metrics_kind(&self) -> String {
        let kind = self.kind.to_lowercase();
        if KNOWN.contains(&kind.as_str()) { kind } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, name: &str) -> ReviewedOwner {
        ReviewedOwner { kind: kind.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_owner_of_a_replica_set_or_job_is_the_workload() {
        let of = |owners: &[ReviewedOwner], above: Option<ReviewedOwner>| {
            let workload = workload("web-1", owners, above.as_ref());
            format!("{}/{}", workload.kind, workload.name)
        };
        let set = owner("ReplicaSet", "web-5f8d");
        assert_eq!(of(&[], None), "Pod/web-1");
        assert_eq!(of(&[set.clone(), owner("Node", "n")], None), "Pod/web-1", "several owners count as none");
        assert_eq!(of(std::slice::from_ref(&set), Some(owner("Deployment", "web"))), "Deployment/web");
        assert_eq!(of(std::slice::from_ref(&set), Some(owner("Rollout", "web"))), "ReplicaSet/web-5f8d");
        assert_eq!(of(std::slice::from_ref(&set), None), "ReplicaSet/web-5f8d", "it cannot be looked up");
        assert_eq!(of(&[owner("Job", "daily-1")], Some(owner("CronJob", "daily"))), "CronJob/daily");
    }

    #[test]
    fn a_name_that_is_too_long_for_a_label_has_none() {
        let label = |kind: &str, length: usize| workload("p", &[owner(kind, &"n".repeat(length))], None).label();
        assert_eq!(label("Deployment", 63).unwrap().0, "linkerd.io/proxy-deployment");
        assert_eq!((label("Deployment", 64), label("CronJob", 5), label("Rollout", 5)), (None, None, None));
    }
}
