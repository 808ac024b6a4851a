//! What is remembered of LinkerdConfigs between reconciles, while this process leads.
//!
//! None of it decides what the document has to be: losing it costs a read, a repeated look, or an earlier revert.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    base::Base,
    values::{Document, Reading},
};
use crate::{api::LinkerdConfigStatus, cluster::kinds::linkerd_config::LinkerdConfig, retry::backoff};

/// How long the cache may take to show our own write before we look without: the precondition then keeps a second harmless.
const OWN_WRITE_SEEN: Duration = Duration::from_secs(5);
/// So many reverts in so long are a fight. Installers that run in a loop fight too.
const REVERTS: usize = 5;
const FIGHT: Duration = Duration::from_secs(600);
const TRUCE: Duration = Duration::from_secs(10);
const LONGEST_TRUCE: Duration = Duration::from_secs(300);

#[derive(Default)]
pub(super) struct Records {
    resources: Mutex<HashMap<Arc<str>, Record>>,
    targets: Mutex<HashMap<Arc<str>, Target>>,
}

/// Of a resource.
#[derive(Default)]
struct Record {
    told: Option<Told>,
    failures: u32,
}

/// What it was told last.
struct Told {
    uid: Arc<str>,
    version: String,
    status: Arc<LinkerdConfigStatus>,
}

/// Of a ConfigMap, whoever of several resources is in effect for it.
#[derive(Default)]
struct Target {
    /// What was looked for and not found is known too.
    base: Option<Option<Arc<Base>>>,
    /// The version that we wrote, and when.
    written: Option<(Arc<str>, Instant)>,
    reverts: VecDeque<Instant>,
    /// The text that was read last, and what it reads as: that is most of what a look costs.
    reading: Option<(Arc<str>, Arc<Reading>)>,
}

impl Records {
    /// Another may have written meanwhile.
    pub(super) fn clear(&self) {
        self.resources.lock().clear();
        self.targets.lock().clear();
    }

    /// Forgets a resource, and the ConfigMaps that are no resource's target any more.
    pub(super) fn forget(&self, name: &str, is_target: impl Fn(&Arc<str>) -> bool) {
        self.resources.lock().remove(name);
        self.targets.lock().retain(|config_map, _| is_target(config_map));
    }

    pub(super) fn base(&self, config_map: &str) -> Option<Option<Arc<Base>>> {
        self.targets.lock().get(config_map)?.base.clone()
    }

    pub(super) fn know_base(&self, config_map: &Arc<str>, base: Option<Arc<Base>>) {
        self.edit_target(config_map, |target| target.base = Some(base));
    }

    /// What the text of a ConfigMap reads as.
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

    /// It is not what we took it for.
    pub(super) fn forget_base(&self, config_map: &Arc<str>) {
        self.edit_target(config_map, |target| target.base = None);
    }

    /// What the resource was told last, as long as the cache does not show it.
    pub(super) fn told(&self, config: &LinkerdConfig) -> Option<Arc<LinkerdConfigStatus>> {
        self.unseen(config, |told| Arc::clone(&told.status))
    }

    /// The newest version of the resource that we know of.
    pub(super) fn version(&self, config: &LinkerdConfig) -> String {
        self.unseen(config, |told| told.version.clone()).unwrap_or_else(|| config.version.to_string())
    }

    fn unseen<T>(&self, config: &LinkerdConfig, of: impl FnOnce(&Told) -> T) -> Option<T> {
        let resources = self.resources.lock();
        let told = resources.get(&config.name)?.told.as_ref()?;
        (told.uid == config.uid && number(&config.version) < number(&told.version)).then(|| of(told))
    }

    pub(super) fn tell(&self, name: &Arc<str>, uid: &Arc<str>, version: String, status: Arc<LinkerdConfigStatus>) {
        self.edit(name, |record| record.told = Some(Told { uid: Arc::clone(uid), version, status }));
    }

    pub(super) fn wrote(&self, config_map: &Arc<str>, version: Arc<str>) {
        self.edit_target(config_map, |target| target.written = Some((version, Instant::now())));
    }

    /// How long to wait for the cache to show what we wrote.
    pub(super) fn own_write_unseen(&self, config_map: &str, version: &str) -> Option<Duration> {
        let mut targets = self.targets.lock();
        let target = targets.get_mut(config_map)?;
        let (written, since) = target.written.as_ref()?;
        let left = OWN_WRITE_SEEN.saturating_sub(since.elapsed());
        if number(version) >= number(written) || left.is_zero() {
            target.written = None;
            return None;
        }
        Some(left)
    }

    /// Until when nothing is reverted, because others undo it again and again.
    pub(super) fn truce(&self, config_map: &str) -> Option<Duration> {
        let mut targets = self.targets.lock();
        let reverts = &mut targets.get_mut(config_map)?.reverts;
        while reverts.front().is_some_and(|first| first.elapsed() > FIGHT) {
            reverts.pop_front();
        }
        let more = reverts.len().checked_sub(REVERTS + 1)?;
        let pause = backoff(u32::try_from(more).unwrap_or(u32::MAX), TRUCE, LONGEST_TRUCE);
        pause.checked_sub(reverts.back()?.elapsed()).filter(|left| !left.is_zero())
    }

    /// We wrote over what somebody else wrote.
    pub(super) fn reverted(&self, config_map: &Arc<str>) {
        self.edit_target(config_map, |target| {
            target.reverts.push_back(Instant::now());
            if target.reverts.len() > 10 * REVERTS {
                target.reverts.pop_front();
            }
        });
    }

    /// How many reconciles failed before this one.
    pub(super) fn failed(&self, name: &Arc<str>) -> u32 {
        self.edit(name, |record| {
            record.failures = record.failures.saturating_add(1);
            record.failures - 1
        })
    }

    pub(super) fn settled(&self, name: &str) {
        if let Some(record) = self.resources.lock().get_mut(name) {
            record.failures = 0;
        }
    }

    fn edit_target(&self, config_map: &Arc<str>, edit: impl FnOnce(&mut Target)) {
        edit(self.targets.lock().entry(Arc::clone(config_map)).or_default());
    }

    fn edit<T>(&self, name: &Arc<str>, edit: impl FnOnce(&mut Record) -> T) -> T {
        edit(self.resources.lock().entry(Arc::clone(name)).or_default())
    }
}

/// Versions of one kind are ordered numbers.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fight_is_six_reverts_in_ten_minutes_and_its_truces_grow() {
        let (records, name) = (Records::default(), Arc::<str>::from("a"));
        for _ in 0..5 {
            records.reverted(&name);
            assert_eq!(records.truce("a"), None);
        }
        records.reverted(&name);
        let first = records.truce("a").unwrap();
        assert!(first <= TRUCE && first > TRUCE / 2, "{first:?}");
        tokio::time::sleep(TRUCE).await;
        assert_eq!(records.truce("a"), None, "it is tried again");
        records.reverted(&name);
        assert!(records.truce("a").unwrap() > first);
        tokio::time::sleep(FIGHT + TRUCE).await;
        assert_eq!(records.truce("a"), None);
        records.reverted(&name);
        assert_eq!(records.truce("a"), None, "long ago is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn a_config_map_is_forgotten_with_the_last_resource_that_names_it() {
        let records = Records::default();
        for config_map in ["kept", "gone"] {
            records.wrote(&config_map.into(), "10".into());
        }
        records.forget("mesh", |config_map| &**config_map == "kept");
        assert!(records.own_write_unseen("kept", "9").is_some());
        assert_eq!(records.own_write_unseen("gone", "9"), None);
        assert_eq!(records.targets.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_write_is_waited_for_but_not_for_ever() {
        let (records, name) = (Records::default(), Arc::<str>::from("a"));
        assert_eq!(records.own_write_unseen("a", "1"), None);
        records.wrote(&name, "10".into());
        assert!(records.own_write_unseen("a", "9").is_some());
        assert_eq!(records.own_write_unseen("a", "11"), None);
        records.wrote(&name, "12".into());
        tokio::time::sleep(OWN_WRITE_SEEN).await;
        assert_eq!(records.own_write_unseen("a", "9"), None);
    }
}
