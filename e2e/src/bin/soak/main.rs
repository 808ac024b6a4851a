//! `make soak MINUTES=30`: runs a manager with its three jobs under load and faults for any time, and checks that its
//! answers and writes stay correct and its memory bounded.
//!
//! ```text
//!   churn ──▶ kube-apiserver ──(faults)──▶ manager ──▶ readers, in waves   ◀── compared with the oracle, in rounds
//!                   ▲─────── slices, ConfigMap ┘ └────▶ slow readers
//! ```
//!
//! * In: minutes, by default 5; `E2E_SEED` for other worlds. Out: one line per minute, a table, `target/soak.json`;
//!   exit code 1 when an answer or a write stayed wrong, a healthy stream ended without need, the manager ended, a
//!   stalled stream was not ended, the allocated memory grew, or clients left resources behind.
//! * Always: ends about ten seconds after the given time; if the final checks have to wait for their deadlines, up to
//!   five minutes later. In less than four minutes, each part still happens at least once, but growth is not judged. Memory and output do not grow with the duration, except for one line per minute.
//! * Everything runs on one host: API server, etcd, manager and clients share its cores.

mod call;
mod churn;
mod compare;
mod faults;
mod growth;
mod history;
mod jobs;
mod readers;
mod report;
mod samples;
mod slow;
mod tally;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use call::Method;
use churn::Churn;
use compare::Comparer;
use e2e::{FaultProxy, Manager, ManagerOptions, Rig, answers::settings, eventually};
use faults::Faults;
use readers::Readers;
use report::SoakReport;
use samples::{ProcessSample, left_over};
use slow::SlowReaders;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

const COPIES: usize = 4;
const CONNECTIONS: usize = 36;
/// Far below the default of a minute, so that stalled readers are replaced often in a short run; far above the delay of
/// a healthy reader on a loaded host.
const STALL: Duration = Duration::from_secs(10);
/// The longest pauses; a short run has shorter ones.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(15);
const BETWEEN_WAVES: Duration = Duration::from_secs(60);
const BETWEEN_FAULTS: Duration = Duration::from_secs(45);
const SHORTEST_PARTS: u32 = 5;
const STREAMS_RENEWED_A_SECOND: usize = 5;
/// For operations that normally take moments.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    let run = async { soak(minutes()?).await };
    match run.await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn minutes() -> Result<Duration> {
    let minutes: f64 = match std::env::args().nth(1) {
        Some(minutes) => minutes.parse().with_context(|| format!("{minutes:?} is not a number of minutes"))?,
        None => 5.0,
    };
    ensure!((0.5..=10_080.0).contains(&minutes), "the duration must be between half a minute and a week");
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

fn seed() -> Result<u64> {
    match std::env::var("E2E_SEED") {
        Ok(seed) => seed.parse().context("E2E_SEED must be a number"),
        Err(_) => Ok(1),
    }
}

/// The components of a soak.
struct Soak {
    time: Duration,
    manager: Manager,
    proxy: Arc<FaultProxy>,
    churn: Churn,
    comparer: Comparer,
    readers: Readers,
    slow: SlowReaders,
    begun: Instant,
}

/// Returns true when all checks passed.
async fn soak(time: Duration) -> Result<bool> {
    let seed = seed()?;
    let Rig { control_plane, client } = Rig::linkerd().crds("crd").start().await?;
    let proxy = Arc::new(FaultProxy::start(&control_plane).await?);
    let (settings, mut args) = settings();
    let mut churn = Churn::prepare(client.clone(), &settings, seed).await?;
    // The last occurrence of a flag wins.
    args.push("--enable-external-workload=true".to_owned());
    args.push(format!("--stream-stall-timeout={}s", STALL.as_secs()));
    let kubeconfig = Some(proxy.kubeconfig().to_owned());
    let mut manager = Manager::start(&control_plane, ManagerOptions { args, kubeconfig, ..ManagerOptions::default() })?;
    manager.ready(PATIENCE).await?;
    let kubernetes = client.apiserver_version().await?.git_version;
    let mut report = SoakReport::new(&kubernetes);
    // Memory that was needed only for the start has been released by then.
    sleep(Duration::from_secs(2)).await;
    report.before = ProcessSample::take(&manager, &proxy, 0.0).await?;

    let calls = churn.calls();
    let of_get = calls.iter().filter(|(call, _)| call.method == Method::Get);
    let paths: Vec<String> = of_get.map(|(call, _)| call.request.path.clone()).collect();
    let address = manager.destination_address();
    let readers = Readers::open(address, &calls, COPIES, CONNECTIONS);
    readers.all_answered(PATIENCE).await?;
    let slow = SlowReaders::begin(address, &paths, &churn::big_path(), STALL);
    println!(
        "{} calls, {} healthy streams on {CONNECTIONS} connections, {} connections of slow readers, {} changes per second, \
         for {:.1} minutes (seed {seed})",
        calls.len(),
        readers.all().len(),
        SlowReaders::connections(),
        churn::CHANGES_A_SECOND,
        time.as_secs_f64() / 60.0,
    );
    let mut faults = Faults::new(Arc::clone(&proxy))?;
    let mut writers = churn.begin();
    let comparer = Comparer { client, settings, calls: calls.into_iter().map(|(call, _)| call).collect() };
    let mut soak = Soak { time, manager, proxy, churn, comparer, readers, slow, begun: Instant::now() };

    let ended = tokio::select! {
        ended = soak.run(&mut report, &mut faults) => ended,
        error = writers.ended() => Err(error),
    };
    faults.clear();
    // A final round after the last change.
    let ended = match ended {
        Ok(()) => soak.compare(&tokio::sync::Mutex::new(&mut report)).await,
        failed => failed,
    };
    if let Err(error) = ended {
        report.failure(format!("{error:#}"));
        let log = soak.manager.log();
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        println!("The log of the manager ends with:\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    writers.stop().await;
    if let Err(error) = soak.close(&mut report).await {
        report.failure(format!("{error:#}"));
    }
    report.log(&soak.manager.log());
    report.conclude(&soak.churn, &soak.readers, &soak.slow, &faults);
    report.publish()
}

impl Soak {
    /// Runs until the time is over. An error means an earlier end.
    async fn run(&self, report: &mut SoakReport, faults: &mut Faults) -> Result<()> {
        let report = &tokio::sync::Mutex::new(report);
        tokio::select! {
            () = sleep_until(self.begun + self.time) => Ok(()),
            ended = self.sample(report) => ended,
            ended = self.conduct(report, faults) => ended,
        }
    }

    /// Samples the manager periodically, and prints a progress line once a minute.
    async fn sample(&self, report: &tokio::sync::Mutex<&mut SoakReport>) -> Result<()> {
        let mut looks = interval(samples::period(self.time));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut minute = 1;
        loop {
            looks.tick().await;
            let elapsed = self.begun.elapsed().as_secs_f64();
            let sample = self.take_sample(elapsed).await?;
            let mut report = report.lock().await;
            report.samples.push(sample);
            if elapsed >= f64::from(minute) * 60.0 {
                minute += 1;
                report.line(&self.readers, &self.slow);
            }
        }
    }

    /// Takes one sample. Retries, because a manager may be slow to answer; fails immediately when it has ended.
    async fn take_sample(&self, elapsed: f64) -> Result<ProcessSample> {
        let sample = eventually(PATIENCE / 4, "a sample of the manager", async || {
            if self.manager.memory().is_err() {
                return Ok(None);
            }
            ProcessSample::take(&self.manager, &self.proxy, elapsed).await.map(Some)
        });
        match sample.await? {
            Some(sample) => Ok(sample),
            None => bail!("the manager has ended"),
        }
    }

    /// Runs rounds, waves and faults at their intervals, never two concurrently; single streams are renewed every
    /// second.
    async fn conduct(&self, report: &tokio::sync::Mutex<&mut SoakReport>, faults: &mut Faults) -> Result<()> {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = Instant::now();
        let pause = |longest: Duration| longest.min(self.time / SHORTEST_PARTS);
        let (between_rounds, between_waves, between_faults) =
            (pause(BETWEEN_ROUNDS), pause(BETWEEN_WAVES), pause(BETWEEN_FAULTS));
        let (mut round, mut wave, mut fault) = (now + between_rounds, now + between_waves, now + between_faults);
        loop {
            seconds.tick().await;
            self.readers.renew_streams(STREAMS_RENEWED_A_SECOND);
            let now = Instant::now();
            if now >= wave {
                wave = now + between_waves;
                self.readers.reconnect(self.readers.connections() / 4).await;
            }
            if now >= fault {
                fault = now + between_faults;
                if let Err(error) = faults.happen().await {
                    report.lock().await.missed(&error);
                }
            }
            if now >= round {
                self.compare(report).await?;
                round = Instant::now() + between_rounds;
            }
        }
    }

    /// Runs one round. A round that was not possible is recorded; an error means that the manager has ended.
    async fn compare(&self, report: &tokio::sync::Mutex<&mut SoakReport>) -> Result<()> {
        match self.comparer.round(&self.manager, &self.churn, &self.readers).await {
            Ok(round) => {
                let sample = self.take_sample(self.begun.elapsed().as_secs_f64()).await?;
                let mut report = report.lock().await;
                report.round(round);
                report.settled(sample);
            }
            Err(error) => {
                self.take_sample(self.begun.elapsed().as_secs_f64()).await?;
                report.lock().await.missed(&error);
            }
        }
        Ok(())
    }

    /// Closes all clients, checks that the manager has released their resources, and terminates it.
    async fn close(&mut self, report: &mut SoakReport) -> Result<()> {
        self.readers.close().await;
        self.slow.close().await;
        // The end has been recorded already.
        if !self.manager.is_running() {
            return Ok(());
        }
        let mut last = None;
        let released = eventually(PATIENCE, "the manager to release the resources of its clients", async || {
            let after = self.take_sample(self.begun.elapsed().as_secs_f64()).await?;
            let left = left_over(&report.before, &after);
            last = Some(after);
            ensure!(left.is_empty(), "not released: {}", left.join(", "));
            Ok(())
        });
        let released = released.await;
        report.after = last;
        released?;
        let status = timeout(PATIENCE, self.manager.terminate(PATIENCE)).await.context("the manager did not end")??;
        ensure!(status.success(), "the manager ended with {status}");
        Ok(())
    }
}
