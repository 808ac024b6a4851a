//! The workloads for which a rotation does not wait. Pure.
//!
//! In: what a LinkerdTrust accepts. Out: whether a workload is accepted, and the command that accepts it. Always holds: an
//! acceptance is about one trust anchor, so that none counts in the next rotation.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::seen::MeshedWorkload;
use crate::api::linkerd_trust::AcceptedWorkload;

/// What is accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedWorkloads(BTreeSet<AcceptedWorkload>);

// === impl AcceptedWorkloads ===

impl AcceptedWorkloads {
    pub(crate) fn of(accepted: &[AcceptedWorkload]) -> Self {
        Self(accepted.iter().cloned().collect())
    }

    /// Whether nothing waits for this workload because of these trust anchors, each by its SHA-256.
    pub(crate) fn cover(&self, workload: &MeshedWorkload, anchors: &[String]) -> bool {
        !anchors.is_empty() && anchors.iter().all(|anchor| self.0.contains(&entry(workload, anchor)))
    }

    /// Returns the command that adds these workloads. The API server has validated their names.
    pub(crate) fn command(&self, resource: &str, workloads: &[MeshedWorkload], anchors: &[String]) -> String {
        let all = workloads.iter().flat_map(|workload| anchors.iter().map(|anchor| entry(workload, anchor)));
        let new: Vec<_> = all.filter(|entry| !self.0.contains(entry)).collect();
        let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
        let patch: Vec<_> = match self.0.is_empty() {
            true => vec![add("/spec/accept", json!(new))],
            false => new.iter().map(|entry| add("/spec/accept/-", json!(entry))).collect(),
        };
        format!("kubectl patch linkerdtrust {resource} --type=json -p '{}'", Value::Array(patch))
    }
}

fn entry(workload: &MeshedWorkload, anchor: &str) -> AcceptedWorkload {
    let MeshedWorkload { namespace, kind, name } = workload.clone();
    AcceptedWorkload { kind, namespace, name, anchor: anchor.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::testing::workload;

    #[test]
    fn a_command_adds_what_is_not_accepted_yet_to_the_list_or_makes_the_list() {
        let cluster = MeshedWorkload { namespace: String::new(), kind: "Namespace".to_owned(), name: "mc".to_owned() };
        let both = [workload("Link", "west"), cluster];
        let none = AcceptedWorkloads::default();
        assert!(!none.cover(&both[0], &["a".to_owned()]));
        assert_eq!(
            none.command("mesh", &both, &["a".to_owned()]),
            "kubectl patch linkerdtrust mesh --type=json -p '[{\"op\":\"add\",\"path\":\"/spec/accept\",\"value\":[\
             {\"anchor\":\"a\",\"kind\":\"Link\",\"name\":\"west\",\"namespace\":\"app\"},\
             {\"anchor\":\"a\",\"kind\":\"Namespace\",\"name\":\"mc\"}]}]'"
        );
        assert!(!none.cover(&both[0], &[]), "about no trust anchor");
        let one = AcceptedWorkloads::of(&[entry(&both[0], "a")]);
        assert!(one.cover(&both[0], &["a".to_owned()]) && !one.cover(&both[0], &["a".to_owned(), "b".to_owned()]));
        assert_eq!(
            one.command("mesh", &both[..1], &["a".to_owned(), "b".to_owned()]),
            "kubectl patch linkerdtrust mesh --type=json -p '[{\"op\":\"add\",\"path\":\"/spec/accept/-\",\"value\":\
             {\"anchor\":\"b\",\"kind\":\"Link\",\"name\":\"west\",\"namespace\":\"app\"}}]'"
        );
    }
}
