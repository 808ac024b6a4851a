//! A cluster for tests: JSON objects that pass through the production code, and a target.

use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{
    assess::{
        annotations::RolloutState,
        selection::{LabelFilter, SelectionPolicy},
        workload_state::{Assessment, FailureWeight, Health, InProgress, ProgressMarks, WorkloadState},
    },
    assess_workload,
    gate::Gates,
    key::RolloutKey,
    target::{Baseline, ConfigReference, DesiredProxies, RolloutTarget},
    trust::{DesiredTrust, TrustBundle},
};
use crate::{
    api::{
        NamespacedName,
        linkerd_config::{OptIn, ProxyShapeStatus},
    },
    cluster::{Kind, index::workload_key::WorkloadKey, testing::Feed},
    x509::testing::anchors,
};

/// The injection hash of the target, and the previous one.
pub(crate) const WANTED: &str = "0123456789abcdef";
pub(crate) const BEFORE: &str = "fedcba9876543210";

/// A restart in progress, without a start and without Pods.
pub(crate) fn in_progress(state: RolloutState, health: Health) -> InProgress {
    InProgress {
        state,
        since: None,
        health,
        evict: None,
        retry: String::new(),
        weight: FailureWeight::Counted,
        marks: ProgressMarks::default(),
        newest_pod: None,
        controlled: false,
    }
}

pub(crate) struct World {
    pub(super) feed: Feed,
    pub(super) target: RolloutTarget,
}

impl World {
    /// Creates a cluster with the namespace `ns`, and a target with this `spec.rollout`.
    pub(crate) fn new(rollout: &Value) -> Self {
        let mut world = Self { feed: Feed::default(), target: rollout_target(rollout) };
        world.namespace("ns", &json!({}));
        world
    }

    /// Creates a cluster with the Deployment `web`, patched with `over`, and its one outdated Pod.
    pub(crate) fn outdated(over: &Value) -> Self {
        let mut world = Self::new(&json!({}));
        world.deployment("web", over);
        world.pod("web-1", "web", Some(BEFORE), &json!({}));
        world
    }

    pub(crate) fn namespace(&mut self, name: &str, metadata: &Value) {
        let object = json!({"metadata": with(json!({"name": name}), metadata)});
        self.feed.apply(Kind::Namespace, Event::Apply(object));
    }

    /// Adds a Deployment to `ns` that opted in and is complete with one Pod, patched with `over`.
    pub(crate) fn deployment(&mut self, name: &str, over: &Value) {
        self.workload(Kind::Deployment, name, over);
    }

    pub(crate) fn workload(&mut self, kind: Kind, name: &str, over: &Value) {
        let object = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "generation": 1,
                "labels": {"config.linkerd.io/reconcile": "auto"}},
            "spec": {"replicas": 1, "template": {"metadata": {"annotations": {"linkerd.io/inject": "enabled"}}}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
                "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1, "numberAvailable": 1},
        });
        self.feed.apply(kind, Event::Apply(with(object, over)));
        if kind == Kind::Deployment {
            let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": name}]);
            let object =
                json!({"metadata": {"name": format!("{name}-rs"), "namespace": "ns", "ownerReferences": owner}});
            self.feed.apply(Kind::ReplicaSet, Event::Apply(object));
        }
    }

    /// Adds a meshed Pod of a Deployment with this marker, patched with `over`.
    pub(crate) fn pod(&mut self, name: &str, deployment: &str, marker: Option<&str>, over: &Value) {
        self.pod_of("ReplicaSet", &format!("{deployment}-rs"), name, marker, over);
    }

    pub(crate) fn pod_of(&mut self, kind: &str, owner: &str, name: &str, marker: Option<&str>, over: &Value) {
        let owners = json!([{"apiVersion": "v1", "kind": kind, "name": owner, "uid": owner}]);
        let object = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": if kind.is_empty() { json!([]) } else { owners },
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"linkerd.io/control-plane-ns": "linkerd"},
                "annotations": {"linkerd.io/inject": "enabled", "linkerd.io/proxy-version": "edge-1"}},
            "spec": {"initContainers": [], "containers": [{"name": "app"}]},
            "status": {"phase": "Running"},
        });
        let object = with(object, &injected_with(marker, Some(&anchors("a"))));
        self.feed.apply(Kind::Pod, Event::Apply(with(object, over)));
    }

    pub(crate) fn assess(&self, kind: &str, name: &str) -> Assessment {
        assess_workload(&self.feed.cluster.read(), &WorkloadKey::new("ns", kind, name), &self.target).unwrap()
    }

    pub(crate) fn state(&self, kind: &str, name: &str) -> WorkloadState {
        self.assess(kind, name).state
    }
}

pub(crate) fn time(text: &str) -> Timestamp {
    format!("2026-01-01T{text}Z").parse().unwrap()
}

/// Returns the target of a configuration that was adopted at noon; the previous document had the hash [`BEFORE`].
pub(crate) fn rollout_target(rollout: &Value) -> RolloutTarget {
    let baseline = Baseline { hash: BEFORE.into(), installed: None, adopted: Some(time("12:00:00")) };
    RolloutTarget {
        config: ConfigReference {
            name: "mesh".into(),
            uid: "uid".into(),
            config_map: NamespacedName::new("linkerd", "linkerd-config"),
        },
        term: 1,
        key: RolloutKey::of(WANTED, Some("roots"), None),
        rolled_back: None,
        rollout: serde_json::from_value(rollout.clone()).unwrap(),
        selection: SelectionPolicy {
            namespaces: LabelFilter::All,
            workloads: LabelFilter::All,
            opt_in: OptIn::Label,
            operator_namespace: "operator".into(),
        },
        proxies: DesiredProxies {
            injection_hash: Some(WANTED.into()),
            proxy_version: Some("edge-1".into()),
            shape: Some(ProxyShapeStatus { native_sidecar: true, cni_enabled: false, token_projection: true }),
            trust: DesiredTrust { wanted: Some(TrustBundle::new(&anchors("a"), None, None)), is_approved: false },
            baseline: Some(baseline),
            drift: Vec::new(),
        },
        gates: Gates::default(),
        canary: None,
    }
}

/// Returns a patch of a Pod that sets the marker and the trust anchors of its proxy.
pub(crate) fn injected_with(marker: Option<&str>, bundle: Option<&str>) -> Value {
    let variable = |name: &str, value: Option<&str>| value.map(|value| json!({"name": name, "value": value}));
    let marker = variable("LINKERD_CONFIG_HASH", marker);
    let env: Vec<Value> = marker.into_iter().chain(variable("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", bundle)).collect();
    json!({"spec": {"initContainers": [{"name": "linkerd-proxy", "env": env}]}})
}

/// Applies a merge patch.
pub(crate) fn with(mut object: Value, over: &Value) -> Value {
    json_patch::merge(&mut object, over);
    object
}
