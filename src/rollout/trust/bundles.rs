//! The bundles of trust anchors that Pods of the mesh may trust, by the hash that Linkerd annotates Pods with. Pure.
//!
//! In: each observed bundle, and the hashes that Pods carry. Out: the certificates of each hash. Always holds: a bundle
//! is kept as long as a Pod carries its hash, so that what running proxies trust is known after any sequence of
//! changes; a hash that the operator has not observed says nothing, because anyone who can change a Pod can write it;
//! the number of bundles and of fingerprints is bounded.
//!
//! The bundles are saved with the base in a ControllerRevision, because they must outlive the LinkerdConfig.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{api::linkerd_config::LinkerdConfigStatus, text::sha256};

/// The maximum number of bundles. If Pods carry this many, a new bundle is not kept, and needs an approval.
const MAX_BUNDLES: usize = 20;
/// The maximum number of fingerprints of a bundle: the smallest ones, so that two long bundles that share most
/// certificates also share fingerprints.
const MAX_FINGERPRINTS: usize = 50;

/// A bundle of trust anchors.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustBundle {
    /// The SHA-256 of its text, as in Linkerd's annotation of Pods.
    #[serde(with = "shared")]
    pub hash: Arc<str>,
    /// The SHA-256 of its set of certificates: their order, and the text between them, do not change it.
    anchors: String,
    /// The hash of the first observed bundle with this set of certificates, so that a rollout keeps its key when only
    /// the text of the bundle changes.
    pub key: String,
    /// When this set of certificates was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<Time>,
    /// The SHA-256 of its certificates, sorted.
    fingerprints: BTreeSet<String>,
}

/// The observed bundles, the latest last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrustBundles(Vec<TrustBundle>);

/// Returns the certificates of a bundle that can be read, in its order. Injectors trim the text.
pub fn readable_certificates(bundle: &str) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(bundle.trim().as_bytes()).filter_map(Result::ok)
}

// === impl TrustBundle ===

impl TrustBundle {
    pub fn new(pem: &str, written: Option<Timestamp>) -> Self {
        let fingerprints = readable_certificates(pem).map(sha256).collect();
        Self::of(Arc::from(sha256(pem)), fingerprints, written)
    }

    fn of(hash: Arc<str>, mut fingerprints: BTreeSet<String>, written: Option<Timestamp>) -> Self {
        let all: Vec<&str> = fingerprints.iter().map(String::as_str).collect();
        let anchors = sha256(all.join("\n"));
        fingerprints = fingerprints.into_iter().take(MAX_FINGERPRINTS).collect();
        Self { key: hash.to_string(), hash, anchors, written: written.map(Time), fingerprints }
    }

    /// Whether proxies with either bundle can connect to each other.
    pub fn shares_anchor(&self, other: &Self) -> bool {
        !self.fingerprints.is_disjoint(&other.fingerprints)
    }

    /// Whether both bundles have the same set of certificates.
    pub fn has_same_anchors(&self, other: &Self) -> bool {
        self.anchors == other.anchors
    }

    /// Whether it has no certificate. A proxy with such a bundle cannot connect to any other proxy.
    pub fn is_empty(&self) -> bool {
        self.fingerprints.is_empty()
    }
}

// === impl TrustBundles ===

impl TrustBundles {
    /// Reads the saved bundles. Unreadable bundles, and those beyond the bounds, are ignored.
    pub fn from_json(value: Option<&Value>) -> Self {
        let all = value.and_then(Value::as_array).into_iter().flatten();
        let bundles = all.filter_map(|bundle| TrustBundle::deserialize(bundle).ok());
        Self(bundles.filter(|bundle| bundle.fingerprints.len() <= MAX_FINGERPRINTS).take(MAX_BUNDLES).collect())
    }

    pub fn to_json(&self) -> Value {
        json!(self.0)
    }

    /// Returns the bundle in a status that was written before bundles were saved.
    pub fn from_status(status: &LinkerdConfigStatus) -> Self {
        let fingerprints = status.trust_anchors.iter().flat_map(|anchors| &anchors.fingerprints);
        let fingerprints: BTreeSet<String> = fingerprints.cloned().collect();
        let hash = status.trust_roots_sha256.as_deref().filter(|_| !fingerprints.is_empty());
        Self(hash.map(|hash| TrustBundle::of(hash.into(), fingerprints, None)).into_iter().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn find(&self, hash: &str) -> Option<&TrustBundle> {
        self.0.iter().find(|bundle| *bundle.hash == *hash)
    }

    /// Returns the bundle that new proxies are injected with: the present one; without a present one, the latest one,
    /// because injectors keep it.
    pub fn in_effect(&self, pem: Option<&str>) -> Option<TrustBundle> {
        let Some(pem) = pem else { return self.0.last().cloned() };
        Some(self.find(&sha256(pem)).cloned().unwrap_or_else(|| TrustBundle::new(pem, None)))
    }

    /// Adds the present bundle, and removes the bundles whose hash no Pod carries. `is_carried` is `None` while the
    /// Pods are unknown.
    pub fn observe(
        &mut self,
        pem: Option<&str>,
        written: Option<Timestamp>,
        is_carried: Option<&dyn Fn(&str) -> bool>,
    ) {
        let latest = self.0.last().cloned();
        let is_new = pem.is_some_and(|pem| latest.as_ref().is_none_or(|latest| *latest.hash != *sha256(pem)));
        if let Some(pem) = pem.filter(|_| is_new) {
            let mut bundle = TrustBundle::new(pem, written);
            if let Some(same) = self.0.iter().find(|known| known.has_same_anchors(&bundle)) {
                bundle.key.clone_from(&same.key);
            }
            if let Some(latest) = latest.filter(|latest| latest.has_same_anchors(&bundle)) {
                bundle.written = latest.written;
            }
            self.0.retain(|known| known.hash != bundle.hash);
            self.0.push(bundle);
        }
        if let Some(latest) = self.0.last_mut().filter(|latest| pem.is_some() && latest.written.is_none()) {
            latest.written = written.map(Time);
        }
        if let Some(is_carried) = is_carried {
            let latest = self.0.last().map(|latest| Arc::clone(&latest.hash));
            self.0.retain(|known| Some(&known.hash) == latest.as_ref() || is_carried(&known.hash));
            self.add_other_endings(pem.unwrap_or_default().trim(), is_carried);
        }
        // Pods carry all of them, so only the new one can be left out.
        self.0.truncate(MAX_BUNDLES);
    }

    /// Adds the same text with other white space at its ends, if Pods carry its hash: the CLI and the chart write the
    /// bundle with different endings.
    fn add_other_endings(&mut self, trimmed: &str, is_carried: &dyn Fn(&str) -> bool) {
        let Some(at) = self.0.len().checked_sub(1).filter(|_| !trimmed.is_empty()) else { return };
        for text in [trimmed.to_owned(), format!("{trimmed}\n")] {
            let hash = sha256(&text);
            if self.find(&hash).is_none() && is_carried(&hash) {
                let bundle = TrustBundle::new(&text, None);
                let key = self.0.last().map(|latest| latest.key.clone()).unwrap_or_default();
                self.0.insert(at, TrustBundle { key, ..bundle });
            }
        }
    }
}

/// Shared texts in JSON.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Arc::from)
    }
}

#[cfg(test)]
impl TrustBundle {
    pub fn for_test(hash: &str, fingerprints: &[&str]) -> Self {
        Self::of(hash.into(), fingerprints.iter().map(|it| (*it).to_owned()).collect(), None)
    }
}

#[cfg(test)]
impl TrustBundles {
    pub fn for_test<const N: usize>(bundles: [TrustBundle; N]) -> Self {
        Self(bundles.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a bundle with a certificate for each letter.
    fn pem(letters: &str) -> String {
        let certificate = |letter: char| {
            let body = ["YQ==", "Yg==", "Yw==", "ZA=="]["abcd".find(letter).unwrap()];
            format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
        };
        letters.chars().map(certificate).collect()
    }

    fn bundle(letters: &str) -> TrustBundle {
        TrustBundle::new(&pem(letters), None)
    }

    /// Observes the bundles, one after the other, while Pods carry the hashes of `carried`.
    fn observed(bundles: &[&str], carried: &[&str]) -> TrustBundles {
        let carried: Vec<String> = carried.iter().map(|letters| sha256(pem(letters))).collect();
        let is_carried = |hash: &str| carried.iter().any(|carried| carried == hash);
        let mut all = TrustBundles::default();
        for letters in bundles {
            all.observe(Some(&pem(letters)), None, Some(&is_carried));
        }
        all
    }

    #[test]
    fn bundles_are_compared_as_sets_of_certificates() {
        let commented = format!("# the anchors\n\n{}# and\n{}\n\n", pem("b"), pem("a"));
        assert!(bundle("ab").has_same_anchors(&TrustBundle::new(&commented, None)));
        assert!(bundle("ab").has_same_anchors(&bundle("bab")));
        assert!(!bundle("ab").has_same_anchors(&bundle("a")) && bundle("ab").shares_anchor(&bundle("a")));
        assert!(!bundle("ab").shares_anchor(&bundle("cd")));
        assert!(TrustBundle::new("no certificate", None).is_empty());
        assert_eq!(&*bundle("a").hash, "9b60e66901349e181a877af00254e943f26eb71d323186551c22ae52c75a4e04");
    }

    #[test]
    fn a_bundle_is_kept_while_a_pod_carries_its_hash() {
        let hashes = |all: &TrustBundles| all.0.iter().map(|it| it.hash.to_string()).collect::<Vec<_>>();
        let of = |all: &[&str]| all.iter().map(|letters| sha256(pem(letters))).collect::<Vec<_>>();
        assert_eq!(hashes(&observed(&["a", "ab", "b"], &["a"])), of(&["a", "b"]));
        assert_eq!(hashes(&observed(&["a", "b", "a"], &["b"])), of(&["b", "a"]), "the latest is the last");
        let mut unknown = observed(&["a"], &[]);
        unknown.observe(Some(&pem("b")), None, None);
        assert_eq!(hashes(&unknown), of(&["a", "b"]), "nothing is removed before the Pods are known");
        unknown.observe(None, None, Some(&|_| false));
        assert_eq!(hashes(&unknown), of(&["b"]), "injectors keep the bundle when its ConfigMap is deleted");
        assert_eq!(unknown.in_effect(None).map(|it| it.hash.to_string()), Some(sha256(pem("b"))));
    }

    #[test]
    fn a_change_of_only_the_text_keeps_the_key_and_the_time() {
        let at = |second| Timestamp::from_second(second).ok();
        let padded = format!("{}\n\n", pem("a"));
        let mut all = TrustBundles::default();
        all.observe(Some(&pem("a")), at(1), Some(&|_| true));
        all.observe(Some(&padded), at(2), Some(&|_| true));
        let latest = all.in_effect(Some(&padded)).unwrap();
        assert_eq!((latest.key, latest.written.map(|it| it.0)), (sha256(pem("a")), at(1)));
        // Another set came between: the same certificates were written again.
        all.observe(Some(&pem("ab")), at(3), Some(&|_| true));
        all.observe(Some(&pem("a")), at(4), Some(&|_| true));
        let latest = all.in_effect(Some(&pem("a"))).unwrap();
        assert_eq!((latest.key, latest.written.map(|it| it.0)), (sha256(pem("a")), at(4)));
    }

    #[test]
    fn a_pod_from_before_the_first_observation_may_carry_the_bundle_with_another_ending() {
        let trimmed = pem("a").trim().to_owned();
        let mut all = TrustBundles::default();
        all.observe(Some(&pem("a")), None, Some(&|hash: &str| hash == sha256(&trimmed)));
        assert!(all.find(&sha256(&trimmed)).unwrap().has_same_anchors(&bundle("a")));
        assert_eq!(all.in_effect(None).map(|it| it.hash.to_string()), Some(sha256(pem("a"))), "the latest is the last");
        all.observe(None, None, Some(&|hash: &str| hash == sha256("")));
        assert!(all.find(&sha256("")).is_none(), "a deleted bundle has no other endings");
    }

    #[test]
    fn the_number_of_bundles_is_bounded_and_a_bundle_beyond_the_bound_is_not_kept() {
        let mut all = TrustBundles::default();
        for number in 0..30 {
            all.observe(Some(&format!("{}# {number}", pem("a"))), None, Some(&|_| true));
        }
        assert_eq!(all.0.len(), MAX_BUNDLES);
        assert!(all.find(&sha256(format!("{}# 0", pem("a")))).is_some(), "Pods carry it");
        assert!(all.find(&sha256(format!("{}# 29", pem("a")))).is_none());
    }

    #[test]
    fn saved_bundles_are_read_back_and_unreadable_ones_are_ignored() {
        let mut all = observed(&["a", "ab"], &["a"]);
        all.0[0].written = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(TrustBundles::from_json(Some(&all.to_json())), all);
        let one = all.to_json()[0].clone();
        for (value, expected) in [(json!(null), 0), (json!([1, {}, one]), 1), (json!(vec![one.clone(); 100]), 20)] {
            assert_eq!(TrustBundles::from_json(Some(&value)).0.len(), expected);
        }
        assert_eq!(TrustBundles::from_json(None), TrustBundles::default());
    }
}
