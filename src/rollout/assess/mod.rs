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
mod selected_workload;
pub mod selection;
pub mod workload_state;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use self::{
    annotations::RolloutAnnotations,
    completeness::is_complete,
    coverage::InjectionContext,
    pod_counts::PodCounts,
    selected_workload::SelectedWorkload,
    selection::{Selection, SelectionCandidate, selection},
    workload_state::{Assessment, SkipReason, WorkloadState},
};
use super::target::RolloutTarget;
use strum::VariantArray;

use crate::cluster::{
    index::workload_key::WorkloadKey,
    kinds::{
        apps_workload::{AppsWorkload, WorkloadKind},
        namespace::Namespace,
        pod::Pod,
    },
};

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

/// Compares one workload with the target.
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
            let is_of_kind = target.rollout.kinds.iter().any(|kind| kind.as_str() == resource.kind.as_str());
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
        (Selection::Selected, Some(resource)) => {
            SelectedWorkload::new(facts, resource, namespace, pod_counts, target).state()
        }
        (Selection::Selected, None) if pod_counts.outdated.is_empty() => WorkloadState::Unmeshed,
        (Selection::Selected, None) => WorkloadState::Unsupported(match &*workload.kind {
            "Pod" => SkipReason::NoController,
            "Node" => SkipReason::StaticPod,
            "Job" | "CronJob" => SkipReason::Job,
            _ => SkipReason::UnknownOwner,
        }),
    }
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
