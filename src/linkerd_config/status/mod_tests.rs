//! The catalogue explains every condition reason of a LinkerdConfig, and every reason to skip a workload.

use std::collections::BTreeSet;

use strum::IntoEnumIterator;

use crate::{
    api::linkerd_config::{ConditionReason, ConditionType},
    reasons::{CONDITIONS, WORKLOADS},
    rollout::{
        assess::{selection::NotSelected, workload_state::SkipReason},
        progress::RolloutPhase,
    },
};

/// The files that contain reasons of failures as literals.
const SOURCES: [(&str, &str); 2] = [
    ("rollout/assess/failure.rs", include_str!("../../rollout/assess/failure.rs")),
    ("rollout/schedule/scheduled_workload.rs", include_str!("../../rollout/schedule/scheduled_workload.rs")),
];

/// Returns the words that the sources have as literals.
fn failures() -> BTreeSet<&'static str> {
    let mut written = BTreeSet::new();
    for (file, text) in SOURCES {
        let text = text.split("#[cfg(test)]").next().unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let is_reason =
            |word: &&str| word.starts_with(|c: char| c.is_ascii_uppercase()) && text.contains(&format!("\"{word}\""));
        let reasons: Vec<_> = words.filter(is_reason).collect();
        assert!(!reasons.is_empty(), "{file} has no reasons");
        written.extend(reasons);
    }
    written
}

#[test]
fn the_catalogue_explains_every_condition_and_each_of_its_reasons_and_no_other() {
    let conditions: BTreeSet<&str> = CONDITIONS.iter().map(|it| it.condition).collect();
    assert_eq!(conditions, ConditionType::iter().map(ConditionType::as_str).collect());
    let reasons: BTreeSet<&str> = CONDITIONS.iter().flat_map(|it| it.reasons).map(|entry| entry.reason).collect();
    assert_eq!(reasons, ConditionReason::iter().map(ConditionReason::as_str).collect());
}

#[test]
fn the_catalogue_explains_every_reason_of_a_failed_workload() {
    let explained: BTreeSet<&str> = WORKLOADS.iter().flat_map(|it| it.reasons).map(|entry| entry.reason).collect();
    let missing: Vec<_> = failures().into_iter().filter(|reason| !explained.contains(reason)).collect();
    assert!(missing.is_empty(), "src/reasons does not explain {missing:?}");
}

#[test]
fn the_catalogue_explains_every_rollout_phase_and_every_skip_reason_and_no_other() {
    let of = |title: &str| -> BTreeSet<&str> {
        let group = WORKLOADS.iter().find(|group| group.title == title).unwrap();
        group.reasons.iter().map(|entry| entry.reason).collect()
    };
    assert_eq!(of("Phases of a rollout"), RolloutPhase::iter().map(RolloutPhase::as_str).collect());
    assert_eq!(of("Why a workload is skipped"), SkipReason::iter().map(SkipReason::as_str).collect());
    assert_eq!(of("Why a workload is not selected"), NotSelected::iter().map(|it| it.as_str()).collect());
}
