//! Which workloads opted in. Pure.
//!
//! In: the labels of a workload, of its template and of its namespace, the [`Scope`]. Out: whether it may be restarted, and if not
//! why. Always holds: what the mesh or this operator stands on is never selected, whatever is declared.

use super::goal::Scope;
use crate::{
    api::{KUBE_SYSTEM, RECONCILE, linkerd_config::OptIn},
    cluster::{index::selector::Labels, kinds::namespace::Namespace},
};

const CERT_MANAGER: &str = "cert-manager";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    Selected,
    /// Its Pods are told of, and nothing is done.
    Observed,
    Not(NotSelected),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSelected {
    ExcludedNamespace,
    NamespaceNotSelected,
    WorkloadNotSelected,
    KindNotSelected,
    OptedOut,
    NotOptedIn,
}

/// What a workload says of itself.
pub struct Candidate<'a> {
    pub labels: &'a Labels,
    /// The label or annotation of its template.
    pub template: Option<&'a str>,
    pub is_of_kind: bool,
    pub namespace: &'a Namespace,
    pub control_plane: &'a str,
}

pub fn selection(candidate: &Candidate<'_>, scope: &Scope) -> Selection {
    let Candidate { labels, template, is_of_kind, namespace, control_plane } = *candidate;
    let excluded = [KUBE_SYSTEM, CERT_MANAGER, control_plane, &scope.operator_namespace];
    if excluded.contains(&&*namespace.name) || namespace.admission_webhooks_disabled {
        return Selection::Not(NotSelected::ExcludedNamespace);
    }
    if !scope.namespaces.selects(&namespace.labels) {
        return Selection::Not(NotSelected::NamespaceNotSelected);
    }
    if !is_of_kind {
        return Selection::Not(NotSelected::KindNotSelected);
    }
    if !scope.workloads.selects(labels) {
        return Selection::Not(NotSelected::WorkloadNotSelected);
    }
    // The most specific place that says anything decides.
    let own = labels.get(RECONCILE).map(|value| &**value);
    let of_namespace = namespace.labels.get(RECONCILE).map(|value| &**value);
    match own.or(template).or(of_namespace) {
        Some("auto") => Selection::Selected,
        Some("observe") => Selection::Observed,
        // What is misspelled was not meant to be restarted.
        Some(_) => Selection::Not(NotSelected::OptedOut),
        // Extensions of Linkerd only if they say so.
        None if scope.opt_in == OptIn::All && !namespace.extension => Selection::Selected,
        None => Selection::Not(NotSelected::NotOptedIn),
    }
}

// === impl NotSelected ===

impl NotSelected {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ExcludedNamespace => "ExcludedNamespace",
            Self::NamespaceNotSelected => "NamespaceNotSelected",
            Self::WorkloadNotSelected => "WorkloadNotSelected",
            Self::KindNotSelected => "KindNotSelected",
            Self::OptedOut => "OptedOut",
            Self::NotOptedIn => "NotOptedIn",
        }
    }

    /// For a person.
    pub const fn why(self) -> &'static str {
        match self {
            Self::ExcludedNamespace => "its namespace is never touched",
            Self::NamespaceNotSelected => "spec.rollout.namespaceSelector leaves its namespace out",
            Self::WorkloadNotSelected => "spec.rollout.workloadSelector leaves it out",
            Self::KindNotSelected => "spec.rollout.kinds leaves it out",
            Self::OptedOut => "the label config.linkerd.io/reconcile keeps it out",
            Self::NotOptedIn => "no label config.linkerd.io/reconcile: auto on it, its template or its namespace",
        }
    }
}
