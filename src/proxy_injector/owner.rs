//! The workload that a Pod belongs to.
//!
//! In: the owner references of a Pod, and the owner of its ReplicaSet or Job. Out: the workload, for a label, Events and
//! metrics. Always holds: an owner that cannot be looked up is itself the workload, so it never denies a Pod.

use k8s_openapi::api::core::v1::ObjectReference;

use super::reviewed::ReviewedOwner;
use crate::api::{LONGEST_LABEL, LONGEST_NAME};

/// The kinds that a ReplicaSet may belong to. Another owner, such as a Rollout, leaves the ReplicaSet as the workload.
const OWNERS_OF_REPLICA_SETS: [&str; 4] = ["Job", "StatefulSet", "DaemonSet", "Deployment"];
/// The kinds that have a label on their Pods.
const LABELLED: [&str; 6] = ["deployment", "replicationcontroller", "replicaset", "job", "daemonset", "statefulset"];
/// The kinds that metrics name. Others are custom resources.
const KNOWN: [&str; 9] =
    ["deployment", "replicationcontroller", "replicaset", "job", "daemonset", "statefulset", "cronjob", "node", "pod"];
/// The kinds with Events about their Pods. A Pod itself has none, because it does not exist before the review ends.
const WITH_EVENTS: [(&str, &str); 7] = [
    ("CronJob", "batch/v1"),
    ("DaemonSet", "apps/v1"),
    ("Deployment", "apps/v1"),
    ("Job", "batch/v1"),
    ("ReplicaSet", "apps/v1"),
    ("ReplicationController", "v1"),
    ("StatefulSet", "apps/v1"),
];
/// The length of a UUID.
const LONGEST_UID: usize = 36;

/// The workload of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// The kind as Kubernetes writes it.
    pub(super) kind: String,
    pub(super) name: String,
    /// Empty for a Pod.
    api_version: String,
    /// Empty if it is unknown.
    uid: String,
}

/// Returns the API version of a kind that may have Events.
pub(super) fn api_version(kind: &str) -> Option<&'static str> {
    WITH_EVENTS.iter().find(|(known, _)| *known == kind).map(|(_, version)| *version)
}

/// Returns the only owner, if its own owner must be looked up.
pub(super) fn intermediate(owners: &[ReviewedOwner]) -> Option<&ReviewedOwner> {
    let [owner] = owners else { return None };
    ["Job", "ReplicaSet"].contains(&owner.kind.as_str()).then_some(owner)
}

/// Returns the workload of a Pod. `above` is the only owner of its [`intermediate`] one.
pub(super) fn workload(pod: &str, owners: &[ReviewedOwner], above: Option<&ReviewedOwner>) -> Workload {
    let [owner] = owners else {
        let (kind, name) = ("Pod".to_owned(), pod.to_owned());
        return Workload { kind, name, api_version: String::new(), uid: String::new() };
    };
    let is_known =
        |above: &&ReviewedOwner| owner.kind != "ReplicaSet" || OWNERS_OF_REPLICA_SETS.contains(&above.kind.as_str());
    let found = above.filter(is_known).unwrap_or(owner);
    let ReviewedOwner { api_version, kind, name, uid } = found.clone();
    Workload { kind, name, api_version, uid }
}

// === impl Workload ===

impl Workload {
    /// The label of the Pod that names its workload. A name that is no value of a label has none: the API server would
    /// reject the Pod.
    pub(super) fn label(&self) -> Option<(String, String)> {
        let kind = self.kind.to_lowercase();
        let is_labelled = LABELLED.contains(&kind.as_str()) && is_label_value(&self.name);
        is_labelled.then(|| (format!("linkerd.io/proxy-{kind}"), self.name.clone()))
    }

    /// The reference for Events. An author of a Pod controls its owner references, so it is `None` for one that the API
    /// server would reject.
    pub(super) fn reference(&self, namespace: &str) -> Option<ObjectReference> {
        let is_known = api_version(&self.kind).is_some_and(|known| known == self.api_version);
        let is_valid = (1..=LONGEST_NAME).contains(&self.name.len()) && (1..=LONGEST_UID).contains(&self.uid.len());
        (is_known && is_valid).then(|| ObjectReference {
            api_version: Some(self.api_version.clone()),
            kind: Some(self.kind.clone()),
            namespace: Some(namespace.to_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        })
    }

    /// The kind in metrics; empty for a custom resource.
    pub(super) fn metrics_kind(&self) -> String {
        let kind = self.kind.to_lowercase();
        if KNOWN.contains(&kind.as_str()) { kind } else { String::new() }
    }
}

/// Returns whether a label can have the text as its value. The API server does not validate the names of owners.
fn is_label_value(text: &str) -> bool {
    let is_end = |it: Option<char>| it.is_none_or(|it| it.is_ascii_alphanumeric());
    text.len() <= LONGEST_LABEL
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: &str, name: &str) -> ReviewedOwner {
        let api_version = api_version(kind).unwrap_or("example.com/v1").to_owned();
        ReviewedOwner { api_version, kind: kind.to_owned(), name: name.to_owned(), uid: "u".to_owned() }
    }

    #[test]
    fn only_an_owner_of_a_known_kind_can_have_events() {
        let reference = |owner: ReviewedOwner| workload("p", &[owner], None).reference("shop");
        let found = reference(owner("Deployment", "web")).unwrap();
        let fields = [found.api_version, found.kind, found.namespace, found.name, found.uid].map(Option::unwrap);
        assert_eq!(fields, ["apps/v1", "Deployment", "shop", "web", "u"]);
        // Volcano and others have kinds with the same name.
        assert_eq!(reference(ReviewedOwner { api_version: "batch.volcano.sh/v1".into(), ..owner("Job", "web") }), None);
        assert_eq!(reference(owner("Node", "node-1")), None);
        assert_eq!(reference(owner("Rollout", "web")), None);
        assert_eq!(reference(ReviewedOwner { uid: String::new(), ..owner("Job", "web") }), None);
        assert_eq!(reference(ReviewedOwner { uid: "u".repeat(37), ..owner("Job", "web") }), None);
        assert_eq!(reference(owner("Job", &"n".repeat(254))), None);
        assert_eq!(workload("p", &[], None).reference("shop"), None, "the Pod does not exist yet");
        let set = owner("ReplicaSet", "web-5f8d");
        let through = workload("p", &[set], Some(&owner("Deployment", "web"))).reference("shop").unwrap();
        assert_eq!((through.kind.as_deref(), through.name.as_deref()), (Some("Deployment"), Some("web")));
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
    fn a_name_that_is_no_value_of_a_label_has_none() {
        let label = |kind: &str, length: usize| workload("p", &[owner(kind, &"n".repeat(length))], None).label();
        assert_eq!(label("Deployment", 63).unwrap().0, "linkerd.io/proxy-deployment");
        assert_eq!((label("Deployment", 64), label("CronJob", 5), label("Rollout", 5)), (None, None, None));
        let named = |name: &str| workload("p", &[owner("Deployment", name)], None).label().is_some();
        for (name, is_valid) in
            [("web.v1", true), ("Web_1", true), ("web-", false), (".web", false), ("a b", false), ("é", false)]
        {
            assert_eq!(named(name), is_valid, "{name:?}");
        }
    }
}
