//! What only some readers of roots accept. Pure.
//!
//! In: a root in DER. Out: the first part of it that Go's `crypto/x509` may refuse although webpki does not: then neither a
//! new proxy nor Linkerd's identity starts. Always holds: of what Go reads, only the kinds of keys, names and
//! extensions are accepted that openssl, step, cert-manager and `linkerd-operator trust new` write into a root by default.

use x509_parser::{
    asn1_rs::{Any, Oid, Tag, oid},
    certificate::X509Certificate,
    extensions::{GeneralName, ParsedExtension, X509Extension},
    oid_registry::{
        OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_NIST_EC_P521, OID_PKCS1_RSAENCRYPTION,
        OID_SIG_ED25519,
    },
    prelude::FromDer,
    public_key::PublicKey,
    x509::{SubjectPublicKeyInfo, X509Name, X509Version},
};

/// The curves, and the length of a coordinate in bytes.
const CURVES: [(Oid<'static>, usize); 3] = [(OID_EC_P256, 32), (OID_NIST_EC_P384, 48), (OID_NIST_EC_P521, 66)];
/// The beginning of the extensions that RFC 5280 defines, and the one that begins otherwise.
const STANDARD: Oid<'static> = oid!(2.5.29);
const AUTHORITY_INFO: Oid<'static> = oid!(1.3.6.1.5.5.7.1.1);

/// Returns what is unusual about a root.
pub(crate) fn unusual(der: &[u8]) -> Option<String> {
    let Some((_, root)) = X509Certificate::from_der(der).ok().filter(|(rest, _)| rest.is_empty()) else {
        return Some("its encoding".to_owned());
    };
    let is_negative = root.raw_serial().first().is_none_or(|first| first & 0x80 != 0);
    if is_negative || root.version() != X509Version::V3 {
        return Some("its serial number or its version".to_owned());
    }
    if !is_usual_key(root.public_key()) {
        return Some("its kind of key".to_owned());
    }
    if ![root.subject(), root.issuer()].into_iter().all(is_usual_name) {
        return Some("the text of its name".to_owned());
    }
    let Ok(extensions) = root.extensions_map() else { return Some("an extension that it has twice".to_owned()) };
    let found = extensions.values().find(|extension| !is_usual_extension(extension))?;
    Some(format!("its extension {}", found.oid))
}

fn is_usual_extension(extension: &X509Extension<'_>) -> bool {
    let is_dns = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(name) if name.is_ascii());
    match extension.parsed_extension() {
        ParsedExtension::ParseError { .. } | ParsedExtension::Unparsed => false,
        ParsedExtension::SubjectAlternativeName(names) => names.general_names.iter().all(is_dns),
        ParsedExtension::SubjectKeyIdentifier(_) | ParsedExtension::AuthorityKeyIdentifier(_) => !extension.critical,
        ParsedExtension::BasicConstraints(_) | ParsedExtension::KeyUsage(_) | ParsedExtension::ExtendedKeyUsage(_) => {
            true
        }
        // Go reads no others.
        _ => {
            let is_read = extension.oid.as_bytes().starts_with(STANDARD.as_bytes()) || extension.oid == AUTHORITY_INFO;
            !is_read && !extension.critical
        }
    }
}

fn is_usual_key(key: &SubjectPublicKeyInfo<'_>) -> bool {
    let (algorithm, bytes) = (&key.algorithm.algorithm, &*key.subject_public_key.data);
    let parameters = key.algorithm.parameters.as_ref();
    if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = parameters.and_then(|parameters| parameters.as_oid().ok());
        // Both coordinates, each as long as the curve, after the mark of a point that is not compressed.
        let is_point = |(known, length): &(Oid<'_>, usize)| {
            curve.as_ref() == Some(known) && bytes.first() == Some(&4) && bytes.len() == 1 + 2 * length
        };
        return CURVES.iter().any(is_point);
    }
    if *algorithm == OID_SIG_ED25519 {
        return parameters.is_none() && bytes.len() == 32;
    }
    let is_null = parameters.is_some_and(|parameters| parameters.tag() == Tag::Null);
    *algorithm == OID_PKCS1_RSAENCRYPTION && is_null && matches!(key.parsed(), Ok(PublicKey::RSA(_)))
}

fn is_usual_name(name: &X509Name<'_>) -> bool {
    name.iter_attributes().all(|attribute| is_usual_text(attribute.attr_value()))
}

fn is_usual_text(value: &Any<'_>) -> bool {
    let is_printable = |byte: &u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(byte);
    match value.tag() {
        Tag::Utf8String => std::str::from_utf8(value.data).is_ok(),
        Tag::PrintableString => value.data.iter().all(is_printable),
        Tag::Ia5String => value.data.is_ascii(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CustomExtension, GeneralSubtree, NameConstraints, SanType};

    use super::*;
    use crate::x509::testing::{TestCa, der};

    #[test]
    fn what_go_may_refuse_is_named_and_what_tools_write_by_default_is_not() {
        let root = TestCa::root("root");
        let again = |edit: fn(&mut rcgen::CertificateParams)| unusual(&der(&root.signs_again(&root, edit).pem));
        assert_eq!(again(|_| {}), None);
        let dns = |params: &mut rcgen::CertificateParams| {
            params.subject_alt_names = vec![SanType::DnsName("root.linkerd".try_into().unwrap())];
        };
        assert_eq!(again(dns), None);
        let uri = again(|params| params.subject_alt_names = vec![SanType::URI("https://root".try_into().unwrap())]);
        assert_eq!(uri.as_deref(), Some("its extension 2.5.29.17"));
        let constrained = again(|params| {
            let permitted_subtrees = vec![GeneralSubtree::DnsName("a .b".to_owned())];
            params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        });
        assert_eq!(constrained.as_deref(), Some("its extension 2.5.29.30"));
        let own = |oid: &[u64], is_critical: bool| {
            let mut extension = CustomExtension::from_oid_content(oid, vec![5, 0]);
            extension.set_criticality(is_critical);
            unusual(&der(&root.signs_again(&root, |params| params.custom_extensions = vec![extension]).pem))
        };
        // That of Microsoft's certificate authority, a comment of Netscape, and those that Go reads.
        assert_eq!(own(&[1, 3, 6, 1, 4, 1, 311, 21, 1], false), None);
        assert_eq!(own(&[2, 16, 840, 1, 113_730, 1, 13], false), None);
        assert_eq!(own(&[1, 2, 3], true).as_deref(), Some("its extension 1.2.3"));
        assert_eq!(own(&[2, 5, 29, 32], false).as_deref(), Some("its extension 2.5.29.32"));
        assert_eq!(own(&[1, 3, 6, 1, 5, 5, 7, 1, 1], false).as_deref(), Some("its extension 1.3.6.1.5.5.7.1.1"));
        assert_eq!(unusual(b"no certificate").as_deref(), Some("its encoding"));
    }

    /// Go refuses them: `unsupported elliptic curve`, `invalid uncompressed public key`, `invalid PrintableString`.
    #[test]
    fn keys_and_a_text_that_go_refuses_are_unusual() {
        let compressed = include_str!("testdata/compressed-point.pem");
        assert_eq!(unusual(&der(compressed)).as_deref(), Some("its kind of key"));
        let curve = include_str!("testdata/secp256k1.pem");
        assert_eq!(unusual(&der(curve)).as_deref(), Some("its kind of key"));
        let underscore = include_str!("testdata/printable-string.pem");
        assert_eq!(unusual(&der(underscore)).as_deref(), Some("the text of its name"));
    }
}
