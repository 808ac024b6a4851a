//! Sums over all workloads, for the status and for the gates. Pure.

use std::collections::BTreeMap;

use super::{
    assess::workload_state::{Assessment, FailureWeight, SkipReason, WorkloadState},
    trust::TrustCounts,
};
use crate::api::linkerd_config::{RolloutPods, RolloutWorkloads};

/// Sums over all workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolloutTotals {
    pub pods: RolloutPods,
    pub suspects: i64,
    /// The number of running Pods with each set of trust anchors.
    pub trust: TrustCounts,
    pub workloads: RolloutWorkloads,
    pub skipped: BTreeMap<SkipReason, i64>,
    pub blocked: i64,
    pub for_trust_roots: i64,
    /// Failed workloads that count towards `maxFailures`.
    pub counted_failures: i64,
    /// Failed workloads with a Pod that has no proxy.
    pub uninjected: i64,
    /// The totals of the canary namespaces.
    pub canary: CanaryTotals,
}

/// Sums over the selected workloads of the canary namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CanaryTotals {
    pub selected: i64,
    pub updated: i64,
    /// Failed workloads that count towards `maxFailures`.
    pub failures: i64,
    /// Failed workloads with a Pod that has no proxy.
    pub uninjected: i64,
}

// === impl RolloutTotals ===

impl RolloutTotals {
    /// Adds the numbers of one workload, or subtracts them with a `sign` of -1.
    pub(super) fn add(&mut self, assessment: &Assessment, sign: i64) {
        let Assessment { pods, suspects, trust, state, rolling: _, is_canary, pace: _ } = assessment;
        add_pods(&mut self.pods, pods, sign);
        self.suspects += sign * suspects;
        for (key, pods) in trust {
            let count = self.trust.entry(key.clone()).or_default();
            *count += sign * pods;
            if *count == 0 {
                self.trust.remove(key);
            }
        }
        if *is_canary {
            self.canary.add(state, sign);
        }
        let workloads = &mut self.workloads;
        let skipped = match state {
            WorkloadState::Unmeshed | WorkloadState::Unselected(_) | WorkloadState::Observed => return,
            WorkloadState::Unsupported(skip) => Some(skip),
            WorkloadState::Skipped(skip) => {
                workloads.selected += sign;
                self.blocked += sign * i64::from(*skip == SkipReason::BlockedByPDB);
                Some(skip)
            }
            _ => {
                workloads.selected += sign;
                None
            }
        };
        match state {
            WorkloadState::UpToDate => workloads.updated += sign,
            WorkloadState::InProgress(_) => workloads.updating += sign,
            WorkloadState::Pending(start) => {
                workloads.pending += sign;
                self.for_trust_roots += sign * i64::from(start.for_trust_roots);
            }
            WorkloadState::Failed(failure) => {
                workloads.failed += sign;
                self.counted_failures += sign * i64::from(failure.weight != FailureWeight::Reported);
                self.uninjected += sign * i64::from(failure.weight == FailureWeight::LostProxies);
            }
            _ => {}
        }
        if let Some(skip) = skipped {
            workloads.skipped += sign;
            let count = self.skipped.entry(*skip).or_default();
            *count += sign;
            if *count == 0 {
                self.skipped.remove(skip);
            }
        }
    }
}

// === impl CanaryTotals ===

impl CanaryTotals {
    fn add(&mut self, state: &WorkloadState, sign: i64) {
        self.selected += sign * i64::from(state.is_selected());
        self.updated += sign * i64::from(*state == WorkloadState::UpToDate);
        if let WorkloadState::Failed(failure) = state {
            self.failures += sign * i64::from(failure.weight != FailureWeight::Reported);
            self.uninjected += sign * i64::from(failure.weight == FailureWeight::LostProxies);
        }
    }
}

fn add_pods(sum: &mut RolloutPods, counts: &RolloutPods, sign: i64) {
    let RolloutPods { meshed, current, outdated, pinned, unknown, uninjected, completed, .. } = *counts;
    let RolloutPods { waiting_for_network, other_shape, .. } = *counts;
    sum.meshed += sign * meshed;
    sum.current += sign * current;
    sum.outdated += sign * outdated;
    sum.pinned += sign * pinned;
    sum.unknown += sign * unknown;
    sum.uninjected += sign * uninjected;
    sum.completed += sign * completed;
    sum.waiting_for_network += sign * waiting_for_network;
    sum.other_shape += sign * other_shape;
}
