//! The Events and log lines about single workloads.

use std::{borrow::Cow, collections::HashMap};

use tracing::{info, warn};

use super::{step::StepAction, target::RolloutTarget};
use crate::{
    api::NamespacedName,
    cluster::{index::workload_key::WorkloadKey, kinds::apps_workload::AppsWorkload},
    events::{Events, Notice, Reason, linkerd_config_reference, object_reference},
};

pub(super) struct WorkloadEvents {
    events: Events,
    /// The reason in the last Event about each skipped workload, so that there is one Event per key and reason.
    skipped: HashMap<WorkloadKey, Cow<'static, str>>,
}

impl WorkloadEvents {
    pub(super) fn new(events: &Events) -> Self {
        Self { events: events.clone(), skipped: HashMap::new() }
    }

    /// Forgets which workloads were skipped for the previous key.
    pub(super) fn begin_key(&mut self) {
        self.skipped.clear();
    }

    pub(super) fn forget(&mut self, workload: &WorkloadKey) {
        self.skipped.remove(workload);
    }

    /// Emits an Event about a workload that is out of date and skipped. `why` has the reason and the remedy.
    pub(super) fn emit_skip(&mut self, resource: &AppsWorkload, target: &RolloutTarget, why: Cow<'static, str>) {
        if self.skipped.get(&resource.workload) != Some(&why) {
            let note = format!("Out of date for configuration {}, but not restarted: {why}", target.key);
            self.skipped.insert(resource.workload.clone(), why);
            self.emit(resource, target, Reason::ProxyRolloutSkipped, note);
        }
    }

    /// Emits an Event about a step that was written.
    pub(super) fn emit_step(&self, resource: &AppsWorkload, target: &RolloutTarget, action: &StepAction) {
        let (workload, key) = (&resource.workload, &target.key);
        let (reason, note) = match action {
            StepAction::Start(start) => {
                info!(%workload, restarted_for = start.value, "restarting a workload");
                (Reason::PodRestart, format!("Restarted for configuration {key}"))
            }
            StepAction::Retry(value) => {
                info!(%workload, restarted_for = value, "restarting a workload again");
                (Reason::PodRestart, format!("Restarted again for configuration {key}"))
            }
            StepAction::Finish { .. } => {
                info!(%workload, restarted_for = %key, "a workload is up to date");
                (Reason::ProxyUpToDate, format!("All Pods run with configuration {key}"))
            }
            StepAction::Fail { reason, message, .. } => {
                warn!(%workload, restarted_for = %key, reason, message, "a restart failed");
                (Reason::ProxyRolloutFailed, format!("Failed with configuration {key}: {reason}: {message}"))
            }
            StepAction::Revert => {
                info!(%workload, "rolling back the Pod template of a workload");
                (Reason::PodRestart, "Rolled back the Pod template to the state before the restart".to_owned())
            }
            // The workload is skipped from now on, which has an Event.
            StepAction::GiveUp => {
                info!(%workload, "another client reverts the restart of a workload");
                return;
            }
            StepAction::Evict(pod) => {
                info!(%workload, pod = &**pod, "evicted a Pod that was out of date");
                return;
            }
        };
        self.emit(resource, target, reason, note);
    }

    fn emit(&self, resource: &AppsWorkload, target: &RolloutTarget, reason: Reason, note: String) {
        let WorkloadKey { namespace, name, .. } = resource.workload.clone();
        let key = NamespacedName::new(namespace, name);
        let regarding = object_reference("apps/v1", resource.kind.as_str(), &key, &resource.uid);
        let related = Some(linkerd_config_reference(&target.config.name, &target.config.uid));
        self.events.publish(Notice { reason, regarding, related, note });
    }
}
