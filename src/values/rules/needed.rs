//! The keys that a document must have.

use serde_json::Value;

use super::breaks::DocumentView;
use crate::values::{Path, ProxyContainerValues, ProxyValues, findings::Findings, model::GoStruct};

/// The keys that Linkerd's injector or its template dereferences without a nil check, besides those that our injector
/// requires. Every chart renders them.
const NEEDED: [&[&str]; 7] = [
    // Annotations of Pods override values in this map, so the injector dereferences it.
    &["debugContainer"],
    &["debugContainer", "image"],
    // The template dereferences it.
    &["proxyInit", "xtMountPath"],
    // An absent port is port 0.
    &["proxy", "ports", "admin"],
    &["proxy", "ports", "control"],
    &["proxy", "ports", "inbound"],
    &["proxy", "ports", "outbound"],
];
/// The keys that only some modes or releases dereference. A document may lack them, but no patch may remove them.
const KEPT: [&[&str]; 9] = [
    &["clusterDomain"],
    &["linkerdVersion"],
    &["networkValidator"],
    &["proxy", "control"],
    &["proxy", "image", "name"],
    &["proxy", "startupProbe"],
    &["proxy", "tracing"],
    &["proxy", "uid"],
    &["proxyInit", "iptablesMode"],
];

const EMPTY: &str = "must not be empty: otherwise no proxy can start";

/// Returns the keys that an injector requires.
fn needed() -> impl Iterator<Item = Vec<&'static str>> {
    let top = ProxyValues::REQUIRED.iter().map(|key| vec![*key]);
    let of_proxy = ProxyContainerValues::REQUIRED.iter().map(|key| vec!["proxy", *key]);
    top.chain(of_proxy).chain(NEEDED.map(<[_]>::to_vec))
}

pub(in crate::values) fn is_needed(path: &Path) -> bool {
    needed().chain(KEPT.map(<[_]>::to_vec)).any(|keys| path.keys().iter().map(|key| &**key).eq(keys))
}

pub(super) fn check(document: &DocumentView<'_>, problems: &mut Findings) {
    let mut require = |keys: &[&str], reason: &str| {
        let above = keys.split_last().map_or(&[][..], |(_, above)| above);
        // Only the topmost missing map is reported.
        if document.at(keys).is_none() && (above.is_empty() || document.at(above).is_some_and(Value::is_object)) {
            problems.add(&Path::from(keys), None, reason);
        }
    };
    for keys in needed() {
        require(&keys, "is missing: the injector requires it");
    }
    if document.is_true(&["cniEnabled"]) {
        require(&["networkValidator"], "is missing: the injector requires it if cniEnabled is true");
    }
    if document.is_true(&["proxy", "nativeSidecar"]) && document.is_true(&["proxy", "await"]) {
        require(&["proxy", "startupProbe"], "is missing: the injector requires it if proxy.await is true");
    }
    check_cluster_domain(document, problems);
    if document.at(&["proxy", "image"]).is_some_and(Value::is_object) {
        let name = ["proxy", "image", "name"];
        if document.is_empty(&name) {
            problems.add(&Path::from(&name[..]), document.at(&name), EMPTY);
        }
        let (version, fallback) = (["proxy", "image", "version"], ["linkerdVersion"]);
        if document.is_empty(&version) && document.is_empty(&fallback) {
            problems.add(&Path::from(&fallback[..]), document.at(&fallback), EMPTY);
        }
    }
}

pub(super) fn check_cluster_domain(document: &DocumentView<'_>, problems: &mut Findings) {
    if document.is_empty(&["clusterDomain"]) {
        problems.add(&Path::from(&["clusterDomain"][..]), document.at(&["clusterDomain"]), EMPTY);
    }
}
