//! The injection hashes of the documents that proxies may run with. Pure.
//!
//! In: the saved documents, each with the hash that proxies were given for it. Out: the hash of a document. Always
//! holds: two documents that inject the same have the same hash, even if different versions of the operator computed
//! it. So an upgrade of the operator restarts nothing: neither a new table of Linkerd's types nor a new hash function
//! changes the hash of a document that proxies run with already.

use super::{Document, Hash, injection_subset::with_unknown_keys};

/// The maximum number of documents; more than the revisions that are kept.
const MAX_DOCUMENTS: usize = 32;
/// The maximum length of a saved hash.
const MAX_HASH_BYTES: usize = 64;

/// The parts of documents that affect injection, with their hashes.
#[derive(Clone, Debug, Default)]
pub struct InjectionHashes(Vec<(Document, String)>);

// === impl InjectionHashes ===

impl InjectionHashes {
    /// Returns the injection hash of a document: the one that proxies were given for it, otherwise a new one.
    pub fn of(&self, document: &Document) -> String {
        self.known(document).map_or_else(|| document.injection_hash().to_string(), str::to_owned)
    }

    /// Whether a text can be a hash of any version of the operator. Anyone who may edit the document can replace its
    /// hash with another text.
    pub fn is_hash(text: &str) -> bool {
        (1..=MAX_HASH_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    /// Notes the hash that proxies were given for a document, unless another one is known. A text that cannot be a hash
    /// is ignored.
    pub fn learn(&mut self, document: &Document, hash: &str) {
        if Self::is_hash(hash) && self.0.len() < MAX_DOCUMENTS && self.known(document).is_none() {
            self.0.push((document.injection_subset(), hash.to_owned()));
        }
    }

    /// Notes the hash in the document that was found in the ConfigMap. A hash of the present version that differs from
    /// the computed one is ignored, because the document or the hash was edited, unless it is the one with unknown
    /// keys.
    pub fn learn_found(&mut self, found: &Document, hash: &str) {
        // The hash once included the keys that Linkerd does not have.
        let earlier = Hash::of(&with_unknown_keys(found.as_map())).to_string();
        if hash == earlier || !Hash::is_comparable(hash, &found.injection_hash().to_string()) {
            self.learn(found, hash);
        }
    }

    /// Adds the hashes of other documents.
    pub fn extend(&mut self, others: &Self) {
        for (subset, hash) in &others.0 {
            self.learn(subset, hash);
        }
    }

    fn known(&self, document: &Document) -> Option<&str> {
        let subset = document.injection_subset();
        self.0.iter().find(|(known, _)| *known == subset).map(|(_, hash)| hash.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document::parse(text).unwrap()
    }

    #[test]
    fn documents_that_inject_the_same_keep_the_hash_that_proxies_were_given() {
        let mut hashes = InjectionHashes::default();
        hashes.learn(&document("proxy: {uid: 1}"), "v2_0123456789abcdef");
        hashes.learn(&document("proxy: {uid: 1}"), "another");
        for same in ["proxy: {uid: 1}", "proxy: {uid: 1, gid: 0}", "{proxy: {uid: 1}, controllerReplicas: 3}"] {
            assert_eq!(hashes.of(&document(same)), "v2_0123456789abcdef", "{same}");
        }
        let other = document("proxy: {uid: 2}");
        assert_eq!(hashes.of(&other), other.injection_hash().to_string());
    }

    #[test]
    fn a_text_that_cannot_be_a_hash_and_documents_beyond_the_bound_are_ignored() {
        let mut hashes = InjectionHashes::default();
        for text in ["", "a b", "a-b", "a.b", &"a".repeat(65)] {
            hashes.learn(&document("{}"), text);
            assert!(hashes.0.is_empty(), "{text}");
        }
        for uid in 1..100 {
            hashes.learn(&document(&format!("proxy: {{uid: {uid}}}")), "0123456789abcdef");
        }
        assert_eq!(hashes.0.len(), MAX_DOCUMENTS);
    }

    #[test]
    fn a_found_hash_for_which_unknown_keys_counted_is_kept() {
        let found = document("{linkerdVersion: edge-26.8.3, proxy: {uid: 1, unknown: x}}");
        let given = Hash::of(&with_unknown_keys(found.as_map())).to_string();
        assert_ne!(given, found.injection_hash().to_string());
        let mut hashes = InjectionHashes::default();
        hashes.learn_found(&found, &given);
        assert_eq!(hashes.of(&found), given);
    }

    #[test]
    fn a_found_hash_is_kept_only_if_another_version_computed_it() {
        let found = document("proxy: {uid: 1}");
        let computed = found.injection_hash().to_string();
        for (hash, expected) in [("fedcba9876543210", &*computed), ("v2_0123456789abcdef", "v2_0123456789abcdef")] {
            let mut hashes = InjectionHashes::default();
            hashes.learn_found(&found, hash);
            assert_eq!(hashes.of(&found), expected);
        }
    }
}
