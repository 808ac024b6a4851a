//! The certificates that this process has issued, for `/issued`: what a rotation of the issuer or of the trust anchors
//! may still find in use.
//!
//! In: each leaf, with its issuer and the Pod of its token. Out: for each issuer, how many leaves there were and when the
//! last one ends; for each Pod, its last leaf. Always holds: [`MAX_ISSUERS`] and [`MAX_PODS`] are not exceeded, and what is
//! left out is counted; nothing is shown but hashes of public keys, uids and times. The process forgets it when it ends.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{issuer::Issuer, review::ReviewedPod};
use crate::text;

/// The maximum number of issuers. Beyond it, the one whose last leaf ends first is forgotten.
const MAX_ISSUERS: usize = 16;
/// The maximum number of Pods, which take less than 20 MiB.
const MAX_PODS: usize = 200_000;
/// When there is no room, how often Pods are looked for whose leaf has ended, which takes some milliseconds.
const SWEEP_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// The number of Pods in a part of a list.
const PODS_OF_A_PART: usize = 500;

/// What this process has issued since it started.
pub struct IssuedLeaves {
    since: Timestamp,
    record: Mutex<IssuedRecord>,
    lists: Arc<Semaphore>,
}

/// A list of all Pods, as parts of a JSON document. Each part is read when the one before was taken, so a list takes little
/// memory and delays no certificate. One list exists at a time, so that lists take one thread at most.
pub struct IssuedPods {
    leaves: Arc<IssuedLeaves>,
    next: NextPart,
    _place: OwnedSemaphorePermit,
}

enum NextPart {
    Issuers,
    /// The Pods after this one.
    Pods(Option<PodUid>),
    Nothing,
}

#[derive(Default)]
struct IssuedRecord {
    issuers: Vec<IssuerRecord>,
    /// The number of the next issuer.
    next: u32,
    /// No hash table, which would become larger the more Pods come and go.
    pods: BTreeMap<PodUid, PodLeaf>,
    /// Leaves of Pods that are not in `pods`, because there was no room or the uid is no UUID.
    omitted: u64,
    swept: Option<Timestamp>,
}

/// The leaves of a key whose certificate reached these roots. A certificate of the key that reaches others is another
/// issuer: proxies send the certificate that they were given.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct IssuerRecord {
    #[serde(skip)]
    number: u32,
    key_id: String,
    #[serde(serialize_with = "digests")]
    roots: Vec<[u8; 32]>,
    last_leaf_expiry: Timestamp,
    leaves: u64,
}

/// The uid of a Pod: Kubernetes makes UUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodUid(u128);

#[derive(Clone, Copy)]
struct PodLeaf {
    issuer: u32,
    /// In seconds since 1970.
    not_after: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    issuers: &'a [IssuerRecord],
    since: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pods_omitted: Option<u64>,
}

// === impl IssuedLeaves ===

impl IssuedLeaves {
    pub fn new(since: Timestamp) -> Arc<Self> {
        let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
        Arc::new(Self { since, record: Mutex::default(), lists: Arc::new(Semaphore::new(1)) })
    }

    /// Adds a leaf.
    pub(super) fn add(&self, issuer: &Issuer, pod: Option<&ReviewedPod>, not_after: Timestamp, now: Timestamp) {
        self.record.lock().add(issuer.key_id(), issuer.roots(), pod.map(|pod| &*pod.uid), not_after, now);
    }

    /// The issuers, in JSON.
    pub fn issuers(&self) -> String {
        self.summary(false)
    }

    /// The issuers and the Pods, or `None` while another list is sent.
    pub fn pods(self: &Arc<Self>) -> Option<IssuedPods> {
        let place = Arc::clone(&self.lists).try_acquire_owned().ok()?;
        Some(IssuedPods { leaves: Arc::clone(self), next: NextPart::Issuers, _place: place })
    }

    fn summary(&self, with_omitted: bool) -> String {
        let (issuers, omitted) = {
            let record = self.record.lock();
            (record.issuers.clone(), record.omitted)
        };
        let pods_omitted = with_omitted.then_some(omitted);
        // Its keys are texts, and nothing else can fail.
        serde_json::to_string(&Summary { issuers: &issuers, since: self.since, pods_omitted }).unwrap_or_default()
    }
}

// === impl IssuedPods ===

impl Iterator for IssuedPods {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.next {
            NextPart::Issuers => {
                self.next = NextPart::Pods(None);
                // The list is a further member of the same object.
                let summary = self.leaves.summary(true);
                Some(format!("{},\"pods\":{{", summary.strip_suffix('}').unwrap_or(&summary)))
            }
            NextPart::Pods(last) => Some(self.part(last)),
            NextPart::Nothing => None,
        }
    }
}

impl IssuedPods {
    fn part(&mut self, last: Option<PodUid>) -> String {
        let after = last.map_or(Unbounded, Excluded);
        let pods: Vec<_> = {
            let record = self.leaves.record.lock();
            let pods = record.pods.range((after, Unbounded)).take(PODS_OF_A_PART);
            pods.filter_map(|(uid, leaf)| Some((*uid, leaf.not_after, record.key_id(leaf.issuer)?.to_owned())))
                .collect()
        };
        let Some((newest, _, _)) = pods.last() else {
            self.next = NextPart::Nothing;
            return "}}\n".to_owned();
        };
        self.next = NextPart::Pods(Some(*newest));
        let mut part = String::new();
        for (place, (uid, not_after, key_id)) in pods.iter().enumerate() {
            let comma = if last.is_none() && place == 0 { "" } else { "," };
            let (uid, not_after) = (uid.text(), Timestamp::from_second(*not_after).unwrap_or_default());
            part.push_str(&format!("{comma}\n\"{uid}\":{{\"keyId\":\"{key_id}\",\"notAfter\":\"{not_after}\"}}"));
        }
        part
    }
}

// === impl IssuedRecord ===

impl IssuedRecord {
    fn add(&mut self, key_id: &str, roots: &[[u8; 32]], pod: Option<&str>, not_after: Timestamp, now: Timestamp) {
        let issuer = self.issuer(key_id, roots, not_after);
        let Some(pod) = pod else { return };
        let leaf = PodLeaf { issuer, not_after: not_after.as_second() };
        match PodUid::parse(pod) {
            Some(uid) if self.has_room_for(uid, now) => _ = self.pods.insert(uid, leaf),
            _ => self.omitted += 1,
        }
    }

    /// Counts a leaf of an issuer. Returns the number of the issuer.
    fn issuer(&mut self, key_id: &str, roots: &[[u8; 32]], not_after: Timestamp) -> u32 {
        let is_same = |issuer: &&mut IssuerRecord| issuer.key_id == key_id && issuer.roots == roots;
        if let Some(issuer) = self.issuers.iter_mut().find(is_same) {
            issuer.leaves += 1;
            issuer.last_leaf_expiry = issuer.last_leaf_expiry.max(not_after);
            return issuer.number;
        }
        if self.issuers.len() >= MAX_ISSUERS {
            let ends = self.issuers.iter().enumerate();
            if let Some((first, _)) = ends.min_by_key(|(_, issuer)| issuer.last_leaf_expiry) {
                let gone = self.issuers.remove(first).number;
                self.pods.retain(|_, leaf| leaf.issuer != gone);
            }
        }
        let number = self.next;
        self.next += 1;
        let (key_id, roots) = (key_id.to_owned(), roots.to_vec());
        self.issuers.push(IssuerRecord { number, key_id, roots, last_leaf_expiry: not_after, leaves: 1 });
        number
    }

    fn key_id(&self, number: u32) -> Option<&str> {
        self.issuers.iter().find(|issuer| issuer.number == number).map(|issuer| &*issuer.key_id)
    }

    fn has_room_for(&mut self, uid: PodUid, now: Timestamp) -> bool {
        if self.pods.len() < MAX_PODS || self.pods.contains_key(&uid) {
            return true;
        }
        if self.swept.is_some_and(|swept| now.duration_since(swept) < SWEEP_INTERVAL) {
            return false;
        }
        self.swept = Some(now);
        self.pods.retain(|_, leaf| leaf.not_after > now.as_second());
        self.pods.len() < MAX_PODS
    }
}

// === impl PodUid ===

impl PodUid {
    fn parse(text: &str) -> Option<Self> {
        let uid = Self(u128::from_str_radix(&text.replace('-', ""), 16).ok()?);
        // Only what is written in the same way is the same uid.
        (uid.text() == text).then_some(uid)
    }

    fn text(self) -> String {
        let digits = format!("{:032x}", self.0);
        let mut text = String::with_capacity(36);
        for (place, digit) in digits.chars().enumerate() {
            if [8, 12, 16, 20].contains(&place) {
                text.push('-');
            }
            text.push(digit);
        }
        text
    }
}

fn digests<S: Serializer>(roots: &[[u8; 32]], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(roots.iter().map(|root| text::hex(*root)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ROOT: [u8; 32] = [0xab; 32];

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn uid(number: usize) -> String {
        format!("00000000-0000-4000-8000-{number:012}")
    }

    fn leaves(add: impl FnOnce(&mut IssuedRecord)) -> Arc<IssuedLeaves> {
        let leaves = IssuedLeaves::new(at(0));
        add(&mut leaves.record.lock());
        leaves
    }

    fn document(leaves: &Arc<IssuedLeaves>) -> Value {
        let text: String = leaves.pods().unwrap().collect();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_issuer_has_the_number_of_its_leaves_and_the_end_of_the_last_one() {
        let leaves = leaves(|record| {
            for (key, end) in [("a", 300), ("a", 200), ("b", 100)] {
                record.add(key, &[ROOT], None, at(end), at(0));
            }
        });
        let issuer = |key: &str, end: &str, leaves: u32| json!({"keyId": key, "roots": ["ab".repeat(32)], "lastLeafExpiry": end, "leaves": leaves});
        let issuers = [issuer("a", "1970-01-01T00:05:00Z", 2), issuer("b", "1970-01-01T00:01:40Z", 1)];
        let found: Value = serde_json::from_str(&leaves.issuers()).unwrap();
        assert_eq!(found, json!({"issuers": issuers, "since": "1970-01-01T00:00:00Z"}));
        let pods = json!({"issuers": issuers, "since": "1970-01-01T00:00:00Z", "podsOmitted": 0, "pods": {}});
        assert_eq!(document(&leaves), pods);
    }

    #[test]
    fn each_pod_has_its_last_leaf() {
        let pods = 2 * PODS_OF_A_PART + 1;
        let leaves = leaves(|record| {
            for number in 0..pods {
                record.add("old", &[], Some(&uid(number)), at(100), at(0));
            }
            record.add("new", &[], Some(&uid(1)), at(90), at(0));
        });
        let document = document(&leaves);
        let found = document["pods"].as_object().unwrap();
        assert_eq!(found.len(), pods);
        assert_eq!(found[&uid(1)], json!({"keyId": "new", "notAfter": "1970-01-01T00:01:30Z"}));
        assert_eq!(found[&uid(pods - 1)], json!({"keyId": "old", "notAfter": "1970-01-01T00:01:40Z"}));
    }

    #[test]
    fn an_uid_that_is_no_uuid_is_left_out_and_counted() {
        let with = |uid: &str| document(&leaves(|record| record.add("a", &[], Some(uid), at(9), at(0))));
        for other in ["", "web", "\"", "+0000000-0000-4000-8000-000000000000", "0", &uid(1).replace('-', "")] {
            let found = with(other);
            assert_eq!((&found["pods"], &found["podsOmitted"]), (&json!({}), &json!(1)), "{other}");
        }
        assert_eq!(with("0f8fad5b-d9cb-469f-a165-70867728950e")["podsOmitted"], 0);
    }

    #[test]
    fn at_the_limit_pods_whose_leaf_has_ended_make_room_and_others_do_not() {
        let leaves = leaves(|record| {
            for number in 0..MAX_PODS {
                record.add("a", &[], Some(&uid(number)), at(if number < 10 { 100 } else { 1000 }), at(0));
            }
            for (pod, now) in [(MAX_PODS, 50), (MAX_PODS + 1, 101), (MAX_PODS + 2, 111), (0, 112)] {
                record.add("a", &[], Some(&uid(pod)), at(1000), at(now));
            }
        });
        let record = leaves.record.lock();
        assert_eq!((record.pods.len(), record.omitted), (MAX_PODS - 10 + 2, 2));
    }

    #[test]
    fn the_issuer_whose_last_leaf_ends_first_is_forgotten_with_its_pods() {
        let leaves = leaves(|record| {
            for number in 0..=MAX_ISSUERS {
                let end = at(if number == 3 { 1 } else { 100 });
                record.add(&number.to_string(), &[], Some(&uid(number)), end, at(0));
            }
        });
        let document = document(&leaves);
        let (issuers, pods) = (document["issuers"].as_array().unwrap(), document["pods"].as_object().unwrap());
        assert_eq!((issuers.len(), pods.len()), (MAX_ISSUERS, MAX_ISSUERS));
        assert!(!pods.contains_key(&uid(3)) && issuers.iter().all(|issuer| issuer["keyId"] != "3"), "{document}");
        assert!(pods.values().all(|pod| pod["keyId"] != ""), "{document}");
    }

    /// The proxies of the first leaf send a certificate that reaches the first root.
    #[test]
    fn a_key_that_was_certified_again_under_another_root_is_another_issuer() {
        let leaves = leaves(|record| {
            record.add("a", &[ROOT], Some(&uid(1)), at(300), at(0));
            record.add("a", &[[0xcd; 32]], Some(&uid(2)), at(400), at(100));
        });
        let document = document(&leaves);
        let roots: Vec<_> = (0..2).map(|number| &document["issuers"][number]["roots"][0]).collect();
        assert_eq!(roots, [&json!("ab".repeat(32)), &json!("cd".repeat(32))]);
        assert_eq!(document["pods"].as_object().unwrap().len(), 2);
    }

    #[test]
    fn one_list_of_pods_is_sent_at_a_time() {
        let leaves = leaves(|_| {});
        let mut first = leaves.pods().unwrap();
        first.next();
        assert!(leaves.pods().is_none());
        drop(first);
        assert!(leaves.pods().is_some());
    }

    /// A node of a `BTreeMap` has room for 11 entries, and at least 5 unless it is the root; an inner node has 12 edges.
    #[test]
    fn all_pods_take_less_than_20_mib() {
        let leaf_node = 11 * size_of::<(PodUid, PodLeaf)>() + 16;
        let inner_node = leaf_node + 12 * size_of::<usize>();
        let nodes = MAX_PODS / 5;
        assert!(nodes * leaf_node + nodes / 5 * inner_node <= 20 << 20);
    }
}
