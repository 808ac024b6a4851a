//! The ExternalWorkload controller with 10,000 workloads and 500 Services.
//!
//! The manager waits until the bench releases the Lease, after all objects exist; then the clock starts. The manager's
//! time is compared with a bare loop that creates the same EndpointSlices with the same concurrency.

mod flips;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Rig,
    mesh::{Mesh, external_workload},
    objects::{create_all, kind, watch_from_now},
    wait::eventually,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::timeout;

use crate::report::{Report, in_control_group, median};

const SERVICES: usize = 500;
const WORKLOADS: usize = 10_000;
const ROUNDS: usize = 7;
const MANAGED: &str = "endpointslice.kubernetes.io/managed-by=linkerd-external-workloads-controller";
const BARE: &str = "bench=bare";
/// The operator's default.
const CONCURRENCY: usize = 8;
const NAMESPACE: &str = "default";
const LEASE: &str = "linkerd-destination-endpoint-write";
const PATIENCE: Duration = Duration::from_secs(300);

/// The figures that share the large cluster: memory, convergence, rest, flips.
pub(crate) async fn steady(report: &mut Report, wanted: impl Fn(&str) -> bool) -> Result<()> {
    eprintln!("a control plane with {SERVICES} Services and {WORKLOADS} ExternalWorkloads");
    let control_plane = start().await?;
    let client = control_plane.client().await?;
    let mut empty = Manager::start(&control_plane, in_control_group())?;
    empty.ready(PATIENCE).await?;
    if wanted("memory") {
        tokio::time::sleep(Duration::from_secs(5)).await;
        report.memory("memory, empty cluster", &[empty.memory()?], "≤ 20 MiB");
    }
    drop(empty);

    populate(&client).await?;
    hold_lease(&client).await?;
    let mut manager = Manager::start(&control_plane, in_control_group())?;
    manager.ready(PATIENCE).await?;
    if wanted("converge") {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            if round > 0 {
                start_over(&client, &manager).await?;
            }
            ours.push(converge(&client).await?.as_secs_f64());
            bare.push(bare_loop(&client).await?.as_secs_f64());
        }
        compare(report, &ours, &bare);
    } else {
        converge(&client).await?;
    }
    if wanted("memory") {
        tokio::time::sleep(Duration::from_secs(5)).await;
        report.memory(&format!("memory, {WORKLOADS} workloads"), &[manager.memory()?], "≤ 48 MiB");
    }
    if wanted("rest") {
        rest(report, &client).await?;
    }
    if wanted("flip") {
        flips::one_by_one(report, &client).await?;
    }
    if wanted("flips") {
        flips::all(report, &client, manager).await?;
    }
    Ok(())
}

/// Two replicas: one is terminated or killed. Measures the time until the first write of the other.
pub(crate) async fn hand_over(report: &mut Report) -> Result<()> {
    let control_plane = start().await?;
    let client = control_plane.client().await?;
    let mesh = Mesh::new(&client, NAMESPACE);
    mesh.put_service("web", json!({})).await?;
    mesh.put_workload("vm", "web", &["192.0.2.4"]).await?;
    for (how, wanted) in [("SIGTERM", "< 2 s"), ("SIGKILL", "≤ 33 s")] {
        let mut samples = Vec::new();
        for _ in 0..if how == "SIGTERM" { 10 } else { 2 } {
            let mut leader = Manager::start(&control_plane, ManagerOptions::default())?;
            leads(&leader).await?;
            mesh.set_ready("vm", true).await?;
            mesh.shows("web", &[("vm", true)]).await?;
            let mut other = Manager::start(&control_plane, ManagerOptions::default())?;
            other.ready(PATIENCE).await?;
            // Time to observe the Lease record, as in production.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let ended = Instant::now();
            if how == "SIGTERM" {
                leader.terminate(PATIENCE).await?;
            } else {
                leader.kill().await?;
            }
            mesh.set_ready("vm", false).await?;
            eventually(PATIENCE, "the first write of the other replica", async || {
                let slices = mesh.readiness("web").await?;
                ensure!(slices.get("vm") == Some(&false), "{slices:?}");
                Ok(())
            })
            .await?;
            samples.push(ended.elapsed());
            other.terminate(PATIENCE).await?;
        }
        report.distribution(format!("hand-over after {how}, until the other replica's first write"), samples, wanted);
    }
    Ok(())
}

async fn start() -> Result<ControlPlane> {
    Ok(Rig::linkerd().start().await?.control_plane)
}

async fn leads(manager: &Manager) -> Result<()> {
    eventually(PATIENCE, "the manager to lead", async || {
        ensure!(manager.is_leading(LEASE).await, "it does not lead");
        Ok(())
    })
    .await
}

fn service_name(number: usize) -> String {
    format!("service-{:03}", number % SERVICES)
}

fn workload_name(number: usize) -> String {
    format!("vm-{number:05}")
}

fn address(number: usize) -> String {
    format!("10.{}.{}.{}", 1 + number / 62_500, (number / 250) % 250, 1 + number % 250)
}

async fn populate(client: &Client) -> Result<()> {
    let service = |number| {
        let name = service_name(number);
        json!({"metadata": {"name": name}, "spec": {"clusterIP": "None", "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "selector": {"app": name}, "ports": [{"name": "http", "port": 80}]}})
    };
    create_all(client, &kind("v1", "Service"), Some(NAMESPACE), (0..SERVICES).map(service)).await?;
    let workload = |number| {
        let labels = json!({"app": service_name(number), "topology.kubernetes.io/zone": "zone-a"});
        json!({"metadata": {"name": workload_name(number), "labels": labels},
            "spec": {"meshTLS": {"identity": "spiffe://root.linkerd.cluster.local/vm", "serverName": "vm.example.com"},
                "workloadIPs": [{"ip": address(number)}], "ports": [{"name": "http", "port": 80}]}})
    };
    create_all(client, &external_workload(), Some(NAMESPACE), (0..WORKLOADS).map(workload)).await
}

/// Takes the Lease, so that the manager fills its caches but writes nothing.
async fn hold_lease(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "linkerd");
    let _ = leases.delete(LEASE, &DeleteParams::default()).await;
    let lease = json!({"metadata": {"name": LEASE}, "spec": {"holderIdentity": "bench", "leaseDurationSeconds": 3600}});
    leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await?;
    Ok(())
}

/// Takes the Lease back, and deletes all EndpointSlices while the manager does not lead.
async fn start_over(client: &Client, manager: &Manager) -> Result<()> {
    hold_lease(client).await?;
    eventually(PATIENCE, "the manager to stop leading", async || {
        ensure!(!manager.is_leading(LEASE).await, "it still leads");
        Ok(())
    })
    .await?;
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    slices.delete_collection(&DeleteParams::default(), &ListParams::default().labels(MANAGED)).await?;
    eventually(PATIENCE, "the manager to observe the deletions", async || {
        let endpoints = manager.metric("linkerd_operator_external_workload_endpoints", &[]).await;
        ensure!(endpoints == Some(0.0), "its metric shows {endpoints:?} endpoints");
        Ok(())
    })
    .await
}

/// The time from the manager's acquisition of the Lease to the watch event of the last slice.
async fn converge(client: &Client) -> Result<Duration> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "linkerd");
    let fields = WatchParams::default().fields(&format!("metadata.name={LEASE}"));
    let mut lease_events = leases.watch(&fields, "0").await?.boxed();
    let created = all_created(client, MANAGED).await?;
    let free = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(free)).await?;
    let taken = async {
        while let Some(event) = lease_events.try_next().await? {
            if let WatchEvent::Added(lease) | WatchEvent::Modified(lease) = event {
                let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
                if !holder.is_empty() && holder != "bench" {
                    return Ok(Instant::now());
                }
            }
        }
        bail!("the watch of the Lease ended")
    };
    let (taken, ended) = tokio::try_join!(taken, created)?;
    Ok(ended - taken)
}

/// A loop that creates copies of the same slices, with the same concurrency and the same watch.
async fn bare_loop(client: &Client) -> Result<Duration> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let ours = slices.list(&ListParams::default().labels(MANAGED)).await?;
    ensure!(ours.items.len() == SERVICES, "{} slices instead of {SERVICES}", ours.items.len());
    let copies: Vec<EndpointSlice> = ours
        .items
        .into_iter()
        .enumerate()
        .map(|(number, mut slice)| {
            slice.metadata = serde_json::from_value(json!({
                "name": format!("bare-{number}"), "labels": {"bench": "bare", "kubernetes.io/service-name": "bare"},
                "ownerReferences": slice.metadata.owner_references,
            }))
            .unwrap_or_default();
            slice
        })
        .collect();
    let created = all_created(client, BARE).await?;
    let begun = Instant::now();
    let params = PostParams::default();
    let writes = stream::iter(&copies)
        .map(|slice| slices.create(&params, slice))
        .buffer_unordered(CONCURRENCY)
        .try_for_each(|_| std::future::ready(Ok(())));
    let ((), ended) = tokio::try_join!(async { writes.await.map_err(anyhow::Error::from) }, created)?;
    slices.delete_collection(&DeleteParams::default(), &ListParams::default().labels(BARE)).await?;
    Ok(ended - begun)
}

/// Resolves when slices with all workloads have been created from now on, with the time of the last watch event.
async fn all_created(client: &Client, labels: &str) -> Result<impl Future<Output = Result<Instant>>> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let mut events = watch_from_now(&slices, &WatchParams::default().labels(labels)).await?;
    Ok(async move {
        let mut endpoints = 0;
        let count = async {
            while endpoints < WORKLOADS {
                match events.try_next().await?.context("the watch of slices ended")? {
                    WatchEvent::Added(slice) => endpoints += slice.endpoints.len(),
                    WatchEvent::Bookmark(_) => {}
                    other => bail!("a slice was not created exactly once: {other:?}"),
                }
            }
            Ok(Instant::now())
        };
        timeout(PATIENCE, count).await?
    })
}

fn compare(report: &mut Report, ours: &[f64], bare: &[f64]) {
    let mut ratios: Vec<f64> = ours.iter().zip(bare).map(|(ours, bare)| ours / bare).collect();
    ratios.sort_by(f64::total_cmp);
    report.row(
        format!("{WORKLOADS} workloads over {SERVICES} Services, {SERVICES} slice writes, {ROUNDS} rounds"),
        format!(
            "median {:.2} s; a bare loop {:.2} s; {:.2} times (best {:.2}, worst {:.2})",
            median(ours.to_vec()),
            median(bare.to_vec()),
            median(ratios.clone()),
            ratios.first().copied().unwrap_or_default(),
            ratios.last().copied().unwrap_or_default(),
        ),
        "≤ 1.5 times the bare loop",
        json!({"ours_seconds": ours, "bare_seconds": bare}),
    );
}

/// Counts slice writes at rest, and while the annotations of every Service are changed.
async fn rest(report: &mut Report, client: &Client) -> Result<()> {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let quiet = writes_during(client, async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(())
    })
    .await?;
    report.row("slice writes in 10 s at rest", quiet.to_string(), "0", json!(quiet));
    let touch = async {
        for number in 0..SERVICES {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"bench": "touched"}}}));
            services.patch(&service_name(number), &PatchParams::default(), &patch).await?;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    };
    let touched = writes_during(client, touch).await?;
    report.row(
        format!("slice writes after touching {SERVICES} Services' annotations"),
        touched.to_string(),
        "0",
        json!(touched),
    );
    Ok(())
}

async fn writes_during(client: &Client, work: impl Future<Output = Result<()>>) -> Result<usize> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let events =
        watch_from_now(&slices, &WatchParams::default().labels("endpointslice.kubernetes.io/managed-by")).await?;
    let mut writes = 0;
    let count = events.try_for_each(|event| {
        writes += usize::from(!matches!(event, WatchEvent::Bookmark(_)));
        std::future::ready(Ok(()))
    });
    tokio::select! {
        ended = count => { ended?; bail!("the watch of slices ended") }
        worked = work => worked?,
    }
    Ok(writes)
}
