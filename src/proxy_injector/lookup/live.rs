//! Reads objects that the cache lacks from the API server.
//!
//! In: the kind and the name of an object, which any client may have invented. Out: the object, or that it does not
//! exist. Always holds: the number of reads at a time and per second is bounded, whatever clients send; equal reads are
//! one request; the answer that an object does not exist is used again for a second, and so is an owner that was found;
//! the number of kept answers is bounded.

use std::{any::TypeId, collections::HashMap, fmt::Debug, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Mutex as AsyncMutex, OnceCell, Semaphore, SemaphorePermit},
    time::{Instant, sleep},
};

use super::pace::Pace;
use crate::{api::NamespacedName, client};

/// The maximum number of reads at a time.
const AT_ONCE: usize = 20;
/// The average time between two reads, and how many are not delayed: more than the new objects of an installation.
const INTERVAL: Duration = Duration::from_millis(10);
const BURST: u32 = 50;
/// The time for which an answer is used again. A namespace exists before the first Pod in it is reviewed.
const KEPT: Duration = Duration::from_secs(1);
/// The maximum number of kept answers. With the longest names and annotations they take about two MiB.
const ANSWERS: usize = 1000;

/// The number and the rate of reads.
pub(super) struct ReadLimits {
    under_way: Semaphore,
    /// Its lock is held while a read waits, so that reads wait in their order.
    pace: AsyncMutex<Pace>,
}

/// The answers about objects of some kinds.
pub(super) struct LiveObjects<T> {
    answers: Mutex<HashMap<AnswerKey, Arc<OnceCell<LiveAnswer<T>>>>>,
    /// Whether an object that was found is used again like one that does not exist. It must be small.
    keeps_found: bool,
}

/// The kind and the name.
type AnswerKey = (TypeId, NamespacedName);

struct LiveAnswer<T> {
    at: Instant,
    object: Option<Arc<T>>,
}

// === impl ReadLimits ===

impl Default for ReadLimits {
    fn default() -> Self {
        Self { under_way: Semaphore::new(AT_ONCE), pace: AsyncMutex::new(Pace::new(INTERVAL, BURST)) }
    }
}

impl ReadLimits {
    async fn admit(&self) -> anyhow::Result<SemaphorePermit<'_>> {
        let permit = self.under_way.acquire().await?;
        let mut pace = self.pace.lock().await;
        let wait = pace.wait(Instant::now());
        // The timer has a resolution of a millisecond, so a wait of zero is skipped.
        if !wait.is_zero() {
            sleep(wait).await;
        }
        pace.count(Instant::now());
        Ok(permit)
    }
}

// === impl LiveObjects ===

impl<T> LiveObjects<T> {
    pub(super) fn new(keeps_found: bool) -> Self {
        Self { answers: Mutex::default(), keeps_found }
    }

    /// Reads the metadata of an object; `None` if it does not exist. If the limits are reached, the read waits for its
    /// turn, or fails if `waits` is false.
    ///
    /// # Errors
    /// When the API server does not answer, or when too many other objects are read.
    pub(super) async fn read<K>(
        &self,
        api: Api<K>,
        key: NamespacedName,
        limits: &ReadLimits,
        waits: bool,
        convert: impl FnOnce(ObjectMeta) -> T,
    ) -> anyhow::Result<Option<Arc<T>>>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
    {
        let read = async {
            let admitted = if waits { Some(limits.admit().await) } else { limits.admit().now_or_never() };
            let _permit = admitted.context("too many other objects are being read")??;
            let found = api.get_metadata_opt(&key.name).await.map_err(|error| anyhow!(client::describe(&error)))?;
            let object = found.map(|found| Arc::new(convert(found.metadata)));
            anyhow::Ok(LiveAnswer { at: Instant::now(), object })
        };
        let key = (TypeId::of::<K>(), key.clone());
        let Some(cell) = self.cell(&key) else { return Ok(read.await?.object) };
        // Equal reads wait here for the first one. If it fails or its review ends, the next one sends a request.
        let object = cell.get_or_try_init(|| read).await?.object.clone();
        if object.is_some() && !self.keeps_found {
            let mut answers = self.answers.lock();
            if answers.get(&key).is_some_and(|known| Arc::ptr_eq(known, &cell)) {
                answers.remove(&key);
            }
        }
        Ok(object)
    }

    /// Returns the place of an answer, which may be known already; `None` if there are too many.
    fn cell(&self, key: &AnswerKey) -> Option<Arc<OnceCell<LiveAnswer<T>>>> {
        let mut answers = self.answers.lock();
        if let Some(known) = answers.get(key).filter(|known| is_current(known)) {
            return Some(Arc::clone(known));
        }
        if answers.len() >= ANSWERS {
            answers.retain(|_, known| is_current(known));
        }
        (answers.len() < ANSWERS).then(|| {
            let cell = Arc::<OnceCell<_>>::default();
            answers.insert(key.clone(), Arc::clone(&cell));
            cell
        })
    }
}

/// Whether an answer is new enough, or a review waits for it.
fn is_current<T>(answer: &Arc<OnceCell<LiveAnswer<T>>>) -> bool {
    answer.get().map_or(Arc::strong_count(answer) > 1, |answer| answer.at.elapsed() < KEPT)
}
