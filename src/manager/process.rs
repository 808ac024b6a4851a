//! The life of the process: its tasks, what `/ready` waits for, and the order in which everything stops.
//!
//! In: tasks and readiness checks of the jobs. Out: the answer of `/ready`, and the end of the process. Always holds:
//! every task has an owner, and a task that ends by itself ends the process; Leases are released after servers and
//! writers have stopped, while webhooks are still served for a while; then the last Events are written, and readers are
//! aborted; each group has a deadline, and a second signal ends all at once.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{admin::Readiness, identity, tasks::Tasks, webhook::WebhookServer};

/// The deadline for streams to end.
const STOP_SERVING: Duration = Duration::from_secs(4);
/// The deadline for calls to the identity service.
const STOP_CERTIFYING: Duration = identity::DRAIN_TIME.saturating_add(Duration::from_secs(1));
/// The deadline for the end of the webhook server, after the delay.
const STOP_REVIEWING: Duration = WebhookServer::DRAIN_TIME.saturating_add(Duration::from_secs(1));
/// The deadline for writes that are in progress at shutdown; each write has a shorter timeout.
const STOP_WRITING: Duration = Duration::from_secs(12);
/// The deadline for handing over Leases and writing the last Events.
const STOP_REST: Duration = Duration::from_secs(4);

/// The tasks of the process, in groups that stop together.
#[derive(Default)]
pub(super) struct Process {
    /// Serve streams.
    pub(super) servers: Tasks,
    /// Issue certificates.
    pub(super) certifiers: Tasks,
    /// Write objects while this process leads.
    pub(super) writers: Tasks,
    /// Answer admission reviews.
    pub(super) reviewers: Tasks,
    /// Hold Leases, and write Events.
    pub(super) support: Tasks,
    /// Follow objects and files, and answer probes. They are aborted.
    pub(super) readers: Tasks,
    /// Asks servers, certifiers, writers and reviewers to stop.
    pub(super) stop: CancellationToken,
    /// Asks for the hand-over of Leases.
    pub(super) stop_leases: CancellationToken,
    checks: Vec<ReadinessCheck>,
}

type ReadinessCheck = Box<dyn Fn() -> Vec<Wait> + Send + Sync>;

/// A wait of a part of the process.
pub(super) struct Wait {
    /// For people; `None` if another part has the text.
    pub(super) text: Option<String>,
    pub(super) blocks: Blocks,
}

/// Whether a wait keeps the process from being ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    Never,
    /// Until the process was ready once.
    FirstReadiness,
    Always,
}

/// The signals that stop the process.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Process ===

impl Process {
    /// Adds a check of `/ready`, whose answer has the texts in the order in which the checks were added.
    pub(super) fn check(&mut self, check: impl Fn() -> Vec<Wait> + Send + Sync + 'static) {
        self.checks.push(Box::new(check));
    }

    /// Returns the answer of `/ready`, with the checks that were added so far.
    pub(super) fn readiness(&mut self) -> Box<dyn Fn() -> Readiness + Send + Sync> {
        let (checks, stop) = (std::mem::take(&mut self.checks), self.stop.clone());
        let has_been_ready = AtomicBool::new(false);
        Box::new(move || {
            let waits: Vec<Wait> = checks.iter().flat_map(|check| check()).collect();
            let was_ready = has_been_ready.load(Ordering::Relaxed);
            let blocks = |wait: &Wait| match wait.blocks {
                Blocks::Never => false,
                Blocks::FirstReadiness => !was_ready,
                Blocks::Always => true,
            };
            let is_blocked = waits.iter().any(blocks);
            has_been_ready.fetch_or(!is_blocked, Ordering::Relaxed);
            Readiness {
                ready: !stop.is_cancelled() && !is_blocked,
                waiting_for: waits.into_iter().filter_map(|wait| wait.text).collect(),
            }
        })
    }

    /// Runs until a signal arrives or a task ends, and then stops everything in order. Webhooks are served for another
    /// `shutdown_delay`, until other replicas are called.
    ///
    /// # Errors
    /// Fails if a task ended by itself, or if a second signal arrived.
    pub(super) async fn run(mut self, mut signals: StopSignals, shutdown_delay: Duration) -> anyhow::Result<()> {
        let died = tokio::select! {
            () = signals.recv() => None,
            ended = self.servers.ended() => Some(ended),
            ended = self.certifiers.ended() => Some(ended),
            ended = self.writers.ended() => Some(ended),
            ended = self.reviewers.ended() => Some(ended),
            ended = self.support.ended() => Some(ended),
            ended = self.readers.ended() => Some(ended),
        };
        info!(
            "stopping: streams are closed, writes in progress are finished, then Leases are handed over; webhooks are \
             served until other replicas are called"
        );
        self.stop.cancel();
        let orderly = async {
            let hand_over = async {
                tokio::join!(self.servers.finish(STOP_SERVING), self.writers.finish(STOP_WRITING));
                self.stop_leases.cancel();
            };
            let reviewers = self.reviewers.finish(shutdown_delay + STOP_REVIEWING);
            tokio::join!(hand_over, reviewers, self.certifiers.finish(STOP_CERTIFYING));
            self.support.finish(STOP_REST).await;
        };
        tokio::select! {
            () = orderly => info!("stopped"),
            () = signals.recv() => bail!("a second signal arrived: stopped immediately"),
        }
        match died {
            Some(ended) => bail!("{ended}, so the process exits"),
            None => Ok(()),
        }
    }
}

// === impl Wait ===

impl Wait {
    /// Something to tell people, which does not keep the process from being ready.
    pub(super) fn note(text: String) -> Self {
        Self { text: Some(text), blocks: Blocks::Never }
    }

    /// The problem of a part, if there is one, and whether the part is ready.
    pub(super) fn of(problem: Option<String>, is_ready: bool) -> Vec<Self> {
        let blocks = if is_ready { Blocks::Never } else { Blocks::Always };
        if problem.is_none() && is_ready { Vec::new() } else { vec![Self { text: problem, blocks }] }
    }
}

// === impl StopSignals ===

impl StopSignals {
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// The answers of `/ready` while a part waits for these.
    fn answers(all: &[Option<Blocks>]) -> Vec<(bool, Vec<String>)> {
        let (mut process, now) = (Process::default(), Arc::new(Mutex::new(None)));
        let seen = Arc::clone(&now);
        process.check(|| vec![Wait::note("first".to_owned())]);
        process.check(move || {
            let wait = |blocks| Wait { text: Some("part".to_owned()), blocks };
            (*seen.lock()).map(wait).into_iter().collect()
        });
        let readiness = process.readiness();
        all.iter()
            .map(|blocks| {
                *now.lock() = *blocks;
                let Readiness { ready, waiting_for } = readiness();
                (ready, waiting_for)
            })
            .collect()
    }

    #[test]
    fn a_part_that_blocks_is_named_after_the_parts_before_it() {
        let texts = vec!["first".to_owned(), "part".to_owned()];
        for (blocks, ready) in [(Blocks::Never, true), (Blocks::FirstReadiness, false), (Blocks::Always, false)] {
            assert_eq!(answers(&[Some(blocks)]), [(ready, texts.clone())], "{blocks:?}");
        }
    }

    #[test]
    fn after_the_first_readiness_only_what_always_blocks_takes_it_away() {
        let ready: Vec<bool> =
            answers(&[Some(Blocks::FirstReadiness), None, Some(Blocks::FirstReadiness), Some(Blocks::Always), None])
                .into_iter()
                .map(|(ready, _)| ready)
                .collect();
        assert_eq!(ready, [false, true, true, false, true]);
    }

    #[test]
    fn a_process_that_stops_is_not_ready() {
        let mut process = Process::default();
        let readiness = process.readiness();
        assert!(readiness().ready);
        process.stop.cancel();
        assert!(!readiness().ready);
    }

    #[tokio::test]
    async fn a_task_that_ends_by_itself_ends_the_process_with_its_name() {
        let mut process = Process::default();
        process.readers.spawn("watch", async {});
        let ended = process.run(StopSignals::listen().unwrap(), Duration::ZERO).await;
        assert_eq!(ended.unwrap_err().to_string(), "task watch ended unexpectedly, so the process exits");
    }
}
