use std::collections::BTreeSet;

use super::*;

#[test]
fn a_reason_has_one_entry_in_each_place() {
    let conditions = CONDITIONS.iter().chain(TRUST_CONDITIONS).map(|it| (it.condition, it.reasons));
    let groups = WORKLOADS.iter().chain(EVENTS).map(|it| (it.title, it.reasons));
    for (place, reasons) in conditions.chain(groups) {
        let names: BTreeSet<&str> = reasons.iter().map(|entry| entry.reason).collect();
        assert_eq!(names.len(), reasons.len(), "{place}");
    }
}

#[test]
fn each_text_is_made_of_sentences_that_a_terminal_shows_as_they_are() {
    let conditions = CONDITIONS.iter().chain(TRUST_CONDITIONS).map(|it| it.reasons);
    let entries = conditions.chain(WORKLOADS.iter().chain(EVENTS).map(|it| it.reasons));
    for entry in entries.flatten() {
        assert!(entry.meaning.ends_with('.') || entry.meaning.ends_with("message."), "{}", entry.reason);
        assert!(entry.remedy.is_empty() || entry.remedy.ends_with('.'), "{}", entry.reason);
        assert!(!(entry.meaning.to_owned() + entry.remedy).contains(['`', '[', '<']), "{}", entry.reason);
    }
}

#[test]
fn what_to_do_about_a_halted_rollout_is_to_fix_the_cause_and_to_retry() {
    assert!(remedy("Stalled", "RolloutHalted").unwrap().contains("linkerd-operator rollout retry"));
    assert_eq!(remedy("Ready", "Reconciled"), None);
    assert_eq!(remedy("Stalled", "Unknown"), None);
}

#[test]
fn the_title_of_a_reason_is_the_first_sentence_of_its_meaning() {
    assert_eq!(title("Stalled", "RolloutHalted"), Some("Workloads failed, and no further restart begins"));
    let version = "Linkerd is older than edge-24.2.3 (2.15)";
    assert_eq!(title("Accepted", "UnsupportedVersion"), Some(version));
    assert_eq!(title("RolloutComplete", "UpToDate").map(|it| it.ends_with("configuration")), Some(true));
    assert_eq!(title("Ready", "Canary"), None, "it depends on the status");
    assert_eq!(title("Stalled", "Unknown"), None);
}
