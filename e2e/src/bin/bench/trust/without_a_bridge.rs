//! A rotation without a bridge: each workload is restarted once, by the rollout of a LinkerdConfig.
//!
//! * In: Deployments whose Pods are simulated and have addresses of this host, on which one server answers for all proxies.
//!   Out: a row with the time of each phase, and the cost. An error if a Deployment was not restarted exactly once.
//! * The process has all controllers. The issuer is replaced once the LinkerdTrust says that each proxy accepts it.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    Options, eventually,
    identity::MeshAuthority,
    shown_proxy::{FRESH, ShownProxy},
    workload::{self, Kind, opted_in},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::{Value, json};

use super::{
    PROXIES, all_observed, linkerd_trust,
    rotation::{FollowedRotation, identity_service, identity_token},
};
use crate::{
    report::Report,
    rollout::{
        following::Following,
        mesh::{BenchMesh, NAMESPACE},
    },
};

const IDENTITY: &str = "default.mesh.serviceaccount.identity.linkerd.cluster.local";
const WORKLOADS: usize = 1_000;
const NODES: usize = 10;
const CREATED_AT_ONCE: usize = 10;
/// The number of workloads that are restarted at the same time.
const AT_ONCE: usize = 20;
/// Of the whole pass.
const RESTARTED: Duration = Duration::from_secs(1800);

pub(super) async fn figure(report: &mut Report) -> Result<()> {
    eprintln!("a control plane with {NODES} nodes, and {PROXIES} Pods in {WORKLOADS} Deployments");
    let mesh = BenchMesh::start(Options::full()).await?;
    // The Pods of the nodes that are there have other addresses.
    mesh.control_plane.kubectl(&["cordon", "--selector=kubernetes.io/os=linux"]).await?;
    for node in 0..NODES {
        mesh.control_plane.add_node_of_host(&format!("node-{node}"), "zone").await?;
    }
    let (old, new) = (MeshAuthority::root("old")?, MeshAuthority::root("new")?);
    let [first, next] = [&old, &new].map(|root| root.signs("identity.linkerd.cluster.local"));
    let (first, next) = (first?, next?);
    let proxy = ShownProxy::start_at(Ipv4Addr::UNSPECIFIED.into(), IDENTITY, &[&first], &old, FRESH).await?;
    install(&mesh, &old, proxy.address.port()).await?;
    let following = create_workloads(&mesh).await?;
    let identity = identity_service(&mesh.control_plane, &[&first], &[&old, &new]).await?;
    let token = format!("--identity-token-file={}", identity_token(&mesh.control_plane).await?.display());
    let manager = mesh.manager(&[&token]).await?;
    let rollout =
        json!({"maxConcurrent": AT_ONCE, "maxConcurrentPerNamespace": AT_ONCE, "interval": "0s", "soak": "0s"});
    mesh.declare(rollout).await?;
    mesh.is_complete(WORKLOADS).await?;
    let declared = |root: &MeshAuthority| linkerd_trust(&json!({"mode": "Enforce", "anchors": {"pem": root.pem()}}));
    mesh.control_plane.apply(&[declared(&old)]).await?;
    all_observed(&mesh.control_plane).await?;

    following.forget();
    let mut rotation = FollowedRotation::of(&mesh.control_plane, &manager).await?;
    let (ran, asked, begun) = (manager.cpu_time()?, rotation.handshakes().await?, Instant::now());
    mesh.control_plane.apply(&[declared(&new)]).await?;
    let is_any = |_: &Value| true;
    rotation.reaches("Spreading", is_any).await?;
    let added = begun.elapsed();
    eventually(RESTARTED, "each workload to be restarted", async || {
        let restarted = following.restarts().values().filter(|restarts| !restarts.is_empty()).count();
        ensure!(restarted == WORKLOADS, "{restarted} are");
        Ok(())
    })
    .await?;
    following.all_settled(WORKLOADS).await?;
    let restarted = begun.elapsed();
    rotation.reaches("AwaitingIssuer", is_any).await?;
    may_switch(&mesh).await?;
    let awaited = begun.elapsed();

    identity.issuer.put_chain(&[&next])?;
    proxy.renew(&[&next], &old)?;
    // The certificate of a new Pod is the first one that shows the new issuer.
    mesh.control_plane.kubectl(&["-n", NAMESPACE, "scale", "deployment/web-0000", "--replicas=11"]).await?;
    rotation.reaches("Retiring", is_any).await?;
    let renewed = begun.elapsed();
    rotation.writes(2.0).await?;
    let removed = begun.elapsed();
    let status = rotation.reaches("Complete", is_any).await?;
    let complete = begun.elapsed();
    let presented = status.pointer("/anchors/0/presentedBy");
    ensure!(presented == Some(&json!(PROXIES + 1)), "{status:#}");
    mesh.is_complete(WORKLOADS).await?;
    let not_once = following.restarts().into_iter().find(|(_, restarts)| restarts.len() != 1);
    ensure!(not_once.is_none(), "a Deployment was not restarted once: {not_once:?}");

    let (ran, asked) = (manager.cpu_time()? - ran, rotation.handshakes().await? - asked);
    let phases =
        [added, restarted - added, awaited - restarted, renewed - awaited, removed - renewed, complete - removed];
    let [to_added, to_restarted, to_issuer, to_retiring, to_removal, to_complete] = phases.map(|it| it.as_secs_f64());
    let (total, cpu, versions) = (complete.as_secs_f64(), ran.as_secs_f64(), rotation.versions.len());
    let raw = json!({"to_added": to_added, "to_restarted": to_restarted, "to_issuer": to_issuer,
        "to_retiring": to_retiring, "to_removal": to_removal, "to_complete": to_complete, "cpu_seconds": cpu,
        "handshakes": asked, "versions": versions});
    let value = format!(
        "{total:.0} s: the new root added after {to_added:.0} s, all restarted {to_restarted:.0} s later, the issuer \
         accepted after {to_issuer:.0} s more, Retiring {to_retiring:.0} s after the issuer, the old root removed after \
         {to_removal:.0} s more, Complete after {to_complete:.0} s more; 1 restart of each; {asked:.0} handshakes, 2 \
         writes of the bundle, {versions} versions of the resource, {cpu:.1} s of CPU"
    );
    let figure = format!("a rotation without a bridge, {PROXIES} proxies of {WORKLOADS} Deployments");
    report.row(figure, value, "1 restart of each", raw);
    Ok(())
}

/// Lets new Pods trust this root, which is in the bundle only, and listen at this port.
async fn install(mesh: &BenchMesh, root: &MeshAuthority, port: u16) -> Result<()> {
    let map = mesh.control_plane.get(&["-n", "linkerd", "configmap", "linkerd-config"]).await?;
    let values = map.pointer("/data/values").and_then(Value::as_str).context("no values")?;
    let changed =
        values.replace("externalCA: false", "externalCA: true").replace("admin: 4191", &format!("admin: {port}"));
    ensure!(changed != values, "the values have another form");
    let map = |name: &str, key: &str, text: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "linkerd"}, "data": {key: text}})
    };
    let maps =
        [map("linkerd-config", "values", &changed), map("linkerd-identity-trust-roots", "ca-bundle.crt", &root.pem())];
    mesh.control_plane.apply(&maps).await
}

async fn create_workloads(mesh: &BenchMesh) -> Result<Following> {
    let deployments: Api<Deployment> = Api::namespaced(mesh.client.clone(), NAMESPACE);
    let following = Following::start(deployments);
    stream::iter(0..WORKLOADS)
        .map(async |number| {
            let name = format!("web-{number:04}");
            workload::put(&mesh.client, NAMESPACE, Kind::Deployment, &name, PROXIES / WORKLOADS, opted_in()).await
        })
        .buffer_unordered(CREATED_AT_ONCE)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await?;
    following.all_settled(WORKLOADS).await?;
    Ok(following)
}

/// Waits until the LinkerdTrust says that each proxy accepts the next issuer.
async fn may_switch(mesh: &BenchMesh) -> Result<()> {
    eventually(super::PATIENCE, "the issuer to be accepted", async || {
        let status = mesh.control_plane.get(&["linkerdtrust", "mesh"]).await?;
        let conditions = status.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().find(|it| it.get("type") == Some(&json!("ReadyToSwitch")));
        ensure!(ready.and_then(|it| it.get("status")) == Some(&json!("True")), "{ready:?}");
        Ok(())
    })
    .await
}
