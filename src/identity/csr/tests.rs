//! The requests that are certified, and the ones that are not.

use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519, SanType};

use super::{CsrProblem, LONGEST_REQUEST, SigningRequest};
use crate::{
    identity::testing::{WEB, fixture, request},
    x509::{
        der::{self as tag, DerWriter},
        testing::der,
    },
};

/// A request for these names, by a new key.
fn requested(common_name: Option<&str>, names: Vec<SanType>) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.subject_alt_names = names;
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn named(common_name: Option<&str>, names: Vec<SanType>) -> Result<(), String> {
    let request = SigningRequest::parse(&requested(common_name, names)).unwrap();
    request.check_name(WEB).map_err(|problem| problem.to_string())
}

/// Returns the reason why a request is not certified, if there is one.
fn problem(der: &[u8]) -> Option<String> {
    let checked = SigningRequest::parse(der).map_err(|problem| problem.to_string()).and_then(|request| {
        request.check_name(WEB).map_err(|problem| problem.to_string())?;
        request.verify_possession().map_err(|problem| problem.to_string())
    });
    checked.err()
}

/// The parts of a request, which [`written`] puts together.
struct Parts {
    subject: Vec<u8>,
    names: Vec<u8>,
    attributes: Option<Vec<u8>>,
}

fn element(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut writer = DerWriter::with_capacity(0);
    writer.element(tag, value);
    writer.finish()
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(tag::SEQUENCE, &parts.concat())
}

/// The attribute extensionRequest with these values.
fn extension_request(values: &[&[u8]]) -> Vec<u8> {
    let kind = [0x06, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 0x0e];
    sequence(&[&kind, &element(tag::SET, &values.concat())])
}

/// An extension subjectAltName with these names.
fn alternative_names(names: &[u8]) -> Vec<u8> {
    sequence(&[&[0x06, 3, 0x55, 0x1d, 0x11], &element(tag::OCTET_STRING, &element(tag::SEQUENCE, names))])
}

/// Returns a request that nothing signed.
fn written(parts: &Parts) -> Vec<u8> {
    let extensions = sequence(&[&alternative_names(&parts.names)]);
    let attributes = parts.attributes.clone().unwrap_or_else(|| extension_request(&[&extensions]));
    let content = sequence(&[
        &[tag::INTEGER, 1, 0],
        &sequence(&[&parts.subject]),
        request().key_info(),
        &element(tag::context_constructed(0), &attributes),
    ]);
    let algorithm = [0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    sequence(&[&content, &algorithm, &element(tag::BIT_STRING, &[0, 1])])
}

fn parts() -> Parts {
    Parts { subject: Vec::new(), names: element(tag::context(2), WEB.as_bytes()), attributes: None }
}

const UNSIGNED: &str = "the signature of the certificate signing request is invalid";

#[test]
fn a_request_of_a_proxy_is_certified() {
    for file in ["csr-p256.pem", "csr-p384.pem", "csr-p256-sha384.pem"] {
        assert_eq!(problem(&der(fixture(file))), None, "{file}");
    }
    for common_name in [None, Some(WEB), Some("")] {
        assert_eq!(problem(&requested(common_name, vec![dns(WEB)])), None);
    }
}

#[test]
fn names_are_checked_in_the_order_of_linkerd_with_its_texts() {
    let (email, uri) = (SanType::Rfc822Name("a@b".try_into().unwrap()), SanType::URI("spiffe://a".try_into().unwrap()));
    let ip = SanType::IpAddress([10, 0, 0, 1].into());
    let one = "CSR must have exactly one DNSName";
    let refused = |text: &str| Err(text.to_owned());
    assert_eq!(named(Some(WEB), vec![]), refused(one));
    assert_eq!(named(None, vec![uri.clone()]), refused(one));
    assert_eq!(named(None, vec![dns(WEB), dns(WEB)]), refused(one));
    let other = format!("CSR name does not match requested identity: csr=evil.example; req={WEB}");
    assert_eq!(named(Some("x"), vec![dns("evil.example"), email.clone()]), refused(&other));
    let all = vec![dns(WEB), uri.clone(), ip.clone(), email];
    assert_eq!(named(Some("x"), all.clone()), refused("invalid CommonName: x"));
    assert_eq!(named(None, all.clone()), refused("cannot validate email addresses"));
    assert_eq!(named(None, all[..3].to_vec()), refused("cannot validate IP addresses"));
    assert_eq!(named(None, all[..2].to_vec()), refused("cannot validate URIs"));
    assert_eq!(named(Some(WEB), vec![dns(WEB)]), Ok(()));
    // Any other kind of name: a directory name.
    let names = [parts().names, element(tag::context_constructed(4), &[0x30, 0])].concat();
    let request = SigningRequest::parse(&written(&Parts { names, ..parts() })).unwrap();
    assert_eq!(request.check_name(WEB).unwrap_err().to_string(), "cannot validate names of other kinds");
}

#[test]
fn only_a_common_name_with_the_identity_is_certified() {
    let with = |subject: &[&[u8]]| {
        let subject = subject.iter().map(|it| element(tag::SET, it)).collect::<Vec<_>>().concat();
        problem(&written(&Parts { subject, ..parts() })).unwrap()
    };
    let name = |kind: u8, text: &[u8]| sequence(&[&[0x06, 3, 0x55, 4, 3], &element(kind, text)]);
    let right = name(tag::UTF8_STRING, WEB.as_bytes());
    let wide: Vec<u8> = WEB.bytes().flat_map(|byte| [0, byte]).collect();
    let organization = sequence(&[&[0x06, 3, 0x55, 4, 10], &element(tag::UTF8_STRING, b"system:masters")]);
    for good in [
        &right,
        &name(tag::PRINTABLE_STRING, WEB.as_bytes()),
        &name(tag::IA5_STRING, WEB.as_bytes()),
        &name(tag::T61_STRING, WEB.as_bytes()),
        &name(tag::BMP_STRING, &wide),
        &name(tag::UTF8_STRING, b""),
        &organization,
    ] {
        assert_eq!(with(&[good]), UNSIGNED);
    }
    assert_eq!(with(&[&right, &organization, &right]), UNSIGNED);
    assert_eq!(with(&[&name(tag::UTF8_STRING, b"a"), &right]), "invalid CommonName: a");
    assert_eq!(with(&[&[right.clone(), name(tag::T61_STRING, b"\xff")].concat()]), "invalid CommonName: \u{fffd}");
    for bad in [
        name(tag::UTF8_STRING, b"\xff"),
        name(tag::PRINTABLE_STRING, b"a@b"),
        name(tag::IA5_STRING, b"\xff"),
        name(tag::NUMERIC_STRING, b"a"),
        name(tag::BMP_STRING, b"abc"),
        name(tag::INTEGER, &[1]),
        // A UniversalString.
        name(0x1c, &[0, 0, 0, b'a']),
    ] {
        assert!(with(&[&bad]).ends_with("its CommonName is not a valid string"));
    }
    assert!(with(&[b"x"]).ends_with("its subject cannot be read"));
}

#[test]
fn extensions_are_requested_once_and_only_the_names_count() {
    let own = parts();
    let names = alternative_names(&own.names);
    // basicConstraints with a value that is not DER.
    let other =
        sequence(&[&[0x06, 3, 0x55, 0x1d, 0x13], &[tag::BOOLEAN, 1, 0xff], &element(tag::OCTET_STRING, b"junk")]);
    let password = sequence(&[&[0x06, 1, 7], &element(tag::SET, &element(tag::UTF8_STRING, b"x"))]);
    let read = |attributes: Vec<u8>| problem(&written(&Parts { attributes: Some(attributes), ..parts() })).unwrap();
    assert_eq!(read([password, extension_request(&[&sequence(&[&other, &names])])].concat()), UNSIGNED);
    let none = "CSR must have exactly one DNSName";
    for empty in [vec![], extension_request(&[&sequence(&[])]), extension_request(&[&sequence(&[&other])])] {
        assert_eq!(read(empty), none);
    }
    let (one, two) = (sequence(&[&names]), sequence(&[&names, &names]));
    for (bad, reason) in [
        (extension_request(&[&two]), "it requests an extension twice"),
        (extension_request(&[&one, &one]), "it requests extensions twice"),
        ([extension_request(&[&one]), extension_request(&[&one])].concat(), "it requests extensions twice"),
        (extension_request(&[]), "its attributes cannot be read"),
        (b"junk".to_vec(), "its attributes cannot be read"),
        (extension_request(&[&sequence(&[b"junk"])]), "its extensions cannot be read"),
    ] {
        assert_eq!(read(bad), format!("the certificate signing request is not valid: {reason}"));
    }
}

#[test]
fn malformed_names_are_refused() {
    for (kind, value) in [(2, &b"\xff"[..]), (1, b"\xff"), (6, b"\xff"), (7, b"abc"), (7, b"")] {
        let names = [parts().names, element(tag::context(kind), value)].concat();
        let problem = problem(&written(&Parts { names, ..parts() })).unwrap();
        assert!(problem.ends_with("its subject alternative names cannot be read"), "{problem}");
    }
}

#[test]
fn only_a_request_that_its_own_key_signed_is_certified() {
    let good = der(fixture("csr-p256.pem"));
    let at = good.windows(WEB.len()).rposition(|bytes| bytes == WEB.as_bytes()).unwrap();
    let mut tampered = good.clone();
    tampered[at] = b'x';
    let request = SigningRequest::parse(&tampered).unwrap();
    assert_eq!(request.verify_possession(), Err(CsrProblem::NotPossessed.into()));
    // The key of another request of the same length.
    let other = requested(Some(WEB), vec![dns(WEB)]);
    let (own, its) = [&good, &other].map(|der| SigningRequest::parse(der).unwrap().key_info().to_vec()).into();
    let at = good.windows(own.len()).position(|bytes| bytes == own).unwrap();
    let mut swapped = good.clone();
    swapped[at..at + own.len()].copy_from_slice(&its);
    assert_eq!(problem(&swapped).unwrap(), UNSIGNED);
    // A point that is not on the curve.
    let mut off_curve = good;
    off_curve[at + own.len() - 1] ^= 1;
    assert_eq!(problem(&off_curve).unwrap(), UNSIGNED);
    let unsupported = problem(&der(fixture("csr-p256-sha512.pem"))).unwrap();
    assert!(unsupported.contains("signature algorithm of the certificate signing request is not supported"));
}

#[test]
fn keys_of_other_kinds_are_refused_last() {
    for (file, curve) in [("csr-p521.pem", "P-521"), ("csr-p224.pem", "P-224")] {
        let problem = SigningRequest::parse(&der(fixture(file))).unwrap_err();
        assert_eq!(problem, CsrProblem::UnsupportedCurve(curve));
    }
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![dns(WEB)];
    params.distinguished_name = rcgen::DistinguishedName::new();
    let ed25519 = params.serialize_request(&KeyPair::generate_for(&PKCS_ED25519).unwrap()).unwrap();
    let request = SigningRequest::parse(ed25519.der()).unwrap();
    assert_eq!(
        request.check_name("x").unwrap_err().to_string().split(':').next(),
        Some("CSR name does not match requested identity")
    );
    let refusal = request.verify_possession().unwrap_err();
    assert_eq!(
        (refusal.to_string(), refusal.code()),
        ("CSR must contain an ECDSA public key: Ed25519".to_owned(), tonic::Code::Internal)
    );
}

#[test]
fn long_and_deep_requests_are_refused_at_once() {
    assert_eq!(SigningRequest::parse(&[0x30; LONGEST_REQUEST + 1]).unwrap_err(), CsrProblem::TooLong);
    assert_eq!(SigningRequest::parse(&[]).unwrap_err(), CsrProblem::Malformed("it is not a sequence in DER"));
    let (mut deep, mut nested) = (Vec::new(), vec![0x30, 0]);
    while nested.len() < LONGEST_REQUEST - 400 {
        deep.clone_from(&nested);
        nested = element(tag::SEQUENCE, &nested);
    }
    assert!(problem(&deep).is_some());
    // As many names as fit, each of which would be refused, and as many extensions.
    let names = element(tag::context(2), b"a").repeat((LONGEST_REQUEST - 400) / 3);
    assert_eq!(problem(&written(&Parts { names, ..parts() })).unwrap(), "CSR must have exactly one DNSName");
    let long = "a".repeat(LONGEST_REQUEST - 600);
    let names = element(tag::context(2), long.as_bytes());
    let shown = problem(&written(&Parts { names, ..parts() })).unwrap();
    assert!(shown.len() < 700, "{}", shown.len());
    let extension = |number: u16| {
        let kind = [0x06, 3, 0x55, 0x80 | u8::try_from(number >> 7).unwrap(), u8::try_from(number & 0x7f).unwrap()];
        sequence(&[&kind, &[tag::OCTET_STRING, 0]])
    };
    let many: Vec<u8> = (0..1700).flat_map(extension).collect();
    let attributes = Some(extension_request(&[&element(tag::SEQUENCE, &many)]));
    assert_eq!(problem(&written(&Parts { attributes, ..parts() })).unwrap(), "CSR must have exactly one DNSName");
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(problem(&bytes).is_some());
    }

    /// Every bit of a request is signed, or is part of the signature. A signature with another encoding is the one
    /// exception that DER excludes.
    #[test]
    fn a_changed_request_is_not_certified(at in 0..600usize, mask in 1..=255u8, cut in any::<bool>()) {
        let mut request = der(fixture("csr-p256.pem"));
        let at = at % request.len();
        if cut {
            request.truncate(at);
        } else {
            request[at] ^= mask;
        }
        prop_assert!(problem(&request).is_some());
    }

    #[test]
    fn a_changed_request_has_another_hash(at in 0..600usize, mask in 1..=255u8) {
        let mut changed = der(fixture("csr-p256.pem"));
        let at = at % changed.len();
        changed[at] ^= mask;
        if let Ok(changed) = SigningRequest::parse(&changed) {
            prop_assert_ne!(changed.hash(), request().hash());
        }
    }

    #[test]
    fn elements_of_every_kind_can_be_everywhere(
        subject in prop::collection::vec(any::<u8>(), 0..40),
        names in prop::collection::vec((0..9u8, prop::collection::vec(any::<u8>(), 0..20)), 0..5),
        values in prop::collection::vec(any::<u8>(), 0..40),
        nested in any::<bool>(),
    ) {
        let names: Vec<u8> = names.iter().flat_map(|(kind, value)| element(tag::context(*kind), value)).collect();
        let attributes = nested.then(|| extension_request(&[&element(tag::SEQUENCE, &values)]));
        let request = written(&Parts { subject, names, attributes });
        prop_assert!(problem(&request).is_some());
    }
}
