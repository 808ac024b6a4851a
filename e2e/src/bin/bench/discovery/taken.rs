//! The latency of changes in our server itself: from the receipt of a watch event until a stream has taken its change.
//!
//! * In: the server's histogram, before and after some changes. Out: upper bounds of quantiles, as fine as its buckets.
//! * The delay of the measuring client is not in it, nor the time for which an event waits in the server's socket.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::rig::Subject;

/// Cumulative buckets: upper bounds in seconds, and counts.
pub(super) struct Taken(Vec<(f64, f64)>);

impl Subject {
    /// What streams have taken so far.
    pub(super) async fn taken(&self) -> Result<Taken> {
        let manager = self.manager.as_ref().context("only our server has these metrics")?;
        let samples = manager.metrics().await?.into_iter();
        let buckets = samples.filter(|sample| {
            sample.name == "linkerd_operator_discovery_latency_seconds_bucket" && sample.has(&[("stage", "taken")])
        });
        let bound = |labels: &[(String, String)]| labels.iter().find(|(name, _)| name == "le")?.1.parse().ok();
        Ok(Taken(buckets.filter_map(|sample| Some((bound(&sample.labels)?, sample.value))).collect()))
    }

    /// The number of events of a watch so far, those of lists included.
    pub(super) async fn events(&self, resource: &str) -> Result<f64> {
        let manager = self.manager.as_ref().context("only our server has these metrics")?;
        let events = manager.metric("linkerd_operator_watch_events_total", &[("resource", resource)]).await;
        events.context("no metric for the events of a watch")
    }
}

// === impl Taken ===

impl Taken {
    /// What streams have taken since then.
    pub(super) fn since(self, before: &Self) -> Self {
        let added = self.0.iter().zip(&before.0).map(|((bound, count), (_, earlier))| (*bound, count - earlier));
        Self(added.collect())
    }

    pub(super) fn json(&self) -> Value {
        json!(self.0)
    }

    /// The upper bound in seconds of the bucket with this quantile.
    pub(super) fn bound(&self, share: f64) -> f64 {
        let all = self.0.last().map_or(0.0, |(_, count)| *count);
        self.0.iter().find(|(_, count)| *count >= share * all).map_or(f64::INFINITY, |(bound, _)| *bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_the_first_bucket_that_reaches_it() {
        let taken = |counts: [f64; 3]| Taken([0.1, 0.2, f64::INFINITY].into_iter().zip(counts).collect());
        let added = taken([10.0, 109.0, 111.0]).since(&taken([10.0, 10.0, 11.0]));
        assert_eq!([0.5, 0.99, 1.0].map(|share| added.bound(share)), [0.2, 0.2, f64::INFINITY]);
    }
}
