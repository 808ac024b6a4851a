use jiff::ToSpan;
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::NamespacedName,
    webhook_certificates::{
        issue,
        secret::{LEAF, SecretChange},
        testing::{NAME, authority, time},
    },
};

/// A cluster with one Secret, some configurations, API servers that read these late, and leaders that take turns.
struct World {
    now: Timestamp,
    /// The difference of the leader's clock.
    skew: SignedDuration,
    secret: Option<Secret>,
    configurations: Vec<Value>,
    /// Each state of the bundles of a configuration, with the time at which it began.
    bundles: Vec<(Timestamp, Vec<TrustCertificate>)>,
    /// Each leaf, with the time since which replicas present it.
    leaves: Vec<(Timestamp, TrustCertificate)>,
    /// The newest authority, and since when the leader has seen it in each bundle.
    published: Option<(TrustCertificate, Timestamp)>,
    /// The reasons of what was issued.
    issued: Vec<&'static str>,
    /// Whether the API server refuses to patch configurations.
    denies_patches: bool,
}

fn key() -> NamespacedName {
    NamespacedName::new("linkerd-operator-system", "tls")
}

fn configuration(name: &str, bundle: &str) -> Value {
    let service = json!({"name": "linkerd-operator-webhook", "namespace": "linkerd-operator-system"});
    json!({"metadata": {"name": name, "resourceVersion": "1"}, "webhooks": [{
        "name": "a", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service, "caBundle": ByteString(bundle.as_bytes().to_vec())},
    }]})
}

impl World {
    fn new(configurations: usize) -> Self {
        Self {
            now: time("2026-01-01T00:00:00Z"),
            skew: SignedDuration::ZERO,
            secret: None,
            configurations: (0..configurations).map(|number| configuration(&number.to_string(), "")).collect(),
            bundles: Vec::new(),
            leaves: Vec::new(),
            published: None,
            issued: Vec::new(),
            denies_patches: false,
        }
    }

    /// A cluster in which nothing is left to do.
    fn settled(configurations: usize) -> Self {
        let mut world = Self::new(configurations);
        world.pass_all(30);
        world.issued.clear();
        world
    }

    fn registrations(&self) -> Vec<Registration> {
        let service = NamespacedName::new("linkerd-operator-system", "linkerd-operator-webhook");
        let typed = |value: &Value| serde_json::from_value::<MutatingWebhookConfiguration>(value.clone()).unwrap();
        self.configurations.iter().filter_map(|it| Registration::of_mutating(typed(it), &service)).collect()
    }

    /// One pass of the leader, as in the controller.
    fn pass(&mut self) -> NextStep {
        let now = self.now.saturating_add(self.skew).unwrap();
        let (state, registrations) = (SecretState::read(self.secret.as_ref()), self.registrations());
        let newest = match &state {
            SecretState::Ours(content) => content.signing.as_ref().map(|it| it.certificate.clone()),
            _ => None,
        };
        let newest = newest.filter(|newest| Observation::is_published(&registrations, newest));
        self.published = newest.map(|newest| match self.published.take() {
            Some((known, since)) if known == newest => (known, since),
            _ => (newest, self.now),
        });
        let published_for = self.published.as_ref().map(|(_, since)| self.now.duration_since(*since).unsigned_abs());
        let names = [NAME.to_owned()];
        let observation =
            Observation { secret: &state, registrations: &registrations, names: &names, now, published_for };
        let Plan { patches, step } = observation.plan();
        for BundlePatch { name, patch, .. } in patches.into_iter().filter(|_| !self.denies_patches) {
            let at = self.configurations.iter_mut().find(|it| it["metadata"]["name"] == *name).unwrap();
            json_patch::patch(at, &patch).unwrap();
        }
        let change = match &step {
            NextStep::IssueAuthority { kept, why } => {
                self.issued.push(why);
                Some(SecretChange::Authority { new: issue::authority(now).unwrap(), kept: kept.clone() })
            }
            NextStep::IssueLeaf { authority, why } => {
                self.issued.push(why);
                let pair = issue::leaf(authority, &names, now).unwrap();
                self.leaves
                    .extend(TrustCertificate::list(pair.certificate_pem.as_bytes(), 1).pop().map(|it| (self.now, it)));
                Some(SecretChange::Leaf(pair))
            }
            _ => None,
        };
        if let Some(change) = change {
            self.secret = Some(change.applied_to(self.secret.take(), &key()));
        }
        let first = self.registrations().first().map(|it| it.webhooks[0].trusted.clone());
        if let Some(first) = first.filter(|first| self.bundles.last().is_none_or(|(_, last)| last != first)) {
            self.bundles.push((self.now, first));
        }
        step
    }

    /// A pass each second.
    fn pass_all(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.pass();
            self.now += 1.seconds();
            self.check();
        }
    }

    /// Each leaf that a replica may present is trusted by each state of the bundles that an API server may have: both
    /// may be ten seconds old.
    fn check(&self) {
        let oldest = self.now - 10.seconds();
        // Before the API servers have the first bundle, no review could succeed.
        if self.leaves.first().is_none_or(|(first, _)| self.now < *first + 20.seconds()) {
            return;
        }
        fn recent<T>(states: &[(Timestamp, T)], oldest: Timestamp) -> impl Iterator<Item = &T> {
            let ends = states.iter().skip(1).map(|(since, _)| Some(*since)).chain([None]);
            states
                .iter()
                .zip(ends)
                .filter(move |(_, end)| end.is_none_or(|end| end > oldest))
                .map(|((_, state), _)| state)
        }
        for leaf in recent(&self.leaves, oldest) {
            assert!(leaf.not_before <= self.now && self.now < leaf.not_after, "{leaf:?} at {}", self.now);
            for bundle in recent(&self.bundles, oldest) {
                assert!(bundle.iter().any(|it| leaf.is_signed_by(it)), "{leaf:?} is not signed by one of {bundle:?}");
            }
        }
    }

    fn edit(&mut self, key: &str, value: Option<&[u8]>) {
        let data = self.secret.as_mut().and_then(|secret| secret.data.as_mut()).unwrap();
        match value {
            Some(value) => data.insert(key.to_owned(), ByteString(value.to_vec())),
            None => data.remove(key),
        };
    }
}

#[test]
fn a_fresh_install_needs_no_wait_in_any_order() {
    let mut world = World::new(2);
    let steps: Vec<_> = (0..3).map(|_| world.pass()).collect();
    assert!(matches!(steps[0], NextStep::IssueAuthority { .. }) && matches!(steps[1], NextStep::IssueLeaf { .. }));
    assert!(matches!(steps[2], NextStep::Wait(_)), "{steps:?}");
    assert!(world.registrations().iter().all(|it| it.webhooks[0].trusted.len() == 1));
    // The configurations come later.
    let mut world = World::settled(0);
    world.configurations.push(configuration("late", ""));
    world.pass();
    assert_eq!(world.registrations()[0].webhooks[0].trusted.len(), 1);
    assert_eq!(world.issued, [""; 0]);
}

#[test]
fn a_new_authority_signs_only_after_each_configuration_had_it_for_ten_seconds() {
    let mut world = World::settled(2);
    // The leaf is replaced every 27 days, until after 243 days a third of the authority's life is left.
    for _ in 0..27 {
        world.now += 216.hours();
        world.pass_all(15);
    }
    world.issued.clear();
    world.leaves.clear();
    world.now += 30.hours();
    world.pass_all(40);
    assert_eq!(world.issued, ["a third of the authority's life is left", "there is a new authority"]);
    let [.., (published, _)] = world.bundles[..] else { panic!() };
    let [(issued, _)] = world.leaves[..] else { panic!() };
    assert!(issued.duration_since(published) >= SignedDuration::from_secs(10), "{published} {issued}");
    let trusted = world.registrations()[0].webhooks[0].trusted.len();
    assert_eq!(trusted, 2, "the old authority is still valid");
}

#[test]
fn a_deleted_secret_keeps_the_old_authority_in_the_bundles_for_an_hour() {
    let mut world = World::settled(1);
    world.secret = None;
    world.pass_all(30);
    assert_eq!(world.issued, ["the Secret does not exist", "the Secret has no usable leaf"]);
    assert_eq!(world.registrations()[0].webhooks[0].trusted.len(), 2);
    world.now += 59.minutes();
    world.pass();
    assert_eq!(world.registrations()[0].webhooks[0].trusted.len(), 2);
    world.now += 2.minutes();
    world.pass();
    let newest = world.registrations()[0].webhooks[0].trusted.clone();
    assert!(newest.len() == 1 && world.leaves.last().unwrap().1.is_signed_by(&newest[0]));
}

#[test]
fn a_leaf_is_replaced_at_a_third_of_its_life_or_when_it_is_deleted_or_for_other_names() {
    let mut world = World::settled(1);
    world.now += 20.hours() * 24;
    world.leaves.clear();
    world.pass_all(3);
    assert_eq!(world.issued, ["a third of the leaf's life is left"]);
    world.edit(LEAF, None);
    world.pass_all(3);
    assert_eq!(world.issued[1..], ["the Secret has no usable leaf"]);
    let other = issue::leaf(&content(&world).signing.unwrap(), &["other.svc".to_owned()], world.now).unwrap();
    world.edit("tls.crt", Some(other.certificate_pem.as_bytes()));
    world.edit("tls.key", Some(other.key_pem.as_bytes()));
    world.pass_all(3);
    assert_eq!(world.issued[2..], ["the leaf is for other names"]);
}

fn content(world: &World) -> SecretContent {
    match SecretState::read(world.secret.as_ref()) {
        SecretState::Ours(content) => content,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_secret_without_our_label_is_left_alone() {
    let mut world = World::settled(1);
    world.secret.as_mut().unwrap().metadata.labels = None;
    let before = world.secret.clone();
    assert_eq!(world.pass(), NextStep::Refuse);
    assert_eq!(world.secret, before);
}

#[test]
fn a_bundle_that_was_reset_is_repaired_and_a_foreign_authority_is_removed_from_it() {
    let mut world = World::settled(2);
    let ours = world.registrations()[0].webhooks[0].trusted.clone();
    world.now += 2.hours();
    let foreign = authority("2026-01-01T00:00:00Z").certificate;
    world.configurations[0] = configuration("0", &foreign.to_pem());
    world.configurations[1] = configuration("1", "");
    world.pass();
    for registration in world.registrations() {
        assert_eq!(registration.webhooks[0].trusted, ours);
    }
    assert_eq!(world.issued, [""; 0]);
}

#[test]
fn a_bundle_that_cannot_be_written_delays_the_leaf_until_the_old_one_is_about_to_expire() {
    let mut world = World::settled(1);
    world.denies_patches = true;
    // The authority is replaced, but its certificate reaches no API server.
    world.edit("ca.key", None);
    world.pass_all(60);
    assert_eq!(world.issued, ["the Secret has no usable authority"]);
    // From 24 h × 30 d and one hour, a sixth is left after 600 h 50 min; the leaf was valid for an hour when it was issued.
    world.now = world.leaves[0].0 + 599.hours() + 40.minutes();
    world.pass();
    assert_eq!(world.issued.len(), 1);
    world.now += 15.minutes();
    world.pass();
    assert_eq!(world.issued[1..], ["there is a new authority"]);
}

#[test]
fn certificates_from_the_future_are_replaced_once() {
    let mut world = World::new(1);
    world.skew = SignedDuration::from_hours(48);
    world.pass_all(3);
    world.leaves.clear();
    world.issued.clear();
    // The next leader has the right clock, and they take turns.
    for _ in 0..4 {
        for hours in [0, 48, -20, 30] {
            world.skew = SignedDuration::from_hours(hours);
            world.published = None;
            for _ in 0..15 {
                world.pass();
                world.now += 1.seconds();
            }
        }
    }
    let authorities = world.issued.iter().filter(|why| why.contains("the authority is not valid yet")).count();
    // The leaders with the clocks 0 and -20 issued them, each with a leaf.
    assert_eq!((authorities, world.issued.len()), (2, 4), "{:?}", world.issued);
}

#[derive(Clone, Debug)]
enum Incident {
    Seconds(i64),
    Days(i64),
    NewLeader { minutes: i64 },
    DeleteSecret,
    DeleteLeaf,
    DeleteAuthorityKey,
    NewConfiguration,
    DeniedPatches,
}

fn incident() -> impl Strategy<Value = Incident> {
    prop_oneof![
        4 => (1..15i64).prop_map(Incident::Seconds),
        2 => (1..9i64).prop_map(Incident::Days),
        2 => (-30..30i64).prop_map(|minutes| Incident::NewLeader { minutes }),
        1 => Just(Incident::DeleteSecret),
        1 => Just(Incident::DeleteLeaf),
        1 => Just(Incident::DeleteAuthorityKey),
        1 => Just(Incident::NewConfiguration),
        1 => Just(Incident::DeniedPatches),
    ]
}

proptest! {
    // Each case verifies thousands of signatures.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 20, ..ProptestConfig::default() })]

    /// [`World::check`] after each second.
    #[test]
    fn no_handshake_fails_whatever_happens(incidents in prop::collection::vec(incident(), 1..20)) {
        let mut world = World::settled(1);
        let mut lost = 0;
        for incident in incidents {
            match incident {
                Incident::Seconds(seconds) => world.pass_all(seconds),
                Incident::Days(days) => {
                    world.denies_patches = false;
                    world.pass_all(15);
                    world.now += (24 * days).hours();
                    // The leader looks again within minutes.
                    world.pass_all(15);
                }
                Incident::NewLeader { minutes } => {
                    (world.skew, world.published) = (SignedDuration::from_mins(minutes), None);
                }
                // A bundle has eight authorities at most.
                Incident::DeleteSecret if lost < 5 => (world.secret, lost) = (None, lost + 1),
                Incident::DeleteSecret => {}
                Incident::DeleteLeaf if world.secret.is_some() => world.edit(LEAF, None),
                Incident::DeleteAuthorityKey if world.secret.is_some() && lost < 5 => {
                    world.edit("ca.key", None);
                    lost += 1;
                }
                Incident::DeleteLeaf | Incident::DeleteAuthorityKey => {}
                Incident::NewConfiguration => {
                    let name = world.configurations.len().to_string();
                    world.configurations.push(configuration(&name, ""));
                }
                Incident::DeniedPatches => world.denies_patches = !world.denies_patches,
            }
        }
        world.denies_patches = false;
        world.pass_all(60);
        let before = world.issued.len();
        world.pass_all(5);
        prop_assert_eq!(world.issued.len(), before, "it settles");
        let leaf = content(&world).leaf.unwrap();
        for registration in world.registrations() {
            prop_assert!(registration.webhooks[0].trusted.iter().any(|it| leaf.is_signed_by(it)));
        }
    }
}
