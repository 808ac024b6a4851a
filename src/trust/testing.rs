//! For tests: a mesh, as it was read of a cluster.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{
    TrustReport,
    problems::TrustVerdict,
    seen::{
        DeclaredRoots, LeafSettings, MeshedWorkload, NotSeen, SeenBundle, SeenIssuer, SeenLeaves, SeenProxies,
        SeenTrust,
    },
};
use crate::x509::{
    anchor_set::AnchorSet,
    anchors::{AnchorBundle, RootCertificate},
    certificate::ChainCertificate,
    testing::{DAY, TestCa, der, now, pem_of, valid},
};

/// Two roots, an issuer of each, and the bridge from the old one.
pub(super) struct Pki {
    pub(super) old: TestCa,
    pub(super) new: TestCa,
    pub(super) old_issuer: TestCa,
    pub(super) new_issuer: TestCa,
    pub(super) bridge: TestCa,
}

/// A mesh.
pub(super) struct Mesh(pub(super) SeenTrust);

impl Pki {
    pub(super) fn new() -> Self {
        let (old, new) = (root_of("old", -300 * DAY), root_of("new", -DAY));
        let issuer = |root: &TestCa, name: &str| root.signs(name, |_| {});
        let bridge = old.signs_again(&new, |_| {});
        Self { old_issuer: issuer(&old, "old issuer"), new_issuer: issuer(&new, "new issuer"), bridge, old, new }
    }
}

/// A root that is valid from this second on, for 400 days.
pub(super) fn root_of(name: &str, begin: i64) -> TestCa {
    let TestCa { key, mut params, .. } = TestCa::root(name);
    valid(&mut params, begin, begin + 400 * DAY);
    let pem = params.self_signed(&key).unwrap().pem();
    TestCa { key, params, pem }
}

pub(super) fn at(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

impl Mesh {
    /// A mesh with this bundle, whose issuer was written two days ago.
    pub(super) fn new(bundle: &[&TestCa], issuer: &[&TestCa]) -> Self {
        Self(SeenTrust {
            namespace: "linkerd".to_owned(),
            desired: None,
            leaves: None,
            is_renewed: false,
            signing_since: None,
            held: None,
            issuer_condition: None,
            bundle: Ok(SeenBundle {
                pem: pem_of(bundle),
                written: Some(at(-DAY)),
                is_by_operator: false,
                source: None,
            }),
            issuer: SeenIssuer::read(&pem_of(issuer), Some(at(-2 * DAY))),
            proxies: SeenProxies::default(),
            renewed_root: None,
            settings: LeafSettings {
                trust_domain: "cluster.local".to_owned(),
                lifetime: SignedDuration::from_hours(24),
                longest_lifetime: SignedDuration::from_hours(24),
                clock_skew: SignedDuration::from_secs(20),
            },
            is_writer_silent: false,
            is_guarded: false,
            linked_clusters: BTreeSet::new(),
            now: now(),
        })
    }

    /// Adds Pods of a Deployment with these anchors.
    pub(super) fn pods(mut self, name: &str, count: usize, anchors: &[&TestCa]) -> Self {
        self.0.proxies.add(workload("Deployment", name), Some(&AnchorSet::of(&pem_of(anchors))), count);
        self
    }

    pub(super) fn report(&self) -> TrustReport {
        TrustReport::new(&self.0)
    }

    pub(super) fn verdict(&self) -> TrustVerdict {
        self.report().verdict
    }

    #[track_caller]
    pub(super) fn next(&self, beginning: &str) {
        let report = self.report();
        assert!(report.next_step.sentence.contains(beginning), "{report:#?}");
    }
}

pub(super) fn workload(kind: &str, name: &str) -> MeshedWorkload {
    MeshedWorkload { namespace: "app".to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

#[track_caller]
pub(super) fn reports(report: &TrustReport, verdict: TrustVerdict, part: &str) {
    let found = report.problems.iter().any(|it| it.verdict == verdict && it.message.contains(part));
    assert!(found, "no {verdict:?} with {part:?} in {report:#?}");
}

/// The proxies of a mesh, asked for their certificates: the chains that they send, and the number of proxies of each.
pub(super) fn presenting(mut mesh: Mesh, chains: &[(&[&TestCa], usize)], unobserved: usize) -> Mesh {
    let mut leaves = SeenLeaves { unobserved, ..SeenLeaves::default() };
    for (age, (chain, proxies)) in (0..).zip(chains) {
        let chain: Vec<_> = chain.iter().map(|ca| ChainCertificate::parse(&der(&ca.pem)).unwrap()).collect();
        leaves.add(&chain, *proxies, at(-3600 * age));
    }
    mesh.0.leaves = Some(leaves);
    mesh.0.issuer = Err(NotSeen::Unread("it is not read".to_owned()));
    mesh
}

pub(super) fn declaring(mut mesh: Mesh, roots: &[&TestCa]) -> Mesh {
    let bundle = AnchorBundle::parse(pem_of(roots).as_bytes()).unwrap();
    mesh.0.desired = Some(DeclaredRoots::only("mesh", bundle));
    mesh
}

/// The same, with bridges, and the roots that signed them.
pub(super) fn declaring_bridged(mesh: Mesh, roots: &[&TestCa], bridges: &[&TestCa], signers: &[&TestCa]) -> Mesh {
    let mut mesh = declaring(mesh, roots);
    let desired = mesh.0.desired.as_mut().unwrap();
    desired.bridges = bridges.iter().map(|ca| ChainCertificate::parse(&der(&ca.pem)).unwrap()).collect();
    desired.signers = signers.iter().map(|ca| RootCertificate::parse(&der(&ca.pem)).unwrap()).collect();
    mesh
}
