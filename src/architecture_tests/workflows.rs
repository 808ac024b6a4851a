//! A test of the actions that workflows use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::testing::files;

/// A tag can be moved to other code. The version beside the digest is for people, and for the tool that updates both.
#[test]
fn a_workflow_names_each_action_by_the_digest_of_its_commit() {
    let mut digests: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files(".github/workflows", "yml") {
        let text = fs::read_to_string(&file).unwrap();
        for used in text.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix("uses: ")) {
            let (action, digest) = used.split_once('@').unwrap_or((used, ""));
            let (hex, version) = digest.split_once(" # v").unwrap_or((digest, ""));
            let is_digest = hex.len() == 40 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            assert!(is_digest && version.split('.').count() == 3, "{}: {used}", file.display());
            digests.entry(action.to_owned()).or_default().insert(digest.to_owned());
        }
    }
    assert!(digests.len() >= 7, "{digests:?}");
    let several: Vec<_> = digests.iter().filter(|(_, digests)| digests.len() > 1).collect();
    assert!(several.is_empty(), "{several:?}");
}
