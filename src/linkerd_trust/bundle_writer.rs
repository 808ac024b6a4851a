//! Adds declared trust anchors to the bundle.
//!
//! In: the declared roots, the ConfigMap of the bundle as the state has it. Out: a patch of `data["ca-bundle.crt"]`, or the
//! reason why nothing is written. Always holds: each patch names the version that was read; only the leader writes; a write
//! that failed is repeated after a minute; after each removal of what was added, the operator waits longer before it adds
//! it again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

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

use super::status::HeldAddition;
use crate::{
    api::{FIELD_MANAGER, TRUST_ROOTS, TRUST_ROOTS_KEY, linkerd_trust::TrustReason},
    cluster::kinds::config_map::ConfigMap,
    lease::Fence,
    retry::Overwrites,
    trust::{
        addition::{BundleAddition, addition},
        seen::DeclaredRoots,
    },
    write::WriteError,
    x509::anchor_set::Fingerprint,
};

/// What to do if RBAC refuses the write; a policy may, too.
const PERMIT: &str = ". If the permission is missing, set jobs.linkerdConfig.trustAnchors of the chart, or use the component trust-anchors";
/// The time until a refused write is sent again.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

pub(super) struct BundleWriter {
    fence: Fence,
    config_maps: Api<core::ConfigMap>,
    memory: Mutex<WriterMemory>,
    writes: IntCounterVec,
}

/// What became of the declared roots that the bundle lacks.
pub(super) enum BundleOutcome {
    /// The bundle has all of them, or does not exist.
    NothingToAdd,
    /// Some were added. The note names them, and the writer before.
    Added(String),
    Held(HeldAddition),
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
    refused: Option<RefusedAddition>,
}

/// A write that failed.
struct RefusedAddition {
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
            "Additions of declared trust anchors to the bundle that were sent to the API server, by result",
            &["result"],
            registry
        )?;
        for result in WriteError::RESULTS {
            writes.with_label_values(&[result]);
        }
        let config_maps = Api::namespaced(client.clone(), namespace);
        Ok(Self { fence, config_maps, memory: Mutex::default(), writes })
    }

    /// Adds the declared roots that the bundle lacks. Without its ConfigMap nothing is added: it belongs to Linkerd's
    /// installer.
    ///
    /// # Errors
    /// When the ConfigMap has changed, or this process does not lead.
    pub(super) async fn add_missing(
        &self,
        declared: &DeclaredRoots,
        map: Option<&ConfigMap>,
    ) -> Result<BundleOutcome, WriteError> {
        let Some(map) = map else { return Ok(BundleOutcome::NothingToAdd) };
        let added = addition(map.bundle.as_deref().unwrap_or_default(), declared);
        if added != Ok(None)
            && let Some(source) = &map.trust_manager_source
        {
            let message = format!(
                "trust-manager writes ConfigMap {} from the Bundle {source}, so the operator does not: add the roots to the \
                 sources of the Bundle",
                map.key
            );
            return Ok(held(TrustReason::WrittenByTrustManager, message, None));
        }
        let added = match added {
            Ok(None) => {
                let declared = declared.bundle.roots().iter().map(|root| root.sha256).collect();
                let contest = self.memory.lock().contest(declared, map);
                return Ok(contest.map_or(BundleOutcome::NothingToAdd, BundleOutcome::Held));
            }
            Ok(Some(added)) => added,
            Err(why) => {
                let message = format!("nothing can be added to ConfigMap {}: {why}", map.key);
                return Ok(held(TrustReason::WriteFailed, message, None));
            }
        };
        let writer = map.bundle_writer.as_deref().unwrap_or("an unknown writer");
        if let Some(held) = self.memory.lock().hold(&added, map, writer) {
            return Ok(BundleOutcome::Held(held));
        }
        match self.write(&map.version, &added.text).await {
            Ok(()) => {
                self.memory.lock().note(&added, writer);
                info!(config_map = %map.key, roots = added.names, "added declared trust anchors to the bundle");
                let note = format!("Added {} to ConfigMap {}, which {writer} wrote before", added.names, map.key);
                Ok(BundleOutcome::Added(note))
            }
            Err(error @ WriteError::NotLeading) => Err(error),
            Err(WriteError::Refused(status)) if status.is_conflict() || status.is_not_found() => {
                Err(WriteError::Refused(status))
            }
            // A permission, a policy or a webhook, an immutable ConfigMap; or no answer.
            Err(error) => {
                let remedy = if is_forbidden(&error) { PERMIT } else { "" };
                let message = format!("{} could not be added to ConfigMap {}: {error}{remedy}", added.names, map.key);
                warn!(config_map = %map.key, %error, "could not add declared trust anchors to the bundle");
                let (uid, at) = (Arc::clone(&map.uid), Instant::now());
                self.memory.lock().refused =
                    Some(RefusedAddition { uid, text: added.text, message: message.clone(), at });
                Ok(held(TrustReason::WriteFailed, message, Some(REFUSED_RETRY)))
            }
        }
    }

    async fn write(&self, version: &str, text: &str) -> Result<(), WriteError> {
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

fn held(reason: TrustReason, message: String, retry: Option<Duration>) -> BundleOutcome {
    BundleOutcome::Held(HeldAddition { reason, message, retry })
}

// === impl WriterMemory ===

impl WriterMemory {
    /// Returns why this addition must wait.
    fn hold(&mut self, added: &BundleAddition, map: &ConfigMap, writer: &str) -> Option<HeldAddition> {
        let same = self.refused.as_ref().filter(|it| it.uid == map.uid && it.text == added.text);
        if let Some(RefusedAddition { message, at, .. }) = same
            && let Some(left) = REFUSED_RETRY.checked_sub(at.elapsed()).filter(|left| !left.is_zero())
        {
            let message = message.clone();
            return Some(HeldAddition { reason: TrustReason::WriteFailed, message, retry: Some(left) });
        }
        if !added.roots.is_subset(&self.had) {
            return None;
        }
        let pause = self.overwrites.backoff()?;
        writer.clone_into(&mut self.contestant);
        Some(self.contested(map, pause))
    }

    fn note(&mut self, added: &BundleAddition, writer: &str) {
        if !self.had.is_disjoint(&added.roots) {
            self.overwrites.note();
            writer.clone_into(&mut self.contestant);
        }
        self.had.extend(&added.roots);
        self.refused = None;
    }

    /// Returns the contest about a bundle that has all declared roots at present.
    fn contest(&mut self, declared: BTreeSet<Fingerprint>, map: &ConfigMap) -> Option<HeldAddition> {
        if self.had.is_disjoint(&declared) {
            // What was contested is not declared any more.
            self.overwrites = Overwrites::default();
        }
        (self.had, self.refused) = (declared, None);
        let left = self.overwrites.contested_for()?;
        Some(self.contested(map, left))
    }

    fn contested(&self, map: &ConfigMap, retry: Duration) -> HeldAddition {
        let message = format!(
            "{} keeps removing declared roots from ConfigMap {}, and the operator waits longer each time before it adds \
             them again: add the roots to the configuration of that writer",
            self.contestant, map.key
        );
        HeldAddition { reason: TrustReason::Contested, message, retry: Some(retry) }
    }
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

    fn addition_of(root: u8) -> BundleAddition {
        BundleAddition { text: root.to_string(), names: root.to_string(), roots: [[root; 32]].into() }
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
        let with_another = BundleAddition { roots: [[0; 32], [30; 32]].into(), ..addition_of(0) };
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
    async fn a_write_that_failed_is_sent_again_after_a_minute_or_a_change() {
        let refused = || RefusedAddition {
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
