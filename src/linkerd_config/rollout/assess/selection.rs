//! Which workloads opted in. Pure.
//!
//! In: the labels of a workload, of its Pod template and of its namespace, the [`SelectionPolicy`]. Out: whether the
//! workload may be restarted, or why not. Always holds: no policy selects a namespace that the mesh or this operator
//! depends on.

use std::sync::Arc;

use strum::{EnumIter, IntoStaticStr};

use crate::{
    api::{CERT_MANAGER, KUBE_SYSTEM, RECONCILE, linkerd_config::OptIn},
    cluster::{
        index::{label_selector::LabelSelector, selector::Labels},
        kinds::namespace::Namespace,
    },
};

/// Which workloads a LinkerdConfig selects.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectionPolicy {
    pub namespaces: LabelFilter,
    pub workloads: LabelFilter,
    pub opt_in: OptIn,
    pub operator_namespace: Arc<str>,
}

/// A parsed selector of the resource.
#[derive(Clone, Debug, PartialEq)]
pub enum LabelFilter {
    All,
    Matching(LabelSelector),
    /// The selector is invalid, and matches no object.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    Selected,
    /// The Pods of the workload are counted, but it is not restarted.
    Observed,
    Not(NotSelected),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
pub enum NotSelected {
    ExcludedNamespace,
    NamespaceNotSelected,
    WorkloadNotSelected,
    KindNotSelected,
    OptedOut,
    NotOptedIn,
}

/// A workload that may be selected, and its namespace.
pub struct SelectionCandidate<'a> {
    pub labels: &'a Labels,
    /// The value of the label or annotation of its Pod template.
    pub template: Option<&'a str>,
    pub is_of_kind: bool,
    pub namespace: &'a Namespace,
    pub control_plane: &'a str,
}

pub fn selection(candidate: &SelectionCandidate<'_>, policy: &SelectionPolicy) -> Selection {
    let SelectionCandidate { labels, template, is_of_kind, namespace, control_plane } = *candidate;
    let excluded = [KUBE_SYSTEM, CERT_MANAGER, control_plane, &policy.operator_namespace];
    if excluded.contains(&&*namespace.name) || namespace.admission_webhooks_disabled {
        return Selection::Not(NotSelected::ExcludedNamespace);
    }
    if !policy.namespaces.selects(&namespace.labels) {
        return Selection::Not(NotSelected::NamespaceNotSelected);
    }
    if !is_of_kind {
        return Selection::Not(NotSelected::KindNotSelected);
    }
    if !policy.workloads.selects(labels) {
        return Selection::Not(NotSelected::WorkloadNotSelected);
    }
    // The most specific object that has a value decides.
    let own = labels.get(RECONCILE).map(|value| &**value);
    let of_namespace = namespace.labels.get(RECONCILE).map(|value| &**value);
    match own.or(template).or(of_namespace) {
        Some("auto") => Selection::Selected,
        Some("observe") => Selection::Observed,
        // Any other value may be a misspelling, so it opts out.
        Some(_) => Selection::Not(NotSelected::OptedOut),
        // Extensions of Linkerd have to opt in explicitly.
        None if policy.opt_in == OptIn::All && !namespace.extension => Selection::Selected,
        None => Selection::Not(NotSelected::NotOptedIn),
    }
}

// === impl NotSelected ===

impl NotSelected {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns an explanation for people.
    pub const fn why(self) -> &'static str {
        match self {
            Self::ExcludedNamespace => "its namespace is always excluded",
            Self::NamespaceNotSelected => "spec.rollout.namespaceSelector does not match its namespace",
            Self::WorkloadNotSelected => "spec.rollout.workloadSelector does not match it",
            Self::KindNotSelected => "spec.rollout.kinds does not include its kind",
            Self::OptedOut => "the label config.linkerd.io/reconcile opts it out",
            Self::NotOptedIn => "no label config.linkerd.io/reconcile: auto on it, its template or its namespace",
        }
    }
}

// === impl LabelFilter ===

impl LabelFilter {
    pub fn of<S: serde::Serialize>(selector: Option<&S>) -> Self {
        let Some(selector) = selector else { return Self::All };
        let object = serde_json::to_value(selector).and_then(serde_json::from_value);
        match object.map(LabelSelector::parse) {
            Ok(Ok(selector)) => Self::Matching(selector),
            _ => Self::Nothing,
        }
    }

    pub fn selects(&self, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Matching(selector) => selector.matches(labels),
            Self::Nothing => false,
        }
    }
}
