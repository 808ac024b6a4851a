//! Readiness flips of ExternalWorkloads: one by one, and all 10,000 as fast as the API server takes them.
//!
//! * In: published workloads. Out: the time until the slices show the flips, and how often each slice was written.
//! * Always: the flips of all workloads are compared with a bare writer. It writes each slice once, without reading, as
//!   soon as the flips of its Service are acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use e2e::{
    Manager,
    mesh::{Mesh, external_workload},
    objects::watch_from_now,
};
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::time::{Instant as Deadline, timeout, timeout_at};

use super::{MANAGED, NAMESPACE, PATIENCE, SERVICES, WORKLOADS, service_name, workload_name};
use crate::report::{Report, median};

const FLIPS: usize = 1_000;
const ROUNDS: usize = 3;
/// Services whose workloads flip at the same time.
const AT_A_TIME: usize = 4;
/// Time for a slice to be written once more than needed.
const SETTLED: Duration = Duration::from_secs(2);

/// The order in which all workloads flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// All workloads of a Service at the same time, as when a site fails.
    ByService,
    /// Neighbours are of different Services.
    Scattered,
}

/// The writes of all slices after all workloads flipped.
struct Flipped {
    /// From the first flip until the last slice shows the last flip of its workloads.
    took: Duration,
    /// How many slices were written how often.
    writes: BTreeMap<usize, usize>,
}

/// Flips all workloads, and compares with a bare writer, which needs the manager's place.
pub(super) async fn all(report: &mut Report, client: &Client, manager: Manager) -> Result<()> {
    let mut ready = [true, false].into_iter().cycle();
    let mut next = || ready.next().unwrap_or_default();
    let scattered = flip_all(client, Order::Scattered, next(), None).await?;
    let (mut ours, mut bare, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let flipped = flip_all(client, Order::ByService, next(), None).await?;
        ours.push(flipped.took.as_secs_f64());
        writes.push(flipped.writes);
    }
    drop(manager);
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), NAMESPACE);
    let of_service = |slice: EndpointSlice| (slice.labels().get("kubernetes.io/service-name").cloned(), slice);
    let slices = slices.list(&ListParams::default().labels(MANAGED)).await?.items.into_iter().map(of_service);
    let slices = slices.filter_map(|(service, slice)| Some((service?, slice))).collect();
    for _ in 0..ROUNDS {
        bare.push(flip_all(client, Order::ByService, next(), Some(&slices)).await?.took.as_secs_f64());
    }
    let (ours_median, bare_median) = (median(ours.clone()), median(bare.clone()));
    report.row(
        format!("{WORKLOADS} flips, Service by Service, until all {SERVICES} slices show them, {ROUNDS} rounds"),
        format!("{ours_median:.2} s; a bare writer {bare_median:.2} s; {:.2} times", ours_median / bare_median),
        "≤ 1.5 times the bare writer",
        json!({"ours_seconds": ours, "bare_seconds": bare}),
    );
    let often = |writes: &BTreeMap<usize, usize>| {
        let slices = writes.iter().map(|(times, slices)| format!("{slices} slices {times} times"));
        slices.collect::<Vec<_>>().join(", ")
    };
    let text = writes.iter().map(often).collect::<Vec<_>>().join("; ");
    report.row("slice writes for these flips", text, "once or twice each", json!(writes));
    let text = format!("{:.2} s; {}", scattered.took.as_secs_f64(), often(&scattered.writes));
    report.row(format!("{WORKLOADS} flips, scattered over the Services"), text, "", json!(scattered.writes));
    Ok(())
}

/// Sets the readiness of all workloads. With slices, they are written here, each after the flips of its Service.
async fn flip_all(
    client: &Client,
    order: Order,
    ready: bool,
    slices: Option<&BTreeMap<String, EndpointSlice>>,
) -> Result<Flipped> {
    let mesh = Mesh::new(client, NAMESPACE);
    let mut events = watch_from_now(&mesh.slices, &WatchParams::default().labels(MANAGED)).await?;
    let each = WORKLOADS / SERVICES;
    let flips = stream::iter(0..SERVICES)
        .map(async |group| {
            // The workloads of a Service are `SERVICES` numbers apart.
            let numbers = (0..each).map(|member| match order {
                Order::ByService => group + member * SERVICES,
                Order::Scattered => group * each + member,
            });
            let names: Vec<String> = numbers.map(workload_name).collect();
            try_join_all(names.iter().map(|name| mesh.set_ready(name, ready))).await?;
            if let Some(slice) = slices.and_then(|slices| slices.get(&service_name(group))) {
                let mut slice = slice.clone();
                slice.metadata.resource_version = None;
                for endpoint in &mut slice.endpoints {
                    endpoint.conditions.get_or_insert_default().ready = Some(ready);
                }
                mesh.slices.replace(&slice.name_any(), &PostParams::default(), &slice).await?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(AT_A_TIME)
        .try_collect::<()>();
    let begun = Instant::now();
    let mut seen = SeenWrites { ready, writes: BTreeMap::new(), shown: BTreeSet::new(), last: begun };
    let watching = async {
        while seen.shown.len() < SERVICES {
            seen.event(events.try_next().await?.context("the watch of slices ended")?);
        }
        anyhow::Ok(())
    };
    let both = timeout(PATIENCE, async { tokio::try_join!(flips, watching) }).await;
    both.context("not all slices showed the flips in time")??;
    // Later writes count, too.
    let settled = Deadline::now() + SETTLED;
    while let Ok(event) = timeout_at(settled, events.try_next()).await {
        seen.event(event?.context("the watch of slices ended")?);
    }
    let mut writes = BTreeMap::new();
    seen.writes.into_values().for_each(|times| *writes.entry(times).or_default() += 1);
    Ok(Flipped { took: seen.last - begun, writes })
}

/// The writes of slices that the watch has shown.
struct SeenWrites {
    /// The readiness of all workloads after their flips.
    ready: bool,
    writes: BTreeMap<String, usize>,
    /// The slices that show all flips.
    shown: BTreeSet<String>,
    /// When the newest of these did.
    last: Instant,
}

impl SeenWrites {
    fn event(&mut self, event: WatchEvent<EndpointSlice>) {
        let WatchEvent::Modified(slice) = event else { return };
        let name = slice.name_any();
        *self.writes.entry(name.clone()).or_default() += 1;
        let ready = |endpoint: &Endpoint| endpoint.conditions.as_ref().and_then(|it| it.ready) == Some(self.ready);
        if slice.endpoints.iter().all(ready) && self.shown.insert(name) {
            self.last = Instant::now();
        }
    }
}

/// Flips one workload after another. Measures from its watch event to the slice's watch event, as this process receives
/// them.
pub(super) async fn one_by_one(report: &mut Report, client: &Client) -> Result<()> {
    let mesh = Mesh::new(client, NAMESPACE);
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let workloads: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &external_workload());
    let managed = WatchParams::default().labels("endpointslice.kubernetes.io/managed-by");
    let mut slice_events = watch_from_now(&slices, &managed).await?;
    let mut workload_events = watch_from_now(&workloads, &WatchParams::default()).await?;
    let (mut samples, mut writes) = (Vec::with_capacity(FLIPS), 0_usize);
    for flip in 0..FLIPS {
        // Each flip concerns another Service. The second pass over the Services sets the other value.
        let name = workload_name((flip * 37) % SERVICES);
        let ready = (flip / SERVICES).is_multiple_of(2);
        let (mut seen, mut written) = (None, None);
        let flipped = mesh.set_ready(&name, ready);
        tokio::pin!(flipped);
        let mut acknowledged = false;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while seen.is_none() || written.is_none() || !acknowledged {
            tokio::select! {
                biased;
                result = &mut flipped, if !acknowledged => { result?; acknowledged = true; }
                event = workload_events.try_next() => {
                    if let WatchEvent::Modified(object) = event?.context("the watch of workloads ended")?
                        && object.metadata.name.as_deref() == Some(name.as_str())
                    {
                        seen = Some(Instant::now());
                    }
                }
                event = slice_events.try_next() => {
                    if let WatchEvent::Modified(slice) = event?.context("the watch of slices ended")? {
                        writes += 1;
                        if slice.endpoints.iter().any(|endpoint| is_flipped(endpoint, &name, ready)) {
                            written = Some(Instant::now());
                        }
                    }
                }
                () = tokio::time::sleep_until(deadline) => bail!("flip {flip} of {name} did not reach its slice within 30 s"),
            }
        }
        if let (Some(seen), Some(written)) = (seen, written) {
            samples.push(written.saturating_duration_since(seen));
        }
    }
    report.distribution(
        format!("{FLIPS} readiness flips, from the workload's watch event to the slice's"),
        samples,
        "p50 ≤ 5 ms, p99 ≤ 20 ms",
    );
    report.row("slice writes for these flips", writes.to_string(), "1 per flip", Value::from(writes));
    Ok(())
}

fn is_flipped(endpoint: &Endpoint, workload: &str, ready: bool) -> bool {
    let is = endpoint.target_ref.as_ref().is_some_and(|target| target.name.as_deref() == Some(workload));
    is && endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(ready))
}
