//! What is remembered of a Service between reconciles.
//!
//! None of it decides what slices have to be: losing it costs a repeated warning, a conflict or an earlier retry. An entry
//! exists only while there is something to remember, and goes with its Service.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{apply::Written, report::Finding};
use crate::{
    api::NamespacedName,
    cluster::{index::store::Store, kinds::endpoint_slice::Slice},
    retry::backoff,
};

/// How long the cache may take to show our own writes before we plan without: preconditions and fixed names then keep a
/// second write harmless.
const OWN_WRITES_SEEN: Duration = Duration::from_secs(5);
/// Names of one Service's slices that others may occupy before we take it slowly.
const TAKEN_LIMIT: usize = 256;

#[derive(Default)]
pub(super) struct Records(Mutex<HashMap<NamespacedName, Record>>);

#[derive(Default)]
struct Record {
    unseen: Vec<Written>,
    written: Option<Instant>,
    /// Reconciles in a row that failed, and that met something newer than the cache.
    failures: u32,
    conflicts: u32,
    /// The category of the last failure that was told.
    told: Option<&'static str>,
    findings: HashSet<Finding>,
    taken: HashSet<String>,
}

impl Records {
    pub(super) fn forget(&self, service: &NamespacedName) {
        self.0.lock().remove(service);
    }

    /// How long to wait for the cache to show what we wrote last. The event that shows it comes sooner, and has the Service
    /// looked at again.
    pub(super) fn own_writes_unseen(&self, service: &NamespacedName, slices: &Store<Slice>) -> Option<Duration> {
        let mut records = self.0.lock();
        let record = records.get_mut(service)?;
        record.unseen.retain(|written| !is_seen(written, service, slices));
        let left = OWN_WRITES_SEEN.saturating_sub(record.written?.elapsed());
        (!record.unseen.is_empty() && !left.is_zero()).then_some(left)
    }

    pub(super) fn wrote(&self, service: &NamespacedName, written: Vec<Written>) {
        if !written.is_empty() {
            self.edit(service, |record| {
                record.unseen = written;
                record.written = Some(Instant::now());
            });
        }
    }

    /// Names that slices of others have, as far as we met them.
    pub(super) fn taken(&self, service: &NamespacedName) -> HashSet<String> {
        self.0.lock().get(service).map(|record| record.taken.clone()).unwrap_or_default()
    }

    /// Whether there are now too many of them; then they are met anew.
    pub(super) fn met(&self, service: &NamespacedName, taken: Vec<String>) -> bool {
        self.edit(service, |record| {
            record.taken.extend(taken);
            let crowded = record.taken.len() > TAKEN_LIMIT;
            if crowded {
                record.taken = HashSet::new();
            }
            crowded
        })
    }

    /// Those of the findings that are new: what was mended and comes again is new again.
    pub(super) fn new_findings<'a>(&self, service: &NamespacedName, findings: &'a [Finding]) -> Vec<&'a Finding> {
        if findings.is_empty() && !self.0.lock().contains_key(service) {
            return Vec::new();
        }
        self.edit(service, |record| {
            let new = findings.iter().filter(|finding| !record.findings.contains(*finding)).collect();
            record.findings = findings.iter().cloned().collect();
            new
        })
    }

    /// How many reconciles failed before this one.
    pub(super) fn failed(&self, service: &NamespacedName) -> u32 {
        self.edit(service, |record| {
            record.failures = record.failures.saturating_add(1);
            record.failures - 1
        })
    }

    /// Whether a failure of this category has not been told yet.
    pub(super) fn is_news(&self, service: &NamespacedName, category: &'static str) -> bool {
        self.edit(service, |record| record.told.replace(category) != Some(category))
    }

    /// When to try again after something was newer than the cache: the watch brings it, sooner unless it is broken.
    pub(super) fn conflicted(&self, service: &NamespacedName) -> Duration {
        self.edit(service, |record| {
            record.conflicts = record.conflicts.saturating_add(1);
            backoff(record.conflicts - 1, Duration::from_secs(1), Duration::from_secs(10))
        })
    }

    /// All that was planned is there; how many reconciles in a row had failed.
    pub(super) fn settled(&self, service: &NamespacedName) -> u32 {
        let mut records = self.0.lock();
        let Some(record) = records.get_mut(service) else { return 0 };
        let failures = std::mem::take(&mut record.failures);
        record.conflicts = 0;
        record.told = None;
        record.taken = HashSet::new();
        if record.unseen.is_empty() && record.findings.is_empty() {
            records.remove(service);
        }
        failures
    }

    fn edit<T>(&self, service: &NamespacedName, edit: impl FnOnce(&mut Record) -> T) -> T {
        edit(self.0.lock().entry(service.clone()).or_default())
    }
}

fn is_seen(written: &Written, service: &NamespacedName, slices: &Store<Slice>) -> bool {
    match written {
        Written::Version(version) => slices.seen_version() >= *version,
        // One that a finalizer keeps is on its way, and counts for nothing in a plan.
        Written::Deleted { name, uid } => {
            slices.managed(&service.namespace, name).is_none_or(|slice| slice.uid() != uid || slice.is_terminating())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::{MANAGED_BY, MANAGED_BY_LABEL},
        cluster::{Problems, Projected, State, kinds::endpoint_slice::Slice},
    };

    fn service() -> NamespacedName {
        NamespacedName::new("ns", "web")
    }

    fn watched(state: &mut State, version: &str, deleting: bool) {
        let labels = json!({ MANAGED_BY_LABEL: MANAGED_BY });
        let mut metadata =
            json!({"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": version, "labels": labels});
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let slice = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        Slice::project(slice, &mut Problems::default()).apply(state);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_waits_for_our_own_writes_to_come_back_but_not_for_ever() {
        let (records, mut state) = (Records::default(), State::default());
        watched(&mut state, "9", false);
        records.wrote(&service(), vec![Written::Version(10)]);
        assert_eq!(records.own_writes_unseen(&service(), &state.slices), Some(OWN_WRITES_SEEN));
        tokio::time::advance(OWN_WRITES_SEEN).await;
        assert_eq!(records.own_writes_unseen(&service(), &state.slices), None);
        records.wrote(&service(), vec![Written::Version(10)]);
        watched(&mut state, "10", false);
        assert_eq!(records.own_writes_unseen(&service(), &state.slices), None);
        assert_eq!(records.settled(&service()), 0);
        assert!(records.0.lock().is_empty(), "nothing is left to remember");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_slice_is_seen_when_it_is_gone_or_terminating() {
        let (records, mut state) = (Records::default(), State::default());
        let deleted = || vec![Written::Deleted { name: "s".to_owned(), uid: "u".to_owned() }];
        watched(&mut state, "9", false);
        records.wrote(&service(), deleted());
        assert!(records.own_writes_unseen(&service(), &state.slices).is_some());
        watched(&mut state, "10", true);
        assert_eq!(records.own_writes_unseen(&service(), &state.slices), None);
    }

    #[test]
    fn too_many_taken_names_are_met_anew_and_the_failures_still_count() {
        let records = Records::default();
        records.failed(&service());
        let names = |range: std::ops::Range<usize>| range.map(|number| number.to_string()).collect();
        assert!(!records.met(&service(), names(0..TAKEN_LIMIT)));
        assert!(records.met(&service(), names(TAKEN_LIMIT..TAKEN_LIMIT + 1)));
        assert!(records.taken(&service()).is_empty());
        assert_eq!(records.failed(&service()), 1);
    }

    #[test]
    fn conflicts_and_failures_slow_down_until_all_is_settled() {
        let records = Records::default();
        let pauses: Vec<u64> = (0..5).map(|_| records.conflicted(&service()).as_millis() as u64).collect();
        assert!(pauses[0] <= 1000 && pauses[4] >= 9000, "{pauses:?}");
        assert!(records.is_news(&service(), "forbidden") && !records.is_news(&service(), "forbidden"));
        assert_eq!((records.failed(&service()), records.failed(&service())), (0, 1));
        assert_eq!(records.settled(&service()), 2);
        assert!(records.is_news(&service(), "forbidden"));
        assert!(records.conflicted(&service()) <= Duration::from_secs(1));
    }
}
