//! Assesses one workload. Pure.
//!
//! In: a workload, its Pods, its namespace, the [`RolloutTarget`]. Out: an [`Assessment`]. Always holds: the previous
//! steps are read from the annotations of the workload, so every replica comes to the same result; a workload is not
//! restarted if all its Pods run with the target.

pub mod annotations;
mod completeness;
pub mod coverage;
mod failure;
mod injection;
pub mod outdated;
mod pod_counts;
pub mod selection;
pub mod workload_state;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use self::{
    annotations::{RolloutAnnotations, RolloutState},
    completeness::{incomplete, is_complete, marks, missing, only_misscheduled, shows_all_pods},
    coverage::InjectionContext,
    failure::{failure_weight, new_uninjected, recorded_failure},
    injection::breaking_annotation,
    pod_counts::PodCounts,
    selection::{Selection, SelectionCandidate, selection},
    workload_state::{Assessment, Health, InProgress, SkipReason, Start, WorkloadState},
};
use super::target::RolloutTarget;
use strum::VariantArray;

use crate::{
    api::linkerd_config::RolloutMethod,
    cluster::{
        index::workload_key::WorkloadKey,
        kinds::{
            apps_workload::{AppsWorkload, UpdateStrategy, WorkloadKind},
            inject::Inject,
            namespace::Namespace,
            pod::Pod,
        },
    },
};

/// After this number of attempts for one key, a workload is not restarted again: another component creates or changes
/// its Pods.
const ATTEMPTS: u32 = 5;
/// Annotation of a workload: `restart` or `evict`; overrides `spec.rollout.method`.
const METHOD_ANNOTATION: &str = "config.linkerd.io/rollout-method";

/// The inputs of an assessment.
pub struct WorkloadFacts<'a> {
    pub workload: &'a WorkloadKey,
    /// `None` unless the workload is an existing Deployment, StatefulSet or DaemonSet.
    pub resource: Option<&'a AppsWorkload>,
    pub namespace: Option<&'a Namespace>,
    pub pods: &'a [Arc<Pod>],
    /// Whether a PodDisruptionBudget for its Pods allows no disruption.
    pub is_blocked: bool,
}

pub fn assess(facts: &WorkloadFacts<'_>, target: &RolloutTarget) -> Assessment {
    let template = facts.resource.map(|resource| &resource.template);
    let context = InjectionContext { namespace: facts.namespace, template };
    let pod_counts = PodCounts::of(facts.pods, context, target);
    let state = match facts.namespace {
        Some(namespace) => state(facts, namespace, &pod_counts, target),
        // The watch has not delivered the namespace yet.
        None => WorkloadState::Unmeshed,
    };
    // Nothing waits for a workload that is being deleted, so it takes no place.
    let takes_a_place = state.is_selected() && state != WorkloadState::Skipped(SkipReason::Deleting);
    let rolling = facts.resource.filter(|_| takes_a_place).and_then(rolling);
    let PodCounts { counts: pods, suspects, trust, .. } = pod_counts;
    let pace = facts.resource.map(|resource| resource.pace).unwrap_or_default();
    Assessment { pods, suspects, trust, state, rolling, is_canary: false, pace }
}

fn rolling(resource: &AppsWorkload) -> Option<Timestamp> {
    let annotated = RolloutAnnotations::of(resource);
    annotated.started.filter(|_| annotated.is_moving() && !is_complete(resource))
}

fn state(
    facts: &WorkloadFacts<'_>,
    namespace: &Namespace,
    pod_counts: &PodCounts<'_>,
    target: &RolloutTarget,
) -> WorkloadState {
    let WorkloadFacts { workload, resource, pods, .. } = *facts;
    let candidate = |labels, template, is_of_kind| SelectionCandidate {
        labels,
        template,
        is_of_kind,
        namespace,
        control_plane: &target.config.config_map.namespace,
    };
    let is_meshed = pod_counts.counts.meshed > 0;
    let candidate = match (resource, pods.first()) {
        (Some(resource), _) => {
            let is_of_kind = target.rollout().kinds.iter().any(|kind| kind.as_str() == resource.kind.as_str());
            candidate(&resource.labels, resource.template.reconcile.as_deref(), is_of_kind)
        }
        (None, Some(pod)) => candidate(&pod.labels, None, true),
        (None, None) => return WorkloadState::Unmeshed,
    };
    match (selection(&candidate, &target.selection), resource) {
        (_, None) if !is_meshed || WorkloadKind::VARIANTS.iter().any(|kind| kind.as_str() == &*workload.kind) => {
            WorkloadState::Unmeshed
        }
        (Selection::Not(reason), _) if is_meshed => WorkloadState::Unselected(reason),
        (Selection::Observed, _) if is_meshed => WorkloadState::Observed,
        (Selection::Not(_) | Selection::Observed, _) => WorkloadState::Unmeshed,
        (Selection::Selected, Some(resource)) => selected_state(facts, resource, namespace, pod_counts, target),
        (Selection::Selected, None) if pod_counts.outdated.is_empty() => WorkloadState::Unmeshed,
        (Selection::Selected, None) => WorkloadState::Unsupported(match &*workload.kind {
            "Pod" => SkipReason::NoController,
            "Node" => SkipReason::StaticPod,
            "Job" | "CronJob" => SkipReason::Job,
            _ => SkipReason::UnknownOwner,
        }),
    }
}

fn selected_state(
    facts: &WorkloadFacts<'_>,
    resource: &AppsWorkload,
    namespace: &Namespace,
    pod_counts: &PodCounts<'_>,
    target: &RolloutTarget,
) -> WorkloadState {
    let annotated = RolloutAnnotations::of(resource);
    let attempt = target.key.attempt(annotated.hash);
    let outdated = reachable(resource, pod_counts);
    // Its controller does not complete a restart any more, and the absence of its Pods says nothing about the configuration.
    if resource.deleting || namespace.deleting {
        return match (pod_counts.counts.meshed > 0, pod_counts.outdated.is_empty()) {
            (_, false) => WorkloadState::Skipped(SkipReason::Deleting),
            (true, true) => WorkloadState::UpToDate,
            (false, true) => WorkloadState::Unmeshed,
        };
    }
    let is_complete = is_complete(resource);
    let is_in_template = resource.template.restarted_for.as_deref() == Some(annotated.hash);
    let adopted = target.proxies.baseline.as_ref().and_then(|baseline| baseline.adopted);
    let weight = failure_weight(resource, &annotated, pod_counts, adopted);
    let in_progress = |attempt: u32, health| InProgress {
        state: annotated.state.unwrap_or(RolloutState::Updating),
        since: annotated.started,
        health,
        evict: None,
        retry: target.key.value(attempt.saturating_add(1)),
        weight,
        marks: marks(resource, pod_counts),
        newest_pod: pod_counts.newest,
        controlled: resource.controlled,
    };
    if target.rolled_back.as_ref().is_some_and(|key| key.begins(annotated.hash)) && annotated.is_restart() {
        match annotated.state {
            Some(RolloutState::Updating | RolloutState::Retrying | RolloutState::Failed) if is_in_template => {
                return WorkloadState::InProgress(in_progress(0, Health::ToBeReverted));
            }
            Some(RolloutState::RolledBack) if !is_complete => {
                // The StatefulSet controller waits without limit for a Pod that does not become ready:
                // https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
                let stuck = outdated.last().filter(|_| resource.kind == WorkloadKind::StatefulSet);
                let evict = stuck.map(|pod| Arc::clone(&pod.key.name));
                return WorkloadState::InProgress(InProgress {
                    evict,
                    ..in_progress(0, Health::Progressing(missing(resource)))
                });
            }
            _ => {}
        }
    }
    if annotated.is_moving() && attempt > 0 {
        let is_done = is_complete && shows_all_pods(resource, pod_counts);
        // With the method Evict, new Pods of the same shape would be evicted again and again.
        let is_evicted_in_vain = !annotated.is_restart()
            && pod_counts
                .newest_of_other_shape
                .zip(annotated.started)
                .is_some_and(|(newest, started)| newest > started);
        let health = if let Some((pod, is_certain)) = new_uninjected(resource, &annotated, pod_counts) {
            let name = Arc::clone(&pod.key.name);
            if is_certain { Health::Uninjected(name) } else { Health::SeemsUninjected(name) }
        } else if is_evicted_in_vain {
            Health::StillUncovered
        } else if is_done && outdated.is_empty() {
            Health::Healthy
        } else if annotated.is_restart() && !is_in_template {
            Health::Reverted
        } else if !is_done {
            incomplete(resource, pod_counts)
        } else if annotated.is_restart() && only_misscheduled(resource, outdated.len()) {
            Health::WaitingForNodes(SkipReason::WaitingForNodes.why().to_owned())
        } else if annotated.is_restart() && !pod_counts.other_configuration {
            // A missing proxy or its shape does not depend on the configuration: a second restart would not help.
            Health::StillUncovered
        } else if annotated.is_restart() {
            Health::StillOutdated
        } else {
            Health::Evicting
        };
        let mut in_progress = in_progress(attempt, health);
        if !annotated.is_restart() {
            in_progress.evict = outdated.last().map(|pod| Arc::clone(&pod.key.name));
        }
        return WorkloadState::InProgress(in_progress);
    }
    let has_pods = pod_counts.counts.meshed > 0 || !pod_counts.uninjected.is_empty();
    if annotated.state == Some(RolloutState::Failed) && attempt > 0 && (has_pods || !is_complete) {
        let is_current = outdated.is_empty() && pod_counts.uninjected.is_empty();
        return WorkloadState::Failed(recorded_failure(resource, &annotated, is_current, weight));
    }
    // Our restart left Pods without a proxy, so this workload stays tracked until every Pod has one.
    let has_failed = annotated.is_moving() || annotated.state == Some(RolloutState::Failed);
    let lacks_proxies = has_failed && !pod_counts.uninjected.is_empty();
    if pod_counts.counts.meshed == 0 && pod_counts.outdated.is_empty() && !lacks_proxies {
        return WorkloadState::Unmeshed;
    }
    if pod_counts.outdated.is_empty() && !lacks_proxies {
        return WorkloadState::UpToDate;
    }
    let method = method(resource, target);
    let is_out_of_reach = outdated.is_empty() && !lacks_proxies;
    if let Some(skip) = skip_reason(facts, resource, namespace, method, is_out_of_reach) {
        return WorkloadState::Skipped(skip);
    }
    let is_reverted = annotated.state == Some(RolloutState::Reverted) && target.key.has_retry_of(annotated.hash);
    if is_reverted && method == RolloutMethod::Restart {
        return WorkloadState::Skipped(SkipReason::Reverted);
    }
    if method == RolloutMethod::Restart && only_misscheduled(resource, outdated.len()) && !lacks_proxies {
        return WorkloadState::Skipped(SkipReason::WaitingForNodes);
    }
    // A restart could disconnect these Pods from each other, and only an approval of the bundle allows that.
    if pod_counts.unknown_trust && !target.proxies.trust.is_approved {
        return WorkloadState::Skipped(SkipReason::UnknownTrustRoots);
    }
    let attempt = attempt.max(target.key.attempt(resource.template.restarted_for.as_deref().unwrap_or_default()));
    if attempt >= ATTEMPTS {
        return WorkloadState::Skipped(SkipReason::TooManyAttempts);
    }
    // A workload that is unhealthy after our unfinished restart for another configuration may be repaired by this one.
    let may_be_ours = has_failed || annotated.state == Some(RolloutState::RolledBack);
    if !is_complete && !may_be_ours {
        return WorkloadState::Skipped(SkipReason::Unhealthy);
    }
    if facts.is_blocked && target.rollout().respect_pdb {
        return WorkloadState::Skipped(SkipReason::BlockedByPDB);
    }
    WorkloadState::Pending(Start {
        value: target.key.value(attempt.saturating_add(1)),
        method,
        for_trust_roots: pod_counts.other_trust_roots,
    })
}

/// Returns the outdated Pods that a restart would replace. The last one is evicted first, as in a StatefulSet.
fn reachable<'a>(resource: &AppsWorkload, pod_counts: &PodCounts<'a>) -> Vec<&'a Arc<Pod>> {
    let mut pods = pod_counts.outdated.clone();
    if let UpdateStrategy::Partition(partition) = resource.update {
        let ordinal = |pod: &Pod| pod.key.name.rsplit_once('-')?.1.parse::<i32>().ok();
        pods.retain(|pod| ordinal(pod).is_none_or(|ordinal| ordinal >= partition));
    }
    pods.sort_by_key(|pod| (pod.key.name.len(), Arc::clone(&pod.key.name)));
    pods
}

fn method(resource: &AppsWorkload, target: &RolloutTarget) -> RolloutMethod {
    match resource.annotations.get(METHOD_ANNOTATION).map(|value| &**value) {
        Some("restart") => RolloutMethod::Restart,
        Some("evict") => RolloutMethod::Evict,
        _ => target.rollout().method,
    }
}

fn skip_reason(
    facts: &WorkloadFacts<'_>,
    resource: &AppsWorkload,
    namespace: &Namespace,
    method: RolloutMethod,
    is_out_of_reach: bool,
) -> Option<SkipReason> {
    let requests_proxy = resource.template.inject.requests_proxy(namespace.inject);
    // Another webhook may request a proxy for each Pod.
    let requested = facts.pods.iter().any(|pod| pod.inject == Inject::Enabled);
    let by_template = method == RolloutMethod::Restart;
    [
        (breaking_annotation(namespace).is_some(), SkipReason::NamespaceBreaksInjection),
        (!requests_proxy && (!requested || resource.template.inject != Inject::Absent), SkipReason::InjectionDisabled),
        (resource.paused && by_template, SkipReason::Paused),
        (resource.update == UpdateStrategy::OnDelete && by_template, SkipReason::OnDelete),
        (is_out_of_reach, SkipReason::Partition),
    ]
    .into_iter()
    .find_map(|(applies, skip)| applies.then_some(skip))
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "record_tests.rs"]
mod record_tests;

#[cfg(test)]
#[path = "selection_tests.rs"]
mod selection_tests;
