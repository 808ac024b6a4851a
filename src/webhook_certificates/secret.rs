//! The Secret with the authorities and the leaf.
//!
//! In: the Secret as the API server has it. Out: its usable parts, and the Secret with other content. Always holds:
//! reading is total and bounded; a key that does not belong to its certificate counts as missing; a Secret without our
//! label is never changed; keys are never printed.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;

use super::{
    issue::{LeafPair, SigningAuthority},
    x509::{TrustCertificate, bundle},
};
use crate::api::{MANAGED_CERTIFICATE_LABEL, NamespacedName};

/// The maximum number of authorities in the Secret: the newest one, the one before it, and one more if a rotation begins
/// before the last one has ended.
pub(super) const AUTHORITIES: usize = 3;

/// The keys of the Secret: the authorities in PEM, the newest one first, and its key; the leaf and its key.
const AUTHORITIES_KEY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
pub(super) const LEAF: &str = "tls.crt";
pub(super) const LEAF_KEY: &str = "tls.key";

#[derive(Debug)]
pub(super) enum SecretState {
    Absent,
    /// The Secret does not have our label.
    Foreign,
    Ours(SecretContent),
}

/// The usable parts of the Secret.
#[derive(Debug)]
pub(super) struct SecretContent {
    pub(super) authorities: Vec<TrustCertificate>,
    /// The first of the authorities, if its key is there.
    pub(super) signing: Option<SigningAuthority>,
    /// The leaf, if its key is there.
    pub(super) leaf: Option<TrustCertificate>,
}

/// A change to the content of the Secret.
#[derive(Debug)]
pub(super) enum SecretChange {
    /// A new authority, and the older ones that are kept. The leaf stays.
    Authority {
        new: SigningAuthority,
        kept: Vec<TrustCertificate>,
    },
    Leaf(LeafPair),
}

// === impl SecretState ===

impl SecretState {
    pub(super) fn read(secret: Option<&Secret>) -> Self {
        let Some(secret) = secret else { return Self::Absent };
        let labels = secret.metadata.labels.as_ref();
        if labels.and_then(|labels| labels.get(MANAGED_CERTIFICATE_LABEL)).is_none_or(|value| value != "true") {
            return Self::Foreign;
        }
        let authorities = TrustCertificate::list(value(secret, AUTHORITIES_KEY), AUTHORITIES);
        let is_usable = |certificate: &TrustCertificate, key: &str| certificate.has_key(key);
        let signing = authorities.first().filter(|first| first.is_authority()).and_then(|certificate| {
            let key = text(secret, AUTHORITY_KEY).filter(|key| is_usable(certificate, key))?;
            Some(SigningAuthority { certificate: certificate.clone(), key_pem: key.to_owned() })
        });
        let leaf = TrustCertificate::list(value(secret, LEAF), 1).pop();
        let leaf = leaf.filter(|leaf| text(secret, LEAF_KEY).is_some_and(|key| is_usable(leaf, key)));
        Self::Ours(SecretContent { authorities, signing, leaf })
    }
}

// === impl SecretChange ===

impl SecretChange {
    /// Returns the Secret with this change. The version of `secret` stays, so that the write replaces no other version.
    pub(super) fn applied_to(&self, secret: Option<Secret>, key: &NamespacedName) -> Secret {
        let labels = BTreeMap::from([(MANAGED_CERTIFICATE_LABEL.to_owned(), "true".to_owned())]);
        let mut secret = secret.unwrap_or_else(|| Secret {
            metadata: ObjectMeta {
                name: Some(key.name.to_string()),
                namespace: Some(key.namespace.to_string()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            // The type is not kubernetes.io/tls, because no key of such a Secret can be deleted.
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        });
        secret.metadata.managed_fields = None;
        let values = match self {
            Self::Authority { new, kept } => {
                let authorities: Vec<_> = std::iter::once(&new.certificate).chain(kept).cloned().collect();
                [(AUTHORITIES_KEY, bundle(&authorities)), (AUTHORITY_KEY, new.key_pem.clone())]
            }
            Self::Leaf(pair) => [(LEAF, pair.certificate_pem.clone()), (LEAF_KEY, pair.key_pem.clone())],
        };
        let data = secret.data.get_or_insert_default();
        data.extend(values.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))));
        secret
    }

    /// The label of metrics, and the word in logs.
    pub(super) fn part(&self) -> &'static str {
        match self {
            Self::Authority { .. } => AUTHORITY_PART,
            Self::Leaf(_) => LEAF_PART,
        }
    }
}

pub(super) const AUTHORITY_PART: &str = "authority";
pub(super) const LEAF_PART: &str = "leaf";

/// Returns a value of the Secret; empty if it is missing.
pub(super) fn value<'a>(secret: &'a Secret, key: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice()).unwrap_or_default()
}

fn text<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    std::str::from_utf8(value(secret, key)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook_certificates::testing::{authority, leaf};

    fn key() -> NamespacedName {
        NamespacedName::new("linkerd-operator-system", "webhook-tls")
    }

    fn content(secret: &Secret) -> SecretContent {
        match SecretState::read(Some(secret)) {
            SecretState::Ours(content) => content,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let (old, new) = (authority("2026-01-01T00:00:00Z"), authority("2026-09-01T00:00:00Z"));
        let first = SecretChange::Authority { new: old.clone(), kept: Vec::new() }.applied_to(None, &key());
        assert_eq!((first.type_.as_deref(), content(&first).leaf), (Some("Opaque"), None));
        let pair = leaf(&old, "2026-08-01T00:00:00Z");
        let mut second = SecretChange::Leaf(pair.clone()).applied_to(Some(first), &key());
        assert_eq!(content(&second).signing.as_ref(), Some(&old));
        second.metadata.resource_version = Some("7".to_owned());
        second.data.as_mut().unwrap().insert("note".to_owned(), ByteString(b"kept".to_vec()));
        let kept = vec![old.certificate.clone()];
        let third = SecretChange::Authority { new: new.clone(), kept }.applied_to(Some(second), &key());
        let read = content(&third);
        assert_eq!(read.authorities, [new.certificate.clone(), old.certificate.clone()]);
        assert_eq!(read.signing.as_ref(), Some(&new));
        assert!(read.leaf.unwrap().is_signed_by(&old.certificate), "the leaf stays");
        assert_eq!(third.metadata.resource_version.as_deref(), Some("7"), "the write replaces only this version");
        assert_eq!(value(&third, "note"), b"kept");
        assert_eq!(value(&third, "tls.key"), pair.key_pem.as_bytes());
    }

    #[test]
    fn a_part_that_is_missing_or_does_not_match_counts_as_missing() {
        let (one, other) = (authority("2026-01-01T00:00:00Z"), authority("2026-01-01T00:00:00Z"));
        let whole = SecretChange::Authority { new: one.clone(), kept: Vec::new() }.applied_to(None, &key());
        let whole = SecretChange::Leaf(leaf(&one, "2026-01-01T00:00:00Z")).applied_to(Some(whole), &key());
        let foreign_leaf = leaf(&other, "2026-01-01T00:00:00Z");
        for (at, text, has_authority, has_leaf) in [
            ("note", "", true, true),
            ("ca.crt", "", false, true),
            ("ca.crt", "garbage", false, true),
            ("ca.crt", &bundle(&[other.certificate.clone(), one.certificate.clone()]), false, true),
            ("ca.crt", &foreign_leaf.certificate_pem, false, true),
            ("ca.key", &other.key_pem, false, true),
            ("ca.key", "garbage", false, true),
            ("tls.crt", "", true, false),
            ("tls.crt", &foreign_leaf.certificate_pem, true, false),
            ("tls.key", &foreign_leaf.key_pem, true, false),
        ] {
            let mut changed = whole.clone();
            changed.data.as_mut().unwrap().insert(at.to_owned(), ByteString(text.as_bytes().to_vec()));
            let content = content(&changed);
            assert_eq!((content.signing.is_some(), content.leaf.is_some()), (has_authority, has_leaf), "{at}: {text}");
        }
        let mut binary = whole;
        binary.data.as_mut().unwrap().insert("ca.key".to_owned(), ByteString(vec![0xff; 1_000_000]));
        assert!(content(&binary).signing.is_none());
    }

    #[test]
    fn a_secret_without_our_label_is_foreign_whatever_it_contains() {
        let one = authority("2026-01-01T00:00:00Z");
        let mut secret = SecretChange::Authority { new: one, kept: Vec::new() }.applied_to(None, &key());
        for labels in [None, Some(BTreeMap::from([(MANAGED_CERTIFICATE_LABEL.to_owned(), "false".to_owned())]))] {
            secret.metadata.labels = labels;
            assert!(matches!(SecretState::read(Some(&secret)), SecretState::Foreign));
        }
        assert!(matches!(SecretState::read(None), SecretState::Absent));
    }
}
