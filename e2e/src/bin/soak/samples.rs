//! Samples of the manager's resources.
//!
//! * In: the manager, and its proxy to the API server. Out: one [`ProcessSample`] at a time; the trend of many.
//! * Always: a missing metric is `None`, never zero. At most [`MOST`] samples, for any duration.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use e2e::{FaultProxy, Manager};
use serde::Serialize;

const MOST: u32 = 720;
const KIB: f64 = 1024.0;
/// The maximum number of samples that are compared.
const KEPT: usize = 240;
/// Shares of the whole time: the end of the warm-up, the end of early, the beginning of late.
const WARM: f64 = 0.1;
const EARLY: f64 = 0.4;
const LATE: f64 = 0.6;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ProcessSample {
    /// Seconds since clients connected.
    pub seconds: f64,
    pub memory_kib: f64,
    /// The bytes that the manager has allocated and not freed.
    pub allocated_kib: Option<f64>,
    pub descriptors: usize,
    /// The descriptors that are connections to the API server; their number varies.
    pub api_connections: usize,
    /// The live tasks of the manager's runtime.
    pub tasks: Option<f64>,
    pub streams: BTreeMap<String, f64>,
    /// The number of series of `endpoints_subscribers`, one per view with streams.
    pub subscribers: usize,
    /// The CPU time used so far.
    pub cpu_seconds: f64,
    pub closed_connections: f64,
}

// === impl ProcessSample ===

impl ProcessSample {
    /// # Errors
    /// Fails when the manager has ended or does not answer.
    pub(crate) async fn take(manager: &Manager, proxy: &FaultProxy, seconds: f64) -> Result<Self> {
        let memory = manager.memory()?.resident;
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", manager.pid()))?.count();
        let metrics = manager.metrics().await?;
        let of = |name: &'static str| metrics.iter().filter(move |sample| sample.name == name);
        let streams = of("linkerd_operator_discovery_streams").filter_map(|sample| {
            let (_, state) = sample.labels.iter().find(|(label, _)| label == "state")?;
            Some((state.clone(), sample.value))
        });
        Ok(Self {
            seconds,
            memory_kib: memory as f64 / KIB,
            allocated_kib: of("linkerd_operator_memory_allocated_bytes").map(|sample| sample.value / KIB).next(),
            descriptors,
            api_connections: proxy.open_connections(),
            tasks: of("linkerd_operator_runtime_tasks").map(|sample| sample.value).next(),
            streams: streams.collect(),
            subscribers: of("endpoints_subscribers").count(),
            cpu_seconds: manager.cpu_time()?.as_secs_f64(),
            // A client that does not read its socket does not answer PINGs either, so the reason is `stalled` or
            // `gone`, depending on which timeout is first.
            closed_connections: of("linkerd_operator_discovery_connections_ended_total")
                .filter(|it| it.has(&[("reason", "stalled")]) || it.has(&[("reason", "gone")]))
                .map(|it| it.value)
                .sum(),
        })
    }

    pub(crate) fn all_streams(&self) -> f64 {
        self.streams.values().sum()
    }

    /// The sample as a text for the report.
    pub(crate) fn text(&self) -> String {
        let states: Vec<String> = self.streams.iter().map(|(state, count)| format!("{count} {state}")).collect();
        format!(
            "{:5.1} min: {:.1} MiB, {:.1} MiB allocated, {} descriptors ({} to the API server), {} tasks, streams {} ({}), \
             {} views' series, {} unread connections closed",
            self.seconds / 60.0,
            self.memory_kib / KIB,
            self.allocated_kib.unwrap_or_default() / KIB,
            self.descriptors,
            self.api_connections,
            self.tasks.map_or_else(|| "unknown".to_owned(), |tasks| tasks.to_string()),
            self.all_streams(),
            states.join(", "),
            self.subscribers,
            self.closed_connections
        )
    }
}

/// One second, or longer if that would result in too many samples.
pub(crate) fn period(whole: Duration) -> Duration {
    (whole / MOST).max(Duration::from_secs(1))
}

/// The slope of the regression line (least squares) over pairs of a time and an amount, and its standard error. `None`
/// for fewer than three points, or when all have the same time.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (time, amount) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - time).powi(2)).sum();
    let together: f64 = points.iter().map(|point| (point.0 - time) * (point.1 - amount)).sum();
    let slope = together / spread;
    let off_the_line = |point: &(f64, f64)| point.1 - amount - slope * (point.0 - time);
    let variance = points.iter().map(|point| off_the_line(point).powi(2)).sum::<f64>() / (count - 2.0);
    (points.len() > 2 && spread > 0.0).then(|| (slope, (variance / spread).sqrt()))
}

/// The slope of an amount over the time while another quantity stays the same, and its standard error, from triples of a
/// time, the other quantity and the amount. What follows from the other quantity is removed from both, each by a
/// regression line of its own: the rest has the slope of a regression with two variables (Frisch, Waugh and Lovell).
pub(crate) fn slope_beside(points: &[(f64, f64, f64)]) -> Option<(f64, f64)> {
    let rest = |of: fn(&(f64, f64, f64)) -> f64| {
        let pairs: Vec<(f64, f64)> = points.iter().map(|point| (point.1, of(point))).collect();
        let effect = slope(&pairs).map_or(0.0, |(effect, _)| effect);
        pairs.into_iter().map(move |(other, value)| value - effect * other)
    };
    slope(&rest(|point| point.0).zip(rest(|point| point.2)).collect::<Vec<_>>())
}

/// Adds a sample to those that were taken when every stream was up to date. Of many, every second one is dropped, so that
/// memory does not grow with the duration.
pub(crate) fn keep(settled: &mut Vec<ProcessSample>, sample: ProcessSample) {
    if settled.len() == KEPT {
        let mut number = 0;
        settled.retain(|_| {
            number += 1;
            number % 2 == 1
        });
    }
    settled.push(sample);
}

/// The early and the late sample with the most similar number of streams. That number depends on the worlds, in which
/// Services are created and deleted, and on the slow readers; the first and the last sample may differ by hundreds.
pub(crate) fn alike(settled: &[ProcessSample]) -> Option<(&ProcessSample, &ProcessSample)> {
    let end = settled.last()?.seconds;
    let within =
        move |from: f64, to: f64| settled.iter().filter(move |it| (from * end..=to * end).contains(&it.seconds));
    let pairs = within(WARM, EARLY).flat_map(|early| within(LATE, 1.0).map(move |late| (early, late)));
    let apart = |(early, late): &(&ProcessSample, &ProcessSample)| (early.all_streams() - late.all_streams()).abs();
    pairs.min_by(|one, other| apart(one).total_cmp(&apart(other)))
}

/// The resources that are still in use after all clients have disconnected.
pub(crate) fn left_over(before: &ProcessSample, after: &ProcessSample) -> Vec<String> {
    let mut left = Vec::new();
    if after.all_streams() > 0.0 {
        left.push(format!("{} streams", after.all_streams()));
    }
    if after.subscribers > 0 {
        left.push(format!("{} series of endpoints_subscribers", after.subscribers));
    }
    let own = |sample: &ProcessSample| sample.descriptors.saturating_sub(sample.api_connections);
    if own(after) > own(before) + FEW {
        left.push(format!("{} descriptors instead of {}", own(after), own(before)));
    }
    match (after.tasks, before.tasks) {
        (Some(is), Some(was)) => {
            // A connection to the API server has a task, and its body has another one while it is read.
            let connections = after.api_connections.saturating_sub(before.api_connections);
            if is > was + (2 * connections + FEW) as f64 {
                left.push(format!("{is} tasks instead of {was}"));
            }
        }
        _ => left.push("an unknown number of tasks".to_owned()),
    }
    left
}

/// The tolerated difference: the current connection for metrics, and the previous one, may or may not be open.
const FEW: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_changes_the_slope_of_a_line_only_slightly() {
        let line: Vec<(f64, f64)> = (0..60).map(|at| (f64::from(at) / 60.0, 1000.0 + 2.0 * f64::from(at))).collect();
        let (exact, error) = slope(&line).unwrap();
        assert!((exact - 120.0).abs() < 1e-9 && error < 1e-9, "{exact} ± {error}");
        let noisy: Vec<(f64, f64)> =
            line.iter().enumerate().map(|(at, (x, y))| (*x, y + if at % 2 == 0 { 1.0 } else { -1.0 })).collect();
        let (noisy, error) = slope(&noisy).unwrap();
        assert!((noisy - 120.0).abs() < error, "{noisy} ± {error}");
        // The line is 1.5 x - 1/6; the squares of the distances from it are 1/36, 1/9 and 1/36.
        let (slope_of_three, error) = slope(&[(0.0, 0.0), (1.0, 1.0), (2.0, 3.0)]).unwrap();
        assert!((slope_of_three - 1.5).abs() < 1e-9 && (error - 0.288_675).abs() < 1e-6, "{slope_of_three} ± {error}");
        assert_eq!(slope(&[(1.0, 5.0), (2.0, 5.0)]), None);
        assert_eq!(slope(&[(1.0, 5.0), (1.0, 6.0), (1.0, 7.0)]), None);
    }

    #[test]
    fn the_slope_beside_another_quantity_is_that_of_the_time_alone() {
        // The other quantity rises, too, and each unit of it adds 26.
        let others = [0.0, 3.0, 1.0, 6.0, 4.0, 9.0, 7.0];
        let points: Vec<_> =
            (0u32..).zip(others).map(|(at, it)| (f64::from(at), it, 2.0 * f64::from(at) + 26.0 * it)).collect();
        let (exact, error) = slope_beside(&points).unwrap();
        assert!((exact - 2.0).abs() < 1e-9 && error < 1e-9, "{exact} ± {error}");
        let constant: Vec<_> = (0u32..5).map(|at| (f64::from(at), 8.0, 3.0 * f64::from(at))).collect();
        assert!((slope_beside(&constant).unwrap().0 - 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_samples_with_the_most_similar_number_of_streams_are_compared() {
        let sample = |seconds: f64, streams: f64| ProcessSample {
            seconds,
            streams: [("idle".to_owned(), streams)].into(),
            ..ProcessSample::default()
        };
        let mut settled = Vec::new();
        assert!(alike(&settled).is_none());
        for (seconds, streams) in
            [(5.0, 900.0), (20.0, 1500.0), (30.0, 1200.0), (50.0, 900.0), (80.0, 900.0), (100.0, 1190.0)]
        {
            keep(&mut settled, sample(seconds, streams));
        }
        let (early, late) = alike(&settled).unwrap();
        assert_eq!((early.all_streams(), late.all_streams()), (1200.0, 1190.0));
        (0..10_000).for_each(|second| keep(&mut settled, sample(f64::from(second), 0.0)));
        assert!(settled.len() <= KEPT);
    }

    #[test]
    fn the_number_of_samples_is_limited() {
        assert_eq!(period(Duration::from_secs(300)), Duration::from_secs(1));
        let day = Duration::from_secs(86_400);
        assert!(day.as_secs_f64() / period(day).as_secs_f64() <= f64::from(MOST));
    }

    #[test]
    fn resources_left_behind_by_clients_are_reported() {
        let before =
            ProcessSample { descriptors: 20, api_connections: 9, tasks: Some(30.0), ..ProcessSample::default() };
        let more =
            ProcessSample { descriptors: 24, api_connections: 12, tasks: Some(35.0), ..ProcessSample::default() };
        assert_eq!(
            left_over(&before, &more),
            Vec::<String>::new(),
            "the number of connections to the API server varies"
        );
        let streams = BTreeMap::from([("idle".to_owned(), 2.0)]);
        let left = ProcessSample { descriptors: 40, tasks: Some(60.0), subscribers: 1, streams, ..before.clone() };
        assert_eq!(left_over(&before, &left).len(), 4);
        let unknown = ProcessSample { tasks: None, ..before.clone() };
        assert_eq!(
            left_over(&before, &unknown),
            ["an unknown number of tasks"],
            "a metric that is missing proves nothing"
        );
    }
}
