//! The costs in clusters of several sizes, side by side: a cost that grows with the cluster shows.
//!
//! * In: a cluster with a number of Services, and our server with discovery alone. Out: one row for each cost, with the
//!   figure of every size.
//! * Always: the streams, the touched Pods and the changed Service are the same in each size; only the other objects are
//!   more.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{ManagerOptions, memory::Memory, objects::kind};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    changing::{ChangeKind, Changing},
    cluster::{ClusterSize, stream_requests, touch},
    rig::{DiscoveryBench, Subject},
};
use crate::{report::Report, spent::Spent};

const STREAMS: usize = 10_000;
const CONNECTIONS: usize = 100;
/// Each size has as many.
const SERVICES: usize = 100;
const TOUCHED_PODS: usize = 1_000;
const SERVICE: &str = "web-0";
const STREAMS_OF_SERVICE: usize = 10;
const CHANGES: u16 = 200;
/// Time for the server to finish its work.
const SETTLED: Duration = Duration::from_secs(3);

/// A figure, what is wanted of it, and its value.
type Figure = (&'static str, &'static str, fn(&Costs) -> f64);

/// The costs in the sizes so far.
#[derive(Default)]
pub(super) struct Growth(Vec<Costs>);

/// The costs in a cluster of one size.
struct Costs {
    pods: usize,
    /// Microseconds for each Pod from the start of the process until it is ready.
    ready: f64,
    /// KiB for each Pod, without what an empty cluster takes.
    pod: f64,
    /// KiB for each stream.
    stream: f64,
    /// Microseconds of CPU until a stream has its first message.
    subscribe: f64,
    /// Microseconds of CPU for a change of a Pod that no client can observe.
    event: f64,
    /// Microseconds of CPU for a change of an endpoint of a Service with ten streams.
    change: f64,
}

// === impl Growth ===

impl Growth {
    /// Measures the size that the cluster has now.
    pub(super) async fn measure(
        &mut self,
        rig: &DiscoveryBench,
        size: ClusterSize,
        options: fn() -> ManagerOptions,
        empty: &Memory,
    ) -> Result<()> {
        let subject = rig.subject_with(options()).await?;
        let ready = per(subject.ready, size.pods());
        let rest = subject.memory_at_rest().await?.context("the memory of our server")?;
        let (subscribe, stream) = subscribe(rig, &subject, &rest).await?;
        let event = touched(rig, &subject).await?;
        drop(subject);
        self.0.push(Costs {
            pods: size.pods(),
            ready,
            pod: kibibytes(rest.resident.saturating_sub(empty.resident), size.pods()),
            stream,
            subscribe,
            event,
            change: changed(rig, options).await?,
        });
        Ok(())
    }

    pub(super) fn report(&self, report: &mut Report) {
        let sizes: Vec<String> = self.0.iter().map(|costs| costs.pods.to_string()).collect();
        let sizes = sizes.join(" / ");
        let figures: [Figure; 6] = [
            ("µs for each Pod until ready", "falling: the start of the process is in it", |costs| costs.ready),
            ("KiB of memory for each Pod", "flat", |costs| costs.pod),
            ("KiB of memory for each stream", "flat", |costs| costs.stream),
            ("µs of CPU until a stream has its first message", "flat", |costs| costs.subscribe),
            ("µs of CPU for a change of a Pod that no client can observe", "flat", |costs| costs.event),
            ("µs of CPU for a change of an endpoint with ten streams", "flat", |costs| costs.change),
        ];
        for (figure, wanted, of) in figures {
            let values: Vec<f64> = self.0.iter().map(of).collect();
            let text: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
            let raw: Vec<Value> =
                self.0.iter().zip(values).map(|(costs, value)| json!({"pods": costs.pods, "value": value})).collect();
            report.row(format!("with {sizes} Pods: {figure}"), text.join(" / "), wanted, json!(raw));
        }
    }
}

/// The CPU of a stream until its first message, and its memory.
async fn subscribe(rig: &DiscoveryBench, subject: &Subject, rest: &Memory) -> Result<(f64, f64)> {
    let phase = rig.phase(subject)?;
    let load = rig.loads.open(subject.address, CONNECTIONS, stream_requests(STREAMS, SERVICES)).await?;
    load.first_messages(STREAMS).await?;
    let spent = phase.end()?;
    sleep(SETTLED).await;
    let memory = subject.memory()?.context("the memory of our server")?;
    load.close().await;
    subject.has_streams(0).await?;
    Ok((cpu(&spent, STREAMS), kibibytes(memory.resident.saturating_sub(rest.resident), STREAMS)))
}

async fn touched(rig: &DiscoveryBench, subject: &Subject) -> Result<f64> {
    let phase = rig.phase(subject)?;
    let pods = (0..TOUCHED_PODS).map(|number| format!("web-{}-{}", number / 10, number % 10));
    touch(&rig.client, &kind("v1", "Pod"), pods).await?;
    sleep(SETTLED).await;
    Ok(cpu(&phase.end()?, TOUCHED_PODS))
}

async fn changed(rig: &DiscoveryBench, options: fn() -> ManagerOptions) -> Result<f64> {
    let changing = Changing::prepare(&rig.client, SERVICE, ChangeKind::Move).await?;
    let subject = rig.subject_with(options()).await?;
    let load = rig.open(&subject, STREAMS_OF_SERVICE, stream_requests(STREAMS_OF_SERVICE, 1)).await?;
    let phase = rig.phase(&subject)?;
    for number in 0..CHANGES {
        changing.change_and_wait(number, &load, STREAMS_OF_SERVICE as u64).await?;
    }
    let spent = phase.end()?;
    load.close().await;
    Ok(cpu(&spent, CHANGES.into()))
}

/// The microseconds of CPU of our server for each of several.
fn cpu(spent: &Spent, count: usize) -> f64 {
    per(spent.server.as_ref().map(|cost| cost.ran).unwrap_or_default(), count)
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn per(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn kibibytes(bytes: u64, count: usize) -> f64 {
    bytes as f64 / 1024.0 / count as f64
}
