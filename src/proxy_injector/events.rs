//! The Events about the Pods of a workload. Pure.
//!
//! In: the workload, and the result of a review. Out: Events of the workload with the reasons and texts of Linkerd's
//! injector, and further ones for the author of a Pod whom no answer reaches: the creator of the Pod is a controller.
//! Always holds: an Event is about the workload, and never about another Pod.

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    decision::{InjectionDecision, NotInjected},
    inject::AdmissionOutcome,
};
use crate::{
    events::{Notice, Reason},
    webhook::review::MAX_WARNINGS,
};

/// Returns the Events of a Pod that is admitted.
pub(super) fn of_admitted(workload: &ObjectReference, outcome: &AdmissionOutcome) -> Vec<Notice> {
    let AdmissionOutcome { decision, warnings, .. } = outcome;
    if !decision.injects() {
        let note = format!("Linkerd sidecar proxy injection skipped: {}", sentences(decision));
        return vec![notice(Reason::InjectionSkipped, workload, note)];
    }
    let mut notices = vec![notice(Reason::Injected, workload, "Linkerd sidecar proxy injected".to_owned())];
    if !warnings.is_empty() {
        let warnings: Vec<_> = warnings.iter().take(MAX_WARNINGS).map(String::as_str).collect();
        let note = format!("Linkerd sidecar proxy injected with warnings: {}", warnings.join("; "));
        notices.push(notice(Reason::InjectionWarning, workload, note));
    }
    notices
}

/// Returns the Event of a Pod that is denied.
pub(super) fn of_denied(workload: &ObjectReference, reason: &str) -> Notice {
    notice(Reason::InjectionFailed, workload, format!("Linkerd sidecar proxy injection failed: {reason}"))
}

fn sentences(decision: &InjectionDecision) -> String {
    decision.skipped.iter().copied().map(NotInjected::sentence).collect::<Vec<_>>().join(", ")
}

fn notice(reason: Reason, workload: &ObjectReference, note: String) -> Notice {
    Notice { reason, regarding: workload.clone(), related: None, note }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(notices: Vec<Notice>) -> Vec<String> {
        notices.into_iter().map(|it| format!("{} {}: {}", it.reason.type_(), it.reason.as_str(), it.note)).collect()
    }

    #[test]
    fn an_injected_pod_has_the_event_of_linkerd_and_another_one_with_its_warnings() {
        let workload = ObjectReference::default();
        let plain = texts(of_admitted(&workload, &AdmissionOutcome::default()));
        assert_eq!(plain, ["Normal Injected: Linkerd sidecar proxy injected"]);
        let warnings = vec!["one".to_owned(), "two".to_owned()];
        let warned = texts(of_admitted(&workload, &AdmissionOutcome { warnings, ..AdmissionOutcome::default() }));
        let expected = "Warning InjectionWarning: Linkerd sidecar proxy injected with warnings: one; two";
        assert_eq!(warned, [plain[0].as_str(), expected]);
    }

    #[test]
    fn a_skipped_pod_has_one_event_with_all_reasons() {
        let skipped = vec![NotInjected::HostNetwork, NotInjected::SidecarExists];
        let decision = InjectionDecision { skipped, annotation_at: "workload" };
        let warnings = vec!["the same as a warning".to_owned()];
        let outcome = AdmissionOutcome { decision, warnings, ..AdmissionOutcome::default() };
        assert_eq!(
            texts(of_admitted(&ObjectReference::default(), &outcome)),
            ["Normal InjectionSkipped: Linkerd sidecar proxy injection skipped: hostNetwork is enabled, pod has a \
              sidecar injected already"]
        );
    }

    #[test]
    fn a_denied_pod_has_a_warning_with_the_reason() {
        assert_eq!(
            texts(vec![of_denied(&ObjectReference::default(), "x is missing")]),
            ["Warning InjectionFailed: Linkerd sidecar proxy injection failed: x is missing"]
        );
    }
}
