//! The report of a soak: a line per minute, a table at the end, and JSON.
//!
//! * In: samples, rounds, counts. Out: text on stdout, `target/soak.json`, and whether the soak passed.
//! * Always: it passes only without failures. Of many mismatches, only the first few are stored.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    call::Call,
    churn::Churn,
    compare::{Mismatch, Round},
    faults::Faults,
    growth::Growth,
    readers::{self, Readers},
    samples::{Sample, slope},
    settled::Settled,
    slow::{self, SlowReaders},
    tally::Tally,
};

const SHOWN: usize = 10;

#[derive(Default)]
pub(crate) struct Report {
    machine: Value,
    /// The sample before clients connected.
    pub before: Sample,
    /// The samples while clients were connected.
    pub samples: Vec<Sample>,
    /// Samples after rounds, when every stream was up to date: early ones and late ones.
    settled: Settled,
    /// The sample after clients disconnected.
    pub after: Option<Sample>,
    rounds: u64,
    /// Rounds that were not possible and faults that had no effect, by error.
    missed: Tally,
    compared: u64,
    longest: Duration,
    mismatches: u64,
    /// The first mismatch of each client and call.
    shown: Vec<Mismatch>,
    rows: Vec<(&'static str, String)>,
    raw: serde_json::Map<String, Value>,
    failures: Vec<String>,
}

// === impl Report ===

impl Report {
    pub(crate) fn new(machine: Value) -> Self {
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
                println!("MISMATCH in namespace {}, {client} for {call:?}:\n{difference}", namespace(call.as_ref()));
                self.shown.push(Mismatch { client, call, difference });
            }
        }
    }

    pub(crate) fn missed(&self, error: &anyhow::Error) {
        self.missed.count(&format!("{error:#}"));
    }

    /// Adds a sample taken when every stream is up to date, at this share of the whole time.
    pub(crate) fn settled(&mut self, sample: Sample, share: f64) {
        self.settled.put(sample, share);
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
            "{:5.1} min: {:.1} MiB, {:.1} MiB allocated, {} descriptors, {} tasks, streams {}, {} messages, {} rounds, {} mismatches, \
             {} streams ended without need, {} of slow readers, {:.1} % of a core",
            sample.seconds / 60.0,
            sample.memory_kib / 1024.0,
            sample.allocated_kib.unwrap_or_default() / 1024.0,
            sample.descriptors,
            tasks(sample),
            streams(sample),
            readers::Counts::number(&healthy.messages),
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
        self.row("the manager's log", text, json!({"bytes": log.len(), "lines": lines, "errors": errors}));
    }

    /// The CPU share since clients connected.
    fn cpu_percent(&self, until: &Sample) -> f64 {
        (until.cpu_seconds - self.before.cpu_seconds) / until.seconds.max(1.0) * 100.0
    }

    /// Computes the table.
    pub(crate) fn conclude(&mut self, churn: &Churn, readers: &Readers, slow: &SlowReaders, faults: &Faults) {
        self.memory();
        self.resources();
        self.clients(readers.counts(), slow.counts());
        let (written, failed) = (churn.written(), churn.failed());
        self.row(
            "changes written to the API server",
            format!("{}, the latest {:?} late; errors: {}", written.changes, written.latest, failed.text()),
            json!({"changes": written.changes, "latest_seconds": written.latest.as_secs_f64(), "errors": failed.json()}),
        );
        let text = format!("{}; {} watches", faults.happened.text(), faults.watches());
        self.row("faults of the watches", text, json!({"faults": faults.happened.json(), "watches": faults.watches()}));
        let text = format!(
            "{} in {} rounds, {} answers compared; the longest round {:.1} s",
            self.mismatches,
            self.rounds,
            self.compared,
            self.longest.as_secs_f64()
        );
        let first: Vec<Value> = self.shown.iter().map(mismatch).collect();
        let raw = json!({"mismatches": self.mismatches, "rounds": self.rounds, "compared": self.compared,
            "longest_round_seconds": self.longest.as_secs_f64(), "first": first});
        self.row("mismatches", text, raw);
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
        let warm: Vec<&Sample> = self.samples.iter().filter(|sample| sample.seconds >= last.seconds / 10.0).collect();
        let of = |amount: fn(&Sample) -> f64| -> Vec<(f64, f64)> {
            warm.iter().map(|sample| (sample.seconds / 60.0, amount(sample))).collect()
        };
        let (memory, own) = (of(|sample| sample.memory_kib), of(|sample| sample.own_memory_kib));
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
        let raw = json!({"before_kib": self.before.memory_kib, "warm_kib": first, "end_kib": last.memory_kib,
            "after_kib": after, "least_kib": least, "most_kib": most});
        let trend = |points: &[(f64, f64)]| {
            let slope = slope(points);
            (slope.map_or_else(|| "unknown".to_owned(), |slope| format!("{slope:+.1} KiB per minute")), json!(slope))
        };
        let ((slope, raw_slope), (own_slope, raw_own)) = (trend(&memory), trend(&own));
        let own_end = mib(last.own_memory_kib);
        let cpu = last.cpu_seconds - self.before.cpu_seconds;
        let share = self.cpu_percent(&last);
        self.row("memory", text, raw);
        self.row("slope of the memory", slope, raw_slope);
        self.growth();
        self.row("slope of our own memory", format!("{own_slope}, {own_end} at the end"), raw_own);
        self.row("CPU", format!("{share:.1} % of a core"), json!({"seconds": cpu, "percent": share}));
    }

    /// Judges the allocated memory: unlike the resident memory, it does not depend on what the allocator keeps.
    fn growth(&mut self) {
        let points: Option<Vec<(f64, f64)>> =
            self.samples.iter().map(|sample| Some((sample.seconds, sample.allocated_kib?))).collect();
        let Some(points) = points else {
            self.failure("the manager has no metric of its allocated memory");
            return;
        };
        let Some(growth) = Growth::of(&points) else {
            let text = "not judged, because the time was too short";
            self.row("growth of the allocated memory", text.to_owned(), Value::Null);
            return;
        };
        let Growth { early_kib, late_kib, minutes } = growth;
        let text = format!(
            "{:+.1} KiB per minute: the floor of the first half is {:.2} MiB, that of the second half {:.2} MiB, \
             {minutes:.1} minutes later",
            growth.kib_per_minute(),
            early_kib / 1024.0,
            late_kib / 1024.0,
        );
        let raw = json!({"early_kib": early_kib, "late_kib": late_kib, "minutes": minutes});
        self.row("growth of the allocated memory", text.clone(), raw);
        if !growth.is_tolerated() {
            self.failure(format!("the allocated memory grows: {text}"));
        }
    }

    fn resources(&mut self) {
        let (early, late) = self.settled.alike().unzip();
        for (name, sample) in [
            ("before clients", Some(&self.before)),
            ("after an early round", early),
            ("after a late round alike", late),
            ("after clients", self.after.as_ref()),
        ] {
            let text = sample.map_or_else(
                || "unknown".to_owned(),
                |sample| {
                    let Sample { descriptors, api_connections, subscribers, .. } = sample;
                    format!(
                        "{:.1} min: {descriptors} descriptors ({api_connections} to the API server), {} tasks, streams {}, \
                         {subscribers} views' series, {} unread connections closed",
                        sample.seconds / 60.0,
                        tasks(sample),
                        streams(sample),
                        sample.closed_connections
                    )
                },
            );
            self.rows.push((name, text));
            self.raw.insert(name.to_owned(), sample.map_or(Value::Null, Sample::json));
        }
    }

    fn clients(&mut self, healthy: &readers::Counts, slow: &slow::Counts) {
        let number = readers::Counts::number;
        let (messages, streams, connections) =
            (number(&healthy.messages), number(&healthy.streams_renewed), number(&healthy.connections_renewed));
        self.row("messages to healthy streams", messages.to_string(), json!(messages));
        self.row(
            "reconnects",
            format!("{connections} connections, {streams} single streams"),
            json!({"connections": connections, "streams": streams}),
        );
        let explained = number(&healthy.explained);
        let text = format!("{explained} because of their target; without need: {}", healthy.unexplained.text());
        let raw = json!({"explained": explained, "unexplained": healthy.unexplained.json()});
        self.row("healthy streams ended", text, raw);
        if healthy.unexplained.total() > 0 {
            self.failure(format!("healthy streams ended without need: {}", healthy.unexplained.text()));
        }
        self.row("refusals", healthy.refused.text(), healthy.refused.json());
        self.row("messages against the contract", healthy.forbidden.text(), healthy.forbidden.json());
        let (opened, left, unread) = (number(&slow.opened), number(&slow.left), number(&slow.unread_connections));
        self.row(
            "slow readers' streams",
            format!(
                "{opened} opened; ended {}; {left} not ended; {unread} unread connections; errors: {}",
                slow.ended.text(),
                slow.failed.text()
            ),
            json!({
                "opened": opened, "ended": slow.ended.json(), "left": left, "deaf": unread,
                "errors": slow.failed.json(),
            }),
        );
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

    fn row(&mut self, name: &'static str, text: String, raw: Value) {
        self.rows.push((name, text));
        self.raw.insert(name.to_owned(), raw);
    }

    /// Prints the table and writes the JSON. True when nothing failed.
    pub(crate) fn publish(&self) -> Result<bool> {
        let machine = self.machine.as_object().into_iter().flatten();
        println!("\n{}\n", machine.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", "));
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, text) in &self.rows {
            println!("{name:width$}  {text}");
        }
        let samples: Vec<Value> = self.samples.iter().map(Sample::json).collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/soak.json");
        let text = serde_json::to_string_pretty(&json!({
            "machine": self.machine, "figures": self.raw, "failures": self.failures, "samples": samples,
        }))?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("\nAll samples are in target/soak.json.");
        match self.failures.as_slice() {
            [] => println!("PASSED."),
            failures => println!("FAILED: {}", failures.join("; ")),
        }
        Ok(self.failures.is_empty())
    }
}

fn tasks(sample: &Sample) -> String {
    sample.tasks.map_or_else(|| "unknown".to_owned(), |tasks| tasks.to_string())
}

fn streams(sample: &Sample) -> String {
    let states = sample.streams.iter().map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>();
    format!("{} ({})", sample.all_streams(), states.join(", "))
}

fn mismatch(of: &Mismatch) -> Value {
    let Mismatch { client, call, difference } = of;
    let request = call.as_ref().map(|call| &call.request);
    json!({"client": client, "namespace": namespace(call.as_ref()), "path": request.map(|request| &request.path),
        "method": call.as_ref().map(|call| format!("{:?}", call.method)),
        "token": request.map(|request| &request.token), "difference": difference})
}

/// The namespace of the Service in the path of a call, which may begin with an instance.
fn namespace(call: Option<&Call>) -> &str {
    let path = call.map_or("", |call| &call.request.path);
    let name = path.split_once(".svc").map_or(path, |(name, _)| name);
    name.rsplit('.').next().unwrap_or_default()
}

/// The host and the versions.
pub(crate) fn machine(kubernetes: &str, operator: &str) -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':'])),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": kernel.trim(),
        "kubernetes": kubernetes,
        "operator": operator,
        "soak": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}

#[cfg(test)]
mod tests {
    use e2e::oracle::Request;

    use super::*;
    use crate::call::Method;

    #[test]
    fn the_namespace_is_found_with_and_without_an_instance() {
        for path in ["web.w0-world.svc.cluster.local:80", "host-0.web.w0-world.svc.cluster.local", "web.w0-world"] {
            let request = Request { path: path.to_owned(), token: String::new() };
            assert_eq!(namespace(Some(&Call { method: Method::Get, request })), "w0-world");
        }
    }
}
