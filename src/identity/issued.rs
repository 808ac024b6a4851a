//! The certificates that this process has issued, for `/issued`: what a rotation of the issuer or of the trust anchors
//! may still find in use.
//!
//! In: each leaf, with its issuer and the Pod of its token. Out: for each issuer, how many leaves there were and when the
//! last one ends; for each Pod, its last leaf. Always holds: [`MAX_ISSUERS`] and [`MAX_PODS`] are not exceeded, and what is
//! left out is counted; nothing is shown but hashes of public keys, uids and times. The process forgets it when it ends.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{issuer::Issuer, review::ReviewedPod};
use crate::text;

/// The maximum number of issuers. Beyond it, the one whose last leaf ends first is forgotten.
const MAX_ISSUERS: usize = 16;
/// The maximum number of Pods, which take 9 MiB.
const MAX_PODS: usize = 200_000;
/// When there is no room, how often Pods are looked for whose leaf has ended.
const SWEEP_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// The number of Pods in a part of an answer.
const PODS_OF_A_PART: usize = 500;

/// What this process has issued since it started.
pub struct IssuedLeaves {
    since: Timestamp,
    record: Mutex<IssuedRecord>,
    /// Only one list of Pods is sent at a time, because it is copied first.
    lists: Arc<Semaphore>,
}

/// The Pods of a list, as parts of a JSON document. The next list waits until it is dropped.
pub struct IssuedPods {
    head: String,
    key_ids: HashMap<u32, String>,
    pods: Vec<(PodUid, PodLeaf)>,
    _place: OwnedSemaphorePermit,
}

#[derive(Default)]
struct IssuedRecord {
    issuers: Vec<IssuerRecord>,
    /// The number of the next issuer.
    next: u32,
    pods: HashMap<PodUid, PodLeaf>,
    /// Leaves of Pods that are not in `pods`, because there was no room or the uid is no UUID.
    omitted: u64,
    swept: Option<Timestamp>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct IssuerRecord {
    #[serde(skip)]
    number: u32,
    key_id: String,
    roots: Vec<String>,
    last_leaf_expiry: Timestamp,
    leaves: u64,
}

/// The uid of a Pod: Kubernetes makes UUIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub(super) fn new(since: Timestamp) -> Arc<Self> {
        let since = whole_seconds(since);
        Arc::new(Self { since, record: Mutex::default(), lists: Arc::new(Semaphore::new(1)) })
    }

    /// Adds a leaf.
    pub(super) fn add(&self, issuer: &Issuer, pod: Option<&ReviewedPod>, not_after: Timestamp, now: Timestamp) {
        self.record.lock().add(issuer.key_id(), issuer.roots(), pod.map(|pod| &*pod.uid), not_after, now);
    }

    /// The issuers, in JSON.
    ///
    /// # Errors
    /// When it cannot be encoded, which does not happen.
    pub fn issuers(&self) -> serde_json::Result<String> {
        let issuers = self.record.lock().issuers.clone();
        serde_json::to_string(&Summary { issuers: &issuers, since: self.since, pods_omitted: None })
    }

    /// The issuers and the Pods, or `None` while another list is sent.
    ///
    /// # Errors
    /// When it cannot be encoded, which does not happen.
    pub fn pods(&self) -> serde_json::Result<Option<IssuedPods>> {
        let Ok(place) = Arc::clone(&self.lists).try_acquire_owned() else { return Ok(None) };
        let (issuers, omitted, pods) = {
            let record = self.record.lock();
            let pods: Vec<_> = record.pods.iter().map(|(uid, leaf)| (*uid, *leaf)).collect();
            (record.issuers.clone(), record.omitted, pods)
        };
        let summary = Summary { issuers: &issuers, since: self.since, pods_omitted: Some(omitted) };
        let head = serde_json::to_string(&summary)?;
        let key_ids = issuers.into_iter().map(|issuer| (issuer.number, issuer.key_id)).collect();
        Ok(Some(IssuedPods { head, key_ids, pods, _place: place }))
    }
}

// === impl IssuedPods ===

impl IssuedPods {
    /// The parts of the document.
    pub fn parts(self) -> impl Iterator<Item = String> + Send {
        let count = self.pods.len().div_ceil(PODS_OF_A_PART).max(1);
        (0..count).map(move |number| {
            // The whole list, with its place.
            let list = &self;
            let mut part = String::new();
            if number == 0 {
                // The list is a further member of the same object.
                part.push_str(list.head.strip_suffix('}').unwrap_or(&list.head));
                part.push_str(",\"pods\":{");
            }
            let first = number * PODS_OF_A_PART;
            for (place, (uid, leaf)) in list.pods.iter().enumerate().skip(first).take(PODS_OF_A_PART) {
                let comma = if place == 0 { "" } else { "," };
                let key_id = list.key_ids.get(&leaf.issuer).map_or("", String::as_str);
                let not_after = Timestamp::from_second(leaf.not_after).unwrap_or_default();
                part.push_str(&format!(
                    "{comma}\n\"{}\":{{\"keyId\":\"{key_id}\",\"notAfter\":\"{not_after}\"}}",
                    uid.text()
                ));
            }
            if number + 1 == count {
                part.push_str("}}\n");
            }
            part
        })
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
        // The certificate of a key may be renewed below another root.
        let roots = || roots.iter().map(|root| text::hex(*root)).collect();
        if let Some(issuer) = self.issuers.iter_mut().find(|issuer| issuer.key_id == key_id) {
            issuer.leaves += 1;
            issuer.last_leaf_expiry = issuer.last_leaf_expiry.max(not_after);
            issuer.roots = roots();
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
        let key_id = key_id.to_owned();
        self.issuers.push(IssuerRecord { number, key_id, roots: roots(), last_leaf_expiry: not_after, leaves: 1 });
        number
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

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
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

    fn document(leaves: &IssuedLeaves) -> Value {
        let text: String = leaves.pods().unwrap().unwrap().parts().collect();
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
        let found: Value = serde_json::from_str(&leaves.issuers().unwrap()).unwrap();
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

    #[test]
    fn one_list_of_pods_is_sent_at_a_time() {
        let leaves = leaves(|_| {});
        let first = leaves.pods().unwrap().unwrap();
        let mut parts = first.parts();
        parts.next();
        assert!(leaves.pods().unwrap().is_none());
        drop(parts);
        assert!(leaves.pods().unwrap().is_some());
    }

    /// A table of a standard `HashMap` is at most 7/8 full and has a power of two of places, each with a byte of its own.
    #[test]
    fn all_pods_take_less_than_9_mib() {
        let places = (MAX_PODS * 8 / 7).next_power_of_two();
        assert!(places * (size_of::<(PodUid, PodLeaf)>() + 1) <= 9 << 20);
    }
}
