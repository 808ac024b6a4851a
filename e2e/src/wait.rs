//! Waiting for a condition, with a deadline and a reason when it passes.
//!
//! * In: a probe that says what it sees. Out: what the probe returned, or an error with what was awaited and what was seen last.
//! * Always: a single probe cannot outlast the deadline either.

use std::{
    fmt::{Debug, Display},
    time::Duration,
};

use anyhow::{Result, anyhow, bail};
use tokio::time::{Instant, sleep, timeout, timeout_at};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Probes until it succeeds. A failed probe means "not yet"; its error is what was seen.
pub async fn eventually<T, F>(deadline: Duration, what: impl Display, mut probe: F) -> Result<T>
where
    F: AsyncFnMut() -> Result<T>,
{
    let end = Instant::now() + deadline;
    let mut pause = FIRST_PAUSE;
    let mut seen = anyhow!("nothing: the first look did not return");
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

/// Probes for the whole duration; the first failure is the error. For "this must not happen".
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

/// Reads a stream until nothing has come for this time. False when it has ended.
pub(crate) async fn settles<T>(quiet: Duration, mut read: impl AsyncFnMut() -> Result<Option<T>>) -> Result<bool> {
    while let Ok(message) = timeout(quiet, read()).await {
        if message?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fails when anything is read within this time.
pub(crate) async fn stays_quiet<T: Debug>(time: Duration, read: impl Future<Output = Result<Option<T>>>) -> Result<()> {
    match timeout(time, read).await {
        Err(_) => Ok(()),
        Ok(message) => bail!("a message came that nothing called for: {message:?}"),
    }
}

fn missed(deadline: Duration, what: impl Display, seen: &anyhow::Error) -> anyhow::Error {
    anyhow!("waited {deadline:?} for {what}; last seen: {seen:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn says_what_was_awaited_and_last_seen() {
        let mut looks = 0;
        let error = eventually(Duration::from_millis(50), "the moon", async || -> Result<()> {
            looks += 1;
            bail!("a cloud ({looks})")
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
        assert!(error.contains("the first look did not return"), "{error}");
    }
}
