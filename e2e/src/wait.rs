//! Waits for a condition, with a deadline and a useful error.
//!
//! * In: a probe that returns an error until the condition holds. Out: the probe's value, or an error with the
//!   condition and the last error of the probe.
//! * Always: a probe that hangs cannot exceed the deadline either.

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use tokio::time::{Instant, sleep, timeout, timeout_at};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

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

/// Probes for the whole duration and returns the first failure. For conditions that must hold all the time.
pub async fn holds<F>(duration: Duration, what: impl Display, mut probe: F) -> Result<()>
where
    F: AsyncFnMut() -> Result<()>,
{
    let end = Instant::now() + duration;
    loop {
        let probed = timeout_at(end + LONGEST_PAUSE, probe()).await;
        if let Ok(Err(error)) = probed {
            return Err(anyhow!("{what} did not hold: {error:#}"));
        }
        if Instant::now() >= end {
            return Ok(());
        }
        sleep(FIRST_PAUSE * 5).await;
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
}
