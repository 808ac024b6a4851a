use std::collections::BTreeSet;

use super::*;

#[test]
fn a_reason_has_one_entry_in_each_place() {
    let conditions = CONDITIONS.iter().map(|it| (it.condition, it.reasons));
    let groups = WORKLOADS.iter().chain(EVENTS).map(|it| (it.title, it.reasons));
    for (place, reasons) in conditions.chain(groups) {
        let names: BTreeSet<&str> = reasons.iter().map(|entry| entry.reason).collect();
        assert_eq!(names.len(), reasons.len(), "{place}");
    }
}

#[test]
fn each_text_is_made_of_sentences_that_a_terminal_shows_as_they_are() {
    let entries = CONDITIONS.iter().map(|it| it.reasons).chain(WORKLOADS.iter().chain(EVENTS).map(|it| it.reasons));
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
