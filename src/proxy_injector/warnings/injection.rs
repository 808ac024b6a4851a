//! Warnings about a Pod whose author may expect a proxy, none, or another one: a misspelled annotation, or one in the wrong
//! place.

use super::{AuthorWarnings, shown};
use crate::{
    api::INJECT_ANNOTATION,
    cluster::kinds::inject::{Inject, OwnAnnotations},
    proxy_injector::{
        annotations::{AnnotationKind, LINKERD},
        decision::{InjectionDecision, is_valid},
        inject::ReviewTarget,
        owner::Workload,
        reviewed::ReviewedMetadata,
    },
};

/// Adds the warnings about the decision to inject.
pub(in crate::proxy_injector) fn of_injection(
    decision: &InjectionDecision,
    target: ReviewTarget<'_>,
    pod: &ReviewedMetadata,
    warnings: &mut AuthorWarnings,
) {
    let label = pod.labels.get(INJECT_ANNOTATION).map(String::as_str);
    for (annotations, label, of) in
        [(target.namespace, target.inject_label, " of the namespace"), (&pod.annotations, label, "")]
    {
        let annotation = annotations.get(INJECT_ANNOTATION);
        if let Some(text) = annotation.filter(|text| !is_valid(text)) {
            warnings.add(format_args!(
                "{INJECT_ANNOTATION}{of} is {:?}: it must be enabled, ingress or disabled; no proxy is injected",
                shown(text)
            ));
        }
        // A label that agrees with the decision is harmless.
        if annotation.is_none() && label.is_some_and(|value| (value != "disabled") != decision.injects()) {
            warnings.add(format_args!("{INJECT_ANNOTATION} is a label{of}; Linkerd reads the annotation"));
        }
    }
    let injects = decision.injects();
    if let Some(workload) = target.workload {
        of_workload(workload, injects, pod, warnings);
    }
    // A misspelled `linkerd.io/inject` may be the reason why there is no proxy.
    let has_meaning = |key: &str| injects || key.starts_with(LINKERD);
    for key in pod.annotations.keys().filter(|key| has_meaning(key)) {
        if AnnotationKind::of(key) == AnnotationKind::Unknown {
            warnings.add(format_args!("the annotation {} is unknown and has no effect", shown(key)));
        }
    }
    for key in target.namespace.keys().filter(|key| has_meaning(key)) {
        match AnnotationKind::of(key) {
            AnnotationKind::Unknown => warnings
                .add(format_args!("the annotation {} of the namespace is unknown and has no effect", shown(key))),
            AnnotationKind::OfPod if !pod.annotations.contains_key(key) => warnings
                .add(format_args!("the annotation {key} of the namespace has no effect: set it in the Pod template")),
            _ => {}
        }
    }
}

/// Adds the warnings about annotations of the workload itself that its Pod template lacks.
fn of_workload(workload: &Workload, injects: bool, pod: &ReviewedMetadata, warnings: &mut AuthorWarnings) {
    let (OwnAnnotations { inject, keys }, kind) = (&workload.own_annotations, shown(&workload.annotated_kind));
    let is_lost = |key: &str| !pod.annotations.contains_key(key);
    // An annotation that agrees with the decision is harmless.
    let is_harmless = *inject == Inject::Absent || (*inject != Inject::Disabled) == injects;
    if is_lost(INJECT_ANNOTATION) && !is_harmless {
        warnings.add(format_args!(
            "{INJECT_ANNOTATION} is an annotation of the {kind} itself; Linkerd reads the one of its Pod template"
        ));
    }
    for key in keys.iter().filter(|key| injects && is_lost(key)) {
        if matches!(AnnotationKind::of(key), AnnotationKind::Inherited | AnnotationKind::OfPod) {
            warnings.add(format_args!(
                "the annotation {key} of the {kind} itself has no effect: set it in the Pod template"
            ));
        }
    }
}
