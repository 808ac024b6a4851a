//! The memory at rest, and with calls whose reviews are not answered.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{
    eventually,
    identity::{CertifyWorkload, HeldReviews, call_all, connect_all},
};
use tokio::time::sleep;
use tonic::Code;

use super::subject::Subjects;
use crate::report::Report;

const CALLS: usize = 3_000;
const CONNECTIONS: usize = 10;
/// The least number of reviews under way at the same time.
const UNDER_WAY: usize = 100;
/// The time in which all calls arrive, and shorter than the deadline of a review.
const ARRIVED: Duration = Duration::from_secs(2);

pub(super) async fn memory(report: &mut Report, subjects: &Subjects) -> Result<()> {
    let name = subjects.name();
    let subject = subjects.subject().await?;
    report.memory(
        &format!("{name}: memory at rest"),
        &[subject.memory_at_rest().await?],
        "≤ 15 MiB without the binary",
    );
    let requests = CertifyWorkload::many(CALLS)?.iter().map(|workload| workload.request(0)).collect();
    let callers = connect_all(subject.address(), CONNECTIONS).await?;
    subject.reviews().hold(HeldReviews::All);
    let calling = tokio::spawn(async move { call_all(&callers, requests, CALLS).await });
    eventually(Duration::from_secs(10), "the reviews to wait", async || {
        let under_way = subject.reviews().under_way();
        ensure!(under_way >= UNDER_WAY, "{under_way} reviews");
        Ok(())
    })
    .await?;
    sleep(ARRIVED).await;
    let memory = subject.memory()?;
    subject.reviews().hold(HeldReviews::None);
    let answers = calling.await??;
    let wrong = answers.iter().find(|answer| !matches!(answer.code, Code::Ok | Code::Unavailable));
    ensure!(wrong.is_none(), "an answer that was not expected: {wrong:?}");
    report.memory(&format!("{name}: memory with {CALLS} calls in flight"), &[memory], "≤ 10 MiB more");
    Ok(())
}
