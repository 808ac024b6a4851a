//! Resolves the base: the installer's last document, without the changes of other writers. Pure.
//!
//! In: the ConfigMap, the saved base, the drift policy. Out: the base to save, and the drift. Always holds: a document
//! with a private key, or one that cannot be parsed, never becomes the base.

use std::sync::Arc;

use super::{
    base::Base,
    drift::{Drift, Origin, last_writer, origin},
    overlay::{Overlay, ValueSource},
};
use crate::{
    api::{
        CREATED_BY_ANNOTATION,
        linkerd_config::{DriftAction, DriftScope, DriftSpec, annotations::CONFIG_HASH_ANNOTATION},
    },
    cluster::kinds::config_map::ConfigMap,
    linkerd_config::{
        installers::{has_remedy, is_copy, is_installation},
        revert::predecessor::Predecessor,
    },
    values::{Document, InjectionHashes, InvalidDocument, Path, Problem},
};

/// The inputs of the resolution.
#[derive(Clone, Copy)]
pub(in crate::linkerd_config) struct BaseInput<'a> {
    pub(in crate::linkerd_config) live: &'a ConfigMap,
    /// The saved base; `None` if no base was saved yet.
    pub(in crate::linkerd_config) base: Option<&'a Base>,
    pub(in crate::linkerd_config) drift: &'a DriftSpec,
    pub(in crate::linkerd_config) first_time: bool,
    pub(in crate::linkerd_config) predecessor: Option<&'a Predecessor>,
}

/// Why the base changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaseChange {
    /// The first base was saved.
    Adopted,
    /// The installer wrote another document.
    Installed { manager: String },
    /// Another writer made changes that the drift policy allows.
    Edited { manager: String },
}

/// The base, and the changes since our last write.
pub(in crate::linkerd_config) struct ResolvedBase {
    pub(in crate::linkerd_config) base: Base,
    pub(in crate::linkerd_config) base_change: Option<BaseChange>,
    pub(in crate::linkerd_config) drift: Option<Drift>,
    pub(in crate::linkerd_config) overwrites_others: bool,
    /// The installer that wrote the document since our last write.
    pub(in crate::linkerd_config) installer: Option<String>,
}

/// Returns the current base and the drift, from the document in the ConfigMap and the saved base.
///
/// # Errors
/// When no base was saved, and the operator wrote the document, or it has the injection hash that the operator writes.
pub(in crate::linkerd_config) fn resolve_base(
    input: &BaseInput<'_>,
    overlay: &Overlay,
    text: &str,
    document: &Document,
) -> Result<ResolvedBase, String> {
    let BaseInput { live, base, drift, first_time, predecessor } = *input;
    let created_by = live.annotations.get(CREATED_BY_ANNOTATION).cloned();
    let from_document = |revision, base_change| {
        let base = Base {
            revision,
            text: text.into(),
            effective: document.clone(),
            document: document.clone(),
            replaces_environment: false,
            created_by: created_by.clone(),
            uid: Arc::clone(&live.uid),
            injection_hashes: InjectionHashes::default(),
        };
        ResolvedBase { base, base_change: Some(base_change), drift: None, overwrites_others: false, installer: None }
    };
    let Some(base) = base else {
        let written = live.annotations.get(CONFIG_HASH_ANNOTATION);
        if written.is_some_and(|written| *written == document.hash().to_string() || is_copy(text)) {
            return Err(format!(
                "the ControllerRevisions with the installer's document are lost, and the operator wrote the present document; to adopt it \
                 as the base, remove the annotation {CONFIG_HASH_ANNOTATION} from the ConfigMap; otherwise install Linkerd again"
            ));
        }
        return Ok(from_document(1, BaseChange::Adopted));
    };
    let next = base.revision + 1;
    let unchanged = |overwrites_others, drift| ResolvedBase {
        base: Base { revision: next, created_by: created_by.clone(), uid: Arc::clone(&live.uid), ..base.clone() },
        base_change: None,
        drift,
        overwrites_others,
        installer: None,
    };
    Ok(match origin(live, document, base, drift) {
        Origin::Ours => unchanged(false, None),
        Origin::Rewritten { manager } => ResolvedBase { installer: Some(manager), ..unchanged(true, None) },
        Origin::Installer { manager } => ResolvedBase {
            overwrites_others: true,
            installer: Some(manager.clone()),
            ..from_document(next, BaseChange::Installed { manager })
        },
        Origin::Foreign { manager } => {
            // Our last write may have been a fallback document.
            let written = live.annotations.get(CONFIG_HASH_ANNOTATION);
            let fallback = predecessor.and_then(|known| known.over(&base.document, &base.effective).ok());
            let fallback = fallback.filter(|fallback| written == Some(&fallback.hash().to_string()));
            let changed = fallback.as_ref().unwrap_or(&base.effective).differences(document);
            let declared = base.document.differences(&base.effective);
            let is_declared = |path: &Path| {
                let touches = |it: &Path| it.starts_with(path) || path.starts_with(it);
                overlay.source(path, &base.effective) != ValueSource::Base || declared.iter().any(touches)
            };
            let (protected, theirs): (Vec<Path>, Vec<Path>) = match drift.scope {
                _ if first_time => (Vec::new(), changed),
                DriftScope::Document => (changed, Vec::new()),
                DriftScope::Declared => changed.into_iter().partition(is_declared),
            };
            let mut edited = base.document.clone();
            edited.copy_paths(document, &theirs);
            // Allowed changes that make the document unusable are drift.
            let is_unusable =
                !theirs.is_empty() && !overlay.apply_to(&edited).problems_added_to(&base.document).is_empty();
            let (edited, protected) = match is_unusable {
                false => (edited, protected),
                true => (base.document.clone(), [protected, theirs].concat()),
            };
            let drift = (!protected.is_empty()).then(|| Drift {
                manager: manager.clone(),
                paths: protected,
                reverted: false,
                affects_injection: false,
            });
            // A tool may restore a copy of our document again and again.
            let installer = has_remedy(input.drift, &manager).then(|| manager.clone());
            let mut resolved = ResolvedBase { installer, ..unchanged(drift.is_some(), drift) };
            if edited != base.document {
                resolved.base.text = edited.to_yaml().into();
                resolved.base.document = edited;
                resolved.base_change = Some(BaseChange::Edited { manager });
            }
            resolved
        }
    })
}

/// Describes a document that cannot be read, and how to continue. Only the installer, or a person, can correct it.
pub(in crate::linkerd_config) fn describe_unreadable(input: &BaseInput<'_>, error: &InvalidDocument) -> String {
    let BaseInput { live, base, .. } = *input;
    let saved = base.filter(|base| base.uid == live.uid).map(|base| Base::name_at(&live.key.name, base.revision));
    let restore = saved.map(|name| format!(", or restore it from ControllerRevision {name}")).unwrap_or_default();
    format!("{} cannot be read: {error}; correct it with the installer (helm upgrade){restore}", live.describe_values())
}

/// Returns the saved base to write over an unusable document. Without a readable document no Pod is injected, and a
/// document with a private key exposes the key. A document is not repaired if a trusted manager broke it, or if
/// drift.action is Report.
pub(in crate::linkerd_config) fn repair(input: &BaseInput<'_>, problems: &[Problem]) -> Option<ResolvedBase> {
    let BaseInput { live, base, drift, .. } = *input;
    let manager = last_writer(live);
    let is_theirs = is_installation(drift, &manager, live.values.as_deref()) || drift.action == DriftAction::Report;
    let base = base.filter(|base| !is_theirs && base.uid == live.uid)?;
    let paths = problems.iter().map(|problem| problem.path.clone()).collect();
    let drift = Some(Drift { manager, paths, reverted: false, affects_injection: false });
    Some(ResolvedBase { base: base.clone(), base_change: None, drift, overwrites_others: true, installer: None })
}
