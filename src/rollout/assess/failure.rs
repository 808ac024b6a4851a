//! Decides how much a failed restart weighs against the configuration. Pure.
//!
//! Everyone who may change a workload can write its record, so the record alone is no evidence. The evidence is the
//! present state of the Pods and of the template.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    annotations::RolloutAnnotations,
    completeness::is_complete,
    coverage::CoverageGap,
    pod_counts::PodCounts,
    workload_state::{FailureWeight, WorkloadFailure},
};
use crate::{
    cluster::kinds::{
        apps_workload::{AppsWorkload, UpdateStrategy},
        pod::Pod,
    },
    text::truncate,
};

/// Maximum size in bytes of the reason in a record. Ours are shorter.
const LONGEST_REASON: usize = 63;
/// The greatest difference between the clocks of the operator and of the API server that is compensated.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(10);

/// Returns the weight that a failure of the restart in the record has now. `adopted` is when the operator adopted the
/// configuration: it restarted no workload before.
pub(super) fn failure_weight(
    resource: &AppsWorkload,
    annotated: &RolloutAnnotations<'_>,
    pod_counts: &PodCounts<'_>,
    adopted: Option<Timestamp>,
) -> FailureWeight {
    let uninjected = new_uninjected(resource, annotated, pod_counts).map(|(pod, _)| pod);
    if annotated.is_restart() {
        // A template that carries our value was changed by our restart, or replaced its Pods as our restart would.
        return match resource.template.restarted_for.as_deref() == Some(annotated.hash) {
            false => FailureWeight::Reported,
            true if uninjected.is_some() => FailureWeight::LostProxies,
            true => FailureWeight::Counted,
        };
    }
    // An eviction leaves no trace on the template. The evidence is its replacement: the newest Pod has no proxy, or
    // Pods that are up to date are not available. A blocked eviction replaces no Pod, so it is only reported.
    let earliest = annotated.started.max(adopted);
    let is_new = |created: Option<Timestamp>| created.is_some() && earliest.is_some() && created >= earliest;
    let is_newest = |pod: &Pod| pod.created == pod_counts.newest && is_new(pod.created);
    if uninjected.is_some_and(is_newest) {
        FailureWeight::LostProxies
    } else if is_new(pod_counts.newest_current) && !is_complete(resource) {
        FailureWeight::Counted
    } else {
        FailureWeight::Reported
    }
}

/// Returns the failure in the record. `is_current` is whether a restart would replace no Pod.
pub(super) fn recorded_failure(
    resource: &AppsWorkload,
    annotated: &RolloutAnnotations<'_>,
    is_current: bool,
    weight: FailureWeight,
) -> WorkloadFailure {
    let (reason, message) = annotated.message.split_once(": ").unwrap_or(("Failed", annotated.message));
    let recovered = is_current && is_complete(resource);
    let weight = match weight {
        _ if recovered => FailureWeight::Reported,
        // The Pod without a proxy is gone, and the workload is not complete yet. The configuration did not fail.
        FailureWeight::Counted if reason == CoverageGap::Uninjected.as_str() => FailureWeight::LostProxies,
        weight => weight,
    };
    WorkloadFailure {
        reason: truncate(reason, LONGEST_REASON).to_owned(),
        message: message.to_owned(),
        started: annotated.started,
        weight,
        recovered,
    }
}

/// Returns the newest Pod that our restart left without a proxy, and whether it is certain that the restart created it.
pub(super) fn new_uninjected<'a>(
    resource: &AppsWorkload,
    annotated: &RolloutAnnotations<'_>,
    pod_counts: &PodCounts<'a>,
) -> Option<(&'a Pod, bool)> {
    // After a complete restart every Pod is new. The clocks of the operator and of the API server may differ. The
    // status of the workload may arrive before the deletions of its old Pods.
    let all_are_new = annotated.is_restart()
        && matches!(resource.update, UpdateStrategy::Rolling | UpdateStrategy::Recreate)
        && resource.template.restarted_for.as_deref() == Some(annotated.hash)
        && is_complete(resource);
    let is_certain = |pod: &Pod| match annotated.started {
        None => true,
        Some(started) if !pod_counts.is_restarted_for_uninjected => pod.created >= Some(started),
        // The old Pods may have no proxy either, and may be a moment older than the restart.
        Some(started) if annotated.is_restart() => pod.created > started.checked_add(CLOCK_SKEW).ok(),
        Some(started) => pod.created > Some(started),
    };
    let is_new = |pod: &&Pod| all_are_new || is_certain(pod);
    let newest = pod_counts.uninjected.iter().map(|pod| &***pod).filter(is_new).max_by_key(|pod| pod.created)?;
    Some((newest, is_certain(newest)))
}
