//! The trust anchors of running proxies and the bundle in effect, after any sequence of changes of the bundle.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    cluster::{Problems, Projected, index::workload_key::WorkloadKey},
    rollout::{
        assess::workload_state::WorkloadState,
        assess_workload,
        schedule::RolloutSchedule,
        testing::{BEFORE, WANTED, World, injected_with, time, with},
    },
    x509::testing::anchors,
};

const DEPLOYMENTS: usize = 3;

/// The bundle with which a Pod was injected.
#[derive(Clone, Debug)]
struct Injected {
    text: String,
    anchors: BTreeSet<char>,
}

/// A mesh with two Pods in each Deployment, whose configuration is always out of date, and its operator.
struct Mesh {
    world: World,
    pods: BTreeMap<(usize, usize), Injected>,
    /// The bundle that injectors use.
    injected: Injected,
    /// The text in the ConfigMap.
    present: Option<String>,
    approved: Option<String>,
}

impl Mesh {
    fn new(marker: &str) -> Self {
        let injected = Injected { text: anchors("a"), anchors: ['a'].into() };
        let mut mesh = Self {
            world: World::new(&json!({})),
            pods: BTreeMap::new(),
            present: Some(injected.text.clone()),
            injected,
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
        let over = injected_with(Some(marker), Some(&self.injected.text));
        self.world.pod(&format!("d{deployment}-{pod}"), &format!("d{deployment}"), Some(marker), &over);
        self.pods.insert((deployment, pod), self.injected.clone());
    }

    fn write(&mut self, letters: &str, end: &str) {
        let text = anchors(letters) + end;
        self.present = Some(text.clone());
        self.injected = Injected { text, anchors: letters.chars().collect() };
    }

    fn reconcile(&mut self) {
        let wanted = self.present.as_deref().map(|present| TrustBundle::new(present, None, None));
        let is_approved = wanted.as_ref().is_some_and(|wanted| self.approved.as_deref() == Some(&*wanted.hash));
        self.world.target.proxies.trust = DesiredTrust { wanted, is_approved };
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
            for (key, injected) in &self.pods {
                // A tenth of the six Pods is one.
                let is_connected = !injected.anchors.is_disjoint(&self.injected.anchors);
                if !is_connected && !injected.anchors.is_empty() {
                    return Err(format!("Pod {key:?} with {injected:?} is disconnected by {:?}", self.injected));
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
fn a_bundle_that_is_deleted_holds_all_restarts_until_it_is_restored() {
    let mut mesh = Mesh::new(BEFORE);
    mesh.present = None;
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("WaitingForConfigMap"), "what injectors use is unknown");
    mesh.write("b", "");
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("AwaitingApproval"));
    mesh.write("a", "");
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
    assert_eq!(DesiredTrust::default().gate(&TrustCounts::new()), None, "no Pod shows trust anchors");
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
    mesh.approved = Some(sha256(anchors("b") + "\n"));
    mesh.reconcile();
    assert_eq!(mesh.gate(), Some("AwaitingApproval"));
    mesh.approved = Some(sha256(anchors("b")));
    mesh.reconcile();
    assert_eq!(mesh.gate(), None);
    let trust = &mesh.world.target.proxies.trust;
    let replaced = trust.replaced(&mesh.schedule().totals.trust).map(|(hash, pods)| (hash.to_owned(), pods));
    assert_eq!(
        replaced,
        Some((sha256(anchors("b")), 6)),
        "the status shows the bundle until no Pod needs the approval"
    );
}

#[test]
fn another_text_of_the_same_certificates_restarts_nothing() {
    let mut mesh = Mesh::new(WANTED);
    for end in ["\n", "# a comment\n", ""] {
        mesh.write("a", end);
        mesh.reconcile();
        for deployment in 0..DEPLOYMENTS {
            assert_eq!(mesh.world.state("Deployment", &format!("d{deployment}")), WorkloadState::UpToDate, "{end:?}");
        }
        assert_eq!(mesh.gate(), None);
    }
}

/// A LinkerdTrust that declares anchors, whose status is about this bundle and has these sufficient ones.
fn declaring(bundle: &str, letters: &str) -> serde_json::Value {
    let hashes: Vec<_> = AnchorSet::of(&anchors(letters)).fingerprints().iter().map(crate::text::hex).collect();
    json!({
        "metadata": {"name": "mesh", "generation": 2},
        "spec": {"anchors": {"pem": "declared"}},
        "status": {"observedGeneration": 2, "trustRootsSHA256": sha256(anchors(bundle)), "sufficientAnchors": hashes,
            "phase": "Complete", "proxies": {"unobserved": 0}},
    })
}

fn desired(bundle: &str, trust: &serde_json::Value) -> DesiredTrust {
    let trust = LinkerdTrust::project(serde_json::from_value(trust.clone()).unwrap(), &mut Problems::default());
    let wanted = Some(TrustBundle::new(&anchors(bundle), Some(&trust), None));
    DesiredTrust { wanted, is_approved: false }
}

/// Whether Pods with these anchors restart, and whether all restarts wait.
fn decided(trust: &DesiredTrust, carried: &str) -> (bool, bool) {
    let restarts = trust.differs_from(Some(&AnchorSet::of(&anchors(carried))));
    (restarts, trust.gate(&counts(&[("app", carried, 3), ("other", carried, 3)])).is_some())
}

#[test]
fn proxies_that_trust_a_sufficient_anchor_are_up_to_date_and_need_no_approval() {
    // The bundle, the sufficient anchors, those of a proxy, whether it restarts, whether all restarts wait.
    for (bundle, sufficient, carried, restarts, waits) in [
        ("ab", "ab", "a", false, false),
        ("ab", "b", "a", true, false),
        ("b", "ab", "a", false, false),
        ("b", "ab", "abc", false, false),
        ("b", "ab", "c", true, true),
        ("b", "b", "a", true, true),
        ("ab", "", "a", false, false),
        ("b", "", "a", false, true),
        // A new Pod would be no better.
        ("b", "a", "b", false, false),
        ("b", "a", "c", false, true),
    ] {
        let trust = desired(bundle, &declaring(bundle, sufficient));
        assert_eq!(decided(&trust, carried), (restarts, waits), "{carried} with {bundle}, {sufficient:?} suffices");
    }
    let with_spec = |spec: serde_json::Value| {
        let mut trust = declaring("b", "ab");
        trust["spec"] = spec;
        desired("b", &trust)
    };
    let always = with_spec(json!({"anchors": {"pem": "declared"}, "restarts": "Always"}));
    assert_eq!(decided(&always, "a"), (true, false), "no proxy keeps an old anchor");
    assert_eq!(decided(&with_spec(json!({})), "a"), (true, true), "no anchors are declared");
}

#[test]
fn a_status_about_another_bundle_or_with_unobserved_proxies_opens_no_gate_and_restarts_nothing() {
    for (path, value) in [
        ("/status/trustRootsSHA256", json!(sha256(anchors("ab")))),
        ("/status/observedGeneration", json!(1)),
        ("/status/phase", json!("Renewing")),
        ("/status/proxies/unobserved", json!(1)),
    ] {
        let mut trust = declaring("b", "ab");
        *trust.pointer_mut(path).unwrap() = value;
        let (found, is_current) = (desired("b", &trust), !path.ends_with("SHA256") && !path.ends_with("Generation"));
        assert_eq!(decided(&found, "a"), (false, true), "{path}");
        assert_eq!(found.differs_from(Some(&AnchorSet::of(&anchors("c")))), is_current, "{path}");
    }
}

#[test]
fn a_proxy_without_a_required_anchor_of_the_bundle_restarts() {
    for (bundle, carried, restarts) in [("abd", "a", true), ("abd", "ad", false), ("ab", "a", false)] {
        let mut trust = declaring(bundle, "ab");
        let required = AnchorSet::of(&anchors("d")).fingerprints().iter().map(crate::text::hex).collect::<Vec<_>>();
        trust["status"]["requiredAnchors"] = json!(required);
        assert_eq!(decided(&desired(bundle, &trust), carried).0, restarts, "{carried} with {bundle}");
    }
}

/// A LinkerdTrust after a rotation from `a` to `b`, which distrusts `a`, and whose status has these proxies with it.
fn distrusting(connections: &str, exposed: i64) -> serde_json::Value {
    let mut trust = declaring("b", "ab");
    let old: Vec<_> = AnchorSet::of(&anchors("a")).fingerprints().iter().map(crate::text::hex).collect();
    trust["spec"]["distrust"] = json!({"pem": "distrusted", "connections": connections});
    trust["status"]["distrustedAnchors"] = json!(old);
    trust["status"]["proxies"]["exposed"] = json!(exposed);
    trust
}

#[test]
fn a_proxy_that_trusts_a_distrusted_anchor_restarts_once_the_bundle_has_none() {
    for (bundle, carried, restarts) in
        [("b", "a", true), ("b", "ab", true), ("b", "bc", false), ("ab", "ab", false), ("ab", "a", false)]
    {
        let mut trust = distrusting("Keep", 3);
        trust["status"]["trustRootsSHA256"] = json!(sha256(anchors(bundle)));
        assert_eq!(decided(&desired(bundle, &trust), carried), (restarts, false), "{carried} with {bundle}");
    }
}

#[test]
fn only_if_connections_may_be_cut_no_approval_is_needed_before_certificates_are_renewed() {
    for (connections, waits) in [("Keep", true), ("Cut", false)] {
        let mut trust = distrusting(connections, 6);
        trust["status"]["phase"] = json!("Spreading");
        assert_eq!(decided(&desired("b", &trust), "a"), (true, waits), "{connections}");
        trust["status"]["sufficientAnchors"] = json!([]);
        assert_eq!(decided(&desired("b", &trust), "a"), (false, true), "the status does not say what is enough");
    }
}

#[test]
fn while_proxies_trust_a_distrusted_anchor_a_quarter_of_the_workloads_restarts_at_once_and_no_window_holds_them() {
    let mut target = World::new(&json!({})).target;
    target.rollout = serde_json::from_value(json!({
        "maxConcurrent": 2, "interval": "10s", "window": {"allow": [{"cron": "0 3 * * *", "duration": "1h"}]},
    }))
    .unwrap();
    for (exposed, at_once, in_namespace, interval) in [(1, 10, 10, 0), (0, 2, 1, 10)] {
        target.proxies.trust = desired("b", &distrusting("Keep", exposed));
        assert_eq!((target.max_concurrent(40), target.max_concurrent_per_namespace(40)), (at_once, in_namespace));
        assert_eq!((target.interval().as_secs(), target.window().is_some()), (interval, exposed == 0));
        assert_eq!(target.max_concurrent(5), 2);
    }
    target.rollout.max_concurrent = serde_json::from_value(json!("50%")).unwrap();
    target.proxies.trust = desired("b", &distrusting("Keep", 1));
    assert_eq!(target.max_concurrent(40), 20, "what is declared is more");
}

/// Returns the counts of Pods: the namespace, the anchors, the number.
fn counts(pods: &[(&str, &str, i64)]) -> TrustCounts {
    let key = |namespace: &str, letters: &str| (Arc::new(AnchorSet::of(&anchors(letters))), Arc::from(namespace));
    pods.iter().map(|(namespace, letters, count)| (key(namespace, letters), *count)).collect()
}

/// Whether Pods with these anchors close the gate of a bundle.
fn is_closed(bundle: &str, pods: &[(&str, &str, i64)]) -> bool {
    let wanted = Some(TrustBundle::new(&anchors(bundle), None, None));
    DesiredTrust { wanted, is_approved: false }.gate(&counts(pods)).is_some()
}

/// Everyone who can create a Pod can write a proxy with any anchors into it.
#[test]
fn a_tenant_with_anchors_of_its_own_holds_no_restart() {
    assert!(!is_closed("a", &[("app", "a", 20), ("tenant", "d", 2)]));
    assert!(
        !is_closed("a", &[("app", "a", 20), ("tenant", "ad", 1), ("tenant", "d", 1)]),
        "an anchor beside the mesh's"
    );
    assert!(is_closed("a", &[("app", "a", 20), ("tenant", "d", 3)]), "more than a tenth of all");
}

#[test]
fn pods_that_trust_only_a_replaced_anchor_hold_restarts_while_the_mesh_trusts_it() {
    assert!(is_closed("b", &[("app", "a", 20), ("web", "a", 1)]));
    assert!(is_closed("b", &[("app", "ab", 200), ("web", "a", 1)]), "one Pod is left behind in a rotation");
    assert!(!is_closed("b", &[("app", "ab", 200), ("web", "ab", 1)]));
    assert!(
        !is_closed("b", &[("app", "b", 200), ("web", "b", 50), ("tenant", "a", 1)]),
        "nobody else trusts it any more"
    );
}

/// A bundle without a common anchor is replaced by hand. Then Pods come and go, and tenants create others.
#[test]
fn no_number_of_other_pods_opens_the_gate() {
    assert!(is_closed("b", &[("app", "a", 7), ("app", "b", 60)]));
    assert!(is_closed("b", &[("app", "a", 1), ("web", "a", 1), ("app", "b", 9_000), ("tenant", "b", 9_000)]));
    let mut mesh = Mesh::new(BEFORE);
    mesh.write("b", "");
    mesh.reconcile();
    for number in 0..40 {
        let over = injected_with(Some(BEFORE), Some(&anchors("b")));
        let over = with(over, &json!({"status": {"phase": "Pending"}}));
        mesh.world.pod(&format!("pending-{number}"), "d0", Some(BEFORE), &over);
    }
    assert_eq!(mesh.gate(), Some("AwaitingApproval"));
    assert_eq!(mesh.schedule().totals.trust.values().sum::<i64>(), 6, "Pods that do not run are no evidence");
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
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// No sequence of changes of the bundle lets the operator restart a Pod with a bundle that has none of the anchors
    /// of another Pod of the mesh, unless a user approved this bundle.
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
