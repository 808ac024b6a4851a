//! Deployments, StatefulSets and DaemonSets with injection enabled, as users write them.
//!
//! * In: a client, a namespace, and values to merge into the workload. Out: [`Workload`]s to change and to wait for,
//!   and the proxies of their Pods.
//! * Always: a workload, its template and its Pods are labelled `app: <name>` and [`MARK`], by which [`remove_all`]
//!   finds them.
//! * It uses other types than the operator, so that a mistake in the operator's types is detected.

use std::{collections::BTreeSet, fmt, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};

use crate::{
    mesh::{Mesh, merge},
    objects::kind,
    wait::eventually,
};

/// The label of workloads created here, and of their Pods.
pub const MARK: &str = "linkerd-operator-e2e=workload";
/// The tag of an image that never runs: a Pod with this tag in any container is scheduled and then stays Pending.
pub const NEVER_READY: &str = "never-ready";
/// The annotation that the operator writes on Pod templates.
pub const RESTARTED_FOR: &str = "config.linkerd.io/restarted-for";

/// The longest time until workloads are restarted, or a rollout changes its state.
pub const DEADLINE: Duration = Duration::from_secs(60);
const CLEARED: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
}

#[derive(Clone)]
pub struct Workload {
    kind: Kind,
    namespace: String,
    name: String,
    client: Client,
    objects: Api<DynamicObject>,
    pods: Api<Pod>,
}

/// The proxy that was injected into a Pod.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Proxy {
    /// The value of its variable `LINKERD_CONFIG_HASH`.
    pub marker: Option<String>,
    pub version: Option<String>,
    /// The bundle of its trust anchors.
    pub trust_anchors: Option<String>,
}

/// A label on the workload itself, as the operator's documentation recommends.
pub fn opted_in() -> Value {
    reconciled("auto")
}

pub fn reconciled(value: &str) -> Value {
    json!({"metadata": {"labels": {"config.linkerd.io/reconcile": value}}})
}

/// Creates a workload in this namespace, with `over` merged over the defaults: an object without `apiVersion` and
/// `kind`.
pub async fn put(
    client: &Client,
    namespace: &str,
    kind: Kind,
    name: &str,
    replicas: usize,
    over: Value,
) -> Result<Workload> {
    let objects = Api::namespaced_with(client.clone(), namespace, &kind.resource());
    let labels = json!({"app": name, "linkerd-operator-e2e": "workload"});
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": kind.as_str(),
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels, "annotations": {"linkerd.io/inject": "enabled"}},
                // kwok has no processes that need time to end.
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": name, "image": name}]},
            },
        },
    });
    match kind {
        Kind::Deployment => merge(&mut object, json!({"spec": {"replicas": replicas}})),
        Kind::StatefulSet => merge(&mut object, json!({"spec": {"replicas": replicas, "serviceName": name}})),
        Kind::DaemonSet => {}
    }
    merge(&mut object, over);
    objects
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .with_context(|| format!("creating {} {namespace}/{name}", kind.as_str()))?;
    let (namespace, name, client) = (namespace.to_owned(), name.to_owned(), client.clone());
    Ok(Workload { kind, pods: Api::namespaced(client.clone(), &namespace), objects, namespace, name, client })
}

/// Deletes every marked workload of the cluster, with its Pods and Jobs, and waits until they are deleted.
pub async fn remove_all(client: &Client) -> Result<()> {
    let kinds = [
        kind("apps/v1", "Deployment"),
        kind("apps/v1", "StatefulSet"),
        kind("apps/v1", "DaemonSet"),
        kind("apps/v1", "ReplicaSet"),
        kind("batch/v1", "Job"),
        // Last, because the controllers of the others would recreate the Pods.
        kind("v1", "Pod"),
    ];
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    eventually(CLEARED, "the workloads of earlier tests to be deleted", async || {
        let mut left = Vec::new();
        for kind in &kinds {
            let all: Api<DynamicObject> = Api::all_with(client.clone(), kind);
            for object in all.list(&ListParams::default().labels(MARK)).await? {
                let namespace = object.namespace().context("an object without namespace")?;
                let its: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, kind);
                // The object may have been deleted concurrently.
                let _ = its.delete(&object.name_any(), &now).await;
                left.push(format!("{} {namespace}/{}", kind.kind, object.name_any()));
            }
        }
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

// === impl Kind ===

impl Kind {
    pub const ALL: [Self; 3] = [Self::Deployment, Self::StatefulSet, Self::DaemonSet];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
        }
    }

    pub(crate) fn resource(self) -> ApiResource {
        kind("apps/v1", self.as_str())
    }

    /// Returns whether the rollout is complete: all replicas are of the newest template and available.
    pub(crate) fn is_settled(self, object: &DynamicObject) -> bool {
        let number = |path: &str| object.data.pointer(path).and_then(Value::as_i64).unwrap_or_default();
        let (wanted, total) = match self {
            Self::Deployment | Self::StatefulSet => (number("/spec/replicas"), number("/status/replicas")),
            Self::DaemonSet => (number("/status/desiredNumberScheduled"), number("/status/currentNumberScheduled")),
        };
        let (updated, available) = match self {
            Self::Deployment | Self::StatefulSet => {
                (number("/status/updatedReplicas"), number("/status/availableReplicas"))
            }
            Self::DaemonSet => (number("/status/updatedNumberScheduled"), number("/status/numberAvailable")),
        };
        let observed = Some(number("/status/observedGeneration")) == object.metadata.generation;
        observed && [total, updated, available].iter().all(|count| *count == wanted)
    }
}

pub(crate) fn restarted_for(object: &DynamicObject) -> Option<String> {
    let annotations = object.data.pointer("/spec/template/metadata/annotations")?;
    Some(annotations.get(RESTARTED_FOR)?.as_str()?.to_owned())
}

// === impl Workload ===

impl Workload {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub async fn object(&self) -> Result<DynamicObject> {
        Ok(self.objects.get(&self.name).await?)
    }

    pub async fn patch(&self, patch: Value) -> Result<()> {
        self.objects.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub async fn scale(&self, replicas: usize) -> Result<()> {
        self.patch(json!({"spec": {"replicas": replicas}})).await
    }

    /// An annotation of the workload itself, by the part of its key after `config.linkerd.io/`.
    pub async fn annotation(&self, name: &str) -> Result<Option<String>> {
        Ok(self.object().await?.annotations().get(&format!("config.linkerd.io/{name}")).cloned())
    }

    /// The annotation of the last restart on the Pod template.
    pub async fn restarted_for(&self) -> Result<Option<String>> {
        Ok(restarted_for(&self.object().await?))
    }

    /// The Pods that are not being deleted.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let labels = format!("app={},{MARK}", self.name);
        let mut pods = self.pods.list(&ListParams::default().labels(&labels)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// The UIDs of its Pods.
    pub async fn uids(&self) -> Result<BTreeSet<String>> {
        self.pods().await?.into_iter().map(|pod| pod.metadata.uid.context("a Pod without uid")).collect()
    }

    /// The proxy of each Pod; `None` for a Pod without a proxy.
    pub async fn proxies(&self) -> Result<Vec<Option<Proxy>>> {
        Ok(self.pods().await?.iter().map(proxy).collect())
    }

    /// Waits until the rollout is complete and the workload has this number of Pods.
    pub async fn is_settled(&self, pods: usize) -> Result<()> {
        eventually(DEADLINE, format_args!("{self} to have {pods} Pods and be settled"), async || {
            self.is_settled_now(pods).await
        })
        .await
    }

    async fn is_settled_now(&self, pods: usize) -> Result<()> {
        let object = self.object().await?;
        ensure!(self.kind.is_settled(&object), "{:?}", object.data.get("status"));
        let seen = self.pods().await?.len();
        ensure!(seen == pods, "{seen} Pods");
        Ok(())
    }

    /// Fails unless the workload now has this number of available Pods, all with proxies of this marker.
    pub async fn has(&self, pods: usize, marker: &str) -> Result<()> {
        self.is_settled_now(pods).await.with_context(|| self.to_string())?;
        self.is_marked(marker).await
    }

    /// Fails unless all its Pods now have proxies of this marker.
    pub async fn is_marked(&self, marker: &str) -> Result<()> {
        for proxy in self.proxies().await? {
            let seen = proxy.as_ref().and_then(|proxy| proxy.marker.as_deref());
            ensure!(seen == Some(marker), "{self} has a Pod with {proxy:?} instead of {marker}");
        }
        Ok(())
    }

    /// Waits until [`Workload::has`] succeeds.
    pub async fn gets(&self, pods: usize, marker: &str) -> Result<()> {
        eventually(DEADLINE, format_args!("{self} to have {pods} Pods of {marker}"), async || {
            self.has(pods, marker).await
        })
        .await
    }

    /// The operator's Events on the workload, as `reason: note`, oldest first.
    pub async fn events(&self) -> Result<Vec<String>> {
        Mesh::new(&self.client, &self.namespace).events_of(&self.name).await
    }

    /// Waits for an Event with this reason, and returns it.
    pub async fn expect_event(&self, reason: &str) -> Result<String> {
        Mesh::new(&self.client, &self.namespace).expect_event(&self.name, reason).await
    }

    /// The number of Events with this reason.
    pub async fn event_count(&self, reason: &str) -> Result<usize> {
        let events = self.events().await?;
        Ok(events.iter().filter(|event| event.starts_with(&format!("{reason}: "))).count())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.namespace, self.kind.as_str(), self.name)
    }
}

/// The proxy of a Pod; `None` when it has none.
pub fn proxy(pod: &Pod) -> Option<Proxy> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let container = containers.find(|container| container.name == "linkerd-proxy")?;
    let variable = |name: &str| container.env.iter().flatten().find(|variable| variable.name == name)?.value.clone();
    let annotation = |name: &str| pod.annotations().get(&format!("linkerd.io/{name}")).cloned();
    Some(Proxy {
        marker: variable("LINKERD_CONFIG_HASH"),
        version: annotation("proxy-version"),
        trust_anchors: variable("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, data: &Value) -> DynamicObject {
        let mut object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web", "generation": 2}});
        merge(&mut object, data.clone());
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_deployment_is_settled_when_every_replica_is_new_and_available() {
        let settled = json!({"spec": {"replicas": 2}, "status": {
            "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2,
        }});
        assert!(Kind::Deployment.is_settled(&object("Deployment", &settled)));
        for (field, number) in
            [("observedGeneration", 1), ("replicas", 3), ("updatedReplicas", 1), ("availableReplicas", 1)]
        {
            let mut other = settled.clone();
            other["status"][field] = json!(number);
            assert!(!Kind::Deployment.is_settled(&object("Deployment", &other)), "{field}");
        }
    }

    #[test]
    fn the_proxy_is_found_among_containers_and_init_containers() {
        let container = json!({"name": "linkerd-proxy", "env": [{"name": "LINKERD_CONFIG_HASH", "value": "a"}]});
        for place in ["containers", "initContainers"] {
            let mut pod = json!({
                "metadata": {"annotations": {"linkerd.io/proxy-version": "v1"}},
                "spec": {"containers": [{"name": "web"}], "initContainers": [{"name": "linkerd-init"}]},
            });
            pod["spec"][place].as_array_mut().unwrap().push(container.clone());
            let found = proxy(&serde_json::from_value(pod).unwrap()).unwrap();
            assert_eq!((found.marker.as_deref(), found.version.as_deref()), (Some("a"), Some("v1")));
        }
        assert_eq!(proxy(&Pod::default()), None);
    }
}
