//! The LinkerdConfig controller: the cost of a reconcile without changes, and the time until a manual edit is reverted.
//!
//! * The reconciles are triggered by an annotation with our prefix and no meaning, on the ConfigMap. The cost is the
//!   CPU time of the whole process during that time: the watch event, its ConfigMap of 12 KiB, and the reconcile. The
//!   same changes of a ConfigMap that no resource names are the cost of the watch events. Three injectors are up to
//!   date and are not probed again.
//! * Reverts are distributed over many ConfigMaps, because the sixth revert of one ConfigMap within ten minutes counts
//!   as a fight and is delayed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Injector, Job, LinkerdConfigs, Manager, ManagerOptions, Options, injector::reviews::INSTALLED,
    objects::watch_from_now, wait::eventually,
};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::report::{Report, milliseconds};

pub(crate) const FIGURES: [&str; 2] = ["revert", "no-op"];

const NAMESPACE: &str = "linkerd";
const QUEUE: &str = "linkerdconfig_controller_workqueue";
const CONFIG_MAPS: usize = 40;
const REVERTS_EACH: usize = 5;
const CHANGES: u32 = 1_000;
const RESOURCES: usize = 100;
const PATIENCE: Duration = Duration::from_secs(120);

struct ConfigBench {
    control_plane: ControlPlane,
    maps: Api<ConfigMap>,
    configs: LinkerdConfigs,
    manager: Manager,
}

pub(crate) async fn figures(report: &mut Report, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let rig = ConfigBench::start().await?;
    if wanted("revert") {
        rig.reverts(report).await?;
    }
    if wanted("no-op") {
        rig.reconciles(report).await?;
    }
    drop(rig.control_plane);
    Ok(())
}

// === impl ConfigBench ===

impl ConfigBench {
    async fn start() -> Result<Self> {
        let control_plane = ControlPlane::start(Options::default()).await?;
        control_plane.install_crds("crd").await?;
        // A resource from before this restriction may name any ConfigMap. The operator still serves it.
        let path =
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/global/properties/configMap/enum";
        let any_name = json!([{"op": "remove", "path": path}]).to_string();
        let crd = "linkerdconfigs.config.linkerd.io";
        control_plane.kubectl(&["patch", "crd", crd, "--type=json", "-p", &any_name]).await?;
        control_plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
        let client: Client = control_plane.client().await?;
        let mut manager = ManagerOptions::only(Job::LinkerdConfig).start(&control_plane)?;
        manager.ready(PATIENCE).await?;
        let configs = LinkerdConfigs::new(&client);
        Ok(Self { control_plane, maps: Api::namespaced(client, NAMESPACE), configs, manager })
    }

    async fn put_map(&self, name: &str) -> Result<()> {
        let object = json!({"metadata": {"name": name}, "data": {"values": INSTALLED}});
        self.maps.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    async fn declare(&self, name: &str, config_map: &str) -> Result<()> {
        let spec = json!({"global": {"configMap": config_map}, "proxy": {"accessLog": "json"}});
        eventually(PATIENCE, format_args!("{name} to be accepted by the new schema"), async || {
            self.configs.create(name, spec.clone()).await
        })
        .await
    }

    /// Edits one ConfigMap after another. Measures from the edit's watch event to the revert's, as this process
    /// receives them.
    async fn reverts(&self, report: &mut Report) -> Result<()> {
        let name = |number: usize| format!("values-{number:02}");
        for number in 0..CONFIG_MAPS {
            self.put_map(&name(number)).await?;
            self.declare(&name(number), &name(number)).await?;
        }
        for number in 0..CONFIG_MAPS {
            self.configs.reaches(PATIENCE, &name(number), &["Ready=True/Reconciled"]).await?;
        }
        let mut events = watch_from_now(&self.maps, &WatchParams::default()).await?;
        let mut samples = Vec::with_capacity(CONFIG_MAPS * REVERTS_EACH);
        for edit in 0..CONFIG_MAPS * REVERTS_EACH {
            let name = name(edit % CONFIG_MAPS);
            let values = INSTALLED.replace("logFormat: plain", "logFormat: json");
            self.maps.patch(&name, &by("kubectl-edit"), &Patch::Merge(json!({"data": {"values": values}}))).await?;
            let reverted = async {
                let mut seen = None;
                loop {
                    let event = events.try_next().await?.context("the watch of ConfigMaps ended")?;
                    let WatchEvent::Modified(map) = event else { continue };
                    if map.metadata.name.as_deref() != Some(&*name) {
                        continue;
                    }
                    let is_edited = map.data.is_some_and(|data| data.get("values").is_some_and(|it| *it == values));
                    match (is_edited, seen) {
                        (true, _) => seen = Some(Instant::now()),
                        (false, Some(seen)) => return anyhow::Ok(seen.elapsed()),
                        (false, None) => bail!("{name} was written before the edit was observed"),
                    }
                }
            };
            samples.push(timeout(PATIENCE, reverted).await.context("the edit was not reverted in time")??);
        }
        let edits = samples.len();
        report.distribution(
            format!("{edits} manual edits, from the edit's watch event to the revert's"),
            samples,
            "each < 1 s",
        );
        Ok(())
    }

    /// With one LinkerdConfig for the ConfigMap, and with a hundred.
    async fn reconciles(&self, report: &mut Report) -> Result<()> {
        const MAP: &str = "linkerd-config";
        const OTHER_MAP: &str = "other-config";
        // Without this ConfigMap injectors deny everything; its content does not matter.
        let roots = json!({"metadata": {"name": "linkerd-identity-trust-roots"}, "data": {"ca-bundle.crt": "none"}});
        self.maps.create(&PostParams::default(), &serde_json::from_value(roots)?).await?;
        let _injector = Injector::start(&self.control_plane, NAMESPACE, &[], 3).await?;
        let name = |number: usize| format!("mesh-{number:03}");
        self.put_map(MAP).await?;
        self.declare(&name(0), MAP).await?;
        self.configs.reaches(PATIENCE, &name(0), &["Ready=True/Reconciled"]).await?;
        self.put_map(OTHER_MAP).await?;
        let (reconciled, cost) = self.touch(OTHER_MAP).await?;
        ensure!(reconciled == 0.0, "a ConfigMap that no resource names caused {reconciled} reconciles");
        let event = cost / CHANGES;
        report.row(
            "CPU of a watch event of another ConfigMap",
            format!("{:.2} ms", milliseconds(&event)),
            "",
            json!({"cpu_seconds": cost.as_secs_f64(), "changes": CHANGES}),
        );
        self.reconcile(report, MAP, 1).await?;
        for number in 1..RESOURCES {
            self.declare(&name(number), MAP).await?;
        }
        for number in 1..RESOURCES {
            self.configs.reaches(PATIENCE, &name(number), &["Accepted=False/Conflicted"]).await?;
        }
        self.reconcile(report, MAP, RESOURCES).await
    }

    async fn reconcile(&self, report: &mut Report, map: &str, resources: usize) -> Result<()> {
        let (reconciled, cost) = self.touch(map).await?;
        ensure!(reconciled > 0.0, "no reconcile happened");
        report.row(
            format!("CPU of a reconcile without changes, {resources} resource(s) for the ConfigMap"),
            format!(
                "{:.2} ms with its watch event, {reconciled} reconciles for {CHANGES} changes, 0 writes",
                milliseconds(&cost.div_f64(reconciled)),
            ),
            "< 1 ms without the event; the same with a hundred",
            json!({"cpu_seconds": cost.as_secs_f64(), "looks": reconciled, "changes": CHANGES}),
        );
        Ok(())
    }

    /// Changes an annotation of a ConfigMap, which causes no write. Returns the number of reconciles and their cost.
    async fn touch(&self, map: &str) -> Result<(f64, Duration)> {
        // Pending writes of the manager finish.
        sleep(Duration::from_secs(3)).await;
        let statuses = self.versions().await?;
        let (before, cost) = (self.reconcile_count().await, self.manager.cpu_time()?);
        let mut version = None;
        for number in 0..CHANGES {
            let annotations = json!({"config.linkerd.io/bench": number.to_string()});
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            version = self.maps.patch(map, &by("bench"), &patch).await?.metadata.resource_version;
        }
        sleep(Duration::from_secs(2)).await;
        let (reconciled, cost) = (self.reconcile_count().await - before, self.manager.cpu_time()? - cost);
        ensure!(self.maps.get(map).await?.metadata.resource_version == version, "the ConfigMap was written");
        ensure!(self.versions().await? == statuses, "a status was written");
        Ok((reconciled, cost))
    }

    async fn reconcile_count(&self) -> f64 {
        let labels = [("name", QUEUE)];
        self.manager.metric("workqueue_work_duration_seconds_count", &labels).await.unwrap_or_default()
    }

    /// The resourceVersions of all LinkerdConfigs.
    async fn versions(&self) -> Result<Vec<Option<String>>> {
        let all = self.configs.0.list(&ListParams::default()).await?;
        Ok(all.items.into_iter().map(|config| config.metadata.resource_version).collect())
    }
}

fn by(manager: &str) -> PatchParams {
    PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() }
}
