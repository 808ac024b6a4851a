//! Tests of the next issuer: which one is written, when, and what is refused.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use rcgen::{KeyPair, PKCS_ED25519};
use serde_json::{from_value, json};
use zeroize::Zeroizing;

use super::{IssuerBasis, IssuerFile, IssuerPlace, IssuerStep, SeenIssuers};
use crate::{
    api::{
        LinkerdTrustStatus,
        linkerd_trust::{TrustPhase, TrustProxiesStatus, TrustReason},
    },
    text::sha256,
    trust::{
        distrusted::DistrustedRoots,
        seen::{DeclaredRoots, LeafSettings},
        testing::{Pki, at, root_of},
    },
    x509::{
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
        testing::{DAY, TestCa, der, now, pem_of, valid},
    },
};

/// What a LinkerdTrust says, and what the bundle has.
pub(super) struct Situation {
    declared: DeclaredRoots,
    bundle: String,
    bundle_written: Option<Timestamp>,
    status: LinkerdTrustStatus,
    now: Timestamp,
}

pub(super) fn file(chain: &[&TestCa]) -> IssuerFile {
    IssuerFile {
        certificates: pem_of(chain).into_bytes(),
        key: Zeroizing::new(chain[0].key.serialize_pem().into_bytes()),
    }
}

pub(super) fn seen(present: &[&TestCa], next: &[&TestCa]) -> SeenIssuers {
    SeenIssuers { present: file(present), next: (!next.is_empty()).then(|| file(next)), ..SeenIssuers::default() }
}

impl Situation {
    /// A mesh whose bundle has these roots, and which should have the declared ones.
    pub(super) fn new(bundle: &[&TestCa], declared: &[&TestCa]) -> Self {
        let declared = AnchorBundle::parse(pem_of(declared).as_bytes()).unwrap();
        let declared =
            DeclaredRoots { is_enforced: true, manages_issuer: true, ..DeclaredRoots::only("mesh", declared) };
        let (bundle, bundle_written) = (pem_of(bundle), Some(at(-DAY)));
        Self { declared, bundle, bundle_written, status: LinkerdTrustStatus::default(), now: now() }
    }

    pub(super) fn bridged(mut self, bridges: &[&TestCa], signers: &[&TestCa]) -> Self {
        self.declared.bridges = bridges.iter().map(|ca| ChainCertificate::parse(&der(&ca.pem)).unwrap()).collect();
        self.declared.signers = signers.iter().map(|ca| RootCertificate::parse(&der(&ca.pem)).unwrap()).collect();
        self
    }

    /// The status says about this bundle that proxies which trust one of these roots are ready, or why not.
    pub(super) fn ready(mut self, ready: Result<&[&TestCa], &str>) -> Self {
        let hash = |root: &&TestCa| sha256(der(&root.pem));
        self.status = LinkerdTrustStatus {
            observed_generation: Some(1),
            trust_roots_sha256: Some(sha256(&self.bundle)),
            sufficient_anchors: ready.unwrap_or_default().iter().map(hash).collect(),
            ready_to_switch_at: ready.is_ok().then(|| Time(at(-180))),
            conditions: vec![Condition {
                type_: "ReadyToSwitch".to_owned(),
                status: if ready.is_ok() { "True" } else { "False" }.to_owned(),
                reason: "Synced".to_owned(),
                message: ready.err().unwrap_or_default().to_owned(),
                observed_generation: Some(1),
                last_transition_time: Time(now()),
            }],
            ..LinkerdTrustStatus::default()
        };
        self
    }

    fn step_at(&self, generation: i64, seen: &SeenIssuers) -> IssuerStep {
        let (status, settings) = (&self.status, &LeafSettings::of(None));
        let Self { declared, bundle, bundle_written, now, .. } = self;
        let (bundle_written, now) = (*bundle_written, *now);
        IssuerBasis { namespace: "linkerd", settings, declared, bundle, bundle_written, status, generation, now }
            .step(seen)
    }

    pub(super) fn step(&self, seen: &SeenIssuers) -> IssuerStep {
        self.step_at(1, seen)
    }

    #[track_caller]
    pub(super) fn writes(&self, seen: &SeenIssuers, place: IssuerPlace, chain: &[&TestCa]) {
        let IssuerStep::Write(new) = self.step(seen) else { panic!("{:?}", self.step(seen)) };
        assert_eq!((new.place, new.certificates), (place, pem_of(chain)));
    }

    #[track_caller]
    pub(super) fn holds(&self, seen: &SeenIssuers, reason: TrustReason, part: &str) {
        match self.step(seen) {
            IssuerStep::Held(found, message) => {
                assert!(found == reason && message.contains(part), "{found:?} {message}");
            }
            step => panic!("{step:?}"),
        }
    }

    #[track_caller]
    fn is_synced(&self, seen: &SeenIssuers) {
        assert!(matches!(self.step(seen), IssuerStep::Synced(_)), "{:?}", self.step(seen));
    }
}

#[test]
fn with_a_declared_bridge_the_next_issuer_is_written_at_once_and_the_bridge_after_it() {
    let pki = Pki::new();
    let situation = Situation::new(&[&pki.old, &pki.new], &[&pki.new]).bridged(&[&pki.bridge], &[&pki.old]);
    let (chain, next): (&[&TestCa], &[&TestCa]) = (&[&pki.new_issuer, &pki.bridge], &[&pki.new_issuer]);
    situation.writes(&seen(&[&pki.old_issuer], next), IssuerPlace::Next, chain);
    situation.writes(&seen(&[&pki.old_issuer], chain), IssuerPlace::Next, chain);
    situation.is_synced(&seen(chain, next));
    situation.is_synced(&seen(chain, &[]));
    let own = Situation::new(&[&pki.old, &pki.new], &[&pki.new]);
    own.writes(&seen(&[&pki.old_issuer], chain), IssuerPlace::Next, chain);
    situation.writes(&seen(&[&pki.new_issuer], next), IssuerPlace::Next, chain);
    own.is_synced(&seen(chain, next));
    let adding = Situation::new(&[&pki.old], &[&pki.new]).bridged(&[&pki.bridge], &[&pki.old]);
    adding.holds(&seen(&[&pki.old_issuer], chain), TrustReason::IssuerHeld, "the bundle lacks new (");
}

#[test]
fn an_intermediate_certificate_of_the_present_issuer_is_not_needed_if_the_status_says_so() {
    let pki = Pki::new();
    let between = pki.old.signs("between", |_| {});
    let present = between.signs("old issuer", |_| {});
    let situation = || Situation::new(&[&pki.old, &pki.new], &[&pki.new]).bridged(&[&pki.bridge], &[&pki.old]);
    let (chain, issuers): (&[&TestCa], _) =
        (&[&pki.new_issuer, &pki.bridge], seen(&[&present, &between], &[&pki.new_issuer]));
    situation().ready(Ok(&[&pki.old, &pki.new])).writes(&issuers, IssuerPlace::Next, chain);
    // Proxies may trust it as a root: whether they do is in the status.
    situation().holds(&issuers, TrustReason::IssuerHeld, "the status");
}

#[test]
fn without_a_bridge_the_next_issuer_waits_until_the_status_says_that_all_proxies_accept_it() {
    let pki = Pki::new();
    let both = || Situation::new(&[&pki.old, &pki.new], &[&pki.new]);
    let issuers = seen(&[&pki.old_issuer], &[&pki.new_issuer]);
    both().holds(
        &issuers,
        TrustReason::IssuerHeld,
        "the status of LinkerdTrust mesh is not about the present bundle and spec yet",
    );
    let mut spreading = both().ready(Ok(&[&pki.new]));
    spreading.status.conditions.clear();
    spreading.status.phase = Some(TrustPhase::Spreading);
    spreading.holds(&issuers, TrustReason::IssuerHeld, "(the phase is Spreading)");
    let mut flipped = both().ready(Ok(&[&pki.new]));
    flipped.bundle_written = Some(at(-239));
    flipped.holds(&issuers, TrustReason::IssuerHeld, "new Pods may still get the previous bundle");
    flipped.bundle_written = Some(at(-240));
    flipped.writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
    both().ready(Err("restart it")).holds(&issuers, TrustReason::IssuerHeld, "next waits: restart it");
    let ready = both().ready(Ok(&[&pki.new]));
    ready.writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
    assert!(matches!(ready.step_at(2, &issuers), IssuerStep::Held(..)), "the spec has changed");
    let mut other = both().ready(Ok(&[&pki.new]));
    other.bundle = pem_of(&[&pki.new, &pki.old]);
    other.holds(&issuers, TrustReason::IssuerHeld, "the present bundle");
    for needed in [&[&pki.new, &pki.old][..], &[]] {
        both().ready(Ok(needed)).holds(&issuers, TrustReason::IssuerHeld, "status.sufficientAnchors");
    }
}

#[test]
fn an_issuer_that_does_not_reach_a_root_that_is_unknown_here_is_not_written() {
    let pki = Pki::new();
    let third = root_of("third", 0);
    // Proxies may trust only the old root, which is neither in the bundle nor declared.
    let present: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
    let (next, bridge) = (third.signs("third issuer", |_| {}), pki.new.signs_again(&third, |_| {}));
    let situation = Situation::new(&[&pki.new, &third], &[&third]).bridged(&[&bridge], &[&pki.new]);
    let chain: &[&TestCa] = &[&next, &bridge, &pki.bridge];
    situation.writes(&seen(present, &[&next]), IssuerPlace::Next, chain);
    let alone = pki.old.signs("old issuer", |_| {});
    let unknown =
        "an unknown root has signed a certificate of the present issuer (old issuer), and proxies may trust only";
    situation.holds(&seen(&[&alone], &[&next]), TrustReason::IssuerHeld, unknown);
    // No status is about proxies that trust only such a root.
    let mut ready = Situation::new(&[&pki.new, &third], &[&third]).ready(Ok(&[&third]));
    let lost = "an unknown root has signed a certificate of the present issuer (new)";
    ready.holds(&seen(present, &[&next]), TrustReason::IssuerHeld, lost);
    // Until each proxy trusts the next root.
    for (trusted_by, cut_off, is_written) in [(8, 0, false), (9, 1, false), (9, 0, true)] {
        let anchor = json!({"subject": "third", "sha256": sha256(der(&third.pem)), "desired": true, "inBundle": true,
            "trustedBy": trusted_by, "presentedBy": 0});
        ready.status.anchors = vec![from_value(anchor).unwrap()];
        ready.status.proxies =
            Some(TrustProxiesStatus { total: 9 + cut_off, cut_off, ..TrustProxiesStatus::default() });
        ready.status.trust_roots_written = Some(Time(at(-DAY)));
        match is_written {
            true => ready.writes(&seen(present, &[&next]), IssuerPlace::Next, &[&next]),
            false => ready.holds(&seen(present, &[&next]), TrustReason::IssuerHeld, lost),
        }
    }
    let mid = pki.new.signs("between", |_| {});
    let below = mid.signs("issuer below", |_| {});
    let short = pki.old.signs_again(&pki.new, |params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(1));
    });
    let of_new = Situation::new(&[&pki.new], &[&pki.new]);
    of_new.holds(&seen(&[&pki.new_issuer, &short], &[&below, &mid]), TrustReason::IssuerHeld, lost);
    of_new.writes(&seen(present, &[&below, &mid]), IssuerPlace::Next, &[&below, &mid, &pki.bridge]);
    let beside = pki.old.signs_again(&pki.new, |_| {});
    let of_new = Situation::new(&[&pki.new, &pki.old], &[&pki.old]);
    of_new.holds(&seen(&[&pki.new_issuer, &beside], &[&pki.old_issuer]), TrustReason::IssuerHeld, "the status");
}

#[test]
fn after_the_old_root_is_declared_again_the_previous_issuer_is_written() {
    let pki = Pki::new();
    let present: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
    let back = |situation: &Situation| {
        let mut issuers = seen(present, &[&pki.new_issuer]);
        issuers.previous = Some(file(&[&pki.old_issuer]));
        situation.writes(&issuers, IssuerPlace::Previous, &[&pki.old_issuer]);
        issuers.present = file(&[&pki.old_issuer]);
        let IssuerStep::Synced(message) = situation.step(&issuers) else { panic!("{:?}", situation.step(&issuers)) };
        assert!(
            message.ends_with("That of Secret linkerd-identity-issuer-next does not, and is not used"),
            "{message}"
        );
        issuers.next_certificate = Some("issuer".to_owned());
        situation.holds(&issuers, TrustReason::IssuerRefused, "does not belong to a declared trust anchor");
        issuers.next = None;
        situation.is_synced(&issuers);
        let without = SeenIssuers { present: file(present), ..SeenIssuers::default() };
        situation.holds(&without, TrustReason::IssuerAwaited, "write an issuer of old (");
    };
    back(&Situation::new(&[&pki.old, &pki.new], &[&pki.old]).ready(Ok(&[&pki.old])));
    let waiting = Situation::new(&[&pki.old, &pki.new], &[&pki.old]).ready(Err("new Pods trust only the new root"));
    let mut issuers = seen(present, &[]);
    issuers.previous = Some(file(&[&pki.old_issuer]));
    waiting.holds(&issuers, TrustReason::IssuerHeld, "previous waits: new Pods trust only");
    // An issuer that people wrote meanwhile comes first.
    issuers.next = Some(file(&[&pki.old.signs("another", |_| {})]));
    waiting.holds(&issuers, TrustReason::IssuerHeld, "-next waits");
}

#[test]
fn an_issuer_that_proxies_or_the_identity_service_would_refuse_is_not_written() {
    let pki = Pki::new();
    let situation = Situation::new(&[&pki.old, &pki.new], &[&pki.new]).bridged(&[&pki.bridge], &[&pki.old]);
    let refused = |next: IssuerFile, part: &str| {
        let issuers = SeenIssuers { present: file(&[&pki.old_issuer]), next: Some(next), ..SeenIssuers::default() };
        situation.holds(&issuers, TrustReason::IssuerRefused, part);
    };
    let of = |edit: &dyn Fn(&mut rcgen::CertificateParams)| pki.new.signs("next", |params| edit(params));
    let edited = |edit: &dyn Fn(&mut rcgen::CertificateParams)| file(&[&of(edit)]);
    let (key, other) = (pki.new_issuer.key.serialize_pem(), pki.old_issuer.key.serialize_pem());
    let pem = |certificates: &str, key: &str| IssuerFile {
        certificates: certificates.as_bytes().to_vec(),
        key: Zeroizing::new(key.as_bytes().to_vec()),
    };
    refused(pem(&pki.new_issuer.pem, &other), "has the key of another certificate");
    refused(pem(&pki.new_issuer.pem, ""), "has a key file that has no private key");
    refused(pem("", &key), "has no certificate");
    refused(pem("-----BEGIN CERTIFICATE-----\nAAAA\n", &key), "is not valid PEM");
    refused(file(&[&pki.bridge, &pki.new_issuer]), "does not belong to a declared trust anchor");
    // Also that of the present issuer.
    for root in [&pki.old, &pki.new] {
        refused(file(&[root]), "is a trust anchor itself: write an issuer that it has signed");
    }
    refused(edited(&|params| valid(params, -2 * DAY, -DAY)), "ends at ");
    refused(edited(&|params| valid(params, -DAY, DAY)), "within the lifetime of a certificate (24 h)");
    refused(edited(&|params| valid(params, DAY, 9 * DAY)), "is valid only from ");
    refused(edited(&|params| params.is_ca = rcgen::IsCa::ExplicitNoCa), "is not a certificate authority");
    refused(
        edited(&|params| params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth]),
        "does not belong to a declared trust anchor",
    );
    let (third, stranger) = (root_of("third", 0), root_of("new", 0));
    refused(file(&[&third.signs("next", |_| {})]), "does not belong to a declared trust anchor: declared is new (");
    refused(file(&[&stranger.signs("next", |_| {})]), "does not belong to a declared trust anchor");
    let ed25519 = pki.new.signs_key("next", KeyPair::generate_for(&PKCS_ED25519).unwrap(), |_| {});
    refused(file(&[&ed25519]), "has an Ed25519 key, which cannot sign certificates of proxies");
    let only = |name: &str| {
        let permitted = vec![rcgen::GeneralSubtree::DnsName(name.to_owned())];
        edited(&move |params| {
            params.name_constraints =
                Some(rcgen::NameConstraints { permitted_subtrees: permitted.clone(), excluded_subtrees: Vec::new() });
        })
    };
    refused(only("linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local"), "trust anchor (");
    let excluding = |root: &TestCa| {
        let excluded =
            vec![rcgen::GeneralSubtree::DnsName("app.serviceaccount.identity.linkerd.cluster.local".to_owned())];
        root.signs("next", |params| {
            params.name_constraints =
                Some(rcgen::NameConstraints { permitted_subtrees: Vec::new(), excluded_subtrees: excluded.clone() });
        })
    };
    refused(file(&[&excluding(&pki.new)]), "excludes names by its name constraints");
    let again = excluding(&pki.new);
    situation.writes(&seen(&[&excluding(&pki.new), &pki.bridge], &[&again]), IssuerPlace::Next, &[&again, &pki.bridge]);
    let short = of(&|params| valid(params, -DAY, 2 * DAY));
    situation.writes(&seen(&[&pki.old_issuer], &[&short]), IssuerPlace::Next, &[&short, &pki.bridge]);
}

#[test]
fn what_is_broken_at_present_does_not_prevent_its_repair() {
    let pki = Pki::new();
    let situation = Situation::new(&[&pki.old], &[&pki.old]);
    let mut issuers = seen(&[&pki.old_issuer], &[&pki.old_issuer]);
    situation.is_synced(&issuers);
    issuers.present = IssuerFile { key: Zeroizing::new(b"torn".to_vec()), ..file(&[&pki.old_issuer]) };
    situation.writes(&issuers, IssuerPlace::Next, &[&pki.old_issuer]);
    issuers.present = IssuerFile { certificates: b"torn".to_vec(), ..file(&[&pki.old_issuer]) };
    situation.holds(&issuers, TrustReason::IssuerHeld, "the status");
    let ready = Situation::new(&[&pki.old], &[&pki.old]).ready(Ok(&[&pki.old]));
    ready.writes(&issuers, IssuerPlace::Next, &[&pki.old_issuer]);
    let ended = pki.old.signs("ended", |params| valid(params, -9 * DAY, -DAY));
    issuers.present = file(&[&ended]);
    situation.holds(&issuers, TrustReason::IssuerHeld, "the status");
}

#[test]
fn the_mesh_is_at_rest_when_the_rotation_is_complete_and_each_proxy_was_observed() {
    let pki = Pki::new();
    let is_at_rest = |phase: TrustPhase, unobserved: i64, generation: i64| {
        let mut situation = Situation::new(&[&pki.new], &[&pki.new]).ready(Ok(&[&pki.new]));
        situation.status.phase = Some(phase);
        situation.status.proxies = Some(TrustProxiesStatus { unobserved, ..TrustProxiesStatus::default() });
        let Situation { declared, bundle, bundle_written, status, now } = &situation;
        let (bundle_written, now) = (*bundle_written, *now);
        let settings = &LeafSettings { lifetime: SignedDuration::from_hours(1), ..LeafSettings::of(None) };
        IssuerBasis { namespace: "linkerd", settings, declared, bundle, bundle_written, status, generation, now }
            .is_at_rest()
    };
    assert!(is_at_rest(TrustPhase::Complete, 0, 1) && is_at_rest(TrustPhase::Steady, 0, 1));
    assert!(!is_at_rest(TrustPhase::Renewing, 0, 1) && !is_at_rest(TrustPhase::Complete, 1, 1));
    assert!(!is_at_rest(TrustPhase::Steady, 0, 2), "the status is about another spec");
}

#[test]
fn a_bridge_that_ends_before_a_certificate_of_the_issuer_does_is_not_enough() {
    let pki = Pki::new();
    let bridge = |hours: i64| pki.old.signs_again(&pki.new, |params| valid(params, -DAY, hours * 3600));
    let declaring = |bridge: &TestCa| {
        Situation::new(&[&pki.old, &pki.new], &[&pki.new])
            .bridged(&[bridge], &[&pki.old])
            .ready(Ok(&[&pki.old, &pki.new]))
    };
    let issuers = || seen(&[&pki.old_issuer], &[&pki.new_issuer]);
    let (long, short) = (bridge(25), bridge(23));
    declaring(&long).writes(&issuers(), IssuerPlace::Next, &[&pki.new_issuer, &long]);
    declaring(&short).holds(&issuers(), TrustReason::IssuerHeld, "for the lifetime of a certificate");
    // Without the renewed issuer, these proxies would be refused at the same time.
    let again = pki.new.signs("issuer again", |_| {});
    let present: &[&TestCa] = &[&pki.new_issuer, &short];
    declaring(&short).writes(&seen(present, &[&again]), IssuerPlace::Next, &[&again, &short]);
    let ending = pki.old.signs("ending", |params| valid(params, -DAY, 10 * 3600));
    let shorter = bridge(9);
    declaring(&shorter).holds(&seen(&[&ending], &[&pki.new_issuer]), TrustReason::IssuerHeld, "sufficientAnchors");
}

#[test]
fn the_way_back_survives_a_renewed_issuer_another_bridge_and_a_broken_secret() {
    let pki = Pki::new();
    let both: &[&TestCa] = &[&pki.old, &pki.new];
    let saves_with = |declared: &[&TestCa], present: IssuerFile, next: &[&TestCa], previous: Option<&TestCa>| {
        let situation = Situation::new(both, declared).bridged(&[&pki.bridge], &[&pki.old]);
        let previous = previous.map(|issuer| file(&[issuer]));
        let issuers = SeenIssuers { present, next: Some(file(next)), previous, ..SeenIssuers::default() };
        let step = situation.ready(Ok(&[&pki.old, &pki.new])).step(&issuers);
        let IssuerStep::Write(new) = step else { panic!("{step:?}") };
        new.saves_present
    };
    let saves = |present: IssuerFile, next: &[&TestCa], previous: Option<&TestCa>| {
        saves_with(&[&pki.new], present, next, previous)
    };
    let (old, again) = (Some(&pki.old_issuer), pki.new.signs("issuer again", |_| {}));
    assert!(saves_with(both, file(&[&pki.old_issuer]), &[&pki.new_issuer], Some(&again)), "both roots are declared");
    assert!(saves(file(&[&pki.old_issuer]), &[&pki.new_issuer], None));
    assert!(saves(file(&[&pki.old_issuer]), &[&pki.new_issuer], Some(&again)), "what is there is no way back");
    assert!(!saves(file(&[&pki.new_issuer, &pki.bridge]), &[&again], old), "it belongs to the same root");
    assert!(saves(file(&[&pki.new_issuer, &pki.bridge]), &[&again], None), "if nothing else is there");
    let ended = pki.old.signs("ended", |params| valid(params, -9 * DAY, -DAY));
    assert!(saves(file(&[&pki.new_issuer, &pki.bridge]), &[&again], Some(&ended)), "what is there cannot be used");
    assert!(!saves(file(&[&pki.new_issuer]), &[&pki.new_issuer], None), "only the bridge is added");
    let torn = || Zeroizing::new(b"torn".to_vec());
    assert!(!saves(IssuerFile { key: torn(), ..file(&[&pki.old_issuer]) }, &[&pki.new_issuer], old));
    assert!(!saves(IssuerFile { certificates: b"torn".to_vec(), key: torn() }, &[&pki.new_issuer], old));
}

#[test]
fn proxies_that_trust_a_certificate_of_the_present_chain_as_a_root_are_not_forgotten() {
    let pki = Pki::new();
    // The new root has signed the old one, so the old one is not in the bundle any more.
    let reverse = pki.new.signs_again(&pki.old, |_| {});
    let situation = Situation::new(&[&pki.new], &[&pki.new]);
    for present in [&[&pki.old_issuer, &reverse][..], &[&pki.old, &reverse]] {
        situation.holds(&seen(present, &[&pki.new_issuer]), TrustReason::IssuerHeld, "the status");
    }
    let chain: &[&TestCa] = &[&pki.new_issuer, &pki.bridge];
    let written: &[&TestCa] = &[&pki.new_issuer, &pki.bridge, &reverse];
    situation.writes(&seen(&[&pki.old_issuer, &reverse], chain), IssuerPlace::Next, written);
}

#[test]
fn a_bridge_that_permits_only_the_control_plane_is_no_bridge() {
    let pki = Pki::new();
    let name = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
    let narrow = pki.old.signs_again(&pki.new, |params| {
        params.name_constraints = Some(rcgen::NameConstraints {
            permitted_subtrees: vec![rcgen::GeneralSubtree::DnsName(name.to_owned())],
            excluded_subtrees: Vec::new(),
        });
    });
    let situation = Situation::new(&[&pki.old, &pki.new], &[&pki.new]).bridged(&[&narrow], &[&pki.old]);
    situation.holds(&seen(&[&pki.old_issuer], &[&pki.new_issuer]), TrustReason::IssuerHeld, "the status");
}

#[test]
fn what_the_status_says_counts_for_minutes_and_for_each_certificate_of_a_root() {
    let pki = Pki::new();
    let issuers = seen(&[&pki.old_issuer], &[&pki.new_issuer]);
    let mut ready = Situation::new(&[&pki.old, &pki.new], &[&pki.new]).ready(Ok(&[&pki.new]));
    ready.writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
    ready.status.ready_to_switch_at = Some(Time(at(-181)));
    ready.holds(&issuers, TrustReason::IssuerHeld, "has not renewed the condition ReadyToSwitch");
    ready.status.ready_to_switch_at = None;
    ready.holds(&issuers, TrustReason::IssuerHeld, "it is not known yet");
    let again = pki.new.signs_again(&pki.new, |params| valid(params, -DAY, 800 * DAY));
    let twice = Situation::new(&[&pki.old, &pki.new, &again], &[&again]).ready(Ok(&[&pki.new, &again]));
    twice.writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
}

#[test]
fn an_issuer_that_is_sent_with_more_certificates_than_are_read_of_a_proxy_is_refused() {
    let pki = Pki::new();
    let mut chain = vec![pki.new.signs("1", |_| {})];
    for number in 2..8 {
        let next = chain.last().unwrap().signs(&number.to_string(), |_| {});
        chain.push(next);
    }
    let of = |count: usize| chain.iter().take(count).rev().collect::<Vec<_>>();
    let situation = Situation::new(&[&pki.new], &[&pki.new]);
    situation.writes(&seen(&[&pki.new_issuer], &of(6)), IssuerPlace::Next, &of(6));
    situation.holds(&seen(&[&pki.new_issuer], &of(7)), TrustReason::IssuerRefused, "more than 6 certificates");
}

#[test]
fn while_connections_are_cut_from_the_root_of_the_present_issuer_the_next_one_waits_only_for_the_bundle() {
    let (pki, newer) = (Pki::new(), root_of("newer", -DAY));
    let newer_issuer = newer.signs("newer issuer", |_| {});
    let situation = |bundle: &[&TestCa], declared: &TestCa, is_cut| {
        let mut situation = Situation::new(bundle, &[declared]);
        let distrusted = AnchorBundle::parse(pki.old.pem.as_bytes()).unwrap();
        situation.declared.distrusted = DistrustedRoots::new(distrusted, is_cut);
        situation
    };
    let issuers = seen(&[&pki.old_issuer], &[&pki.new_issuer]);
    situation(&[&pki.new, &pki.old], &pki.new, true).writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
    situation(&[&pki.new], &pki.new, true).writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
    situation(&[&pki.old], &pki.new, true).holds(&issuers, TrustReason::IssuerHeld, "does not have its root yet");
    situation(&[&pki.new, &pki.old], &pki.new, false).holds(&issuers, TrustReason::IssuerHeld, "waits");
    let odd = root_of("odd", -DAY);
    let mut one_of_two = situation(&[&pki.new, &pki.old], &pki.new, true);
    one_of_two.declared.bundle = AnchorBundle::parse(pem_of(&[&pki.new, &odd]).as_bytes()).unwrap();
    one_of_two.writes(&issuers, IssuerPlace::Next, &[&pki.new_issuer]);
    one_of_two.declared.distrusted.is_cut = false;
    one_of_two.holds(&issuers, TrustReason::IssuerHeld, "the bundle lacks odd");
    // A bridge of the present issuer is not lost for a renewal under the stolen root.
    let carrier = root_of("carrier", -DAY);
    let (renewed, kept) = (pki.old.signs("renewed", |_| {}), carrier.signs_again(&pki.old, |_| {}));
    let renewal = seen(&[&pki.old_issuer, &kept], &[&renewed]);
    let step = situation(&[&pki.new, &pki.old], &pki.new, true).step(&renewal);
    let kept = situation(&[&pki.new, &pki.old], &pki.new, false).step(&renewal);
    assert_eq!(step, kept, "Cut changes nothing about an issuer of the stolen root");
    let renamed = pki.old.renamed("renamed");
    let of_renamed = seen(&[&renamed.signs("issuer of renamed", |_| {})], &[&pki.new_issuer]);
    let situation_of = situation(&[&pki.new, &renamed], &pki.new, true);
    situation_of.writes(&of_renamed, IssuerPlace::Next, &[&pki.new_issuer]);
    // The declared root has signed the stolen one, whose issuer does not become one of the declared root by it.
    let reverse = pki.new.signs_again(&pki.old, |_| {});
    let reversed = seen(&[&pki.old_issuer, &reverse], &[&pki.new_issuer]);
    situation(&[&pki.new], &pki.new, true).writes(&reversed, IssuerPlace::Next, &[&pki.new_issuer]);
    // After the rotation, what was distrusted makes no other one unsafe.
    let later = seen(&[&pki.new_issuer, &pki.bridge], &[&newer_issuer]);
    situation(&[&newer, &pki.new], &newer, true).holds(&later, TrustReason::IssuerHeld, "waits");
}
