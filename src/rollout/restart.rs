//! Writes one step to a workload.
//!
//! Always holds: leadership is checked immediately before each write; every patch has the resourceVersion that was
//! assessed, so that the API server rejects a patch based on an older version; a restart changes one annotation of the
//! Pod template, in the same patch as the annotations that record it.

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        core::v1::Pod,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{EvictParams, Patch, PatchParams},
    core::NamespaceResourceScope,
};
use prometheus::{
    Histogram, IntCounterVec, Registry, exponential_buckets, register_histogram_with_registry,
    register_int_counter_vec_with_registry,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    assess::annotations::{LONGEST_MESSAGE, RolloutAnnotations, RolloutState},
    key::RolloutKey,
    step::StepAction,
};
use strum::VariantArray;

use crate::{
    api::{
        FIELD_MANAGER, RESTARTED_FOR_ANNOTATION,
        linkerd_config::{
            RolloutMethod,
            annotations::{
                ROLLOUT_HASH_ANNOTATION, ROLLOUT_MESSAGE_ANNOTATION, ROLLOUT_PREVIOUS_ANNOTATION,
                ROLLOUT_STARTED_ANNOTATION, ROLLOUT_STATE_ANNOTATION, ROLLOUT_UID_ANNOTATION,
            },
        },
    },
    cluster::kinds::apps_workload::{AppsWorkload, WorkloadKind},
    lease::Fence,
    text::truncated,
    write::WriteError,
};

pub(super) struct Restarter {
    client: Client,
    fence: Fence,
    restarts: IntCounterVec,
    seconds: Histogram,
}

impl Restarter {
    /// # Errors
    /// When the metrics are registered already.
    pub(super) fn new(client: &Client, fence: Fence, registry: &Registry) -> prometheus::Result<Self> {
        let restarts = register_int_counter_vec_with_registry!(
            "linkerd_operator_linkerdconfig_restarts_total",
            "Restarts of workloads, by kind and result",
            &["kind", "result"],
            registry
        )?;
        for kind in WorkloadKind::VARIANTS {
            for result in ["started", "retried", "updated", "failed", "reverted", "skipped"] {
                restarts.with_label_values(&[kind.as_str(), result]);
            }
        }
        let seconds = register_histogram_with_registry!(
            "linkerd_operator_linkerdconfig_workload_rollout_seconds",
            "Seconds from the restart of a workload until all its proxies ran with the configuration, including its soak",
            // Up to 68 minutes.
            exponential_buckets(1.0, 2.0, 13)?,
            registry
        )?;
        Ok(Self { client: client.clone(), fence, restarts, seconds })
    }

    /// Applies a step. Returns the new resourceVersion of the workload; empty for an eviction.
    pub(super) async fn apply(
        &self,
        resource: &AppsWorkload,
        action: &StepAction,
        key: &RolloutKey,
        now: Timestamp,
    ) -> Result<String, WriteError> {
        if let StepAction::Evict(pod) = action {
            return self.evict(&resource.workload.namespace, pod).await.map(|()| String::new());
        }
        let patch = patch(resource, action, key, now);
        let version = match resource.kind {
            WorkloadKind::Deployment => self.patch::<Deployment>(resource, &patch).await,
            WorkloadKind::StatefulSet => self.patch::<StatefulSet>(resource, &patch).await,
            WorkloadKind::DaemonSet => self.patch::<DaemonSet>(resource, &patch).await,
        }?;
        let result = match action {
            StepAction::Start(_) => "started",
            StepAction::Retry(_) => "retried",
            StepAction::Finish { .. } => "updated",
            StepAction::Fail { .. } => "failed",
            StepAction::GiveUp => "skipped",
            StepAction::Revert | StepAction::Evict(_) => "reverted",
        };
        self.restarts.with_label_values(&[resource.kind.as_str(), result]).inc();
        if let StepAction::Finish { since: Some(since) } = action {
            self.seconds.observe(now.duration_since(*since).as_secs_f64().max(0.0));
        }
        Ok(version)
    }

    async fn patch<K>(&self, resource: &AppsWorkload, patch: &Value) -> Result<String, WriteError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &resource.workload.namespace);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        // Requests only the metadata in the response.
        let request = async { api.patch_metadata(&resource.workload.name, &params, &Patch::Merge(patch)).await };
        Ok(self.fence.send(request).await?.resource_version().unwrap_or_default())
    }

    /// Evicts a Pod. A Pod that does not exist counts as evicted.
    async fn evict(&self, namespace: &str, pod: &str) -> Result<(), WriteError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match self.fence.send(async { pods.evict(pod, &EvictParams::default()).await }).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }
}

/// Returns the merge patch of the workload for a step.
pub(super) fn patch(resource: &AppsWorkload, action: &StepAction, key: &RolloutKey, now: Timestamp) -> Value {
    let annotated = RolloutAnnotations::of(resource);
    let started = format!("{now:.0}");
    let in_template = resource.template.restarted_for.as_deref();
    let state = |state: RolloutState| state.as_str();
    let (mut annotations, template) = match action {
        StepAction::Start(start) => {
            let by_template = start.method == RolloutMethod::Restart;
            let annotations = json!({
                ROLLOUT_HASH_ANNOTATION: start.value,
                ROLLOUT_STATE_ANNOTATION: state(RolloutState::Updating),
                ROLLOUT_STARTED_ANNOTATION: started,
                ROLLOUT_PREVIOUS_ANNOTATION: by_template.then(|| in_template.unwrap_or_default()),
                ROLLOUT_MESSAGE_ANNOTATION: null,
            });
            (annotations, by_template.then(|| json!(start.value)))
        }
        StepAction::Retry(value) => {
            let annotations = json!({
                ROLLOUT_HASH_ANNOTATION: value,
                ROLLOUT_STATE_ANNOTATION: state(RolloutState::Retrying),
                ROLLOUT_STARTED_ANNOTATION: started,
            });
            (annotations, Some(json!(value)))
        }
        StepAction::Finish { .. } => (json!({ ROLLOUT_STATE_ANNOTATION: state(RolloutState::Updated) }), None),
        StepAction::Fail { reason, message, .. } => {
            let message = truncated(format!("{reason}: {message}"), LONGEST_MESSAGE);
            // A failed rollback counts as a failure of the current key.
            let of_key = key.attempt(annotated.hash) > 0;
            let hash = if of_key { annotated.hash.to_owned() } else { key.value(1) };
            let annotations = json!({
                ROLLOUT_HASH_ANNOTATION: hash,
                ROLLOUT_STATE_ANNOTATION: state(RolloutState::Failed),
                ROLLOUT_MESSAGE_ANNOTATION: message,
            });
            (annotations, None)
        }
        StepAction::GiveUp => (json!({ ROLLOUT_STATE_ANNOTATION: state(RolloutState::Reverted) }), None),
        StepAction::Revert => {
            let annotations = json!({
                ROLLOUT_STATE_ANNOTATION: state(RolloutState::RolledBack),
                ROLLOUT_STARTED_ANNOTATION: started,
                ROLLOUT_MESSAGE_ANNOTATION: null,
            });
            (annotations, Some(json!(annotated.previous.filter(|previous| !previous.is_empty()))))
        }
        StepAction::Evict(_) => (json!({}), None),
    };
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(ROLLOUT_UID_ANNOTATION.to_owned(), json!(*resource.uid));
    }
    let mut patch = json!({"metadata": {"resourceVersion": *resource.version, "annotations": annotations}});
    if let (Some(value), Some(patch)) = (template, patch.as_object_mut()) {
        let annotations = json!({ RESTARTED_FOR_ANNOTATION: value });
        patch.insert("spec".to_owned(), json!({"template": {"metadata": {"annotations": annotations}}}));
    }
    patch
}
