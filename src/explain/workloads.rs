//! The state of each meshed workload, and the decision of the rollout engine about it. Pure.
//!
//! In: the objects that were read, the plan for the ConfigMap. Out: a row for each workload with meshed Pods, and the
//! totals. Always holds: the functions of the engine decide, from the status of a resource that is in effect. For any
//! other resource, the output shows the decisions of the engine once injectors use the planned document.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use strum::VariantArray;

use super::{ExplainInput, canary};
use crate::{
    api::{
        INJECTORS_CONFIG_MAP,
        linkerd_config::{
            CanaryPhase, CanaryStatus, ConditionReason, ConditionType, LinkerdConfigStatus, RolloutMethod, RolloutPods,
            RolloutStatus, RolloutTrigger, RolloutWorkloads,
        },
    },
    cluster::{State, index::workload_key::WorkloadKey, kinds::pod::Pod},
    linkerd_config::{
        active_canary, baseline,
        plan::ConfigPlan,
        rollout_target::{RolloutContext, rollout_target},
    },
    rollout::{
        assess::{
            annotations::RolloutState,
            coverage::{CoverageGap, InjectionContext, gaps},
            outdated::{PodClass, classify},
            workload_state::{Assessment, Health, InProgress, SkipReason, WorkloadState},
        },
        assess_workload,
        schedule::RolloutSchedule,
        target::RolloutTarget,
        trust::TrustBundle,
    },
    summary::at_least,
    text::{counted, sha256},
    values::Reading,
};

/// The decisions about workloads, in the order of how much attention they need.
pub const DECISIONS: [&str; 7] = ["Failed", "Updating", "Pending", "Skipped", "NotSelected", "Observed", "UpToDate"];

/// The part of the output that `--workloads` adds.
#[derive(Debug, Serialize)]
pub struct WorkloadsOutput {
    pub rollout: RolloutOutput,
    pub workloads: Vec<WorkloadRow>,
}

/// The rollout as a whole.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutOutput {
    /// The configuration that workloads are restarted for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The reason of the condition RolloutComplete; absent if the rollout has not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub message: String,
    pub workloads: RolloutWorkloads,
    pub pods: RolloutPods,
    /// The time that the remaining restarts take at least with the limits of spec.rollout; absent if none remains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least_seconds: Option<u64>,
}

/// One workload of the mesh.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRow {
    pub namespace: String,
    pub kind: String,
    pub name: String,
    pub pods: RolloutPods,
    #[serde(flatten)]
    pub decision: Decision,
    /// The Pods that have no proxy, wait for their network, or have a proxy of another shape.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncovered: Vec<UncoveredPod>,
}

/// A Pod whose proxy is missing or does not have the configured shape, or that waits for its network.
#[derive(Debug, PartialEq, Serialize)]
pub struct UncoveredPod {
    pub pod: String,
    pub reason: &'static str,
    pub message: String,
}

/// The decision of the rollout engine about a workload.
#[derive(Debug, PartialEq, Serialize)]
pub struct Decision {
    pub decision: &'static str,
    /// Set if the decision has several reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub message: String,
}

/// Explains workloads one by one, so that the lock of a shared state is not held for all of them.
pub struct RolloutExplainer {
    rollout: RolloutOutput,
    /// `None` if no workload is restarted for the resource.
    target: Option<RolloutTarget>,
    schedule: RolloutSchedule,
    rows: Vec<WorkloadRow>,
}

// === impl RolloutExplainer ===

impl RolloutExplainer {
    pub(super) fn new(
        input: &ExplainInput,
        operator_namespace: &Arc<str>,
        document: Option<&Reading>,
        plan: &ConfigPlan,
    ) -> Self {
        let config = &input.config;
        let is_reported = input.applied
            && input.is_in_effect()
            && config.status.observed_generation == Some(config.generation)
            && config.status.rollout.is_some();
        let status = match is_reported {
            true => Arc::clone(&config.status),
            false => Arc::new(status_once_in_effect(input, document, plan)),
        };
        let trust = input.trust.as_deref();
        let context = RolloutContext {
            term: 0,
            operator_namespace: Arc::clone(operator_namespace),
            // The engine also compares the age of the control plane itself; the result is in its condition.
            trust_bundle: input.bundle.as_deref().map(|bundle| TrustBundle::new(bundle, trust, None)),
            canary: active_canary(config, &status, plan.canary.as_ref()),
        };
        let target = rollout_target(config, &status, &context);
        let known = |message: String, reason: Option<&str>| RolloutOutput {
            hash: target.proxies.injection_hash.is_some().then(|| target.key.to_string()),
            reason: reason.map(str::to_owned),
            message,
            ..RolloutOutput::default()
        };
        let closed = target.gates.disabled();
        let complete = status.condition(ConditionType::RolloutComplete);
        let mut restarts = *config.target.name == *INJECTORS_CONFIG_MAP;
        let rollout = match (complete, closed) {
            (Some(complete), _) => known(complete.message.clone(), Some(&complete.reason)),
            (None, Some(closed)) => known(closed.message.clone(), Some(closed.reason.as_str())),
            (None, None) if !is_reported && plan.injection_hash.is_none() => {
                restarts = false;
                known("the target configuration of Pods is unknown, because nothing would be written".to_owned(), None)
            }
            (None, None) if target.rollout.paused => {
                known("spec.rollout.paused is true".to_owned(), Some(ConditionReason::Paused.as_str()))
            }
            (None, None) => {
                known("would begin once the resource is in effect and the injectors use it".to_owned(), None)
            }
        };
        Self { rollout, target: restarts.then_some(target), schedule: RolloutSchedule::default(), rows: Vec::new() }
    }

    /// Adds a workload, unless it has nothing to do with the mesh.
    pub fn add(&mut self, state: &State, workload: &WorkloadKey) {
        let Some(target) = &self.target else { return };
        let Some(assessment) = assess_workload(state, workload, target) else { return };
        if assessment.state == WorkloadState::Unmeshed && assessment.pods == RolloutPods::default() {
            return;
        }
        let namespace = state.namespaces.find("", &workload.namespace);
        let scoped = namespace.map_or(target, |namespace| target.of_namespace(namespace));
        let classified = classified(state, workload, scoped);
        let decision = Decision::new(&assessment, &causes(&classified, scoped), scoped);
        let uncovered = uncovered(state, workload, &classified, scoped);
        let [namespace, kind, name] = [&workload.namespace, &workload.kind, &workload.name].map(ToString::to_string);
        self.rows.push(WorkloadRow { namespace, kind, name, pods: assessment.pods, decision, uncovered });
        self.schedule.set(workload, Some(assessment), Timestamp::UNIX_EPOCH);
    }

    /// Returns the output for all added workloads.
    pub fn finish(self) -> WorkloadsOutput {
        let totals = &self.schedule.totals;
        let RolloutWorkloads { selected, pending, updating, .. } = totals.workloads;
        let [selected, remaining] =
            [selected, pending + updating].map(|count| usize::try_from(count).unwrap_or_default());
        let at_least = self.target.as_ref().and_then(|target| at_least(&target.rollout, remaining, selected));
        let rollout = RolloutOutput {
            workloads: totals.workloads,
            pods: totals.pods,
            at_least_seconds: at_least.map(|time| time.as_secs()),
            ..self.rollout
        };
        WorkloadsOutput { rollout, workloads: self.rows }
    }
}

/// Returns the status that the resource would have, with the fields that decide about workloads.
fn status_once_in_effect(input: &ExplainInput, document: Option<&Reading>, plan: &ConfigPlan) -> LinkerdConfigStatus {
    let known = &input.config.status;
    let rollout = known.rollout.clone().unwrap_or_default();
    let base = input.base.as_ref().ok().and_then(Option::as_ref);
    let canary = plan.canary.as_ref().map(|document| {
        let begun =
            || CanaryStatus { phase: CanaryPhase::Progressing, hash: document.hash.clone(), ..CanaryStatus::default() };
        canary::known(&input.config, &document.hash).unwrap_or_else(begun)
    });
    LinkerdConfigStatus {
        canary,
        injection_hash: plan.injection_hash.clone(),
        trust_roots_sha256: input.bundle.as_deref().map(sha256),
        proxy_version: plan.proxy_version.clone(),
        proxy_shape: plan.proxy_shape,
        drift: known.drift.clone(),
        rollout: Some(RolloutStatus {
            adopted_at: rollout.adopted_at,
            baseline_hash: rollout.baseline_hash.or_else(|| baseline(document, base)),
            installed_hash: plan.installed_hash.clone(),
            ..RolloutStatus::default()
        }),
        ..LinkerdConfigStatus::default()
    }
}

/// Returns all workloads that have Pods or create them.
pub(super) fn all(state: &State) -> BTreeSet<WorkloadKey> {
    let resources = state.apps_workloads().map(|resource| resource.workload.clone());
    resources.chain(state.pods.iter().map(|pod| state.workload_of(pod))).collect()
}

/// Returns the Pods of the workload that are part of the mesh or should be, in the order of their names.
fn classified(state: &State, workload: &WorkloadKey, target: &RolloutTarget) -> Vec<(Arc<Pod>, PodClass)> {
    let context = context(state, workload);
    let classified = state.pods_of(workload).filter_map(|pod| Some((Arc::clone(pod), classify(pod, context, target)?)));
    let mut classified: Vec<_> = classified.collect();
    classified.sort_by(|(one, _), (other, _)| one.key.cmp(&other.key));
    classified
}

fn context<'a>(state: &'a State, workload: &WorkloadKey) -> InjectionContext<'a> {
    InjectionContext {
        namespace: state.namespaces.find("", &workload.namespace).map(|namespace| &**namespace),
        template: state.apps_workload(workload).map(|resource| &resource.template),
    }
}

/// Returns the triggers for which Pods of the workload are out of date, with the number of those Pods.
fn causes(classified: &[(Arc<Pod>, PodClass)], target: &RolloutTarget) -> Vec<(RolloutTrigger, usize)> {
    let counts =
        RolloutTrigger::VARIANTS.iter().copied().filter(|trigger| target.is_trigger(*trigger)).map(|trigger| {
            let has = |(_, class): &&(Arc<Pod>, PodClass)| match (class, trigger) {
                (PodClass::Outdated(causes), RolloutTrigger::ProxyConfig) => causes.configuration,
                (PodClass::Outdated(causes), RolloutTrigger::ProxyVersion) => causes.version,
                (PodClass::Outdated(causes), RolloutTrigger::TrustRoots) => causes.trust_roots,
                (PodClass::Outdated(causes), RolloutTrigger::ProxyShape) => causes.shape,
                (PodClass::Uninjected, RolloutTrigger::Uninjected) => true,
                _ => false,
            };
            (trigger, classified.iter().filter(has).count())
        });
    counts.filter(|(_, count)| *count > 0).collect()
}

fn uncovered(
    state: &State,
    workload: &WorkloadKey,
    classified: &[(Arc<Pod>, PodClass)],
    target: &RolloutTarget,
) -> Vec<UncoveredPod> {
    let context = context(state, workload);
    let row = |pod: &Pod, gap: CoverageGap| UncoveredPod {
        pod: pod.key.name.to_string(),
        reason: gap.as_str(),
        message: match gap.trigger().filter(|trigger| !target.is_trigger(*trigger)) {
            Some(trigger) => format!("{}; spec.rollout.triggers does not include {}", gap.why(), trigger.as_str()),
            None => gap.why().to_owned(),
        },
    };
    let rows = classified.iter().flat_map(|(pod, class)| {
        let is_meshed = !matches!(class, PodClass::Uninjected | PodClass::Completed);
        gaps(pod, is_meshed, context, target).map(move |gap| row(pod, gap))
    });
    rows.collect()
}

// === impl Decision ===

impl Decision {
    fn new(assessment: &Assessment, causes: &[(RolloutTrigger, usize)], target: &RolloutTarget) -> Self {
        let pods = &assessment.pods;
        let decided =
            |decision, reason: Option<&str>, message| Self { decision, reason: reason.map(str::to_owned), message };
        let skipped = |skip: &SkipReason| decided("Skipped", Some(skip.as_str()), skip.why().to_owned());
        match &assessment.state {
            WorkloadState::Unmeshed => decided("Nothing", None, remarks(pods)),
            WorkloadState::UpToDate => decided("UpToDate", None, remarks(pods)),
            WorkloadState::Observed => {
                let message = "its label config.linkerd.io/reconcile is observe: it is reported, but not restarted";
                decided("Observed", None, message.to_owned())
            }
            WorkloadState::Unselected(reason) => {
                decided("NotSelected", Some(reason.as_str()), reason.why().into_owned())
            }
            WorkloadState::Unsupported(skip) | WorkloadState::Skipped(skip) => skipped(skip),
            WorkloadState::Failed(failure) => decided("Failed", Some(&failure.reason), failure.message.clone()),
            WorkloadState::InProgress(in_progress) => decided("Updating", None, progress(in_progress, target)),
            WorkloadState::Pending(start) => {
                let how = match start.method {
                    RolloutMethod::Restart => "to be restarted for",
                    RolloutMethod::Evict => "its Pods are to be evicted for",
                };
                let message = format!("{how} {}: {}", start.value, because(causes, assessment));
                decided("Pending", None, message)
            }
        }
    }
}

fn because(causes: &[(RolloutTrigger, usize)], assessment: &Assessment) -> String {
    let cause = |(trigger, count): &(RolloutTrigger, usize)| {
        let what = match trigger {
            RolloutTrigger::ProxyConfig => "with another configuration",
            RolloutTrigger::ProxyVersion => "with another version of the proxy",
            RolloutTrigger::TrustRoots => "with other trust anchors",
            RolloutTrigger::Uninjected => "without a proxy",
            RolloutTrigger::ProxyShape => "with a proxy of another shape",
        };
        format!("{} {what}", counted(*count, "Pod"))
    };
    let is_named = causes.iter().any(|(trigger, _)| *trigger == RolloutTrigger::Uninjected);
    let uninjected = if is_named { 0 } else { assessment.pods.uninjected };
    let more = listed(&[(assessment.suspects, "created during drift"), (uninjected, "without a proxy")]);
    causes.iter().map(cause).chain(more).collect::<Vec<_>>().join(", ")
}

/// Returns the counts of Pods that are not zero.
fn listed(counts: &[(i64, &str)]) -> Vec<String> {
    let some = counts.iter().filter(|(count, _)| *count > 0);
    some.map(|(count, what)| format!("{} {what}", counted(usize::try_from(*count).unwrap_or_default(), "Pod")))
        .collect()
}

/// Returns what the rollout of a workload waits for.
fn progress(in_progress: &InProgress, target: &RolloutTarget) -> String {
    let missing = match &in_progress.health {
        Health::Progressing(missing) | Health::WaitingForNodes(missing) => missing.clone(),
        Health::Healthy => format!("its Pods run with it, and must stay ready for {}", target.rollout.soak),
        Health::Evicting => "its Pods are evicted one by one".to_owned(),
        Health::StillOutdated => "its new Pods are out of date".to_owned(),
        Health::Reverted => "another client reverted the restart".to_owned(),
        Health::Uninjected(pod) | Health::SeemsUninjected(pod) => format!("Pod {pod} started without a proxy"),
        Health::StillUncovered => "its new Pods have no proxy, or one of another shape".to_owned(),
        Health::ToBeReverted => "its Pod template will be rolled back".to_owned(),
    };
    match in_progress.state {
        RolloutState::Retrying => format!("second attempt: {missing}"),
        RolloutState::RolledBack => format!("its Pod template was rolled back: {missing}"),
        RolloutState::Updating | RolloutState::Updated | RolloutState::Failed | RolloutState::Reverted => missing,
    }
}

/// Returns remarks about Pods that are not restarted.
fn remarks(pods: &RolloutPods) -> String {
    let RolloutPods { meshed, current, outdated, pinned, unknown, uninjected, completed, .. } = *pods;
    let RolloutPods { waiting_for_network, other_shape, .. } = *pods;
    if meshed > 0 && current == meshed && uninjected + waiting_for_network + other_shape == 0 {
        return "its Pods run with the configuration".to_owned();
    }
    let remarks = [
        (outdated, "out of date only for a trigger that is not enabled"),
        (pinned, "with a pinned proxy version"),
        (unknown, "with an unknown configuration"),
        (uninjected, "without a proxy"),
        (waiting_for_network, "waiting for the network"),
        (other_shape, "with a proxy of another shape"),
        (completed, "completed"),
    ];
    listed(&remarks).join(", ")
}

#[cfg(test)]
#[path = "workloads_tests.rs"]
mod tests;
