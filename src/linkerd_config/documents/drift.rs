//! Drift: attributes the document in the ConfigMap to a writer, and records changes of other writers in the status.
//! Pure.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::base::Base;
use crate::{
    api::{
        CREATED_BY_ANNOTATION, FIELD_MANAGER,
        linkerd_config::{
            DriftSpec, DriftStatus, DriftWindow, LinkerdConfigStatus, annotations::CONFIG_HASH_ANNOTATION,
        },
    },
    cluster::kinds::config_map::ConfigMap,
    linkerd_config::{
        installers::{is_copy, is_installation, replaces_base},
        verdict::MAX_SHOWN,
    },
    text::{truncate, truncated},
    values::{Document, Path},
};

/// The maximum number of drift windows in the status: the periods in which Pods may have been injected with the changes
/// of another writer.
const MAX_DRIFT_WINDOWS: usize = 5;
/// The maximum length of a path in the status.
const MAX_PATH_BYTES: usize = 256;
/// The maximum length of a manager's name, as in the API server.
const MAX_MANAGER_BYTES: usize = 128;
/// The manager of a change that `managedFields` no longer show.
pub(in crate::linkerd_config) const UNKNOWN: &str = "unknown";

/// Changes of another writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    pub manager: String,
    /// Empty if the document is missing or cannot be parsed.
    pub paths: Vec<Path>,
    pub reverted: bool,
    /// Whether the changes affect injected Pods.
    pub affects_injection: bool,
}

/// The origin of the document in the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operator wrote the document, or would write the same one.
    Ours,
    /// The installer wrote the same document as before.
    Rewritten { manager: String },
    /// The installer wrote another document.
    Installer { manager: String },
    /// Another writer changed the document.
    Foreign { manager: String },
}

/// Returns the origin of the document in a ConfigMap.
pub fn origin(live: &ConfigMap, document: &Document, base: &Base, drift: &DriftSpec) -> Origin {
    let manager = last_writer(live);
    let trusted =
        is_installation(drift, &manager, live.values.as_deref()) && replaces_base(&manager, document, &base.document);
    let written = live.annotations.get(CONFIG_HASH_ANNOTATION);
    let has_our_hash = written == Some(&document.hash().to_string());
    let is_copy = live.values.as_deref().is_some_and(is_copy);
    // A ConfigMap with another UID is a new installation, unless it was restored from a backup with our document.
    if !base.uid.is_empty() && base.uid != live.uid && !has_our_hash && !is_copy {
        return Origin::Installer { manager };
    }
    if *document == base.effective || has_our_hash {
        return Origin::Ours;
    }
    if *document == base.document {
        // The base is saved before the first write. If our hash annotation is missing, that write has not happened yet.
        return match written == Some(&base.effective.hash().to_string()) {
            false => Origin::Ours,
            true if trusted => Origin::Rewritten { manager },
            true => Origin::Foreign { manager },
        };
    }
    if trusted || !is_copy && is_another_installation(live, document, base) {
        Origin::Installer { manager }
    } else {
        Origin::Foreign { manager }
    }
}

/// Returns the last writer of the document other than us.
pub(in crate::linkerd_config) fn last_writer(live: &ConfigMap) -> String {
    let writer = live.writers.iter().find(|writer| writer.manager != FIELD_MANAGER);
    writer.map_or(UNKNOWN, |writer| truncate(&writer.manager, MAX_MANAGER_BYTES)).to_owned()
}

/// Whether the document is from another version of the installer, regardless of the manager that applied it.
fn is_another_installation(live: &ConfigMap, document: &Document, base: &Base) -> bool {
    let created_by = live.annotations.get(CREATED_BY_ANNOTATION);
    let path = Path::from(&["cliVersion"][..]);
    let version = document.get(&path);
    created_by.is_some_and(|it| base.created_by.as_ref() != Some(it))
        || (version.is_some() && version != base.effective.get(&path))
}

/// Returns the status with a new open drift window; `None` if a window is already open.
pub(in crate::linkerd_config) fn with_drift_window(
    before: &LinkerdConfigStatus,
    from: Timestamp,
) -> Option<LinkerdConfigStatus> {
    let mut status = before.clone();
    let windows = &mut status.drift.get_or_insert_default().windows;
    if windows.iter().any(|window| window.to.is_none()) {
        return None;
    }
    windows.push(DriftWindow { from: Some(Time(from)), to: None });
    // Merge the oldest two, so that no Pod is missed.
    if windows.len() > MAX_DRIFT_WINDOWS {
        let oldest = windows.remove(0);
        if let Some(next) = windows.first_mut() {
            next.from = oldest.from;
        }
    }
    Some(status)
}

/// Returns the status of a drift. A reported change that persists is counted once.
pub(in crate::linkerd_config) fn drift_status(
    drift: &Drift,
    before: Option<&DriftStatus>,
    now: Timestamp,
) -> DriftStatus {
    let shown = drift.paths.iter().take(MAX_SHOWN);
    let paths: Vec<String> = shown.map(|path| truncated(path.to_string(), MAX_PATH_BYTES)).collect();
    let is_theirs = |before: &&DriftStatus| drift.manager == UNKNOWN || before.manager.as_ref() == Some(&drift.manager);
    let same = before.filter(|before| !drift.reverted && before.paths == paths).filter(is_theirs);
    let count = before.and_then(|before| before.count).unwrap_or_default();
    DriftStatus {
        last_time: same.and_then(|same| same.last_time.clone()).or(Some(Time(now))),
        count: Some(if same.is_some() { count } else { count + 1 }),
        manager: same.and_then(|same| same.manager.clone()).or_else(|| Some(drift.manager.clone())),
        paths,
        windows: before.map(|before| before.windows.clone()).unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
