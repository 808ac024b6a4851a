//! The report of a soak: a line per minute, a table at the end, and JSON.
//!
//! * In: samples, rounds, counts. Out: text on stdout, `target/soak.json`, and whether the soak passed.
//! * Always: it passes only without failures. Of many mismatches, only the first few are stored.

use std::time::Duration;

use anyhow::Result;
use e2e::host;
use serde_json::{Map, Value, json};

use crate::{
    churn::Churn,
    compare::{Mismatch, Round},
    faults::Faults,
    growth::{self, MemoryGrowth},
    readers::{self, Readers},
    samples::{ProcessSample, alike, keep, slope, slope_beside},
    slow::{self, SlowReaders},
    tally::Tally,
};

const SHOWN: usize = 10;

#[derive(Default)]
pub(crate) struct SoakReport {
    machine: Map<String, Value>,
    /// The sample before clients connected.
    pub before: ProcessSample,
    /// The samples while clients were connected.
    pub samples: Vec<ProcessSample>,
    /// Samples after rounds, when every stream was up to date.
    settled: Vec<ProcessSample>,
    /// The sample after clients disconnected.
    pub after: Option<ProcessSample>,
    rounds: u64,
    /// Rounds that were not possible and faults that had no effect, by error.
    missed: Tally,
    compared: u64,
    longest: Duration,
    mismatches: u64,
    /// The first mismatch of each client and call.
    shown: Vec<Mismatch>,
    rows: Vec<(&'static str, String)>,
    failures: Vec<String>,
}

// === impl SoakReport ===

impl SoakReport {
    pub(crate) fn new(kubernetes: &str) -> Self {
        let mut machine = host::properties();
        machine.insert("kubernetes".to_owned(), json!(kubernetes));
        Self { machine, ..Self::default() }
    }

    pub(crate) fn round(&mut self, round: Round) {
        self.rounds += 1;
        self.compared += round.compared as u64;
        self.longest = self.longest.max(round.took);
        self.mismatches += round.mismatches.len() as u64;
        for Mismatch { client, call, difference } in round.mismatches {
            let known = self.shown.iter().any(|shown| shown.client == client && shown.call == call);
            if self.shown.len() < SHOWN && !known {
                println!("MISMATCH, {client} for {call:?}:\n{difference}");
                self.shown.push(Mismatch { client, call, difference });
            }
        }
    }

    pub(crate) fn missed(&self, error: &anyhow::Error) {
        self.missed.count(&format!("{error:#}"));
    }

    /// Adds a sample taken when every stream is up to date.
    pub(crate) fn settled(&mut self, sample: ProcessSample) {
        keep(&mut self.settled, sample);
    }

    pub(crate) fn failure(&mut self, why: impl Into<String>) {
        let why = why.into();
        println!("FAILED: {why}");
        self.failures.push(why);
    }

    /// Prints the progress as one line.
    pub(crate) fn line(&self, readers: &Readers, slow: &SlowReaders) {
        let Some(sample) = self.samples.last() else { return };
        let (healthy, slow) = (readers.counts(), slow.counts());
        println!(
            "{}, {} messages, {} rounds, {} mismatches, {} streams ended without need, {} of slow readers, {:.1} % of a core",
            sample.text(),
            readers::ReaderCounts::number(&healthy.messages),
            self.rounds,
            self.mismatches,
            healthy.unexplained.total(),
            slow.ended.total(),
            self.cpu_percent(sample),
        );
    }

    /// Adds a row about the manager's complete log.
    pub(crate) fn log(&mut self, log: &str) {
        let (lines, errors) = (log.lines().count(), log.lines().filter(|line| line.contains(" ERROR ")).count());
        let text = format!("{:.1} MiB, {lines} lines, {errors} of them errors", log.len() as f64 / 1024.0 / 1024.0);
        self.rows.push(("the manager's log", text));
    }

    /// The CPU share since clients connected.
    fn cpu_percent(&self, until: &ProcessSample) -> f64 {
        (until.cpu_seconds - self.before.cpu_seconds) / until.seconds.max(1.0) * 100.0
    }

    /// Computes the table.
    pub(crate) fn conclude(&mut self, churn: &Churn, readers: &Readers, slow: &SlowReaders, faults: &Faults) {
        self.memory();
        self.resources();
        self.clients(readers.counts(), slow.counts());
        let (written, failed) = (churn.written(), churn.failed());
        let text = format!("{}, the latest {:?} late; errors: {}", written.changes, written.latest, failed.text());
        self.rows.push(("changes written to the API server", text));
        let text = format!("{}; {} watches", faults.happened.text(), faults.watches());
        self.rows.push(("faults of the watches", text));
        let text = format!(
            "{} in {} rounds, {} answers compared; the longest round {:.1} s",
            self.mismatches,
            self.rounds,
            self.compared,
            self.longest.as_secs_f64()
        );
        self.rows.push(("mismatches", text));
        if self.mismatches > 0 {
            self.failure(format!("{} mismatches", self.mismatches));
        }
        if self.rounds == 0 {
            self.failure("no round was possible, so nothing was compared");
        }
        if self.missed.total() > 0 {
            self.failure(format!("rounds that were not possible, faults that had no effect: {}", self.missed.text()));
        }
    }

    fn memory(&mut self) {
        let Some(last) = self.samples.last().cloned() else { return };
        let warm: Vec<&ProcessSample> =
            self.samples.iter().filter(|sample| sample.seconds >= last.seconds / 10.0).collect();
        let memory: Vec<(f64, f64)> = warm.iter().map(|sample| (sample.seconds / 60.0, sample.memory_kib)).collect();
        let least = memory.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let most = memory.iter().map(|point| point.1).fold(0.0, f64::max);
        let first = memory.first().map_or(0.0, |point| point.1);
        let after = self.after.as_ref().map(|sample| sample.memory_kib);
        let mib = |kib: f64| format!("{:.1} MiB", kib / 1024.0);
        let text = format!(
            "{} before clients, {} warmed up, {} at the end, {} after them; from {} to {} in between",
            mib(self.before.memory_kib),
            mib(first),
            mib(last.memory_kib),
            after.map_or_else(|| "unknown".to_owned(), mib),
            mib(least),
            mib(most)
        );
        let slope = slope(&memory).map_or_else(|| "unknown".to_owned(), per_minute);
        self.rows.push(("memory", text));
        self.rows.push(("slope of the memory", slope));
        self.growth();
        self.rows.push(("CPU", format!("{:.1} % of a core", self.cpu_percent(&last))));
    }

    /// Judges the allocated memory: unlike the resident memory, it does not depend on what the allocator keeps.
    fn growth(&mut self) {
        let points: Option<Vec<(f64, f64)>> =
            self.samples.iter().map(|sample| Some((sample.seconds, sample.allocated_kib?))).collect();
        let Some(points) = points else {
            self.failure("the manager has no metric of its allocated memory");
            return;
        };
        let Some(growth) = MemoryGrowth::of(&points) else {
            let text = "not judged, because the time was too short";
            self.rows.push(("growth of the allocated memory", text.to_owned()));
            return;
        };
        let MemoryGrowth { early_kib, late_kib, minutes } = growth;
        let text = format!(
            "{:+.1} KiB per minute: the floor of the first half is {:.2} MiB, that of the second half {:.2} MiB, \
             {minutes:.1} minutes later",
            growth.kib_per_minute(),
            early_kib / 1024.0,
            late_kib / 1024.0,
        );
        self.rows.push(("growth of the allocated memory", text.clone()));
        // Buffers of streams whose clients do not read are most of what varies.
        let warm = self.samples.last().map_or(0.0, |last| last.seconds * growth::WARM);
        let points = self.samples.iter().filter(|sample| sample.seconds >= warm).filter_map(|sample| {
            let blocked = sample.streams.get("blocked").copied().unwrap_or_default();
            Some((sample.seconds / 60.0, blocked, sample.allocated_kib?))
        });
        let slope = slope_beside(&points.collect::<Vec<_>>()).map_or_else(|| "unknown".to_owned(), per_minute);
        self.rows.push(("its slope for as many blocked streams", slope));
        if !growth.is_tolerated() {
            self.failure(format!("the allocated memory grows: {text}"));
        }
    }

    fn resources(&mut self) {
        let (early, late) = alike(&self.settled).unzip();
        for (name, sample) in [
            ("before clients", Some(&self.before)),
            ("after an early round", early),
            ("after a late round alike", late),
            ("after clients", self.after.as_ref()),
        ] {
            self.rows.push((name, sample.map_or_else(|| "unknown".to_owned(), ProcessSample::text)));
        }
    }

    fn clients(&mut self, healthy: &readers::ReaderCounts, slow: &slow::SlowCounts) {
        let number = readers::ReaderCounts::number;
        let (messages, streams, connections) =
            (number(&healthy.messages), number(&healthy.streams_renewed), number(&healthy.connections_renewed));
        let (explained, unexplained) = (number(&healthy.explained), healthy.unexplained.text());
        let (opened, left, unread) = (number(&slow.opened), number(&slow.left), number(&slow.unread_connections));
        self.rows.extend([
            ("messages to healthy streams", messages.to_string()),
            ("reconnects", format!("{connections} connections, {streams} single streams")),
            ("healthy streams ended", format!("{explained} because of their target; without need: {unexplained}")),
            ("refusals", healthy.refused.text()),
            ("messages against the contract", healthy.forbidden.text()),
            (
                "slow readers' streams",
                format!(
                    "{opened} opened; ended {}; {left} not ended; {unread} unread connections; errors: {}",
                    slow.ended.text(),
                    slow.failed.text()
                ),
            ),
        ]);
        if healthy.unexplained.total() > 0 {
            self.failure(format!("healthy streams ended without need: {unexplained}"));
        }
        let closed = self.samples.last().map_or(0.0, |sample| sample.closed_connections);
        if (unread as f64) > closed {
            self.failure(format!("{unread} connections were never read, but only {closed} were closed for that"));
        }
        if healthy.forbidden.total() > 0 {
            self.failure("streams received messages that the contract forbids");
        }
        if left > 0 {
            self.failure(format!("{left} stalled streams were not ended"));
        }
    }

    /// Prints the table and writes the JSON. True when nothing failed.
    pub(crate) fn publish(&self) -> Result<bool> {
        let machine: Vec<String> = self.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        println!("\n{}\n", machine.join(", "));
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, text) in &self.rows {
            println!("{name:width$}  {text}");
        }
        let figures: Map<String, Value> =
            self.rows.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        let report = json!({"machine": self.machine, "figures": figures, "failures": self.failures,
            "before": self.before, "samples": self.samples, "after": self.after});
        host::write("soak.json", &report)?;
        match self.failures.as_slice() {
            [] => println!("PASSED."),
            failures => println!("FAILED: {}", failures.join("; ")),
        }
        Ok(self.failures.is_empty())
    }
}

fn per_minute((slope, error): (f64, f64)) -> String {
    format!("{slope:+.1} ± {error:.1} KiB per minute")
}
