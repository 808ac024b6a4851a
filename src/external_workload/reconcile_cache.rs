//! The controller's state of each Service between reconciles.
//!
//! It does not decide the content of slices: its loss costs a repeated warning, a conflict or an earlier retry. An
//! entry exists only while it has content, and is removed with its Service.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{apply::Written, findings::Finding};
use crate::{
    api::NamespacedName,
    cluster::{index::store::Store, kinds::endpoint_slice::Slice},
    retry::backoff,
};

/// The maximum time that the next plan waits for the cache to show our own writes. After that, preconditions and fixed
/// names make a second write harmless.
const OWN_WRITES_SEEN: Duration = Duration::from_secs(5);
/// The pause between the writes for one Service, so that workloads which change at the same time, or one that never
/// stops, cause few writes: each is sent to every node. A first change does not wait.
const BETWEEN_WRITES: Duration = Duration::from_millis(200);
/// The number of one Service's slice names that other controllers may occupy before the reconcile fails.
const TAKEN_LIMIT: usize = 256;

#[derive(Default)]
pub(super) struct ServiceReconcileCache(Mutex<HashMap<NamespacedName, CacheEntry>>);

#[derive(Default)]
struct CacheEntry {
    unseen: Vec<Written>,
    written: Option<Instant>,
    /// The number of consecutive reconciles that found an object newer than the cache.
    conflicts: u32,
    /// The category of the last failure for which an Event was emitted.
    reported: Option<&'static str>,
    /// The hashes of the findings of the last plan. Their texts come from tenants' objects, and many Services may have
    /// the same ones.
    findings: HashSet<u64>,
    taken: HashSet<String>,
}

impl ServiceReconcileCache {
    pub(super) fn forget(&self, service: &NamespacedName) {
        self.0.lock().remove(service);
    }

    /// Returns how long the next plan has to wait after our last writes, or `None` if it need not wait. The change that
    /// shows the writes queues the Service, usually sooner.
    pub(super) fn wait_after_writes(&self, service: &NamespacedName, slices: &Store<Slice>) -> Option<Duration> {
        let mut cache = self.0.lock();
        let entry = cache.get_mut(service)?;
        entry.unseen.retain(|written| !is_seen(written, service, slices));
        let wait = if entry.unseen.is_empty() { BETWEEN_WRITES } else { OWN_WRITES_SEEN };
        let left = wait.saturating_sub(entry.written?.elapsed());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn record_writes(&self, service: &NamespacedName, written: Vec<Written>) {
        if !written.is_empty() {
            self.edit(service, |entry| {
                entry.unseen = written;
                entry.written = Some(Instant::now());
            });
        }
    }

    /// Returns the names that are known to be occupied by slices of other controllers.
    pub(super) fn taken(&self, service: &NamespacedName) -> HashSet<String> {
        self.0.lock().get(service).map(|entry| entry.taken.clone()).unwrap_or_default()
    }

    /// Adds names that slices of other controllers occupy. If the limit is exceeded, forgets all of them and returns
    /// true.
    pub(super) fn add_taken(&self, service: &NamespacedName, taken: Vec<String>) -> bool {
        self.edit(service, |entry| {
            entry.taken.extend(taken);
            let crowded = entry.taken.len() > TAKEN_LIMIT;
            if crowded {
                entry.taken = HashSet::new();
            }
            crowded
        })
    }

    /// Returns the new findings. A finding that was corrected and recurs is new again.
    pub(super) fn new_findings<'a>(&self, service: &NamespacedName, findings: &'a [Finding]) -> Vec<&'a Finding> {
        if findings.is_empty() && !self.0.lock().contains_key(service) {
            return Vec::new();
        }
        self.edit(service, |entry| {
            let hash = |finding: &Finding| BuildHasherDefault::<DefaultHasher>::default().hash_one(finding);
            let new = findings.iter().filter(|finding| !entry.findings.contains(&hash(finding))).collect();
            entry.findings = findings.iter().map(hash).collect();
            new
        })
    }

    /// Records the category of a failure as reported. Returns whether it differs from the last reported one.
    pub(super) fn note_reported(&self, service: &NamespacedName, category: &'static str) -> bool {
        self.edit(service, |entry| entry.reported.replace(category) != Some(category))
    }

    /// Counts a conflict. Returns when to retry; the watch usually delivers the newer object sooner.
    pub(super) fn count_conflict(&self, service: &NamespacedName) -> Duration {
        self.edit(service, |entry| {
            entry.conflicts = entry.conflicts.saturating_add(1);
            backoff(entry.conflicts - 1, Duration::from_secs(1), Duration::from_secs(10))
        })
    }

    /// Records that every write of a plan succeeded.
    pub(super) fn succeeded(&self, service: &NamespacedName) {
        let mut cache = self.0.lock();
        let Some(entry) = cache.get_mut(service) else { return };
        entry.conflicts = 0;
        entry.reported = None;
        entry.taken = HashSet::new();
        if entry.unseen.is_empty() && entry.findings.is_empty() {
            cache.remove(service);
        }
    }

    fn edit<T>(&self, service: &NamespacedName, edit: impl FnOnce(&mut CacheEntry) -> T) -> T {
        edit(self.0.lock().entry(service.clone()).or_default())
    }
}

fn is_seen(written: &Written, service: &NamespacedName, slices: &Store<Slice>) -> bool {
    match written {
        Written::Version(version) => slices.seen_version() >= *version,
        // A slice that a finalizer retains is terminating, and plans ignore it.
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
        cluster::{Problems, Projected, State, Watched, kinds::endpoint_slice::Slice, testing::external_workload},
        events::Reason,
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
    async fn a_plan_waits_for_the_cache_to_show_our_own_writes_but_not_forever() {
        let (cache, mut state) = (ServiceReconcileCache::default(), State::default());
        watched(&mut state, "9", false);
        cache.record_writes(&service(), vec![Written::Version(10)]);
        assert_eq!(cache.wait_after_writes(&service(), &state.slices), Some(OWN_WRITES_SEEN));
        tokio::time::advance(OWN_WRITES_SEEN).await;
        assert_eq!(cache.wait_after_writes(&service(), &state.slices), None);
        cache.record_writes(&service(), vec![Written::Version(10)]);
        watched(&mut state, "10", false);
        assert_eq!(cache.wait_after_writes(&service(), &state.slices), Some(BETWEEN_WRITES));
        tokio::time::advance(BETWEEN_WRITES).await;
        assert_eq!(cache.wait_after_writes(&service(), &state.slices), None);
        cache.succeeded(&service());
        assert!(cache.0.lock().is_empty(), "an entry without content is removed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delete_is_seen_when_the_slice_is_absent_or_terminating() {
        let (cache, mut state) = (ServiceReconcileCache::default(), State::default());
        let deleted = || vec![Written::Deleted { name: "s".to_owned(), uid: "u".to_owned() }];
        watched(&mut state, "9", false);
        cache.record_writes(&service(), deleted());
        tokio::time::advance(BETWEEN_WRITES).await;
        assert!(cache.wait_after_writes(&service(), &state.slices).is_some());
        watched(&mut state, "10", true);
        assert_eq!(cache.wait_after_writes(&service(), &state.slices), None);
    }

    #[test]
    fn too_many_taken_names_are_forgotten() {
        let cache = ServiceReconcileCache::default();
        let names = |range: std::ops::Range<usize>| range.map(|number| number.to_string()).collect();
        assert!(!cache.add_taken(&service(), names(0..TAKEN_LIMIT)));
        assert!(cache.add_taken(&service(), names(TAKEN_LIMIT..TAKEN_LIMIT + 1)));
        assert!(cache.taken(&service()).is_empty());
    }

    #[test]
    fn conflicts_are_counted_and_a_failure_is_reported_until_a_reconcile_succeeds() {
        let cache = ServiceReconcileCache::default();
        let pauses: Vec<u64> = (0..5).map(|_| cache.count_conflict(&service()).as_millis() as u64).collect();
        assert!(pauses[0] <= 1000 && pauses[4] >= 9000, "{pauses:?}");
        assert!(cache.note_reported(&service(), "forbidden") && !cache.note_reported(&service(), "forbidden"));
        cache.succeeded(&service());
        assert!(cache.note_reported(&service(), "forbidden"));
        assert!(cache.count_conflict(&service()) <= Duration::from_secs(1));
    }

    #[test]
    fn a_finding_is_new_until_it_is_reported_and_again_after_it_was_corrected() {
        let cache = ServiceReconcileCache::default();
        let workload = external_workload("vm", true, &json!({}), &json!({}));
        let finding = |text: &str| Finding::new(&workload, Reason::UnmatchedPort, text.to_owned());
        let new = |findings: &[Finding]| cache.new_findings(&service(), findings).len();
        assert_eq!([new(&[finding("a")]), new(&[finding("a")])], [1, 0]);
        assert_eq!(new(&[finding("a"), finding("b")]), 1, "another text");
        assert_eq!([new(&[finding("b")]), new(&[finding("a"), finding("b")])], [0, 1], "a was corrected, and recurs");
    }

    #[test]
    fn eight_bytes_are_kept_of_a_finding_for_each_service() {
        let cache = ServiceReconcileCache::default();
        let workload = external_workload("vm", true, &json!({}), &json!({}));
        let findings = [Finding::new(&workload, Reason::UnmatchedPort, "x".repeat(500))];
        for number in 0..300 {
            let service = NamespacedName::new("ns", format!("web-{number}").as_str());
            assert_eq!(cache.new_findings(&service, &findings).len(), 1);
        }
        let kept: usize = cache.0.lock().values().flat_map(|entry| &entry.findings).map(std::mem::size_of_val).sum();
        assert_eq!(kept, 2400);
    }
}
