//! One endpoint that changes repeatedly, and the latency of these changes at clients.
//!
//! * In: a Service and the kind of change. Out: writes, each with a unique port, by which a client's message is matched
//!   to the change; the latency, measured from the watch event in this process and from the write.
//! * Always: the watch runs on the clients' core and may itself be delayed, so the true figure is between the two.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::load::{Load, What};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::{task::JoinHandle, time::sleep};

use super::{
    cluster::{NAMESPACE, changing_endpoint},
    rig::PATIENCE,
};
use crate::report::Samples;

/// The port of the first change; later changes count up.
const FIRST_PORT: u16 = 10_000;
const AT_REST: u16 = 8_080;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The endpoint moves to another port: an Add and a Remove.
    Move,
    /// The endpoint becomes ready or unready: either an Add or a Remove.
    Flip,
}

/// The state of the endpoint, and the summary of the message for clients.
type Summary = (What, u16);
type Moments = Arc<Mutex<HashMap<Summary, Instant>>>;

pub(super) struct Changing {
    slices: Api<EndpointSlice>,
    service: &'static str,
    kind: Kind,
    written: Moments,
    /// By the watch of this process.
    seen: Moments,
    watch: Option<JoinHandle<()>>,
}

/// The latency of changes at clients.
#[derive(Default)]
pub(super) struct Lateness {
    pub(super) since_seen: Samples,
    pub(super) since_written: Samples,
}

impl Changing {
    /// Brings the endpoint into a state in which the first change is like the others. Call it before clients connect.
    pub(super) async fn prepare(client: &Client, service: &'static str, kind: Kind) -> Result<Self> {
        let slices = Api::namespaced(client.clone(), NAMESPACE);
        let (written, seen) = (Moments::default(), Moments::default());
        let mut changing = Self { slices, service, kind, written, seen, watch: None };
        changing.write(if kind == Kind::Flip { What::Remove } else { What::Add }, AT_REST).await?;
        changing.watch = Some(changing.watch().await?);
        Ok(changing)
    }

    /// The message that clients receive for a change.
    fn summary(&self, number: u16) -> Summary {
        match self.kind {
            Kind::Move => (What::Add, FIRST_PORT + number),
            Kind::Flip if number.is_multiple_of(2) => (What::Add, FIRST_PORT + number / 2),
            Kind::Flip => (What::Remove, FIRST_PORT + number / 2),
        }
    }

    /// Makes a change; changes are numbered from 0.
    pub(super) async fn change(&self, number: u16) -> Result<()> {
        let summary = self.summary(number);
        lock(&self.written).insert(summary, Instant::now());
        self.write(summary.0, summary.1).await
    }

    async fn write(&self, what: What, port: u16) -> Result<()> {
        // A replace: a patch costs the API server half as much again, and it shares the clients' core.
        let slice = json!({
            "metadata": {"name": self.name(), "labels": {"kubernetes.io/service-name": self.service}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port}],
            "endpoints": [changing_endpoint(self.service, what == What::Add)],
        });
        self.slices.replace(&self.name(), &PostParams::default(), &serde_json::from_value(slice)?).await?;
        Ok(())
    }

    fn name(&self) -> String {
        format!("{}-changing", self.service)
    }

    /// The number of streams that received the change.
    fn streams_with(&self, number: u16, load: &Load) -> u64 {
        let (what, port) = self.summary(number);
        load.arrivals().received(what, port)
    }

    /// Makes a change, and waits until this number of streams has received it.
    pub(super) async fn change_and_wait(&self, number: u16, load: &Load, streams: u64) -> Result<()> {
        self.change(number).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let count = self.streams_with(number, load);
            if count >= streams {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "change {number}: {count} of {streams} streams received it");
            // Polling is cheap, and other measurements end with this wait.
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// # Errors
    /// Fails when a client received a change that the watch did not show.
    pub(super) fn lateness(&self, load: &Load) -> Result<Lateness> {
        let (seen, written) = (lock(&self.seen), lock(&self.written));
        let mut late = Lateness::default();
        for change in &load.arrivals().changes {
            // The Remove of a move is skipped: the measurement waits for its Add.
            let Some(written) = written.get(&(change.what, change.port)) else { continue };
            let seen = seen.get(&(change.what, change.port));
            let seen = seen.with_context(|| format!("the watch did not show {:?} {}", change.what, change.port))?;
            late.since_seen.push(change.at.saturating_duration_since(*seen), change.streams);
            late.since_written.push(change.at.saturating_duration_since(*written), change.streams);
        }
        Ok(late)
    }

    async fn watch(&self) -> Result<JoinHandle<()>> {
        let params = WatchParams::default().fields(&format!("metadata.name={}", self.name())).timeout(290);
        let version = self.slices.get(&self.name()).await?.metadata.resource_version.context("a version")?;
        let mut events = self.slices.watch(&params, &version).await?.boxed();
        let seen = Arc::clone(&self.seen);
        Ok(tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let now = Instant::now();
                if let WatchEvent::Modified(slice) = event
                    && let Some(port) = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok())
                {
                    let ready = slice
                        .endpoints
                        .iter()
                        .any(|it| it.conditions.as_ref().is_some_and(|it| it.ready == Some(true)));
                    lock(&seen).insert((if ready { What::Add } else { What::Remove }, port), now);
                }
            }
        }))
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

fn lock(moments: &Moments) -> MutexGuard<'_, HashMap<Summary, Instant>> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}
