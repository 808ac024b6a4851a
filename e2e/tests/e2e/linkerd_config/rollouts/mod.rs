//! Rollouts of workloads whose Pods are injected at creation, and restarted when their proxy configuration is outdated.
//!
//! ```text
//!   LinkerdConfig ─▶ Manager ─▶ ConfigMap ─▶ Injector ◀─ CREATE pods ◀─ Deployment, StatefulSet, DaemonSet controllers
//!                       └───────── restarts ─────────────────────────────────▲          kwok makes their Pods ready
//! ```
//!
//! * Each [`RolloutRig`] has a [lent](super::Lent) cluster to itself, because a manager restarts opted-in workloads in all
//!   namespaces.
//! * The templates are watched from the beginning, so that no restart is missed.
//! * The numbers of scenarios are those of section 6.13 of the specification.

mod blocked;
mod canary;
mod coverage;
mod crash;
mod declared;
mod drift;
mod evict;
mod failures;
mod hostile;
mod injectors;
mod limits;
mod midway;
mod namespaces;
mod operator_upgrade;
mod opt_in;
mod permissions;
mod progress;
mod several;
mod trust_roots;
mod upgrades;
mod versions;
mod window;

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Injector, Manager, Restarts, TestNamespace, eventually, holds,
    manager::QUIET,
    workload::{self, DEADLINE, Kind, Workload, opted_in},
};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{Installation, Lent, put_over};

const COMPLETE: &str = "True/UpToDate";

/// Linkerd with an injector, two namespaces for applications, and a manager.
struct RolloutRig {
    /// `None` before [`RolloutRig::adopt`].
    manager: Option<Manager>,
    injector: Injector,
    restarts: Restarts,
    app: String,
    other: String,
    installation: Installation,
}

impl RolloutRig {
    async fn new() -> Result<Self> {
        Self::with_injectors(1).await
    }

    async fn with_injectors(replicas: usize) -> Result<Self> {
        let installation = Installation::on(Arc::new(Lent::take_with_nodes().await?)).await?;
        Self::on(installation.installed().await?, replicas).await
    }

    async fn on(installation: Installation, replicas: usize) -> Result<Self> {
        Self::with(installation, async |control_plane, linkerd, namespaces| {
            Injector::start(control_plane, linkerd, namespaces, replicas).await
        })
        .await
    }

    /// The same with replicas of the operator's injector, which watch the ConfigMaps.
    async fn with_operators_injectors(installation: Installation, replicas: usize) -> Result<Self> {
        Self::with(installation, async |control_plane, linkerd, namespaces| {
            Injector::start_operator(true, control_plane, linkerd, namespaces, replicas).await
        })
        .await
    }

    async fn with(
        installation: Installation,
        injector: impl AsyncFnOnce(&ControlPlane, &str, &[&str]) -> Result<Injector>,
    ) -> Result<Self> {
        let client = &installation.client;
        let app = TestNamespace::create(client, "app").await?.name().to_owned();
        let other = TestNamespace::create(client, "other").await?.name().to_owned();
        let injector = injector(&installation.control_plane, &installation.namespace, &[&app, &other]).await?;
        Ok(Self { manager: None, injector, restarts: Restarts::follow(client).await?, app, other, installation })
    }

    // === workloads ===

    /// Creates a Deployment that is opted in by a label, and waits until it runs.
    async fn deployment(&self, name: &str, replicas: usize) -> Result<Workload> {
        self.deployment_with(name, replicas, json!({})).await
    }

    async fn deployment_with(&self, name: &str, replicas: usize, over: Value) -> Result<Workload> {
        let mut object = opted_in();
        put_over(&mut object, &over);
        self.put(&self.app, Kind::Deployment, name, replicas, object).await
    }

    /// Creates three Deployments in the order of their names, whose restarts take at least this many seconds.
    async fn three(&self, replicas: usize, seconds: u32) -> Result<[Workload; 3]> {
        let slow = json!({"spec": {"minReadySeconds": seconds}});
        Ok([
            self.deployment_with("a", replicas, slow.clone()).await?,
            self.deployment_with("b", replicas, slow.clone()).await?,
            self.deployment_with("c", replicas, slow).await?,
        ])
    }

    /// Creates a workload with this merged into it, and waits until it runs.
    async fn put(&self, namespace: &str, kind: Kind, name: &str, replicas: usize, over: Value) -> Result<Workload> {
        let put = workload::put(&self.installation.client, namespace, kind, name, replicas, over).await?;
        put.is_settled(replicas).await?;
        Ok(put)
    }

    /// Creates a PodDisruptionBudget with this limit for the Pods of a workload.
    async fn put_budget(&self, name: &str, workload: &str, limit: Value) -> Result<Api<PodDisruptionBudget>> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.installation.client.clone(), &self.app);
        let mut budget = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": workload}}}});
        put_over(&mut budget["spec"], &limit);
        budgets.create(&PostParams::default(), &serde_json::from_value(budget)?).await?;
        Ok(budgets)
    }

    /// Creates a quota that permits one Pod, and waits until the Pod that exists uses it up.
    async fn exhaust_quota(&self, namespace: &str) -> Result<Api<ResourceQuota>> {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.installation.client.clone(), namespace);
        let quota = json!({"metadata": {"name": "pods"}, "spec": {"hard": {"pods": "1"}}});
        quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
        eventually(DEADLINE, "the quota to be used up", async || {
            let status = quotas.get("pods").await?.status.unwrap_or_default();
            let used = status.used.unwrap_or_default().remove("pods");
            ensure!(used.as_ref().is_some_and(|used| used.0 == "1"), "{used:?}");
            Ok(())
        })
        .await?;
        Ok(quotas)
    }

    async fn label_namespace(&self, namespace: &str, label: &str, value: &str) -> Result<()> {
        self.patch_namespace(namespace, json!({"metadata": {"labels": {label: value}}})).await
    }

    async fn patch_namespace(&self, namespace: &str, patch: Value) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.installation.client.clone());
        namespaces.patch(namespace, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// The proxy that a new Pod would be injected with.
    async fn new_proxy(&self) -> Result<Option<workload::Proxy>> {
        let pods: Api<Pod> = Api::namespaced(self.installation.client.clone(), &self.app);
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "new-", "annotations": {"linkerd.io/inject": "enabled"}},
            "spec": {"containers": [{"name": "web", "image": "web"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        Ok(workload::proxy(&pods.create(&params, &pod).await?))
    }

    // === the resource ===

    /// Starts a manager and declares a resource, which adopts the running workloads. By default there are no pauses.
    async fn adopt(&mut self, spec: Value) -> Result<Value> {
        self.manager = Some(self.installation.manager().await?);
        self.declare(spec).await?;
        self.rollout_is(COMPLETE).await
    }

    async fn declare(&self, spec: Value) -> Result<()> {
        let mut whole = json!({"injectorSync": {"method": "Probe"}, "rollout": {"interval": "0s", "soak": "0s"}});
        put_over(&mut whole, &spec);
        self.installation.declare("mesh", whole).await?;
        Ok(())
    }

    async fn change(&self, spec: Value) -> Result<()> {
        self.installation.change("mesh", spec).await?;
        Ok(())
    }

    /// Changes the configuration of the proxies; each number is another configuration.
    async fn configure(&self, number: u16) -> Result<()> {
        self.configure_with(number, json!({})).await
    }

    async fn configure_with(&self, number: u16, rollout: Value) -> Result<()> {
        self.change(json!({"proxy": {"inboundPort": 5000 + number}, "rollout": rollout})).await
    }

    /// Sets the annotation `config.linkerd.io/<name>` on the resource.
    async fn annotate(&self, name: &str, value: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {format!("config.linkerd.io/{name}"): value}}});
        let name = self.installation.full("mesh");
        self.installation.configs.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until the rollout is complete, and returns the marker of its proxies.
    async fn is_complete(&self) -> Result<String> {
        let status = self.rollout_is(COMPLETE).await?;
        Ok(hash_of(&status)?.to_owned())
    }

    /// Waits until RolloutComplete is this `Status/Reason` for the newest generation. Returns the status.
    async fn rollout_is(&self, expected: &str) -> Result<Value> {
        self.rollout_of_is("mesh", expected).await
    }

    async fn rollout_of_is(&self, name: &str, expected: &str) -> Result<Value> {
        eventually(DEADLINE, format_args!("RolloutComplete={expected}"), async || {
            let (status, generation) = self.status_of(name).await?;
            ensure!(status["observedGeneration"] == generation, "generation {generation} has the status {status}");
            let conditions = status["conditions"].as_array().context("no conditions")?;
            let condition = conditions.iter().find(|condition| condition["type"] == "RolloutComplete");
            let condition = condition.with_context(|| format!("no RolloutComplete in {conditions:?}"))?;
            let seen = [&condition["status"], &condition["reason"]].map(|text| text.as_str().unwrap_or_default());
            ensure!(seen.join("/") == expected, "{conditions:?}, {}", status["rollout"]);
            ensure!(condition["observedGeneration"] == generation, "generation {generation}: {condition}");
            Ok(status)
        })
        .await
    }

    /// Waits until `status.rollout` contains all of this, and returns it.
    async fn shows(&self, expected: Value) -> Result<Value> {
        eventually(DEADLINE, format_args!("status.rollout to have {expected}"), async || {
            let rollout = self.status().await?.0["rollout"].take();
            let mut whole = rollout.clone();
            put_over(&mut whole, &expected);
            ensure!(whole == rollout, "{rollout}");
            Ok(rollout)
        })
        .await
    }

    /// The status, and the generation of the spec.
    async fn status(&self) -> Result<(Value, Value)> {
        self.status_of("mesh").await
    }

    async fn status_of(&self, name: &str) -> Result<(Value, Value)> {
        let mut object = self.installation.configs.get(&self.installation.full(name)).await?;
        let generation = json!(object.metadata.generation);
        Ok((object.data.get_mut("status").map(Value::take).unwrap_or_default(), generation))
    }

    /// Waits for an Event of the resource with this reason, and returns it as `Reason: note`.
    async fn expect_event(&self, reason: &str) -> Result<String> {
        self.installation.expect_event("mesh", reason).await
    }

    /// Waits until the manager has written nothing for [`QUIET`].
    async fn is_quiet(&self) -> Result<()> {
        let writes = || self.installation.writes("");
        let mut before = writes();
        eventually(DEADLINE, "the manager to write nothing", async || {
            tokio::time::sleep(QUIET).await;
            let (last, now) = (std::mem::take(&mut before), writes());
            before.clone_from(&now);
            ensure!(now.len() == last.len(), "{:?}", now.get(last.len()..));
            Ok(())
        })
        .await
    }

    // === restarts ===

    /// The number of restarts of each workload.
    fn counts<const N: usize>(&self, workloads: [&Workload; N]) -> Result<[usize; N]> {
        let mut counts = [0; N];
        for (count, workload) in counts.iter_mut().zip(workloads) {
            *count = self.restarts.of(workload)?.len();
        }
        Ok(counts)
    }

    /// Waits for the first restart, and returns its workload, which must be one of these.
    async fn first_of<'a>(&self, workloads: &[&'a Workload]) -> Result<&'a Workload> {
        eventually(DEADLINE, "the first restart", async || {
            let all = self.restarts.all()?;
            let first = all.first().context("no restart")?;
            let found = workloads.iter().copied().find(|workload| workload.to_string() == first.workload);
            found.with_context(|| format!("{first:?}"))
        })
        .await
    }

    /// Forgets the restarts so far.
    async fn forget(&mut self) -> Result<()> {
        self.restarts = Restarts::follow(&self.installation.client).await?;
        Ok(())
    }

    /// Checks that there are exactly this many restarts, and no more for [`QUIET`].
    async fn no_more_than(&self, restarts: usize) -> Result<()> {
        holds(QUIET, format_args!("{restarts} restarts"), async || {
            let all = self.restarts.all()?;
            ensure!(all.len() == restarts, "{all:?}");
            Ok(())
        })
        .await
    }

    /// The names of the restarted workloads.
    fn restarted(&self) -> Result<BTreeSet<String>> {
        let name = |workload: &str| workload.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(self.restarts.all()?.iter().map(|restart| name(&restart.workload)).collect())
    }
}

/// Checks that the Pods of each workload have this marker, and that it has this many.
async fn all_have(workloads: &[Workload], pods: usize, marker: &str) -> Result<()> {
    for workload in workloads {
        workload.has(pods, marker).await?;
    }
    Ok(())
}

/// Waits until the annotations of each workload say that its restart is complete.
async fn are_recorded_as_updated(workloads: &[Workload]) -> Result<()> {
    for workload in workloads {
        eventually(DEADLINE, format_args!("{workload} to have rollout-state=updated"), async || {
            let state = workload.annotation("rollout-state").await?;
            ensure!(state.as_deref() == Some("updated"), "{state:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The hash of the configuration in a status.
fn hash_of(status: &Value) -> Result<&str> {
    status["injectionHash"].as_str().context("no hash")
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}
