//! The canary: a declared document that some namespaces get before all others.
//!
//! ```text
//!   plan: declared document ≠ document in force ─▶ facts: ConfigMap of the canary, injectors, namespaces, workloads
//!       ▲                                               │
//!       └── Promote ◀── decide (pure) ◀─────────────────┘ ──▶ status.canary, ConfigMap linkerd-config-canary
//! ```
//!
//! In: a plan that holds the declared document back. Out: the ConfigMap that the operator's injector reads for the
//! canary namespaces, and `status.canary`. Always holds: `linkerd-config` has the document from before until the canary
//! is promoted; a ConfigMap of another writer is neither changed nor deleted; a plan that failed or was not made
//! changes nothing; a resource that is not active, does not enforce or is being deleted takes its own canary back.

pub(super) mod decision;
pub(super) mod document;
pub(super) mod problems;
mod write;

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tracing::info;

pub(super) use self::decision::{CanaryAction, CanaryDecision};
use self::{
    decision::{CanaryFacts, CanaryWorkloads, decide, without_held_document},
    document::{CanaryContent, CanaryDocument},
    problems::namespaces_of,
};
use super::{
    LinkerdConfigReconciler, dereference::ReconcileInput, plan::ConfigPlan, status::attempt::is_current,
    verdict::PlanVerdict,
};
use crate::{
    api::{
        CANARY_CONFIG_MAP, INJECT_ANNOTATION, KUBE_SYSTEM, LinkerdConfigStatus,
        linkerd_config::{
            CanaryPhase, CanarySpec, CanaryStatus, ConditionReason, ConditionType, Mode,
            annotations::{CANARY_OWNER_ANNOTATION, PROMOTE_ANNOTATION},
        },
    },
    cluster::{
        State,
        kinds::{config_map::ConfigMap, inject::Inject, linkerd_config::LinkerdConfig, namespace::Namespace},
    },
    injection_probe::CanaryProbe,
    rollout::{assess::selection::LabelFilter, progress::RolloutProgress, target::ActiveCanary},
    write::WriteError,
};

const NO_NAMESPACE: &str = "no namespace has the labels of spec.canary.namespaceSelector";
/// The maximum number of canary namespaces for which a replica is probed; more than one, because an annotation of a
/// namespace can make its injection fail.
const MAX_PROBED: usize = 3;

/// Returns the configuration of the canary namespaces while they have one of their own.
pub(crate) fn active_canary(
    config: &LinkerdConfig,
    status: &LinkerdConfigStatus,
    document: Option<&CanaryDocument>,
) -> Option<ActiveCanary> {
    let spec = config.spec.canary.as_ref().filter(|_| config.spec.mode == Mode::Enforce)?;
    let canary = status.canary.as_ref().filter(|canary| canary.phase.is_active())?;
    let document = document.filter(|document| document.hash == canary.hash);
    Some(ActiveCanary {
        namespaces: namespaces_of(spec),
        injection_hash: canary.hash.as_str().into(),
        proxy_version: document.and_then(|document| document.proxy_version.as_deref()).map(Arc::from),
        shape: document.and_then(|document| document.proxy_shape),
    })
}

/// Whether the verdict determines the document that all namespaces have. With any other verdict, that document is
/// unknown or not written.
pub(super) fn decides(verdict: &PlanVerdict) -> bool {
    matches!(verdict, PlanVerdict::Synced | PlanVerdict::Drifted | PlanVerdict::Restored | PlanVerdict::Canary)
}

/// Returns the next `status.canary`.
pub(super) fn next_canary(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    plan: &ConfigPlan,
    decision: Option<&CanaryDecision>,
    now: Timestamp,
) -> Option<CanaryStatus> {
    match decision {
        _ if !config.enforces() => kept_canary(config, before).filter(|canary| canary.phase == CanaryPhase::Failed),
        Some(decision) => Some(decision.status.clone()),
        None if decides(&plan.verdict) => {
            let known = before.canary.as_ref().filter(|_| config.spec.canary.is_some());
            without_held_document(known, plan.injection_hash.as_deref(), now)
        }
        None => kept_canary(config, before),
    }
}

/// Returns `status.canary` after a reconcile that decided nothing about the canary. A failed canary that must be
/// retried is left out: the next status would otherwise say that the retry failed.
pub(crate) fn kept_canary(config: &LinkerdConfig, before: &LinkerdConfigStatus) -> Option<CanaryStatus> {
    before.canary.clone().filter(|canary| canary.phase != CanaryPhase::Failed || is_current(config, before))
}

/// Whether the timeout of the injectors has passed for this document. The condition InjectorSynced may show a timeout
/// from before the canary.
fn is_late(before: &LinkerdConfigStatus, hash: &str, timeout: Duration, now: Timestamp) -> bool {
    let canary = before.canary.as_ref().filter(|canary| canary.hash == hash && canary.phase.is_active());
    let since = canary.and_then(|canary| canary.since.as_ref());
    let waited = since.and_then(|since| Duration::try_from(now.duration_since(since.0)).ok());
    waited.is_some_and(|waited| waited >= timeout)
        && before.reason(ConditionType::InjectorSynced) == Some(ConditionReason::Timeout)
}

/// Returns the first failure among the workloads of these namespaces, as a text for people.
fn first_failure(progress: &RolloutProgress, namespaces: &[Arc<str>]) -> Option<String> {
    let is_canary = |namespace: &str| namespaces.iter().any(|it| **it == *namespace);
    let failure = progress.failures.iter().find(|failure| is_canary(&failure.namespace))?;
    let (kind, namespace, name) = (&failure.kind, &failure.namespace, &failure.name);
    Some(format!("{kind} {namespace}/{name}: {}: {}", failure.reason, failure.message))
}

/// Returns the canary namespaces, sorted by name.
fn canary_namespaces(state: &State, filter: &LabelFilter, control_plane: &str) -> Vec<Arc<Namespace>> {
    let is_included = |name: &str| name != control_plane && name != KUBE_SYSTEM;
    let found = state.namespaces.iter().filter(|it| {
        is_included(&it.name) && !it.deleting && !it.admission_webhooks_disabled && filter.selects(&it.labels)
    });
    let mut namespaces: Vec<_> = found.map(Arc::clone).collect();
    namespaces.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    namespaces
}

fn names(namespaces: &[Arc<Namespace>]) -> Vec<Arc<str>> {
    namespaces.iter().map(|namespace| Arc::clone(&namespace.name)).collect()
}

/// Returns the canary namespaces for which the injectors are probed, in this order. An annotation of a namespace can
/// make the injection into its Pods fail, which says nothing about the configuration: those with the fewest annotations
/// come first, and those whose Pods never get a proxy are left out.
///
/// # Errors
/// The reason why no namespace is suitable.
fn probed_namespaces(namespaces: &[Arc<Namespace>]) -> Result<Vec<Arc<str>>, String> {
    let Some(first) = namespaces.first() else { return Err(NO_NAMESPACE.to_owned()) };
    let mut probed: Vec<_> = namespaces.iter().filter(|namespace| namespace.inject != Inject::Invalid).collect();
    if probed.is_empty() {
        return Err(format!(
            "no Pod of the canary namespaces gets a proxy: the annotation {INJECT_ANNOTATION} of namespace {} has an \
             invalid value; set it to enabled, ingress or disabled",
            first.name
        ));
    }
    probed.sort_by_key(|namespace| namespace.inherited_annotations.len());
    Ok(probed.into_iter().take(MAX_PROBED).map(|namespace| Arc::clone(&namespace.name)).collect())
}

// === impl LinkerdConfigReconciler ===

impl LinkerdConfigReconciler {
    /// Decides about the document that a plan holds back.
    pub(super) fn decide_canary(
        &self,
        input: &ReconcileInput,
        document: &CanaryDocument,
        now: Timestamp,
    ) -> Option<CanaryDecision> {
        let ReconcileInput { config, before, canary_map, .. } = input;
        let spec = config.spec.canary.as_ref()?;
        let content = content(config, spec, document);
        let cluster = &self.gate.cluster;
        let control_plane = &config.target.namespace;
        let found = canary_namespaces(&cluster.read(), &namespaces_of(spec), control_plane);
        let namespaces = names(&found);
        let is_late = is_late(before, &document.hash, config.spec.injector_sync.timeout(), now);
        let progress = self.rollouts.canary_progress(config, self.gate.term(), &document.hash);
        let workloads = progress.map(|progress| CanaryWorkloads {
            totals: progress.canary,
            failure: first_failure(&progress, &namespaces),
        });
        Some(decide(&CanaryFacts {
            spec,
            rollout: &config.spec.rollout,
            hash: &document.hash,
            known: before.canary.as_ref(),
            is_retried: !is_current(config, before),
            written: content.compare(canary_map.as_deref()),
            injectors: self.injectors.kind(cluster, control_plane),
            namespaces: &namespaces,
            probed: probed_namespaces(&found),
            adoption: self.injectors.canary_adoption(cluster, control_plane, &document.hash, is_late),
            workloads,
            promote: config.annotations.get(PROMOTE_ANNOTATION).map(|hash| &**hash),
            now,
        }))
    }

    /// Writes or deletes the ConfigMap of the canary, after `linkerd-config` was written.
    pub(super) async fn apply_canary(
        &self,
        input: &ReconcileInput,
        plan: &ConfigPlan,
        decision: Option<&CanaryDecision>,
    ) -> Result<(), WriteError> {
        let ReconcileInput { config, canary_map, .. } = input;
        if config.spec.mode != Mode::Enforce {
            return Ok(());
        }
        match (decision.map(|decision| decision.action), &plan.canary, &config.spec.canary) {
            (Some(CanaryAction::Hold), ..) => Ok(()),
            (Some(CanaryAction::Write), Some(document), Some(spec)) => {
                let content = content(config, spec, document);
                self.writer.write_canary(canary_map.as_deref(), &content).await?;
                info!(
                    config_map = CANARY_CONFIG_MAP,
                    hash = document.hash,
                    "wrote the configuration of the canary namespaces"
                );
                Ok(())
            }
            (None, ..) if !decides(&plan.verdict) => Ok(()),
            _ => self.delete_canary(canary_map.as_deref()).await,
        }
    }

    /// Deletes the ConfigMap of the canary if it belongs to this resource.
    pub(super) async fn take_back_canary(
        &self,
        config: &LinkerdConfig,
        found: Option<&ConfigMap>,
    ) -> Result<(), WriteError> {
        let is_own =
            |found: &&ConfigMap| found.annotations.get(CANARY_OWNER_ANNOTATION).is_some_and(|it| **it == *config.uid);
        self.delete_canary(found.filter(is_own)).await
    }

    /// Deletes the ConfigMap of the canary, unless another writer created it.
    pub(super) async fn delete_canary(&self, found: Option<&ConfigMap>) -> Result<(), WriteError> {
        let Some(found) = found.filter(|found| found.is_operators()) else { return Ok(()) };
        self.writer.delete_canary(found).await?;
        info!(config_map = CANARY_CONFIG_MAP, "deleted the configuration of the canary namespaces");
        Ok(())
    }

    /// Returns what the injectors must inject into Pods of a canary namespace; `None` while there is no canary.
    pub(super) fn canary_probe(&self, config: &LinkerdConfig, canary: Option<&CanaryStatus>) -> Option<CanaryProbe> {
        let canary = canary.filter(|canary| canary.phase.is_active())?;
        let filter = namespaces_of(config.spec.canary.as_ref()?);
        let found = canary_namespaces(&self.gate.cluster.read(), &filter, &config.target.namespace);
        let namespaces = probed_namespaces(&found).ok()?;
        Some(CanaryProbe { namespaces, injection_hash: canary.hash.clone() })
    }
}

fn content(config: &LinkerdConfig, spec: &CanarySpec, document: &CanaryDocument) -> CanaryContent {
    CanaryContent::new(document, &spec.namespace_selector, (Arc::clone(&config.name), Arc::clone(&config.uid)))
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
