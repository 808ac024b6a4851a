//! Collects figures, and prints them as a table and as JSON.
//!
//! * In: rows, one after the other. Out: a Markdown table, and `target/bench.json`.
//! * Always: a distribution is stored as a histogram of its samples with three significant digits; a row that could not
//!   be measured is included with the reason.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Result;
use e2e::{
    ManagerOptions, host,
    memory::{Memory, mebibytes},
};
use serde_json::{Map, Value, json};

use crate::spent::Spent;

/// The memory limit of the measured processes. It is larger than the shipped one, so that it limits no row.
pub(crate) const CONTAINER: u64 = 1024 * 1024 * 1024;

pub(crate) struct Report {
    machine: Map<String, Value>,
    rows: Vec<ReportRow>,
    failures: usize,
}

struct ReportRow {
    figure: String,
    value: String,
    wanted: &'static str,
    raw: Value,
    spent: Option<Spent>,
}

/// Durations, each with the number of samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<(Duration, u64)>);

// === impl Samples ===

impl Samples {
    pub(crate) fn push(&mut self, duration: Duration, times: u64) {
        self.0.push((duration, times));
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, times)| times).sum()
    }

    /// The quantile: the smallest duration that this share of the samples does not exceed.
    pub(crate) fn at(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank"
        )]
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut so_far = 0;
        let found = sorted.iter().find(|(_, times)| {
            so_far += times;
            so_far >= rank
        });
        found.map(|(duration, _)| *duration).unwrap_or_default()
    }

    pub(crate) fn text(&self) -> String {
        let at = |share| milliseconds(&self.at(share));
        format!("p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, max {:.1} ms", at(0.5), at(0.9), at(0.99), at(1.0))
    }

    /// Pairs of an upper bound in microseconds, with three significant digits, and the number of samples in that
    /// bucket.
    pub(crate) fn histogram(&self) -> Value {
        let mut buckets = BTreeMap::<u64, u64>::new();
        for (duration, times) in &self.0 {
            let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
            let step = 10_u64.pow(micros.checked_ilog10().unwrap_or(0).saturating_sub(2));
            *buckets.entry(micros.div_ceil(step) * step).or_default() += times;
        }
        json!({"samples": self.count(), "microseconds": buckets.into_iter().collect::<Vec<_>>()})
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<T: IntoIterator<Item = Duration>>(durations: T) -> Self {
        Self(durations.into_iter().map(|duration| (duration, 1)).collect())
    }
}

// === impl Report ===

impl Report {
    pub(crate) fn new() -> Self {
        Self { machine: host::properties(), rows: Vec::new(), failures: 0 }
    }

    /// Adds a property of the host or of the software to the report.
    pub(crate) fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.machine.insert(name.to_owned(), value.into());
    }

    pub(crate) fn row(
        &mut self,
        figure: impl Into<String>,
        value: impl Into<String>,
        wanted: &'static str,
        raw: Value,
    ) {
        let row = ReportRow { figure: figure.into(), value: value.into(), wanted, raw, spent: None };
        eprintln!("  {}: {}   (wanted: {})", row.figure, row.value, row.wanted);
        self.rows.push(row);
    }

    /// Adds the cost of the measurement to the last row.
    pub(crate) fn spent(&mut self, spent: &Spent) {
        eprintln!("    {}", spent.text());
        if let Some(row) = self.rows.last_mut() {
            row.spent = Some(spent.clone());
        }
    }

    /// Adds a row with a distribution of durations.
    pub(crate) fn distribution(&mut self, figure: impl Into<String>, samples: Vec<Duration>, wanted: &'static str) {
        let samples: Samples = samples.into_iter().collect();
        self.row(figure, samples.text(), wanted, samples.histogram());
    }

    /// Adds a row with the memory of one process or several.
    pub(crate) fn memory(&mut self, figure: &str, all: &[Memory], wanted: &'static str) {
        let of = |bytes: fn(&Memory) -> Option<u64>| -> Option<(f64, f64)> {
            let known: Vec<f64> = all.iter().filter_map(bytes).map(mebibytes).collect();
            Some((median(known.clone()), known.into_iter().reduce(f64::max)?))
        };
        let text = |name: &str, figures: Option<(f64, f64)>| match figures {
            Some((only, _)) if all.len() == 1 => format!("{name} {only:.1} MiB"),
            Some((middle, most)) => format!("{name} {middle:.1} MiB (median of {}, max {most:.1})", all.len()),
            None => format!("{name} unknown"),
        };
        let parts = [
            text("resident", of(|memory| Some(memory.resident))),
            text("of that pages of the binary", of(|memory| Some(memory.files))),
            text("peak", of(|memory| Some(memory.peak))),
            text("container", of(|memory| memory.container)),
        ];
        self.row(figure, parts.join("; "), wanted, json!(all.iter().map(json_of).collect::<Vec<_>>()));
    }

    /// Adds a row for a figure that could not be measured.
    pub(crate) fn failed(&mut self, figure: &str, error: &anyhow::Error) {
        self.failures += 1;
        self.row(figure, format!("not measured: {error:#}"), "a figure", Value::Null);
    }

    pub(crate) fn publish(&self) -> Result<ExitCode> {
        let machine: Vec<String> = self.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        println!("\n{}\n", machine.join(", "));
        println!("| | measured | wanted | spent |\n|---|---|---|---|");
        for ReportRow { figure, value, wanted, spent, .. } in &self.rows {
            let spent = spent.as_ref().map(Spent::text).unwrap_or_default();
            println!("| {figure} | {value} | {wanted} | {spent} |");
        }
        let rows: Vec<Value> = self.rows.iter().map(ReportRow::json).collect();
        host::write("bench.json", &json!({ "machine": self.machine, "figures": rows }))?;
        Ok(if self.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

// === impl ReportRow ===

impl ReportRow {
    fn json(&self) -> Value {
        let spent = self.spent.as_ref().map(Spent::json);
        json!({"figure": self.figure, "value": self.value, "wanted": self.wanted, "raw": self.raw, "spent": spent})
    }
}

pub(crate) fn milliseconds(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The median; with an even number of values, the larger of the two in the middle.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn json_of(memory: &Memory) -> Value {
    let Memory { resident, files, peak, container } = memory;
    json!({"resident_bytes": resident, "file_bytes": files, "peak_bytes": peak, "container_bytes": container})
}

/// A manager whose control group is measured beside its resident memory.
pub(crate) fn in_control_group() -> ManagerOptions {
    ManagerOptions { memory_limit: Some(CONTAINER), ..ManagerOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_weight_each_duration_by_its_number_of_samples() {
        let mut samples = Samples::default();
        samples.push(Duration::from_millis(30), 1);
        samples.push(Duration::from_millis(1), 98);
        samples.push(Duration::from_millis(20), 1);
        let at = |share| samples.at(share).as_millis();
        assert_eq!((at(0.5), at(0.98), at(0.99), at(1.0)), (1, 1, 20, 30));
    }

    #[test]
    fn a_histogram_keeps_three_significant_digits() {
        let micros = [0, 7, 999, 1_000, 1_001, 1_009, 123_456];
        let samples: Samples = micros.into_iter().map(Duration::from_micros).collect();
        let wanted = json!([[0, 1], [7, 1], [999, 1], [1_000, 1], [1_010, 2], [124_000, 1]]);
        assert_eq!(samples.histogram(), json!({"samples": 7, "microseconds": wanted}));
    }
}
