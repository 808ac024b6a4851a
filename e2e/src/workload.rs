//! Deployments, StatefulSets and DaemonSets whose Pods ask to be injected, as users write them.
//!
//! * In: a client, a namespace, and what a workload has besides. Out: [`Workload`]s to change and to wait for, and what their Pods
//!   got from the injector.
//! * Always: a workload, its template and its Pods are labelled `app: <name>` and [`MARK`], by which [`remove_all`] finds them.
//! * Written with other types than the operator's, so that a mistake in those cannot hide itself.

use std::{collections::BTreeSet, fmt, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
        PropagationPolicy,
    },
};
use serde_json::{Value, json};

use crate::{
    mesh::{Mesh, merge},
    wait::eventually,
};

/// The label of all that belongs to a workload here.
pub const MARK: &str = "linkerd-operator-e2e=workload";
/// The tag of an image that never runs: a Pod that has it in any container stays as it was scheduled.
pub const NEVER_READY: &str = "never-ready";
/// What the operator writes on templates.
pub const RESTARTED_FOR: &str = "config.linkerd.io/restarted-for";

const DEADLINE: Duration = Duration::from_secs(60);
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

/// What a Pod got when it was born.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Proxy {
    /// Its variable `LINKERD_CONFIG_HASH`.
    pub marker: Option<String>,
    pub version: Option<String>,
    /// The SHA-256 of its trust anchors.
    pub trust_roots: Option<String>,
}

/// A label on the workload itself, as the operator's documentation advises.
pub fn opted_in() -> Value {
    reconciled("auto")
}

pub fn reconciled(value: &str) -> Value {
    json!({"metadata": {"labels": {"config.linkerd.io/reconcile": value}}})
}

/// Makes a workload in this namespace, with this over it: an object without `apiVersion` and `kind`.
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
                // In kwok nothing has to be ended.
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

/// Every workload there is in the cluster goes, with its Pods and Jobs; when it returns, they are no more.
pub async fn remove_all(client: &Client) -> Result<()> {
    let kinds = [
        ("apps", "Deployment"),
        ("apps", "StatefulSet"),
        ("apps", "DaemonSet"),
        ("apps", "ReplicaSet"),
        ("batch", "Job"),
        // Last, because the others would make them again.
        ("", "Pod"),
    ];
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    eventually(CLEARED, "the workloads of earlier tests to be gone", async || {
        let mut left = Vec::new();
        for (group, kind) in kinds {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
            let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            for object in all.list(&ListParams::default().labels(MARK)).await? {
                let namespace = object.namespace().context("an object without namespace")?;
                let its: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
                // Somebody else may have been quicker.
                let _ = its.delete(&object.name_any(), &now).await;
                left.push(format!("{kind} {namespace}/{}", object.name_any()));
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
        ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", self.as_str()))
    }

    /// Whether its controller has done everything: all replicas are of the newest template, and available.
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

    /// Of the workload itself, one of the operator's: the part of the name after `config.linkerd.io/`.
    pub async fn annotation(&self, name: &str) -> Result<Option<String>> {
        Ok(self.object().await?.annotations().get(&format!("config.linkerd.io/{name}")).cloned())
    }

    /// What its template was restarted for last.
    pub async fn restarted_for(&self) -> Result<Option<String>> {
        Ok(restarted_for(&self.object().await?))
    }

    /// Those that are not on their way out.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let labels = format!("app={},{MARK}", self.name);
        let mut pods = self.pods.list(&ListParams::default().labels(&labels)).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(pods)
    }

    /// Which Pods it has, whatever their names.
    pub async fn uids(&self) -> Result<BTreeSet<String>> {
        self.pods().await?.into_iter().map(|pod| pod.metadata.uid.context("a Pod without uid")).collect()
    }

    /// The proxies of its Pods; of one without proxy, none.
    pub async fn proxies(&self) -> Result<Vec<Option<Proxy>>> {
        Ok(self.pods().await?.iter().map(proxy).collect())
    }

    /// Waits until its controller has done everything and it has so many Pods.
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

    /// Fails unless it has so many Pods now, available, and all with proxies of this marker.
    pub async fn has(&self, pods: usize, marker: &str) -> Result<()> {
        self.is_settled_now(pods).await.with_context(|| self.to_string())?;
        self.is_marked(marker).await
    }

    /// Fails unless all its Pods have proxies of this marker now.
    pub async fn is_marked(&self, marker: &str) -> Result<()> {
        for proxy in self.proxies().await? {
            let seen = proxy.as_ref().and_then(|proxy| proxy.marker.as_deref());
            ensure!(seen == Some(marker), "{self} has a Pod with {proxy:?} instead of {marker}");
        }
        Ok(())
    }

    /// Waits for what [`Workload::has`] asks.
    pub async fn gets(&self, pods: usize, marker: &str) -> Result<()> {
        eventually(DEADLINE, format_args!("{self} to have {pods} Pods of {marker}"), async || {
            self.has(pods, marker).await
        })
        .await
    }

    /// Its Events from the operator, as `reason: note`, oldest first.
    pub async fn events(&self) -> Result<Vec<String>> {
        Mesh::new(&self.client, &self.namespace).events_of(&self.name).await
    }

    /// Waits for an Event with this reason.
    pub async fn tells(&self, reason: &str) -> Result<String> {
        Mesh::new(&self.client, &self.namespace).tells(&self.name, reason).await
    }

    /// How many Events of this reason it has.
    pub async fn told(&self, reason: &str) -> Result<usize> {
        let events = self.events().await?;
        Ok(events.iter().filter(|event| event.starts_with(&format!("{reason}: "))).count())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.namespace, self.kind.as_str(), self.name)
    }
}

/// None of a Pod without one.
pub fn proxy(pod: &Pod) -> Option<Proxy> {
    let spec = pod.spec.as_ref()?;
    let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let container = containers.find(|container| container.name == "linkerd-proxy")?;
    let mut env = container.env.iter().flatten();
    let marker = env.find(|variable| variable.name == "LINKERD_CONFIG_HASH");
    let annotation = |name: &str| pod.annotations().get(&format!("linkerd.io/{name}")).cloned();
    Some(Proxy {
        marker: marker.and_then(|variable| variable.value.clone()),
        version: annotation("proxy-version"),
        trust_roots: annotation("trust-root-sha256"),
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
    fn of_a_pod_its_own_proxy_is_read_wherever_it_stands() {
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
