//! The injectors: the operator waits until they use the written document, and rolls back a document that they deny.
//!
//! A fake injector with several replicas is registered as Linkerd's is. Each replica reads the document when its
//! kubelet updates it.

mod denials;
mod operators;
mod restored;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Manager, eventually, holds,
    injector::{Behaviour, Injector, unregister},
    mesh::SOON,
};
use serde_json::{Value, json};

use super::{Installation, TRUST_ROOTS, message, permissions, put_over, trust_anchors::certificate};

/// The conditions of a reconciled resource whose injectors are probed.
const SYNCED: [&str; 4] = [
    "Accepted=True/Accepted",
    "ConfigMapSynced=True/Synced",
    "InjectorSynced=True/AllReplicasCurrent",
    "Ready=True/Reconciled",
];
/// Longer than any test takes.
const LATE: Duration = Duration::from_secs(3600);

/// A mesh with injectors.
struct InjectorRig {
    installation: Installation,
    injector: Injector,
    manager: Manager,
}

impl InjectorRig {
    async fn new(replicas: usize) -> Result<Self> {
        Self::on(Installation::new().await?, replicas).await
    }

    /// Creates a mesh with an access log, which all replicas use.
    async fn synced(replicas: usize) -> Result<Self> {
        let mesh = Self::new(replicas).await?;
        mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
        mesh.reaches(&SYNCED).await?;
        Ok(mesh)
    }

    async fn on(installation: Installation, replicas: usize) -> Result<Self> {
        let others = ["default"];
        let injector = Injector::start(&installation.control_plane, &installation.namespace, &others, replicas).await?;
        let manager = installation.manager().await?;
        Ok(Self { installation, injector, manager })
    }

    /// Creates a resource with this spec. Unless it sets `injectorSync`, the injectors are probed.
    async fn declare(&self, mut spec: Value) -> Result<()> {
        if spec.get("injectorSync").is_none() {
            put_over(&mut spec, &json!({"injectorSync": {"method": "Probe"}}));
        }
        self.installation.declare("mesh", spec).await?;
        Ok(())
    }

    async fn reaches(&self, expected: &[&str]) -> Result<Value> {
        self.installation.reaches("mesh", expected).await
    }

    async fn expect_event(&self, reason: &str) -> Result<String> {
        self.installation.expect_event("mesh", reason).await
    }

    /// The marker of the current document.
    async fn marker(&self) -> Result<String> {
        let document = self.installation.parse(&self.installation.text().await?).await?;
        let variables = document["proxy"]["additionalEnv"].as_array().cloned().unwrap_or_default();
        let marker = variables.iter().find(|variable| variable["name"] == "LINKERD_CONFIG_HASH");
        let marker = marker.and_then(|marker| marker["value"].as_str()).context("no marker")?;
        Ok(marker.to_owned())
    }

    /// Waits until the condition InjectorSynced is this, and its message contains all of `parts`. Returns the status.
    async fn injectors_are(&self, expected: &str, parts: &[&str]) -> Result<Value> {
        let conditions = [expected, &expected.replace("InjectorSynced", "Ready")];
        let mut status = Value::Null;
        eventually(SOON, format_args!("{expected} with {parts:?}"), async || {
            status = self.installation.reaches_within(Duration::from_secs(2), "mesh", &conditions).await?;
            let text = message(&status, "InjectorSynced")?;
            ensure!(parts.iter().all(|part| text.contains(part)), "{text}");
            Ok(())
        })
        .await?;
        Ok(status)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_resource_is_ready_when_every_replica_uses_the_document() -> Result<()> {
    let mesh = InjectorRig::new(3).await?;
    for replica in [1, 2] {
        mesh.injector.set_lag(replica, Duration::from_secs(4))?;
    }
    let nudge = json!({"nudge": false});
    mesh.declare(json!({"injectorSync": nudge, "proxy": {"accessLog": "json"}})).await?;
    let late = [mesh.injector.pod(1)?, mesh.injector.pod(2)?];
    let status = mesh.injectors_are("InjectorSynced=False/Propagating", &["1 of 3", &late[0], &late[1]]).await?;
    assert_eq!((&status["injector"]["ready"], &status["injector"]["synced"]), (&json!(3), &json!(1)));
    let status = mesh.reaches(&SYNCED).await?;
    assert_eq!((&status["injector"]["ready"], &status["injector"]["synced"]), (&json!(3), &json!(3)));
    assert_eq!(status["injectionHash"], mesh.marker().await?.as_str());
    assert_eq!(status["revisions"]["lastKnownGood"], status["revisions"]["base"]);
    let note = mesh.expect_event("InjectorSynced").await?;
    assert!(note.contains(&mesh.marker().await?), "{note}");
    mesh.expect_event("LinkerdConfigUpdated").await?;
    let review = mesh.injector.last_review(0).context("no request to the replica")?;
    assert_eq!(review["request"]["namespace"], mesh.installation.namespace.as_str());

    // A current replica is not probed again.
    let requests: Vec<usize> = (0..3).map(|replica| mesh.injector.requests(replica)).collect();
    holds(Duration::from_secs(3), "that no replica is probed", async || {
        let now: Vec<usize> = (0..3).map(|replica| mesh.injector.requests(replica)).collect();
        ensure!(now == requests, "{requests:?}, then {now:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_probed_is_named_and_retried_at_a_limited_rate() -> Result<()> {
    let mesh = InjectorRig::new(2).await?;
    mesh.injector.set_behaviour(1, Behaviour::Hangs).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    let pod = mesh.injector.pod(1)?;
    for (behaviour, says) in [
        (Behaviour::Hangs, "did not answer"),
        (Behaviour::Unreachable, "could not connect"),
        (Behaviour::WrongCertificate, "TLS"),
        (Behaviour::Unpatched, "without a proxy"),
    ] {
        mesh.injector.set_behaviour(1, behaviour).await?;
        mesh.injectors_are("InjectorSynced=False/ProbeFailed", &["1 of 2", &pod, says]).await?;
    }
    let before = mesh.injector.requests(1);
    let written = mesh.installation.writes("").len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let requests = mesh.injector.requests(1) - before;
    ensure!((1..=8).contains(&requests), "{requests} requests in three seconds");
    assert_eq!(mesh.installation.writes("").len(), written, "an unchanged result must not be written");
    mesh.injector.set_behaviour(1, Behaviour::Right).await?;
    mesh.reaches(&SYNCED).await?;
    Ok(())
}

/// The probe is the same as before, but it must be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn the_injectors_are_probed_again_when_a_resource_becomes_active_again() -> Result<()> {
    let mesh = InjectorRig::new(1).await?;
    mesh.injector.set_behaviour(0, Behaviour::Unpatched).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.injectors_are("InjectorSynced=False/ProbeFailed", &[]).await?;
    mesh.installation.declare("other", json!({"priority": 10, "mode": "Suspend"})).await?;
    mesh.reaches(&["Accepted=False/Conflicted"]).await?;
    let requests = mesh.injector.requests(0);
    holds(Duration::from_secs(3), "that no replica is probed for it", async || {
        ensure!(mesh.injector.requests(0) <= requests + 1, "{} more requests", mesh.injector.requests(0) - requests);
        Ok(())
    })
    .await?;
    mesh.installation.delete("other").await?;
    mesh.injectors_are("InjectorSynced=False/ProbeFailed", &[]).await?;
    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    mesh.reaches(&SYNCED).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_ready_replica_the_resource_is_not_synced_and_a_new_replica_is_probed() -> Result<()> {
    let mesh = InjectorRig::new(1).await?;
    mesh.injector.set_ready(0, false).await?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.injectors_are("InjectorSynced=False/NoReadyReplicas", &["no replica"]).await?;
    mesh.injector.set_ready(0, true).await?;
    mesh.reaches(&SYNCED).await?;
    // A new replica is probed, and named if the probe fails.
    mesh.injector.set_lag(0, LATE)?;
    let second = mesh.injector.add_replica().await?;
    let status = mesh.reaches(&SYNCED).await?;
    assert!(second == 1 && status["injector"]["ready"].as_i64() <= Some(2));
    eventually(SOON, "two replicas", async || {
        let status = mesh.reaches(&SYNCED).await?;
        ensure!(status["injector"]["synced"] == 2, "{}", status["injector"]);
        Ok(())
    })
    .await?;
    mesh.injector.set_behaviour(second, Behaviour::Unpatched).await?;
    mesh.injector.restart_replica(second).await?;
    let pod = mesh.injector.pod(second)?;
    mesh.injectors_are("InjectorSynced=False/ProbeFailed", &[&pod]).await?;
    mesh.injector.remove_replica(second).await?;
    mesh.reaches(&SYNCED).await?;
    // A late replica that becomes current does not count as an update.
    assert_eq!(mesh.installation.event_count("mesh", "LinkerdConfigUpdated").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_timeout_the_resource_holds_or_proceeds_as_declared() -> Result<()> {
    let mesh = InjectorRig::new(1).await?;
    mesh.injector.set_lag(0, LATE)?;
    let sync = json!({"timeout": "2s", "nudge": false});
    mesh.declare(json!({"injectorSync": sync, "proxy": {"accessLog": "json"}})).await?;
    let pod = mesh.injector.pod(0)?;
    mesh.injectors_are("InjectorSynced=False/Timeout", &[&pod, "2s"]).await?;
    assert!(mesh.expect_event("InjectorSyncTimeout").await?.contains(&pod));
    mesh.installation.change("mesh", json!({"injectorSync": {"onTimeout": "Proceed"}})).await?;
    mesh.reaches(&["InjectorSynced=False/Timeout", "Ready=True/Reconciled"]).await?;
    // The replica is still probed.
    mesh.injector.set_lag(0, Duration::ZERO)?;
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    mesh.reaches(&SYNCED).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_injectors_are_restarted_once_if_the_resource_declares_it() -> Result<()> {
    let mesh = InjectorRig::new(1).await?;
    let labels = json!({"app": "injector"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "linkerd-proxy-injector", "namespace": mesh.installation.namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "proxy-injector", "image": "injector"}]},
        }},
    });
    let deployments = kube::Api::<k8s_openapi::api::apps::v1::Deployment>::namespaced(
        mesh.installation.client.clone(),
        &mesh.installation.namespace,
    );
    deployments.create(&kube::api::PostParams::default(), &serde_json::from_value(deployment)?).await?;
    mesh.injector.set_lag(0, LATE)?;
    let sync = json!({"timeout": "1s", "nudge": false, "onTimeout": "RestartInjector"});
    mesh.declare(json!({"injectorSync": sync, "proxy": {"accessLog": "json"}})).await?;
    mesh.injectors_are("InjectorSynced=False/Timeout", &[]).await?;
    let marker = mesh.marker().await?;
    let generation = eventually(SOON, "the restart", async || {
        let deployment = deployments.get("linkerd-proxy-injector").await?;
        let template = deployment.spec.context("no spec")?.template.metadata.context("no metadata")?;
        let annotation = template.annotations.clone().unwrap_or_default().remove("config.linkerd.io/restarted-for");
        ensure!(annotation.is_some_and(|it| it.starts_with(&format!("{marker}-"))), "{template:?}");
        Ok(deployment.metadata.generation)
    })
    .await?;
    // The new Pod reads the current document.
    mesh.injector.restart_replica(0).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(deployments.get("linkerd-proxy-injector").await?.metadata.generation, generation);
    assert_eq!(mesh.installation.writes("/deployments/").len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_permissions_are_sufficient_to_probe_and_to_nudge_a_replica_once_for_each_change() -> Result<()> {
    let mesh = InjectorRig::on(permissions::start().await?, 2).await?;
    mesh.injector.set_lag(1, LATE)?;
    let sync = json!({"timeout": "1s", "onTimeout": "RestartInjector"});
    mesh.declare(json!({"injectorSync": sync, "proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.injector.nudges(1), 1);
    // It is not late, and a probe may still find it before its file has changed.
    assert!(mesh.injector.nudges(0) <= 1);
    // The next change needs one more nudge; another probe of the same document needs none.
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": "apache"}})).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.injector.nudges(1), 2);
    mesh.injector.set_behaviour(1, Behaviour::Unpatched).await?;
    mesh.installation.change("mesh", json!({"proxy": {"accessLog": ""}})).await?;
    mesh.injectors_are("InjectorSynced=False/Timeout", &["without a proxy"]).await?;
    assert_eq!(permissions::refused(&mesh.installation), []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_permission_to_nudge_a_lagging_replica_becomes_current_later() -> Result<()> {
    let installation = permissions::start().await?;
    permissions::leave_out_nudge(&installation).await?;
    let mesh = InjectorRig::on(installation, 1).await?;
    mesh.injector.set_lag(0, Duration::from_secs(5))?;
    mesh.declare(json!({"proxy": {"accessLog": "json"}})).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.injector.nudges(0), 0);
    let refused = permissions::refused(&mesh.installation);
    assert_eq!(refused.len(), 1, "one attempt for each configuration: {refused:?}");
    assert!(refused[0].method == "PATCH" && refused[0].path.contains("/pods/"), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_injectors_are_probed_for_new_trust_anchors_too() -> Result<()> {
    let mesh = InjectorRig::new(1).await?;
    mesh.declare(json!({})).await?;
    mesh.reaches(&SYNCED).await?;
    mesh.injector.set_behaviour(0, Behaviour::Unpatched).await?;
    let bundle = certificate("root.linkerd.cluster.local")?;
    mesh.installation.set_trust_roots(&bundle).await?;
    mesh.injectors_are("InjectorSynced=False/ProbeFailed", &[]).await?;
    mesh.injector.set_behaviour(0, Behaviour::Right).await?;
    mesh.reaches(&SYNCED).await?;
    assert_eq!(mesh.installation.writes(TRUST_ROOTS), [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_probes_through_the_api_server() -> Result<()> {
    let mesh = InjectorRig::new(2).await?;
    mesh.injector.set_lag(1, Duration::from_secs(3))?;
    let sync = json!({"method": "DryRun", "nudge": false});
    mesh.declare(json!({"injectorSync": sync, "proxy": {"accessLog": "json"}})).await?;
    let status = mesh.reaches(&SYNCED).await?;
    assert_eq!(status["injector"]["ready"], 2);
    let missing = json!({"injectorSync": {"dryRunNamespace": "nowhere"}, "proxy": {"accessLog": "apache"}});
    mesh.installation.change("mesh", missing).await?;
    mesh.injectors_are("InjectorSynced=False/ProbeFailed", &["nowhere"]).await?;
    mesh.injector.set_behaviour(0, Behaviour::Denies("not today".to_owned())).await?;
    mesh.injector.set_behaviour(1, Behaviour::Denies("not today".to_owned())).await?;
    let back = json!({"injectorSync": {"dryRunNamespace": "default"}, "proxy": {"accessLog": "apache"}});
    mesh.installation.change("mesh", back).await?;
    let status = mesh.reaches(&["InjectorSynced=False/Denied", "Stalled=True/RolledBack"]).await?;
    assert!(message(&status, "InjectorSynced")?.contains("not today"));
    assert_eq!(mesh.installation.document().await?["proxy"]["accessLog"], "json");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_webhook_is_reported() -> Result<()> {
    let mesh = InjectorRig::new(1).await?;
    unregister(&mesh.installation.client).await?;
    mesh.declare(json!({})).await?;
    let missing = "linkerd-proxy-injector-webhook-config";
    mesh.injectors_are("InjectorSynced=False/ProbeFailed", &[missing]).await?;
    Ok(())
}
