//! Whose a document is that is not what we wrote. Pure.

use super::{
    base::Base,
    values::{Document, Path},
};
use crate::{
    api::{CREATED_BY_ANNOTATION, linkerd_config::DriftSpec},
    cluster::kinds::config_map::ConfigMap,
};

/// Our own name in `managedFields`.
pub const FIELD_MANAGER: &str = "linkerd-config-operator";
/// The hash of the document that we had declared when we wrote last.
pub const HASH_ANNOTATION: &str = "config.linkerd.io/config-hash";

/// Whoever wrote before us and is not in `managedFields` any more.
pub(super) const UNKNOWN: &str = "unknown";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// We wrote it, or would not have to.
    Ours,
    /// The installer wrote what it had written before.
    Rewritten { manager: String },
    /// The installer wrote another one.
    Installer { manager: String },
    /// Somebody else changed it.
    Foreign { manager: String },
}

/// Whose the document in a ConfigMap is.
pub fn origin(live: &ConfigMap, document: &Document, base: &Base, drift: &DriftSpec) -> Origin {
    let manager = writer(live);
    if !base.uid.is_empty() && base.uid != live.uid {
        return Origin::Installer { manager };
    }
    let trusted = drift.trusted_managers.contains(&manager);
    let written = live.annotations.get(HASH_ANNOTATION);
    if *document == base.effective || written == Some(&document.hash().to_string()) {
        return Origin::Ours;
    }
    if *document == base.document {
        // A base is kept before it is written over: without the mark of that it just was not yet.
        return match written == Some(&base.effective.hash().to_string()) {
            false => Origin::Ours,
            true if trusted => Origin::Rewritten { manager },
            true => Origin::Foreign { manager },
        };
    }
    if trusted || is_another_installation(live, document, base) {
        Origin::Installer { manager }
    } else {
        Origin::Foreign { manager }
    }
}

/// Who wrote the document last, other than us.
pub(super) fn writer(live: &ConfigMap) -> String {
    let writer = live.writers.iter().find(|writer| writer.manager != FIELD_MANAGER);
    writer.map_or(UNKNOWN, |writer| &writer.manager).to_owned()
}

/// An upgrade says so of itself, whoever carried it to the API server.
fn is_another_installation(live: &ConfigMap, document: &Document, base: &Base) -> bool {
    let created_by = live.annotations.get(CREATED_BY_ANNOTATION);
    let path = Path::from(&["cliVersion"][..]);
    let version = document.get(&path);
    created_by.is_some_and(|it| base.created_by.as_ref() != Some(it))
        || (version.is_some() && version != base.effective.get(&path))
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
