//! The injectors during a canary: several replicas, a replica that refuses the configuration, and another program.

use anyhow::{Context, Result, ensure};
use e2e::{
    Injector, eventually,
    injector::reviews::{probe, request},
    mesh::SOON,
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::{Canary, text};
use crate::linkerd_config::{message, rollouts::DEADLINE};

/// The conditions of a canary that was taken back.
const FAILED: [&str; 3] = ["ConfigMapSynced=False/Canary", "Ready=False/Canary", "Stalled=True/CanaryFailed"];

impl Canary {
    /// The marker that one replica gives a new Pod of a namespace.
    async fn marker_of(&self, replica: usize, namespace: &str) -> Result<String> {
        let mut review = request("Pod", &probe());
        review["request"]["namespace"] = json!(namespace);
        let (status, body) = self.mesh.injector.post(replica, review.to_string()).await?;
        ensure!(status.is_success(), "{status}: {body:?}");
        let mut answer: Value = serde_json::from_slice(&body)?;
        let patch: ByteString = serde_json::from_value(answer["response"]["patch"].take())?;
        let patch: Vec<Value> = serde_json::from_slice(&patch.0)?;
        let proxy = patch.iter().find(|it| it["value"]["name"] == "linkerd-proxy").context("no proxy")?;
        let variables = proxy["value"]["env"].as_array().context("no variables")?;
        let marker = variables.iter().find(|it| it["name"] == "LINKERD_CONFIG_HASH").context("no marker")?;
        Ok(text(&marker["value"])?.to_owned())
    }

    /// Waits until every replica gives new Pods of both namespaces these markers.
    async fn every_replica_injects(&self, app: &str, other: &str) -> Result<()> {
        eventually(SOON, "the markers of every replica", async || {
            for replica in self.mesh.injector.replicas() {
                let seen =
                    (self.marker_of(replica, &self.mesh.app).await?, self.marker_of(replica, &self.mesh.other).await?);
                ensure!((&*seen.0, &*seen.1) == (app, other), "replica {replica}: {seen:?}");
            }
            Ok(())
        })
        .await
    }

    /// Waits until a configuration that no replica injects is taken back. Returns why.
    async fn is_refused(&self) -> Result<String> {
        let failed = self.is("Failed").await?;
        let replica = self.mesh.injector.pod(0)?;
        let why = text(&failed["message"])?.to_owned();
        assert!(why.starts_with(&format!("Pod {replica} does not inject the configuration")), "{why}");
        self.map_is_gone().await?;
        let status = self.mesh.installation.reaches("mesh", &FAILED).await?;
        assert!(message(&status, "Stalled")?.contains(&why), "{status}");
        for namespace in [&self.mesh.app, &self.mesh.other] {
            assert_eq!(self.marker_in(namespace).await?.as_deref(), Some(&*self.before), "{namespace}");
        }
        assert_eq!(self.mesh.counts([&self.first, &self.rest])?, [0, 0], "{:?}", self.mesh.restarts.all()?);
        Ok(why)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_replica_has_both_configurations_until_the_promotion_reaches_all_of_them() -> Result<()> {
    let canary = Canary::with_replicas(2, json!({"canary": {"promotion": "Manual"}})).await?;
    canary.every_replica_injects(&canary.before, &canary.before).await?;
    canary.mesh.configure(1).await?;
    let hash = canary.is("AwaitingPromotion").await?["hash"].take();
    let hash = text(&hash)?;
    canary.every_replica_injects(hash, &canary.before).await?;
    canary.only_the_canary_has(hash).await?;
    // A replica that starts during the canary has both, too.
    let third = canary.mesh.injector.add_replica().await?;
    assert_eq!(canary.mesh.injector.replicas(), [0, 1, third]);
    canary.every_replica_injects(hash, &canary.before).await?;
    eventually(SOON, "all replicas to be probed", async || {
        let injector = canary.mesh.status().await?.0["injector"].take();
        ensure!(injector["ready"] == 3 && injector["synced"] == 3, "{injector}");
        Ok(())
    })
    .await?;
    assert_eq!(canary.is("AwaitingPromotion").await?["hash"], hash);

    canary.mesh.annotate("promote", hash).await?;
    canary.is("Promoted").await?;
    canary.every_replica_injects(hash, hash).await?;
    canary.map_is_gone().await?;
    canary.every_replica_injects(hash, hash).await?;
    assert_eq!(canary.mesh.is_complete().await?, hash);
    canary.rest.gets(1, hash).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_the_injector_refuses_is_taken_back_and_reaches_no_pod() -> Result<()> {
    let canary = Canary::adopted(json!({"injectorSync": {"timeout": "3s"}})).await?;
    // Linkerd's types accept the null in the list, and those of the operator's injector do not.
    canary.mesh.change(json!({"values": {"proxy": {"capabilities": {"add": [null]}}}})).await?;
    let why = canary.is_refused().await?;
    let event = canary.mesh.expect_event("CanaryFailed").await?;
    assert!(event.contains(&why), "{event}");

    // The next one can be injected except where a namespace requests a debug container.
    let annotated = json!({"metadata": {"annotations": {"config.linkerd.io/enable-debug-sidecar": "true"}}});
    canary.mesh.patch_namespace(&canary.mesh.app, annotated).await?;
    let nameless = json!({"proxy": null, "debugContainer": {"image": {"name": ""}}});
    canary.mesh.change(json!({ "values": nameless })).await?;
    // No second Event of the same reason is written within a minute.
    canary.is_refused().await?;

    canary.mesh.change(json!({"values": null, "proxy": {"inboundPort": 5001}})).await?;
    let promoted = canary.is("Promoted").await?;
    let hash = text(&promoted["hash"])?;
    assert_eq!(canary.mesh.is_complete().await?, hash);
    canary.first.gets(1, hash).await?;
    canary.rest.gets(1, hash).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_of_one_canary_namespace_does_not_decide_about_the_canary() -> Result<()> {
    let canary = Canary::adopted(json!({"injectorSync": {"timeout": "3s"}})).await?;
    let mut namespaces = [canary.mesh.app.clone(), canary.mesh.other.clone()];
    namespaces.sort();
    canary.mesh.label_namespace(&canary.mesh.other, "canary", &canary.mesh.app).await?;
    let annotate = async |namespace: &str, inject: Value| {
        canary
            .mesh
            .patch_namespace(namespace, json!({"metadata": {"annotations": {"linkerd.io/inject": inject}}}))
            .await
    };
    for namespace in &namespaces {
        annotate(namespace, json!("bogus")).await?;
    }
    canary.mesh.configure(1).await?;
    // Before the injectors have answered, the canary waits for that.
    eventually(DEADLINE, "the annotation to be named", async || {
        let waiting = canary.is("Waiting").await?;
        let why = text(&waiting["message"])?;
        let named = format!("the annotation linkerd.io/inject of namespace {} has", namespaces[0]);
        ensure!(why.contains(&named), "{why}");
        Ok(())
    })
    .await?;

    annotate(&namespaces[1], Value::Null).await?;
    eventually(DEADLINE, "the other namespace to run with the configuration", async || {
        let now = canary.is("Progressing").await?;
        ensure!(text(&now["message"])?.starts_with("1 of 2 selected workloads"), "{now}");
        Ok(())
    })
    .await?;
    annotate(&namespaces[0], Value::Null).await?;
    let promoted = canary.is("Promoted").await?;
    assert_eq!(canary.mesh.is_complete().await?, text(&promoted["hash"])?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_is_taken_back_when_linkerds_injector_replaces_the_operators_and_begins_again_after_it() -> Result<()>
{
    let spec = json!({"canary": {"promotion": "Manual"}, "injectorSync": {"timeout": "3s"}});
    let mut canary = Canary::adopted(spec).await?;
    canary.mesh.configure(1).await?;
    let hash = canary.is("AwaitingPromotion").await?["hash"].take();
    let hash = text(&hash)?.to_owned();
    canary.only_the_canary_has(&hash).await?;
    let document = canary.mesh.installation.map().await?;

    canary.mesh.injector.remove_replica(0).await?;
    let (app, other) = (canary.mesh.app.clone(), canary.mesh.other.clone());
    let namespaces = [app.as_str(), &other];
    let installation = &canary.mesh.installation;
    let linkerds = Injector::start(&installation.control_plane, &installation.namespace, &namespaces, 1).await?;
    canary.mesh.injector = linkerds;
    let unsupported = canary.is("Unsupported").await?;
    let replica = canary.mesh.injector.pod(0)?;
    let why = text(&unsupported["message"])?;
    assert!(why.contains("a canary needs the operator's own proxy injector") && why.contains(&replica), "{why}");
    canary.map_is_gone().await?;
    let conditions = ["ConfigMapSynced=False/Canary", "Ready=False/Canary", "Stalled=True/CanaryUnsupported"];
    let status = canary.mesh.installation.reaches("mesh", &conditions).await?;
    assert!(message(&status, "Ready")?.contains(why), "{status}");
    // The Pods of the canary namespaces return to the configuration of all others.
    canary.first.gets(1, &canary.before).await?;
    canary.mesh.installation.stays(&document).await?;
    assert_eq!(canary.mesh.counts([&canary.rest])?, [0]);

    canary.mesh.injector.remove_replica(0).await?;
    let installation = &canary.mesh.installation;
    let (control_plane, namespace) = (&installation.control_plane, &installation.namespace);
    let operators = Injector::start_operator(true, control_plane, namespace, &namespaces, 1).await?;
    canary.mesh.injector = operators;
    eventually(DEADLINE, "the canary to begin again", async || {
        let again = canary.mesh.status().await?.0["canary"].take();
        ensure!(again["phase"] == "AwaitingPromotion" && again["hash"] == *hash, "{again}");
        Ok(())
    })
    .await?;
    canary.first.gets(1, &hash).await?;
    canary.only_the_canary_has(&hash).await
}
