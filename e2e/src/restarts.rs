//! Records the restarts of workloads: which, when, for which configuration, and how many at a time.
//!
//! ```text
//!   Deployments, StatefulSets, DaemonSets ─watch─▶ changes by resourceVersion ─▶ restarts, each from its patch until it is settled
//! ```
//!
//! * In: all [marked](crate::workload::MARK) workloads of the cluster, from now on. Out: [`Restart`]s in order.
//! * Always: a restart is a change of the annotation that the operator writes on Pod templates. The watch delivers
//!   every change. Changes of several kinds are ordered by resourceVersion, which etcd increments across kinds.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use tokio::{task::JoinSet, time::timeout};

use crate::workload::{DEADLINE, Kind, MARK, Workload, restarted_for};

/// Longer than any test; the API server ends watches after this time.
const WATCH_SECONDS: u32 = 290;

pub struct Restarts {
    seen: Arc<Mutex<Seen>>,
    changed: Arc<tokio::sync::Notify>,
    _watches: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    changes: Vec<TemplateChange>,
    /// The error that ended a watch.
    broken: Option<String>,
}

#[derive(Clone, Debug)]
struct TemplateChange {
    version: u64,
    at: Instant,
    workload: String,
    restarted_for: Option<String>,
    settled: bool,
}

/// One restart of a workload.
#[derive(Clone, Debug)]
pub struct Restart {
    /// `namespace/Kind/name`
    pub workload: String,
    /// The new value of the annotation on its template; `None` if the annotation was removed.
    pub restarted_for: Option<String>,
    pub begun: Instant,
    /// The time at which all its replicas were updated and available; `None` if that has not happened.
    pub settled: Option<Instant>,
    from: u64,
    /// The resourceVersion at which it was settled or restarted again.
    to: Option<u64>,
}

impl Restarts {
    /// Starts to record restarts.
    pub async fn follow(client: &Client) -> Result<Self> {
        let seen = Arc::<Mutex<Seen>>::default();
        let changed = Arc::<tokio::sync::Notify>::default();
        let mut watches = JoinSet::new();
        for kind in Kind::ALL {
            let all: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
            let now = all.list(&ListParams::default().labels(MARK)).await?;
            locked(&seen).changes.extend(now.items.iter().map(|object| change(kind, object)));
            let version = now.metadata.resource_version.context("a list without resourceVersion")?;
            let params = WatchParams::default().labels(MARK).timeout(WATCH_SECONDS);
            let events = all.watch(&params, &version).await?.boxed();
            let (seen, changed) = (seen.clone(), changed.clone());
            watches.spawn(async move {
                let ended = read(kind, events, &seen, &changed).await;
                locked(&seen).broken = ended.err().map(|error| format!("watching {}s: {error:#}", kind.as_str()));
                changed.notify_waiters();
            });
        }
        Ok(Self { seen, changed, _watches: watches })
    }

    /// All restarts, in the order in which they began.
    pub fn all(&self) -> Result<Vec<Restart>> {
        let mut changes = {
            let seen = locked(&self.seen);
            ensure!(seen.broken.is_none(), "{:?}", seen.broken);
            seen.changes.clone()
        };
        changes.sort_by_key(|change| change.version);
        Ok(restarts(&changes))
    }

    /// The restarts of one workload.
    pub fn of(&self, workload: &Workload) -> Result<Vec<Restart>> {
        let name = workload.to_string();
        Ok(self.all()?.into_iter().filter(|restart| restart.workload == name).collect())
    }

    /// Waits until this workload has more than `known` restarts, and returns the next one.
    pub async fn next_of(&self, workload: &Workload, known: usize) -> Result<Restart> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if let Some(restart) = self.of(workload)?.into_iter().nth(known) {
                    return Ok(restart);
                }
                changed.await;
            }
        };
        timeout(DEADLINE, wait).await.with_context(|| format!("restart number {} of {workload}", known + 1))?
    }

    /// The maximum number of concurrent restarts among workloads whose name starts with `prefix`.
    pub fn most_at_once(&self, prefix: &str) -> Result<usize> {
        let mut all = self.all()?;
        all.retain(|restart| restart.workload.starts_with(prefix));
        Ok(most_at_once(&all))
    }
}

async fn read(
    kind: Kind,
    mut events: impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Unpin,
    seen: &Mutex<Seen>,
    changed: &tokio::sync::Notify,
) -> Result<()> {
    while let Some(event) = events.next().await {
        match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                locked(seen).changes.push(change(kind, &object));
                changed.notify_waiters();
            }
            WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => bail!("{}", status.message),
        }
    }
    bail!("the watch ended")
}

fn change(kind: Kind, object: &DynamicObject) -> TemplateChange {
    let namespace = object.namespace().unwrap_or_default();
    TemplateChange {
        version: object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default(),
        at: Instant::now(),
        workload: format!("{namespace}/{}/{}", kind.as_str(), object.name_any()),
        restarted_for: restarted_for(object),
        settled: kind.is_settled(object),
    }
}

/// Derives the restarts from changes that are sorted by resourceVersion.
fn restarts(changes: &[TemplateChange]) -> Vec<Restart> {
    let mut restarts: Vec<Restart> = Vec::new();
    // By workload: the annotation's last value, and the index of the restart that is not settled.
    let mut known = BTreeMap::<&str, (&Option<String>, Option<usize>)>::new();
    for change in changes {
        let TemplateChange { version, at, workload, restarted_for, settled } = change;
        let (before, open) = known.entry(workload).or_insert((restarted_for, None));
        let is_another = *before != restarted_for;
        if let Some(restart) = open.and_then(|open| restarts.get_mut(open))
            && (is_another || *settled)
        {
            restart.to = Some(*version);
            restart.settled = (!is_another).then_some(*at);
            *open = None;
        }
        if is_another {
            *before = restarted_for;
            *open = Some(restarts.len());
            let (workload, restarted_for) = (workload.clone(), restarted_for.clone());
            restarts.push(Restart { workload, restarted_for, begun: *at, settled: None, from: *version, to: None });
        }
    }
    restarts
}

fn most_at_once(restarts: &[Restart]) -> usize {
    // For each restart: the number of restarts that had begun by then and had not ended.
    let at_once = restarts.iter().map(|restart| {
        let open = |other: &&Restart| other.from <= restart.from && other.to.is_none_or(|to| to > restart.from);
        restarts.iter().filter(open).count()
    });
    at_once.max().unwrap_or_default()
}

fn locked(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(changes: &[(&str, &str, bool)]) -> Vec<Restart> {
        let change = |(version, (workload, restarted_for, settled)): (u64, &(&str, &str, bool))| TemplateChange {
            version,
            at: Instant::now(),
            workload: (*workload).to_owned(),
            restarted_for: Some((*restarted_for).to_owned()).filter(|text| !text.is_empty()),
            settled: *settled,
        };
        restarts(&(0..).zip(changes).map(change).collect::<Vec<_>>())
    }

    #[test]
    fn a_restart_lasts_from_the_patch_until_it_is_settled() {
        let all = of(&[("a", "", true), ("a", "1", false), ("a", "1", false), ("a", "1", true), ("a", "1", true)]);
        let [restart] = &all[..] else { panic!("{all:?}") };
        assert_eq!((restart.restarted_for.as_deref(), restart.from, restart.to), (Some("1"), 1, Some(3)));
        assert!(restart.settled.is_some());
    }

    #[test]
    fn the_initial_state_is_not_a_restart() {
        assert!(of(&[("a", "1", true), ("a", "1", false)]).is_empty());
    }

    #[test]
    fn a_replaced_restart_has_ended_and_is_never_settled() {
        let all = of(&[("a", "", true), ("a", "1", false), ("a", "", false), ("a", "", true)]);
        let [first, second] = &all[..] else { panic!("{all:?}") };
        assert!(first.settled.is_none() && first.to == Some(2) && second.restarted_for.is_none());
        assert!(second.settled.is_some());
    }

    #[test]
    fn overlapping_restarts_are_counted() {
        let idle = [("a", "", true), ("b", "", true), ("c", "", true)];
        let one = [("a", "1", false), ("a", "1", true), ("b", "1", false), ("b", "1", true)];
        assert_eq!(most_at_once(&of(&[&idle[..], &one].concat())), 1);
        let two = [("a", "1", false), ("b", "1", false), ("a", "1", true), ("c", "1", false)];
        assert_eq!(most_at_once(&of(&[&idle[..], &two].concat())), 2);
        assert_eq!(most_at_once(&[]), 0);
    }
}
