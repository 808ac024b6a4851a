use std::fs;

use jiff::SignedDuration;
use prometheus::Registry;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use super::{files::IssuerFileNames, *};
use crate::{
    events::{Events, Notice, Reason},
    x509::testing::{self, DAY, TestCa},
};

type TestIssuer = CertifiedIssuer<'static, KeyPair>;

/// A follower of a folder, at a time that the test sets.
pub(super) struct Followed {
    pub(super) folder: TempDir,
    pub(super) follower: IssuerFollower,
    pub(super) notices: tokio::sync::mpsc::Receiver<Notice>,
    pub(super) registry: Registry,
    pub(super) now: Instant,
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
    pub(super) fn new() -> Self {
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

    pub(super) fn reasons(&mut self) -> Vec<Reason> {
        std::iter::from_fn(|| self.notices.try_recv().ok()).map(|notice| notice.reason).collect()
    }

    pub(super) fn problem(&self) -> String {
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
