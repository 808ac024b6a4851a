//! An issuer that comes too early, with a LinkerdTrust.

use std::{fs, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use serde_json::json;

use super::{tests::Followed, trust_guard::TrustGuard};
use crate::{
    api::{LinkerdTrustStatus, linkerd_trust::TrustPhase},
    cluster::{Problems, Projected, kinds::linkerd_trust::LinkerdTrust},
    events::Reason,
    testing::LoggedLines,
    trust::seen::LeafSettings,
    x509::testing::{self, DAY, TestCa},
};

/// A follower with a LinkerdTrust, from [`testing::now`] on.
struct GuardedIssuer {
    followed: Followed,
    trust: Arc<Mutex<Option<Arc<LinkerdTrust>>>>,
    /// In seconds.
    passed: i64,
}

// === impl GuardedIssuer ===

impl GuardedIssuer {
    /// Starts with these contents. There is no LinkerdTrust yet.
    fn start(file: &[&TestCa], roots: &[&TestCa]) -> Self {
        let (followed, trust) = (Followed::new(), Arc::<Mutex<Option<Arc<LinkerdTrust>>>>::default());
        let source = Arc::clone(&trust);
        let guard = TrustGuard::new(Box::new(move || source.lock().clone()), "linkerd", LeafSettings::of(None));
        let follower = followed.follower.guarded_by(Some(guard));
        let guarded = Self { followed: Followed { follower, ..followed }, trust, passed: 0 };
        guarded.put(file, roots);
        guarded
    }

    fn put(&self, file: &[&TestCa], roots: &[&TestCa]) {
        let path = |name: &str| self.followed.folder.path().join(name);
        fs::write(path("roots/ca-bundle.crt"), testing::pem_of(roots)).unwrap();
        fs::write(path("issuer/tls.crt"), testing::pem_of(file)).unwrap();
        fs::write(path("issuer/tls.key"), file[0].key.serialize_pem()).unwrap();
    }

    /// A LinkerdTrust declares this root. Its status has this phase, and is about a bundle with these roots.
    fn declares(&self, root: &TestCa, manage: &str, phase: &str, bundle: &[&TestCa]) {
        let sha256 = |text: &[u8]| crate::text::sha256(text);
        let ready = json!({"type": "ReadyToSwitch", "status": "True", "reason": "Synced", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let is_ready = phase == "AwaitingIssuer";
        let object = json!({
            "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdTrust",
            "metadata": {"name": "mesh", "uid": "1", "generation": 1},
            "spec": {"anchors": {"pem": root.pem}, "mode": "Enforce", "issuer": {"manage": manage}},
            "status": {"observedGeneration": 1, "phase": phase, "trustRootsSHA256": sha256(testing::pem_of(bundle).as_bytes()),
                "sufficientAnchors": [sha256(&testing::der(&root.pem))],
                "conditions": if is_ready { vec![ready] } else { Vec::new() },
                "readyToSwitchAt": is_ready.then(|| self.now().to_string())},
        });
        let trust = LinkerdTrust::project(serde_json::from_value(object).unwrap(), &mut Problems::default());
        *self.trust.lock() = Some(Arc::new(trust));
    }

    fn now(&self) -> Timestamp {
        testing::now() + SignedDuration::from_secs(self.passed)
    }

    /// The status says that so many of nine proxies, or of ten with one that is cut off, trust this root. Others read the bundle
    /// when they start.
    fn trusted_by(&self, root: &TestCa, trusted_by: i64, before_bundle: i64) {
        let anchor = json!({"name": "any", "sha256": crate::text::sha256(testing::der(&root.pem)), "desired": false,
            "inBundle": true, "trustedBy": trusted_by, "presentedBy": 0});
        let proxies = json!({"summary": "", "total": 12, "current": 0, "behind": 0, "refusing": 0, "cutOff": 1, "accepted": 0,
            "exposed": 0, "fromConfigMap": 2, "beforeBundle": before_bundle, "unobserved": 0});
        self.status(|status| {
            status.anchors = vec![serde_json::from_value(anchor).unwrap()];
            status.proxies = Some(serde_json::from_value(proxies).unwrap());
        });
    }

    fn status(&self, edit: impl FnOnce(&mut LinkerdTrustStatus)) {
        let trust = self.trust.lock().clone().unwrap();
        let mut status = (*trust.status).clone();
        edit(&mut status);
        *self.trust.lock() = Some(Arc::new(LinkerdTrust { status: Arc::new(status), ..(*trust).clone() }));
    }

    /// Whether this issuer is in use after this time.
    fn uses(&mut self, issuer: &TestCa, seconds: i64) -> bool {
        self.passed += seconds;
        self.followed.now += Duration::from_secs(seconds.try_into().unwrap());
        self.followed.follower.step(self.followed.now, self.now());
        let in_use = self.followed.follower.followed.current();
        in_use.is_some_and(|it| it.issuer.chain().first() == Some(&testing::der(&issuer.pem)))
    }

    /// Returns the metrics with `held` in their names, without their prefix.
    fn held_metrics(&self) -> Vec<String> {
        let text = String::from_utf8(crate::metrics::encode(&self.followed.registry).unwrap()).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("linkerd_operator_identity_issuer_"));
        lines.filter(|line| line.contains("held")).map(str::to_owned).collect()
    }
}

#[test]
fn an_issuer_is_held_until_the_status_says_that_all_proxies_accept_it_and_then_used_at_once() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let both: &[&TestCa] = &[&old, &new];
    let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
    guarded.declares(&new, "None", "Adding", &[&old]);
    assert!(guarded.uses(&first, 0));
    guarded.put(&[&second], both);
    for (phase, seconds) in [("Adding", 1), ("Spreading", 1), ("Spreading", 30), ("Unknown", 120)] {
        guarded.declares(&new, "None", phase, both);
        assert!(guarded.uses(&first, seconds), "{phase}");
    }
    let digest = crate::text::sha256(testing::der(&new.pem));
    let held = format!(
        "the new issuer, of the root {}, is held: not all proxies accept its certificates yet: LinkerdTrust mesh is in the phase \
         Unknown",
        &digest[..12]
    );
    let problem = guarded.followed.problem();
    assert!(problem.starts_with(&format!("the last issuer of certificates stays in use: {held}")), "{problem}");
    let mut reasons = guarded.followed.reasons();
    reasons.dedup();
    assert_eq!(reasons, [Reason::IssuerHeld]);
    let metrics = guarded.held_metrics();
    assert!(metrics.contains(&"held 1".to_owned()) && metrics.contains(&"held_expires 0".to_owned()), "{metrics:?}");
    guarded.declares(&new, "None", "AwaitingIssuer", &[&old]);
    assert!(guarded.uses(&first, 1), "the status is about another bundle");
    guarded.declares(&old, "None", "AwaitingIssuer", both);
    assert!(guarded.uses(&first, 1), "proxies need another root");
    guarded.declares(&new, "None", "AwaitingIssuer", both);
    guarded.status(|status| {
        status.conditions[0].status = "False".to_owned();
        status.conditions[0].message = "the control plane read the bundle before it was changed".to_owned();
    });
    assert!(guarded.uses(&first, 1), "the control plane did not restart");
    guarded.followed.reasons();
    guarded.declares(&new, "None", "AwaitingIssuer", both);
    assert!(guarded.uses(&second, 0));
    assert_eq!(guarded.followed.problem(), "");
    assert_eq!(guarded.followed.reasons(), [Reason::IssuerUpdated, Reason::TrustAnchorsUpdated]);
    assert!(guarded.held_metrics().contains(&"held 0".to_owned()));
}

#[test]
fn an_issuer_that_is_held_is_not_used_because_time_passes() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let mut guarded = GuardedIssuer::start(&[&first], &[&old, &new]);
    guarded.declares(&new, "None", "Spreading", &[&old, &new]);
    assert!(guarded.uses(&first, 0));
    guarded.put(&[&second], &[&old, &new]);
    for seconds in [1, 599, 60, DAY, 30 * DAY] {
        assert!(guarded.uses(&first, seconds), "{seconds}");
    }
    // Its files cannot be read for a while.
    let (folder, away) = (guarded.followed.folder.path().join("issuer"), guarded.followed.folder.path().join("away"));
    fs::rename(&folder, &away).unwrap();
    assert!(guarded.uses(&first, 1));
    fs::rename(away, folder).unwrap();
    assert!(guarded.uses(&first, 1));
    *guarded.trust.lock() = None;
    assert!(guarded.uses(&second, 1), "nothing is declared any more");
}

#[test]
fn an_issuer_is_not_held_if_proxies_accept_it_as_the_present_one_or_nothing_declares_another() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let (bridge, renewed) = (old.signs_again(&new, |_| {}), old.signs("renewed", |_| {}));
    let both: &[&TestCa] = &[&old, &new];
    let short = old.signs("short", |params| testing::valid(params, -60, DAY / 3));
    for next in [&[&second, &bridge][..], &[&renewed], &[&short]] {
        let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
        guarded.declares(&new, "None", "Spreading", &[&old]);
        assert!(guarded.uses(&first, 0));
        guarded.put(next, both);
        assert!(guarded.uses(next[0], 1));
    }
    for (phase, is_used) in [("Spreading", false), ("AwaitingIssuer", true), ("Renewing", true)] {
        let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
        guarded.declares(&new, "Secret", phase, both);
        assert!(guarded.uses(&first, 0));
        guarded.put(&[&second], both);
        assert_eq!(guarded.uses(&second, 1), is_used, "the operator writes it, in the phase {phase}");
    }
    let mut without = GuardedIssuer::start(&[&first], &[&old]);
    assert!(without.uses(&first, 0));
    without.put(&[&second], both);
    assert!(without.uses(&second, 1));
}

#[test]
fn at_the_start_an_issuer_is_not_used_if_proxies_certainly_refuse_it() {
    let (old, new, unknown) = (TestCa::root("old"), TestCa::root("new"), TestCa::root("unknown"));
    let both: &[&TestCa] = &[&old, &new];
    let (of_new, of_old, of_unknown) =
        (new.signs("new", |_| {}), old.signs("old", |_| {}), unknown.signs("unknown", |_| {}));
    let (bridge, other_bridge) = (old.signs_again(&new, |_| {}), unknown.signs_again(&new, |_| {}));
    let start_with = |file: &[&TestCa], trusted_by, bundle: &[&TestCa]| {
        let guarded = GuardedIssuer::start(file, bundle);
        guarded.declares(&new, "None", "Spreading", bundle);
        guarded.trusted_by(&new, trusted_by, 0);
        guarded
    };
    let start = |file: &[&TestCa], trusted_by| start_with(file, trusted_by, both);
    let mut held = start(&[&of_new], 8);
    for seconds in [0, 1, 30, 2 * DAY] {
        assert!(!held.uses(&of_new, seconds), "{seconds}");
    }
    let problem = held.followed.problem();
    assert!(problem.starts_with("no issuer of certificates is loaded: the new issuer, of the root "), "{problem}");
    assert!(problem.contains("1 proxy trusts no root of it, by the status of LinkerdTrust mesh"), "{problem}");
    let mut reasons = held.followed.reasons();
    reasons.dedup();
    assert_eq!(reasons, [Reason::IssuerHeld]);
    let metrics = held.held_metrics();
    assert!(metrics.contains(&"held 1".to_owned()) && metrics.contains(&"held_expires 1".to_owned()), "{metrics:?}");
    held.trusted_by(&new, 9, 0);
    assert!(held.uses(&of_new, 0), "the last proxy was created again");
    assert!(start(&[&of_new], 9).uses(&of_new, 0));
    assert!(start(&[&of_old], 8).uses(&of_old, 0), "it is that of the root before");
    assert!(start_with(&[&of_unknown], 8, &[&old, &new, &unknown]).uses(&of_unknown, 0), "it is not the declared one");
    assert!(start(&[&of_new, &other_bridge], 8).uses(&of_new, 0), "the last may trust what signed the bridge");
    let mut bridged = start(&[&of_new, &bridge], 4);
    bridged.status(|status| {
        let mut of_old = status.anchors[0].clone();
        of_old.sha256 = crate::text::sha256(testing::der(&old.pem));
        of_old.trusted_by = 5;
        status.anchors.push(of_old);
    });
    assert!(bridged.uses(&of_new, 0));
    for phase in
        [TrustPhase::Unknown, TrustPhase::Renewing, TrustPhase::Retiring, TrustPhase::Complete, TrustPhase::Steady]
    {
        let mut later = start(&[&of_new], 8);
        later.status(|status| status.phase = Some(phase));
        assert!(later.uses(&of_new, 0), "a Pod of a tenant holds no issuer that has signed for months: {phase:?}");
    }
    let mut presented = start(&[&of_new], 8);
    presented.status(|status| (status.anchors[0].desired, status.anchors[0].presented_by) = (true, 1));
    assert!(presented.uses(&of_new, 0), "it has signed before");
    let mut over = start(&[&of_new], 8);
    over.status(|status| {
        let issuer = json!({"name": "old", "expires": testing::now().to_string()});
        status.issuer = Some(serde_json::from_value(issuer).unwrap());
    });
    assert!(over.uses(&of_new, 0), "the issuer before has ended");
    let mut stale = start(&[&of_new], 8);
    stale.status(|status| status.observed_generation = Some(0));
    assert!(stale.uses(&of_new, 0), "the status is about another spec");
    let mut without = GuardedIssuer::start(&[&of_new], both);
    without.declares(&new, "None", "Spreading", both);
    assert!(without.uses(&of_new, 0), "no proxies were counted");
}

#[test]
fn an_issuer_is_used_after_the_end_of_the_present_one_unless_it_was_held_before() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let both: &[&TestCa] = &[&old, &new];
    let (second, third) = (new.signs("second", |params| testing::valid(params, -60, DAY)), old.signs("third", |_| {}));
    let mut guarded = GuardedIssuer::start(&[&second], both);
    guarded.declares(&new, "None", "Spreading", both);
    assert!(guarded.uses(&second, 0));
    guarded.put(&[&third], both);
    assert!(guarded.uses(&second, 1));
    let fourth = old.signs("fourth", |_| {});
    assert!(guarded.uses(&second, DAY), "it was held before");
    guarded.declares(&new, "None", "Spreading", both);
    assert!(guarded.uses(&second, 1), "the status says the same");
    assert!(guarded.followed.problem().contains(", is held: "), "{}", guarded.followed.problem());
    guarded.put(&[&fourth], both);
    assert!(guarded.uses(&fourth, 1));
}

#[test]
fn an_issuer_of_a_root_that_all_proxies_trust_is_not_held_also_if_it_is_not_declared() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let both: &[&TestCa] = &[&old, &new];
    let (second, first) = (new.signs("second", |_| {}), old.signs("first", |_| {}));
    // The control plane may know only the bundle before, as may Pods that are injected within the next minutes.
    for (trusted_by, before_bundle, written, is_used) in
        [(9, 0, 241, true), (8, 0, 241, false), (9, 1, 241, false), (9, 0, 239, false), (0, 0, 241, false)]
    {
        let mut guarded = GuardedIssuer::start(&[&second], both);
        assert!(guarded.uses(&second, 0));
        guarded.declares(&new, "None", "Spreading", both);
        guarded.trusted_by(&old, trusted_by, before_bundle);
        guarded.status(|status| {
            status.trust_roots_written = Some(Time(testing::now() - SignedDuration::from_secs(written)));
            if trusted_by == 0 {
                status.proxies.as_mut().unwrap().total = 3;
            }
        });
        assert!(guarded.uses(&second, 0));
        guarded.put(&[&first], both);
        assert_eq!(guarded.uses(&first, 0), is_used, "{trusted_by} {before_bundle} {written}");
    }
}

#[test]
fn an_issuer_that_each_proxy_accepts_replaces_one_that_each_refuses() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    for (trusted_by, is_used) in [(8, false), (9, true)] {
        let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
        assert!(guarded.uses(&first, 0));
        guarded.declares(&new, "None", "Unknown", &[&new]);
        guarded.trusted_by(&new, trusted_by, 0);
        guarded.status(|status| {
            status.trust_roots_written = Some(Time(testing::now() - SignedDuration::from_secs(241)));
        });
        guarded.put(&[&second], &[&new]);
        assert_eq!(guarded.uses(&second, 1), is_used, "{trusted_by}");
    }
}

#[test]
fn an_issuer_that_loses_a_bridge_of_an_unknown_root_is_held_and_so_is_one_while_the_declaration_is_invalid() {
    let (new, unknown) = (TestCa::root("new"), TestCa::root("unknown"));
    let (first, second, bridge) =
        (new.signs("first", |_| {}), new.signs("second", |_| {}), unknown.signs_again(&new, |_| {}));
    let mut guarded = GuardedIssuer::start(&[&first, &bridge], &[&new]);
    guarded.declares(&new, "None", "Complete", &[&new]);
    assert!(guarded.uses(&first, 0));
    guarded.put(&[&second], &[&new]);
    assert!(guarded.uses(&first, 1));
    assert!(guarded.followed.problem().contains("it lacks new of the present one"), "{}", guarded.followed.problem());
    guarded.put(&[&second, &bridge], &[&new]);
    assert!(guarded.uses(&second, 1));

    let other = TestCa::root("other");
    let (third, both) = (other.signs("third", |_| {}), [&new, &other]);
    guarded.declares(&other, "None", "AwaitingIssuer", &both);
    let trust = guarded.trust.lock().clone().unwrap();
    let mut spec = (*trust.spec).clone();
    spec.anchors.as_mut().unwrap().pem.push_str("no certificate");
    *guarded.trust.lock() = Some(Arc::new(LinkerdTrust { spec: Arc::new(spec), ..(*trust).clone() }));
    guarded.put(&[&third], &both);
    assert!(guarded.uses(&second, 1));
    let problem = guarded.followed.problem();
    assert!(problem.contains("is held: LinkerdTrust mesh is invalid: spec.anchors.pem cannot be used"), "{problem}");
}

#[test]
fn proxies_renew_soon_while_a_rotation_waits_for_certificates_or_will() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let first = old.signs("first", |_| {});
    let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
    for (phase, is_rotating) in [("Spreading", true), ("Steady", false), ("Renewing", true), ("Retiring", false)] {
        guarded.declares(&new, "Secret", phase, &[&old]);
        assert!(guarded.uses(&first, 0));
        assert_eq!(guarded.followed.follower.followed.is_rotating(), is_rotating, "{phase}");
    }
}

#[test]
fn an_issuer_that_is_held_while_the_one_in_use_ends_is_an_error() {
    let log = LoggedLines::record();
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let first = old.signs("first", |params| testing::valid(params, -60, 5 * DAY));
    let second = new.signs("second", |_| {});
    let mut guarded = GuardedIssuer::start(&[&first], &[&old, &new]);
    guarded.declares(&new, "None", "Spreading", &[&old, &new]);
    assert!(guarded.uses(&first, 0));
    guarded.put(&[&second], &[&old, &new]);
    assert!(guarded.uses(&first, 1));
    assert!(guarded.uses(&first, 3 * DAY - 42));
    assert_eq!((guarded.held_metrics().contains(&"held_expires 1".to_owned()), log.with("ERROR").len()), (false, 0));
    guarded.followed.reasons();
    for _ in 0..2 {
        assert!(guarded.uses(&first, 1));
    }
    assert_eq!((guarded.held_metrics().contains(&"held_expires 1".to_owned()), log.with("ERROR").len()), (true, 1));
    assert_eq!(guarded.followed.reasons(), [Reason::IssuerExpiresSoon]);
    assert!(guarded.uses(&first, 3 * DAY), "it is used until its end, and after it");
}
