//! Services that are joined from several clusters: the latency of a change in another cluster, the memory for another
//! cluster, and the latency of this cluster while another one hangs.
//!
//! * In: a second API server with the same objects, which two links name. Out: rows.
//! * Always: the second API server shares the clients' core.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    Action, ControlPlane, FaultProxy, ManagerOptions, Options, Rule, kubeconfig,
    link::link,
    memory::mebibytes,
    objects::{create_all, kind},
    wait::eventually,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::{self, ClusterSize, NAMESPACE, SERVICES, path_of, stream_request, stream_requests},
    rig::{DiscoveryBench, PATIENCE, Subject},
};
use crate::report::Report;

const STREAMS: usize = 1_000;
const CONNECTIONS: usize = 10;
const CHANGES: u16 = 200;
/// Time for the remaining work of a change before the next one.
const SETTLED: Duration = Duration::from_millis(100);
/// The Service of this cluster that changes, and that of the other one.
const LOCAL: &str = "web-0";
const REMOTE: &str = "web-1";
const FEDERATED: &str = "joined";

pub(super) async fn clusters(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    if !rig.is_ours() {
        // Another server would need the links, too.
        return Ok(());
    }
    let remote = ControlPlane::start(Options::default()).await?;
    remote.install_crds("crd/linkerd").await?;
    remote.kubectl(&["create", "namespace", NAMESPACE]).await?;
    let of_remote = remote.client().await?;
    cluster::populate(&of_remote, ClusterSize::USUAL).await?;
    let proxy = FaultProxy::start(&remote).await?;
    for name in ["east", "north"] {
        rig.control_plane.apply(&[link(name, "cluster.local", &kubeconfig::embedded(proxy.kubeconfig())?)]).await?;
    }
    create_all(&rig.client, &kind("v1", "Service"), Some(NAMESPACE), services()).await?;

    memory(report, rig).await?;
    let joined = || (0..STREAMS).map(|number| stream_request(path_of(FEDERATED), number)).collect();
    let changing = Changing::prepare(&of_remote, REMOTE, ChangeKind::Move).await?;
    let subject = with_clusters(rig).await?;
    let load = rig.open(&subject, CONNECTIONS, joined()).await?;
    synced(&subject).await?;
    sleep(Duration::from_secs(2)).await;
    load.reset();
    for number in 0..CHANGES {
        changing.change_and_wait(number, &load, STREAMS as u64).await?;
        sleep(SETTLED).await;
    }
    let late = changing.lateness(&load)?;
    let (all, received) = (STREAMS as u64 * u64::from(CHANGES), late.since_seen.count());
    ensure!(received == all, "{received} streams received a change instead of {all}");
    let figure =
        format!("one change in another cluster to {STREAMS} streams of a Service of three clusters, {CHANGES} times");
    report.row(figure, late.text(), "", late.json(json!({ "changes": CHANGES })));
    load.close().await;
    drop(subject);

    for hangs in [false, true] {
        let changing = Changing::prepare(&rig.client, LOCAL, ChangeKind::Move).await?;
        let subject = with_clusters(rig).await?;
        // A few streams keep the watches of the other clusters.
        let few = (0..10).map(|number| stream_request(path_of(FEDERATED), number)).collect();
        let others = rig.open(&subject, 1, few).await?;
        synced(&subject).await?;
        if hangs {
            proxy.inject(Rule::any(), Action::Hang);
            proxy.half_open();
        }
        let load = rig.open(&subject, CONNECTIONS, stream_requests(STREAMS, 1)).await?;
        for number in 0..CHANGES {
            changing.change_and_wait(number, &load, STREAMS as u64).await?;
            sleep(SETTLED).await;
        }
        let late = changing.lateness(&load)?;
        let clusters = if hangs { "two other clusters hang" } else { "two other clusters are followed" };
        let figure = format!("one change in this cluster to {STREAMS} streams while {clusters}, {CHANGES} times");
        report.row(figure, late.text(), "", late.json(json!({ "changes": CHANGES })));
        load.close().await;
        others.close().await;
        proxy.clear();
    }
    Ok(())
}

/// Measures the memory without other clusters; with one stream, which keeps the namespace of two clusters; and with a
/// stream of each Service of one of them.
async fn memory(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
    let subject = with_clusters(rig).await?;
    let none = resident(&subject).await?;
    let load = rig.open(&subject, 1, vec![stream_request(path_of(FEDERATED), 0)]).await?;
    synced(&subject).await?;
    let held = resident(&subject).await?;
    let requests = (0..SERVICES).map(|number| stream_request(path_of(&format!("remote-{number}")), number)).collect();
    let each = rig.open(&subject, CONNECTIONS, requests).await?;
    let requested = resident(&subject).await?;
    let kibibytes = |bytes: u64, services: usize| {
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let each = bytes as f64 / 1024.0 / services as f64;
        each
    };
    let text = format!(
        "{:.1} KiB without a stream, {:.1} KiB more with one; in all {:.0}, {:.0} and {:.0} MiB",
        kibibytes(held.saturating_sub(none), 2 * SERVICES),
        kibibytes(requested.saturating_sub(held), SERVICES),
        mebibytes(none),
        mebibytes(held),
        mebibytes(requested)
    );
    let raw = json!({"none": none, "held": held, "requested": requested});
    report.row("memory of a Service with ten Pods in another cluster, in a namespace that is watched", text, "", raw);
    each.close().await;
    load.close().await;
    Ok(())
}

async fn resident(subject: &Subject) -> Result<u64> {
    Ok(subject.memory_at_rest().await?.context("the process is unknown")?.resident)
}

async fn with_clusters(rig: &DiscoveryBench) -> Result<Subject> {
    let args = vec!["--enable-multicluster".to_owned()];
    rig.subject_with(ManagerOptions { args, ..ManagerOptions::default() }).await
}

/// Waits until the watched namespaces of both other clusters were listed.
async fn synced(subject: &Subject) -> Result<()> {
    let manager = subject.manager.as_ref().context("no manager")?;
    eventually(PATIENCE, "the other clusters to be listed", async || {
        for name in ["east", "north"] {
            let labels = [("cluster", name)];
            let synced = manager.metric("linkerd_operator_remote_cluster_synced", &labels).await;
            let namespaces = manager.metric("linkerd_operator_remote_cluster_namespaces", &labels).await;
            ensure!((synced, namespaces) == (Some(1.0), Some(1.0)), "{name}: {synced:?}, {namespaces:?}");
        }
        Ok(())
    })
    .await
}

/// A federated Service of three clusters, and a Service for each Service of `east`.
fn services() -> impl Iterator<Item = Value> {
    let spec = json!({"ports": [{"name": "http", "port": 80}]});
    let members = format!("{REMOTE}@east,web-2@north");
    let annotations =
        json!({"multicluster.linkerd.io/remote-discovery": members, "multicluster.linkerd.io/local-discovery": LOCAL});
    let federated = json!({"metadata": {"name": FEDERATED, "annotations": annotations}, "spec": spec});
    let remote = move |number: usize| {
        let labels = json!({"multicluster.linkerd.io/remote-discovery": "east", "multicluster.linkerd.io/remote-service": format!("web-{number}")});
        json!({"metadata": {"name": format!("remote-{number}"), "labels": labels}, "spec": spec})
    };
    std::iter::once(federated).chain((0..SERVICES).map(remote))
}
