//! The Pods of a workload, counted by their class. Pure.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::{
    coverage::{InjectionContext, other_shape, waits_for_network},
    outdated::{PodClass, classify},
};
use crate::{
    api::linkerd_config::{RolloutPods, RolloutTrigger},
    cluster::kinds::pod::{Pod, PodPhase},
    rollout::{target::RolloutTarget, trust::TrustCounts},
};

#[derive(Default)]
pub(super) struct PodCounts<'a> {
    pub counts: RolloutPods,
    /// Pods that are out of date for a cause that restarts workloads. With the trigger for it, they include those
    /// without a proxy.
    pub outdated: Vec<&'a Arc<Pod>>,
    pub uninjected: Vec<&'a Arc<Pod>>,
    /// Whether workloads are restarted for Pods without a proxy.
    pub is_restarted_for_uninjected: bool,
    /// Whether a Pod is out of date for a cause other than a missing proxy and its shape. A second restart may help.
    pub other_configuration: bool,
    /// The creation time of the newest Pod that is out of date only for the shape of its proxy.
    pub newest_of_other_shape: Option<Timestamp>,
    /// Whether an outdated Pod has trust anchors other than those of the mesh.
    pub other_trust_roots: bool,
    pub trust: TrustCounts,
    /// The number of Pods that were created while the document had changes by other writers.
    pub suspects: i64,
    /// The number of Pods that are neither finished nor terminating.
    pub live: i64,
    /// The creation time of the newest live Pod.
    pub newest: Option<Timestamp>,
    /// The creation time of the newest Pod that is up to date.
    pub newest_current: Option<Timestamp>,
}

// === impl PodCounts ===

impl<'a> PodCounts<'a> {
    /// Counts Pods.
    pub(super) fn of(pods: &'a [Arc<Pod>], context: InjectionContext<'_>, target: &RolloutTarget) -> Self {
        let is_restarted_for_uninjected = target.is_trigger(RolloutTrigger::Uninjected);
        let mut pod_counts = Self { is_restarted_for_uninjected, ..Self::default() };
        for pod in pods {
            if !pod.terminating && pod.phase != PodPhase::Finished {
                pod_counts.live += 1;
                pod_counts.newest = pod_counts.newest.max(pod.created);
            }
            let Some(class) = classify(pod, context, target) else { continue };
            let counts = &mut pod_counts.counts;
            let meshed = !matches!(class, PodClass::Uninjected | PodClass::Completed);
            counts.meshed += i64::from(meshed);
            if let Some(injected) = pod.injected.as_deref().filter(|_| meshed) {
                counts.waiting_for_network += i64::from(waits_for_network(pod).is_some());
                counts.other_shape += i64::from(other_shape(injected, context, target).is_some());
            }
            pod_counts.suspects +=
                i64::from(meshed && pod.created.is_some_and(|created| target.proxies.is_in_drift(created)));
            // A Pod that is not running opens no connection, and a tenant can create any number of such Pods.
            let runs = meshed && pod.phase == PodPhase::Running;
            if let Some(carried) = pod.injected.as_ref().and_then(|it| it.trust_anchors.as_ref()).filter(|_| runs) {
                let key = (Arc::clone(carried), Arc::clone(&pod.key.namespace));
                *pod_counts.trust.entry(key).or_default() += 1;
            }
            match class {
                PodClass::Current => {
                    counts.current += 1;
                    pod_counts.newest_current = pod_counts.newest_current.max(pod.created);
                }
                PodClass::Pinned => {
                    counts.pinned += 1;
                    pod_counts.newest_current = pod_counts.newest_current.max(pod.created);
                }
                PodClass::Unknown => counts.unknown += 1,
                PodClass::Completed => counts.completed += 1,
                PodClass::Uninjected => {
                    counts.uninjected += 1;
                    pod_counts.uninjected.push(pod);
                    if is_restarted_for_uninjected {
                        pod_counts.outdated.push(pod);
                    }
                }
                PodClass::Outdated(causes) => {
                    counts.outdated += 1;
                    if causes.trigger(target) {
                        pod_counts.other_trust_roots |= causes.trust_roots;
                        pod_counts.outdated.push(pod);
                        match causes.is_other_configuration(target) {
                            true => pod_counts.other_configuration = true,
                            false => {
                                pod_counts.newest_of_other_shape = pod_counts.newest_of_other_shape.max(pod.created);
                            }
                        }
                    }
                }
            }
        }
        pod_counts
    }
}
