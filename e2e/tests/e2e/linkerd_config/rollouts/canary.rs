//! A changed configuration is active for canary namespaces first. The operator injects the Pods, except where Linkerd's
//! injector is tested.

mod explained;
mod injectors;

use anyhow::{Context, Result, ensure};
use e2e::{
    eventually, holds,
    mesh::SOON,
    workload::{self, Kind, NEVER_READY, Workload, opted_in},
};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{
    super::{HELM, Installation, Lent, permissions},
    DEADLINE, QUIET, RolloutRig, hash_of, put_over,
};

const CANARY_MAP: &str = "linkerd-config-canary";

/// A mesh whose namespace `app` is a canary. Both namespaces have one Deployment.
struct Canary {
    mesh: RolloutRig,
    first: Workload,
    rest: Workload,
    maps: Api<ConfigMap>,
    /// The hash of the configuration before the first change.
    before: String,
}

impl Canary {
    /// Starts it with the operator's injector, and adopts the workloads with this merged into the spec.
    async fn adopted(spec: Value) -> Result<Self> {
        Self::with_replicas(1, spec).await
    }

    /// The same with this number of replicas of the operator's injector.
    async fn with_replicas(replicas: usize, spec: Value) -> Result<Self> {
        let installation = Installation::on(std::sync::Arc::new(Lent::take_with_nodes().await?)).await?;
        let installation = permissions::restricted(installation.installed().await?).await?;
        Self::of(RolloutRig::with_operators_injectors(installation, replicas).await?, spec).await
    }

    async fn of(mut mesh: RolloutRig, spec: Value) -> Result<Self> {
        let (app, other) = (mesh.app.clone(), mesh.other.clone());
        // Namespaces of earlier tests may still exist.
        mesh.label_namespace(&app, "canary", &app).await?;
        // The harness's API server does not set the ServiceAccount.
        let mut over = opted_in();
        put_over(&mut over, &json!({"spec": {"template": {"spec": {"serviceAccountName": "default"}}}}));
        let first = mesh.put(&app, Kind::Deployment, "first", 1, over.clone()).await?;
        let rest = mesh.put(&other, Kind::Deployment, "rest", 1, over).await?;
        let mut whole = json!({"canary": {"namespaceSelector": {"matchLabels": {"canary": app}}, "soak": "0s"}});
        put_over(&mut whole, &spec);
        let status = mesh.adopt(whole).await?;
        let before = hash_of(&status)?.to_owned();
        let maps = Api::namespaced(mesh.installation.client.clone(), &mesh.installation.namespace);
        // Pods from before the adoption have no hash yet. The first change gives them one.
        Ok(Self { mesh, first, rest, maps, before })
    }

    /// Waits until `status.canary` has this phase for the newest generation, and returns it.
    async fn is(&self, phase: &str) -> Result<Value> {
        eventually(DEADLINE, format_args!("the canary to be {phase}"), async || {
            let (mut status, generation) = self.mesh.status().await?;
            ensure!(status["observedGeneration"] == generation, "{status}");
            ensure!(status["canary"]["phase"] == phase, "{}, {}", status["canary"], status["conditions"]);
            Ok(status["canary"].take())
        })
        .await
    }

    /// The marker that the injector gives a new Pod of a namespace.
    async fn marker_in(&self, namespace: &str) -> Result<Option<String>> {
        let pods: Api<Pod> = Api::namespaced(self.mesh.installation.client.clone(), namespace);
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "new-", "annotations": {"linkerd.io/inject": "enabled"}},
            "spec": {"serviceAccountName": "default", "containers": [{"name": "web", "image": "web"}]},
        }))?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        Ok(workload::proxy(&pods.create(&params, &pod).await?).and_then(|proxy| proxy.marker))
    }

    /// Checks that only the canary has another configuration than before.
    async fn only_the_canary_has(&self, hash: &str) -> Result<()> {
        assert_ne!(hash, self.before);
        self.mesh.installation.document_is(&self.mesh.installation.helm_with(json!({})).await?).await?;
        assert_eq!(self.marker_in(&self.mesh.app).await?.as_deref(), Some(hash));
        assert_eq!(self.marker_in(&self.mesh.other).await?.as_deref(), Some(&*self.before));
        assert_eq!(self.mesh.counts([&self.rest])?, [0], "{:?}", self.mesh.restarts.all()?);
        Ok(())
    }

    /// Waits until new Pods of both namespaces get the configuration from before.
    async fn no_namespace_has_it(&self) -> Result<()> {
        self.map_is_gone().await?;
        for namespace in [&self.mesh.app, &self.mesh.other] {
            eventually(SOON, "new Pods to have the configuration from before", async || {
                let marker = self.marker_in(namespace).await?;
                ensure!(marker.as_deref() == Some(&*self.before), "{marker:?}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    async fn map_is_gone(&self) -> Result<()> {
        eventually(DEADLINE, "the ConfigMap of the canary to be deleted", async || {
            ensure!(self.maps.get_opt(CANARY_MAP).await?.is_none(), "it exists");
            Ok(())
        })
        .await
    }
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is not a text"))
}

/// With the shipped permissions and admission policies.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_reaches_the_canary_namespaces_first_and_all_others_after_the_soak() -> Result<()> {
    let canary = Canary::adopted(json!({"canary": {"soak": "8s"}})).await?;
    canary.mesh.configure(1).await?;
    let soaking = canary.is("Soaking").await?;
    let hash = text(&soaking["hash"])?;
    assert_eq!(soaking["namespaces"], json!([canary.mesh.app]));
    canary.only_the_canary_has(hash).await?;
    canary.first.has(1, hash).await?;
    assert_eq!(canary.mesh.counts([&canary.first])?, [1]);
    let map = canary.maps.get(CANARY_MAP).await?;
    let owner = map.owner_references().first().context("no owner")?;
    assert_eq!((&*owner.kind, &*owner.name), ("LinkerdConfig", &*canary.mesh.installation.full("mesh")));
    let status =
        canary.mesh.installation.reaches("mesh", &["ConfigMapSynced=False/Canary", "Ready=True/Canary"]).await?;
    assert_eq!(hash_of(&status)?, canary.before, "the status is about the document in force");
    // No wait for the declared configuration ends before the promotion.
    canary.mesh.installation.reaches("mesh", &["RolloutComplete=False/Canary"]).await?;

    let promoted = canary.is("Promoted").await?;
    assert_eq!(promoted["hash"], soaking["hash"]);
    let since = |canary: &Value| -> Result<Timestamp> { Ok(text(&canary["since"])?.parse()?) };
    let soaked = since(&promoted)?.duration_since(since(&soaking)?);
    assert!(soaked.as_secs() >= 8, "{soaked:?}");
    assert_eq!(canary.mesh.is_complete().await?, hash);
    canary.rest.gets(1, hash).await?;
    canary.map_is_gone().await?;
    assert_eq!(canary.mesh.counts([&canary.first, &canary.rest])?, [1, 1]);
    let declared = canary.mesh.installation.helm_with(json!({"proxy": {"ports": {"inbound": 5001}}})).await?;
    canary.mesh.installation.document_is(&declared).await?;
    let started = canary.mesh.expect_event("CanaryStarted").await?;
    assert!(started.contains(&canary.mesh.app) && !started.contains(&canary.mesh.other), "{started}");
    canary.mesh.expect_event("CanaryPromoted").await?;
    let refused = permissions::refused(&canary.mesh.installation);
    assert!(refused.is_empty(), "{refused:?}");
    Ok(())
}

/// The ConfigMap becomes immutable during the soak.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_whose_document_cannot_be_written_stays_as_it_is() -> Result<()> {
    let canary = Canary::adopted(json!({"canary": {"soak": "8s"}})).await?;
    canary.mesh.configure(1).await?;
    let soaking = canary.is("Soaking").await?;
    let immutable = Patch::Merge(json!({"immutable": true}));
    canary.maps.patch("linkerd-config", &PatchParams::default(), &immutable).await?;
    canary.mesh.installation.reaches_within(DEADLINE, "mesh", &["ConfigMapSynced=False/Immutable"]).await?;
    holds(QUIET, "the canary to go on", async || {
        assert_eq!(canary.is("Soaking").await?["hash"], soaking["hash"]);
        ensure!(canary.maps.get_opt(CANARY_MAP).await?.is_some(), "its ConfigMap was deleted");
        Ok(())
    })
    .await?;
    assert_eq!(canary.mesh.installation.event_count("mesh", "CanaryPromoted").await?, 0);
    canary.only_the_canary_has(text(&soaking["hash"])?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_canary_is_promoted_by_the_annotation_with_its_hash_also_after_a_crash() -> Result<()> {
    let mut canary = Canary::adopted(json!({"canary": {"promotion": "Manual"}})).await?;
    canary.mesh.configure(1).await?;
    let waiting = canary.is("AwaitingPromotion").await?;
    let hash = text(&waiting["hash"])?.to_owned();
    canary.mesh.annotate("promote", "fedcba9876543210").await?;
    // The next leader continues, and does not begin again.
    let mut killed = canary.mesh.manager.take().context("no manager")?;
    killed.kill().await?;
    canary.mesh.manager = Some(canary.mesh.installation.manager().await?);
    holds(QUIET, "the phase of the canary", async || {
        let now = canary.mesh.status().await?.0["canary"].take();
        ensure!(now["phase"] == waiting["phase"] && now["since"] == waiting["since"], "{now}");
        Ok(())
    })
    .await?;
    canary.only_the_canary_has(&hash).await?;
    canary.mesh.annotate("promote", &hash).await?;
    canary.is("Promoted").await?;
    assert_eq!(canary.mesh.is_complete().await?, hash);
    canary.rest.gets(1, &hash).await?;
    canary.map_is_gone().await?;

    // The annotation is left when the same values are declared again.
    canary.mesh.change(json!({"canary": {"promotion": "Automatic"}, "proxy": {"inboundPort": 5002}})).await?;
    eventually(DEADLINE, "other values to be promoted", async || {
        let now = canary.is("Promoted").await?;
        ensure!(now["hash"] != *hash, "{now}");
        Ok(())
    })
    .await?;
    canary.mesh.change(json!({"canary": {"promotion": "Manual"}, "proxy": {"inboundPort": 5001}})).await?;
    let again = canary.is("AwaitingPromotion").await?;
    assert_eq!((text(&again["hash"])?, &again["promoteIgnored"]), (&*hash, &json!(true)));
    canary.mesh.annotate("promote", "").await?;
    eventually(DEADLINE, "the removed annotation to be noticed", async || {
        let now = canary.is("AwaitingPromotion").await?;
        ensure!(now["promoteIgnored"] == Value::Null, "{now}");
        Ok(())
    })
    .await?;
    canary.mesh.annotate("promote", &hash).await?;
    canary.is("Promoted").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_that_fails_is_taken_back_and_no_other_namespace_had_it() -> Result<()> {
    let canary = Canary::adopted(json!({"rollout": {"progressDeadline": "3s"}})).await?;
    canary.mesh.change(json!({"proxy": {"proxyVersion": NEVER_READY}})).await?;
    let failed = canary.is("Failed").await?;
    let why = text(&failed["message"])?;
    assert!(why.contains(&format!("Deployment {}/first: ProgressDeadlineExceeded", canary.mesh.app)), "{why}");
    canary.first.is_settled(1).await?;
    canary.no_namespace_has_it().await?;
    let conditions = ["ConfigMapSynced=False/Canary", "Ready=False/Canary", "Stalled=True/CanaryFailed"];
    canary.mesh.installation.reaches("mesh", &conditions).await?;
    canary.mesh.expect_event("CanaryFailed").await?;
    // The configuration is not tried again until it changes, and the other namespace never had it.
    canary.mesh.no_more_than(2).await?;
    assert_eq!(canary.mesh.counts([&canary.first, &canary.rest])?, [2, 0], "a restart, and its rollback");
    assert_eq!(canary.is("Failed").await?["since"], failed["since"]);

    // Neither does a change of the installer.
    let upgraded = HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.8.4");
    canary.mesh.installation.rewrite("helm", &upgraded).await?;
    canary.mesh.installation.is_helm_with(json!({"linkerdVersion": "edge-26.8.4"})).await?;
    canary.mesh.is_quiet().await?;
    let still = canary.is("Failed").await?;
    assert_eq!((&still["since"], &still["hash"]), (&failed["since"], &failed["hash"]));
    canary.map_is_gone().await?;
    canary
        .mesh
        .installation
        .reaches("mesh", &[&conditions[..], &["RolloutComplete=False/RolledBack"]].concat())
        .await?;

    canary.mesh.change(json!({"proxy": {"proxyVersion": "edge-26.9.1"}})).await?;
    let promoted = canary.is("Promoted").await?;
    let hash = text(&promoted["hash"])?;
    assert_ne!(failed["hash"], promoted["hash"]);
    assert_eq!(canary.mesh.is_complete().await?, hash);
    canary.first.gets(1, hash).await?;
    canary.rest.gets(1, hash).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_config_map_of_a_canary_is_protected_and_deleted_with_the_resource() -> Result<()> {
    let canary = Canary::adopted(json!({"canary": {"promotion": "Manual"}})).await?;
    // A ConfigMap of another writer stays, and is not used.
    let foreign = json!({"metadata": {"name": CANARY_MAP}, "data": {"values": "mine"}});
    canary.maps.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;
    canary.mesh.configure(1).await?;
    let waiting = canary.is("Waiting").await?;
    assert!(text(&waiting["message"])?.contains(CANARY_MAP), "{waiting}");
    assert_eq!(canary.maps.get(CANARY_MAP).await?.data.unwrap_or_default()["values"], "mine");
    canary.maps.delete(CANARY_MAP, &kube::api::DeleteParams::default()).await?;

    let hash = canary.is("AwaitingPromotion").await?["hash"].take();
    let values = canary.maps.get(CANARY_MAP).await?.data.unwrap_or_default()["values"].clone();
    let edit = Patch::Merge(json!({"data": {"values": "proxy: {}"}}));
    canary.maps.patch(CANARY_MAP, &PatchParams::apply("kubectl-edit"), &edit).await?;
    eventually(SOON, "the edit to be overwritten", async || {
        let now = canary.maps.get(CANARY_MAP).await?.data.unwrap_or_default();
        ensure!(now["values"] == values, "{now:?}");
        Ok(())
    })
    .await?;
    assert_eq!(canary.is("AwaitingPromotion").await?["hash"], hash);

    canary.maps.delete(CANARY_MAP, &kube::api::DeleteParams::default()).await?;
    eventually(SOON, "the ConfigMap to be written again", async || {
        let now = canary.maps.get(CANARY_MAP).await?.data.unwrap_or_default();
        ensure!(now["values"] == values, "{now:?}");
        Ok(())
    })
    .await?;
    assert_eq!(canary.is("AwaitingPromotion").await?["hash"], hash);
    canary.only_the_canary_has(text(&hash)?).await?;

    // A change of the resource begins another canary, and nothing else.
    canary.mesh.configure(2).await?;
    let next = canary.is("AwaitingPromotion").await?;
    assert_ne!(next["hash"], hash);
    canary.only_the_canary_has(text(&next["hash"])?).await?;
    canary.first.gets(1, text(&next["hash"])?).await?;

    canary.mesh.installation.delete("mesh").await?;
    canary.map_is_gone().await?;
    eventually(SOON, "the canary to get the configuration of all others", async || {
        let marker = canary.marker_in(&canary.mesh.app).await?;
        ensure!(marker.as_deref() == Some(&*canary.before), "{marker:?}");
        Ok(())
    })
    .await
}

/// A resource that observes takes the place of the one with the canary.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_loses_its_place_takes_its_canary_back_although_the_other_one_writes_nothing() -> Result<()> {
    let canary = Canary::adopted(json!({"canary": {"promotion": "Manual"}})).await?;
    canary.mesh.configure(1).await?;
    let hash = canary.is("AwaitingPromotion").await?["hash"].take();
    let installation = &canary.mesh.installation;
    let observed = json!({"priority": 10, "mode": "Observe", "proxy": {"accessLog": "apache"}});
    installation.declare("observed", observed).await?;
    canary.no_namespace_has_it().await?;
    let status = installation.reaches("mesh", &["Accepted=False/Conflicted"]).await?;
    assert_eq!(status["canary"], Value::Null, "{status}");
    installation.reaches("observed", &["ConfigMapSynced=False/Observing", "Ready=True/Observing"]).await?;
    let refused = permissions::refused(installation);
    assert!(refused.is_empty(), "{refused:?}");

    installation.delete("observed").await?;
    assert_eq!(canary.is("AwaitingPromotion").await?["hash"], hash);
    canary.only_the_canary_has(text(&hash)?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_no_longer_enforces_takes_its_canary_back() -> Result<()> {
    let canary = Canary::adopted(json!({"canary": {"promotion": "Manual"}})).await?;
    canary.mesh.configure(1).await?;
    let hash = canary.is("AwaitingPromotion").await?["hash"].take();
    for (mode, conditions) in [
        ("Observe", ["ConfigMapSynced=False/Observing", "Ready=True/Observing"]),
        ("Suspend", ["Accepted=False/Suspended", "Ready=True/Suspended"]),
    ] {
        canary.mesh.change(json!({ "mode": mode })).await?;
        let status = canary.mesh.installation.reaches("mesh", &conditions).await?;
        assert_eq!(status["canary"], Value::Null, "{mode}: {status}");
        canary.no_namespace_has_it().await?;
        canary.mesh.change(json!({"mode": "Enforce"})).await?;
        assert_eq!(canary.is("AwaitingPromotion").await?["hash"], hash, "{mode}");
        canary.only_the_canary_has(text(&hash)?).await?;
    }
    Ok(())
}
