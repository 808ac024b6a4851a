//! A random walk: a user who always does the next step, proxies that renew at any time, Pods that are created at any time,
//! and declared roots that change.
//!
//! In: a seed. Out: the invariant of the mesh after each step: each proxy accepts the certificate of each other one; and the
//! number of restarts, if a LinkerdConfig restarts only proxies without a sufficient root. The user writes the issuer, or
//! only the next one, and the operator writes the issuer.
//!
//! The model knows nothing of the code under test but its sentences and what it writes into the bundle, and decides by sets of roots.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use zeroize::Zeroizing;

use super::super::{
    SeenTrust, TrustReport,
    behind::BehindState,
    bundle_change::{BundleChange, addition, removal},
    distrusted::DistrustedRoots,
    issuer_change::{IssuerBasis, IssuerFile, IssuerStep, SeenIssuers},
    problems::TrustVerdict,
    seen::{NotSeen, SeenLeaves},
    testing::{Mesh, at, declaring_bridged, root_of, workload},
};
use crate::{
    api::{
        LinkerdTrustStatus,
        linkerd_trust::{TrustPhase, TrustReason},
    },
    text::sha256,
    x509::{
        anchor_set::AnchorSet,
        anchors::AnchorBundle,
        certificate::ChainCertificate,
        testing::{DAY, TestCa, der, pem_of},
    },
};

type Roots = BTreeSet<usize>;
/// The root of an issuer, and the bridges after it: a root, and the one that signed a bridge to it.
type Issued = (usize, BTreeSet<(usize, usize)>);

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
const PROXIES: usize = 3;
const STEPS: usize = 120;
/// In the second half, the declared roots do not change.
const CHANGES_UNTIL: usize = 60;
const SEEDS: u64 = 300;

/// Three roots, an issuer of each, and the bridges between them.
struct WalkPki {
    roots: Vec<TestCa>,
    issuers: Vec<TestCa>,
    bridges: HashMap<(usize, usize), TestCa>,
    /// What was reported about each situation.
    reported: HashMap<String, Said>,
}

#[derive(Clone)]
struct Said {
    phase: TrustPhase,
    next: String,
    /// The proxies that are behind, and whether they refuse certificates.
    behind: Vec<(usize, bool)>,
    is_broken: bool,
    sufficient: Roots,
    distrusted: Roots,
    /// The issuer that the operator writes, and whether it saves the present one before; and whether it says that it needs
    /// another next one.
    written: Option<(Issued, bool)>,
    needs_next: bool,
    /// The bundle after what the operator adds, and after what it removes.
    added: Roots,
    left: Roots,
}

struct WalkProxy {
    trusts: Roots,
    presents: Issued,
    issued: usize,
    /// How often it was restarted because of its roots.
    restarts: usize,
}

/// What a mesh has.
#[derive(Clone, Copy, Debug)]
struct WalkMesh {
    has_bridges: bool,
    /// Whether a LinkerdConfig restarts proxies, and not the user. Bridges are declared.
    has_rollouts: bool,
    /// Whether the operator writes the issuer.
    manages_issuer: bool,
    /// Whether all roots are distrusted that are not declared.
    is_distrusting: bool,
}

struct Walk {
    bundle: Roots,
    secret: Issued,
    /// The next and the previous issuer, if the operator writes the issuer.
    next: Option<Issued>,
    previous: Option<Issued>,
    declared: Roots,
    proxies: Vec<WalkProxy>,
    clock: usize,
    mesh: WalkMesh,
    /// The declared bridge.
    bridge: Option<(usize, usize)>,
    random: u64,
}

// === impl WalkPki ===

impl WalkPki {
    fn new() -> Self {
        let roots: Vec<_> = (1..).zip(NAMES).map(|(age, name)| root_of(name, -DAY * age)).collect();
        let issuers =
            roots.iter().zip(NAMES).map(|(root, name)| root.signs(&format!("issuer of {name}"), |_| {})).collect();
        let mut bridges = HashMap::new();
        for (to, new) in roots.iter().enumerate() {
            for (from, old) in roots.iter().enumerate().filter(|(from, _)| *from != to) {
                bridges.insert((to, from), old.signs_again(new, |_| {}));
            }
        }
        Self { roots, issuers, bridges, reported: HashMap::new() }
    }

    fn chain(&self, (root, bridges): &Issued) -> Vec<&TestCa> {
        [&self.issuers[*root]].into_iter().chain(bridges.iter().map(|bridge| &self.bridges[bridge])).collect()
    }

    fn file(&self, issued: &Issued) -> IssuerFile {
        let key = Zeroizing::new(self.issuers[issued.0].key.serialize_pem().into_bytes());
        IssuerFile { certificates: pem_of(&self.chain(issued)).into_bytes(), key }
    }

    /// What a file has.
    fn issued(&self, certificates: &str) -> Issued {
        let has = |ca: &TestCa| certificates.contains(ca.pem.trim());
        let root = self.issuers.iter().position(has).unwrap();
        (root, self.bridges.iter().filter(|(_, bridge)| has(bridge)).map(|(bridge, _)| *bridge).collect())
    }

    /// What the operator does with the issuer, if nothing but what is shown decides.
    fn issuer_step(&self, walk: &Walk, mesh: &Mesh, report: &TrustReport) -> IssuerStep {
        let SeenTrust { desired, bundle, settings, now, .. } = &mesh.0;
        let bundle = &bundle.as_ref().unwrap().pem;
        let is_ready = report.progress.may_switch();
        let ready = Condition {
            type_: "ReadyToSwitch".to_owned(),
            status: if is_ready { "True" } else { "False" }.to_owned(),
            reason: "Synced".to_owned(),
            message: "not ready".to_owned(),
            observed_generation: Some(1),
            last_transition_time: Time(*now),
        };
        let status = LinkerdTrustStatus {
            observed_generation: Some(1),
            trust_roots_sha256: Some(sha256(bundle)),
            sufficient_anchors: report.sufficient.clone(),
            conditions: vec![ready],
            ready_to_switch_at: Some(Time(*now)),
            ..LinkerdTrustStatus::default()
        };
        let basis = IssuerBasis {
            namespace: "linkerd",
            settings,
            declared: desired.as_ref().unwrap(),
            bundle,
            bundle_written: None,
            status: &status,
            generation: 1,
            now: *now,
        };
        let file = |issued: &Option<Issued>| issued.as_ref().map(|issued| self.file(issued));
        let present = self.file(&walk.secret);
        basis.step(&SeenIssuers {
            present,
            next: file(&walk.next),
            previous: file(&walk.previous),
            ..SeenIssuers::default()
        })
    }

    fn said(&mut self, walk: &Walk) -> Said {
        let newest = walk.proxies.iter().max_by_key(|proxy| proxy.issued).unwrap().presents.clone();
        let proxies: Vec<_> = walk.proxies.iter().map(|proxy| (&proxy.trusts, &proxy.presents)).collect();
        let issuers = (&walk.secret, &walk.next, &walk.previous, walk.mesh.manages_issuer);
        let key = format!("{:?} {:?} {:?} {issuers:?} {newest:?} {proxies:?}", walk.bundle, walk.declared, walk.bridge);
        if let Some(said) = self.reported.get(&key) {
            return said.clone();
        }
        let roots = |roots: &Roots| roots.iter().map(|root| &self.roots[*root]).collect::<Vec<_>>();
        let bridges: Vec<_> = walk.bridge.iter().map(|bridge| &self.bridges[bridge]).collect();
        let mesh = Mesh::new(&roots(&walk.bundle), &[]);
        let signers = roots(&walk.bridge.iter().map(|(_, signer)| *signer).collect());
        let mut mesh = declaring_bridged(mesh, &roots(&walk.declared), &bridges, &signers);
        let mut presented = BTreeMap::<Issued, usize>::new();
        for (number, proxy) in walk.proxies.iter().enumerate() {
            let anchors = AnchorSet::of(&pem_of(&roots(&proxy.trusts)));
            mesh.0.proxies.add(workload("Deployment", &number.to_string()), Some(&anchors), 1);
            *presented.entry(proxy.presents.clone()).or_default() += 1;
        }
        let mut leaves = SeenLeaves::default();
        for (chain, proxies) in presented {
            let sent = self.chain(&chain).into_iter().map(|ca| ChainCertificate::parse(&der(&ca.pem)).unwrap());
            leaves.add(&sent.collect::<Vec<_>>(), proxies, at(if chain == newest { 0 } else { -3600 }));
        }
        mesh.0.leaves = Some(leaves);
        mesh.0.issuer = Err(NotSeen::Unread("it is not read".to_owned()));
        let hash = |root: usize| sha256(der(&self.roots[root].pem));
        if let Some(desired) = &mut mesh.0.desired {
            let others = (0..NAMES.len()).filter(|root| !walk.declared.contains(root)).collect();
            if walk.mesh.is_distrusting {
                let others = AnchorBundle::parse(pem_of(&roots(&others)).as_bytes()).unwrap();
                desired.distrusted = DistrustedRoots::new(others, false);
            }
            desired.manages_issuer = walk.mesh.manages_issuer;
        }
        let report = mesh.report();
        let step = walk.mesh.manages_issuer.then(|| self.issuer_step(walk, &mesh, &report));
        let (bundle, declared) = (pem_of(&roots(&walk.bundle)), mesh.0.desired.as_ref().unwrap());
        let roots_of = |bundle: &str| -> Roots {
            let has = |root: &TestCa| AnchorSet::of(&root.pem).shares_anchor(&AnchorSet::of(bundle));
            (0..NAMES.len()).filter(|root| has(&self.roots[*root])).collect()
        };
        let written = |change: Option<BundleChange>| roots_of(&change.map_or(bundle.clone(), |change| change.text));
        let listed = |hashes: &[String]| (0..NAMES.len()).filter(|root| hashes.contains(&hash(*root))).collect();
        let said = Said {
            needs_next: matches!(
                step,
                Some(IssuerStep::Held(TrustReason::IssuerAwaited | TrustReason::IssuerRefused, _))
            ),
            written: match step {
                Some(IssuerStep::Write(new)) => Some((self.issued(&new.certificates), new.saves_present)),
                _ => None,
            },
            sufficient: listed(&report.sufficient),
            distrusted: listed(&report.distrusted),
            added: written(addition(&bundle, declared).unwrap()),
            left: written(removal(&bundle, declared).unwrap()),
            phase: report.progress.phase,
            behind: report
                .behind
                .iter()
                .map(|row| (row.name.parse().unwrap(), row.state == BehindState::Refuses))
                .collect(),
            is_broken: report.verdict == TrustVerdict::Broken,
            next: report.next_step.sentence,
        };
        self.reported.insert(key, said.clone());
        said
    }
}

/// Returns the roots that a sentence names after these words.
fn named_after(sentence: &str, words: &str) -> Option<usize> {
    let rest = sentence.split_once(words)?.1;
    NAMES.iter().position(|name| rest.starts_with(&format!("{name} (")))
}

// === impl Walk ===

impl Walk {
    fn new(seed: u64, mesh: WalkMesh) -> Self {
        let first = || (0, BTreeSet::new());
        let proxy = || WalkProxy { trusts: [0].into(), presents: first(), issued: 0, restarts: 0 };
        let mut walk = Self {
            bundle: [0].into(),
            secret: first(),
            next: None,
            previous: None,
            declared: [1].into(),
            proxies: (0..PROXIES).map(|_| proxy()).collect(),
            clock: 0,
            mesh,
            bridge: None,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        };
        walk.declare(1);
        walk
    }

    fn declare(&mut self, root: usize) {
        self.declared = [root].into();
        let is_declared =
            self.mesh.has_bridges && (self.mesh.has_rollouts || self.mesh.manages_issuer) && self.secret.0 != root;
        self.bridge = is_declared.then_some((root, self.secret.0));
    }

    /// Restarts a proxy that has no sufficient root, or a distrusted one, if a new one is better.
    fn roll_out(&mut self, said: &Said) -> Option<usize> {
        let helps = !self.bundle.is_disjoint(&said.sufficient);
        let is_behind = |WalkProxy { trusts, .. }: &WalkProxy| {
            helps && (trusts.is_disjoint(&said.sufficient) || !trusts.is_disjoint(&said.distrusted))
        };
        let proxy = self.proxies.iter().position(is_behind)?;
        self.create(proxy);
        self.proxies[proxy].restarts += 1;
        Some(proxy)
    }

    fn random(&mut self, below: u64) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from((self.random >> 11) % below).unwrap()
    }

    fn renew(&mut self, proxy: usize) {
        self.clock += 1;
        self.proxies[proxy].presents = self.secret.clone();
        self.proxies[proxy].issued = self.clock;
    }

    fn create(&mut self, proxy: usize) {
        self.proxies[proxy].trusts = self.bundle.clone();
        self.renew(proxy);
    }

    /// The operator writes the issuer, or the user the next one. A user who has other things to do leaves an older one there.
    fn write_issuer(&mut self, said: &Said) -> bool {
        match &said.written {
            Some((issued, saves_present)) => {
                let present = std::mem::replace(&mut self.secret, issued.clone());
                if *saves_present {
                    self.previous = Some(present);
                }
            }
            None if said.needs_next => {
                let root = *self.declared.first().unwrap();
                self.next = Some((root, BTreeSet::new()));
            }
            None => return false,
        }
        true
    }

    /// Does what the sentence says.
    fn obey(&mut self, said: &Said) {
        let next = &said.next;
        let issuer = named_after(next, "write an issuer of ").or(named_after(next, "Before the issuer of "));
        let signer = named_after(next, "after it a bridge that ").filter(|_| self.mesh.has_bridges);
        let declared = self.bridge.filter(|_| next.contains("after it the declared bridge"));
        let manages = self.mesh.manages_issuer;
        if manages && said.phase != TrustPhase::Adding && self.write_issuer(said) {
            return;
        }
        match said.phase {
            TrustPhase::Spreading if manages && self.mesh.has_rollouts => {}
            TrustPhase::Spreading if manages => said.behind.iter().for_each(|(proxy, _)| self.create(*proxy)),
            TrustPhase::AwaitingIssuer if manages => {}
            TrustPhase::Adding => self.bundle.clone_from(&said.added),
            TrustPhase::Spreading if signer.is_some() => {
                let root = issuer.unwrap();
                self.secret = (root, signer.into_iter().map(|signer| (root, signer)).collect());
            }
            TrustPhase::Spreading if self.mesh.has_rollouts => {}
            TrustPhase::Spreading => said.behind.iter().for_each(|(proxy, _)| self.create(*proxy)),
            // What is written already is kept.
            TrustPhase::AwaitingIssuer if Some(self.secret.0) != issuer => {
                self.secret = (issuer.unwrap(), declared.into_iter().collect());
            }
            TrustPhase::Renewing => {
                let proxy = self.random(3);
                self.renew(proxy);
            }
            // The operator asks the identity service before.
            TrustPhase::Retiring if manages && !self.declared.contains(&self.secret.0) => {}
            TrustPhase::Retiring => {
                let issuer = named_after(next, "has an issuer of ").unwrap();
                let bridge = named_after(next, "after it the bridge that ").map(|signer| (issuer, signer));
                // The first half of the step takes effect before the second.
                if !manages
                    && (self.secret.0 != issuer || bridge.is_some_and(|bridge| !self.secret.1.contains(&bridge)))
                {
                    self.secret = (issuer, bridge.into_iter().collect());
                } else {
                    self.bundle.clone_from(&said.left);
                }
            }
            _ => {}
        }
    }

    fn refused(&self) -> Option<String> {
        let reach = |(root, bridges): &Issued| {
            let mut reached = Roots::from([*root]);
            while let Some((_, signer)) =
                bridges.iter().find(|(to, signer)| reached.contains(to) && !reached.contains(signer))
            {
                reached.insert(*signer);
            }
            reached
        };
        let mut pairs = self.proxies.iter().flat_map(|one| self.proxies.iter().map(move |other| (one, other)));
        let refused = pairs.find(|(one, other)| reach(&one.presents).is_disjoint(&other.trusts));
        refused.map(|(one, other)| format!("{:?} refuses {:?}", other.trusts, one.presents))
    }
}

/// `changes`: the maximum number of changes of the declared roots. Returns the number of restarts of each proxy, or the story
/// of a walk that goes wrong.
fn walk(pki: &mut WalkPki, seed: u64, mesh: WalkMesh, changes: usize) -> Result<Vec<usize>, String> {
    let (mut walk, mut left, mut story) = (Walk::new(seed, mesh), changes, Vec::new());
    for step in 0..STEPS {
        let said = pki.said(&walk);
        let happened = match walk.random(10) {
            0 | 1 => {
                let proxy = walk.random(3);
                walk.renew(proxy);
                format!("{proxy} renews")
            }
            2 => {
                let proxy = walk.random(3);
                walk.create(proxy);
                format!("{proxy} is created again")
            }
            3 if left > 0 && step < CHANGES_UNTIL => {
                left -= 1;
                let root = walk.random(3);
                walk.declare(root);
                format!("{:?} is declared", walk.declared)
            }
            4..=6 if mesh.has_rollouts => match walk.roll_out(&said) {
                Some(proxy) => format!("{proxy} is restarted"),
                None => "no proxy must restart".to_owned(),
            },
            _ => {
                walk.obey(&said);
                said.next.clone()
            }
        };
        let proxies: Vec<_> = walk.proxies.iter().map(|it| format!("{:?} {:?}", it.trusts, it.presents)).collect();
        story.push(format!("{:?}: {happened} | {:?} {:?} | {proxies:?}", said.phase, walk.bundle, walk.secret));
        if let Some(refused) = walk.refused() {
            return Err(format!("{refused} after\n{}", story.join("\n")));
        }
    }
    (0..PROXIES).for_each(|proxy| walk.renew(proxy));
    let mut said = pki.said(&walk);
    while mesh.is_distrusting && walk.roll_out(&said).is_some() {
        said = pki.said(&walk);
    }
    if mesh.is_distrusting && walk.proxies.iter().any(|proxy| !proxy.trusts.is_subset(&walk.declared)) {
        return Err(format!("a proxy trusts a distrusted root after\n{}", story.join("\n")));
    }
    let is_end = matches!(said.phase, TrustPhase::Steady | TrustPhase::Complete) && !said.is_broken;
    if is_end {
        Ok(walk.proxies.iter().map(|proxy| proxy.restarts).collect())
    } else {
        Err(format!("it ends as {:?}: {}\n{}", said.phase, said.next, story.join("\n")))
    }
}

/// Walks with each seed. Returns the highest number of restarts of one proxy in one walk.
fn walks(pki: &mut WalkPki, mesh: WalkMesh, changes: usize) -> usize {
    let walked: Vec<_> = (1..=SEEDS).map(|seed| walk(pki, seed, mesh, changes)).collect();
    let wrong: Vec<_> = walked.iter().filter_map(|walk| walk.as_ref().err()).collect();
    let shortest = wrong.iter().min_by_key(|story| story.len());
    assert!(wrong.is_empty(), "{mesh:?}, changes {changes}: {} of {SEEDS}: {}", wrong.len(), shortest.unwrap());
    walked.into_iter().flat_map(Result::unwrap).max().unwrap()
}

#[test]
fn a_user_who_does_each_next_step_breaks_no_connection_and_arrives() {
    let mut pki = WalkPki::new();
    for (has_bridges, changes) in [(true, 0), (false, 0), (true, 3), (false, 3)] {
        walks(&mut pki, WalkMesh { has_bridges, has_rollouts: false, ..ROLLOUTS }, changes);
    }
}

/// Walks with and without bridges. Without changes, each proxy is restarted this often.
fn walk_each_way(mesh: WalkMesh, [over_bridge, without]: [usize; 2]) {
    let mut pki = WalkPki::new();
    for (has_bridges, changes, restarts) in
        [(true, 0, Some(over_bridge)), (false, 0, Some(without)), (true, 3, None), (false, 3, None)]
    {
        let found = walks(&mut pki, WalkMesh { has_bridges, ..mesh }, changes);
        assert!(restarts.is_none_or(|restarts| restarts == found), "bridges {has_bridges}: {found} restarts");
    }
}

const ROLLOUTS: WalkMesh =
    WalkMesh { has_bridges: false, has_rollouts: true, manages_issuer: false, is_distrusting: false };

#[test]
fn with_a_declared_bridge_no_proxy_is_restarted_and_without_one_each_once() {
    walk_each_way(ROLLOUTS, [0, 1]);
}

#[test]
fn an_issuer_that_the_operator_writes_breaks_no_connection_and_the_mesh_arrives() {
    walk_each_way(WalkMesh { manages_issuer: true, ..ROLLOUTS }, [0, 1]);
}

#[test]
fn a_distrusted_root_leaves_each_proxy_with_one_restart_over_a_bridge_and_with_two_without() {
    walk_each_way(WalkMesh { manages_issuer: true, is_distrusting: true, ..ROLLOUTS }, [1, 2]);
}
