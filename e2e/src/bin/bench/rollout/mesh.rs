//! The parts of Linkerd that rollouts need: its ConfigMaps, an injector with a webhook, a LinkerdConfig.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Injector, LinkerdConfigs, Manager, Options, Rig,
    wait::eventually,
    workload::{Proxy, proxy},
};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::report::in_control_group;

/// The namespace in which Pods are injected.
pub(crate) const NAMESPACE: &str = "mesh";
const NAME: &str = "mesh";
const PATIENCE: Duration = Duration::from_secs(1800);

pub(crate) struct BenchMesh {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    configs: LinkerdConfigs,
    _injector: Injector,
}

impl BenchMesh {
    pub(crate) async fn start(options: Options) -> Result<Self> {
        let rig = Rig::linkerd().options(options).crds("crd").namespace(NAMESPACE).start().await?;
        let Rig { control_plane, client } = rig;
        control_plane.install_linkerd().await?;
        let injector = Injector::start(&control_plane, "linkerd", &[NAMESPACE], 1).await?;
        let configs = LinkerdConfigs::new(&client);
        Ok(Self { control_plane, client, configs, _injector: injector })
    }

    /// Starts a manager and waits until it is ready. All its controllers run unless these arguments disable them.
    pub(crate) async fn manager(&self, args: &[&str]) -> Result<Manager> {
        let args = ["--operator-namespace=linkerd"].iter().chain(args).copied();
        let mut manager = in_control_group().args(args).start(&self.control_plane)?;
        manager.ready(PATIENCE).await?;
        Ok(manager)
    }

    /// Creates the LinkerdConfig.
    pub(crate) async fn declare(&self, rollout: Value) -> Result<()> {
        let spec = json!({"injectorSync": {"method": "Probe"}, "rollout": rollout});
        self.configs.create(NAME, spec).await
    }

    pub(crate) async fn change(&self, spec: Value) -> Result<()> {
        self.configs.change(NAME, spec).await
    }

    /// Waits until exactly this number of workloads runs with the current configuration.
    pub(crate) async fn is_complete(&self, workloads: usize) -> Result<()> {
        let of_it = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let mut changes = std::pin::pin!(watcher(self.configs.0.clone(), of_it).default_backoff().applied_objects());
        let mut last = Value::Null;
        let wait = async {
            while let Some(config) = changes.try_next().await? {
                if is_complete(&config, workloads) {
                    return Ok(());
                }
                last = config.data.get("status").cloned().unwrap_or_default();
            }
            bail!("the watch of the LinkerdConfig ended")
        };
        let waited = timeout(PATIENCE, wait).await;
        waited.with_context(|| format!("the rollout is not complete: {last}"))?
    }

    /// The proxy of a Pod that is created when the injector uses the current configuration.
    pub(crate) async fn newborn(&self) -> Result<Proxy> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "newborn-", "annotations": {"linkerd.io/inject": "enabled"}},
            "spec": {"containers": [{"name": "web", "image": "web"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        eventually(PATIENCE, "new Pods to have a marker", async || {
            let injected = proxy(&pods.create(&params, &pod).await?).context("a new Pod has no proxy")?;
            ensure!(injected.marker.is_some(), "{injected:?}");
            Ok(injected)
        })
        .await
    }
}

fn is_complete(config: &DynamicObject, workloads: usize) -> bool {
    let Some(status) = config.data.get("status") else { return false };
    let text = |object: &Value, key| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let conditions = status.get("conditions").and_then(Value::as_array);
    let holds = conditions.into_iter().flatten().any(|condition| {
        let of_this = condition.get("observedGeneration").and_then(Value::as_i64) == config.metadata.generation;
        of_this && text(condition, "type") == "RolloutComplete" && text(condition, "status") == "True"
    });
    let selected = status.pointer("/rollout/workloads/selected").and_then(Value::as_u64);
    holds && selected == u64::try_from(workloads).ok()
}
