//! A manager is killed during one of its writes. The next one reaches the same end state: no base is lost or saved
//! twice, and no write is repeated.

use anyhow::{Result, ensure};
use e2e::{FaultProxy, Rule, WriteEnd, eventually, holds, mesh::SOON};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{CONFIG_MAP, HELM, Installation, LONG_LEASE, QUIET, WELL};

/// The operation during which the manager is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Adopting,
    FollowingAnUpgrade,
    Reverting,
    Restoring,
}

/// The write in flight: its method and a part of its path.
const STEPS: [(Doing, &str, &str); 12] = [
    (Doing::Adopting, "PATCH", "/linkerdconfigs/"),
    (Doing::Adopting, "POST", "/controllerrevisions"),
    (Doing::Adopting, "PATCH", "/configmaps/"),
    (Doing::Adopting, "PUT", "/status"),
    (Doing::FollowingAnUpgrade, "POST", "/controllerrevisions"),
    (Doing::FollowingAnUpgrade, "PATCH", "/configmaps/"),
    (Doing::FollowingAnUpgrade, "PUT", "/status"),
    (Doing::Reverting, "POST", "/controllerrevisions"),
    (Doing::Reverting, "PATCH", "/configmaps/"),
    (Doing::Reverting, "PUT", "/status"),
    (Doing::Restoring, "PATCH", "/configmaps/"),
    (Doing::Restoring, "PATCH", "/linkerdconfigs/"),
];

fn upgraded() -> String {
    HELM.replace("linkerdVersion: edge-26.8.3", "linkerdVersion: edge-26.9.1")
}

async fn killed_at_each_step(end: WriteEnd) -> Result<()> {
    for (doing, method, path) in STEPS {
        killed(doing, method, path, end)
            .await
            .map_err(|error| error.context(format!("{doing:?}, {method} {path}, {end:?}")))?;
    }
    Ok(())
}

async fn killed(doing: Doing, method: &str, path: &str, end: WriteEnd) -> Result<()> {
    let installation = Installation::new().await?;
    let spec = json!({"proxy": {"accessLog": "json"}, "deletionPolicy": "RestoreBase"});
    let mut manager = installation.manager().await?;
    if doing != Doing::Adopting {
        installation.adopt("mesh", spec.clone()).await?;
        // The Event may follow the status.
        installation.expect_event("mesh", "LinkerdConfigUpdated").await?;
    }
    let fault = installation.proxy.inject(Rule::path(path).method(method).times(1), end.action());
    match doing {
        Doing::Adopting => installation.declare("mesh", spec).await.map(drop)?,
        Doing::FollowingAnUpgrade => installation.rewrite("helm", &upgraded()).await.map(drop)?,
        Doing::Reverting => installation.edit("kubectl-edit", json!({"imagePullPolicy": "Always"})).await.map(drop)?,
        Doing::Restoring => installation.delete("mesh").await?,
    }
    fault.is_hit(|hits| hits == 1).await?;
    manager.kill().await?;
    if end == WriteEnd::Unknown {
        fault.release();
        let sent = || installation.proxy.log().into_iter().filter(|r| r.method == method && r.path.contains(path));
        eventually(SOON, "the write to be executed", async || {
            let last = sent().next_back();
            ensure!(last.as_ref().is_some_and(|request| request.status.is_some()), "{last:?}");
            Ok(())
        })
        .await?;
    }

    let mut manager = installation.manager().await?;
    let bases = match doing {
        Doing::FollowingAnUpgrade => vec![HELM.to_owned(), upgraded()],
        _ => vec![HELM.to_owned()],
    };
    let declared = match doing {
        Doing::FollowingAnUpgrade => installation.with_access_log(&upgraded()).await?,
        Doing::Restoring => installation.parse(HELM).await?,
        Doing::Adopting | Doing::Reverting => installation.with_access_log(HELM).await?,
    };
    if doing == Doing::Restoring {
        installation.is_deleted("mesh").await?;
    }
    let settled = async || is_settled(&installation, doing, &declared, &bases).await;
    eventually(SOON, "the end state", settled).await?;
    if doing != Doing::Restoring {
        // The next manager has finished, so no later write hides the effect of the late one.
        installation.reaches("mesh", &WELL).await?;
    }
    fault.release();
    // A late write is rejected, or reverted immediately.
    if end == WriteEnd::Late {
        eventually(SOON, "the end state again", settled).await?;
        holds(QUIET, "the end state", settled).await?;
    }
    if doing != Doing::Restoring {
        installation.reaches("mesh", &WELL).await?;
    }
    manager.kill().await
}

async fn is_settled(installation: &Installation, doing: Doing, declared: &Value, bases: &[String]) -> Result<()> {
    let document = installation.document().await?;
    ensure!(&document == declared, "it differs in {}", super::difference(&document, declared));
    let seen = installation.bases().await?;
    ensure!(seen == bases, "{} bases, or with other texts", seen.len());
    let ours = installation.map().await?;
    let ours = ours.annotations().keys().filter(|key| key.starts_with("config.linkerd.io/")).count();
    match doing {
        Doing::Restoring => {
            ensure!(installation.text().await? == HELM && ours == 0, "{ours} annotations of ours");
            ensure!(
                installation.configs.get_opt(&installation.full("mesh")).await?.is_none(),
                "the resource exists again"
            );
        }
        _ => ensure!(ours == 3, "{ours} annotations of ours"),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_lost_with_its_manager_is_made_by_the_next_one() -> Result<()> {
    killed_at_each_step(WriteEnd::Lost).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_executed_without_a_response_is_not_repeated() -> Result<()> {
    killed_at_each_step(WriteEnd::Unknown).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_outlives_its_manager_does_not_undo_the_work_of_the_next_one() -> Result<()> {
    killed_at_each_step(WriteEnd::Late).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_writes_nothing_until_it_leads() -> Result<()> {
    let installation = Installation::new().await?;
    let mut first = installation.manager_with(&[LONG_LEASE]).await?;
    installation.adopt("mesh", json!({"proxy": {"accessLog": "json"}})).await?;
    let second_proxy = FaultProxy::start(&installation.control_plane).await?;
    let second = installation.replica("second").through(&second_proxy).ready(&installation.control_plane).await?;
    let written = || {
        let changes = |r: &e2e::fault_proxy::RecordedRequest| r.method != "GET" && !r.path.contains("/leases");
        second_proxy.log().into_iter().filter(changes).collect::<Vec<_>>()
    };
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json"}})).await?;
    installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    installation.document_is(&declared).await?;
    installation.change("mesh", json!({"proxy": {"logFormat": "json"}})).await?;
    installation.reaches("mesh", &WELL).await?;
    holds(QUIET, "a follower without writes", async || {
        ensure!(written().is_empty(), "{:?}", written());
        Ok(())
    })
    .await?;
    assert_eq!(
        second.metric("linkerd_operator_linkerdconfig_configmap_writes_total", &[]).await.unwrap_or_default(),
        0.0
    );

    assert!(first.terminate(SOON).await?.success());
    installation.edit("kubectl-edit", json!({"proxy": {"accessLog": ""}})).await?;
    let declared = installation.helm_with(json!({"proxy": {"accessLog": "json", "logFormat": "json"}})).await?;
    installation.document_is(&declared).await?;
    ensure!(written().iter().any(|request| request.path.contains(CONFIG_MAP)), "{:?}", written());
    assert_eq!(installation.bases().await?, [HELM]);
    Ok(())
}
