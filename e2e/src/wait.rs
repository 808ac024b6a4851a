//! Waits for a condition, with a deadline and a useful error.
//!
//! * In: a probe that returns an error until the condition holds. Out: the probe's value, or an error with the
//!   condition and the last error of the probe.
//! * Always: a probe that hangs is an error, and no wait succeeds without a completed probe.

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use tokio::time::{Instant, sleep, timeout, timeout_at};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest time of one probe of [`holds`]. A probe is a few requests, which take long only on a starved machine.
const PROBE_DEADLINE: Duration = Duration::from_secs(30);

/// Probes until success. A failed probe means "not yet"; its error is reported when the deadline passes.
pub async fn eventually<T, F>(deadline: Duration, what: impl Display, mut probe: F) -> Result<T>
where
    F: AsyncFnMut() -> Result<T>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut seen = anyhow!("nothing: the first probe did not return");
    loop {
        match timeout_at(end, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => seen = error,
            Err(_) => return Err(missed(deadline, what, &seen)),
        }
        if Instant::now() + pause >= end {
            return Err(missed(deadline, what, &seen));
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Probes for the whole duration and returns the first failure. For conditions that must hold all the time. The last
/// probe begins after the duration.
pub async fn holds<F>(duration: Duration, what: impl Display, probe: F) -> Result<()>
where
    F: AsyncFnMut() -> Result<()>,
{
    holds_with(PROBE_DEADLINE, duration, what, probe).await
}

async fn holds_with<F>(probe_deadline: Duration, duration: Duration, what: impl Display, mut probe: F) -> Result<()>
where
    F: AsyncFnMut() -> Result<()>,
{
    let end = Instant::now() + duration;
    loop {
        let is_last = Instant::now() >= end;
        match timeout(probe_deadline, probe()).await {
            Ok(Ok(())) if is_last => return Ok(()),
            Ok(Ok(())) => sleep(FIRST_PAUSE * 5).await,
            Ok(Err(error)) => return Err(anyhow!("{what} did not hold: {error:#}")),
            Err(_) => bail!("{what} is unknown: a probe did not return within {probe_deadline:?}"),
        }
    }
}

/// Reads a stream until no message has arrived for `quiet`. False when it has ended.
pub(crate) async fn settles<T>(quiet: Duration, mut read: impl AsyncFnMut() -> Result<Option<T>>) -> Result<bool> {
    while let Ok(message) = timeout(quiet, read()).await {
        if message?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fails when a message is read within this time.
pub(crate) async fn stays_quiet<T: Debug>(time: Duration, read: impl Future<Output = Result<Option<T>>>) -> Result<()> {
    match timeout(time, read).await {
        Err(_) => Ok(()),
        Ok(message) => bail!("unexpected message: {message:?}"),
    }
}

fn missed(deadline: Duration, what: impl Display, seen: &anyhow::Error) -> anyhow::Error {
    anyhow!("waited {deadline:?} for {what}; last seen: {seen:#}")
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[tokio::test]
    async fn the_error_contains_the_condition_and_the_last_probe() {
        let mut probes = 0;
        let error = eventually(Duration::from_millis(50), "the moon", async || -> Result<()> {
            probes += 1;
            bail!("a cloud ({probes})")
        })
        .await
        .unwrap_err()
        .to_string();
        assert!(error.starts_with("waited 50ms for the moon; last seen: a cloud ("), "{error}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_does_not_outlast_the_deadline() {
        let error =
            eventually(Duration::from_millis(20), "an answer", async || std::future::pending::<Result<()>>().await)
                .await
                .unwrap_err()
                .to_string();
        assert!(error.contains("the first probe did not return"), "{error}");
    }

    #[tokio::test]
    async fn a_condition_does_not_hold_if_its_probe_hangs() {
        let hangs = async || std::future::pending::<Result<()>>().await;
        let error = holds_with(Duration::from_millis(20), Duration::from_millis(1), "the peace", hangs)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, "the peace is unknown: a probe did not return within 20ms");
    }

    #[tokio::test]
    async fn a_condition_is_probed_at_the_beginning_and_after_the_duration() {
        let (duration, begun, mut probes) = (Duration::from_millis(120), Instant::now(), Vec::new());
        holds(duration, "the peace", async || {
            probes.push(begun.elapsed());
            Ok(())
        })
        .await
        .unwrap();
        assert!(probes.len() >= 2 && probes.iter().any(|at| *at >= duration), "{probes:?}");
    }

    #[tokio::test]
    async fn the_first_failed_probe_is_an_error() {
        let mut probes = 0;
        let error = holds(Duration::from_secs(60), "the peace", async || {
            probes += 1;
            ensure!(probes < 2, "a shot");
            Ok(())
        })
        .await
        .unwrap_err()
        .to_string();
        assert_eq!(error, "the peace did not hold: a shot");
    }
}
