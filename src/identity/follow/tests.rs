use std::fs;

use jiff::SignedDuration;
use prometheus::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use tempfile::TempDir;

use super::{files::IssuerFileNames, *};
use crate::{
    events::{Events, Notice, Reason},
    identity::validity::LeafLifetime,
    testing::LoggedLines,
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

/// A follower with a trust state, from [`testing::now`] on.
struct GuardedIssuer {
    followed: Followed,
    /// In seconds.
    passed: i64,
}

// === impl GuardedIssuer ===

impl GuardedIssuer {
    /// Starts with these contents. There is no trust state yet.
    fn start(file: &[&TestCa], roots: &[&TestCa]) -> Self {
        let followed = Followed::new();
        let lifetime = LeafLifetime::new(SignedDuration::from_hours(24), SignedDuration::from_secs(20));
        let guard = TrustGuard::new(followed.folder.path().join("state.json"), lifetime);
        let follower = followed.follower.guarded_by(Some(guard));
        let guarded = Self { followed: Followed { follower, ..followed }, passed: 0 };
        guarded.put(file, roots);
        guarded
    }

    fn put(&self, file: &[&TestCa], roots: &[&TestCa]) {
        let path = |name: &str| self.followed.folder.path().join(name);
        fs::write(path("roots/ca-bundle.crt"), testing::pem_of(roots)).unwrap();
        fs::write(path("issuer/tls.crt"), testing::pem_of(file)).unwrap();
        fs::write(path("issuer/tls.key"), file[0].key.serialize_pem()).unwrap();
    }

    /// Writes the trust state, which is as old as this.
    fn all_trust(&self, roots: &[&TestCa], seconds_ago: i64) {
        let digests: Vec<_> = roots.iter().map(|root| crate::text::sha256(testing::der(&root.pem))).collect();
        let time = self.now() - SignedDuration::from_secs(seconds_ago);
        let state = json!({"time": time.to_string(), "trustedByAll": digests});
        fs::write(self.followed.folder.path().join("state.json"), state.to_string()).unwrap();
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
fn an_issuer_is_held_until_all_proxies_trust_its_root_and_then_used_at_once() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
    guarded.all_trust(&[&old], 0);
    assert!(guarded.uses(&first, 0));
    guarded.put(&[&second], &[&old, &new]);
    for seconds in [1, 1, 30, 120] {
        guarded.all_trust(&[&old], 0);
        assert!(guarded.uses(&first, seconds));
    }
    let digest = crate::text::sha256(testing::der(&new.pem));
    let held = format!("the new issuer is held because not all proxies trust its root: {}", &digest[..12]);
    assert_eq!(guarded.followed.problem(), format!("the last issuer of certificates stays in use: {held}"));
    assert_eq!(guarded.followed.reasons(), [Reason::IssuerHeld]);
    let metrics = guarded.held_metrics();
    assert!(metrics.contains(&"held 1".to_owned()) && metrics.contains(&"held_expires 0".to_owned()), "{metrics:?}");
    guarded.all_trust(&[&old, &new], 0);
    assert!(guarded.uses(&second, 0));
    assert_eq!(guarded.followed.problem(), "");
    assert_eq!(guarded.followed.reasons(), [Reason::IssuerUpdated, Reason::TrustAnchorsUpdated]);
    assert!(guarded.held_metrics().contains(&"held 0".to_owned()));
}

#[test]
fn an_issuer_that_is_held_is_not_used_because_the_trust_state_becomes_old() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let mut guarded = GuardedIssuer::start(&[&first], &[&old, &new]);
    guarded.all_trust(&[&old], 0);
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
    fs::write(guarded.followed.folder.path().join("state.json"), "{").unwrap();
    assert!(guarded.uses(&first, 1), "a state that cannot be read");
    fs::remove_file(guarded.followed.folder.path().join("state.json")).unwrap();
    assert!(guarded.uses(&second, 1), "a state that was removed");
}

#[test]
fn without_a_fresh_trust_state_a_new_issuer_is_used_as_soon_as_its_root_is_in_the_bundle() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    for seconds_ago in [None, Some(601)] {
        let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
        if let Some(seconds_ago) = seconds_ago {
            guarded.all_trust(&[&old], seconds_ago);
        }
        assert!(guarded.uses(&first, 0));
        guarded.put(&[&second], &[&old, &new]);
        assert!(guarded.uses(&second, 1), "{seconds_ago:?}");
    }
}

#[test]
fn an_issuer_with_a_bridge_to_a_trusted_root_is_used() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let (first, second) = (old.signs("first", |_| {}), new.signs("second", |_| {}));
    let bridge = old.signs_again(&new, |_| {});
    let mut guarded = GuardedIssuer::start(&[&first], &[&old]);
    guarded.all_trust(&[&old], 0);
    assert!(guarded.uses(&first, 0));
    guarded.put(&[&second, &bridge], &[&old, &new]);
    assert!(guarded.uses(&second, 1));
}

#[test]
fn at_the_start_an_issuer_is_used_although_not_all_proxies_trust_its_root() {
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let second = new.signs("second", |_| {});
    let mut guarded = GuardedIssuer::start(&[&second], &[&old, &new]);
    guarded.all_trust(&[&old], 0);
    assert!(guarded.uses(&second, 0));
}

#[test]
fn an_issuer_that_is_held_while_the_one_in_use_ends_is_an_error() {
    let log = LoggedLines::record();
    let (old, new) = (TestCa::root("old"), TestCa::root("new"));
    let first = old.signs("first", |params| testing::valid(params, -60, 5 * DAY));
    let second = new.signs("second", |_| {});
    let mut guarded = GuardedIssuer::start(&[&first], &[&old, &new]);
    guarded.all_trust(&[&old], 0);
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
