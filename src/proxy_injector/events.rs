//! The Events about the Pods of a workload. Pure.
//!
//! In: the workload, and the result of a review. Out: Events of the workload with the reasons and texts of Linkerd's
//! injector, and further ones for the author of a Pod whom no answer reaches: the creator of the Pod is a controller.
//! Always holds: an Event is about the workload, and never about another Pod.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    decision::{InjectionDecision, NotInjected},
    inject::AdmissionOutcome,
    warnings::AuthorWarnings,
};
use crate::{
    events::{Notice, Reason},
    webhook::review::limited,
};

/// Returns the Events of a Pod that is admitted.
pub(super) fn of_admitted(workload: &ObjectReference, outcome: &AdmissionOutcome) -> Vec<Notice> {
    let AdmissionOutcome { decision, warnings, .. } = outcome;
    let (reason, note) = match (decision.injects(), warnings.is_rejected()) {
        (false, _) => {
            (Reason::InjectionSkipped, format!("Linkerd sidecar proxy injection skipped: {}", sentences(decision)))
        }
        (true, false) => (Reason::Injected, "Linkerd sidecar proxy injected".to_owned()),
        (true, true) => {
            let note = format!("the Pod is rejected with its Linkerd sidecar proxy: {}", joined(warnings));
            return vec![notice(Reason::InjectionFailed, workload, &note)];
        }
    };
    let mut notices = vec![notice(reason, workload, &note)];
    if !warnings.is_empty() {
        let done = if decision.injects() { "injected" } else { "injection skipped" };
        let note = format!("Linkerd sidecar proxy {done} with warnings: {}", joined(warnings));
        notices.push(notice(Reason::InjectionWarning, workload, &note));
    }
    notices
}

fn joined(warnings: &AuthorWarnings) -> String {
    limited(warnings.clone().into_texts()).join("; ")
}

/// Returns the Event of a Pod that is denied.
pub(super) fn of_denied(workload: &ObjectReference, reason: &str) -> Notice {
    notice(Reason::InjectionFailed, workload, &format!("Linkerd sidecar proxy injection failed: {reason}"))
}

fn sentences(decision: &InjectionDecision) -> String {
    decision.skipped.iter().copied().map(NotInjected::sentence).collect::<Vec<_>>().join(", ")
}

/// The author of a Pod controls a part of the note, which is one line for terminals.
fn notice(reason: Reason, workload: &ObjectReference, note: &str) -> Notice {
    let note = note.replace(char::is_control, " ");
    Notice { reason, regarding: workload.clone(), related: None, note }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(notices: Vec<Notice>) -> Vec<String> {
        notices.into_iter().map(|it| format!("{} {}: {}", it.reason.type_(), it.reason.as_str(), it.note)).collect()
    }

    fn two() -> AuthorWarnings {
        let mut warnings = AuthorWarnings::default();
        warnings.add(format_args!("one"));
        warnings.add(format_args!("two"));
        warnings
    }

    #[test]
    fn an_injected_pod_has_the_event_of_linkerd_and_another_one_with_its_warnings() {
        let workload = ObjectReference::default();
        let plain = texts(of_admitted(&workload, &AdmissionOutcome::default()));
        assert_eq!(plain, ["Normal Injected: Linkerd sidecar proxy injected"]);
        let warned =
            texts(of_admitted(&workload, &AdmissionOutcome { warnings: two(), ..AdmissionOutcome::default() }));
        let expected = "Warning InjectionWarning: Linkerd sidecar proxy injected with warnings: one; two";
        assert_eq!(warned, [plain[0].as_str(), expected]);
    }

    #[test]
    fn a_pod_that_the_api_server_rejects_has_no_event_that_it_was_injected() {
        let mut warnings = two();
        warnings.add_rejection(format_args!("three"));
        let outcome = AdmissionOutcome { warnings, ..AdmissionOutcome::default() };
        assert_eq!(
            texts(of_admitted(&ObjectReference::default(), &outcome)),
            ["Warning InjectionFailed: the Pod is rejected with its Linkerd sidecar proxy: three: the API server \
              rejects the Pod; one; two"]
        );
    }

    #[test]
    fn a_skipped_pod_has_one_event_with_all_reasons_and_another_one_with_its_warnings() {
        let skipped = vec![NotInjected::HostNetwork, NotInjected::SidecarExists];
        let decision = InjectionDecision { skipped, annotation_at: "workload" };
        let outcome = AdmissionOutcome { decision, ..AdmissionOutcome::default() };
        let reasons = "Normal InjectionSkipped: Linkerd sidecar proxy injection skipped: hostNetwork is enabled, pod has \
                       a sidecar injected already";
        assert_eq!(texts(of_admitted(&ObjectReference::default(), &outcome)), [reasons]);
        let warned = texts(of_admitted(&ObjectReference::default(), &AdmissionOutcome { warnings: two(), ..outcome }));
        let expected = "Warning InjectionWarning: Linkerd sidecar proxy injection skipped with warnings: one; two";
        assert_eq!(warned, [reasons, expected]);
    }

    #[test]
    fn a_denied_pod_has_a_warning_with_the_reason() {
        assert_eq!(
            texts(vec![of_denied(&ObjectReference::default(), "x is missing")]),
            ["Warning InjectionFailed: Linkerd sidecar proxy injection failed: x is missing"]
        );
    }

    #[test]
    fn a_note_is_one_line_with_short_texts_of_the_author() {
        let mut warnings = AuthorWarnings::default();
        warnings.add(format_args!("the annotation a\n\u{1b}[2J{}", "x".repeat(10_000)));
        warnings.add(format_args!("two"));
        let outcome = AdmissionOutcome { warnings, ..AdmissionOutcome::default() };
        let notes = texts(of_admitted(&ObjectReference::default(), &outcome));
        assert!(notes[1].len() < 400 && notes[1].ends_with("x; two"), "{}", notes[1]);
        assert!(!notes[1].contains(char::is_control), "{}", notes[1]);
    }
}
