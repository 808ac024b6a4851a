//! Installers of Linkerd: recognizes them by their field manager and by what they write, and names the remedy for an
//! installer that keeps restoring its own document. Pure.
//!
//! In: the patterns of `spec.drift.trustedManagers`, a field manager, the text that it wrote. Always holds: a match
//! takes at most the product of both lengths in steps; a copy of the operator's document is not an installation,
//! whatever its field manager is.

pub(super) mod revert_history;

use crate::{
    api::{CONFIG_HASH_ENV, linkerd_config::DriftSpec},
    values::Document,
};

/// The field managers of `kubectl apply`, without and with `--server-side`. Both `linkerd upgrade | kubectl apply` and
/// a person who applies an edited copy use them.
const KUBECTL_APPLY: [&str; 2] = ["kubectl-client-side-apply", "kubectl"];

/// The default pattern of Argo CD, and the field manager of a person who edits an object in its user interface, which
/// the pattern must not match.
const ARGO_CD: &str = "argocd-*";
const ARGO_CD_EDITOR: &str = "argocd-server";

/// Whether a trusted manager wrote a text as an installer does: a copy of the operator's document is an edit.
pub(super) fn is_installation(drift: &DriftSpec, manager: &str, text: Option<&str>) -> bool {
    is_trusted(&drift.trusted_patterns(), manager) && !text.is_some_and(is_copy)
}

/// Whether the tool behind a trusted manager has a setting that makes it leave the document alone: `kubectl apply` has
/// none.
pub(super) fn has_remedy(drift: &DriftSpec, manager: &str) -> bool {
    is_trusted(&drift.trusted_patterns(), manager) && !KUBECTL_APPLY.contains(&manager)
}

/// Whether a text is a copy of a document that the operator wrote, possibly edited: it contains the variable of the
/// injection hash, which no chart of Linkerd renders. As a base, it would turn declared values into the installer's.
pub(super) fn is_copy(text: &str) -> bool {
    text.contains(CONFIG_HASH_ENV)
}

/// Whether a document of this manager may replace the base. An installer that is known by its name may remove keys; a
/// document of `kubectl apply` must have every top-level key of the base, because a fragment is an edit.
pub(super) fn replaces_base(manager: &str, document: &Document, base: &Document) -> bool {
    !KUBECTL_APPLY.contains(&manager) || base.as_map().keys().all(|key| document.as_map().contains_key(key))
}

/// Returns what to change in the installer, so that it does not undo the operator's writes.
pub(super) fn remedy(manager: &str) -> &'static str {
    const REMEDIES: [(&str, &str); 3] = [
        (ARGO_CD, "add /data/values of this ConfigMap to spec.ignoreDifferences of the Argo CD Application"),
        ("helm-controller", "add /data/values of this ConfigMap to spec.driftDetection.ignore of the HelmRelease"),
        (
            "kustomize-controller",
            "install Linkerd with a HelmRelease, or set spec.interval of the Kustomization to 5m or more",
        ),
    ];
    let found = REMEDIES.into_iter().find(|(pattern, _)| matches(pattern, manager));
    found.map_or("stop the job that repeats the same installation, or exclude /data/values from it", |(_, remedy)| {
        remedy
    })
}

fn is_trusted(patterns: &[&str], manager: &str) -> bool {
    let is_editor = |pattern: &str| pattern == ARGO_CD && manager == ARGO_CD_EDITOR;
    patterns.iter().any(|pattern| matches(pattern, manager) && !is_editor(pattern))
}

/// Whether a pattern matches a field manager. `*` matches any number of characters, also none; every other character
/// matches itself.
fn matches(pattern: &str, manager: &str) -> bool {
    let Some((first, others)) = pattern.split_once('*') else { return pattern == manager };
    let (middle, last) = others.rsplit_once('*').unwrap_or(("", others));
    let Some(rest) = manager.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    // The leftmost occurrence of each part leaves the most text for the next one, so there is no backtracking.
    middle.split('*').try_fold(rest, |rest, part| Some(rest.split_once(part)?.1)).is_some()
}

#[cfg(test)]
mod tests;
