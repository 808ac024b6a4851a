//! Documents that replicas of the proxy injector denied, and when they are retried. Pure.
//!
//! In: the status, the Pod templates of the ready replicas. Out: the status without the denials that no longer count.
//! Always holds: a document is retried only when no ready replica has a template that denied it, so that the same
//! injector does not deny it again. A restart of a replica does not change its template.

use std::{collections::BTreeSet, sync::Arc};

use crate::api::linkerd_config::{DeniedDocument, LinkerdConfigStatus};

/// The maximum number of templates that the status has for one document.
const MAX_TEMPLATES: usize = 5;

/// Records that replicas with these templates denied the document. Without a known template it is not retried.
pub(in crate::linkerd_config) fn add_denial(
    denied: &mut Vec<DeniedDocument>,
    hash: &str,
    templates: &BTreeSet<Arc<str>>,
) {
    denied.retain(|denial| denial.hash != hash);
    let templates: Vec<String> = templates.iter().take(MAX_TEMPLATES).map(ToString::to_string).collect();
    if !templates.is_empty() {
        denied.push(DeniedDocument { hash: hash.to_owned(), templates });
    }
}

/// Returns the status without the failures of documents that only replicas with other templates denied. `ready` has the
/// templates of the ready replicas; `None` if one of them is unknown.
pub(in crate::linkerd_config) fn without_past_denials(
    status: Arc<LinkerdConfigStatus>,
    ready: Option<&BTreeSet<Arc<str>>>,
) -> Arc<LinkerdConfigStatus> {
    let Some(ready) = ready.filter(|ready| !ready.is_empty()) else { return status };
    let is_past = |denial: &DeniedDocument| denial.templates.iter().all(|template| !ready.contains(template.as_str()));
    let denied = status.revisions.iter().flat_map(|revisions| &revisions.denied);
    let past: BTreeSet<String> = denied.filter(|denial| is_past(denial)).map(|denial| denial.hash.clone()).collect();
    if past.is_empty() {
        return status;
    }
    let mut status = Arc::unwrap_or_clone(status);
    if let Some(revisions) = &mut status.revisions {
        revisions.failed.retain(|hash| !past.contains(hash));
        revisions.denied.retain(|denial| !past.contains(&denial.hash));
    }
    Arc::new(status)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn templates(all: &[&str]) -> BTreeSet<Arc<str>> {
        all.iter().map(|template| Arc::from(*template)).collect()
    }

    fn failed_with(ready: Option<&[&str]>) -> Vec<String> {
        let denied = json!([{"hash": "denied", "templates": ["old"]}]);
        let status = json!({"revisions": {"failed": ["broken", "denied"], "denied": denied}});
        let status = Arc::new(serde_json::from_value(status).unwrap());
        let status = without_past_denials(status, ready.map(templates).as_ref());
        status.revisions.clone().unwrap().failed
    }

    #[test]
    fn a_denied_document_is_retried_when_no_replica_of_the_template_that_denied_it_is_left() {
        assert_eq!(failed_with(Some(&["new"])), ["broken"], "workloads failed with the other document");
        for ready in [None, Some(&[][..]), Some(&["old"]), Some(&["new", "old"])] {
            assert_eq!(failed_with(ready), ["broken", "denied"], "{ready:?}");
        }
    }

    #[test]
    fn a_denial_is_recorded_once_with_a_bounded_list_of_templates() {
        let mut denied = Vec::new();
        add_denial(&mut denied, "a", &templates(&["old"]));
        add_denial(&mut denied, "a", &templates(&["1", "2", "3", "4", "5", "6"]));
        add_denial(&mut denied, "b", &templates(&[]));
        assert_eq!(denied.len(), 1);
        assert_eq!(denied[0].templates, ["1", "2", "3", "4", "5"]);
    }
}
