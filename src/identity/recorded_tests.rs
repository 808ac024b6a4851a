//! The answers that Linkerd's identity was recorded to give.
//!
//! [`DIFFERENCES`] lists the requests that are answered otherwise on purpose, each with the reason. The tokens are scripts
//! for a stand-in of the API server, and [`review`] does what the stand-in and the service do with them.

use serde_json::{Value, json};
use x509_parser::{certificate::X509Certificate, certification_request::X509CertificationRequest, prelude::FromDer};

use super::{
    csr::SigningRequest,
    issuer::{Issuer, Leaf},
    refusal::CertifyRefusal,
    testing::{domain, load_of, validity, verify_for},
};
use crate::{
    text::hex,
    x509::testing::{TestCa, der},
};

const RECORDED: &str = include_str!("testdata/identity.jsonl");

/// The name of a request, what differs, and the reason.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    ("sig/by-another-key", "code", POSSESSION),
    ("sig/sha1", "code", POSSESSION),
    ("sig/unknown-oid", "code", POSSESSION),
    ("sig/empty", "code", POSSESSION),
    ("san/dns+othername", "code", ONE_NAME),
    ("san/dns+dirname", "code", ONE_NAME),
    ("san/dns+uri-malformed", "code", "a URI is refused by row 10, whether or not it can be parsed"),
    ("san/trailing-data-in-extension", "code", STRICT),
    ("attr/junk-attribute", "code", STRICT),
    ("cn/two-first-wrong", "code", ONE_NAME),
    ("cn/universal-string", "code", "a CommonName that cannot be read cannot be compared"),
    ("cn/integer", "code", "a CommonName that cannot be read cannot be compared"),
    ("subject/with-o-ou-c-serial", "subject", "a workload does not choose the subject of its certificate"),
    ("der/version-1", "code", STRICT),
    ("token/api-500", "code", "an outage of the API server is retried, and then Unavailable, so that clients retry"),
    ("token/other-audience-echoed", "code", "a token for another audience is no proof"),
];
const POSSESSION: &str = "only the owner of the private key gets a certificate for the public key";
const ONE_NAME: &str = "a request has no other name than the identity";
const STRICT: &str = "a request is exactly what the standard allows, and no proxy sends anything else";

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

/// Returns the username that a review of this token yields.
fn review(token: &str, identity: &str) -> Result<String, CertifyRefusal> {
    let (kind, rest) = token.split_once(':').unwrap();
    match kind {
        // The token of another audience is accepted by default, as in Linkerd.
        "ok" | "okaud" => Ok(rest.to_owned()),
        "otheraud" => Err(CertifyRefusal::OtherAudience("identity.l5d.io".to_owned())),
        "err" => Err(CertifyRefusal::TokenInvalid(rest.to_owned())),
        "okerr" => Err(CertifyRefusal::TokenInvalid("odd".to_owned())),
        "no" => Err(CertifyRefusal::NotAuthenticated),
        "http" if rest.starts_with('5') => Err(CertifyRefusal::ReviewUnavailable(format!("mock status {rest}"))),
        "http" => {
            let (identity, cause) = (identity.to_owned(), format!("mock status {rest}"));
            Err(CertifyRefusal::ReviewFailed { identity, cause })
        }
        other => panic!("{other}"),
    }
}

/// Answers a request as the service does.
fn certify(issuer: &Issuer, identity: &str, token: &str, csr: &[u8]) -> Result<Leaf, CertifyRefusal> {
    if csr.is_empty() {
        return Err(CertifyRefusal::MissingRequest);
    }
    let request = SigningRequest::parse(csr)?;
    request.check_name(identity)?;
    let found = domain().identity_of(&review(token, identity)?)?;
    if found != identity {
        return Err(CertifyRefusal::OtherIdentity { requested: identity.to_owned(), found });
    }
    request.verify_possession()?;
    issuer.issue(&request, identity, validity(), [7; 16])
}

/// The facts of a certificate that do not depend on the key, the issuer or the clock.
fn facts(leaf: &Leaf, chain: usize, csr: &[u8]) -> Value {
    let (_, certificate) = X509Certificate::from_der(&leaf.der).unwrap();
    let (_, request) = X509CertificationRequest::from_der(csr).unwrap();
    let (mut extensions, mut values) = (Vec::new(), serde_json::Map::new());
    for extension in certificate.extensions() {
        let name = extension.oid.to_id_string();
        let known = [("2.5.29.15", "keyUsage"), ("2.5.29.37", "extKeyUsage"), ("2.5.29.17", "subjectAltName")];
        if let Some((_, known)) = known.iter().find(|(oid, _)| *oid == name) {
            // The recording lacks the tag and one byte of the length: a long value begins with the second byte of it.
            let length = u8::try_from(extension.value.len()).unwrap();
            let prefix = if length < 0x80 { String::new() } else { hex([length]) };
            values.insert((*known).to_owned(), format!("{prefix}{}", hex(extension.value)).into());
        }
        extensions.push(json!([name, extension.critical]));
    }
    let (begin, end) = (certificate.validity().not_before, certificate.validity().not_after);
    json!({
        "version": format!("v{}", certificate.version().0 + 1),
        "sig": certificate.signature_algorithm.algorithm.to_id_string(),
        "extensions": extensions,
        "values": values,
        "valid_s": end.timestamp() - begin.timestamp(),
        "until_is_not_after": leaf.not_after.as_second() == end.timestamp(),
        "chain": chain,
        "subject": hex(certificate.subject().as_raw()),
        "spki_is_the_csrs": certificate.public_key().raw == request.certification_request_info.subject_pki.raw,
    })
}

/// Whether a recorded message is one of Go's parsers, which ours need not repeat.
fn is_of_a_parser(message: &str) -> bool {
    ["asn1: ", "x509: ", "ecdsa: "].iter().any(|prefix| message.starts_with(prefix))
}

/// Returns what differs from the recording.
fn differences(recorded: &Value, seen: &Result<Leaf, CertifyRefusal>, chain: usize, csr: &[u8]) -> Vec<String> {
    let (code, message) = match seen {
        Ok(_) => ("OK".to_owned(), String::new()),
        Err(refusal) => (constant(refusal.code()), refusal.to_string()),
    };
    if code != text(recorded, "code") {
        return vec!["code".to_owned()];
    }
    let expected = text(recorded, "msg");
    let is_equal = match expected.split_once("ECDSA public key: ") {
        // What follows is how Go prints the key.
        Some((before, _)) => message.starts_with(before),
        None => is_of_a_parser(expected) || message == expected,
    };
    let mut differ = Vec::new();
    if !is_equal {
        differ.push(format!("message {message:?} instead of {expected:?}"));
    }
    if let Ok(leaf) = seen {
        let facts = facts(leaf, chain, csr);
        let (expected, seen) = (recorded["cert"].as_object().unwrap(), facts.as_object().unwrap());
        assert_eq!(expected.len(), seen.len());
        differ.extend(expected.iter().filter(|(key, value)| seen[*key] != **value).map(|(key, _)| key.clone()));
    }
    differ
}

/// The name of a code in the recording, such as FAILED_PRECONDITION.
fn constant(code: tonic::Code) -> String {
    let mut constant = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !constant.is_empty() {
            constant.push('_');
        }
        constant.push(letter.to_ascii_uppercase());
    }
    constant
}

#[test]
fn every_recorded_answer_is_given_unless_ours_is_better() {
    let root = TestCa::root("root");
    let issuer = root.signs("identity", |_| {});
    let issuer = load_of(&[&issuer], &[&root]).unwrap();
    let (mut wrong, mut listed, mut issued) = (Vec::new(), 0, 0);
    let recorded: Vec<Value> = RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for case in &recorded {
        let (name, identity) = (text(case, "name"), text(case, "identity"));
        let csr = der(&format!("-----BEGIN A-----\n{}\n-----END A-----\n", text(case, "csr")));
        let seen = certify(&issuer, identity, text(case, "token"), &csr);
        let differ = differences(case, &seen, issuer.chain().len(), &csr);
        let known = DIFFERENCES.iter().find(|(known, _, _)| *known == name);
        match (&differ[..], known) {
            ([], None) => {}
            ([only], Some((_, expected, _))) if only == expected => listed += 1,
            ([], Some((_, _, reason))) => {
                wrong.push(format!("{name} has the recorded answer, but is listed: {reason}"));
            }
            (differ, _) => wrong.push(format!("{name}: {differ:?}: {seen:?}")),
        }
        if let Ok(leaf) = seen {
            issued += 1;
            assert_eq!(verify_for(identity, &leaf.der, issuer.chain(), &root.pem), Ok(()), "{name}");
        }
    }
    assert!(wrong.is_empty(), "{} of {} requests:\n{}", wrong.len(), recorded.len(), wrong.join("\n"));
    assert_eq!(listed, DIFFERENCES.len(), "a listed request does not exist");
    assert_eq!((recorded.len(), issued), (79, 14));
}
