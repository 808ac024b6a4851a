//! The workloads for which a rotation does not wait. Pure.
//!
//! In: what a LinkerdTrust accepts. Out: whether a workload is accepted, and the command that accepts it. Always holds: an
//! acceptance is about one step and one trust anchor, and does not count for another step; the command changes nothing if
//! the spec has changed.

use std::collections::BTreeSet;

use serde_json::json;

use super::seen::MeshedWorkload;
use crate::api::linkerd_trust::{AcceptedStep, AcceptedWorkload};

/// The maximum number of entries in the API.
const MAX_ENTRIES: usize = 100;

/// What is accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedWorkloads(BTreeSet<AcceptedWorkload>);

/// A step about trust anchors, each by its SHA-256.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotationWait {
    pub(crate) step: AcceptedStep,
    pub(crate) anchors: Vec<String>,
}

// === impl AcceptedWorkloads ===

impl AcceptedWorkloads {
    pub(crate) fn of(accepted: &[AcceptedWorkload]) -> Self {
        Self(accepted.iter().cloned().collect())
    }

    /// Whether this step does not wait for the workload.
    pub(crate) fn cover(&self, workload: &MeshedWorkload, wait: &RotationWait) -> bool {
        !wait.anchors.is_empty() && wait.entries(workload).all(|entry| self.0.contains(&entry))
    }

    /// Returns the command that adds these workloads, whose names the API server has validated. What is about other steps
    /// goes: in this rotation it has no effect.
    pub(crate) fn command(
        &self,
        (resource, generation): (&str, i64),
        workloads: &[MeshedWorkload],
        wait: &RotationWait,
    ) -> String {
        let is_kept = |entry: &&AcceptedWorkload| entry.step == wait.step && wait.anchors.contains(&entry.anchor);
        let kept = self.0.iter().filter(is_kept).cloned();
        let new = workloads.iter().flat_map(|workload| wait.entries(workload)).filter(|entry| !self.0.contains(entry));
        let entries: Vec<_> = kept.chain(new).take(MAX_ENTRIES).collect();
        let patch = json!([
            {"op": "test", "path": "/metadata/generation", "value": generation},
            {"op": "add", "path": "/spec/accept", "value": entries},
        ]);
        format!("kubectl patch linkerdtrust {resource} --type=json -p '{patch}'")
    }
}

// === impl RotationWait ===

impl RotationWait {
    fn entries(&self, workload: &MeshedWorkload) -> impl Iterator<Item = AcceptedWorkload> {
        let MeshedWorkload { namespace, kind, name } = workload;
        self.anchors.iter().map(|anchor| AcceptedWorkload {
            kind: kind.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
            step: self.step,
            anchor: anchor.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::testing::workload;

    fn wait(step: AcceptedStep, anchors: &[&str]) -> RotationWait {
        RotationWait { step, anchors: anchors.iter().map(|anchor| (*anchor).to_owned()).collect() }
    }

    fn accepted(workload: &MeshedWorkload, wait: &RotationWait) -> AcceptedWorkloads {
        AcceptedWorkloads(wait.entries(workload).collect())
    }

    #[test]
    fn an_acceptance_counts_for_its_workload_its_step_and_its_trust_anchor_only() {
        use AcceptedStep::{Issuer, Removal};
        let west = workload("Link", "west");
        let one = accepted(&west, &wait(Issuer, &["a"]));
        assert!(one.cover(&west, &wait(Issuer, &["a"])));
        for (workload, wait) in [
            (&west, wait(Removal, &["a"])),
            (&west, wait(Issuer, &["b"])),
            (&west, wait(Issuer, &["a", "b"])),
            (&west, wait(Issuer, &[])),
            (&workload("Link", "east"), wait(Issuer, &["a"])),
            (&workload("Service", "west"), wait(Issuer, &["a"])),
        ] {
            assert!(!one.cover(workload, &wait), "{workload:?} {wait:?}");
        }
    }

    #[test]
    fn a_command_keeps_what_is_about_the_same_step_and_is_refused_if_the_spec_has_changed() {
        use AcceptedStep::{Issuer, Removal};
        let cluster = MeshedWorkload { namespace: String::new(), kind: "Namespace".to_owned(), name: "mc".to_owned() };
        let west = workload("Link", "west");
        let mut before = accepted(&west, &wait(Removal, &["a"]));
        before.0.extend(wait(Issuer, &["a"]).entries(&west));
        before.0.extend(wait(Removal, &["old"]).entries(&west));
        let command = before.command(("mesh", 7), &[west.clone(), cluster.clone()], &wait(Removal, &["a"]));
        let entry = |rest: &str| format!("{{\"anchor\":\"a\",\"kind\":{rest},\"step\":\"Removal\"}}");
        let west = entry("\"Link\",\"name\":\"west\",\"namespace\":\"app\"");
        let cluster = entry("\"Namespace\",\"name\":\"mc\"");
        assert_eq!(
            command,
            format!(
                "kubectl patch linkerdtrust mesh --type=json -p '[{{\"op\":\"test\",\"path\":\"/metadata/generation\",\
                 \"value\":7}},{{\"op\":\"add\",\"path\":\"/spec/accept\",\"value\":[{west},{cluster}]}}]'"
            )
        );
        let many: Vec<_> = (0..200).map(|number| workload("Link", &number.to_string())).collect();
        let command = AcceptedWorkloads::default().command(("mesh", 1), &many, &wait(Issuer, &["a", "b"]));
        assert_eq!(command.matches("Issuer").count(), 100, "the API server takes no more");
    }
}
