//! Whether the controller of a workload has completed the rollout of its template. Pure.

use super::{
    pod_counts::PodCounts,
    workload_state::{Health, ProgressMarks},
};
use crate::cluster::kinds::apps_workload::{AppsWorkload, UpdateStrategy, WorkloadKind, WorkloadProgress};

/// Whether all Pods are available, and all that the strategy updates are updated.
pub(super) fn is_complete(resource: &AppsWorkload) -> bool {
    let WorkloadProgress { observed, wanted, total, updated, available, .. } = resource.progress;
    let to_update = match resource.update {
        UpdateStrategy::Rolling | UpdateStrategy::Recreate => wanted,
        UpdateStrategy::Partition(partition) => wanted - i64::from(partition),
        // The controller updates a Pod only after a user deleted it.
        UpdateStrategy::OnDelete => 0,
    };
    observed && total == wanted && available == wanted && updated >= to_update
}

/// Whether the watch of Pods shows as many Pods as the status of the workload. They arrive through different watches.
pub(super) fn shows_all_pods(resource: &AppsWorkload, pod_counts: &PodCounts<'_>) -> bool {
    let WorkloadProgress { wanted, misscheduled, .. } = resource.progress;
    pod_counts.live == wanted + misscheduled
}

/// Returns the health of a workload whose restart is not complete.
pub(super) fn incomplete(resource: &AppsWorkload, pod_counts: &PodCounts<'_>) -> Health {
    match waits_for_nodes(resource, pod_counts) {
        true => Health::WaitingForNodes(missing(resource)),
        false => Health::Progressing(missing(resource)),
    }
}

/// Whether only some nodes of a DaemonSet prevent completion: more Pods run with the configuration than are
/// unavailable, so the configuration works on at least one node. With a configuration that does not work, the update
/// strategy stops while every updated Pod is unavailable.
fn waits_for_nodes(resource: &AppsWorkload, pod_counts: &PodCounts<'_>) -> bool {
    let WorkloadProgress { observed, wanted, available, .. } = resource.progress;
    let unavailable = wanted - available;
    resource.kind == WorkloadKind::DaemonSet && observed && unavailable > 0 && current(pod_counts) > unavailable
}

/// Whether all outdated Pods of a DaemonSet are on nodes that it no longer selects. No restart replaces them.
pub(super) fn only_misscheduled(resource: &AppsWorkload, outdated: usize) -> bool {
    let misscheduled = usize::try_from(resource.progress.misscheduled).unwrap_or_default();
    (1..=misscheduled).contains(&outdated)
}

pub(super) fn marks(resource: &AppsWorkload, pod_counts: &PodCounts<'_>) -> ProgressMarks {
    let WorkloadProgress { updated, ready, available, .. } = resource.progress;
    ProgressMarks { updated, ready, available, current: current(pod_counts) }
}

/// Returns the number of live Pods that are not out of date.
fn current(pod_counts: &PodCounts<'_>) -> i64 {
    pod_counts.live - pod_counts.counts.outdated - pod_counts.counts.uninjected
}

/// Describes what is missing until the rollout is complete.
pub(super) fn missing(resource: &AppsWorkload) -> String {
    let WorkloadProgress { observed, wanted, total, updated, available, .. } = resource.progress;
    if !observed {
        return "its controller has not observed the latest generation yet".to_owned();
    }
    // A Deployment creates new Pods before it deletes old ones. The old ones are available.
    let of_all = if total > wanted { format!(" of {total} with old Pods") } else { String::new() };
    let so_far = format!("{updated} of {wanted} Pods are updated, {available}{of_all} are available");
    match resource.failure.as_deref().map(str::to_owned).or_else(|| waits_for_new_pods(resource)) {
        Some(why) => format!("{so_far}: {why}"),
        None => so_far,
    }
}

/// Describes why the new Pods are not available, if the counts alone do not show it.
fn waits_for_new_pods(resource: &AppsWorkload) -> Option<String> {
    let WorkloadProgress { wanted, total, ready, available, .. } = resource.progress;
    let pods = |count: i64| if count == 1 { "its new Pod" } else { "its new Pods" };
    match resource.pace.min_ready {
        0 if total > wanted && ready < total => {
            let are = if total - ready == 1 { "is" } else { "are" };
            Some(format!("{} {are} not ready", pods(total - ready)))
        }
        seconds if seconds > 0 && ready > available => {
            Some(format!("{} must be ready for {seconds} s (minReadySeconds)", pods(ready - available)))
        }
        seconds if seconds > 0 && total > wanted && ready < total => {
            Some(format!("{} must get ready, and stay so for {seconds} s (minReadySeconds)", pods(total - ready)))
        }
        _ => None,
    }
}
