//! Carries out one step on a workload.
//!
//! Always holds: leadership is checked right before each write; a workload is changed only as it was looked at, so that whoever
//! looked at something older changes nothing; its template is changed in one annotation alone, and together with what says so.

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
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry, exponential_buckets};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    board::Action,
    goal::RolloutKey,
    state::{
        Annotated, HASH_ANNOTATION, MESSAGE_ANNOTATION, PREVIOUS_ANNOTATION, RolloutState, STARTED_ANNOTATION,
        STATE_ANNOTATION,
    },
};
use crate::{
    api::{RESTARTED_FOR_ANNOTATION, linkerd_config::RolloutMethod},
    cluster::kinds::apps_workload::{AppsWorkload, WorkloadKind},
    lease::Fence,
    linkerd_config::drift::FIELD_MANAGER,
    write::WriteError,
};

/// Of what a workload says about its failure.
const LONGEST_MESSAGE: usize = 512;

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
        let restarts = IntCounterVec::new(
            Opts::new(
                "linkerd_operator_linkerdconfig_restarts_total",
                "Restarts of workloads that began, were finished, failed or were taken back",
            ),
            &["kind", "result"],
        )?;
        for kind in WorkloadKind::ALL {
            for result in ["started", "retried", "updated", "failed", "reverted"] {
                restarts.with_label_values(&[kind.as_str(), result]);
            }
        }
        let seconds = Histogram::with_opts(
            HistogramOpts::new(
                "linkerd_operator_linkerdconfig_workload_rollout_seconds",
                "From the restart of a workload until all its proxies ran with the configuration, its soak included",
            )
            // Up to 68 minutes.
            .buckets(exponential_buckets(1.0, 2.0, 13)?),
        )?;
        registry.register(Box::new(restarts.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self { client: client.clone(), fence, restarts, seconds })
    }

    /// The version of the workload that the step made; empty where it made none.
    pub(super) async fn carry_out(
        &self,
        resource: &AppsWorkload,
        action: &Action,
        key: &RolloutKey,
        now: Timestamp,
    ) -> Result<String, WriteError> {
        if let Action::Evict(pod) = action {
            return self.evict(&resource.workload.namespace, pod).await.map(|()| String::new());
        }
        let patch = patch(resource, action, key, now);
        let version = match resource.kind {
            WorkloadKind::Deployment => self.patch::<Deployment>(resource, &patch).await,
            WorkloadKind::StatefulSet => self.patch::<StatefulSet>(resource, &patch).await,
            WorkloadKind::DaemonSet => self.patch::<DaemonSet>(resource, &patch).await,
        }?;
        let result = match action {
            Action::Start(_) => "started",
            Action::Retry(_) => "retried",
            Action::Finish { .. } => "updated",
            Action::Fail { .. } => "failed",
            Action::Revert | Action::Evict(_) => "reverted",
        };
        self.restarts.with_label_values(&[resource.kind.as_str(), result]).inc();
        if let Action::Finish { since: Some(since) } = action {
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
        // Only the metadata comes back.
        let request = async { api.patch_metadata(&resource.workload.name, &params, &Patch::Merge(patch)).await };
        Ok(self.fence.send(request).await?.resource_version().unwrap_or_default())
    }

    /// One that is gone is as good as evicted.
    async fn evict(&self, namespace: &str, pod: &str) -> Result<(), WriteError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match self.fence.send(async { pods.evict(pod, &EvictParams::default()).await }).await {
            Err(WriteError::Refused(status)) if status.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }
}

/// A merge patch of the workload.
pub(super) fn patch(resource: &AppsWorkload, action: &Action, key: &RolloutKey, now: Timestamp) -> Value {
    let annotated = Annotated::of(resource);
    let started = format!("{now:.0}");
    let in_template = resource.template.restarted_for.as_deref();
    let state = |state: RolloutState| state.as_str();
    let (annotations, template) = match action {
        Action::Start(start) => {
            let by_template = start.method == RolloutMethod::Restart;
            let annotations = json!({
                HASH_ANNOTATION: start.value,
                STATE_ANNOTATION: state(RolloutState::Updating),
                STARTED_ANNOTATION: started,
                PREVIOUS_ANNOTATION: by_template.then(|| in_template.unwrap_or_default()),
                MESSAGE_ANNOTATION: null,
            });
            (annotations, by_template.then(|| json!(start.value)))
        }
        Action::Retry(value) => {
            let annotations = json!({
                HASH_ANNOTATION: value,
                STATE_ANNOTATION: state(RolloutState::Retrying),
                STARTED_ANNOTATION: started,
            });
            (annotations, Some(json!(value)))
        }
        Action::Finish { .. } => (json!({ STATE_ANNOTATION: state(RolloutState::Updated) }), None),
        Action::Fail { reason, message } => {
            let mut message = format!("{reason}: {message}");
            message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
            // What was taken back failed to come back: that is a failure of what is wanted now.
            let of_key = key.attempt(annotated.hash) > 0;
            let hash = if of_key { annotated.hash.to_owned() } else { key.value(1) };
            let annotations = json!({
                HASH_ANNOTATION: hash,
                STATE_ANNOTATION: state(RolloutState::Failed),
                MESSAGE_ANNOTATION: message,
            });
            (annotations, None)
        }
        Action::Revert => {
            let annotations = json!({
                STATE_ANNOTATION: state(RolloutState::RolledBack),
                STARTED_ANNOTATION: started,
                MESSAGE_ANNOTATION: null,
            });
            (annotations, Some(json!(annotated.previous.filter(|previous| !previous.is_empty()))))
        }
        Action::Evict(_) => (json!({}), None),
    };
    let mut patch = json!({"metadata": {"resourceVersion": *resource.version, "annotations": annotations}});
    if let (Some(value), Some(patch)) = (template, patch.as_object_mut()) {
        let annotations = json!({ RESTARTED_FOR_ANNOTATION: value });
        patch.insert("spec".to_owned(), json!({"template": {"metadata": {"annotations": annotations}}}));
    }
    patch
}
