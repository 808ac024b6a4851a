//! The destination server: what streams cost, and how late they are told.
//!
//! The manager has one core to itself; API server, etcd and the clients share the other. Each Service has ten meshed Pods in
//! two slices; the second holds one, whose port is the number of the last change, so that a client tells by the endpoint it
//! is sent which change it is told of. How late that is, is counted from the moment when a watch of our own shows the change.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    ControlPlane, Manager, ManagerOptions, Options,
    load::{self, Ask, Load, What},
    process::pin_to_core,
    wait::eventually,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};

use crate::report::{Report, milliseconds};

const SERVICES: usize = 1_000;
const PODS: usize = 10;
const SERVERS: usize = 700;
const NAMESPACE: &str = "default";
const PATIENCE: Duration = Duration::from_secs(120);
/// For what changes to reach all streams before the next.
const SETTLED: Duration = Duration::from_millis(300);
/// Ports of changes count from here.
const FIRST_PORT: u16 = 10_000;

pub(crate) async fn discovery(report: &mut Report, wanted: impl Fn(&str) -> bool) -> Result<()> {
    eprintln!("a control plane with {SERVICES} Services of {PODS} meshed Pods");
    // And what it starts.
    pin_to_core(std::process::id(), 0)?;
    let control_plane = ControlPlane::start(Options::default()).await?;
    control_plane.install_crds("crd/linkerd").await?;
    control_plane.kubectl(&["create", "namespace", "linkerd"]).await?;
    let client = control_plane.client().await?;
    let loads = load::Client::start()?;
    if wanted("start") {
        let (manager, _) = start(&control_plane).await?;
        sleep(Duration::from_secs(3)).await;
        memory(report, "discovery: resident memory, empty cluster", &manager, "≤ 20 MiB")?;
    }
    populate(&client).await?;
    if wanted("start") {
        starts(report, &control_plane, &client).await?;
    }
    let (manager, _) = start(&control_plane).await?;
    if wanted("streams") {
        for (connections, limit) in [(100, "≤ 5 KiB"), (1_000, "≤ 7 KiB")] {
            streams(report, &loads, &manager, 10_000, connections, limit).await?;
        }
        servers(&client, SERVERS).await?;
        let load = loads.open(manager.destination_address(), 100, asks(10_000, SERVICES)).await?;
        let first = load.first_messages(10_000).await?;
        report.distribution(format!("first messages of 10,000 streams at once, {SERVERS} Servers"), first, "all < 1 s");
        if wanted("noise") {
            noise(report, &client, &load).await?;
        }
        load.close().await;
    }
    if wanted("change") {
        for (count, connections, limit) in
            [(100, 10, "p99 ≤ 3 ms"), (1_000, 10, "p99 ≤ 10 ms"), (10_000, 100, "p99 ≤ 60 ms")]
        {
            changes(report, &loads, &client, &manager, count, connections, limit).await?;
        }
    }
    if wanted("churn") {
        for (connections, limit) in [(10, "≤ 4"), (100, "≤ 6")] {
            churn(report, &loads, &client, &manager, connections, limit).await?;
        }
    }
    Ok(())
}

/// A manager with a core of its own, ready; and how long that took.
async fn start(control_plane: &ControlPlane) -> Result<(Manager, Duration)> {
    let begun = Instant::now();
    let one_worker = ("TOKIO_WORKER_THREADS".to_owned(), "1".to_owned());
    let options = ManagerOptions { env: vec![one_worker], ..ManagerOptions::default() };
    let mut manager = Manager::start(control_plane, options)?;
    pin_to_core(manager.pid(), 1)?;
    manager.ready(PATIENCE).await?;
    Ok((manager, begun.elapsed()))
}

async fn starts(report: &mut Report, control_plane: &ControlPlane, client: &Client) -> Result<()> {
    let (mut ratios, mut bare, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        let lists = list_everything(client).await?;
        let (manager, ready) = start(control_plane).await?;
        ratios.push(ready.as_secs_f64() / lists.as_secs_f64());
        bare.push(milliseconds(&lists));
        ours.push(milliseconds(&ready));
        drop(manager);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
    let raw = json!({"list_milliseconds": bare, "ready_milliseconds": ours});
    report.row("ready, against a bare client that lists the same", format!("{median:.2} times"), "≤ 1.5 times", raw);
    let (manager, _) = start(control_plane).await?;
    sleep(Duration::from_secs(5)).await;
    memory(report, "discovery: resident memory, 1,000 Services and 10,000 Pods", &manager, "≤ 60 MiB")?;
    let (peak, rest) = (manager.peak_memory_bytes()?, manager.resident_memory_bytes()?);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let ratio = peak as f64 / rest as f64;
    report.row(
        "peak memory since the start, against rest",
        format!("{ratio:.2} times"),
        "≤ 1.5 times",
        json!({"peak": peak, "rest": rest}),
    );
    Ok(())
}

/// What any client has to wait for: all pages of all kinds, all kinds at the same time.
async fn list_everything(client: &Client) -> Result<Duration> {
    let kinds = [
        "/api/v1/pods",
        "/api/v1/services",
        "/api/v1/nodes",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/apps/v1/replicasets",
        "/apis/batch/v1/jobs",
        "/apis/policy.linkerd.io/v1beta3/servers",
        "/apis/workload.linkerd.io/v1beta1/externalworkloads",
    ];
    let begun = Instant::now();
    let list = |path: &'static str| async move {
        let mut next = Some(String::new());
        while let Some(token) = next {
            let uri = format!("{path}?limit=500&continue={token}");
            let text = client.request_text(http::Request::get(uri).body(Vec::new())?).await?;
            let list: Value = serde_json::from_str(&text)?;
            next = list
                .pointer("/metadata/continue")
                .and_then(Value::as_str)
                .filter(|it| !it.is_empty())
                .map(str::to_owned);
        }
        anyhow::Ok(())
    };
    futures::future::try_join_all(kinds.map(list)).await?;
    Ok(begun.elapsed())
}

async fn streams(
    report: &mut Report,
    loads: &load::Client,
    manager: &Manager,
    count: usize,
    connections: usize,
    limit: &'static str,
) -> Result<()> {
    let before = manager.resident_memory_bytes()?;
    let load = loads.open(manager.destination_address(), connections, asks(count, SERVICES)).await?;
    let first = load.first_messages(count).await?;
    report.distribution(
        format!("first messages of {count} streams at once, {connections} connections"),
        first,
        "all < 1 s",
    );
    sleep(Duration::from_secs(3)).await;
    let grown = manager.resident_memory_bytes()?.saturating_sub(before);
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let each = grown as f64 / count as f64 / 1024.0;
    let raw = json!({"bytes": grown, "streams": count, "connections": connections});
    report.row(
        format!("memory of a stream, {count} on {connections} connections"),
        format!("{each:.1} KiB"),
        limit,
        raw,
    );
    load.close().await;
    idle(manager).await
}

/// Edits that no client can see; 0 messages is what they should be told.
async fn noise(report: &mut Report, client: &Client, load: &Load) -> Result<()> {
    load.reset();
    let touch = json!({"metadata": {"annotations": {"bench": "touched"}}});
    let servers: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &server_kind());
    let pods: Api<DynamicObject> = Api::namespaced_with(
        client.clone(),
        NAMESPACE,
        &ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod")),
    );
    let patch = Patch::Merge(touch);
    let params = PatchParams::default();
    stream::iter(0..SERVERS)
        .map(|n| {
            let (servers, patch, params) = (&servers, &patch, &params);
            async move { servers.patch(&format!("server-{n}"), params, patch).await.map(drop) }
        })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await?;
    stream::iter(0..1_000)
        .map(|n| {
            let (pods, patch, params) = (&pods, &patch, &params);
            async move { pods.patch(&format!("web-{n}-0"), params, patch).await.map(drop) }
        })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await?;
    sleep(Duration::from_secs(3)).await;
    let messages = load.arrivals().messages;
    report.row(
        format!("messages after touching {SERVERS} Servers and 1,000 Pods"),
        messages.to_string(),
        "0",
        json!(messages),
    );
    Ok(())
}

/// One change after the other, each to all streams.
async fn changes(
    report: &mut Report,
    loads: &load::Client,
    client: &Client,
    manager: &Manager,
    count: usize,
    connections: usize,
    limit: &'static str,
) -> Result<()> {
    const CHANGES: u16 = 50;
    let load = loads.open(manager.destination_address(), connections, asks(count, 1)).await?;
    load.first_messages(count).await?;
    load.reset();
    let watch = Seen::watch(client).await?;
    for change in 0..CHANGES {
        change_port(client, FIRST_PORT + change).await?;
        let told = u64::from(change + 1) * count as u64;
        eventually(PATIENCE, "all streams to be told", async || {
            let so_far = load.arrivals().told(What::Add);
            ensure!(so_far >= told, "{so_far} of {told}");
            Ok(())
        })
        .await?;
        sleep(SETTLED).await;
    }
    let latencies = watch.latencies(&load)?;
    ensure!(
        latencies.len() == count * usize::from(CHANGES),
        "{} messages for {} changes of {count} streams",
        latencies.len(),
        CHANGES
    );
    report.distribution(
        format!("one endpoint change to {count} streams on {connections} connections"),
        latencies,
        limit,
    );
    load.close().await;
    idle(manager).await
}

/// As many changes as are wanted in a second, whatever happens: an open loop.
async fn churn(
    report: &mut Report,
    loads: &load::Client,
    client: &Client,
    manager: &Manager,
    connections: usize,
    limit: &'static str,
) -> Result<()> {
    const STREAMS: usize = 1_000;
    const RATE: u32 = 300;
    const SECONDS: u32 = 10;
    let load = loads.open(manager.destination_address(), connections, asks(STREAMS, 1)).await?;
    load.first_messages(STREAMS).await?;
    load.reset();
    let watch = Seen::watch(client).await?;
    let cpu = manager.cpu_time()?;
    let begun = Instant::now();
    let changes = RATE * SECONDS;
    let mut late = Duration::ZERO;
    stream::iter(0..changes)
        .map(|change| async move {
            let due = Duration::from_secs(1) * change / RATE;
            sleep(due.saturating_sub(begun.elapsed())).await;
            let behind = begun.elapsed().saturating_sub(due);
            change_port(client, FIRST_PORT + u16::try_from(change)?).await?;
            anyhow::Ok(behind)
        })
        .buffered(8)
        .try_for_each(|behind| {
            late = late.max(behind);
            async { Ok(()) }
        })
        .await?;
    let took = begun.elapsed();
    sleep(Duration::from_secs(2)).await;
    let spent = manager.cpu_time()?.saturating_sub(cpu);
    let messages = load.arrivals().messages;
    let latencies = watch.latencies(&load)?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let per_million = spent.as_secs_f64() / messages as f64 * 1e6;
    let raw = json!({"cpu_seconds": spent.as_secs_f64(), "messages": messages, "writes": changes, "seconds": took.as_secs_f64(), "writer_behind_seconds": late.as_secs_f64()});
    report.row(
        format!("CPU-seconds for a million messages, {} streams a connection", STREAMS / connections),
        format!("{per_million:.1}"),
        limit,
        raw.clone(),
    );
    let rate = f64::from(changes) / took.as_secs_f64();
    report.row(
        format!("changes a second to {STREAMS} streams on {connections} connections"),
        format!("{rate:.0}, {} of them told one by one", messages / 2 / STREAMS as u64),
        "≥ 300",
        raw,
    );
    report.distribution(format!("lateness then, {connections} connections"), latencies, "p99 < 1 s");
    load.close().await;
    idle(manager).await
}

/// Waits until no stream is left.
async fn idle(manager: &Manager) -> Result<()> {
    eventually(PATIENCE, "all streams to be gone", async || {
        let streams = manager.metric("linkerd_operator_discovery_streams", &[]).await.unwrap_or(0.0);
        ensure!(streams == 0.0, "{streams} are there");
        Ok(())
    })
    .await
}

fn memory(report: &mut Report, figure: &str, manager: &Manager, wanted: &'static str) -> Result<()> {
    let bytes = manager.resident_memory_bytes()?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let mebibytes = bytes as f64 / 1024.0 / 1024.0;
    report.row(figure, format!("{mebibytes:.1} MiB"), wanted, json!({ "bytes": bytes }));
    Ok(())
}

/// Clients on three nodes, over so many Services.
fn asks(count: usize, services: usize) -> Vec<Ask> {
    let ask = |number: usize| Ask {
        path: format!("web-{}.{NAMESPACE}.svc.cluster.local:80", number % services),
        token: format!(
            "{{\"ns\":\"{NAMESPACE}\", \"nodeName\":\"node-{}\", \"pod\":\"client-{number}\"}}\n",
            number / services % 3
        ),
    };
    (0..count).map(ask).collect()
}

/// When our own watch saw each port.
struct Seen {
    seen: Arc<Mutex<HashMap<u16, Instant>>>,
    task: JoinHandle<()>,
}

impl Seen {
    async fn watch(client: &Client) -> Result<Self> {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        let params = WatchParams::default().fields("metadata.name=web-0-changing").timeout(290);
        let version = slices.get("web-0-changing").await?.metadata.resource_version.context("a version")?;
        let mut events = slices.watch(&params, &version).await?.boxed();
        let seen = Arc::<Mutex<HashMap<u16, Instant>>>::default();
        let into = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let now = Instant::now();
                if let WatchEvent::Modified(slice) = event
                    && let Some(port) = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok())
                {
                    into.lock().unwrap_or_else(PoisonError::into_inner).insert(port, now);
                }
            }
        });
        Ok(Self { seen, task })
    }

    /// From what the watch saw to what the streams were told.
    fn latencies(&self, load: &Load) -> Result<Vec<Duration>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let arrivals = load.arrivals();
        let mut late = Vec::new();
        for change in arrivals.changes.iter().filter(|change| change.what == What::Add) {
            let seen = seen.get(&change.port).with_context(|| format!("no watch saw {}", change.port))?;
            let streams = usize::try_from(change.streams)?;
            late.extend(std::iter::repeat_n(change.at.saturating_duration_since(*seen), streams));
        }
        Ok(late)
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn change_port(client: &Client, port: u16) -> Result<()> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"ports": [{"name": "http", "port": port}]}));
    slices.patch("web-0-changing", &PatchParams::default(), &patch).await?;
    Ok(())
}

fn server_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("policy.linkerd.io", "v1beta3", "Server"))
}

async fn servers(client: &Client, count: usize) -> Result<()> {
    let object = |number: usize| {
        let spec = json!({"podSelector": {"matchLabels": {"app": format!("web-{number}")}}, "port": 9000 + number, "proxyProtocol": "opaque"});
        json!({"metadata": {"name": format!("server-{number}")}, "spec": spec})
    };
    create(client, &server_kind(), (0..count).map(object)).await
}

async fn populate(client: &Client) -> Result<()> {
    let kind =
        |group: &str, version: &str, kind: &str| ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let node = |n: usize| json!({"metadata": {"name": format!("node-{n}"), "labels": {"topology.kubernetes.io/zone": format!("zone-{n}")}}});
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &kind("", "v1", "Node"));
    for n in 0..3 {
        nodes.create(&PostParams::default(), &serde_json::from_value(node(n))?).await?;
    }
    let service =
        |n: usize| json!({"metadata": {"name": format!("web-{n}")}, "spec": {"ports": [{"name": "http", "port": 80}]}});
    create(client, &kind("", "v1", "Service"), (0..SERVICES).map(service)).await?;
    let replica_set = |n: usize| {
        let labels = json!({"app": format!("web-{n}")});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
        json!({"metadata": {"name": format!("web-{n}"), "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("web-{n}"), "uid": "0"}]},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}})
    };
    create(client, &kind("apps", "v1", "ReplicaSet"), (0..SERVICES).map(replica_set)).await?;
    create(client, &kind("", "v1", "Pod"), (0..SERVICES * PODS).map(|n| pod(n / PODS, n % PODS))).await?;
    let slice = |service: usize, name: &str, pods: std::ops::Range<usize>| {
        let endpoints: Vec<Value> = pods.map(|pod| endpoint(service, pod)).collect();
        json!({"metadata": {"name": format!("web-{service}-{name}"), "labels": {"kubernetes.io/service-name": format!("web-{service}")}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
    };
    let slices = (0..SERVICES).flat_map(|n| [slice(n, "steady", 0..PODS - 1), slice(n, "changing", PODS - 1..PODS)]);
    create(client, &kind("discovery.k8s.io", "v1", "EndpointSlice"), slices).await
}

fn address(service: usize, pod: usize) -> String {
    let number = service * PODS + pod;
    format!("10.{}.{}.{}", 1 + number / 62_500, number / 250 % 250, 1 + number % 250)
}

fn endpoint(service: usize, pod: usize) -> Value {
    json!({"addresses": [address(service, pod)], "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{}", pod % 3), "zone": format!("zone-{}", pod % 3),
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("web-{service}-{pod}")}})
}

/// A meshed Pod, about as long as a real one.
fn pod(service: usize, number: usize) -> Value {
    let listen = |name: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{name}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
    let mut environment: Vec<Value> = (0..50).map(|n| json!({"name": format!("LINKERD2_PROXY_SETTING_NUMBER_{n}"), "value": "a value of about the usual length"})).collect();
    environment.extend([listen("INBOUND", 4143), listen("ADMIN", 4191), listen("CONTROL", 4190)]);
    json!({
        "metadata": {"name": format!("web-{service}-{number}"),
            "labels": {"app": format!("web-{service}"), "pod-template-hash": "5d4f8c7b9", "linkerd.io/control-plane-ns": "linkerd", "linkerd.io/proxy-deployment": format!("web-{service}"), "linkerd.io/workload-ns": NAMESPACE},
            "annotations": {"linkerd.io/created-by": "linkerd/proxy-injector edge", "linkerd.io/proxy-version": "edge", "linkerd.io/inject": "enabled"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("web-{service}"), "uid": "0", "controller": true}]},
        "spec": {"nodeName": format!("node-{}", number % 3), "serviceAccountName": "web", "automountServiceAccountToken": false,
            "initContainers": [{"name": "linkerd-proxy", "image": "proxy", "restartPolicy": "Always", "env": environment,
                "ports": [{"name": "linkerd-proxy", "containerPort": 4143}, {"name": "linkerd-admin", "containerPort": 4191}]}],
            "containers": [{"name": "web", "image": "web", "ports": [{"name": "http", "containerPort": 8080}]}]},
    })
}

async fn create(client: &Client, kind: &ApiResource, objects: impl Iterator<Item = Value>) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, kind);
    stream::iter(objects)
        .map(|mut object| {
            let api = &api;
            if let Some(fields) = object.as_object_mut() {
                fields.insert("apiVersion".to_owned(), json!(kind.api_version));
                fields.insert("kind".to_owned(), json!(kind.kind));
            }
            async move {
                api.create(&PostParams::default(), &serde_json::from_value(object)?)
                    .await
                    .map(drop)
                    .map_err(anyhow::Error::from)
            }
        })
        .buffer_unordered(32)
        .try_collect()
        .await
}
