//! How late clients receive changes: since this process wrote them, and since its own watch showed them.
//!
//! * Always: the watch runs on the clients' core and may itself be delayed, so the true figure is between the two.

use std::{
    collections::HashMap,
    fmt::{Debug, Display},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::objects::watch_from_now;
use futures::StreamExt;
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{task::JoinHandle, time::sleep};

use super::rig::PATIENCE;
use crate::report::{Samples, milliseconds};

/// The times of changes, each of which has a key of its own.
pub(super) struct Moments<K> {
    written: Times<K>,
    seen: Times<K>,
    watch: JoinHandle<()>,
}

type Times<K> = Arc<Mutex<HashMap<K, Instant>>>;

/// The latency of changes at clients.
#[derive(Default)]
pub(super) struct Lateness {
    pub(super) since_seen: Samples,
    pub(super) since_written: Samples,
}

// === impl Moments ===

impl<K: Eq + Hash + Debug + Send + 'static> Moments<K> {
    /// Starts the watch. `key` returns which change an event shows.
    pub(super) async fn watch<O>(
        api: &Api<O>,
        params: WatchParams,
        key: impl Fn(WatchEvent<O>) -> Option<K> + Send + 'static,
    ) -> Result<Self>
    where
        O: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let mut events = watch_from_now(api, &params.timeout(290)).await?;
        let (written, seen) = (Times::default(), Times::default());
        let into = Arc::clone(&seen);
        let watch = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                let now = Instant::now();
                if let Some(key) = key(event) {
                    lock(&into).insert(key, now);
                }
            }
        });
        Ok(Self { written, seen, watch })
    }

    /// Records that a change is written now.
    pub(super) fn write(&self, key: K) {
        lock(&self.written).insert(key, Instant::now());
    }

    /// Adds the arrival of a change at some streams. False for a change that was not written here.
    ///
    /// # Errors
    /// Fails when a client received a change that the watch did not show.
    pub(super) fn add_arrival(&self, late: &mut Lateness, key: &K, at: Instant, streams: u64) -> Result<bool> {
        let Some(written) = lock(&self.written).get(key).copied() else { return Ok(false) };
        let seen = lock(&self.seen).get(key).copied();
        let seen = seen.with_context(|| format!("the watch did not show {key:?}"))?;
        late.since_seen.push(at.saturating_duration_since(seen), streams);
        late.since_written.push(at.saturating_duration_since(written), streams);
        Ok(true)
    }
}

impl<K> Drop for Moments<K> {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

// === impl Lateness ===

impl Lateness {
    pub(super) fn text(&self) -> String {
        let written = milliseconds(&self.since_written.at(0.99));
        format!("{} (p99 since the write began {written:.1} ms)", self.since_seen.text())
    }

    /// The raw figures, after those in `others`.
    pub(super) fn json(&self, mut others: Value) -> Value {
        if let Some(raw) = others.as_object_mut() {
            raw.insert("since_watch_event".to_owned(), self.since_seen.histogram());
            raw.insert("since_write_began".to_owned(), self.since_written.histogram());
        }
        others
    }
}

/// Waits until this number of streams has received a change.
pub(super) async fn received(what: impl Display, streams: u64, count: impl Fn() -> u64) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let so_far = count();
        if so_far >= streams {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{what}: {so_far} of {streams} streams received it");
        // Polling is cheap, and other measurements end with this wait.
        sleep(Duration::from_millis(1)).await;
    }
}

fn lock<K>(times: &Times<K>) -> MutexGuard<'_, HashMap<K, Instant>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}
