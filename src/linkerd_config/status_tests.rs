//! README explains every reason that a condition of a LinkerdConfig has, and every one for which a workload is left alone.

const README: &str = include_str!("../../README.md");
/// Where reasons stand as literals.
const SOURCES: [(&str, &str); 10] = [
    ("status.rs", include_str!("status.rs")),
    ("mod.rs", include_str!("mod.rs")),
    ("injector/barrier.rs", include_str!("injector/barrier.rs")),
    ("rollout/assess.rs", include_str!("rollout/assess.rs")),
    ("rollout/board.rs", include_str!("rollout/board.rs")),
    ("rollout/engine.rs", include_str!("rollout/engine.rs")),
    ("rollout/goal.rs", include_str!("rollout/goal.rs")),
    ("rollout/selection.rs", include_str!("rollout/selection.rs")),
    ("rollout/status.rs", include_str!("rollout/status.rs")),
    ("rollout/verdict.rs", include_str!("rollout/verdict.rs")),
];
/// Words that are written like reasons: the values of conditions, and kinds.
const OTHERS: [&str; 6] = ["True", "False", "Unknown", "CronJob", "Node", "Pod"];

#[test]
fn readme_explains_every_reason() {
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
            assert!(README.contains(&format!("`{reason}`")), "README does not explain {reason} of {file}");
        }
    }
}
