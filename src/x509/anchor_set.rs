//! The set of trust anchors of one proxy, or of the mesh. Pure.
//!
//! In: a bundle in PEM, as in the environment of a proxy or in `linkerd-identity-trust-roots`. Out: its certificates by
//! fingerprint. Always holds: the order of the certificates and the text between them do not change a set; a set takes
//! a bounded amount of memory.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};

use super::anchors::RootCertificate;

/// The maximum number of fingerprints: the smallest ones, so that two long bundles that share most certificates also
/// share fingerprints.
const MAX_FINGERPRINTS: usize = 50;
/// The maximum length in bytes of the certificates that are kept: those of ten RSA keys. Tenants can give each Pod a bundle
/// of its own.
const KEPT: usize = 16 << 10;
/// The maximum length of an environment variable in Linux, in bytes. With a longer bundle no proxy can start.
const LONGEST_BUNDLE: usize = 128 << 10;

/// The SHA-256 of a certificate in DER.
pub type Fingerprint = [u8; 32];

/// A set of certificates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnchorSet {
    /// The SHA-256 of all fingerprints in their order: also of those that are not kept.
    digest: [u8; 32],
    /// Sorted.
    fingerprints: Box<[Fingerprint]>,
    /// The first certificates with these fingerprints, in DER, which are no longer than [`KEPT`] together.
    certificates: Box<[Box<[u8]>]>,
}

/// Returns the certificates of a bundle that can be read, in its order. Injectors trim the text.
pub fn readable_certificates(bundle: &str) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(bundle.trim().as_bytes()).filter_map(Result::ok)
}

// === impl AnchorSet ===

impl AnchorSet {
    /// Reads a bundle. Parts of it that are not certificates are ignored, and so is a bundle with which no proxy can
    /// start.
    pub fn of(bundle: &str) -> Self {
        let readable = Some(bundle).filter(|bundle| bundle.len() <= LONGEST_BUNDLE);
        let certificates = readable.into_iter().flat_map(readable_certificates);
        let certificates: BTreeMap<Fingerprint, Box<[u8]>> =
            certificates.map(|der| (Sha256::digest(&der).into(), Box::from(&*der))).collect();
        let mut fingerprints: Vec<Fingerprint> = certificates.keys().copied().collect();
        let digest = Sha256::digest(fingerprints.as_flattened()).into();
        fingerprints.truncate(MAX_FINGERPRINTS);
        let mut left = KEPT;
        let mut kept = Vec::new();
        for der in certificates.into_values().take(MAX_FINGERPRINTS) {
            let Some(rest) = left.checked_sub(der.len()) else { break };
            left = rest;
            kept.push(der);
        }
        Self { digest, fingerprints: fingerprints.into(), certificates: kept.into() }
    }

    /// The same for equal sets.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Returns the kept roots, without the certificates that proxies cannot use.
    pub(crate) fn roots(&self) -> Vec<RootCertificate> {
        self.certificates.iter().filter_map(|der| RootCertificate::parse(der)).collect()
    }

    pub fn fingerprints(&self) -> &[Fingerprint] {
        &self.fingerprints
    }

    /// Whether it has no certificate. A proxy with such a set cannot connect to any other proxy.
    pub fn is_empty(&self) -> bool {
        self.fingerprints.is_empty()
    }

    /// Whether both have a certificate in common.
    pub fn shares_anchor(&self, other: &Self) -> bool {
        self.fingerprints.iter().any(|fingerprint| other.fingerprints.binary_search(fingerprint).is_ok())
    }
}

impl Hash for AnchorSet {
    /// Thousands of Pods have one set, so its certificates are not hashed each time.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::testing::anchors;

    fn set(letters: &str) -> AnchorSet {
        AnchorSet::of(&anchors(letters))
    }

    #[test]
    fn bundles_are_compared_as_sets_of_certificates() {
        let commented = format!("# the anchors\n\n{}# and\n{}\n\n", anchors("b"), anchors("a"));
        assert_eq!(set("ab"), AnchorSet::of(&commented));
        assert_eq!(set("ab"), set("bab"));
        assert!(set("ab") != set("a") && set("ab").shares_anchor(&set("a")) && set("a").shares_anchor(&set("ab")));
        assert!(!set("ab").shares_anchor(&set("cd")));
        assert!(AnchorSet::of("no certificate").is_empty() && !AnchorSet::of("").shares_anchor(&set("a")));
        // The SHA-256 of the byte that the certificate consists of.
        let fingerprint = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        assert_eq!(set("a").fingerprints().iter().map(crate::text::hex).collect::<Vec<_>>(), [fingerprint]);
    }

    #[test]
    fn a_set_is_bounded_and_sets_that_differ_beyond_the_bound_are_not_equal() {
        let numbered = |count: u8| -> String {
            let body = |number| {
                format!("{}{}==", char::from(b'A' + number / 4), ["A", "Q", "g", "w"][usize::from(number % 4)])
            };
            (0..count)
                .map(|number| format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", body(number)))
                .collect()
        };
        let (long, longer) = (AnchorSet::of(&numbered(90)), AnchorSet::of(&numbered(91)));
        assert_eq!((long.fingerprints().len(), AnchorSet::of(&numbered(4)).fingerprints().len()), (50, 4));
        assert!(long != longer && long.shares_anchor(&longer));
        // Four characters are three bytes.
        let of_length = |bytes: usize| {
            let body = "A".repeat(bytes / 3 * 4);
            AnchorSet::of(&format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"))
        };
        assert_eq!((of_length(16_383).certificates.len(), of_length(16_386).certificates.len()), (1, 0));
        let padded = |length: usize| AnchorSet::of(&format!("{}\n{}", " ".repeat(length), anchors("a")));
        assert!(padded(200_000).is_empty() && padded(100_000) == set("a"));
    }
}
