//! Servers that make the port of one app opaque, one after the other: who is told of each, and how late.
//!
//! * In: a stream of the profile of every Pod. Out: lateness, counted from the moment when a watch of our own showed the Server,
//!   and from the moment when it was written; and how many streams were told that should not have been.
//! * Always: what is made here is deleted again: a second run makes it anew.

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
/// For what a change costs besides to be over before the next.
const SETTLED: Duration = Duration::from_millis(150);
/// For messages that should not be to come.
const QUIET: Duration = Duration::from_secs(2);
/// Of the Servers that are made here.
const LABEL: &str = "bench=opaque";

/// When something happened to the Server of an app, by its name.
type Moments = Arc<Mutex<HashMap<String, Instant>>>;

struct Servers {
    api: Api<DynamicObject>,
    written: Moments,
    /// By our own watch.
    seen: Moments,
    watch: JoinHandle<()>,
}

/// What came of all of them.
#[derive(Default)]
struct Told {
    since_seen: Samples,
    since_written: Samples,
    /// Streams that had exactly the one message that they should have.
    once: usize,
    /// Messages besides.
    others: u64,
}

pub(super) async fn opaque(report: &mut Report, rig: &Rig) -> Result<()> {
    let servers = Servers::prepare(&rig.client).await?;
    let measured = measure(report, rig, &servers).await;
    servers.delete().await?;
    measured
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
        told(&load, app).await?;
        spent += phase.end()?;
        sleep(SETTLED).await;
    }
    sleep(QUIET).await;
    let messages = load.counts().messages;
    let told = servers.told(&load)?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let cpu = spent.server.map(|server| milliseconds(&server.ran) / CHANGES as f64);
    let text = format!(
        "{} of {} streams told exactly once, {} messages besides; {} (p99 since the write began {:.1} ms){}",
        told.once,
        CHANGES * PODS,
        told.others,
        told.since_seen.text(),
        milliseconds(&told.since_written.at(0.99)),
        cpu.map(|cpu| format!("; CPU {cpu:.2} ms each")).unwrap_or_default(),
    );
    let raw = json!({
        "changes": CHANGES,
        "messages": messages,
        "streams_told_once": told.once,
        "messages_besides": told.others,
        "cpu_milliseconds_each": cpu,
        "since_watch_event": told.since_seen.histogram(),
        "since_write_began": told.since_written.histogram(),
    });
    let figure = format!("a Server makes {PODS} of {STREAMS} profiles opaque, {CHANGES} times");
    report.row(figure, text, "1 message to each of them, none to others", raw);
    report.spent(&spent);
    load.close().await;
    Ok(())
}

/// Waits until all streams of the app's Pods were told that their port is opaque.
async fn told(load: &Load, app: usize) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = {
            let arrivals = load.arrivals();
            pods_of(app).filter(|pod| arrivals.told(opaque_of(address(*pod)), POD_PORT) > 0).count()
        };
        if told == PODS {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "Server {app}: {told} of {PODS} streams were told");
        // A look costs nothing, and what is measured besides ends with it.
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
    /// Without those that a run left behind which did not end well.
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
    /// When a client was told of what our watch did not see.
    fn told(&self, load: &Load) -> Result<Told> {
        let (seen, written) = (lock(&self.seen), lock(&self.written));
        let servers: HashMap<What, String> =
            (0..CHANGES).flat_map(|app| pods_of(app).map(move |pod| (opaque_of(address(pod)), name(app)))).collect();
        let (mut told, mut once) = (Told::default(), HashSet::new());
        let arrivals = load.arrivals();
        for change in &arrivals.changes {
            match servers.get(&change.what) {
                Some(server) if once.insert(change.what) => {
                    let seen = seen.get(server).with_context(|| format!("our watch did not see {server}"))?;
                    let written = written.get(server).with_context(|| format!("{server} was not written"))?;
                    told.since_seen.push(change.at.saturating_duration_since(*seen), 1);
                    told.since_written.push(change.at.saturating_duration_since(*written), 1);
                    told.others += change.streams - 1;
                }
                _ => told.others += change.streams,
            }
        }
        told.once = once.iter().filter(|what| arrivals.told(**what, POD_PORT) == 1).count();
        Ok(told)
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
    eventually(PATIENCE, "the Servers to be gone", async || {
        let left = api.list_metadata(&ours).await?.items.len();
        ensure!(left == 0, "{left} are there");
        Ok(())
    })
    .await
}

fn lock(moments: &Moments) -> MutexGuard<'_, HashMap<String, Instant>> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}
