//! Deployments, StatefulSets and DaemonSets: what makes Pods anew when its template changes, and how far it is with that.
//!
//! In: three watched kinds, which are one here. Out: [`AppsWorkloads`], found by what stands at the top of a Pod's owners.

use std::{collections::BTreeMap, fmt::Debug, marker::PhantomData, sync::Arc};

use k8s_openapi::{api::apps::v1 as apps, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, de::DeserializeOwned};

use super::{config_annotations, inject::Inject};
use crate::api::{RECONCILE, RESTARTED_FOR_ANNOTATION};
use crate::{
    api::{NamespacedName, lean_metadata},
    cluster::{
        Change, Diff, Kind, Problems, Projected, State,
        index::{selector::Labels, workload_key::WorkloadKey},
    },
    text::truncate,
};

/// Of what Kubernetes says about a failure: it quotes quotas and webhooks, however long they are.
const LONGEST_FAILURE: usize = 256;

/// A kind of [`AppsWorkload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr, strum::VariantArray)]
pub enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

/// A Deployment, StatefulSet or DaemonSet, reduced to what rollouts read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppsWorkload {
    pub workload: WorkloadKey,
    pub kind: WorkloadKind,
    pub uid: Arc<str>,
    pub version: Arc<str>,
    pub deleting: bool,
    pub labels: Labels,
    /// Those of the LinkerdConfig group.
    pub annotations: BTreeMap<Box<str>, Box<str>>,
    pub template: Template,
    pub update: UpdateStrategy,
    /// A Deployment that makes no Pods anew, whatever its template says.
    pub paused: bool,
    pub progress: WorkloadProgress,
    /// Why a Deployment gets no further.
    pub failure: Option<Box<str>>,
}

/// What its Pods are made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The label, else the annotation, that opts in or out.
    pub reconcile: Option<Box<str>>,
    /// What it was last restarted for.
    pub restarted_for: Option<Box<str>>,
    pub inject: Inject,
    pub host_network: bool,
}

/// How Pods follow a template that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateStrategy {
    /// A few at a time.
    Rolling,
    /// All at once.
    Recreate,
    /// When somebody deletes the old ones.
    OnDelete,
    /// Of a StatefulSet only those from this number on, which is more than 0.
    Partition(i32),
}

/// How far its Pods are, as its controller said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadProgress {
    /// It was said of the template as it is now.
    pub observed: bool,
    pub wanted: i64,
    pub total: i64,
    /// Made from the template as it is now.
    pub updated: i64,
    pub ready: i64,
    pub available: i64,
}

/// All Deployments, StatefulSets and DaemonSets of a cluster.
#[derive(Default)]
pub struct AppsWorkloads(BTreeMap<WorkloadKey, Arc<AppsWorkload>>);

/// A [`AppsWorkload`] as one of its kinds.
pub struct AppsWorkloadOf<W> {
    resource: AppsWorkload,
    wire: PhantomData<fn() -> W>,
}

/// One of the kinds as the API server sends it.
pub trait WorkloadObject:
    Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static
{
    const KIND: WorkloadKind;
    const WATCHED: Kind;
    const RESOURCE: &'static str;
    const CACHE_SIZE: &'static str;
    fn change(diff: Diff<AppsWorkload>) -> Change;
    fn into_parts(self) -> (ObjectMeta, Option<WorkloadSpec>, Option<WorkloadStatus>);
}

#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "apps::Deployment")]
pub struct DeploymentObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<WorkloadSpec>,
    #[serde(default)]
    status: Option<WorkloadStatus>,
}

#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "apps::StatefulSet")]
pub struct StatefulSetObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<WorkloadSpec>,
    #[serde(default)]
    status: Option<WorkloadStatus>,
}

#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "apps::DaemonSet")]
pub struct DaemonSetObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<WorkloadSpec>,
    #[serde(default)]
    status: Option<WorkloadStatus>,
}

/// What is below `spec` of any of the kinds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    replicas: Option<i64>,
    paused: Option<bool>,
    template: Option<TemplateObject>,
    /// As Deployments call it.
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
}

/// What is below `status` of any of the kinds.
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
            deleting: metadata.deletion_timestamp.is_some(),
            labels: metadata.labels.iter().flatten().collect(),
            annotations: config_annotations(metadata.annotations),
            update: UpdateStrategy::of(kind, &spec),
            paused: kind == WorkloadKind::Deployment && spec.paused.unwrap_or_default(),
            progress: WorkloadProgress::of(kind, metadata.generation, spec.replicas, status),
            failure: if kind == WorkloadKind::Deployment { status.failure() } else { None },
            template: Template::of(spec.template.unwrap_or_default()),
        }
    }

    /// Whether nothing changed but its version.
    fn eq_ignoring_version(&self, other: &Self) -> bool {
        let Self { workload, kind, uid, version: _, deleting, labels, annotations, template, update, .. } = self;
        let Self { paused, progress, failure, .. } = self;
        (workload, kind, uid, deleting, labels)
            == (&other.workload, &other.kind, &other.uid, &other.deleting, &other.labels)
            && (annotations, template, update) == (&other.annotations, &other.template, &other.update)
            && (paused, progress, failure) == (&other.paused, &other.progress, &other.failure)
    }
}

impl Template {
    fn of(object: TemplateObject) -> Self {
        let TemplateMetadata { labels, annotations } = object.metadata.unwrap_or_default();
        let inject = Inject::of(annotations.as_ref());
        let (labels, mut annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
        Self {
            reconcile: labels.get(RECONCILE).or(annotations.get(RECONCILE)).map(|it| it.as_str().into()),
            restarted_for: annotations.remove(RESTARTED_FOR_ANNOTATION).map(Into::into),
            inject,
            host_network: object.spec.and_then(|spec| spec.host_network).unwrap_or_default(),
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
        Self { observed, wanted, total, updated, ready, available }
    }
}

impl WorkloadStatus {
    /// That no Pods can be made, which says why; else that they do not become available in time.
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

// === impl AppsWorkloadOf ===

impl<W: WorkloadObject> Projected for AppsWorkloadOf<W> {
    type Wire = W;
    type Object = AppsWorkload;
    const KIND: Kind = W::WATCHED;
    const RESOURCE: &'static str = W::RESOURCE;
    const CACHE_SIZE: &'static str = W::CACHE_SIZE;

    fn project(wire: W, _: &mut Problems) -> Self {
        let (metadata, spec, status) = wire.into_parts();
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        Self { resource: AppsWorkload::new(W::KIND, metadata, spec, &status), wire: PhantomData }
    }

    fn apply(self, state: &mut State) -> Option<Change> {
        let known = state.apps_workloads.get(&self.resource.workload).cloned();
        let is_change = known.as_ref().is_none_or(|known| !known.eq_ignoring_version(&self.resource));
        let new = state.apps_workloads.insert(self.resource);
        is_change.then(|| W::change(Diff::of(known, new)))
    }

    fn remove(key: &NamespacedName, state: &mut State) -> Option<Change> {
        let workload = WorkloadKey::new(Arc::clone(&key.namespace), W::KIND.as_str(), Arc::clone(&key.name));
        state.apps_workloads.0.remove(&workload).map(|old| W::change(Diff::Deleted(old)))
    }

    fn keys(state: &State) -> Vec<NamespacedName> {
        let all = state.apps_workloads.of_kind(W::KIND).map(|resource| &resource.workload);
        all.map(|it| NamespacedName::new(Arc::clone(&it.namespace), Arc::clone(&it.name))).collect()
    }

    fn count(state: &State) -> usize {
        state.apps_workloads.of_kind(W::KIND).count()
    }
}

impl WorkloadObject for DeploymentObject {
    const KIND: WorkloadKind = WorkloadKind::Deployment;
    const WATCHED: Kind = Kind::Deployment;
    const RESOURCE: &'static str = "deployments.apps";
    const CACHE_SIZE: &'static str = "deployment_cache_size";

    fn change(diff: Diff<AppsWorkload>) -> Change {
        Change::Deployment(diff)
    }

    fn into_parts(self) -> (ObjectMeta, Option<WorkloadSpec>, Option<WorkloadStatus>) {
        (self.metadata, self.spec, self.status)
    }
}

impl WorkloadObject for StatefulSetObject {
    const KIND: WorkloadKind = WorkloadKind::StatefulSet;
    const WATCHED: Kind = Kind::StatefulSet;
    const RESOURCE: &'static str = "statefulsets.apps";
    const CACHE_SIZE: &'static str = "statefulset_cache_size";

    fn change(diff: Diff<AppsWorkload>) -> Change {
        Change::StatefulSet(diff)
    }

    fn into_parts(self) -> (ObjectMeta, Option<WorkloadSpec>, Option<WorkloadStatus>) {
        (self.metadata, self.spec, self.status)
    }
}

impl WorkloadObject for DaemonSetObject {
    const KIND: WorkloadKind = WorkloadKind::DaemonSet;
    const WATCHED: Kind = Kind::DaemonSet;
    const RESOURCE: &'static str = "daemonsets.apps";
    const CACHE_SIZE: &'static str = "daemonset_cache_size";

    fn change(diff: Diff<AppsWorkload>) -> Change {
        Change::DaemonSet(diff)
    }

    fn into_parts(self) -> (ObjectMeta, Option<WorkloadSpec>, Option<WorkloadStatus>) {
        (self.metadata, self.spec, self.status)
    }
}

// === impl AppsWorkloads ===

impl AppsWorkloads {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, workload: &WorkloadKey) -> Option<&Arc<AppsWorkload>> {
        self.0.get(workload)
    }

    /// By namespace, kind and name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<AppsWorkload>> {
        self.0.values()
    }

    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<AppsWorkload>> {
        let first = WorkloadKey::new(namespace, "", "");
        self.0.range(first..).map(|(_, resource)| resource).take_while(|it| *it.workload.namespace == *namespace)
    }

    pub fn of_kind(&self, kind: WorkloadKind) -> impl Iterator<Item = &Arc<AppsWorkload>> {
        self.all().filter(move |resource| resource.kind == kind)
    }

    fn insert(&mut self, resource: AppsWorkload) -> Arc<AppsWorkload> {
        let resource = Arc::new(resource);
        self.0.insert(resource.workload.clone(), Arc::clone(&resource));
        resource
    }
}

#[cfg(test)]
#[path = "apps_workload_tests.rs"]
mod tests;
