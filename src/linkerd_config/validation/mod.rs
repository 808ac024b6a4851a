//! Finds the problems of a LinkerdConfig before it is stored. Pure, except for the [`LinkerdConfigValidator`].
//!
//! In: a spec, and what is known of the installed Linkerd. Out: the problems for which the resource is denied, and
//! warnings. Always holds: the functions that decide, and their words, are those of the conditions; a resource is
//! denied only for what it declares itself, not for the values of the installer, which may be corrected later.

mod dangers;
mod expiry;
mod ineffective;
mod validator;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{
    canary,
    documents::{
        overlay::{self, Overlay},
        skew,
    },
    status::conditions::mismatch_warning,
    verdict::list_problems,
};
use crate::{
    api::linkerd_config::{InjectorSyncMethod, LinkerdConfigSpec, TrustAnchorsPolicy},
    rollout,
    values::{Document, Problem, control_plane_mismatch},
};

pub use self::{dangers::dangers, ineffective::ineffective_values, validator::LinkerdConfigValidator};

/// The maximum number of warnings about problems.
const PROBLEMS_SHOWN: usize = 3;

/// The installed Linkerd, as far as it is known.
#[derive(Clone, Copy)]
pub struct InstalledLinkerd<'a> {
    /// The document of the installer; `None` if it is unknown.
    pub document: Option<&'a Document>,
    /// The PEM bundle of the mesh's trust anchors.
    pub bundle: Option<&'a str>,
}

/// The decision about a spec.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SpecReview {
    /// The message of the condition Accepted, if the resource is denied.
    pub denied: Option<String>,
    pub warnings: Vec<String>,
}

/// Reviews a spec that is created, or that replaces the one of `before`. Problems that the earlier spec has too are
/// only warnings, so that an unrelated change is not blocked by them.
pub fn review(
    spec: &LinkerdConfigSpec,
    before: Option<&LinkerdConfigSpec>,
    installed: InstalledLinkerd<'_>,
    now: Timestamp,
) -> SpecReview {
    if before == Some(spec) {
        return SpecReview::default();
    }
    let problems = own_problems(spec, installed.document);
    let known = before.map(|before| own_problems(before, installed.document)).unwrap_or_default();
    if problems.iter().any(|problem| !known.contains(problem)) {
        return SpecReview { denied: Some(list_problems(&problems)), warnings: Vec::new() };
    }
    let further = further_problems(spec, installed, &problems);
    let shown = problems.iter().chain(&further).take(PROBLEMS_SHOWN);
    let mut warnings: Vec<String> = shown.map(|problem| format!("not accepted for now: {problem}")).collect();
    warnings.extend(differences(spec, installed));
    warnings.extend(ineffective_values(spec, installed.bundle));
    warnings.extend(dangers(spec, installed.bundle, now));
    let ineffective = overlay::ineffective(spec);
    if !ineffective.is_empty() {
        warnings.push(format!("deprecated, without effect: {}", ineffective.join(", ")));
    }
    warnings.extend(overlay::superseded_warning(spec));
    SpecReview { denied: None, warnings }
}

/// Returns the problems that a spec has over any document of an installer: those that it has both over an empty
/// document and over a permissive one. If the injectors are probed, problems of the installer's own document do not
/// count, as in the plan.
fn own_problems(spec: &LinkerdConfigSpec, installed: Option<&Document>) -> Vec<Problem> {
    // Skips the comparison of the declared trust anchors with those of the mesh, which depends on more than the spec.
    let mut own = spec.clone();
    own.global.identity_context.trust_anchors_policy = TrustAnchorsPolicy::Reuse;
    let permissive = declared_problems(&own, None, &permissive_document());
    let mut problems = declared_problems(&own, None, &Document::default());
    problems.retain(|problem| permissive.contains(problem));
    problems.extend(rollout::problems(spec));
    problems.extend(canary::problems::problems(spec));
    let tolerated = tolerated(spec, installed);
    problems.retain(|problem| !tolerated.contains(problem));
    problems
}

/// Returns the problems that only exist with the present values of the installer.
fn further_problems(spec: &LinkerdConfigSpec, installed: InstalledLinkerd<'_>, own: &[Problem]) -> Vec<Problem> {
    let Some(document) = installed.document else { return Vec::new() };
    let mut problems = declared_problems(spec, installed.bundle, document);
    if let Ok(overlay) = Overlay::new(spec, installed.bundle, None) {
        problems.extend(skew::problems(&overlay.apply_to(document), document));
    }
    let tolerated = tolerated(spec, Some(document));
    problems.retain(|problem| !own.contains(problem) && !tolerated.contains(problem));
    problems
}

/// Returns how proxies would differ from the control plane.
fn differences(spec: &LinkerdConfigSpec, installed: InstalledLinkerd<'_>) -> Vec<String> {
    let Some(document) = installed.document else { return Vec::new() };
    let Ok(overlay) = Overlay::new(spec, installed.bundle, None) else { return Vec::new() };
    let effective = overlay.apply_to(document);
    let version_skew = skew::version_skew(&effective, document).map(|skew| skew.message);
    version_skew.into_iter().chain(mismatch_warning(&control_plane_mismatch(document, &effective))).collect()
}

/// Returns the problems of the declared values of a resource over a document.
fn declared_problems(spec: &LinkerdConfigSpec, bundle: Option<&str>, document: &Document) -> Vec<Problem> {
    Overlay::new(spec, bundle, Some(document)).map_or_else(|problems| problems, |it| it.problems_over(document))
}

/// Returns the problems of the installer's document, which do not prevent a write if the injectors are probed.
fn tolerated(spec: &LinkerdConfigSpec, installed: Option<&Document>) -> Vec<Problem> {
    match spec.injector_sync.method {
        InjectorSyncMethod::Probe | InjectorSyncMethod::DryRun => installed.map(Document::problems).unwrap_or_default(),
        InjectorSyncMethod::Delay => Vec::new(),
    }
}

/// Returns a document that fulfils the requirements of as many values as possible.
fn permissive_document() -> Document {
    let mut document = Document::default();
    let values = json!({
        "cniEnabled": true,
        "clusterDomain": "cluster.local",
        "disableIPv6": true,
        "linkerdVersion": "edge-26.8.3",
        "networkValidator": {},
        "debugContainer": {"image": {}},
        "identity": {},
        "proxy": {
            "image": {"name": "proxy", "version": "edge-26.8.3"},
            "metrics": {},
            "ports": {"admin": 4191, "control": 4190, "inbound": 4143, "outbound": 4140},
            "resources": {},
            "livenessProbe": {},
            "readinessProbe": {},
            "startupProbe": {},
        },
        "proxyInit": {"iptablesMode": "nft", "runAsRoot": true, "xtMountPath": {"mountPath": "/run"}},
    });
    document.merge(values.as_object().unwrap_or(&serde_json::Map::new()));
    document
}

#[cfg(test)]
#[path = "review_tests.rs"]
mod tests;
