//! Decides which workloads opted in. Pure.
//!
//! In: the labels of a workload, of its Pod template and of its namespace, the [`SelectionPolicy`]. Out: whether the
//! workload may be restarted, or why not. Always holds: no policy selects a namespace that the mesh or this operator
//! depends on.

use std::{borrow::Cow, sync::Arc};

use strum::{EnumIter, IntoStaticStr};

use crate::{
    api::{CERT_MANAGER, KUBE_SYSTEM, RECONCILE, linkerd_config::OptIn},
    cluster::{
        index::{label_selector::LabelSelector, selector::Labels},
        kinds::namespace::Namespace,
    },
    text::truncate,
};

/// The value that opts out on purpose.
const DISABLED: &str = "disabled";
/// The maximum length of a value, in bytes: that of a label. The annotation of a template may be longer.
const LONGEST_VALUE: usize = 63;

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

/// Whether a workload may be restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    Selected,
    /// The Pods of the workload are counted, but it is not restarted.
    Observed,
    Not(NotSelected),
}

/// Why a workload may not be restarted.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
pub enum NotSelected {
    ExcludedNamespace,
    NamespaceNotSelected,
    WorkloadNotSelected,
    KindNotSelected,
    OptedOut(OptOut),
    NotOptedIn,
}

/// A value of the label that does not opt in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptOut {
    value: Box<str>,
    holder: OptOutHolder,
}

/// The object whose value decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoStaticStr)]
enum OptOutHolder {
    #[default]
    #[strum(serialize = "the workload")]
    Workload,
    #[strum(serialize = "its Pod template")]
    Template,
    #[strum(serialize = "its namespace")]
    Namespace,
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

/// Returns whether the policy selects a workload.
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
    let own = labels.get(RECONCILE).map(|value| (&**value, OptOutHolder::Workload));
    let of_template = template.map(|value| (value, OptOutHolder::Template));
    let of_namespace = namespace.labels.get(RECONCILE).map(|value| (&**value, OptOutHolder::Namespace));
    match own.or(of_template).or(of_namespace) {
        Some(("auto", _)) => Selection::Selected,
        Some(("observe", _)) => Selection::Observed,
        // Any other value may be a misspelling, so it opts out.
        Some((value, holder)) => {
            Selection::Not(NotSelected::OptedOut(OptOut { value: truncate(value, LONGEST_VALUE).into(), holder }))
        }
        // Extensions of Linkerd have to opt in explicitly.
        None if policy.opt_in == OptIn::All && !namespace.extension => Selection::Selected,
        None => Selection::Not(NotSelected::NotOptedIn),
    }
}

// === impl NotSelected ===

impl NotSelected {
    pub fn as_str(&self) -> &'static str {
        self.into()
    }

    /// Returns an explanation for people.
    pub fn why(&self) -> Cow<'static, str> {
        let why = match self {
            Self::ExcludedNamespace => "its namespace is always excluded",
            Self::NamespaceNotSelected => "spec.rollout.namespaceSelector does not match its namespace",
            Self::WorkloadNotSelected => "spec.rollout.workloadSelector does not match it",
            Self::KindNotSelected => "spec.rollout.kinds does not include its kind",
            Self::OptedOut(opt_out) => return opt_out.why().into(),
            Self::NotOptedIn => "no label config.linkerd.io/reconcile: auto on it, its template or its namespace",
        };
        why.into()
    }
}

// === impl OptOut ===

impl OptOut {
    /// Whether the author may have meant to opt in.
    pub fn is_misspelled(&self) -> bool {
        *self.value != *DISABLED
    }

    /// Returns an explanation for people, with the value and with the one that opts in.
    pub fn why(&self) -> String {
        let Self { value, holder } = self;
        let holder: &str = holder.into();
        let remedy = match self.is_misspelled() {
            true => "it must be auto for a restart, or else observe or disabled",
            false => "auto would opt it in",
        };
        format!("{RECONCILE} of {holder} is {value:?}: {remedy}")
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
