//! All proxies of a mesh request their first certificate at the same moment.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::{
    identity::{CertifyCaller, CertifyWorkload, connect_all},
    load::Cost,
};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use super::subject::Subjects;
use crate::report::{Report, Samples};

/// The time that the API server takes for a review.
pub(super) const DELAYS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];
const PROXIES: usize = 10_000;
const CONNECTIONS: usize = 20;
/// The delay of a proxy without a certificate after a refusal.
const RETRY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(600);

/// What one proxy saw.
struct ProxyStart {
    /// From the begin of the storm.
    certified: Duration,
    /// The longest time until an answer.
    waited: Duration,
    refusals: u64,
}

pub(super) async fn storm(report: &mut Report, subjects: &Subjects, delay: Duration) -> Result<()> {
    let subject = subjects.subject().await?;
    let workloads = CertifyWorkload::many(PROXIES)?;
    let callers = connect_all(subject.address(), CONNECTIONS).await?;
    subject.reviews().delay(delay);
    let (before, begun) = (Cost::of_process(subject.pid())?, Instant::now());
    let starts = stream::iter(workloads.iter().zip(callers.iter().cycle()))
        .map(|(workload, caller)| start(workload, caller, begun))
        .buffer_unordered(PROXIES)
        .try_collect();
    let starts: Vec<ProxyStart> =
        timeout(PATIENCE, starts).await.context("not all proxies have a certificate in time")??;
    let cpu = Cost::of_process(subject.pid())?.ran.saturating_sub(before.ran);
    let certified: Samples = starts.iter().map(|start| start.certified).collect();
    let refused = starts.iter().filter(|start| start.refusals > 0).count();
    let refusals: u64 = starts.iter().map(|start| start.refusals).sum();
    let longest = starts.iter().map(|start| start.waited).max().unwrap_or_default();
    let peak = subject.memory()?.peak;
    let text = format!(
        "all after {:.1} s: {}; {refused} proxies were refused at first ({refusals} times UNAVAILABLE); \
         the longest wait for an answer {:.1} s; {:.1} s of CPU; peak {:.0} MiB",
        certified.at(1.0).as_secs_f64(),
        certified.text(),
        longest.as_secs_f64(),
        cpu.as_secs_f64(),
        e2e::memory::mebibytes(peak)
    );
    let figure = format!("{}: {PROXIES} first calls at once, reviews of {} ms", subjects.name(), delay.as_millis());
    let raw = json!({
        "certified": certified.histogram(),
        "refused": refused,
        "refusals": refusals,
        "longest_wait_seconds": longest.as_secs_f64(),
        "cpu_seconds": cpu.as_secs_f64(),
        "peak_bytes": peak,
    });
    report.row(figure, text, "≤ 15 s, no answer after 8 s", raw);
    Ok(())
}

/// Calls as a proxy until it has a certificate.
async fn start(workload: &CertifyWorkload, caller: &CertifyCaller, begun: Instant) -> Result<ProxyStart> {
    let (mut waited, mut refusals) = (Duration::ZERO, 0);
    loop {
        let call = Instant::now();
        let code = caller.code(workload.request(0)).await;
        waited = waited.max(call.elapsed());
        match code {
            Code::Ok => return Ok(ProxyStart { certified: begun.elapsed(), waited, refusals }),
            Code::Unavailable => refusals += 1,
            code => bail!("a call was refused: {code}"),
        }
        sleep(RETRY).await;
    }
}
