//! The rules by which conditions of one status require or exclude each other. Pure.
//!
//! In: a status. Out: the first rule that it breaks. Always holds: a debug build, which all tests run, writes no status
//! that breaks a rule. docs/internals/src/conditions.md lists the rules.

use crate::api::{
    LinkerdConfigStatus,
    linkerd_config::{
        ConditionReason::{
            self, Canary, Observing, Reconciled, Restored, RolledBack, RolloutHalted, Suspended, Timeout,
        },
        ConditionType::{ConfigMapSynced, InjectorSynced, Ready, RolloutComplete, Stalled},
    },
};

/// Returns the first rule that the conditions of a status break.
pub(in crate::linkerd_config) fn contradiction(status: &LinkerdConfigStatus) -> Option<&'static str> {
    let (is_ready, is_synced) = (status.holds(Ready), status.holds(ConfigMapSynced));
    let (is_complete, is_stalled) = (status.holds(RolloutComplete), status.holds(Stalled));
    let ready = status.reason(Ready).filter(|_| is_ready);
    let is_reconciled = ready == Some(Reconciled);
    // The operator does what the resource requests, although the declared configuration is not in effect.
    let is_requested = matches!(ready, Some(Observing | Suspended | Canary));
    let injectors_lag = status.fails(InjectorSynced) && status.reason(InjectorSynced) != Some(Timeout);
    let is_restored = status.reason(ConfigMapSynced) == Some(Restored);
    let is_rolled_back = status.reason(RolloutComplete) == Some(RolledBack);
    let is_halted = status.reason(Stalled) == Some(RolloutHalted);
    // With these reasons, the declared configuration is in effect now, and something else is wrong.
    let in_effect_while_stalled = is_halted || status.reason(Stalled).is_some_and(ConditionReason::is_contested);
    let rules = [
        (is_reconciled && !is_synced, "Ready/Reconciled requires ConfigMapSynced"),
        (is_reconciled && injectors_lag, "Ready/Reconciled requires InjectorSynced"),
        (is_ready && !is_reconciled && !is_requested, "Ready has another reason"),
        (is_complete && !is_synced, "RolloutComplete requires ConfigMapSynced"),
        (is_complete && is_halted, "a halted rollout is not complete"),
        (is_rolled_back && is_synced, "what was rolled back is not in the ConfigMap"),
        (is_restored && is_ready, "a restored document is not the declared one"),
        (is_restored && !is_stalled, "a rollback needs other declared values"),
        (is_ready && is_stalled && !in_effect_while_stalled, "Ready excludes Stalled"),
    ];
    rules.into_iter().find_map(|(is_broken, rule)| is_broken.then_some(rule))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Conditions as `Type Status Reason`.
    fn of(conditions: &[&str]) -> Option<&'static str> {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|text| {
                let fields: Vec<_> = text.split(' ').collect();
                json!({"type": fields[0], "status": fields[1], "reason": fields[2], "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        contradiction(&serde_json::from_value(json!({ "conditions": conditions })).unwrap())
    }

    #[test]
    fn each_pair_that_contradicts_itself_is_found() {
        for pair in [
            ["Ready True Reconciled", "ConfigMapSynced False Restored"],
            ["RolloutComplete True UpToDate", "ConfigMapSynced False Canary"],
            ["RolloutComplete True NothingSelected", "Accepted False Invalid"],
            ["RolloutComplete False RolledBack", "ConfigMapSynced True Synced"],
            ["ConfigMapSynced False Restored", "Ready False RolledBack"],
            ["Ready True Canary", "Stalled True CanaryFailed"],
            ["Ready True Restored", "ConfigMapSynced True Synced"],
        ] {
            assert!(of(&pair).is_some(), "{pair:?}");
        }
        assert!(of(&["Ready True Reconciled", "ConfigMapSynced True Synced", "InjectorSynced False Denied"]).is_some());
    }

    #[test]
    fn the_statuses_of_the_documentation_are_consistent() {
        for status in [
            &["Ready True Reconciled", "ConfigMapSynced True Synced", "InjectorSynced True AllReplicasCurrent"][..],
            &[
                "Ready True Reconciled",
                "ConfigMapSynced True Synced",
                "RolloutComplete False Halted",
                "Stalled True RolloutHalted",
            ],
            &[
                "Ready False RolledBack",
                "ConfigMapSynced False Restored",
                "InjectorSynced True AllReplicasCurrent",
                "RolloutComplete False RolledBack",
                "Stalled True RolledBack",
            ],
            &["Ready True Canary", "ConfigMapSynced False Canary", "RolloutComplete False Canary"],
            &[
                "Ready False Canary",
                "ConfigMapSynced False Canary",
                "RolloutComplete False RolledBack",
                "Stalled True CanaryFailed",
            ],
            &["Ready True Observing", "ConfigMapSynced False Observing", "RolloutComplete False RolloutDisabled"],
            &["Accepted False Conflicted"],
        ] {
            assert_eq!(of(status), None, "{status:?}");
        }
    }
}
