//! A mesh as large as that of a small company, and the states of its rollout that a person on call sees.
//!
//! * In: the world of the dashboard. Out: objects, and the states that the LinkerdConfig then has. Always: a state is
//!   reached by what users write; only the statuses of Deployments are written as their controller would.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{DashboardWorld, is_available, pod, workload};
use crate::{LinkerdConfigs, mesh::SOON, objects::kind, wait::eventually};

/// The namespaces whose Pods are current.
const CURRENT: [&str; 23] = [
    "ads",
    "auth",
    "billing",
    "cart",
    "catalog",
    "checkout",
    "currency",
    "email",
    "fraud",
    "gateway",
    "images",
    "inventory",
    "ledger",
    "loyalty",
    "mailing",
    "metrics",
    "orders",
    "payments",
    "pricing",
    "quotes",
    "recommendations",
    "reviews",
    "search",
];
/// The namespaces whose Pods are outdated. They are after `shop`, because workloads are restarted in that order.
const OUTDATED: [&str; 4] = ["stock", "support", "taxes", "wishlist"];
const WORKLOADS: [&str; 3] = ["api", "web", "worker"];
/// A restart begins only after all checks of one page.
const INTERVAL: &str = "10m";

impl DashboardWorld {
    /// Makes the rollout begin without a proof by an injector, and adds namespaces whose Pods are current or outdated.
    ///
    /// The workload `web` in `shop` is being restarted, and nothing ends that.
    pub async fn begin_rollout(&self) -> Result<()> {
        let client = self.control_plane.client().await?;
        let configs = LinkerdConfigs::new(&client);
        let rollout = json!({"paused": true, "interval": INTERVAL});
        configs.change("mesh", json!({"injectorSync": {"method": "Delay", "delay": "0s"}, "rollout": rollout})).await?;
        let status = configs.reaches(SOON, "mesh", &["RolloutComplete=False/Paused"]).await?;
        let current = status.get("injectionHash").and_then(Value::as_str).context("no hash")?;

        let of_all = |namespaces: &[&'static str]| -> Vec<(&'static str, &'static str)> {
            namespaces.iter().flat_map(|namespace| WORKLOADS.map(|name| (*namespace, name))).collect()
        };
        let namespace = |name: &&str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let names: Vec<Value> = CURRENT.iter().chain(&OUTDATED).map(namespace).collect();
        self.control_plane.apply(&names).await?;
        let mut objects = external_workloads();
        for (workloads, marker) in [(of_all(&CURRENT), current), (of_all(&OUTDATED), "0123456789abcdef")] {
            for (namespace, name) in workloads {
                objects.extend(workload(namespace, name, &json!({"config.linkerd.io/reconcile": "auto"}), marker));
            }
        }
        self.control_plane.apply(&objects).await?;
        for (namespace, name) in of_all(&CURRENT).into_iter().chain(of_all(&OUTDATED)) {
            is_available(&client, namespace, name).await?;
        }
        let workloads: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), "shop", &kind("workload.linkerd.io/v1beta1", "ExternalWorkload"));
        for name in ["vm-1", "vm-2"] {
            let time = "2026-11-27T11:00:00Z";
            let ready = json!({"type": "Ready", "status": "True", "reason": "Healthy", "lastTransitionTime": time});
            let status = Patch::Merge(json!({"status": {"conditions": [ready]}}));
            workloads.patch_status(name, &PatchParams::default(), &status).await?;
        }

        configs.change("mesh", json!({"rollout": {"paused": false}})).await?;
        self.has_counts("the restart of web", &json!({"selected": 82, "updated": 69, "updating": 1, "pending": 12}))
            .await?;
        // Its controller has created the new Pod, which does not become ready.
        let deployments: Api<Deployment> = Api::namespaced(client, "shop");
        let generation = deployments.get("web").await?.metadata.generation;
        let status = json!({"status": {"observedGeneration": generation, "replicas": 2, "updatedReplicas": 1,
            "readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 1}});
        deployments.patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Shortens the time that the workload may take, so that the rollout halts.
    pub async fn halt_rollout(&self) -> Result<()> {
        let configs = LinkerdConfigs::new(&self.control_plane.client().await?);
        configs.change("mesh", json!({"rollout": {"progressDeadline": "3s"}})).await?;
        configs.reaches(SOON, "mesh", &["Stalled=True/RolloutHalted"]).await.map(drop)
    }

    /// Deletes the workload that failed, and its Pod. Another one may then be restarted, and has time.
    pub async fn delete_workload(&self) -> Result<()> {
        self.delete("shop", Some("web")).await?;
        let configs = LinkerdConfigs::new(&self.control_plane.client().await?);
        configs.change("mesh", json!({"rollout": {"progressDeadline": "10m"}})).await?;
        self.has_counts("the deletion of web", &json!({"selected": 81, "updated": 69, "failed": 0})).await
    }

    /// Deletes the workloads whose Pods are outdated, and replaces the last outdated Pod.
    pub async fn end_rollout(&self) -> Result<()> {
        for namespace in OUTDATED {
            self.delete(namespace, None).await?;
        }
        let client = self.control_plane.client().await?;
        let configs = LinkerdConfigs::new(&client);
        let status = configs.reaches(SOON, "mesh", &["RolloutComplete=True/UpToDate"]).await?;
        let current = status.get("injectionHash").and_then(Value::as_str).context("no hash")?;
        let pods: Api<Pod> = Api::namespaced(client, "shop");
        pods.delete("db-1", &DeleteParams::default().grace_period(0)).await?;
        self.control_plane.apply(&[pod("shop", "db", "db-2", current)]).await?;
        eventually(SOON, "70 current Pods", async || {
            let status = configs.reaches(SOON, "mesh", &[]).await?;
            let pods = status.pointer("/rollout/pods").cloned().unwrap_or_default();
            ensure!(pods.get("current") == Some(&json!(70)) && pods.get("meshed") == Some(&json!(70)), "{pods}");
            Ok(())
        })
        .await
    }

    /// Deletes a workload and its Pod, or all of a namespace.
    async fn delete(&self, namespace: &str, name: Option<&str>) -> Result<()> {
        let client = self.control_plane.client().await?;
        let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
        let pods = Api::<Pod>::namespaced(client, namespace);
        let params = DeleteParams::background();
        let now = DeleteParams::default().grace_period(0);
        match name {
            Some(name) => {
                deployments.delete(name, &params).await?;
                pods.delete(&format!("{name}-1"), &now).await?;
            }
            None => {
                deployments.delete_collection(&params, &ListParams::default()).await?;
                pods.delete_collection(&now, &ListParams::default()).await?;
            }
        }
        Ok(())
    }

    /// Waits until the status has these counts of workloads.
    async fn has_counts(&self, what: &str, expected: &Value) -> Result<()> {
        let configs = LinkerdConfigs::new(&self.control_plane.client().await?);
        eventually(SOON, what, async || {
            let status = configs.reaches(SOON, "mesh", &[]).await?;
            let counts = status.pointer("/rollout/workloads").cloned().unwrap_or_default();
            let fields = expected.as_object().into_iter().flatten();
            for (field, count) in fields {
                ensure!(counts.get(field) == Some(count), "{counts}");
            }
            Ok(())
        })
        .await
    }
}

/// Returns two ExternalWorkloads and a Service that selects them.
fn external_workloads() -> Vec<Value> {
    let workload = |(name, ip): (&str, &str)| {
        json!({"apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": "legacy"}},
            "spec": {"meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/legacy", "serverName": "legacy"},
                "workloadIPs": [{"ip": ip}], "ports": [{"name": "http", "port": 80}]}})
    };
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "legacy", "namespace": "shop"},
        "spec": {"selector": {"app": "legacy"}, "ports": [{"name": "http", "port": 80}]}});
    [("vm-1", "192.0.2.51"), ("vm-2", "192.0.2.52")].map(workload).into_iter().chain([service]).collect()
}
