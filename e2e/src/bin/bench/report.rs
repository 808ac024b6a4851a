//! Figures, as a table for people and as JSON for everybody else.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub(crate) struct Report {
    rows: Vec<Row>,
}

struct Row {
    figure: String,
    value: String,
    wanted: &'static str,
    raw: Value,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { rows: Vec::new() }
    }

    pub(crate) fn row(
        &mut self,
        figure: impl Into<String>,
        value: impl Into<String>,
        wanted: &'static str,
        raw: Value,
    ) {
        let row = Row { figure: figure.into(), value: value.into(), wanted, raw };
        eprintln!("  {}: {}", row.figure, row.value);
        self.rows.push(row);
    }

    /// A distribution of durations; all of them go into the JSON.
    pub(crate) fn distribution(&mut self, figure: impl Into<String>, mut samples: Vec<Duration>, wanted: &'static str) {
        samples.sort();
        let at = |share: f64| {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a rank"
            )]
            let rank = ((samples.len() as f64 * share).ceil() as usize).saturating_sub(1);
            samples.get(rank).map(milliseconds).unwrap_or_default()
        };
        let value =
            format!("p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, max {:.1} ms", at(0.5), at(0.9), at(0.99), at(1.0));
        let raw: Vec<f64> = samples.iter().map(milliseconds).collect();
        self.row(figure, value, wanted, json!({ "milliseconds": raw }));
    }

    pub(crate) fn publish(&self) -> Result<()> {
        let machine = machine();
        println!(
            "\n{}\n",
            machine.as_object().into_iter().flatten().map(|(k, v)| format!("{k}: {v}")).collect::<Vec<_>>().join(", ")
        );
        let width = self.rows.iter().map(|row| row.figure.len()).max().unwrap_or_default();
        for row in &self.rows {
            println!("{:width$}  {}   (wanted: {})", row.figure, row.value, row.wanted);
        }
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| json!({"figure": row.figure, "value": row.value, "wanted": row.wanted, "raw": row.raw}))
            .collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench.json");
        let text = serde_json::to_string_pretty(&json!({ "machine": machine, "figures": rows }))?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("\nAll samples are in target/bench.json.");
        Ok(())
    }
}

pub(crate) fn milliseconds(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": model.unwrap_or("unknown"),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": kernel.trim(),
        "operator": env!("CARGO_PKG_VERSION"),
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
    })
}
