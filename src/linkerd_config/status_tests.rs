//! The documentation explains every condition reason of a LinkerdConfig, and every reason to skip a workload.

use strum::{IntoEnumIterator, VariantNames};

use super::SyncReason;
use crate::linkerd_config::rollout::{
    assess::{selection::NotSelected, workload_state::SkipReason},
    progress::RolloutPhase,
};

const CONDITIONS: &str = include_str!("../../docs/src/reference/conditions.md");
const ROLLOUTS: &str = include_str!("../../docs/src/guides/rollouts.md");
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

#[test]
fn the_page_of_conditions_explains_every_reason() {
    for (file, text) in SOURCES {
        let text = text.split("#[cfg(test)]").next().unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let is_reason = |word: &&str| {
            let begins = word.starts_with(|c: char| c.is_ascii_uppercase());
            begins && !OTHERS.contains(word) && text.contains(&format!("\"{word}\""))
        };
        let reasons: Vec<_> = words.filter(is_reason).collect();
        assert!(!reasons.is_empty(), "{file} has no reasons");
        for reason in reasons {
            assert!(
                CONDITIONS.contains(&format!("`{reason}`")),
                "reference/conditions.md does not explain {reason} of {file}"
            );
        }
    }
    for reason in SyncReason::VARIANTS {
        assert!(
            CONDITIONS.contains(&format!("`{reason}`")),
            "reference/conditions.md does not explain {reason} of InjectorSynced"
        );
    }
}

#[test]
fn the_guide_explains_every_rollout_phase_and_every_skip_reason() {
    let phases = RolloutPhase::iter().map(RolloutPhase::as_str);
    let skipped = SkipReason::iter().map(SkipReason::as_str);
    for word in phases.chain(skipped).chain(NotSelected::iter().map(NotSelected::as_str)) {
        assert!(ROLLOUTS.contains(&format!("`{word}`")), "guides/rollouts.md does not explain {word}");
    }
}
