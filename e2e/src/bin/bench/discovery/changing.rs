//! One endpoint that changes again and again, and how late clients are told.
//!
//! * In: which Service, and what a change is. Out: writes, each with a port of its own, so that a client tells by the endpoint
//!   that it is sent which change it is told of; and lateness, counted from the moment when a watch of our own showed the
//!   change, and from the moment when it was written.
//! * Always: our watch is on the clients' core, and may be late itself: the true figure lies between the two.

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

/// Ports of changes count from here.
const FIRST_PORT: u16 = 10_000;
const AT_REST: u16 = 8_080;

/// What a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The endpoint moves to another port: an Add and a Remove.
    Move,
    /// It becomes ready or ceases to be: either an Add or a Remove.
    Flip,
}

/// The state of the endpoint, and at the same time what clients are told of it.
type Told = (What, u16);
type Moments = Arc<Mutex<HashMap<Told, Instant>>>;

pub(super) struct Changing {
    slices: Api<EndpointSlice>,
    service: &'static str,
    kind: Kind,
    written: Moments,
    /// By our own watch.
    seen: Moments,
    watch: Option<JoinHandle<()>>,
}

/// How late clients were.
#[derive(Default)]
pub(super) struct Lateness {
    pub(super) since_seen: Samples,
    pub(super) since_written: Samples,
}

impl Changing {
    /// Brings the endpoint into a state from which the first change is like all others. For before there are clients.
    pub(super) async fn prepare(client: &Client, service: &'static str, kind: Kind) -> Result<Self> {
        let slices = Api::namespaced(client.clone(), NAMESPACE);
        let (written, seen) = (Moments::default(), Moments::default());
        let mut changing = Self { slices, service, kind, written, seen, watch: None };
        changing.write(if kind == Kind::Flip { What::Remove } else { What::Add }, AT_REST).await?;
        changing.watch = Some(changing.watch().await?);
        Ok(changing)
    }

    /// What clients are told by a change.
    fn told(&self, number: u16) -> Told {
        match self.kind {
            Kind::Move => (What::Add, FIRST_PORT + number),
            Kind::Flip if number.is_multiple_of(2) => (What::Add, FIRST_PORT + number / 2),
            Kind::Flip => (What::Remove, FIRST_PORT + number / 2),
        }
    }

    /// Makes a change; they are numbered from 0.
    pub(super) async fn change(&self, number: u16) -> Result<()> {
        let told = self.told(number);
        lock(&self.written).insert(told, Instant::now());
        self.write(told.0, told.1).await
    }

    async fn write(&self, what: What, port: u16) -> Result<()> {
        // Replaced whatever it was: for the API server a patch is half as much again, and it shares the clients' core.
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

    /// How many streams were told of the change.
    fn told_of(&self, number: u16, load: &Load) -> u64 {
        let (what, port) = self.told(number);
        load.arrivals().told(what, port)
    }

    /// Makes a change, and waits until so many streams were told of it.
    pub(super) async fn change_and_wait(&self, number: u16, load: &Load, streams: u64) -> Result<()> {
        self.change(number).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let told = self.told_of(number, load);
            if told >= streams {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "change {number}: {told} of {streams} streams were told");
            // A look costs nothing, and what is measured besides ends with it.
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// # Errors
    /// When a client was told of what our watch did not see.
    pub(super) fn lateness(&self, load: &Load) -> Result<Lateness> {
        let (seen, written) = (lock(&self.seen), lock(&self.written));
        let mut late = Lateness::default();
        for change in &load.arrivals().changes {
            // Not the Remove of a move: its Add is what is waited for.
            let Some(written) = written.get(&(change.what, change.port)) else { continue };
            let seen = seen.get(&(change.what, change.port));
            let seen = seen.with_context(|| format!("our watch did not see {:?} {}", change.what, change.port))?;
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

fn lock(moments: &Moments) -> MutexGuard<'_, HashMap<Told, Instant>> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}
