//! The controller's state between reconciles, kept while this process leads.
//!
//! Some entries affect what is written. A status that is not written yet names the documents that failed, so it decides
//! whether the next plan restores a fallback document. The history of reverts decides when the next revert may happen,
//! and the first failed restore decides when a deletion no longer waits. The other entries only save reads and repeated
//! reconciles.
//!
//! A new leader begins with an empty cache. The stored status names the failed documents before a fallback document is
//! written, unless the write of the status fails. Without the other entries, a revert happens earlier, or a deletion
//! waits longer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{documents::base::Base, installers::revert_history::RevertHistory};
use crate::{
    api::{LinkerdConfigStatus, version_number},
    cluster::kinds::linkerd_config::LinkerdConfig,
    values::{Document, Reading},
};

/// The maximum wait for the watch to show our own write. After that the reconcile runs anyway: the precondition of the
/// next write makes a stale read harmless.
const OWN_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct ReconcileCache {
    resources: Mutex<HashMap<Arc<str>, ResourceEntry>>,
    targets: Mutex<HashMap<Arc<str>, TargetEntry>>,
}

/// The entry of one LinkerdConfig.
#[derive(Default)]
struct ResourceEntry {
    last_status: Option<LastStatus>,
    /// The UID of the resource, and a status that a later one has to continue although it was not written.
    unwritten_status: Option<(Arc<str>, Arc<LinkerdConfigStatus>)>,
    /// The first failed restore of the base for the deletion of the resource.
    restore_failed: Option<Instant>,
}

/// The status that was written last.
struct LastStatus {
    uid: Arc<str>,
    /// The resourceVersion that the write returned.
    version: String,
    status: Arc<LinkerdConfigStatus>,
}

/// The entry of one ConfigMap. It does not depend on which LinkerdConfig is active for it.
#[derive(Default)]
struct TargetEntry {
    /// `Some(None)`: no base is saved.
    base: Option<Option<Arc<Base>>>,
    /// The resourceVersion of our last write, and its time.
    own_write: Option<(Arc<str>, Instant)>,
    reverts: RevertHistory,
    /// The last parsed text and its result, because parsing takes most of the time of a reconcile.
    reading: Option<(Arc<str>, Arc<Reading>)>,
}

impl ReconcileCache {
    /// Clears the cache when this process becomes the leader, because another replica may have written since.
    pub(super) fn clear(&self) {
        self.resources.lock().clear();
        self.targets.lock().clear();
    }

    /// Forgets a resource, and the ConfigMaps that are no longer the target of any resource.
    pub(super) fn forget(&self, name: &str, is_target: impl Fn(&Arc<str>) -> bool) {
        self.resources.lock().remove(name);
        self.targets.lock().retain(|config_map, _| is_target(config_map));
    }

    /// Returns the saved base of a ConfigMap; `None` if it is not cached, `Some(None)` if no base is saved.
    pub(super) fn base(&self, config_map: &str) -> Option<Option<Arc<Base>>> {
        self.targets.lock().get(config_map)?.base.clone()
    }

    pub(super) fn set_base(&self, config_map: &Arc<str>, base: Option<Arc<Base>>) {
        self.edit_target(config_map, |target| target.base = Some(base));
    }

    /// Returns the parsed text of a ConfigMap, from the cache if the text is the last parsed one.
    pub(super) fn read(&self, config_map: &Arc<str>, text: &Arc<str>) -> Arc<Reading> {
        let mut reading = None;
        self.edit_target(config_map, |target| reading = target.reading.clone());
        if let Some((_, reading)) = reading.filter(|(known, _)| known == text) {
            return reading;
        }
        let reading = Arc::new(Document::read(text));
        self.edit_target(config_map, |target| target.reading = Some((Arc::clone(text), Arc::clone(&reading))));
        reading
    }

    /// Forgets the base after a conflict: another writer may have saved a newer one.
    pub(super) fn forget_base(&self, config_map: &Arc<str>) {
        self.edit_target(config_map, |target| target.base = None);
    }

    /// Returns the last written status, until the watch shows it.
    pub(super) fn last_status(&self, config: &LinkerdConfig) -> Option<Arc<LinkerdConfigStatus>> {
        self.newer_than_cluster(config, |last_status| Arc::clone(&last_status.status))
    }

    /// Returns the newest known resourceVersion of the resource.
    pub(super) fn newest_version(&self, config: &LinkerdConfig) -> String {
        self.newer_than_cluster(config, |last_status| last_status.version.clone())
            .unwrap_or_else(|| config.version.to_string())
    }

    fn newer_than_cluster<T>(&self, config: &LinkerdConfig, of: impl FnOnce(&LastStatus) -> T) -> Option<T> {
        let resources = self.resources.lock();
        let last_status = resources.get(&config.name)?.last_status.as_ref()?;
        (last_status.uid == config.uid && version_number(&config.version) < version_number(&last_status.version))
            .then(|| of(last_status))
    }

    /// Notes a status that was written, with the resourceVersion that the write returned.
    pub(super) fn set_last_status(
        &self,
        name: &Arc<str>,
        uid: &Arc<str>,
        version: String,
        status: Arc<LinkerdConfigStatus>,
    ) {
        self.edit_resource(name, |entry| {
            entry.last_status = Some(LastStatus { uid: Arc::clone(uid), version, status });
            entry.unwritten_status = None;
        });
    }

    /// Notes a status that the next reconcile continues, before it is written: what it says must be acted upon even if
    /// it cannot be written.
    pub(super) fn set_unwritten_status(&self, name: &Arc<str>, uid: &Arc<str>, status: Arc<LinkerdConfigStatus>) {
        self.edit_resource(name, |entry| entry.unwritten_status = Some((Arc::clone(uid), status)));
    }

    /// Returns the status that was noted and not written since.
    pub(super) fn unwritten_status(&self, config: &LinkerdConfig) -> Option<Arc<LinkerdConfigStatus>> {
        let resources = self.resources.lock();
        let (uid, status) = resources.get(&config.name)?.unwritten_status.as_ref()?;
        (*uid == config.uid).then(|| Arc::clone(status))
    }

    /// Notes our own write of a ConfigMap, with the resourceVersion that it returned.
    pub(super) fn note_own_write(&self, config_map: &Arc<str>, version: Arc<str>) {
        self.edit_target(config_map, |target| target.own_write = Some((version, Instant::now())));
    }

    /// Returns the remaining wait for the watch to show our own write; `None` if the watch shows it or the wait has
    /// timed out.
    pub(super) fn own_write_pending(&self, config_map: &str, version: &str) -> Option<Duration> {
        let mut targets = self.targets.lock();
        let target = targets.get_mut(config_map)?;
        let (own_write, since) = target.own_write.as_ref()?;
        let left = OWN_WRITE_TIMEOUT.saturating_sub(since.elapsed());
        if version_number(version) >= version_number(own_write) || left.is_zero() {
            target.own_write = None;
            return None;
        }
        Some(left)
    }

    /// Returns how long the ConfigMap still counts as contested by another writer.
    pub(super) fn contested_for(&self, config_map: &str) -> Option<Duration> {
        self.targets.lock().get_mut(config_map)?.reverts.contested_for()
    }

    /// Returns the remaining suspension of reverts, if other writers keep undoing them.
    pub(super) fn revert_backoff(&self, config_map: &str) -> Option<Duration> {
        self.targets.lock().get_mut(config_map)?.reverts.backoff()
    }

    /// Notes that we overwrote another writer. `installed` is the document of an installer that differs from the base.
    pub(super) fn note_revert(&self, config_map: &Arc<str>, installed: Option<&str>) {
        self.edit_target(config_map, |target| target.reverts.note(installed));
    }

    /// Notes that the restore of the base failed. Returns the time since the first failure.
    pub(super) fn restore_failing_for(&self, name: &Arc<str>) -> Duration {
        self.edit_resource(name, |entry| entry.restore_failed.get_or_insert_with(Instant::now).elapsed())
    }

    fn edit_target(&self, config_map: &Arc<str>, edit: impl FnOnce(&mut TargetEntry)) {
        edit(self.targets.lock().entry(Arc::clone(config_map)).or_default());
    }

    fn edit_resource<T>(&self, name: &Arc<str>, edit: impl FnOnce(&mut ResourceEntry) -> T) -> T {
        edit(self.resources.lock().entry(Arc::clone(name)).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_entry_of_a_config_map_is_dropped_with_the_last_resource_that_names_it() {
        let cache = ReconcileCache::default();
        for config_map in ["kept", "dropped"] {
            cache.note_own_write(&config_map.into(), "10".into());
        }
        cache.forget("mesh", |config_map| &**config_map == "kept");
        assert!(cache.own_write_pending("kept", "9").is_some());
        assert_eq!(cache.own_write_pending("dropped", "9"), None);
        assert_eq!(cache.targets.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_our_own_write_times_out() {
        let (cache, name) = (ReconcileCache::default(), Arc::<str>::from("a"));
        assert_eq!(cache.own_write_pending("a", "1"), None);
        cache.note_own_write(&name, "10".into());
        assert!(cache.own_write_pending("a", "9").is_some());
        assert_eq!(cache.own_write_pending("a", "11"), None);
        cache.note_own_write(&name, "12".into());
        tokio::time::sleep(OWN_WRITE_TIMEOUT).await;
        assert_eq!(cache.own_write_pending("a", "9"), None);
    }
}
