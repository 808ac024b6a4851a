//! The trust anchors of running proxies and the bundle in effect, after any sequence of changes of the bundle.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    cluster::index::workload_key::WorkloadKey,
    rollout::{
        assess::workload_state::{SkipReason, WorkloadState},
        assess_workload,
        schedule::RolloutSchedule,
        testing::{BEFORE, WANTED, World, time},
    },
    text::sha256,
};

const DEPLOYMENTS: usize = 3;

/// Returns a bundle with a certificate for each letter, and this text after them.
fn pem(letters: &str, end: &str) -> String {
    let certificate = |letter: char| {
        let body = ["YQ==", "Yg==", "Yw==", "ZA=="]["abcd".find(letter).unwrap()];
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    };
    letters.chars().map(certificate).collect::<String>() + end
}

/// The bundle with which a Pod was injected.
#[derive(Clone, Debug)]
struct Injected {
    text: String,
    anchors: BTreeSet<char>,
    /// The number of the write of the bundle.
    write: usize,
}

/// A mesh with two Pods in each Deployment, whose configuration is always out of date, and its operator.
struct Mesh {
    world: World,
    pods: BTreeMap<(usize, usize), Injected>,
    /// The bundle that injectors use.
    injected: Injected,
    /// The text in the ConfigMap.
    present: Option<String>,
    bundles: TrustBundles,
    /// The numbers of the writes that the operator has observed, and their texts without white space at the ends.
    observed: BTreeSet<usize>,
    observed_texts: BTreeSet<String>,
    approved: Option<String>,
}

impl Mesh {
    fn new(marker: &str) -> Self {
        let injected = Injected { text: pem("a", ""), anchors: ['a'].into(), write: 0 };
        let mut mesh = Self {
            world: World::new(&json!({})),
            pods: BTreeMap::new(),
            present: Some(injected.text.clone()),
            injected,
            bundles: TrustBundles::default(),
            observed: BTreeSet::new(),
            observed_texts: BTreeSet::new(),
            approved: None,
        };
        for deployment in 0..DEPLOYMENTS {
            let over = json!({"spec": {"replicas": 2}, "status": {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}});
            mesh.world.deployment(&format!("d{deployment}"), &over);
            for pod in 0..2 {
                mesh.create(deployment, pod, marker);
            }
        }
        mesh.reconcile();
        mesh
    }

    fn create(&mut self, deployment: usize, pod: usize, marker: &str) {
        let over = json!({"metadata": {"annotations": {"linkerd.io/trust-root-sha256": sha256(&self.injected.text)}}});
        self.world.pod(&format!("d{deployment}-{pod}"), &format!("d{deployment}"), Some(marker), &over);
        self.pods.insert((deployment, pod), self.injected.clone());
    }

    fn write(&mut self, letters: &str, end: &str) {
        let text = pem(letters, end);
        let write = self.injected.write + usize::from(text != self.injected.text);
        self.present = Some(text.clone());
        self.injected = Injected { text, anchors: letters.chars().collect(), write };
    }

    fn reconcile(&mut self) {
        if self.present.is_some() {
            self.observed.insert(self.injected.write);
            self.observed_texts.insert(self.injected.text.trim().to_owned());
        }
        let cluster = self.world.feed.cluster.clone();
        let is_carried = |hash: &str| cluster.read().pods.carry_trust_roots(hash);
        let present = self.present.as_deref();
        self.bundles.observe(present, None, Some(&is_carried));
        let wanted = self.bundles.in_effect(present);
        let is_approved = wanted.as_ref().is_some_and(|wanted| self.approved.as_deref() == Some(&*wanted.hash));
        self.world.target.proxies.trust = DesiredTrust { wanted, known: self.bundles.clone(), is_approved };
    }

    fn schedule(&self) -> RolloutSchedule {
        let mut schedule = RolloutSchedule::default();
        for deployment in 0..DEPLOYMENTS {
            let workload = WorkloadKey::new("ns", "Deployment", format!("d{deployment}"));
            let assessment = assess_workload(&self.world.feed.cluster.read(), &workload, &self.world.target);
            schedule.set(&workload, assessment, time("12:00:00"));
        }
        schedule
    }

    /// Returns the reason of the closed gate.
    fn gate(&self) -> Option<&'static str> {
        self.world.target.proxies.trust.gate(&self.schedule().totals.trust).map(|gate| gate.reason.as_str())
    }

    /// Restarts a Deployment as the engine does. Returns whether it was restarted, or how that disconnects other Pods.
    fn restart(&mut self, deployment: usize) -> Result<bool, String> {
        let trust = &self.world.target.proxies.trust;
        let is_injected = trust.wanted.as_ref().is_some_and(|wanted| *wanted.hash == sha256(&self.injected.text));
        let state = self.world.state("Deployment", &format!("d{deployment}"));
        if !is_injected || self.gate().is_some() || !matches!(state, WorkloadState::Pending(_)) {
            return Ok(false);
        }
        if !trust.is_approved {
            for ((other, pod), injected) in &self.pods {
                let is_observed = self.observed.contains(&injected.write);
                let is_connected = !injected.anchors.is_disjoint(&self.injected.anchors);
                if *other == deployment && !self.observed_texts.contains(injected.text.trim()) {
                    return Err(format!("Pod {other}-{pod} is restarted with unknown anchors"));
                }
                if *other != deployment && is_observed && !is_connected && !injected.anchors.is_empty() {
                    return Err(format!("Pod {other}-{pod} with {injected:?} is disconnected by {:?}", self.injected));
                }
            }
        }
        for pod in 0..2 {
            self.create(deployment, pod, BEFORE);
        }
        Ok(true)
    }
}

#[test]
fn a_bundle_that_is_deleted_and_created_with_other_anchors_needs_an_approval() {
    let mut mesh = Mesh::new(BEFORE);
    mesh.present = None;
    mesh.reconcile();
    assert_eq!(mesh.gate(), None, "injectors keep the bundle");
    mesh.write("b", "");
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("AwaitingApproval"));
    mesh.present = None;
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("AwaitingApproval"), "injectors keep the unapproved bundle");
}

#[test]
fn an_edit_of_a_bundle_that_awaits_approval_does_not_approve_it() {
    for (letters, end) in [("b", "\n"), ("bc", ""), ("cb", "# a comment\n"), ("", "")] {
        let mut mesh = Mesh::new(BEFORE);
        mesh.write("b", "");
        mesh.reconcile();
        mesh.write(letters, end);
        mesh.reconcile();
        assert_eq!(mesh.gate(), Some("AwaitingApproval"), "{letters} {end:?}");
    }
}

#[test]
fn a_second_rotation_before_the_first_has_reached_all_pods_needs_an_approval() {
    let mut mesh = Mesh::new(BEFORE);
    mesh.write("ab", "");
    mesh.reconcile();
    assert!(mesh.restart(0).unwrap() && mesh.restart(1).unwrap());
    mesh.write("b", "");
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("AwaitingApproval"), "the Pods of d2 trust only the first anchor");
    mesh.write("ab", "");
    mesh.reconcile();
    assert!(mesh.restart(2).unwrap());
    mesh.write("b", "");
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
}

#[test]
fn the_previous_bundle_is_restored_without_an_approval() {
    let mut mesh = Mesh::new(WANTED);
    mesh.write("b", "");
    mesh.reconcile();
    mesh.write("a", "");
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
    assert_eq!(mesh.world.state("Deployment", "d0"), WorkloadState::UpToDate);
}

#[test]
fn an_approval_is_for_one_bundle_and_opens_the_gate_for_it() {
    let mut mesh = Mesh::new(BEFORE);
    mesh.write("b", "");
    mesh.approved = Some(sha256(pem("b", "\n")));
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("AwaitingApproval"));
    mesh.approved = Some(sha256(pem("b", "")));
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
    let replaced =
        mesh.world.target.proxies.trust.replaced(&mesh.schedule().totals.trust).map(|(hash, _)| hash.to_owned());
    assert_eq!(replaced, Some(sha256(pem("b", ""))), "the status shows the bundle until no Pod needs the approval");
}

#[test]
fn another_text_of_the_same_certificates_restarts_nothing_and_keeps_the_key() {
    let mut mesh = Mesh::new(WANTED);
    let key = mesh.world.target.proxies.trust.key().map(str::to_owned);
    for end in ["\n", "# a comment\n", ""] {
        mesh.write("a", end);
        mesh.reconcile();
        for deployment in 0..DEPLOYMENTS {
            assert_eq!(mesh.world.state("Deployment", &format!("d{deployment}")), WorkloadState::UpToDate, "{end:?}");
        }
        assert_eq!((mesh.gate(), mesh.world.target.proxies.trust.key().map(str::to_owned)), (None, key.clone()));
    }
}

/// Everyone who can change a Pod can write its annotation.
#[test]
fn a_hash_that_was_never_observed_holds_only_the_workload_of_its_pods() {
    let mut mesh = Mesh::new(BEFORE);
    let forged = json!({"metadata": {"annotations": {"linkerd.io/trust-root-sha256": "forged"}}});
    mesh.world.pod("d1-0", "d1", Some(BEFORE), &forged);
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
    let skipped = WorkloadState::Skipped(SkipReason::UnknownTrustRoots);
    assert_eq!(mesh.world.state("Deployment", "d1"), skipped);
    assert!(matches!(mesh.world.state("Deployment", "d0"), WorkloadState::Pending(_)));
    mesh.approved = Some(sha256(pem("a", "")));
    mesh.reconcile();
    assert!(matches!(mesh.world.state("Deployment", "d1"), WorkloadState::Pending(_)), "approved");
}

/// A bundle that no Pod carries anymore is forgotten, so that a forged annotation cannot hold the mesh with it.
#[test]
fn a_forged_hash_of_a_retired_bundle_holds_only_the_workload_of_its_pods() {
    let mut mesh = Mesh::new(BEFORE);
    for letters in ["ab", "b"] {
        mesh.write(letters, "");
        mesh.reconcile();
        assert!((0..DEPLOYMENTS).all(|deployment| mesh.restart(deployment).unwrap()));
        mesh.reconcile();
    }
    let retired = json!({"metadata": {"annotations": {"linkerd.io/trust-root-sha256": sha256(pem("a", ""))}}});
    mesh.world.pod("d1-0", "d1", Some(BEFORE), &retired);
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
    assert_eq!(mesh.world.state("Deployment", "d1"), WorkloadState::Skipped(SkipReason::UnknownTrustRoots));
}

#[test]
fn more_bundles_than_can_be_compared_need_an_approval() {
    let trust = DesiredTrust {
        wanted: Some(TrustBundle::for_test("new", &["a"])),
        known: TrustBundles::for_test([TrustBundle::for_test("known", &["a"])]),
        is_approved: false,
    };
    let gate = trust.gate(&TrustCounts::from([("known".into(), 1)])).unwrap();
    assert_eq!(gate.reason.as_str(), "AwaitingApproval");
    assert!(gate.message.ends_with("config.linkerd.io/approve-trust-roots: new"), "{}", gate.message);
    assert_eq!(DesiredTrust { is_approved: true, ..trust }.gate(&TrustCounts::new()), None);
}

#[derive(Clone, Debug)]
enum Step {
    Write(&'static str, &'static str),
    Delete,
    Reconcile,
    /// A Pod is deleted and created again, for example by an autoscaler.
    Recreate(usize, usize),
    Restart(usize),
    /// A user approves the bundle that is present.
    Approve,
    /// Another replica, or a new resource, reads what was saved.
    TakeOver,
}

fn any_step() -> impl Strategy<Value = Step> {
    let letters = prop::sample::select(&["a", "b", "c", "ab", "bc", "ca", "abc", ""][..]);
    let end = prop::sample::select(&["", "\n", "# a comment\n"][..]);
    prop_oneof![
        4 => (letters, end).prop_map(|(letters, end)| Step::Write(letters, end)),
        1 => Just(Step::Delete),
        6 => Just(Step::Reconcile),
        2 => (0..DEPLOYMENTS, 0..2usize).prop_map(|(deployment, pod)| Step::Recreate(deployment, pod)),
        6 => (0..DEPLOYMENTS).prop_map(Step::Restart),
        1 => Just(Step::Approve),
        1 => Just(Step::TakeOver),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// No sequence of changes of the bundle lets the operator restart a Pod with a bundle that has none of the anchors
    /// of another live Pod, unless a user approved this bundle.
    #[test]
    fn no_restart_disconnects_a_pod_without_an_approval(steps in prop::collection::vec(any_step(), 0..60)) {
        let mut mesh = Mesh::new(BEFORE);
        for step in &steps {
            match step {
                Step::Write(letters, end) => mesh.write(letters, end),
                Step::Delete => mesh.present = None,
                Step::Reconcile => mesh.reconcile(),
                Step::Recreate(deployment, pod) => mesh.create(*deployment, *pod, BEFORE),
                Step::Restart(deployment) => {
                    let restarted = mesh.restart(*deployment);
                    prop_assert!(restarted.is_ok(), "{restarted:?}");
                }
                Step::Approve => mesh.approved = mesh.present.as_ref().map(sha256),
                Step::TakeOver => mesh.bundles = TrustBundles::from_json(Some(&mesh.bundles.to_json())),
            }
        }
        // With an approval of the bundle, every workload is restarted.
        mesh.write("d", "");
        mesh.approved = mesh.present.as_ref().map(sha256);
        mesh.reconcile();
        for deployment in 0..DEPLOYMENTS {
            prop_assert_eq!(mesh.restart(deployment), Ok(true));
        }
    }
}
