//! The requirements of Linux for the strings of a process: its arguments, and its variables as `NAME=value`. Pure.
//!
//! In: a text that becomes such a string. Out: the rule that the text breaks, if it breaks one. The API server
//! accepts such a text, and the container does not start.

use serde_json::Value;

use super::breaks::{
    Breaks::{self, AllPods, CniPods, InitPods, Others},
    DocumentView,
};
use crate::values::{UnusableTrustBundle, findings::Findings};

/// The longest string of a process, with the byte that ends it. Linux permits 32 pages, and a page has 4 KiB or more.
const LONGEST_STRING: usize = 128 << 10;
/// An upper bound for the name of a variable of Linkerd's and the texts that the injector adds to its value.
const LONGEST_ADDITION: usize = 1 << 10;
const TRUST_ANCHORS: &str = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS=\n";

/// Returns the requirement that a text violates; `None` if a process can start with the text and `others` further bytes
/// in one string.
pub(crate) fn unusable_string(text: &str, others: usize) -> Option<&'static str> {
    if text.contains('\0') {
        return Some("must not contain a NUL byte: no container starts with it");
    }
    let fits = text.len().saturating_add(others) < LONGEST_STRING;
    (!fits).then_some("must be shorter than 128 KiB with the name of its variable: no container starts with it")
}

/// Returns why no proxy can start with a bundle of trust anchors, or why the bundle must not reach Pods.
pub fn unusable_trust_anchors(bundle: &str) -> Option<String> {
    let unreadable = UnusableTrustBundle::check(bundle).err().map(|reason| reason.to_string());
    // The proxy gets the bundle as a variable, and the injector trims it.
    let unusable = || unusable_string(bundle.trim(), TRUST_ANCHORS.len()).map(|reason| format!("it {reason}"));
    unreadable.or_else(unusable)
}

/// Checks the texts that an injector writes into Pods. The texts of variables are checked with their names.
pub(super) fn check(document: &DocumentView<'_>, counts: impl Fn(Breaks) -> bool, problems: &mut Findings) {
    // Few documents have such a text, and a copy of the injected part is slow.
    if !document.0.as_map().values().any(has_unusable) {
        return;
    }
    for (path, value) in document.0.injection_subset().leaves() {
        let breaks = match path.keys().first().map(|key| &**key) {
            Some("debugContainer") => Others,
            Some("networkValidator") => CniPods,
            Some("proxyInit") => InitPods,
            _ => AllPods,
        };
        if let Some(reason) = unusable(value).filter(|_| counts(breaks)) {
            problems.add(&path, Some(value), reason);
        }
    }
}

fn has_unusable(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().any(has_unusable),
        value => unusable(value).is_some(),
    }
}

fn unusable(value: &Value) -> Option<&'static str> {
    value.as_str().and_then(|text| unusable_string(text, LONGEST_ADDITION))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::testing::TRUST_ANCHORS as ROOT;

    /// Linux 6 starts `env` with a variable of 131,071 bytes, and refuses a longer one with E2BIG.
    #[test]
    fn a_string_of_a_process_has_no_nul_byte_and_at_most_131071_bytes() {
        let usable = |length: usize, others| unusable_string(&"x".repeat(length), others).is_none();
        assert!(usable(0, 0) && usable(131_071, 0) && usable(131_069, 2));
        assert!(!usable(131_072, 0) && !usable(131_070, 2) && !usable(1, usize::MAX));
        assert_eq!(unusable_string("a\0b", 0), Some("must not contain a NUL byte: no container starts with it"));
    }

    #[test]
    fn a_bundle_that_is_longer_than_a_variable_is_unusable() {
        let comment = |length: usize| format!("{}\n{ROOT}\n", "#".repeat(length - ROOT.trim().len() - 1));
        // The name, the sign =, and the line break that the injector adds.
        assert_eq!(unusable_trust_anchors(&comment(131_071 - 39)), None);
        let reason = unusable_trust_anchors(&comment(131_072 - 39)).unwrap();
        assert!(reason.starts_with("it must be shorter than 128 KiB"), "{reason}");
        let reason = unusable_trust_anchors(&format!("\0\n{ROOT}")).unwrap();
        assert!(reason.starts_with("it must not contain a NUL byte"), "{reason}");
        assert_eq!(unusable_trust_anchors(""), Some("it has no certificate".to_owned()));
    }
}
