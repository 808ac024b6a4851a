//! The key of an object: its namespace and name.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, runtime::reflector::ObjectRef};
use rustls::pki_types::DnsName;

/// The maximum length of an object's name, and of a DNS name, in bytes.
pub const LONGEST_NAME: usize = 253;
/// The maximum length of a label's value, and of a kind, in bytes.
pub const LONGEST_LABEL: usize = 63;
/// The maximum length of a label's key: a DNS subdomain, a slash and a name.
pub const LONGEST_KEY: usize = LONGEST_NAME + 1 + LONGEST_LABEL;

/// Returns whether the text is a DNS label (RFC 1123), as the name of a namespace and the `hostname` of an endpoint must
/// be.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_LABEL).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns whether the text is a DNS name that the proxy can read as the end of an identity: without a dot at its end.
pub fn is_dns_name(text: &str) -> bool {
    !text.ends_with('.') && DnsName::try_from(text).is_ok()
}

/// The key of an object, cheap to clone. The namespace of a cluster-scoped object is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

// === impl NamespacedName ===

impl NamespacedName {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the key of a cluster-scoped object.
    pub fn cluster_scoped(name: &Arc<str>) -> Self {
        static EMPTY: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));
        Self { namespace: Arc::clone(&EMPTY), name: Arc::clone(name) }
    }

    /// Returns the key of an object. An absent name or namespace is read as empty.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }

    /// Returns the key as kube-runtime's type.
    pub fn reference<K: Resource<DynamicType = ()>>(&self) -> ObjectRef<K> {
        let name = ObjectRef::new(&self.name);
        // A cluster-scoped object has no namespace, and kube-runtime distinguishes that from an empty one.
        if self.namespace.is_empty() { name } else { name.within(&self.namespace) }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dns_label_has_1_to_63_lowercase_letters_digits_and_inner_hyphens() {
        for name in ["a", "vm-1", "0", &"a".repeat(63)] {
            assert!(is_dns_label(name), "{name}");
        }
        for name in ["", "vm.example", "-a", "a-", "VM", &"a".repeat(64)] {
            assert!(!is_dns_label(name), "{name}");
        }
    }
}
