//! Objects on the API server that change continuously.
//!
//! ```text
//!   World 0 ─┐                      ┌─▶ pause() while an answer is compared
//!   World 1 ─┼─▶ one writer each ─▶ gate ─▶ kube-apiserver
//!   big      ┘
//! ```
//!
//! * In: a client with all permissions, a seed. Out: [`WORLDS`] random worlds and one big Service, their requests, and
//!   changes at a fixed rate, independent of the readers (an open loop).
//! * Always: each world has separate namespaces and nodes, so that no world influences the answers for another one.
//!   While the churn is paused, nothing is written. A failed write is counted, and the next one follows.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use e2e::{
    oracle::{Key, Request},
    world::{Change, ELSEWHERE, NAMESPACE, World, api},
};
use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::{RwLock, RwLockWriteGuard},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use crate::tally::Tally;

const WORLDS: usize = 6;
/// For all worlds together. Kubernetes' load tests make 20 changes per second in the steady state of a large cluster.
pub(crate) const CHANGES_A_SECOND: u32 = 20;
/// The big Service, whose first message is far larger than a stream's window.
const BIG: &str = "big";
const BIG_SLICES: usize = 4;
/// The maximum size of a slice.
const BIG_SLICE: usize = 1000;
const BIG_PERIOD: Duration = Duration::from_secs(2);
const WRITE_DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Churn {
    client: Client,
    worlds: Vec<World>,
    shared: Arc<Shared>,
}

/// The running writers. Dropping it stops them.
pub(crate) struct Writers(JoinSet<Result<()>>);

#[derive(Default)]
struct Shared {
    /// Read-locked by writers, write-locked by a pause.
    gate: RwLock<()>,
    written: AtomicU64,
    /// The maximum delay of a write, in milliseconds.
    latest: AtomicU64,
    failed: Tally,
}

/// The totals of the writers.
pub(crate) struct Written {
    pub changes: u64,
    pub latest: Duration,
}

// === impl Churn ===

impl Churn {
    /// Creates the objects, without starting the changes.
    pub(crate) async fn prepare(client: Client, seed: u64) -> Result<Self> {
        let mut worlds = Vec::new();
        for number in 0..WORLDS {
            let world = World::valid(seed + number as u64)?;
            for name in [NAMESPACE, ELSEWHERE] {
                namespace(&client, &renamed(name, number)).await?;
            }
            for (key, object) in world.json() {
                let change = Change::Applied { key: key.clone(), object: object.clone() };
                api::apply(&client, &moved(&change, number)?).await?;
            }
            worlds.push(world);
        }
        namespace(&client, BIG).await?;
        let service = json!({"metadata": {"name": BIG}, "spec": {"ports": [{"name": "http", "port": 80}]}});
        let services: Api<Service> = Api::namespaced(client.clone(), BIG);
        services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), BIG);
        for number in 0..BIG_SLICES {
            let slice = json!({
                "metadata": {"name": format!("{BIG}-{number}"), "labels": {"kubernetes.io/service-name": BIG}},
                "addressType": "IPv4", "endpoints": big_endpoints(number, 0), "ports": [{"name": "http", "port": 8080}],
            });
            slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await?;
        }
        Ok(Self { client, worlds, shared: Arc::default() })
    }

    /// All interesting requests, for every world.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let of_worlds = self.worlds.iter().enumerate().flat_map(|(number, world)| {
            let moved = move |request: Request| Request {
                path: renamed(&request.path, number),
                token: renamed(&request.token, number),
            };
            world.requests().into_iter().map(moved)
        });
        of_worlds.chain([Request { path: big_path(), token: String::new() }]).collect()
    }

    /// Starts the changes.
    pub(crate) fn begin(&mut self) -> Writers {
        let mut writers = JoinSet::new();
        let period = Duration::from_secs(1) * WORLDS as u32 / CHANGES_A_SECOND;
        for (number, mut world) in std::mem::take(&mut self.worlds).into_iter().enumerate() {
            let (client, shared) = (self.client.clone(), Arc::clone(&self.shared));
            writers.spawn(async move {
                // The worlds start at different moments.
                let mut pace = Pace::new(period, period * number as u32 / WORLDS as u32);
                loop {
                    let change = moved(&world.mutate()?, number)?;
                    shared.write(&mut pace, async || api::apply(&client, &change).await).await;
                }
            });
        }
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), BIG);
        let shared = Arc::clone(&self.shared);
        writers.spawn(async move {
            let mut pace = Pace::new(BIG_PERIOD, Duration::ZERO);
            for version in 1.. {
                let number = version % BIG_SLICES;
                let patch = Patch::Merge(json!({"endpoints": big_endpoints(number, version)}));
                let name = format!("{BIG}-{number}");
                let write = async || Ok(slices.patch(&name, &PatchParams::default(), &patch).await.map(drop)?);
                shared.write(&mut pace, write).await;
            }
            Ok(())
        });
        Writers(writers)
    }

    /// Blocks all writes until the returned guard is dropped.
    pub(crate) async fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.shared.gate.write().await
    }

    pub(crate) fn written(&self) -> Written {
        Written {
            changes: self.shared.written.load(Ordering::Relaxed),
            latest: Duration::from_millis(self.shared.latest.load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn failed(&self) -> &Tally {
        &self.shared.failed
    }
}

// === impl Writers ===

impl Writers {
    /// Waits until a writer ends, which happens only by an error.
    pub(crate) async fn ended(&mut self) -> anyhow::Error {
        match self.0.join_next().await {
            Some(Ok(Err(error))) => error.context("a writer ended"),
            Some(Err(error)) => anyhow::Error::from(error).context("a writer ended"),
            Some(Ok(Ok(()))) | None => anyhow::anyhow!("a writer ended"),
        }
    }

    pub(crate) async fn stop(&mut self) {
        self.0.shutdown().await;
    }
}

// === impl Shared ===

impl Shared {
    /// Writes when it is due and not paused. A pause is not a delay: the writes after it are postponed by its duration.
    async fn write(&self, pace: &mut Pace, write: impl AsyncFnOnce() -> Result<()>) {
        let due = pace.next();
        sleep_until(due).await;
        let waited = Instant::now();
        let _open = self.gate.read().await;
        pace.put_off(waited.elapsed());
        let late = waited.saturating_duration_since(due);
        self.latest.fetch_max(u64::try_from(late.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        match timeout(WRITE_DEADLINE, write()).await {
            Ok(Ok(())) => drop(self.written.fetch_add(1, Ordering::Relaxed)),
            Ok(Err(error)) => self.failed.count(&sort_of(&error)),
            Err(_) => self.failed.count("no answer in time"),
        }
    }
}

/// A fixed rate, independent of the duration of writes.
struct Pace {
    next: Instant,
    period: Duration,
}

impl Pace {
    fn new(period: Duration, first: Duration) -> Self {
        Self { next: Instant::now() + first, period }
    }

    /// The next due time, which may be in the past.
    fn next(&mut self) -> Instant {
        let due = self.next;
        self.next += self.period;
        due
    }

    fn put_off(&mut self, time: Duration) {
        self.next += time;
    }
}

/// The code and reason of the API server's answer, otherwise the error message.
fn sort_of(error: &anyhow::Error) -> String {
    match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) => format!("{} {}", status.code, status.reason),
        Some(other) => other.to_string(),
        None => error.to_string(),
    }
}

async fn namespace(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    namespaces.create(&PostParams::default(), &namespace).await.with_context(|| format!("namespace {name}"))?;
    Ok(())
}

/// Replaces names of a world by those of world `number`: its two namespaces, and its nodes, whose names contain one of
/// them.
fn renamed(text: &str, number: usize) -> String {
    text.replace(NAMESPACE, &format!("w{number}-{NAMESPACE}")).replace(ELSEWHERE, &format!("w{number}-{ELSEWHERE}"))
}

/// Converts a change into one of world `number`.
fn moved(change: &Change, number: usize) -> Result<Change> {
    let key = |key: &Key| Key {
        kind: key.kind,
        namespace: renamed(&key.namespace, number),
        name: renamed(&key.name, number),
    };
    let object = |object: &Value| serde_json::from_str(&renamed(&object.to_string(), number));
    Ok(match change {
        Change::Applied { key: of, object: it } => Change::Applied { key: key(of), object: object(it)? },
        Change::Deleted { key: of, object: it } => Change::Deleted { key: key(of), object: object(it)? },
    })
}

/// The path of the Service whose first message exceeds 100 KiB.
pub(crate) fn big_path() -> String {
    format!("{BIG}.{BIG}.svc.cluster.local:80")
}

/// All endpoints of a slice except ten, which differ in each version.
fn big_endpoints(slice: usize, version: usize) -> Vec<Value> {
    let away = version % (BIG_SLICE / 10);
    let here = (0..BIG_SLICE).filter(|number| number / 10 != away);
    here.map(|number| json!({"addresses": [format!("10.{}.{}.{}", 100 + slice, number / 250, 1 + number % 250)]}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_worlds_share_no_objects() {
        let world = World::valid(1).unwrap();
        for (key, object) in world.json() {
            let change = Change::Applied { key: key.clone(), object: object.clone() };
            let Change::Applied { key, object } = moved(&change, 3).unwrap() else { panic!("not an applied change") };
            assert_eq!(Key::of(&object).unwrap(), key);
            // Nodes have no namespace, and clients' ServiceProfiles are in a namespace that all worlds share: they
            // differ by name.
            assert!([key.namespace, key.name].iter().any(|name| name.contains("w3-")));
            let text = object.to_string().replace("w3-world", "").replace("w3-elsewhere", "");
            assert!(!text.contains("world") && !text.contains("elsewhere"), "{text}");
        }
    }

    #[test]
    fn an_error_of_the_api_server_is_counted_by_code_and_reason() {
        let status = kube::core::Status::failure("pods \"a\" not found", "NotFound").with_code(404);
        let error = anyhow::Error::from(kube::Error::Api(status.boxed())).context("deleting a");
        assert_eq!(sort_of(&error), "404 NotFound");
        assert_eq!(sort_of(&anyhow::anyhow!("odd")), "odd");
    }

    #[test]
    fn a_late_writer_catches_up_but_a_paused_one_does_not() {
        let mut pace = Pace::new(Duration::from_secs(1), Duration::ZERO);
        let first = pace.next();
        assert_eq!(pace.next() - first, Duration::from_secs(1));
        pace.put_off(Duration::from_secs(5));
        assert_eq!(pace.next() - first, Duration::from_secs(7));
    }
}
