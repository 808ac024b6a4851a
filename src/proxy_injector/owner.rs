//! The workload that a Pod belongs to.
//!
//! In: the owner references of a Pod, and the owner that was found. Out: the workload, for a label, Events and metrics.
//! Always holds: an owner that cannot be looked up is itself the workload, so it never denies a Pod; any client may send a
//! review, so a workload has Events only if the owner exists with the uid of the reference.

use k8s_openapi::api::core::v1::ObjectReference;

use super::reviewed::ReviewedOwner;
use crate::{
    api::{LONGEST_LABEL, LONGEST_NAME, Uid},
    cluster::kinds::{inject::OwnAnnotations, owner::Owner},
};

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Workload {
    /// The kind as Kubernetes writes it.
    pub(super) kind: String,
    pub(super) name: String,
    /// Empty for a Pod.
    api_version: String,
    /// Empty if it is unknown.
    uid: String,
    /// Whether the owner of the Pod exists with this uid.
    exists: bool,
    /// Linkerd's annotations that are not in the Pod template, and the kind that has them.
    pub(super) own_annotations: OwnAnnotations,
    pub(super) annotated_kind: String,
}

/// The result of the lookup of a Pod's owner by its kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundOwner {
    pub(super) uid: Option<Uid>,
    /// The owner of this owner, if there is exactly one.
    pub(super) above: Option<Owner>,
    pub(super) above_uid: Option<Uid>,
    pub(super) annotations: OwnAnnotations,
}

/// Returns the API version of a kind that may have Events.
fn api_version(kind: &str) -> Option<&'static str> {
    WITH_EVENTS.iter().find(|(known, _)| *known == kind).map(|(_, version)| *version)
}

/// Whether an owner may exist, so that it can be looked up. An author of a Pod controls the reference.
pub(super) fn is_readable(owner: &ReviewedOwner) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    owner.name.len() <= LONGEST_NAME
        && owner.name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_inner))
}

/// Whether an owner is of a kind that may have Events. Volcano and others have kinds with the same names.
pub(super) fn may_have_events(owner: &ReviewedOwner) -> bool {
    api_version(&owner.kind).is_some_and(|known| known == owner.api_version)
}

/// Returns the workload of a Pod. `found` is its only owner as it exists.
pub(super) fn workload(pod: &str, owners: &[ReviewedOwner], found: Option<&FoundOwner>) -> Workload {
    let [owner] = owners else {
        return Workload { kind: "Pod".to_owned(), name: pod.to_owned(), ..Workload::default() };
    };
    let exists = found.is_some_and(|found| found.uid.is_some() && found.uid == Uid::new(&owner.uid));
    let has_owner = |above: &&Owner| match owner.kind.as_str() {
        "ReplicaSet" => OWNERS_OF_REPLICA_SETS.contains(&&*above.kind),
        kind => kind == "Job",
    };
    let own_annotations = found.filter(|_| exists).map(|found| found.annotations.clone()).unwrap_or_default();
    let above = found.and_then(|found| Some((found.above.as_ref().filter(has_owner)?, found.above_uid.as_ref())));
    match above {
        Some((above, uid)) => Workload {
            // The cache keeps no API versions. The kinds that matter have one each.
            api_version: api_version(&above.kind).unwrap_or_default().to_owned(),
            kind: above.kind.to_string(),
            name: above.name.to_string(),
            uid: uid.map(Uid::to_string).unwrap_or_default(),
            exists,
            own_annotations,
            // A ReplicaSet has the annotations of its Deployment, and a Job those of a template in its CronJob.
            annotated_kind: if owner.kind == "ReplicaSet" { above.kind.to_string() } else { owner.kind.clone() },
        },
        None => {
            let ReviewedOwner { api_version, kind, name, uid } = owner.clone();
            Workload { annotated_kind: kind.clone(), kind, name, api_version, uid, exists, own_annotations }
        }
    }
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

    /// The reference for Events. It is `None` for a workload that was not found, and for one that the API server would
    /// reject.
    pub(super) fn reference(&self, namespace: &str) -> Option<ObjectReference> {
        let is_known = api_version(&self.kind).is_some_and(|known| known == self.api_version);
        let is_valid = (1..=LONGEST_NAME).contains(&self.name.len()) && (1..=LONGEST_UID).contains(&self.uid.len());
        (self.exists && is_known && is_valid).then(|| ObjectReference {
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

    /// An object with a uid and perhaps an owner, whose uid is `above`.
    fn found(uid: &str, above: Option<(&str, &str)>) -> FoundOwner {
        let above_uid = above.and_then(|_| Uid::new("above"));
        let above = above.map(|(kind, name)| Owner { kind: kind.into(), name: name.into() });
        FoundOwner { uid: Uid::new(uid), above, above_uid, ..FoundOwner::default() }
    }

    fn reference(owner: ReviewedOwner, found: Option<&FoundOwner>) -> Option<String> {
        let found = workload("p", &[owner], found).reference("shop")?;
        let fields = [found.api_version, found.kind, found.namespace, found.name, found.uid].map(Option::unwrap);
        Some(fields.join(" "))
    }

    #[test]
    fn only_an_owner_of_a_known_kind_can_have_events() {
        let exists = |owner: ReviewedOwner| {
            let found = found(&owner.uid, None);
            reference(owner, Some(&found))
        };
        assert_eq!(exists(owner("StatefulSet", "web")).unwrap(), "apps/v1 StatefulSet shop web u");
        // Volcano and others have kinds with the same name.
        assert_eq!(exists(ReviewedOwner { api_version: "batch.volcano.sh/v1".into(), ..owner("Job", "web") }), None);
        assert_eq!(exists(owner("Node", "node-1")), None);
        assert_eq!(exists(owner("Rollout", "web")), None);
        assert_eq!(exists(ReviewedOwner { uid: String::new(), ..owner("Job", "web") }), None);
        assert_eq!(exists(ReviewedOwner { uid: "u".repeat(37), ..owner("Job", "web") }), None);
        assert_eq!(exists(owner("Job", &"n".repeat(254))), None);
        assert_eq!(workload("p", &[], None).reference("shop"), None, "the Pod does not exist yet");
        let through = reference(owner("ReplicaSet", "web-5f8d"), Some(&found("u", Some(("Deployment", "web")))));
        assert_eq!(through.unwrap(), "apps/v1 Deployment shop web above");
    }

    #[test]
    fn only_an_owner_that_was_found_with_the_uid_of_the_reference_has_events() {
        for kind in ["DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"] {
            assert_eq!(reference(owner(kind, "web"), None), None, "{kind}");
            assert_eq!(reference(owner(kind, "web"), Some(&found("other", None))), None, "{kind}");
        }
        let above = Some(("Deployment", "web"));
        assert_eq!(reference(owner("ReplicaSet", "web-5f8d"), Some(&found("other", above))), None);
        assert_eq!(reference(owner("ReplicaSet", "web-5f8d"), Some(&found("", above))), None);
    }

    #[test]
    fn a_name_that_no_object_has_is_not_looked_up() {
        for name in ["", ".", "..", "../../secrets/x", "a/b", "a?b", "A", "a..b", "%2e", &"n".repeat(254)] {
            assert!(!is_readable(&owner("ReplicaSet", name)), "{name}");
        }
        assert!(is_readable(&owner("ReplicaSet", "web-5f8d.v1")));
    }

    #[test]
    fn the_owner_of_a_replica_set_or_job_is_the_workload() {
        let of = |owners: &[ReviewedOwner], above: Option<(&str, &str)>| {
            let workload = workload("web-1", owners, above.map(|above| found("u", Some(above))).as_ref());
            format!("{}/{}", workload.kind, workload.name)
        };
        let set = owner("ReplicaSet", "web-5f8d");
        assert_eq!(of(&[], None), "Pod/web-1");
        assert_eq!(of(&[set.clone(), owner("Node", "n")], None), "Pod/web-1", "several owners count as none");
        assert_eq!(of(std::slice::from_ref(&set), Some(("Deployment", "web"))), "Deployment/web");
        assert_eq!(of(std::slice::from_ref(&set), Some(("Rollout", "web"))), "ReplicaSet/web-5f8d");
        assert_eq!(of(std::slice::from_ref(&set), None), "ReplicaSet/web-5f8d", "it cannot be looked up");
        assert_eq!(of(&[owner("Job", "daily-1")], Some(("CronJob", "daily"))), "CronJob/daily");
        assert_eq!(of(&[owner("StatefulSet", "db")], Some(("Database", "db"))), "StatefulSet/db");
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
