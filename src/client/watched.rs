//! Watches that are begun again after each failure, without limit.
//!
//! In: an API, and which of its objects. Out: what happened to them, and each failure. Always holds: a new list follows a
//! failure; a watch of one object requests no other, so a role that names the object is enough.

use std::{fmt::Debug, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::retry::backoff;

/// The timeout of a watch in seconds, after which it is resumed.
const WATCH_SECONDS: u32 = 60;
/// Without a failure for this time, a watch counts as healthy again.
const HEALTHY: Duration = Duration::from_secs(120);

/// Watches objects, forever. Each failure is passed on, and followed by a new list.
pub async fn watched<K>(api: Api<K>, config: watcher::Config, mut seen: impl FnMut(Result<Event<K>, watcher::Error>))
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
{
    let config = config.timeout(WATCH_SECONDS);
    let (mut failures, mut last) = (0_u32, None::<Instant>);
    loop {
        let mut events = Box::pin(watcher(api.clone(), config.clone()));
        while let Some(event) = events.next().await {
            let has_failed = event.is_err();
            seen(event);
            if has_failed {
                break;
            }
        }
        if last.replace(Instant::now()).is_some_and(|last| last.elapsed() > HEALTHY) {
            failures = 0;
        }
        sleep(backoff(failures, Duration::from_millis(200), Duration::from_secs(10))).await;
        failures = failures.saturating_add(1);
    }
}

/// Watches one object, forever. Calls `seen` with the object, with `None` if it does not exist, or with the error.
pub async fn watch_one<K>(api: Api<K>, name: &str, mut seen: impl FnMut(Result<Option<K>, watcher::Error>))
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut is_listed = false;
    watched(api, config, |event| match event {
        Ok(Event::Init) => is_listed = false,
        Ok(Event::InitApply(object) | Event::Apply(object)) => {
            is_listed = true;
            seen(Ok(Some(object)));
        }
        Ok(Event::InitDone) if is_listed => {}
        Ok(Event::InitDone | Event::Delete(_)) => seen(Ok(None)),
        Err(error) => seen(Err(error)),
    })
    .await;
}
