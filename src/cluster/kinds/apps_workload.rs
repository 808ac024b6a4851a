//! Deployments, StatefulSets and DaemonSets: the kinds that replace their Pods when their template changes.
//!
//! In: objects of the three kinds. Out: one type, [`AppsWorkload`], with the template, the update strategy and the
//! progress of the update.

use std::{collections::BTreeMap, fmt::Debug, marker::PhantomData, sync::Arc};

use k8s_openapi::{api::apps::v1 as apps, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::Resource;
use serde::Deserialize;

use super::{
    inject::{Inject, OwnAnnotations},
    linkerd_config::config_annotations,
    sidecar::NativeSidecarOverrides,
};
use crate::api::{PROXY_NAME, RECONCILE, RESTARTED_FOR_ANNOTATION};
use crate::{
    api::{NamespacedName, lean_metadata, parameter_resource},
    cluster::{
        Problems, Projected,
        index::{selector::Labels, store::Stored, workload_key::WorkloadKey},
    },
    text::truncate,
};

/// The longest failure message that is kept, in bytes. Kubernetes quotes quotas and answers of webhooks in it, at any
/// length.
const LONGEST_FAILURE: usize = 256;
/// The `progressDeadlineSeconds` that the API server writes into a Deployment without one.
const DEFAULT_PROGRESS_DEADLINE: u32 = 600;

/// A kind of [`AppsWorkload`].
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// A Deployment, StatefulSet or DaemonSet, reduced to the fields that rollouts read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppsWorkload {
    pub workload: WorkloadKey,
    pub kind: WorkloadKind,
    pub uid: Arc<str>,
    pub version: Arc<str>,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    /// Whether another object controls the workload.
    pub controlled: bool,
    pub labels: Labels,
    /// The annotations of the LinkerdConfig group.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    /// Linkerd's annotations that would belong to the template. No observer reads them.
    pub own_annotations: OwnAnnotations,
    pub template: Template,
    pub update: UpdateStrategy,
    /// `spec.paused` of a Deployment: it does not replace Pods, even if its template changes.
    pub paused: bool,
    pub progress: WorkloadProgress,
    pub pace: WorkloadPace,
    /// Why the update of a Deployment makes no progress.
    pub failure: Option<Box<str>>,
}

/// The Pod template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The value of the opt-in label, or else of the annotation.
    pub reconcile: Option<Box<str>>,
    /// The rollout key of the last restart.
    pub restarted_for: Option<Box<str>>,
    pub inject: Inject,
    /// Whether it contains the proxy, as `linkerd inject --manual` writes it. The injector then adds none.
    pub has_proxy: bool,
    pub host_network: bool,
    pub native_sidecar_overrides: NativeSidecarOverrides,
}

/// How Pods are replaced after a change of the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// A few at a time.
    Rolling,
    /// All Pods at the same time.
    Recreate,
    /// Only when the old ones are deleted by hand.
    OnDelete,
    /// Only the Pods of a StatefulSet whose ordinal is at least this number, which is greater than 0.
    Partition(i32),
}

/// The progress of an update, as reported by the workload's controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadProgress {
    /// The counts are for the current template.
    pub observed: bool,
    pub wanted: i64,
    pub total: i64,
    /// Pods that were created from the current template.
    pub updated: i64,
    pub ready: i64,
    pub available: i64,
    /// Pods of a DaemonSet on nodes that it does not select anymore.
    pub misscheduled: i64,
}

/// The time that the owner of a workload allows for an update, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadPace {
    /// `minReadySeconds`: how long a Pod is ready before it is available.
    pub min_ready: u32,
    /// `progressDeadlineSeconds` of a Deployment, if it is longer than the default: the default is not a choice of the
    /// owner.
    pub progress_deadline: Option<u32>,
}

/// An [`AppsWorkload`] of the kind `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppsWorkloadOf<K> {
    pub resource: Arc<AppsWorkload>,
    kind: PhantomData<fn() -> K>,
}

/// The type of `k8s_openapi` for a [`WorkloadKind`].
pub trait AppsKind: Resource<DynamicType = ()> + Clone + Debug + PartialEq + Send + Sync + 'static {
    const KIND: WorkloadKind;
}

/// An object of the kind `K` as the API server sends it.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "")]
pub struct AppsObject<K> {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<WorkloadSpec>,
    #[serde(default)]
    status: Option<WorkloadStatus>,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

/// The union of `spec` of the three kinds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    replicas: Option<i64>,
    paused: Option<bool>,
    min_ready_seconds: Option<i64>,
    progress_deadline_seconds: Option<i64>,
    template: Option<TemplateObject>,
    /// The name of the field in a Deployment.
    strategy: Option<Strategy>,
    update_strategy: Option<Strategy>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Strategy {
    r#type: Option<String>,
    rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RollingUpdate {
    partition: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateObject {
    metadata: Option<TemplateMetadata>,
    spec: Option<TemplateSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateMetadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TemplateSpec {
    host_network: Option<bool>,
    init_containers: Option<Vec<TemplateContainer>>,
    containers: Option<Vec<TemplateContainer>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateContainer {
    name: String,
}

/// The union of `status` of the three kinds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadStatus {
    observed_generation: Option<i64>,
    replicas: Option<i64>,
    updated_replicas: Option<i64>,
    ready_replicas: Option<i64>,
    available_replicas: Option<i64>,
    desired_number_scheduled: Option<i64>,
    current_number_scheduled: Option<i64>,
    updated_number_scheduled: Option<i64>,
    number_ready: Option<i64>,
    number_available: Option<i64>,
    number_misscheduled: Option<i64>,
    conditions: Option<Vec<WorkloadCondition>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WorkloadCondition {
    r#type: Option<String>,
    status: Option<String>,
    reason: Option<String>,
    message: Option<String>,
}

// === impl WorkloadKind ===

impl WorkloadKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl AppsWorkload ===

impl AppsWorkload {
    fn new(kind: WorkloadKind, metadata: ObjectMeta, spec: WorkloadSpec, status: &WorkloadStatus) -> Self {
        Self {
            workload: WorkloadKey::new(
                metadata.namespace.unwrap_or_default(),
                kind.as_str(),
                metadata.name.unwrap_or_default(),
            ),
            kind,
            uid: metadata.uid.unwrap_or_default().into(),
            version: metadata.resource_version.unwrap_or_default().into(),
            created: metadata.creation_timestamp.map(|time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            controlled: metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true)),
            labels: metadata.labels.iter().flatten().collect(),
            own_annotations: OwnAnnotations::of(metadata.annotations.as_ref()),
            annotations: config_annotations(metadata.annotations),
            update: UpdateStrategy::of(kind, &spec),
            paused: kind == WorkloadKind::Deployment && spec.paused.unwrap_or_default(),
            progress: WorkloadProgress::of(kind, metadata.generation, spec.replicas, status),
            pace: WorkloadPace::of(kind, &spec),
            failure: if kind == WorkloadKind::Deployment { status.failure() } else { None },
            template: Template::of(spec.template.unwrap_or_default()),
        }
    }

    /// Whether more than the resourceVersion and the annotations that no observer reads differs.
    fn is_change(&self, known: &Self) -> bool {
        let (version, own_annotations) = (Arc::clone(&known.version), known.own_annotations.clone());
        Self { version, own_annotations, ..self.clone() } != *known
    }
}

impl Template {
    fn of(object: TemplateObject) -> Self {
        let TemplateMetadata { labels, annotations } = object.metadata.unwrap_or_default();
        let inject = Inject::of(annotations.as_ref());
        let (labels, mut annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
        let native_sidecar_overrides = NativeSidecarOverrides::of(|key| annotations.get(key).map(String::as_str));
        let TemplateSpec { host_network, init_containers, containers } = object.spec.unwrap_or_default();
        let mut containers = init_containers.iter().chain(&containers).flatten();
        Self {
            native_sidecar_overrides,
            reconcile: labels.get(RECONCILE).or(annotations.get(RECONCILE)).map(|it| it.as_str().into()),
            restarted_for: annotations.remove(RESTARTED_FOR_ANNOTATION).map(Into::into),
            inject,
            has_proxy: containers.any(|container| container.name == PROXY_NAME),
            host_network: host_network.unwrap_or_default(),
        }
    }
}

impl UpdateStrategy {
    fn of(kind: WorkloadKind, spec: &WorkloadSpec) -> Self {
        let strategy = match kind {
            WorkloadKind::Deployment => &spec.strategy,
            WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => &spec.update_strategy,
        };
        let Some(Strategy { r#type, rolling_update }) = strategy else { return Self::Rolling };
        let partition = rolling_update.as_ref().and_then(|it| it.partition).filter(|partition| *partition > 0);
        match (kind, r#type.as_deref(), partition) {
            (WorkloadKind::Deployment, Some("Recreate"), _) => Self::Recreate,
            (WorkloadKind::StatefulSet | WorkloadKind::DaemonSet, Some("OnDelete"), _) => Self::OnDelete,
            (WorkloadKind::StatefulSet, _, Some(partition)) => Self::Partition(partition),
            _ => Self::Rolling,
        }
    }
}

impl WorkloadProgress {
    fn of(kind: WorkloadKind, generation: Option<i64>, replicas: Option<i64>, status: &WorkloadStatus) -> Self {
        let [wanted, total, updated, ready, available] = match kind {
            WorkloadKind::Deployment | WorkloadKind::StatefulSet => [
                replicas.or(Some(1)),
                status.replicas,
                status.updated_replicas,
                status.ready_replicas,
                status.available_replicas,
            ],
            WorkloadKind::DaemonSet => [
                status.desired_number_scheduled,
                status.current_number_scheduled,
                status.updated_number_scheduled,
                status.number_ready,
                status.number_available,
            ],
        }
        .map(Option::unwrap_or_default);
        let observed = status.observed_generation.unwrap_or_default() >= generation.unwrap_or_default();
        let misscheduled = status.number_misscheduled.unwrap_or_default();
        Self { observed, wanted, total, updated, ready, available, misscheduled }
    }
}

impl WorkloadPace {
    fn of(kind: WorkloadKind, spec: &WorkloadSpec) -> Self {
        let seconds = |value: Option<i64>| u32::try_from(value.unwrap_or_default().max(0)).unwrap_or(u32::MAX);
        let progress_deadline = Some(seconds(spec.progress_deadline_seconds))
            .filter(|it| kind == WorkloadKind::Deployment && *it > DEFAULT_PROGRESS_DEADLINE);
        Self { min_ready: seconds(spec.min_ready_seconds), progress_deadline }
    }
}

impl WorkloadStatus {
    /// The message of `ReplicaFailure`, or else of `Progressing=False`: the first names the cause, the second only the
    /// missed deadline.
    fn failure(&self) -> Option<Box<str>> {
        let text = |wanted: &str, value: &str| {
            let mut conditions = self.conditions.iter().flatten();
            let is =
                |it: &&WorkloadCondition| it.r#type.as_deref() == Some(wanted) && it.status.as_deref() == Some(value);
            let WorkloadCondition { message, reason, .. } = conditions.find(is)?;
            message.as_deref().filter(|it| !it.is_empty()).or(reason.as_deref())
        };
        let text = text("ReplicaFailure", "True").or_else(|| text("Progressing", "False"))?;
        Some(truncate(text, LONGEST_FAILURE).into())
    }
}

// === impl AppsObject ===

parameter_resource!(AppsObject, metadata_api: false);

// === impl AppsWorkloadOf ===

impl<K: AppsKind> Projected for AppsWorkloadOf<K> {
    type Wire = AppsObject<K>;

    fn project(AppsObject { metadata, spec, status, .. }: AppsObject<K>, _: &mut Problems) -> Self {
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        Self { resource: Arc::new(AppsWorkload::new(K::KIND, metadata, spec, &status)), kind: PhantomData }
    }
}

impl<K: AppsKind> Stored for AppsWorkloadOf<K> {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        let WorkloadKey { namespace, name, .. } = &self.resource.workload;
        NamespacedName { namespace: Arc::clone(namespace), name: Arc::clone(name) }
    }

    fn is_change(&self, known: &Self) -> bool {
        self.resource.is_change(&known.resource)
    }
}

impl AppsKind for apps::Deployment {
    const KIND: WorkloadKind = WorkloadKind::Deployment;
}

impl AppsKind for apps::StatefulSet {
    const KIND: WorkloadKind = WorkloadKind::StatefulSet;
}

impl AppsKind for apps::DaemonSet {
    const KIND: WorkloadKind = WorkloadKind::DaemonSet;
}

#[cfg(test)]
#[path = "apps_workload_tests.rs"]
mod tests;
