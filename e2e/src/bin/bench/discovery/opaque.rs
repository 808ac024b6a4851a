//! Servers that make the port of one app opaque, one after the other: which streams receive an update, and how late.
//!
//! * In: a stream of the profile of every Pod. Out: the latency, measured from the Server's watch event in this process
//!   and from the write; the number of unexpected messages.
//! * Always: the Servers are deleted at the end, so another run creates them again.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    load::{Load, What},
    wait::eventually,
};
use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::{task::JoinHandle, time::sleep};

use super::{
    cluster::{NAMESPACE, POD_PORT, PODS, address, profiles_of_pods, server_kind},
    rig::{PATIENCE, Rig},
    streams::STREAMS,
};
use crate::{
    report::{Report, Samples, milliseconds},
    spent::Spent,
};

const CONNECTIONS: usize = 100;
const CHANGES: usize = 100;
/// Time for the remaining work of a change before the next one.
const SETTLED: Duration = Duration::from_millis(150);
/// The time in which no message may arrive.
const QUIET: Duration = Duration::from_secs(2);
/// The label of the Servers created here.
const LABEL: &str = "bench=opaque";

/// The time of an event, by the name of the app's Server.
type Moments = Arc<Mutex<HashMap<String, Instant>>>;

struct Servers {
    api: Api<DynamicObject>,
    written: Moments,
    /// By the watch of this process.
    seen: Moments,
    watch: JoinHandle<()>,
}

/// The result of all changes.
#[derive(Default)]
struct Received {
    since_seen: Samples,
    since_written: Samples,
    /// Streams that received exactly the one expected message.
    once: usize,
    /// Other messages.
    others: u64,
}

pub(super) async fn opaque(report: &mut Report, rig: &Rig) -> Result<()> {
    let servers = Servers::prepare(&rig.client).await?;
    let measured = measure(report, rig, &servers).await;
    servers.delete().await?;
    measured
}

/// Makes the profiles of one app's Pods opaque, and waits until their streams have received it.
pub(super) async fn change_and_wait(client: &Client, load: &Load) -> Result<()> {
    let servers = Servers::prepare(client).await?;
    let changed = async {
        servers.create(0).await?;
        received(load, 0).await
    }
    .await;
    servers.delete().await?;
    changed
}

async fn measure(report: &mut Report, rig: &Rig, servers: &Servers) -> Result<()> {
    let subject = rig.subject().await?;
    let load = rig.loads.open(subject.address, CONNECTIONS, profiles_of_pods(STREAMS)).await?;
    load.first_messages(STREAMS).await?;
    sleep(SETTLED * 4).await;
    load.reset();
    let mut spent = Spent::default();
    for app in 0..CHANGES {
        let phase = rig.phase(&subject)?;
        servers.create(app).await?;
        received(&load, app).await?;
        spent += phase.end()?;
        sleep(SETTLED).await;
    }
    sleep(QUIET).await;
    let messages = load.counts().messages;
    let result = servers.result(&load)?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let cpu = spent.server.map(|server| milliseconds(&server.ran) / CHANGES as f64);
    let text = format!(
        "{} of {} streams updated exactly once, {} other messages; {} (p99 since the write began {:.1} ms){}",
        result.once,
        CHANGES * PODS,
        result.others,
        result.since_seen.text(),
        milliseconds(&result.since_written.at(0.99)),
        cpu.map(|cpu| format!("; CPU {cpu:.2} ms per change")).unwrap_or_default(),
    );
    let raw = json!({
        "changes": CHANGES,
        "messages": messages,
        "streams_told_once": result.once,
        "messages_besides": result.others,
        "cpu_milliseconds_each": cpu,
        "since_watch_event": result.since_seen.histogram(),
        "since_write_began": result.since_written.histogram(),
    });
    let figure = format!("a Server makes {PODS} of {STREAMS} profiles opaque, {CHANGES} times");
    report.row(figure, text, "1 message to each of them, none to other streams", raw);
    report.spent(&spent);
    load.close().await;
    Ok(())
}

/// Waits until all streams for the app's Pods have received the opaque port.
async fn received(load: &Load, app: usize) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let count = {
            let arrivals = load.arrivals();
            pods_of(app).filter(|pod| arrivals.received(opaque_of(address(*pod)), POD_PORT) > 0).count()
        };
        if count == PODS {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "Server {app}: {count} of {PODS} streams received it");
        // Polling is cheap, and other measurements end with this wait.
        sleep(Duration::from_millis(1)).await;
    }
}

fn pods_of(app: usize) -> Range<usize> {
    app * PODS..(app + 1) * PODS
}

fn opaque_of(address: Ipv4Addr) -> What {
    What::Profile { opaque: true, endpoint: Some(address) }
}

fn name(app: usize) -> String {
    format!("opaque-{app}")
}

// === impl Servers ===

impl Servers {
    /// Deletes the Servers of an aborted run, and starts the watch.
    async fn prepare(client: &Client) -> Result<Self> {
        let api = Api::namespaced_with(client.clone(), NAMESPACE, &server_kind());
        delete(&api).await?;
        let version = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version;
        let params = WatchParams::default().labels(LABEL).timeout(290);
        let mut events = api.watch(&params, &version.context("a version")?).await?.boxed();
        let (written, seen) = (Moments::default(), Moments::default());
        let into = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let now = Instant::now();
                if let WatchEvent::Added(server) = event {
                    lock(&into).insert(server.name_any(), now);
                }
            }
        });
        Ok(Self { api, written, seen, watch })
    }

    async fn create(&self, app: usize) -> Result<()> {
        let (name, kind) = (name(app), server_kind());
        let (label, value) = LABEL.split_once('=').context("a label")?;
        let spec = json!({"podSelector": {"matchLabels": {"app": format!("web-{app}")}}, "port": POD_PORT, "proxyProtocol": "opaque"});
        let server = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "labels": {label: value}}, "spec": spec});
        lock(&self.written).insert(name, Instant::now());
        self.api.create(&PostParams::default(), &serde_json::from_value(server)?).await?;
        Ok(())
    }

    /// # Errors
    /// Fails when a client received a change that the watch did not show.
    fn result(&self, load: &Load) -> Result<Received> {
        let (seen, written) = (lock(&self.seen), lock(&self.written));
        let servers: HashMap<What, String> =
            (0..CHANGES).flat_map(|app| pods_of(app).map(move |pod| (opaque_of(address(pod)), name(app)))).collect();
        let (mut received, mut once) = (Received::default(), HashSet::new());
        let arrivals = load.arrivals();
        for change in &arrivals.changes {
            match servers.get(&change.what) {
                Some(server) if once.insert(change.what) => {
                    let seen = seen.get(server).with_context(|| format!("the watch did not show {server}"))?;
                    let written = written.get(server).with_context(|| format!("{server} was not written"))?;
                    received.since_seen.push(change.at.saturating_duration_since(*seen), 1);
                    received.since_written.push(change.at.saturating_duration_since(*written), 1);
                    received.others += change.streams - 1;
                }
                _ => received.others += change.streams,
            }
        }
        received.once = once.iter().filter(|what| arrivals.received(**what, POD_PORT) == 1).count();
        Ok(received)
    }

    async fn delete(&self) -> Result<()> {
        delete(&self.api).await
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

async fn delete(api: &Api<DynamicObject>) -> Result<()> {
    let ours = ListParams::default().labels(LABEL);
    api.delete_collection(&DeleteParams::default(), &ours).await?;
    eventually(PATIENCE, "the Servers to be deleted", async || {
        let left = api.list_metadata(&ours).await?.items.len();
        ensure!(left == 0, "{left} still exist");
        Ok(())
    })
    .await
}

fn lock(moments: &Moments) -> MutexGuard<'_, HashMap<String, Instant>> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}
