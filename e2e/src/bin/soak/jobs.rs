//! The work of the two jobs that write: ExternalWorkloads that become ready and not ready, a LinkerdConfig that
//! changes, and edits of Linkerd's ConfigMap that the operator reverts.
//!
//! * In: a client with all permissions. Out: changes at a fixed rate; whether the EndpointSlices and the ConfigMap
//!   follow from the current objects.
//! * Always: the checks read the current objects, so a failed write of ours changes no expectation.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{LinkerdConfigs, Manager, injector::reviews::INSTALLED, mesh::Mesh};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

const NAMESPACE: &str = "jobs";
const SERVICE: &str = "web";
const WORKLOADS: usize = 150;
const CONFIG: &str = "soak";
const CONFIG_MAP: &str = "linkerd-config";
const LEASES: [&str; 2] = ["linkerd-destination-endpoint-write", "linkerd-operator"];

pub(crate) const BETWEEN_WORKLOADS: Duration = Duration::from_millis(500);
pub(crate) const BETWEEN_CONFIGS: Duration = Duration::from_secs(10);
/// An edit is reverted. With more than five edits in ten minutes, the operator would suspend its reverts, because two
/// writers would fight.
const EDITED_EVERY: usize = 15;
/// The first edit is within the first minute.
const FIRST_EDITED: usize = 5;

#[derive(Clone)]
pub(crate) struct Jobs {
    mesh: Mesh,
    configs: LinkerdConfigs,
    maps: Api<ConfigMap>,
}

// === impl Jobs ===

impl Jobs {
    /// Creates the objects. The namespace `linkerd` and the CRDs exist already.
    pub(crate) async fn prepare(client: &Client) -> Result<Self> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        let jobs = Self {
            mesh: Mesh::new(client, NAMESPACE),
            configs: LinkerdConfigs::new(client),
            maps: Api::namespaced(client.clone(), "linkerd"),
        };
        jobs.mesh.put_service(SERVICE, json!({})).await?;
        for number in 0..WORKLOADS {
            jobs.mesh.put_workload(&workload(number), SERVICE, &[&format!("198.18.1.{}", number + 1)]).await?;
        }
        let map = json!({"metadata": {"name": CONFIG_MAP, "annotations": {"linkerd.io/created-by": "linkerd/helm"}},
            "data": {"values": INSTALLED}});
        let params = PostParams { field_manager: Some("helm".to_owned()), ..PostParams::default() };
        jobs.maps.create(&params, &serde_json::from_value(map)?).await.context("creating the ConfigMap")?;
        let sync = json!({"method": "Delay", "delay": "0s"});
        jobs.configs.create(CONFIG, json!({"proxy": {"inboundPort": port(0)}, "injectorSync": sync})).await?;
        Ok(jobs)
    }

    /// Makes a workload ready or not.
    pub(crate) async fn change_workload(&self, number: usize) -> Result<()> {
        let is_ready = (number / WORKLOADS).is_multiple_of(2);
        self.mesh.set_ready(&workload(number % WORKLOADS), !is_ready).await
    }

    /// Changes the LinkerdConfig, or edits the ConfigMap as a user does by mistake.
    pub(crate) async fn change_config(&self, number: usize) -> Result<()> {
        if number % EDITED_EVERY == FIRST_EDITED {
            let mut document = self.document().await?;
            if let Some(port) = document.pointer_mut("/proxy/ports/inbound") {
                *port = json!(1);
            }
            let params = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
            let patch = json!({"data": {"values": serde_yaml::to_string(&document)?}});
            self.maps.patch(CONFIG_MAP, &params, &Patch::Merge(patch)).await?;
            return Ok(());
        }
        self.configs.change(CONFIG, json!({"proxy": {"inboundPort": port(number)}})).await
    }

    /// Checks that the manager holds its Leases, and that what it writes follows from the current objects.
    ///
    /// # Errors
    /// Says what does not follow.
    pub(crate) async fn check(&self, manager: &Manager) -> Result<()> {
        for lease in LEASES {
            ensure!(manager.is_leading(lease).await, "the manager does not hold the Lease {lease}");
        }
        let seen = self.mesh.readiness(SERVICE).await?;
        let workloads = self.mesh.workloads.list(&ListParams::default()).await?;
        let expected: BTreeMap<String, bool> = workloads.iter().map(|it| (it.name_any(), is_ready(it))).collect();
        for (name, ready) in &expected {
            ensure!(
                seen.get(name) == Some(ready),
                "{name}: ready is {ready}, and is published as {:?}",
                seen.get(name)
            );
        }
        ensure!(seen.len() == expected.len(), "{} workloads are published, {} exist", seen.len(), expected.len());

        let config = self.configs.0.get(CONFIG).await?;
        let declared =
            config.data.pointer("/spec/proxy/inboundPort").context("the LinkerdConfig has no inboundPort")?;
        let document = self.document().await?;
        let written = document.pointer("/proxy/ports/inbound");
        ensure!(written == Some(declared), "the LinkerdConfig declares {declared}, the ConfigMap has {written:?}");
        let observed = config.data.pointer("/status/observedGeneration").and_then(Value::as_i64);
        ensure!(observed == config.metadata.generation, "the status is of generation {observed:?}");
        Ok(())
    }

    async fn document(&self) -> Result<Value> {
        let map = self.maps.get(CONFIG_MAP).await?;
        let text = map.data.and_then(|mut data| data.remove("values")).context("the ConfigMap has no values")?;
        serde_yaml::from_str(&text).context("the document of the ConfigMap")
    }
}

fn workload(number: usize) -> String {
    format!("vm-{number:03}")
}

fn port(number: usize) -> usize {
    5000 + number % 1000
}

fn is_ready(workload: &DynamicObject) -> bool {
    let conditions = workload.data.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    ready.is_some_and(|condition| condition["status"] == "True")
}
