//! The state of a workload that opted in and has a controller which can be restarted. Pure.
//!
//! In: the workload, its Pods, the target, and the annotations of earlier steps. Out: its [`WorkloadState`]. Always
//! holds: a step in progress is judged before a new one begins.

use std::sync::Arc;

use super::{
    WorkloadFacts,
    annotations::{RolloutAnnotations, RolloutState},
    completeness::{incomplete, is_complete, marks, missing, only_misscheduled, shows_all_pods},
    failure::{failure_weight, new_uninjected, recorded_failure},
    injection::breaking_annotation,
    pod_counts::PodCounts,
    workload_state::{FailureWeight, Health, InProgress, SkipReason, Start, WorkloadState},
};
use crate::{
    api::linkerd_config::RolloutMethod,
    cluster::kinds::{
        apps_workload::{AppsWorkload, UpdateStrategy, WorkloadKind},
        inject::Inject,
        namespace::Namespace,
        pod::Pod,
    },
    rollout::target::RolloutTarget,
};

/// After this number of attempts for one key, a workload is not restarted again: another component creates or changes
/// its Pods.
const ATTEMPTS: u32 = 5;
/// Annotation of a workload: `restart` or `evict`; overrides `spec.rollout.method`.
const METHOD_ANNOTATION: &str = "config.linkerd.io/rollout-method";

pub(super) struct SelectedWorkload<'a> {
    facts: &'a WorkloadFacts<'a>,
    resource: &'a AppsWorkload,
    namespace: &'a Namespace,
    pod_counts: &'a PodCounts<'a>,
    target: &'a RolloutTarget,
    /// The record of earlier steps.
    annotated: RolloutAnnotations<'a>,
    /// The number of the attempt in these annotations; 0 if they are about another key.
    attempt: u32,
    /// The outdated Pods that a restart would replace.
    outdated: Vec<&'a Arc<Pod>>,
    is_complete: bool,
    /// Whether the template is that of the recorded restart.
    is_in_template: bool,
    weight: FailureWeight,
}

// === impl SelectedWorkload ===

impl<'a> SelectedWorkload<'a> {
    pub(super) fn new(
        facts: &'a WorkloadFacts<'a>,
        resource: &'a AppsWorkload,
        namespace: &'a Namespace,
        pod_counts: &'a PodCounts<'a>,
        target: &'a RolloutTarget,
    ) -> Self {
        let annotated = RolloutAnnotations::of(resource);
        let adopted = target.proxies.baseline.as_ref().and_then(|baseline| baseline.adopted);
        Self {
            attempt: target.key.attempt(annotated.hash),
            outdated: reachable(resource, pod_counts),
            is_complete: is_complete(resource),
            is_in_template: resource.template.restarted_for.as_deref() == Some(annotated.hash),
            weight: failure_weight(resource, &annotated, pod_counts, adopted),
            facts,
            resource,
            namespace,
            pod_counts,
            target,
            annotated,
        }
    }

    pub(super) fn state(&self) -> WorkloadState {
        let Self { resource, namespace, pod_counts, annotated, .. } = self;
        // Its controller does not complete a restart any more, and the absence of its Pods says nothing about the
        // configuration.
        if resource.deleting || namespace.deleting {
            return match (pod_counts.counts.meshed > 0, pod_counts.outdated.is_empty()) {
                (_, false) => WorkloadState::Skipped(SkipReason::Deleting),
                (true, true) => WorkloadState::UpToDate,
                (false, true) => WorkloadState::Unmeshed,
            };
        }
        if let Some(in_progress) = self.return_from_rollback().or_else(|| self.step_in_progress()) {
            return WorkloadState::InProgress(in_progress);
        }
        let has_pods = pod_counts.counts.meshed > 0 || !pod_counts.uninjected.is_empty();
        if annotated.state == Some(RolloutState::Failed) && self.attempt > 0 && (has_pods || !self.is_complete) {
            let is_current = self.outdated.is_empty() && pod_counts.uninjected.is_empty();
            return WorkloadState::Failed(recorded_failure(resource, annotated, is_current, self.weight));
        }
        // Our restart left Pods without a proxy, so this workload stays tracked until every Pod has one.
        let has_failed = annotated.is_moving() || annotated.state == Some(RolloutState::Failed);
        let lacks_proxies = has_failed && !pod_counts.uninjected.is_empty();
        match (pod_counts.outdated.is_empty() && !lacks_proxies, pod_counts.counts.meshed) {
            (true, 0) => WorkloadState::Unmeshed,
            (true, _) => WorkloadState::UpToDate,
            (false, _) => self.next_step(has_failed, lacks_proxies),
        }
    }

    fn in_progress(&self, attempt: u32, health: Health) -> InProgress {
        let Self { resource, pod_counts, annotated, .. } = self;
        InProgress {
            state: annotated.state.unwrap_or(RolloutState::Updating),
            since: annotated.started,
            health,
            evict: None,
            retry: self.target.key.value(attempt.saturating_add(1)),
            weight: self.weight,
            marks: marks(resource, pod_counts),
            newest_pod: pod_counts.newest,
            controlled: resource.controlled,
        }
    }

    /// Returns the progress of a restart for a configuration that was rolled back, until its template is the one from
    /// before.
    fn return_from_rollback(&self) -> Option<InProgress> {
        let Self { resource, annotated, .. } = self;
        let is_of_rolled_back = self.target.rolled_back.as_ref().is_some_and(|key| key.begins(annotated.hash));
        match annotated.state.filter(|_| is_of_rolled_back && annotated.is_restart())? {
            RolloutState::Updating | RolloutState::Retrying | RolloutState::Failed if self.is_in_template => {
                Some(self.in_progress(0, Health::ToBeReverted))
            }
            RolloutState::RolledBack if !self.is_complete => {
                // The StatefulSet controller waits without limit for a Pod that does not become ready:
                // https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
                let stuck = self.outdated.last().filter(|_| resource.kind == WorkloadKind::StatefulSet);
                let evict = stuck.map(|pod| Arc::clone(&pod.key.name));
                Some(InProgress { evict, ..self.in_progress(0, Health::Progressing(missing(resource))) })
            }
            _ => None,
        }
    }

    /// Returns the progress of a step for this target.
    fn step_in_progress(&self) -> Option<InProgress> {
        if !self.annotated.is_moving() || self.attempt == 0 {
            return None;
        }
        let mut in_progress = self.in_progress(self.attempt, self.health());
        if !self.annotated.is_restart() {
            in_progress.evict = self.outdated.last().map(|pod| Arc::clone(&pod.key.name));
        }
        Some(in_progress)
    }

    fn health(&self) -> Health {
        let Self { resource, pod_counts, annotated, outdated, .. } = self;
        let is_done = self.is_complete && shows_all_pods(resource, pod_counts);
        // With the method Evict, new Pods of the same shape would be evicted again and again.
        let newest = pod_counts.newest_of_other_shape.zip(annotated.started);
        let is_evicted_in_vain = !annotated.is_restart() && newest.is_some_and(|(newest, started)| newest > started);
        if let Some((pod, is_certain)) = new_uninjected(resource, annotated, pod_counts) {
            let name = Arc::clone(&pod.key.name);
            if is_certain { Health::Uninjected(name) } else { Health::SeemsUninjected(name) }
        } else if is_evicted_in_vain {
            Health::StillUncovered
        } else if is_done && outdated.is_empty() {
            Health::Healthy
        } else if annotated.is_restart() && !self.is_in_template {
            Health::Reverted
        } else if !is_done {
            incomplete(resource, pod_counts)
        } else if !annotated.is_restart() {
            Health::Evicting
        } else if only_misscheduled(resource, outdated.len()) {
            Health::WaitingForNodes(SkipReason::WaitingForNodes.why().to_owned())
        } else if !pod_counts.other_configuration {
            // A missing proxy or its shape does not depend on the configuration: a second restart would not help.
            Health::StillUncovered
        } else {
            Health::StillOutdated
        }
    }

    /// Returns the next step, or why the workload is skipped.
    fn next_step(&self, has_failed: bool, lacks_proxies: bool) -> WorkloadState {
        let Self { facts, resource, namespace, pod_counts, target, annotated, outdated, .. } = self;
        let method = method(resource, target);
        let is_restart = method == RolloutMethod::Restart;
        let is_out_of_reach = outdated.is_empty() && !lacks_proxies;
        if let Some(skip) = skip_reason(facts, resource, namespace, method, is_out_of_reach) {
            return WorkloadState::Skipped(skip);
        }
        let is_reverted = annotated.state == Some(RolloutState::Reverted) && target.key.has_retry_of(annotated.hash);
        let in_template = resource.template.restarted_for.as_deref().unwrap_or_default();
        let attempt = self.attempt.max(target.key.attempt(in_template));
        // A workload that is unhealthy after our unfinished restart for another configuration may be repaired by this
        // one.
        let may_be_ours = has_failed || annotated.state == Some(RolloutState::RolledBack);
        let skips = [
            (is_reverted && is_restart, SkipReason::Reverted),
            (is_restart && only_misscheduled(resource, outdated.len()) && !lacks_proxies, SkipReason::WaitingForNodes),
            (attempt >= ATTEMPTS, SkipReason::TooManyAttempts),
            (!self.is_complete && !may_be_ours, SkipReason::Unhealthy),
            (facts.is_blocked && target.rollout.respect_pdb, SkipReason::BlockedByPDB),
        ];
        match skips.into_iter().find_map(|(applies, skip)| applies.then_some(skip)) {
            Some(skip) => WorkloadState::Skipped(skip),
            None => WorkloadState::Pending(Start {
                value: target.key.value(attempt.saturating_add(1)),
                method,
                for_trust_roots: pod_counts.other_trust_roots,
            }),
        }
    }
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
        _ => target.rollout.method,
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
        (resource.template.has_proxy, SkipReason::ProxyInTemplate),
        (breaking_annotation(namespace).is_some(), SkipReason::NamespaceBreaksInjection),
        (!requests_proxy && (!requested || resource.template.inject != Inject::Absent), SkipReason::InjectionDisabled),
        (resource.paused && by_template, SkipReason::Paused),
        (resource.update == UpdateStrategy::OnDelete && by_template, SkipReason::OnDelete),
        (is_out_of_reach, SkipReason::Partition),
    ]
    .into_iter()
    .find_map(|(applies, skip)| applies.then_some(skip))
}
