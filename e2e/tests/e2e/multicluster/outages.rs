//! Other clusters that cannot be reached, deny requests, hang, or are dead at the start. They cost only themselves.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, Rule, eventually, kubeconfig,
    link::{link, link_name},
    mesh::SOON,
    shared_manager,
};
use futures::{StreamExt, TryStreamExt, stream};
use hyper::StatusCode;

use super::{Linked, federated, options, remote_discovery};
use crate::discovery::{
    QUIET,
    objects::{address, service, slice},
};

const STALENESS: &str = "linkerd_operator_remote_cluster_staleness_seconds";
const FAILURES: &str = "linkerd_operator_remote_cluster_failures_total";

#[tokio::test]
async fn the_last_endpoints_stay_while_a_cluster_is_away_and_only_differences_are_sent_when_it_returns() -> Result<()> {
    let rig = Linked::start("away").await?;
    let east = rig.linked("east").await?;
    rig.put(service("bb")).await?;
    rig.put(slice("bb", "bb", &[address("10.0.0.1")])).await?;
    east.put_backends("bb", &["10.1.0.1", "10.1.0.2"]).await?;
    rig.put(federated("web", &[format!("bb@{}", east.name)], "bb")).await?;
    let mut stream = rig.shows("web", &["10.0.0.1:8080", "10.1.0.1:8080", "10.1.0.2:8080"]).await?;
    rig.measures(STALENESS, &east, |value| value == Some(0.0)).await?;
    east.proxy.inject(Rule::any(), Action::Cut);
    east.proxy.cut_all();
    rig.measures(STALENESS, &east, |value| value.is_some_and(|seconds| seconds > 0.5)).await?;
    let (status, body) = rig.manager.get("/ready").await?;
    let named = format!("cluster {}: namespace {}: cannot list or watch", east.name, rig.namespace.name());
    ensure!(status == StatusCode::OK && body.contains(&named), "{status} {body}");
    let log = rig.manager.log();
    let of_east =
        |line: &&str| line.contains("list or watch failed") && line.contains(&format!("cluster=\"{}\"", east.name));
    ensure!(log.lines().any(|line| of_east(&line)), "no line about a failed watch names the cluster");
    let failures = [("cluster", east.name.as_str()), ("class", "unreachable")];
    ensure!(rig.manager.metric(FAILURES, &failures).await > Some(0.0), "no failure was counted");
    // Changes of this cluster are sent meanwhile, and a new stream has the last known endpoints.
    rig.put(slice("more", "bb", &[address("10.0.0.2")])).await?;
    let all = ["10.0.0.1:8080", "10.0.0.2:8080", "10.1.0.1:8080", "10.1.0.2:8080"];
    stream.shows(&all).await?;
    let _new = rig.shows("web", &all).await?;
    east.set_addresses("bb", &["10.1.0.1", "10.1.0.3"]).await?;
    stream.is_quiet_for(QUIET).await?;
    east.proxy.clear();
    stream.shows(&["10.0.0.1:8080", "10.0.0.2:8080", "10.1.0.1:8080", "10.1.0.3:8080"]).await?;
    rig.measures(STALENESS, &east, |value| value == Some(0.0)).await
}

#[tokio::test]
async fn a_cluster_that_denies_requests_is_never_taken_for_an_empty_one() -> Result<()> {
    let rig = Linked::start("denied").await?;
    let east = rig.other("east").await?;
    east.put_backends("bb", &["10.1.0.1"]).await?;
    rig.put(service("bb")).await?;
    rig.put(slice("bb", "bb", &[address("10.0.0.1")])).await?;
    let denied = east.proxy.inject(Rule::path("/pods"), Action::Status { code: 403, retry_after: None });
    rig.link(&east, &kubeconfig::embedded(east.proxy.kubeconfig())?).await?;
    rig.put(federated("joined", &[format!("bb@{}", east.name)], "bb")).await?;
    rig.put(remote_discovery("remote", &east, "bb")).await?;
    let mut joined = rig.shows("joined", &["10.0.0.1:8080"]).await?;
    let mut remote = rig.get("remote").await?;
    rig.measures("linkerd_operator_remote_cluster_synced", &east, |value| value == Some(0.0)).await?;
    let class = [("cluster", east.name.as_str()), ("class", "denied")];
    rig.manager.measures(FAILURES, &class, |denied| denied > Some(0.0)).await?;
    remote.is_quiet_for(QUIET).await.context("no message until the cluster is known")?;
    let advice = format!("in the cluster {}: ", east.name);
    ensure!(rig.says("list and watch of pods are denied, grant them to ").await?.contains(&advice), "no {advice}");
    denied.remove();
    remote.shows(&["10.1.0.1:8080"]).await?;
    joined.shows(&["10.0.0.1:8080", "10.1.0.1:8080"]).await
}

/// One cluster never answers, one refuses connections, and eighteen work.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_with_twenty_clusters_of_which_two_are_dead_is_ready_and_serves_at_once() -> Result<()> {
    let rig = Linked::start("twenty").await?;
    let east = rig.other("east").await?;
    let hanging = rig.other_again("east").await?;
    east.put_backends("bb", &["10.1.0.1"]).await?;
    rig.put(service("bb")).await?;
    rig.put(slice("bb", "bb", &[address("10.0.0.1")])).await?;
    hanging.inject(Rule::any(), Action::Hang);
    let working = kubeconfig::embedded(east.proxy.kubeconfig())?;
    let dead = working.replace(&format!("{}", port_of(&working)?), "9");
    let name = |number: usize| format!("{}-{number}", east.name);
    let mut members = Vec::new();
    for number in 0..20 {
        let kubeconfig = match number {
            0 => kubeconfig::embedded(hanging.kubeconfig())?,
            1 => dead.clone(),
            _ => working.clone(),
        };
        rig.put_secret(&name(number), link(&name(number), "other.trust", &kubeconfig)).await?;
        members.push(format!("bb@{}", name(number)));
    }
    rig.put(federated("web", &members, "bb")).await?;
    let (control_plane, _) = shared_manager().await?;
    let mut manager = options(control_plane.kubeconfig()).start(control_plane)?;
    manager.ready(SOON).await?;
    let discovery = manager.discovery().await?;
    let mut own = discovery.get(&rig.path("bb"), "").await?;
    own.shows(&["10.0.0.1:8080"]).await?;
    let mut joined = discovery.get(&rig.path("web"), "").await?;
    joined.shows(&["10.0.0.1:8080", "10.1.0.1:8080"]).await?;
    eventually(Duration::from_secs(30), "/ready to name the dead clusters", async || {
        let (status, body) = manager.get("/ready").await?;
        let is_named = |number| body.contains(&format!("cluster {}: namespace ", name(number)));
        ensure!(status == StatusCode::OK && is_named(0) && is_named(1) && !is_named(2), "{status} {body}");
        Ok(())
    })
    .await?;
    for number in 0..20 {
        rig.secrets().delete(&link_name(&name(number)), &kube::api::DeleteParams::default()).await?;
    }
    Ok(())
}

/// The memory limit is that of a small container. In `enormous`, a namespace has more endpoints than fit into it.
#[tokio::test(flavor = "multi_thread")]
async fn an_enormous_namespace_of_another_cluster_takes_no_memory_from_clients_and_other_clusters() -> Result<()> {
    const LIMIT: u64 = 128 * 1024 * 1024;
    let rig = Linked::start("enormous").await?;
    let (east, north) = (rig.linked("east").await?, rig.linked("north").await?);
    north.put_backends("bb", &["10.2.0.1"]).await?;
    rig.put(federated("web", &[format!("bb@{}", north.name), format!("aa@{}", east.name)], "bb")).await?;
    rig.put(service("bb")).await?;
    rig.put(slice("bb", "bb", &[address("10.0.0.1")])).await?;
    let endpoints: Vec<_> =
        (0..1_000).map(|number| address(&format!("10.1.{}.{}", number / 250, number % 250))).collect();
    let slices = (0..400).map(|number| east.put(slice(&format!("other-{number}"), "other", &endpoints)));
    stream::iter(slices).buffer_unordered(8).try_collect::<()>().await?;
    let (control_plane, _) = shared_manager().await?;
    let manager = options(control_plane.kubeconfig()).memory_limit(LIMIT).ready(control_plane).await?;
    let discovery = manager.discovery().await?;
    let known = ["10.0.0.1:8080", "10.2.0.1:8080"];
    let mut open = discovery.get(&rig.path("web"), "").await?;
    open.shows(&known).await?;
    let class = [("cluster", east.name.as_str()), ("class", "no_memory")];
    eventually(SOON, "/ready to name the cluster", async || {
        let (status, body) = manager.get("/ready").await?;
        let named = format!("cluster {}: namespace {}: cannot list or watch ", east.name, rig.namespace.name());
        ensure!(status == StatusCode::OK && body.contains(&named), "{status} {body}");
        ensure!(manager.metric(FAILURES, &class).await > Some(0.0), "no failure was counted");
        Ok(())
    })
    .await?;
    let mut new = discovery.get(&rig.path("web"), "").await?;
    new.shows(&known).await?;
    rig.put(slice("more", "bb", &[address("10.0.0.2")])).await?;
    north.set_addresses("bb", &["10.2.0.2"]).await?;
    open.shows(&["10.0.0.1:8080", "10.0.0.2:8080", "10.2.0.2:8080"]).await
}

/// The port of the API server in a kubeconfig.
fn port_of(kubeconfig: &str) -> Result<u16> {
    let config: serde_json::Value = serde_json::from_str(kubeconfig)?;
    let server =
        config.pointer("/clusters/0/cluster/server").and_then(serde_json::Value::as_str).context("a server")?;
    Ok(server.rsplit(':').next().unwrap_or_default().parse()?)
}
