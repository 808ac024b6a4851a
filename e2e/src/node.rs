//! Nodes that kwok simulates.
//!
//! * In: a name and a zone. Out: a ready, schedulable Node with Pod addresses of both families. Or only the Node
//!   object, for a kubelet that the test starts.

use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use crate::{control_plane::ControlPlane, wait::eventually};

/// Distinct within this process, so that no two Nodes assign the same Pod address.
static NEXT: AtomicU8 = AtomicU8::new(1);

impl ControlPlane {
    /// Adds a node and waits until it is ready. Needs kwok and kube-controller-manager.
    pub async fn add_node(&self, name: &str, zone: &str) -> Result<()> {
        self.add_simulated_node(name, zone, |number| format!("10.244.{number}.0/24")).await
    }

    /// As [`ControlPlane::add_node`], but the Pods of the node have addresses of this host.
    pub async fn add_node_of_host(&self, name: &str, zone: &str) -> Result<()> {
        self.add_simulated_node(name, zone, |number| format!("127.{number}.0.0/16")).await
    }

    async fn add_simulated_node(&self, name: &str, zone: &str, range: fn(u8) -> String) -> Result<()> {
        let annotations = json!({"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"});
        let nodes = self.create_node(name, zone, annotations, Some(range)).await?;
        eventually(Duration::from_secs(60), format_args!("node {name} to be ready"), async || {
            let node = nodes.get(name).await?;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            ensure!(taints.is_empty(), "it has taints {taints:?}");
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            ensure!(
                conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
                "its conditions are {conditions:?}"
            );
            Ok(())
        })
        .await
    }

    /// Adds a Node without a kubelet, until [`ControlPlane::start_kubelet`] is called. Only Pods that name it in
    /// `nodeName` run on it.
    pub async fn add_node_without_kubelet(&self, name: &str) -> Result<()> {
        self.create_node(name, "zone", json!({}), None).await.map(drop)
    }

    /// Pods are scheduled on it if it has a range of addresses for them.
    async fn create_node(
        &self,
        name: &str,
        zone: &str,
        annotations: Value,
        range: Option<fn(u8) -> String>,
    ) -> Result<Api<Node>> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let ranges = range.map(|range| [range(number), format!("fd00:10:244:{number:x}::/64")]);
        let nodes: Api<Node> = Api::all(self.client().await?);
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "annotations": annotations,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "topology.kubernetes.io/zone": zone,
                },
            },
            "spec": {"podCIDR": ranges.as_ref().map(|[first, _]| first), "podCIDRs": ranges, "unschedulable": ranges.is_none()},
        }))?;
        nodes.create(&PostParams::default(), &node).await.with_context(|| format!("creating node {name}"))?;
        Ok(nodes)
    }
}
