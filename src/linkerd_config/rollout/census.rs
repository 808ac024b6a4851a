//! The Pods of a workload, by what they are to the mesh's configuration. Pure.

use std::sync::Arc;

use super::{
    goal::Goal,
    outdated::{Class, class},
};
use crate::{
    api::linkerd_config::RolloutPods,
    cluster::kinds::{
        inject::Inject,
        pod::{Phase, Pod},
    },
};

#[derive(Default)]
pub(super) struct Census<'a> {
    pub counts: RolloutPods,
    /// Out of date for a reason that restarts workloads.
    pub outdated: Vec<&'a Arc<Pod>>,
    pub uninjected: Vec<&'a Arc<Pod>>,
    /// One of the outdated has other trust anchors than the mesh.
    pub other_trust_roots: bool,
    /// How many were born while others had edited the document.
    pub suspects: i64,
    /// Not at their end, and not going to it.
    pub live: i64,
}

// === impl Census ===

impl<'a> Census<'a> {
    /// `of_namespace`: what the annotation of their namespace says.
    pub(super) fn of(pods: &'a [Arc<Pod>], of_namespace: Inject, goal: &Goal) -> Self {
        let mut census = Self::default();
        for pod in pods {
            census.live += i64::from(!pod.terminating && pod.phase != Phase::Finished);
            let Some(class) = class(pod, of_namespace, goal) else { continue };
            let counts = &mut census.counts;
            let meshed = !matches!(class, Class::Uninjected | Class::Completed);
            counts.meshed += i64::from(meshed);
            census.suspects += i64::from(meshed && pod.created.is_some_and(|created| goal.is_in_drift(created)));
            match class {
                Class::Current => counts.current += 1,
                Class::Pinned => counts.pinned += 1,
                Class::Unknown => counts.unknown += 1,
                Class::Completed => counts.completed += 1,
                Class::Uninjected => {
                    counts.uninjected += 1;
                    census.uninjected.push(pod);
                }
                Class::Outdated(causes) => {
                    counts.outdated += 1;
                    if causes.trigger(goal) {
                        census.other_trust_roots |= causes.trust_roots;
                        census.outdated.push(pod);
                    }
                }
            }
        }
        census
    }
}

/// Adds up, or takes away with -1.
pub(super) fn add(sum: &mut RolloutPods, counts: &RolloutPods, sign: i64) {
    let RolloutPods { meshed, current, outdated, pinned, unknown, uninjected, completed } = *counts;
    sum.meshed += sign * meshed;
    sum.current += sign * current;
    sum.outdated += sign * outdated;
    sum.pinned += sign * pinned;
    sum.unknown += sign * unknown;
    sum.uninjected += sign * uninjected;
    sum.completed += sign * completed;
}
