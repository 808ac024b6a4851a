//! The metrics of the latest progress, collected at each scrape.

use std::sync::Arc;

use prometheus::{
    IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::publisher::LatestProgress;
use crate::api::linkerd_config::{RolloutPods, RolloutWorkloads};

pub(super) struct RolloutCollector {
    latest: Arc<LatestProgress>,
    pods: IntGaugeVec,
    problems: IntGaugeVec,
    workloads: IntGaugeVec,
    no_progress: IntGauge,
}

impl RolloutCollector {
    pub(super) fn new(latest: Arc<LatestProgress>) -> prometheus::Result<Self> {
        Ok(Self {
            latest,
            pods: IntGaugeVec::new(
                Opts::new(
                    "linkerd_operator_linkerdconfig_pods",
                    "Pods, by how they compare with the configuration in effect",
                ),
                &["class"],
            )?,
            problems: IntGaugeVec::new(
                Opts::new(
                    "linkerd_operator_linkerdconfig_pods_with_problems",
                    "Meshed Pods whose network or proxy does not have the configured shape, by problem",
                ),
                &["problem"],
            )?,
            workloads: IntGaugeVec::new(
                Opts::new(
                    "linkerd_operator_linkerdconfig_workloads",
                    "Workloads that opted in, by the state of their rollout",
                ),
                &["state"],
            )?,
            no_progress: IntGauge::new(
                "linkerd_operator_linkerdconfig_rollout_no_progress",
                "Whether a rollout that could continue has not advanced for too long: 1 or 0",
            )?,
        })
    }
}

impl Collector for RolloutCollector {
    fn desc(&self) -> Vec<&Desc> {
        [self.pods.desc(), self.problems.desc(), self.workloads.desc(), self.no_progress.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let progress = self.latest.get();
        let (pods, workloads, no_progress) =
            progress.map(|it| (it.pods, it.workloads, it.no_progress)).unwrap_or_default();
        let RolloutPods { meshed: _, current, outdated, pinned, unknown, uninjected, completed, .. } = pods;
        let RolloutPods { waiting_for_network, other_shape, .. } = pods;
        for (class, count) in [
            ("current", current),
            ("outdated", outdated),
            ("pinned", pinned),
            ("unknown", unknown),
            ("uninjected", uninjected),
            ("completed", completed),
        ] {
            self.pods.with_label_values(&[class]).set(count);
        }
        for (problem, count) in [("waiting_for_network", waiting_for_network), ("other_shape", other_shape)] {
            self.problems.with_label_values(&[problem]).set(count);
        }
        let RolloutWorkloads { selected: _, updated, updating, pending, failed, skipped } = workloads;
        for (state, count) in [
            ("updated", updated),
            ("updating", updating),
            ("pending", pending),
            ("failed", failed),
            ("skipped", skipped),
        ] {
            self.workloads.with_label_values(&[state]).set(count);
        }
        self.no_progress.set(no_progress.into());
        [self.pods.collect(), self.problems.collect(), self.workloads.collect(), self.no_progress.collect()].concat()
    }
}
