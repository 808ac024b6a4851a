//! Servers that make the port of one app opaque, one after the other: which streams receive an update, and how late.
//!
//! * In: a stream of the profile of every Pod. Out: the [latency](super::moments) of the updates; the number of
//!   unexpected messages.
//! * Always: the Servers are deleted at the end, so another run creates them again.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
    ops::Range,
    time::Duration,
};

use anyhow::{Result, ensure};
use e2e::{
    load::{Load, What},
    wait::eventually,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    cluster::{NAMESPACE, POD_PORT, PODS, address, profiles_of_pods, server_kind},
    moments::{self, Lateness, Moments},
    rig::{DiscoveryBench, PATIENCE},
    streams::STREAMS,
};
use crate::{
    report::{Report, milliseconds},
    spent::Spent,
};

const CONNECTIONS: usize = 100;
const CHANGES: usize = 100;
/// Time for the remaining work of a change before the next one.
const SETTLED: Duration = Duration::from_millis(150);
/// The time in which no message may arrive.
const QUIET: Duration = Duration::from_secs(2);
/// The label of the Servers created here.
const LABEL: (&str, &str) = ("bench", "opaque");

struct Servers {
    api: Api<DynamicObject>,
    /// By the name of the app's Server.
    moments: Moments<String>,
}

/// The result of all changes.
#[derive(Default)]
struct ReceivedChanges {
    late: Lateness,
    /// Streams that received exactly the one expected message.
    once: usize,
    /// Other messages.
    others: u64,
}

pub(super) async fn opaque(report: &mut Report, rig: &DiscoveryBench) -> Result<()> {
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

async fn measure(report: &mut Report, rig: &DiscoveryBench, servers: &Servers) -> Result<()> {
    let subject = rig.subject().await?;
    let load = rig.open(&subject, CONNECTIONS, profiles_of_pods(STREAMS)).await?;
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
    let ReceivedChanges { late, once, others } = servers.result(&load)?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let cpu = spent.server.map(|server| milliseconds(&server.ran) / CHANGES as f64);
    let text = format!(
        "{once} of {} streams updated exactly once, {others} other messages; {}{}",
        CHANGES * PODS,
        late.text(),
        cpu.map(|cpu| format!("; CPU {cpu:.2} ms per change")).unwrap_or_default(),
    );
    let raw = json!({"messages": messages, "streams_told_once": once, "messages_besides": others,
        "cpu_milliseconds_each": cpu});
    let figure = format!("a Server makes {PODS} of {STREAMS} profiles opaque, {CHANGES} times");
    report.row(figure, text, "1 message to each of them, none to other streams", late.json(raw));
    report.spent(&spent);
    load.close().await;
    Ok(())
}

/// Waits until all streams for the app's Pods have received the opaque port.
async fn received(load: &Load, app: usize) -> Result<()> {
    moments::received(format_args!("Server {app}"), PODS as u64, || {
        let arrivals = load.arrivals();
        pods_of(app).filter(|pod| arrivals.received(opaque_of(address(*pod)), POD_PORT) > 0).count() as u64
    })
    .await
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
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &server_kind());
        delete(&api).await?;
        let ours = WatchParams::default().labels(&selector());
        let moments = Moments::watch(&api, ours, |event| match event {
            WatchEvent::Added(server) => Some(server.name_any()),
            _ => None,
        });
        Ok(Self { moments: moments.await?, api })
    }

    async fn create(&self, app: usize) -> Result<()> {
        let (name, kind, (label, value)) = (name(app), server_kind(), LABEL);
        let spec = json!({"podSelector": {"matchLabels": {"app": format!("web-{app}")}}, "port": POD_PORT, "proxyProtocol": "opaque"});
        let server = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, "labels": {label: value}}, "spec": spec});
        self.moments.write(name);
        self.api.create(&PostParams::default(), &serde_json::from_value(server)?).await?;
        Ok(())
    }

    /// # Errors
    /// Fails when a client received a change that the watch did not show.
    fn result(&self, load: &Load) -> Result<ReceivedChanges> {
        let servers: HashMap<What, String> =
            (0..CHANGES).flat_map(|app| pods_of(app).map(move |pod| (opaque_of(address(pod)), name(app)))).collect();
        let (mut received, mut once) = (ReceivedChanges::default(), HashSet::new());
        let arrivals = load.arrivals();
        for change in &arrivals.changes {
            match servers.get(&change.what) {
                Some(server) if once.insert(change.what) => {
                    let written = self.moments.add_arrival(&mut received.late, server, change.at, 1)?;
                    ensure!(written, "{server} was not written");
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

async fn delete(api: &Api<DynamicObject>) -> Result<()> {
    let ours = ListParams::default().labels(&selector());
    api.delete_collection(&DeleteParams::default(), &ours).await?;
    eventually(PATIENCE, "the Servers to be deleted", async || {
        let left = api.list_metadata(&ours).await?.items.len();
        ensure!(left == 0, "{left} still exist");
        Ok(())
    })
    .await
}

fn selector() -> String {
    format!("{}={}", LABEL.0, LABEL.1)
}
