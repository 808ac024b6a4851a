use std::fs;

use jiff::SignedDuration;
use parking_lot::Mutex;
use prometheus::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use tempfile::TempDir;

use super::{files::IssuerFileNames, *};
use crate::{
    cluster::{Problems, Projected, kinds::linkerd_trust::LinkerdTrust},
    events::{Events, Notice, Reason},
    testing::LoggedLines,
    trust::seen::LeafSettings,
    x509::testing::{self, DAY, TestCa},
};

type TestIssuer = CertifiedIssuer<'static, KeyPair>;

/// A follower of a folder, at a time that the test sets.
struct Followed {
    folder: TempDir,
    follower: IssuerFollower,
    notices: tokio::sync::mpsc::Receiver<Notice>,
    registry: Registry,
    now: Instant,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn root(name: &str) -> TestIssuer {
    CertifiedIssuer::self_signed(params(name), KeyPair::generate().unwrap()).unwrap()
}

fn issuer(name: &str, root: &TestIssuer) -> TestIssuer {
    CertifiedIssuer::signed_by(params(name), KeyPair::generate().unwrap(), root).unwrap()
}

// === impl Followed ===

impl Followed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files =
            IssuerFiles { issuer: path("issuer"), trust_roots: path("roots"), names: IssuerFileNames::Kubernetes };
        for made in [&files.issuer, &files.trust_roots] {
            fs::create_dir(made).unwrap();
        }
        let domain = IdentityDomain::new("linkerd", "cluster.local").unwrap();
        let registry = Registry::new();
        let metrics = IdentityMetrics::register(&registry).unwrap();
        let (events, notices) = Events::recorded();
        let events = IdentityEvents::new(Some(events), "linkerd", true);
        let follower = IssuerFollower::new(files, domain, &FollowedIssuer::new(), &metrics, events);
        Self { folder, follower, notices, registry, now: Instant::now() }
    }

    fn put_issuer(&self, issuer: &TestIssuer) {
        let folder = self.folder.path().join("issuer");
        fs::write(folder.join("tls.crt"), issuer.pem()).unwrap();
        fs::write(folder.join("tls.key"), issuer.key().serialize_pem()).unwrap();
    }

    fn put_roots(&self, roots: &[&TestIssuer]) {
        let text: String = roots.iter().map(|root| root.pem()).collect();
        fs::write(self.folder.path().join("roots/ca-bundle.crt"), text).unwrap();
    }

    /// Returns the certificate of the issuer in use after the next step.
    fn after(&mut self, seconds: u64) -> Option<Vec<u8>> {
        self.now += Duration::from_secs(seconds);
        self.follower.step(self.now, Timestamp::now());
        self.follower.followed.current().and_then(|loaded| loaded.issuer.chain().first().cloned())
    }

    fn reasons(&mut self) -> Vec<Reason> {
        std::iter::from_fn(|| self.notices.try_recv().ok()).map(|notice| notice.reason).collect()
    }

    fn problem(&self) -> String {
        self.follower.followed.problem().unwrap_or_default()
    }
}

#[test]
fn an_issuer_is_waited_for_and_then_stays_in_use_when_its_files_cannot_be_used() {
    let mut followed = Followed::new();
    assert_eq!(followed.after(0), None);
    assert!(
        followed.problem().starts_with("no issuer of certificates is loaded: cannot read "),
        "{}",
        followed.problem()
    );
    assert!(!followed.follower.followed.is_ready());
    assert_eq!(followed.reasons(), []);
    let root = root("root");
    let (first, second) = (issuer("first", &root), issuer("second", &root));
    followed.put_roots(&[&second]);
    followed.put_issuer(&first);
    assert_eq!(followed.after(1), None);
    assert_eq!(followed.reasons(), [Reason::IssuerUpdateSkipped]);
    followed.put_roots(&[&root]);
    assert_eq!(followed.after(1).as_deref(), Some(first.der().as_ref()));
    assert_eq!(followed.problem(), "");
    assert_eq!(followed.reasons(), []);
    // A certificate without its key.
    fs::write(followed.folder.path().join("issuer/tls.crt"), second.pem()).unwrap();
    assert_eq!(followed.after(1).as_deref(), Some(first.der().as_ref()));
    assert!(followed.problem().starts_with("the last issuer of certificates stays in use: "), "{}", followed.problem());
    assert_eq!(followed.reasons(), [Reason::IssuerUpdateSkipped]);
    followed.put_issuer(&second);
    assert_eq!(followed.after(1).as_deref(), Some(second.der().as_ref()));
    assert_eq!((followed.problem(), followed.reasons()), (String::new(), vec![Reason::IssuerUpdated]));
    fs::remove_dir_all(followed.folder.path().join("issuer")).unwrap();
    assert_eq!(followed.after(1).as_deref(), Some(second.der().as_ref()));
    assert!(followed.follower.followed.is_ready());
}

#[test]
fn an_issuer_that_is_refused_is_used_when_its_root_arrives() {
    let mut followed = Followed::new();
    let (old, new) = (root("root"), root("root"));
    let (first, second) = (issuer("first", &old), issuer("second", &new));
    followed.put_roots(&[&old]);
    followed.put_issuer(&first);
    followed.after(0);
    followed.put_issuer(&second);
    assert_eq!(followed.after(1).as_deref(), Some(first.der().as_ref()));
    followed.put_roots(&[&old, &new]);
    assert_eq!(followed.after(1).as_deref(), Some(second.der().as_ref()));
    let reasons = [Reason::IssuerUpdateSkipped, Reason::IssuerUpdated, Reason::TrustAnchorsUpdated];
    assert_eq!(followed.reasons(), reasons);
    // The root of the issuer in use leaves the bundle: the last good pair stays.
    followed.put_roots(&[&old]);
    assert_eq!(followed.after(1).as_deref(), Some(second.der().as_ref()));
    assert_eq!(followed.reasons(), [Reason::IssuerUpdateSkipped]);
}

#[test]
fn the_ends_of_the_issuer_and_of_the_trust_anchors_in_use_are_known() {
    let mut followed = Followed::new();
    followed.after(0);
    assert_eq!(followed.follower.followed.expiries(), [("issuer of proxies".to_owned(), None)]);
    let mut of_root = params("root");
    of_root.not_after = rcgen::date_time_ymd(2050, 1, 2);
    let root = CertifiedIssuer::self_signed(of_root, KeyPair::generate().unwrap()).unwrap();
    let mut of_issuer = params("issuer");
    of_issuer.not_after = rcgen::date_time_ymd(2040, 1, 2);
    let issuer = CertifiedIssuer::signed_by(of_issuer, KeyPair::generate().unwrap(), &root).unwrap();
    followed.put_roots(&[&root]);
    followed.put_issuer(&issuer);
    followed.after(1);
    let digest = crate::text::sha256(root.der().as_ref());
    let expected = [
        ("issuer of proxies".to_owned(), "2040-01-02T00:00:00Z"),
        (format!("trust anchor {}", &digest[..12]), "2050-01-02T00:00:00Z"),
    ];
    let expiries = followed.follower.followed.expiries();
    assert_eq!(expiries, expected.map(|(name, end)| (name, Some(end.parse().unwrap()))));
}

#[test]
fn a_root_that_is_the_issuer_works_and_is_reported() {
    let mut followed = Followed::new();
    let root = root("root");
    followed.put_roots(&[&root]);
    followed.put_issuer(&root);
    assert_eq!(followed.after(0).as_deref(), Some(root.der().as_ref()));
    assert_eq!(followed.reasons(), [Reason::IssuerIsTrustAnchor]);
}

#[test]
fn the_end_of_the_trust_anchor_is_reported_when_it_comes_and_not_if_a_renewed_one_is_valid() {
    let mut followed = Followed::new();
    let renewed = TestCa::root("root");
    let mut params = renewed.params.clone();
    testing::valid(&mut params, -60, DAY);
    let old = params.self_signed(&renewed.key).unwrap().pem();
    let issuer = renewed.signs("issuer", |_| {});
    let path = |name: &str| followed.folder.path().join(name);
    let (bundle, certificate, key) = (path("roots/ca-bundle.crt"), path("issuer/tls.crt"), path("issuer/tls.key"));
    fs::write(&bundle, &old).unwrap();
    fs::write(certificate, &issuer.pem).unwrap();
    fs::write(key, issuer.key.serialize_pem()).unwrap();
    let mut reasons_at = |seconds: i64| {
        let time = testing::now() + SignedDuration::from_secs(seconds);
        followed.now += Duration::from_secs(1);
        followed.follower.step(followed.now, time);
        let loaded = followed.follower.followed.current().unwrap();
        (followed.reasons(), loaded.has_expired_anchor(time))
    };
    assert_eq!(reasons_at(0), (vec![], false));
    assert_eq!(reasons_at(DAY - 1), (vec![], false));
    assert_eq!(reasons_at(DAY), (vec![Reason::TrustAnchorExpired], true));
    assert_eq!(reasons_at(DAY + 1), (vec![], true));
    fs::write(&bundle, [old, renewed.pem].concat()).unwrap();
    assert_eq!(reasons_at(DAY + 2), (vec![Reason::TrustAnchorsUpdated], false));
}

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

    /// Whether this issuer is in use after this time.
    fn uses(&mut self, issuer: &TestCa, seconds: i64) -> bool {
        self.passed += seconds;
        self.followed.now += Duration::from_secs(seconds.try_into().unwrap());
        self.followed.follower.step(self.followed.now, self.now());
        let in_use = self.followed.follower.followed.current().unwrap();
        in_use.issuer.chain().first() == Some(&testing::der(&issuer.pem))
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
    let trust = guarded.trust.lock().clone().unwrap();
    let mut status = (*trust.status).clone();
    status.conditions[0].status = "False".to_owned();
    status.conditions[0].message = "the control plane read the bundle before it was changed".to_owned();
    *guarded.trust.lock() = Some(Arc::new(LinkerdTrust { status: Arc::new(status), ..(*trust).clone() }));
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
fn an_issuer_is_not_held_if_proxies_accept_it_as_the_present_one_or_nothing_declares_another_or_the_operator_writes_it()
{
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let (bridge, renewed) = (old.signs_again(&new, |_| {}), old.signs("renewed", |_| {}));
    let both: &[&TestCa] = &[&old, &new];
    let short = old.signs("short", |params| testing::valid(params, -60, DAY / 3));
    for (next, manage) in
        [(&[&second, &bridge][..], "None"), (&[&renewed], "None"), (&[&short], "None"), (&[&second], "Secret")]
    {
        let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
        guarded.declares(&new, manage, "Spreading", &[&old]);
        assert!(guarded.uses(&first, 0));
        guarded.put(next, both);
        assert!(guarded.uses(next[0], 1), "{manage}");
    }
    let mut without = GuardedIssuer::start(&[&first], &[&old]);
    assert!(without.uses(&first, 0));
    without.put(&[&second], both);
    assert!(without.uses(&second, 1));
}

#[test]
fn at_the_start_an_issuer_is_used_although_not_all_proxies_accept_it_and_so_it_is_after_the_end_of_the_present_one() {
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
    for (trusted_by, is_used) in [(8, false), (9, true)] {
        let mut guarded = GuardedIssuer::start(&[&second], both);
        guarded.declares(&new, "None", "Spreading", both);
        let trust = guarded.trust.lock().clone().unwrap();
        let mut status = (*trust.status).clone();
        let anchor = json!({"name": "old", "sha256": crate::text::sha256(testing::der(&old.pem)), "desired": false,
            "inBundle": true, "trustedBy": trusted_by, "presentedBy": 0});
        status.anchors = vec![serde_json::from_value(anchor).unwrap()];
        let proxies = json!({"summary": "", "total": 12, "current": 0, "behind": 0, "refusing": 0, "cutOff": 1, "accepted": 1,
            "exposed": 0, "fromConfigMap": 2, "unobserved": 0});
        status.proxies = Some(serde_json::from_value(proxies).unwrap());
        *guarded.trust.lock() = Some(Arc::new(LinkerdTrust { status: Arc::new(status), ..(*trust).clone() }));
        assert!(guarded.uses(&second, 0));
        guarded.put(&[&first], both);
        assert_eq!(guarded.uses(&first, 1), is_used, "{trusted_by}");
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
