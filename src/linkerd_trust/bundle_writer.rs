//! Adds declared trust anchors to the bundle, and removes the others.
//!
//! In: the declared roots, the ConfigMap of the bundle as the state has it. Out: a patch of `data["ca-bundle.crt"]`, or the
//! reason why nothing is written. Always holds: each patch names the version that was read; only the leader writes; a write
//! that failed is repeated after a minute; after each removal of what was added, the operator waits longer before it adds
//! it again; a root that another writer has added again is removed once an hour by one process, and a distrusted one once a
//! minute.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1 as core;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Registry, register_int_counter_vec_with_registry};
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    api::{FIELD_MANAGER, TRUST_ROOTS, TRUST_ROOTS_KEY, linkerd_trust::TrustReason},
    cluster::kinds::config_map::ConfigMap,
    lease::Fence,
    retry::Overwrites,
    trust::{
        bundle_change::{BundleChange, BundleChangeKind, addition, cut, removal},
        seen::DeclaredRoots,
    },
    write::WriteError,
    x509::anchor_set::Fingerprint,
};

/// What to do if RBAC refuses a request; a policy may refuse it, too.
pub(super) const PERMIT: &str = "If the permission is missing, set jobs.linkerdConfig.trustAnchors of the chart, or use the component trust-anchors";
/// The time until a refused write is sent again.
const REFUSED_RETRY: Duration = Duration::from_secs(60);
/// The time until a root that another writer has added again is removed again. Each change of the bundle may restart
/// workloads.
const REMOVED_AGAIN: Duration = Duration::from_secs(3600);
/// The same for a distrusted one: new Pods must not trust it.
const DISTRUSTED_AGAIN: Duration = Duration::from_secs(60);

pub(super) struct BundleWriter {
    fence: Fence,
    config_maps: Api<core::ConfigMap>,
    memory: Mutex<WriterMemory>,
    writes: IntCounterVec,
}

/// A change of the bundle.
pub(super) struct BundleWritten {
    pub(super) kind: BundleChangeKind,
    /// Names the roots, and the writer before.
    pub(super) note: String,
}

/// Why the bundle does not get exactly the declared roots, or does not keep them.
#[derive(Clone, Debug)]
pub(super) struct HeldWrite {
    pub(super) reason: TrustReason,
    pub(super) message: String,
    /// The time after which the resource is reconciled without a change.
    pub(super) retry: Option<Duration>,
    /// What people can do about it.
    pub(super) commands: Vec<String>,
}

/// What this process remembers about its writes.
#[derive(Default)]
struct WriterMemory {
    /// The declared roots that the bundle has had: another writer has removed those that are missing.
    had: BTreeSet<Fingerprint>,
    /// The times at which one of them was added again.
    overwrites: Overwrites,
    /// The writer that removed one last.
    contestant: String,
    /// The roots that were removed last.
    removed: BTreeMap<Fingerprint, Instant>,
    refused: Option<RefusedChange>,
}

/// A write that failed.
struct RefusedChange {
    /// The ConfigMap, and the text.
    uid: Arc<str>,
    text: String,
    message: String,
    at: Instant,
}

// === impl BundleWriter ===

impl BundleWriter {
    /// # Errors
    /// When the metrics are already registered.
    pub(super) fn new(client: &Client, namespace: &str, fence: Fence, registry: &Registry) -> prometheus::Result<Self> {
        let writes = register_int_counter_vec_with_registry!(
            "linkerd_operator_trust_bundle_writes_total",
            "Changes of the bundle of trust anchors that were sent to the API server, by result",
            &["result"],
            registry
        )?;
        for result in WriteError::RESULTS {
            writes.with_label_values(&[result]);
        }
        let config_maps = Api::namespaced(client.clone(), namespace);
        Ok(Self { fence, config_maps, memory: Mutex::default(), writes })
    }

    /// Adds the declared roots that the bundle lacks; `None` if it lacks none. Without its ConfigMap nothing is added: it
    /// belongs to Linkerd's installer. The inner error is the reason why nothing was written.
    ///
    /// # Errors
    /// When the ConfigMap has changed, or this process does not lead.
    pub(super) async fn add_missing(
        &self,
        declared: &DeclaredRoots,
        map: Option<&ConfigMap>,
    ) -> Result<Result<Option<BundleWritten>, HeldWrite>, WriteError> {
        let Some(map) = map else { return Ok(Ok(None)) };
        match self.planned(addition(map.bundle.as_deref().unwrap_or_default(), declared), map) {
            Ok(None) => {
                let declared = declared.bundle.roots().iter().map(|root| root.sha256).collect();
                let contest = self.memory.lock().contest(declared, map);
                Ok(contest.map_or(Ok(None), Err))
            }
            Ok(Some(change)) => Ok(self.write(change, map).await?.map(Some)),
            Err(held) => Ok(Err(held)),
        }
    }

    /// Returns the change that removes the roots that are not declared; `None` if the bundle has none.
    ///
    /// # Errors
    /// When they must not be removed at present.
    pub(super) fn removal(&self, declared: &DeclaredRoots, map: &ConfigMap) -> Result<Option<BundleChange>, HeldWrite> {
        self.planned(removal(map.bundle.as_deref().unwrap_or_default(), declared), map)
    }

    /// Returns the change that removes the distrusted roots; `None` if the bundle has none, or no declared one.
    ///
    /// # Errors
    /// As for [`BundleWriter::removal`].
    pub(super) fn cut(&self, declared: &DeclaredRoots, map: &ConfigMap) -> Result<Option<BundleChange>, HeldWrite> {
        self.planned(cut(map.bundle.as_deref().unwrap_or_default(), declared), map)
    }

    fn planned(
        &self,
        change: Result<Option<BundleChange>, String>,
        map: &ConfigMap,
    ) -> Result<Option<BundleChange>, HeldWrite> {
        if change != Ok(None)
            && let Some(source) = &map.trust_manager_source
        {
            let message = format!(
                "trust-manager writes ConfigMap {} from the Bundle {source}, so the operator does not: change the sources of \
                 the Bundle",
                map.key
            );
            return Err(HeldWrite {
                reason: TrustReason::WrittenByTrustManager,
                message,
                retry: None,
                commands: Vec::new(),
            });
        }
        let change = change.map_err(|why| HeldWrite {
            reason: TrustReason::WriteFailed,
            message: format!("ConfigMap {} cannot be changed: {why}", map.key),
            retry: None,
            commands: Vec::new(),
        })?;
        match change.as_ref().and_then(|change| self.memory.lock().hold(change, map, writer_of(map))) {
            Some(held) => Err(held),
            None => Ok(change),
        }
    }

    /// Writes the bundle at the version of this ConfigMap. The inner error is the reason why it was not written.
    ///
    /// # Errors
    /// When the ConfigMap has changed, or this process does not lead.
    pub(super) async fn write(
        &self,
        change: BundleChange,
        map: &ConfigMap,
    ) -> Result<Result<BundleWritten, HeldWrite>, WriteError> {
        let writer = writer_of(map);
        let BundleChange { kind, names, .. } = &change;
        match self.patch(&map.version, &change.text).await {
            Ok(()) => {
                self.memory.lock().note(&change, writer);
                info!(config_map = %map.key, roots = names, change = ?kind, "changed the bundle of trust anchors");
                let what = match kind {
                    BundleChangeKind::Addition => format!("Added {names} to"),
                    BundleChangeKind::Removal => format!("Removed {names} from"),
                };
                let before = match writer {
                    FIELD_MANAGER => String::new(),
                    other => format!(", which {other} wrote before"),
                };
                let note = format!("{what} ConfigMap {}{before}", map.key);
                Ok(Ok(BundleWritten { kind: *kind, note }))
            }
            Err(error @ WriteError::NotLeading) => Err(error),
            Err(WriteError::Refused(status)) if status.is_conflict() || status.is_not_found() => {
                Err(WriteError::Refused(status))
            }
            // A permission, a policy or a webhook, an immutable ConfigMap; or no answer.
            Err(error) => {
                let remedy = if is_forbidden(&error) { format!(". {PERMIT}") } else { String::new() };
                let what = match kind {
                    BundleChangeKind::Addition => format!("{names} could not be added to"),
                    BundleChangeKind::Removal => format!("{names} could not be removed from"),
                };
                let message = format!("{what} ConfigMap {}: {error}{remedy}", map.key);
                warn!(config_map = %map.key, %error, "could not change the bundle of trust anchors");
                let (uid, at) = (Arc::clone(&map.uid), Instant::now());
                let refused = RefusedChange { uid, text: change.text, message: message.clone(), at };
                self.memory.lock().refused = Some(refused);
                let retry = Some(REFUSED_RETRY);
                Ok(Err(HeldWrite { reason: TrustReason::WriteFailed, message, retry, commands: Vec::new() }))
            }
        }
    }

    async fn patch(&self, version: &str, text: &str) -> Result<(), WriteError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json!({"metadata": {"resourceVersion": version}, "data": {TRUST_ROOTS_KEY: text}});
        let request = async { self.config_maps.patch(TRUST_ROOTS, &params, &Patch::Merge(&patch)).await };
        let result = self.fence.send(request).await;
        if let Some(label) = WriteError::result(&result) {
            self.writes.with_label_values(&[label]).inc();
        }
        result.map(drop)
    }
}

fn is_forbidden(error: &WriteError) -> bool {
    matches!(error, WriteError::Refused(status) if status.is_forbidden())
}

fn writer_of(map: &ConfigMap) -> &str {
    map.bundle_writer.as_deref().unwrap_or("an unknown writer")
}

// === impl WriterMemory ===

impl WriterMemory {
    /// Returns why this change must wait.
    fn hold(&mut self, change: &BundleChange, map: &ConfigMap, writer: &str) -> Option<HeldWrite> {
        let same = self.refused.as_ref().filter(|it| it.uid == map.uid && it.text == change.text);
        if let Some(RefusedChange { message, at, .. }) = same
            && let Some(left) = left_of(REFUSED_RETRY, *at)
        {
            return Some(HeldWrite {
                reason: TrustReason::WriteFailed,
                message: message.clone(),
                retry: Some(left),
                commands: Vec::new(),
            });
        }
        match change.kind {
            BundleChangeKind::Addition if change.roots.is_subset(&self.had) => {
                let pause = self.overwrites.backoff()?;
                writer.clone_into(&mut self.contestant);
                Some(self.contested(map, pause))
            }
            BundleChangeKind::Addition => None,
            BundleChangeKind::Removal => {
                self.removed.retain(|_, at| left_of(REMOVED_AGAIN, *at).is_some());
                let (pause, remedy) = match change.is_urgent {
                    true => (DISTRUSTED_AGAIN, ". The operator removes it again after a minute"),
                    false => (REMOVED_AGAIN, ", or declare it. The operator removes it again after an hour"),
                };
                let writer = if writer == FIELD_MANAGER { "another writer" } else { writer };
                let left = |root: &Fingerprint| left_of(pause, *self.removed.get(root)?);
                // One that was not removed before does not wait for the others.
                let left = change.roots.iter().map(left).collect::<Option<Vec<_>>>()?.into_iter().min()?;
                let message = format!(
                    "{writer} has added {} to ConfigMap {} again, which the operator had removed: remove it from the \
                     configuration of that writer{remedy}",
                    change.names, map.key
                );
                Some(HeldWrite { reason: TrustReason::RemovalHeld, message, retry: Some(left), commands: Vec::new() })
            }
        }
    }

    fn note(&mut self, change: &BundleChange, writer: &str) {
        self.refused = None;
        match change.kind {
            BundleChangeKind::Addition => {
                if !self.had.is_disjoint(&change.roots) {
                    self.overwrites.note();
                    writer.clone_into(&mut self.contestant);
                }
                self.had.extend(&change.roots);
            }
            BundleChangeKind::Removal => {
                self.removed.extend(change.roots.iter().map(|root| (*root, Instant::now())));
            }
        }
    }

    /// Returns the contest about a bundle that has all declared roots at present.
    fn contest(&mut self, declared: BTreeSet<Fingerprint>, map: &ConfigMap) -> Option<HeldWrite> {
        if self.had.is_disjoint(&declared) {
            // What was contested is not declared any more.
            self.overwrites = Overwrites::default();
        }
        // One that was declared meanwhile may be added by anyone.
        self.removed.retain(|root, _| !declared.contains(root));
        self.had = declared;
        let left = self.overwrites.contested_for()?;
        Some(self.contested(map, left))
    }

    fn contested(&self, map: &ConfigMap, retry: Duration) -> HeldWrite {
        let message = format!(
            "{} keeps removing declared roots from ConfigMap {}, and the operator waits longer each time before it adds \
             them again: add the roots to the configuration of that writer",
            self.contestant, map.key
        );
        HeldWrite { reason: TrustReason::Contested, message, retry: Some(retry), commands: Vec::new() }
    }
}

/// Returns what is left of this time; `None` if it is over.
pub(super) fn left_of(time: Duration, since: Instant) -> Option<Duration> {
    time.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;
    use crate::cluster::{Problems, Projected};

    fn map(uid: &str) -> ConfigMap {
        let metadata = json!({"name": TRUST_ROOTS, "namespace": "linkerd", "uid": uid});
        ConfigMap::project(serde_json::from_value(json!({"metadata": metadata})).unwrap(), &mut Problems::default())
    }

    fn addition_of(root: u8) -> BundleChange {
        let kind = BundleChangeKind::Addition;
        BundleChange {
            kind,
            text: root.to_string(),
            names: root.to_string(),
            roots: [[root; 32]].into(),
            is_urgent: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn removals_by_another_writer_are_a_contest_and_new_declarations_are_not() {
        let mut memory = WriterMemory::default();
        for root in 0..20 {
            assert!(memory.hold(&addition_of(root), &map("1"), "helm").is_none(), "root {root} was never there");
            memory.note(&addition_of(root), "helm");
        }
        for _ in 0..6 {
            assert!(memory.hold(&addition_of(0), &map("1"), "helm").is_none());
            memory.note(&addition_of(0), "helm");
        }
        let held = memory.hold(&addition_of(0), &map("1"), "argocd").unwrap();
        assert_eq!(held.reason, TrustReason::Contested);
        assert!(held.message.starts_with("argocd keeps removing declared roots"), "{}", held.message);
        let with_another = BundleChange { roots: [[0; 32], [30; 32]].into(), ..addition_of(0) };
        assert!(memory.hold(&with_another, &map("1"), "helm").is_none(), "a root that was never there does not wait");
        // The pause has jitter.
        assert!(held.retry.unwrap() <= Duration::from_secs(10));
        sleep(Duration::from_secs(10)).await;
        assert!(memory.hold(&addition_of(0), &map("1"), "argocd").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_contest_lasts_while_its_roots_are_declared_and_for_ten_minutes() {
        let contested = || {
            let mut memory = WriterMemory::default();
            assert!(memory.contest([[0; 32]].into(), &map("1")).is_none());
            (0..6).for_each(|_| memory.note(&addition_of(0), "helm"));
            memory
        };
        let mut memory = contested();
        let held = memory.contest([[0; 32], [1; 32]].into(), &map("1")).unwrap();
        assert!(held.message.starts_with("helm keeps removing"), "{}", held.message);
        sleep(held.retry.unwrap()).await;
        assert!(memory.contest([[0; 32]].into(), &map("1")).is_none());
        assert!(contested().contest([[2; 32]].into(), &map("1")).is_none(), "another root is declared");
    }

    #[tokio::test(start_paused = true)]
    async fn a_root_that_was_added_again_is_removed_once_an_hour_and_a_distrusted_one_once_a_minute() {
        let mut memory = WriterMemory::default();
        let removal = |root: u8| BundleChange { kind: BundleChangeKind::Removal, ..addition_of(root) };
        assert!(memory.hold(&removal(0), &map("1"), "helm").is_none());
        memory.note(&removal(0), "helm");
        let held = memory.hold(&removal(0), &map("1"), "helm").unwrap();
        assert_eq!((held.reason, held.retry), (TrustReason::RemovalHeld, Some(REMOVED_AGAIN)));
        assert!(held.message.starts_with("helm has added 0 to ConfigMap"), "{}", held.message);
        let with_another = BundleChange { roots: [[0; 32], [1; 32]].into(), ..removal(0) };
        assert!(memory.hold(&with_another, &map("1"), "helm").is_none(), "another root does not wait");
        memory.note(&removal(1), "helm");
        assert!(memory.hold(&removal(0), &map("1"), "helm").is_some(), "it is remembered");
        let distrusted = BundleChange { is_urgent: true, ..removal(0) };
        assert_eq!(memory.hold(&distrusted, &map("1"), "helm").unwrap().retry, Some(DISTRUSTED_AGAIN));
        sleep(DISTRUSTED_AGAIN).await;
        assert!(memory.hold(&distrusted, &map("1"), "helm").is_none());
        assert!(memory.hold(&removal(0), &map("1"), "helm").is_some());
        sleep(REMOVED_AGAIN).await;
        assert!(memory.hold(&removal(0), &map("1"), "helm").is_none());
        memory.note(&removal(0), "helm");
        assert!(memory.contest([[0; 32]].into(), &map("1")).is_none());
        assert!(memory.hold(&removal(0), &map("1"), "helm").is_none(), "it was declared meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_failed_is_sent_again_after_a_minute_or_a_change() {
        let refused = || RefusedChange {
            uid: "1".into(),
            text: "0".to_owned(),
            message: "forbidden".to_owned(),
            at: Instant::now(),
        };
        let mut memory = WriterMemory { refused: Some(refused()), ..WriterMemory::default() };
        assert!(memory.hold(&addition_of(0), &map("2"), "helm").is_none(), "the ConfigMap was created again");
        assert!(memory.hold(&addition_of(1), &map("1"), "helm").is_none(), "the declaration has changed");
        sleep(REFUSED_RETRY / 2).await;
        let held = memory.hold(&addition_of(0), &map("1"), "helm").unwrap();
        assert_eq!((held.message.as_str(), held.retry), ("forbidden", Some(REFUSED_RETRY / 2)));
        sleep(REFUSED_RETRY / 2).await;
        assert!(memory.hold(&addition_of(0), &map("1"), "helm").is_none());
    }
}
