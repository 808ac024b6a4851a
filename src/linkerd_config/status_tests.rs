//! The catalogue explains every condition reason of a LinkerdConfig, and every reason to skip a workload.

use std::collections::BTreeSet;

use strum::{IntoEnumIterator, VariantNames};

use super::SyncReason;
use crate::{
    linkerd_config::rollout::{
        assess::{selection::NotSelected, workload_state::SkipReason},
        progress::RolloutPhase,
    },
    reasons::{CONDITIONS, WORKLOADS},
};

/// The files that contain reasons as literals.
const SOURCES: [(&str, &str); 12] = [
    ("control_plane/skew.rs", include_str!("control_plane/skew.rs")),
    ("conditions.rs", include_str!("conditions.rs")),
    ("status.rs", include_str!("status.rs")),
    ("reconcile.rs", include_str!("reconcile.rs")),
    ("rollout/assess/mod.rs", include_str!("rollout/assess/mod.rs")),
    ("rollout/assess/failure.rs", include_str!("rollout/assess/failure.rs")),
    ("rollout/schedule/scheduled_workload.rs", include_str!("rollout/schedule/scheduled_workload.rs")),
    ("rollout/engine.rs", include_str!("rollout/engine.rs")),
    ("rollout/gate.rs", include_str!("rollout/gate.rs")),
    ("rollout/status.rs", include_str!("rollout/status.rs")),
    ("rollout/no_progress.rs", include_str!("rollout/no_progress.rs")),
    ("rollout/progress.rs", include_str!("rollout/progress.rs")),
];
/// Words that look like reasons: condition values and kinds.
const OTHERS: [&str; 6] = ["True", "False", "Unknown", "CronJob", "Node", "Pod"];

/// Returns the reasons that the sources have as literals.
fn written() -> BTreeSet<&'static str> {
    let mut written = BTreeSet::new();
    for (file, text) in SOURCES {
        let text = text.split("#[cfg(test)]").next().unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let is_reason = |word: &&str| {
            let begins = word.starts_with(|c: char| c.is_ascii_uppercase());
            begins && !OTHERS.contains(word) && text.contains(&format!("\"{word}\""))
        };
        let reasons: Vec<_> = words.filter(is_reason).collect();
        assert!(!reasons.is_empty(), "{file} has no reasons");
        written.extend(reasons);
    }
    written.extend(SyncReason::VARIANTS);
    written
}

#[test]
fn the_catalogue_explains_every_reason_of_a_condition_and_no_other() {
    let conditions = CONDITIONS.iter().flat_map(|it| it.reasons.iter().map(|entry| entry.reason).chain([it.condition]));
    let of_workloads = WORKLOADS.iter().flat_map(|it| it.reasons).map(|entry| entry.reason);
    let explained: BTreeSet<&str> = conditions.clone().chain(of_workloads).collect();
    let written = written();
    let missing: Vec<_> = written.difference(&explained).collect();
    assert!(missing.is_empty(), "src/reasons does not explain {missing:?}");
    let conditions: BTreeSet<&str> = conditions.collect();
    let invented: Vec<_> = conditions.difference(&written).collect();
    assert!(invented.is_empty(), "no source writes {invented:?}");
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
