//! The issuers that are used, and the ones that are not.

use std::collections::HashSet;

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose as Usage, GeneralSubtree, IsCa,
    KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{
    issuer::{Issuer, IssuerProblem},
    refusal::CertifyRefusal,
    testing::{WEB, domain, fixture, issue, load, load_of, request, validity, verify},
};
use crate::x509::{
    anchors::AnchorBundle,
    certificate::sha256,
    testing::{DAY, NOW, TestCa, der, now, pem_of, valid},
};

/// Returns the number of certificates that are sent, and for how many seconds a leaf is valid from now on; or the reason
/// of the refusal.
fn seen(loaded: Result<Issuer, IssuerProblem>) -> Result<(usize, i64), String> {
    let issuer = loaded.map_err(|problem| problem.to_string())?;
    Ok((issuer.chain().len(), issue(&issuer).not_after.as_second() - NOW))
}

const A_DAY: i64 = DAY + 20;

#[track_caller]
fn refused<T: std::fmt::Debug>(seen: Result<T, String>, reason: &str) {
    let problem = seen.unwrap_err();
    assert!(problem.contains(reason), "{problem}");
}

#[test]
fn keys_are_read_in_sec_1_and_in_pkcs_8() {
    let (own, p384) = (fixture("self-p256.crt"), fixture("self-p384.crt"));
    let text_before = format!("Bag Attributes\n{}", fixture("p256.sec1"));
    let second_block = format!("{}{}", fixture("p256.sec1"), fixture("rsa.pkcs1"));
    let windows = fixture("p256.sec1").replace('\n', "\r\n");
    for (file, key) in [
        (own, fixture("p256.sec1")),
        (own, fixture("p256.pkcs8")),
        (own, &*text_before),
        (own, &*second_block),
        (own, &*windows),
        (own, fixture("p256.sec1").trim_end()),
        (p384, fixture("p384.sec1")),
        (p384, fixture("p384.pkcs8")),
    ] {
        assert_eq!(seen(load(file, key, file)), Ok((1, A_DAY)), "{key}");
    }
}

#[test]
fn a_key_that_cannot_be_used_is_refused_with_what_to_write_instead() {
    let own = fixture("self-p256.crt");
    let truncated = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----\n";
    for (key, reason) in [
        (fixture("p256params.pem"), "begins with a block EC PARAMETERS"),
        (fixture("p256.enc.pkcs8"), "begins with a block ENCRYPTED PRIVATE KEY"),
        (fixture("p256.enc.sec1"), "is not valid PEM: the block EC PRIVATE KEY is not base64"),
        (fixture("rsa.pkcs1"), "has an RSA key, which cannot sign certificates of proxies: use an ECDSA P-256 key"),
        (fixture("rsa.pkcs8"), "has an RSA key"),
        (fixture("ed.pkcs8"), "has an Ed25519 key"),
        (fixture("p521.sec1"), "has a key of the curve P-521, which is not supported"),
        (fixture("k1.sec1"), "has a key of the curve secp256k1"),
        ("", "has no private key"),
        ("not PEM", "has no private key"),
        (truncated, "has a private key that cannot be read"),
        (own, "begins with a block CERTIFICATE"),
    ] {
        refused(seen(load(own, key, own)), &format!("the key file of the issuer {reason}"));
    }
    for key in [fixture("p384.sec1"), &TestCa::root("other").key.serialize_pem()] {
        refused(seen(load(own, key, own)), "the key of the issuer is not the key of the first certificate");
    }
}

#[test]
fn an_issuer_with_a_key_of_another_kind_is_refused() {
    for (file, key, reason) in [
        ("rsa-under-rsa.crt", "rsa.pkcs1", "has an issuer with an RSA key"),
        ("self-p521.crt", "p521.sec1", "has an issuer with a key of the curve P-521, which is not supported"),
    ] {
        let roots = fixture("rsa-root.crt");
        refused(seen(load(fixture(file), fixture(key), roots)), reason);
    }
}

#[test]
fn roots_may_have_keys_of_other_kinds() {
    let key = fixture("p256.sec1");
    assert_eq!(seen(load(fixture("under-rsa.crt"), key, fixture("rsa-root.crt"))), Ok((1, A_DAY)));
    refused(
        seen(load(fixture("under-p521.crt"), key, fixture("p521-root.crt"))),
        "it is signed with an algorithm that is not supported, such as ECDSA P-521",
    );
    for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P384_SHA384] {
        let mut root = TestCa::root("root");
        root.key = KeyPair::generate_for(algorithm).unwrap();
        root.pem = root.params.self_signed(&root.key).unwrap().pem();
        let issuer = root.signs("identity", |_| {});
        assert_eq!(seen(load_of(&[&issuer], &[&root])), Ok((1, A_DAY)));
    }
}

#[test]
fn a_file_with_anything_but_certificates_is_refused() {
    let root = TestCa::root("root");
    let issuer = root.signs("identity", |_| {});
    let (pem, key) = (issuer.pem.replace("\r\n", "\n"), issuer.key.serialize_pem());
    let read = |file: &str| seen(load(file, &key, &root.pem));
    for good in
        [format!("subject=x\n{pem}"), format!("{pem}\n# end\n"), pem.replace('\n', "\r\n"), pem.trim_end().to_owned()]
    {
        assert_eq!(read(&good), Ok((1, A_DAY)), "{good}");
    }
    refused(read(""), "the certificate file of the issuer has no certificate");
    refused(read(&format!("{key}{pem}")), "has a block PRIVATE KEY: write only certificates into it");
    refused(read(&format!("{pem}{key}")), "has a block PRIVATE KEY");
    refused(read(&format!("{pem}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), "in block 2");
    refused(read(&format!("{pem}-----BEGIN CERTIFICATE-----\nAAAA\n")), "the block CERTIFICATE has no end");
    refused(read(&pem.repeat(17)), "has more than 16 certificates");
}

type Edit = fn(&mut CertificateParams);

#[test]
fn an_issuer_that_proxies_refuse_is_refused() {
    let root = TestCa::root("root");
    let read = |edit: Edit| seen(load_of(&[&root.signs("identity", edit)], &[&root]));
    let good = Ok((1, A_DAY));
    assert_eq!(read(|_| {}), good);
    assert_eq!(read(|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0))), good);
    assert_eq!(read(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]), good);
    assert_eq!(read(|params| params.extended_key_usages = vec![Usage::ClientAuth, Usage::ServerAuth]), good);
    assert_eq!(read(|params| params.name_constraints = Some(permitted("cluster.local"))), good);
    assert_eq!(read(|params| params.not_after = rcgen::date_time_ymd(9999, 12, 31)), good);
    let cases: [(Edit, &str); 8] = [
        (|params| params.is_ca = IsCa::ExplicitNoCa, "is not the certificate of a cer"),
        (|params| params.is_ca = IsCa::NoCa, "it is not the certificate of a certificate authority (CA)"),
        (|params| params.extended_key_usages = vec![Usage::ClientAuth], "both serverAuth and clientAuth"),
        (|params| params.extended_key_usages = vec![Usage::ServerAuth], "both serverAuth and clientAuth"),
        (
            |params| params.name_constraints = Some(permitted("other.local")),
            "name constraints exclude the trust domain",
        ),
        (
            |params| params.name_constraints = Some(permitted("linkerd.serviceaccount.identity.linkerd.cluster.local")),
            "name constraints exclude the trust domain",
        ),
        (|params| valid(params, -100, -1), "expired at 2026-12-31T23:59:59Z: replace it"),
        (|params| valid(params, 1, 100), "is valid only from 2027-01-01T00:00:01Z"),
    ];
    for (edit, reason) in cases {
        refused(read(edit), reason);
    }
}

fn permitted(domain: &str) -> NameConstraints {
    let permitted_subtrees = vec![GeneralSubtree::DnsName(domain.to_owned())];
    NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() }
}

#[test]
fn the_root_must_be_in_the_bundle_and_its_dates_and_constraints_do_not_count() {
    let root = TestCa::root("root");
    let issuer = root.signs("identity", |_| {});
    // All generators give their roots the same name.
    let namesake = TestCa::root("root");
    let stranger = TestCa::root("stranger");
    refused(seen(load_of(&[&issuer], &[&stranger])), "no trust anchor signed it");
    refused(seen(load_of(&[&issuer], &[&namesake])), "has another key");
    assert_eq!(seen(load_of(&[&issuer], &[&namesake, &root])), Ok((1, A_DAY)));

    let expired = TestCa::root("none").signs_again(&root, |params| valid(params, -100, -1));
    let narrow = root.signs_again(&root, |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    let top = root.signs("top", |_| {});
    let sub = top.signs("identity", |_| {});
    assert_eq!(seen(load_of(&[&issuer], &[&expired])), Ok((1, A_DAY)));
    assert_eq!(seen(load_of(&[&sub, &top], &[&narrow])), Ok((2, A_DAY)));

    let loaded = load_of(&[&issuer], &[&stranger, &root, &expired]).unwrap();
    assert_eq!(loaded.roots(), [&root, &expired].map(|root| sha256(&der(&root.pem))));
    assert!(!loaded.is_trust_anchor());
}

#[test]
fn a_root_that_is_the_issuer_itself_is_used_and_reported() {
    let root = TestCa::root("root");
    let loaded = load_of(&[&root], &[&root]).unwrap();
    assert!(loaded.is_trust_anchor());
    assert_eq!(seen(Ok(loaded)), Ok((1, A_DAY)));
    // Proxies do not look at its end, but then the leaf would have expired.
    let expired = root.signs_again(&root, |params| valid(params, -100, -1));
    refused(seen(load_of(&[&expired], &[&expired])), "expired at");
}

#[test]
fn a_chain_is_sent_without_what_no_proxy_needs() {
    let (root, stranger) = (TestCa::root("root"), TestCa::root("stranger"));
    let top = root.signs("top", |_| {});
    let sub = top.signs("identity", |_| {});
    let short = stranger.signs("short", |params| valid(params, -60, 600));
    let expired = root.signs_again(&top, |params| valid(params, -600, -300));
    let shown = |file: &[&TestCa]| seen(load_of(file, &[&root]));
    assert_eq!(shown(&[&sub, &top]), Ok((2, A_DAY)));
    assert_eq!(shown(&[&sub, &top, &root]), Ok((2, A_DAY)), "the root");
    assert_eq!(shown(&[&sub, &top, &short]), Ok((2, A_DAY)), "an unrelated one that ends before the leaf");
    assert_eq!(shown(&[&sub, &expired, &top]), Ok((2, A_DAY)), "an expired one");
    refused(shown(&[&sub, &expired]), "no trust anchor signed it");
    refused(shown(&[&sub]), "if an intermediate certificate is missing, add it");
    refused(seen(load(&pem_of(&[&top, &sub]), &sub.key.serialize_pem(), &root.pem)), "is not the key of the first");
    // In the order of the file.
    let middle = top.signs("middle", |_| {});
    let deep = middle.signs("identity", |_| {});
    let loaded = load_of(&[&deep, &top, &middle], &[&root]).unwrap();
    let expected = [&deep, &top, &middle].map(|it| der(&it.pem));
    assert!(loaded.chain().iter().eq(&expected));
}

#[test]
fn a_path_length_above_another_authority_is_refused() {
    let root = TestCa::root("root");
    let top = root.signs("top", |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    let sub = top.signs("identity", |_| {});
    refused(seen(load_of(&[&sub, &top], &[&root])), "does not allow another certificate authority");
}

/// Row "bridge" of the contract. The roots have the same name in one case, as `step` and the CLI make them.
#[test]
fn a_bridge_is_sent_and_reaches_both_roots() {
    for name in ["new root", "root"] {
        let (old, new) = (TestCa::root("root"), TestCa::root(name));
        let bridge = old.signs_again(&new, |params| valid(params, -60, 3600));
        let issuer = new.signs("identity", |_| {});
        let [old_hash, new_hash] = [&old, &new].map(|root| sha256(&der(&root.pem)));
        for (roots, reached) in [
            (vec![&old], vec![old_hash]),
            // A proxy that did not restart still trusts only the old one.
            (vec![&new], vec![new_hash]),
            (vec![&old, &new], vec![old_hash, new_hash]),
        ] {
            let loaded = load_of(&[&issuer, &bridge], &roots).unwrap();
            assert_eq!((loaded.chain().len(), loaded.roots()), (2, &*reached));
            let leaf = issue(&loaded);
            assert_eq!(leaf.not_after.as_second(), NOW + 3600, "the leaf does not outlive the bridge");
            for root in [&old, &new] {
                assert_eq!(verify(&leaf.der, loaded.chain(), &root.pem), Ok(()));
            }
        }
        let ended = old.signs_again(&new, |params| valid(params, -60, -1));
        assert_eq!(seen(load_of(&[&issuer, &ended], &[&new])), Ok((1, A_DAY)));
        load_of(&[&issuer, &ended], &[&old]).unwrap_err();
    }
}

#[test]
fn two_certificates_of_the_issuer_are_sent_in_either_order() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let by_new = new.signs("identity", |_| {});
    let by_old = old.signs_again(&by_new, |_| {});
    for file in [[&by_new, &by_old], [&by_old, &by_new]] {
        for root in [&old, &new] {
            let loaded = load_of(&file, &[root]).unwrap();
            let leaf = issue(&loaded);
            assert_eq!(loaded.chain().len(), 2);
            assert!([&old, &new].iter().all(|root| verify(&leaf.der, loaded.chain(), &root.pem).is_ok()));
        }
    }
}

#[test]
fn a_leaf_has_exactly_the_fields_of_the_contract() {
    let root = TestCa::root("root");
    let plain = root.signs("identity", |_| {});
    let no_identifier = root.signs("identity", |params| {
        params.is_ca = IsCa::NoCa;
        let mut constraints = CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 3, 1, 1, 0xff]);
        constraints.set_criticality(true);
        params.custom_extensions = vec![constraints];
    });
    for (ca, extensions) in [
        (&plain, vec![("2.5.29.15", true), ("2.5.29.37", false), ("2.5.29.35", false), ("2.5.29.17", false)]),
        (&no_identifier, vec![("2.5.29.15", true), ("2.5.29.37", false), ("2.5.29.17", false)]),
    ] {
        let loaded = load_of(&[ca], &[&root]).unwrap();
        let leaf = loaded.issue(&request(), WEB, validity(), [0xff; 16]).unwrap();
        let (rest, read) = X509Certificate::from_der(&leaf.der).unwrap();
        let seen: Vec<_> = read.extensions().iter().map(|it| (it.oid.to_id_string(), it.critical)).collect();
        let expected: Vec<_> = extensions.iter().map(|(oid, critical)| ((*oid).to_owned(), *critical)).collect();
        assert_eq!((seen, rest.len(), read.version().0), (expected, 0, 2));
        assert_eq!(read.raw_serial(), [0x7f].into_iter().chain([0xff; 15]).collect::<Vec<_>>());
        assert_eq!(read.subject().to_string(), format!("CN={WEB}"));
        let times = [read.validity().not_before, read.validity().not_after].map(|time| time.timestamp() - NOW);
        assert_eq!(times, [-20, A_DAY]);
        assert!(!read.is_ca());

        let issuer_der = der(&ca.pem);
        let (_, issuer) = X509Certificate::from_der(&issuer_der).unwrap();
        assert_eq!(read.issuer().as_raw(), issuer.subject().as_raw());
        assert_eq!(read.verify_signature(Some(issuer.public_key())), Ok(()));
        assert_eq!(verify(&leaf.der, loaded.chain(), &root.pem), Ok(()));
    }
}

#[test]
fn a_leaf_ends_with_the_chain_and_an_expired_chain_issues_none() {
    let root = TestCa::root("root");
    let top = root.signs("top", |params| valid(params, -60, 7200));
    let issuer = top.signs("identity", |params| valid(params, -60, 9000));
    let loaded = load_of(&[&issuer, &top], &[&root]).unwrap();
    let leaf = issue(&loaded);
    assert_eq!((leaf.not_after.as_second(), leaf.is_clamped), (NOW + 7200, true));
    assert_eq!((loaded.not_after().as_second(), loaded.expires().as_second()), (NOW + 7200, NOW + 9000));
    let mut later = validity();
    later.now = loaded.not_after();
    assert!(loaded.issue(&request(), WEB, later, [0; 16]).is_ok());
    later.now = "2027-01-01T02:00:01Z".parse().unwrap();
    let refused = loaded.issue(&request(), WEB, later, [0; 16]).unwrap_err();
    assert_eq!(refused, CertifyRefusal::IssuerExpired(loaded.not_after()));
    assert!(!issue(&load_of(&[&root], &[&root]).unwrap()).is_clamped);
}

#[test]
fn nothing_prints_the_key() {
    let loaded = load(fixture("self-p256.crt"), fixture("p256.sec1"), fixture("self-p256.crt")).unwrap();
    let printed = format!("{loaded:?}");
    // `openssl ec -text` prints the key; `openssl pkey -pubout -outform der | sha256sum` its identifier.
    assert!(!printed.contains("e74385ee") && !printed.contains("231, 67, 133"), "{printed}");
    assert!(printed.contains(loaded.key_id()) && printed.contains("P256"), "{printed}");
    assert_eq!(loaded.key_id(), "e0773b2b716129ce131eb95d8b13990099f0bdd3820f7934dd8056e0c16f64d5");
}

/// A file whose line breaks were lost on the way.
#[test]
fn a_key_in_one_line_is_refused_and_not_printed() {
    let own = fixture("self-p256.crt");
    for (key, lost) in [("p256.sec1", " "), ("p256.pkcs8", " "), ("p256.sec1", "\\n"), ("p256.pkcs8", "\r")] {
        let key = fixture(key).replace('\n', lost);
        let problem = load(own, &key, own).unwrap_err().to_string();
        assert!(problem.contains("write each line apart"), "{problem}");
        let contents: Vec<_> = key.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| part.len() > 12).collect();
        assert!(!contents.is_empty() && !contents.iter().any(|part| problem.contains(part)), "{problem}");
        let problem = AnchorBundle::parse(key.as_bytes()).unwrap_err();
        assert!(!contents.iter().any(|part| problem.contains(part)), "{problem}");
    }
}

#[test]
fn a_bundle_keeps_the_certificates_that_proxies_read() {
    let [one, other] = ["one", "other"].map(TestCa::root);
    let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let text = format!("# roots\n{}{bad}{}{}\n# end\n{}", one.pem, other.key.serialize_pem(), other.pem, one.pem);
    let bundle = AnchorBundle::parse(text.as_bytes()).unwrap();
    let expected = [&one, &other].map(|root| sha256(&der(&root.pem)));
    assert!(bundle.roots().iter().map(|root| root.sha256).eq(expected));
    assert!(bundle.roots().iter().all(|root| root.not_after.unwrap().as_second() == NOW + 365 * DAY));
    assert_eq!(
        bundle.warnings(),
        [
            "block 2 of the trust anchors is ignored: it cannot be read",
            "block 3 of the trust anchors is ignored: it is a block PRIVATE KEY, and not a CERTIFICATE"
        ]
    );
    for (text, reason) in [
        ("", "have no certificate that a proxy can use"),
        ("\n", "have no certificate that a proxy can use"),
        (bad, "have no certificate that a proxy can use; block 1 of the trust anchors is ignored: it cannot be read"),
        (&"x".repeat((1 << 20) + 1), "are longer than"),
    ] {
        let problem = AnchorBundle::parse(text.as_bytes()).unwrap_err();
        assert_eq!(problem.split_once(reason).map(|(before, _)| before), Some("the trust anchors "), "{problem}");
    }
}

/// One certificate of a random chain: its signer, whether it is a CA, its path length, whether it is for servers only, its
/// end, and its place in the file.
type Link = (usize, bool, Option<u8>, bool, i64, u8);

fn link() -> impl Strategy<Value = Link> {
    let usually = |share: f64| prop::bool::weighted(share);
    (
        0..6usize,
        usually(0.9),
        prop::option::weighted(0.2, 0..2u8),
        usually(0.1),
        prop_oneof![3 => Just(DAY), 1 => -50..4000i64],
        any::<u8>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn exactly_the_issuers_are_used_whose_leaves_proxies_accept(
        links in prop::collection::vec(link(), 1..7),
        bridge in prop::option::of((0..2usize, 0..8usize)),
        trusted in prop::collection::hash_set(0..2usize, 1..3),
    ) {
        let roots = ["root", "root"].map(TestCa::root);
        let mut all: Vec<TestCa> = Vec::new();
        for (at, (signer, is_ca, path, servers_only, end, _)) in links.iter().enumerate() {
            let edit = |params: &mut CertificateParams| {
                params.is_ca = match (is_ca, path) {
                    (false, _) => IsCa::ExplicitNoCa,
                    (true, None) => IsCa::Ca(BasicConstraints::Unconstrained),
                    (true, Some(path)) => IsCa::Ca(BasicConstraints::Constrained(*path)),
                };
                if *servers_only {
                    params.extended_key_usages = vec![Usage::ServerAuth];
                }
                valid(params, -60, *end);
            };
            let signer = all.get(*signer).unwrap_or(&roots[signer % 2]);
            let next = signer.signs(&format!("ca {at}"), edit);
            all.push(next);
        }
        let own = all.len() - 1;
        // A second certificate of one of them, or of a root.
        if let Some((root, other)) = bridge {
            let twin = roots[root].signs_again(all.get(other).unwrap_or(&roots[1 - root]), |_| {});
            all.push(twin);
        }
        let mut file: Vec<_> = (0..all.len()).filter(|at| *at != own).collect();
        file.sort_by_key(|at| links.get(*at).map_or(0, |link| link.5));
        let file: Vec<_> = [own].into_iter().chain(file).map(|at| &all[at]).collect();
        let roots: Vec<_> = trusted.iter().map(|at| &roots[*at]).collect();

        let whole: Vec<_> = file.iter().map(|it| der(&it.pem)).collect();
        match load_of(&file, &roots) {
            Ok(issuer) => {
                let leaf = issue(&issuer);
                prop_assert_eq!(verify(&leaf.der, issuer.chain(), &pem_of(&roots)), Ok(()));
                prop_assert_eq!(verify(&leaf.der, &whole, &pem_of(&roots)), Ok(()));
                let reached: HashSet<_> = issuer.roots().iter().copied().collect();
                for root in &roots {
                    let is_reached = reached.contains(&sha256(&der(&root.pem)));
                    prop_assert_eq!(verify(&leaf.der, &whole, &root.pem).is_ok(), is_reached);
                }
            }
            Err(IssuerProblem::Expired(end)) => prop_assert!(end < now()),
            Err(_) => {
                // A leaf by the same key under a root of its own has the same bytes to verify.
                let anchors = AnchorBundle::parse(file[0].pem.as_bytes()).unwrap();
                let issuer = Issuer::load(file[0].pem.as_bytes(), file[0].key.serialize_pem().as_bytes(), &anchors, &domain(), now());
                if let Ok(issuer) = issuer {
                    prop_assert!(verify(&issue(&issuer).der, &whole, &pem_of(&roots)).is_err());
                }
            }
        }
    }

    #[test]
    fn any_files_can_be_read(at in 0..4000usize, byte: u8, cut in 0..4000usize) {
        let (file, key) = (fixture("under-rsa.crt"), fixture("p256.sec1"));
        let roots = AnchorBundle::parse(fixture("rsa-root.crt").as_bytes()).unwrap();
        let changed = |text: &str| {
            let mut text = text.as_bytes().to_vec();
            let length = text.len();
            text[at % length] = byte;
            text.truncate(if cut % 2 == 0 { length } else { cut % length });
            text
        };
        drop(Issuer::load(&changed(file), key.as_bytes(), &roots, &domain(), now()));
        drop(Issuer::load(file.as_bytes(), &changed(key), &roots, &domain(), now()));
        drop(AnchorBundle::parse(&changed(fixture("rsa-root.crt"))));
    }
}
