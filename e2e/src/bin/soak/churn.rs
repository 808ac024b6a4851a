//! Objects on the API server that change continuously.
//!
//! ```text
//!   World 0 ─┐                      ┌─▶ pause() while an answer is compared
//!   World 1 ─┼─▶ one writer each ─▶ gate ─▶ kube-apiserver
//!   big     ─┤
//!   Jobs    ─┘
//! ```
//!
//! * In: a client with all permissions, a seed. Out: [`WORLDS`] random worlds, one big Service and the objects of the
//!   [`Jobs`], their requests, and changes at a fixed rate, independent of the readers (an open loop).
//! * Always: each world has separate namespaces, nodes and addresses, so that no world influences the answers for another one.
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
    oracle::{Key, Request, Settings},
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

use crate::{
    call::{Call, Method},
    history::History,
    jobs::{BETWEEN_CONFIGS, BETWEEN_WORKLOADS, Jobs},
    tally::Tally,
};

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
    /// One for each world.
    histories: Vec<Arc<History>>,
    jobs: Jobs,
    shared: Arc<SharedChurn>,
}

/// A call, and the place of its history: the world, and the number of the call in it. A call without a history has one
/// kind of reply forever.
pub(crate) type Tracked = (Call, Option<(Arc<History>, usize)>);

/// The running writers. Dropping it stops them.
pub(crate) struct Writers(JoinSet<Result<()>>);

#[derive(Default)]
struct SharedChurn {
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
    pub(crate) async fn prepare(client: Client, settings: &Settings, seed: u64) -> Result<Self> {
        let jobs = Jobs::prepare(&client).await?;
        let (mut worlds, mut histories) = (Vec::new(), Vec::new());
        for number in 0..WORLDS {
            let world = World::valid(seed + number as u64)?;
            for name in [NAMESPACE, ELSEWHERE] {
                namespace(&client, &renamed(name, number)).await?;
            }
            for (key, object) in world.json() {
                let change = Change::Applied { key: key.clone(), object: object.clone() };
                api::apply(&client, &moved(&change, number)?).await?;
            }
            histories.push(History::new(settings, calls(&world), &world)?);
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
        Ok(Self { client, worlds, histories, jobs, shared: Arc::default() })
    }

    /// All interesting calls, for every world.
    pub(crate) fn calls(&self) -> Vec<Tracked> {
        let mut tracked: Vec<Tracked> = Vec::new();
        for (number, (world, history)) in self.worlds.iter().zip(&self.histories).enumerate() {
            for (place, Call { method, request }) in calls(world).into_iter().enumerate() {
                let request = Request { path: renamed(&request.path, number), token: renamed(&request.token, number) };
                let call = Call { method, request };
                // Some calls are for addresses that no world has.
                if method == Method::Get || !tracked.iter().any(|(known, _)| known == &call) {
                    tracked.push((call, Some((Arc::clone(history), place))));
                }
            }
        }
        let big = Call { method: Method::Get, request: Request { path: big_path(), token: String::new() } };
        tracked.push((big, None));
        tracked
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Starts the changes.
    pub(crate) fn begin(&mut self) -> Writers {
        let mut writers = JoinSet::new();
        let period = Duration::from_secs(1) * WORLDS as u32 / CHANGES_A_SECOND;
        let worlds = std::mem::take(&mut self.worlds).into_iter().zip(&self.histories);
        for (number, (mut world, history)) in worlds.enumerate() {
            let (client, shared, history) = (self.client.clone(), Arc::clone(&self.shared), Arc::clone(history));
            writers.spawn(async move {
                // The worlds start at different moments.
                let mut pace = Pace::new(period, period * number as u32 / WORLDS as u32);
                loop {
                    let change = world.mutate()?;
                    let moved = moved(&change, number)?;
                    let write = async || {
                        history.record(&change)?;
                        api::apply(&client, &moved).await
                    };
                    shared.write(&mut pace, write).await;
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
        let (jobs, shared) = (self.jobs.clone(), Arc::clone(&self.shared));
        writers.spawn(async move {
            let mut pace = Pace::new(BETWEEN_WORKLOADS, Duration::ZERO);
            for number in 0.. {
                shared.write(&mut pace, async || jobs.change_workload(number).await).await;
            }
            Ok(())
        });
        let (jobs, shared) = (self.jobs.clone(), Arc::clone(&self.shared));
        writers.spawn(async move {
            let mut pace = Pace::new(BETWEEN_CONFIGS, BETWEEN_CONFIGS / 2);
            for number in 1.. {
                shared.write(&mut pace, async || jobs.change_config(number).await).await;
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

// === impl SharedChurn ===

impl SharedChurn {
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

/// The calls of one world, in its own names. The API server assigns the cluster IPs, so the calls for those are left
/// out.
fn calls(world: &World) -> Vec<Call> {
    let of = |method: Method, requests: Vec<Request>| requests.into_iter().map(move |request| Call { method, request });
    let is_cluster_ip = |path: &str| path.starts_with("10.96.") || path.starts_with("[fd00:10:96:");
    let profiles = of(Method::GetProfile, world.profile_requests());
    of(Method::Get, world.requests()).chain(profiles.filter(|call| !is_cluster_ip(&call.request.path))).collect()
}

/// Replaces names and addresses of a world by those of world `number`: its two namespaces, its nodes, whose names
/// contain one of them, and its networks.
fn renamed(text: &str, number: usize) -> String {
    let networks = [
        ("10.42.0.", format!("10.42.{number}.")),
        ("172.18.0.", format!("172.18.{number}.")),
        ("192.0.2.", format!("192.0.{}.", 2 + number)),
        ("2001:db8:1::", format!("2001:db8:a{number}::")),
        ("2001:db8::", format!("2001:db8:b{number}::")),
        ("2001:DB8::", format!("2001:DB8:B{number}::")),
    ];
    let text = text.replace(NAMESPACE, &format!("w{number}-{NAMESPACE}"));
    let text = text.replace(ELSEWHERE, &format!("w{number}-{ELSEWHERE}"));
    networks.iter().fold(text, |text, (network, own)| text.replace(network, own))
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
