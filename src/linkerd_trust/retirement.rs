//! When the roots that are not declared may leave the bundle.
//!
//! In: a mesh whose issuer belongs to a declared root, or is to. Out: since when the identity service signs only certificates that
//! need declared roots; then now, later, or the reason why not. Always holds: before a removal, each replica of the
//! identity service has shown twice, with [`CONFIRMED_AFTER`] between, that its certificates need only declared roots, and
//! in between each proxy was asked again; proxies that are not seen from here keep every root, unless they show that they
//! need none that leaves; only while connections are cut, one answer of each replica is enough; at rest, the identity
//! service is asked once a minute at most.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::info;

use super::{
    bundle_writer::{HeldWrite, left_of},
    identity_service::IdentityService,
    prober::SharedLeaves,
    unseen_proxies::{self, Unseen},
};
use crate::{
    api::linkerd_trust::{AcceptedStep, TrustReason},
    cluster::kinds::linkerd_trust::LinkerdTrust,
    trust::{
        SeenTrust,
        accepted::RotationWait,
        seen::LeafSettings,
        signers::{check_cut, check_removal, check_signers},
    },
    x509::anchors::AnchorBundle,
};

/// Longer than kubelets take to update the files of a Secret that was written just before the first answer: up to 90 s, and
/// a minute more with the strategy Cache.
const CONFIRMED_AFTER: Duration = Duration::from_secs(160);
/// After this time the first answers do not count any more.
const CONFIRMED_FOR: Duration = Duration::from_secs(3600);
const RETRY: Duration = Duration::from_secs(60);
/// The same while connections are cut.
const CUT_RETRY: Duration = Duration::from_secs(10);
/// The interval at which the identity service is asked while proxies renew.
const WATCH_INTERVAL: Duration = Duration::from_secs(1800);
/// After a longer time without an answer, the replicas may have signed with another issuer meanwhile.
const LONGEST_GAP: Duration = Duration::from_secs(2 * 3600);

pub(super) struct Retirement {
    client: Client,
    identity: IdentityService,
    leaves: Arc<SharedLeaves>,
    memory: Mutex<RetirementMemory>,
}

/// What this process remembers about the answers of the identity service.
#[derive(Default)]
struct RetirementMemory {
    signing: Option<SigningSpan>,
    /// When [`Retirement::watch`] asked last, and the answer.
    watched: Option<(Instant, Signing)>,
    /// Since when the issuer of this declaration is written.
    issuer_written: Option<(Declaration, Instant)>,
    /// The first answers before a removal.
    confirmed: Option<(RetirementBasis, Instant)>,
    /// The last reason why not.
    held: Option<(RetirementBasis, Instant, HeldWrite)>,
}

/// The time in which all replicas signed only certificates that need declared roots. It is not stored: while no operator
/// asks, they may sign others.
struct SigningSpan {
    declaration: Declaration,
    since: Timestamp,
    last: Instant,
}

/// A resource, and its generation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Declaration {
    pub(super) uid: Arc<str>,
    pub(super) generation: i64,
}

/// The declaration and the bundle that were judged. After a change of either, earlier answers do not count.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RetirementBasis {
    pub(super) declaration: Declaration,
    /// The SHA-256 of the bundle.
    pub(super) bundle: String,
}

/// What the answers of the identity service show.
#[derive(PartialEq)]
enum Signing {
    /// Only certificates that need declared roots.
    Declared,
    /// Certificates that need another root, or that proxies refuse. The text names the replica.
    Others(String),
    /// A replica did not answer, or the mesh needs another root for a reason of its own.
    Unknown(String),
}

pub(super) enum RetirementStep {
    Now,
    /// The resource is reconciled again after this time.
    After(Duration),
    Held(HeldWrite),
}

// === impl Declaration ===

impl Declaration {
    pub(super) fn of(trust: &LinkerdTrust) -> Self {
        Self { uid: Arc::clone(&trust.uid), generation: trust.generation }
    }
}

// === impl Retirement ===

impl Retirement {
    pub(super) fn new(client: &Client, identity: IdentityService, leaves: &Arc<SharedLeaves>) -> Self {
        Self { client: client.clone(), identity, leaves: Arc::clone(leaves), memory: Mutex::default() }
    }

    /// Returns since when all replicas sign only certificates that need declared roots: after the lifetime of a
    /// certificate, proxies that are not observed have no other ones.
    pub(super) fn signing_since(&self, declaration: &Declaration) -> Option<Timestamp> {
        self.memory.lock().signing_since(declaration)
    }

    /// Notes what the report says. `newest_old` is when the newest certificate was issued that needs another root.
    pub(super) fn note(&self, is_awaited: bool, newest_old: Option<Timestamp>, settings: &LeafSettings) {
        self.memory.lock().note(is_awaited, newest_old, settings);
    }

    /// Asks the identity service from time to time.
    pub(super) async fn watch(&self, declaration: &Declaration, seen: SeenTrust) {
        // The certificates of proxies do not show a change to a distrusted root.
        let is_enough = seen.signing_since.is_some() && !seen.is_distrusting();
        let interval = if is_enough { WATCH_INTERVAL } else { RETRY };
        if self.memory.lock().watched.as_ref().is_some_and(|(last, _)| last.elapsed() < interval) {
            return;
        }
        let now = seen.now;
        let signing = self.signing(seen, None).await;
        self.memory.lock().watched(declaration, signing, now);
    }

    /// Returns which replica does not sign with the issuer that was written, once kubelets have had the time to give it to
    /// each; until then, the time that is left.
    pub(super) async fn check_issuer(&self, declaration: &Declaration, seen: SeenTrust) -> Result<Duration, HeldWrite> {
        let left = self.memory.lock().until_issuer_is_used(declaration);
        if let Some(left) = left {
            return Ok(left);
        }
        self.watch(declaration, seen).await;
        match &self.memory.lock().watched {
            Some((_, Signing::Others(why))) => Err(HeldWrite {
                reason: TrustReason::IssuerNotTaken,
                message: format!("the issuer was written, but proxies still get certificates of another one: {why}"),
                retry: Some(RETRY),
                commands: vec![self.identity.restart()],
            }),
            _ => Ok(RETRY),
        }
    }

    /// Returns when the roots may be removed. `anchors`: their SHA-256. `after`: the bundle without them.
    pub(super) async fn next(
        &self,
        basis: RetirementBasis,
        seen: SeenTrust,
        anchors: Vec<String>,
        after: &str,
    ) -> RetirementStep {
        // A reconcile comes with each change of a Pod.
        if let Some(known) = self.memory.lock().known(&basis) {
            return known;
        }
        let now = seen.now;
        let wait = RotationWait { step: AcceptedStep::Removal, anchors };
        let generation = basis.declaration.generation;
        let staying = AnchorBundle::parse(after.as_bytes()).ok();
        let declared = seen.desired.as_ref();
        let unseen = unseen_proxies::check(&self.client, declared, generation, &wait, staying.as_ref()).await;
        let (why, commands) = match unseen {
            Err(Unseen { why, commands }) => {
                self.watch(&basis.declaration, seen).await;
                let remedy = "Once no certificate there needs them, run the command in status.commands";
                (if commands.is_empty() { why } else { format!("{why}. {remedy}") }, commands)
            }
            Ok(()) => {
                let signing = self.signing(seen, Some(after.to_owned())).await;
                self.memory.lock().signed(&basis.declaration, &signing, now);
                match signing {
                    Signing::Declared => {
                        let step = self.memory.lock().confirm(basis);
                        if let RetirementStep::After(_) = step {
                            self.leaves.ask_all(now);
                        }
                        return step;
                    }
                    Signing::Others(why) | Signing::Unknown(why) => (why, Vec::new()),
                }
            }
        };
        let message = format!("the roots that are not declared stay in the bundle: {why}");
        let held = HeldWrite { reason: TrustReason::RemovalHeld, message, retry: Some(RETRY), commands };
        self.memory.lock().hold(basis, held)
    }

    /// Verifies that distrusted roots may leave this bundle although certificates need them: new ones must not. `after`: the
    /// bundle without them.
    pub(super) async fn check_cut(
        &self,
        basis: RetirementBasis,
        bundle: &str,
        after: &str,
        settings: &LeafSettings,
    ) -> Result<(), HeldWrite> {
        if let Some(RetirementStep::Held(held)) = self.memory.lock().known(&basis) {
            return Err(held);
        }
        let control_plane = self.identity.control_plane();
        let checked = match self.identity.ask(bundle, settings).await {
            Ok(signers) => check_cut(after, settings, control_plane, &signers, Timestamp::now()).map_err(|why| {
                let late = "Wait for 2 minutes, or restart it if it started before the bundle had the next root";
                (format!("{why}. {late}"), vec![self.identity.restart()])
            }),
            Err(error) => Err((format!("{error:#}"), Vec::new())),
        };
        checked.map_err(|(why, commands)| {
            let message =
                format!("the distrusted roots stay in the bundle until new certificates do not need them: {why}");
            let held = HeldWrite { reason: TrustReason::RemovalHeld, message, retry: Some(CUT_RETRY), commands };
            self.memory.lock().hold(basis, held.clone());
            held
        })
    }

    /// `after`: the bundle that must be enough, too.
    async fn signing(&self, mut seen: SeenTrust, after: Option<String>) -> Signing {
        let bundle = seen.bundle.as_ref().map_or("", |bundle| bundle.pem.as_str());
        let signers = match self.identity.ask(bundle, &seen.settings).await {
            Ok(signers) => signers,
            Err(error) => return Signing::Unknown(format!("{error:#}")),
        };
        let judged = move || {
            if let Err(why) = check_signers(&mut seen, &signers) {
                return Signing::Others(why);
            }
            match after.map_or(Ok(()), |after| check_removal(&mut seen, &after, &signers)) {
                Ok(()) => Signing::Declared,
                Err(why) => Signing::Unknown(why),
            }
        };
        match tokio::task::spawn_blocking(judged).await {
            Ok(signing) => signing,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Signing::Unknown("the operator stops".to_owned()),
        }
    }
}

// === impl RetirementMemory ===

impl RetirementMemory {
    fn signing_since(&self, declaration: &Declaration) -> Option<Timestamp> {
        let span = self.signing.as_ref()?;
        (span.declaration == *declaration && span.last.elapsed() < LONGEST_GAP).then_some(span.since)
    }

    fn note(&mut self, is_awaited: bool, newest_old: Option<Timestamp>, settings: &LeafSettings) {
        if !is_awaited || newest_old.is_some() {
            self.confirmed = None;
        }
        // The beginning of a certificate is earlier than its issue, by the clock skew.
        let issued = newest_old.and_then(|begin| begin.checked_add(settings.clock_skew).ok());
        if self.signing.as_ref().is_some_and(|span| issued.is_some_and(|issued| issued > span.since)) {
            self.signing = None;
        }
    }

    fn watched(&mut self, declaration: &Declaration, signing: Signing, now: Timestamp) {
        self.signed(declaration, &signing, now);
        let is_known = self.watched.as_ref().is_some_and(|(_, known)| *known == signing);
        if let Signing::Others(why) | Signing::Unknown(why) = &signing
            && !is_known
        {
            info!(why, "proxies that are not observed may need roots that are not declared");
        }
        self.watched = Some((Instant::now(), signing));
    }

    /// Returns how long kubelets may still need to give the issuer of this declaration, which is written, to all replicas.
    fn until_issuer_is_used(&mut self, declaration: &Declaration) -> Option<Duration> {
        let known = self.issuer_written.as_ref().filter(|(known, _)| known == declaration);
        let since = known.map_or_else(Instant::now, |(_, since)| *since);
        self.issuer_written = Some((declaration.clone(), since));
        left_of(CONFIRMED_AFTER, since)
    }

    /// Notes what the replicas sign.
    fn signed(&mut self, declaration: &Declaration, signing: &Signing, now: Timestamp) {
        match signing {
            Signing::Declared => {
                let since = self.signing_since(declaration).unwrap_or(now);
                self.signing = Some(SigningSpan { declaration: declaration.clone(), since, last: Instant::now() });
            }
            Signing::Others(_) => (self.signing, self.confirmed) = (None, None),
            Signing::Unknown(_) => {}
        }
    }

    /// Returns what is known without another question.
    fn known(&self, basis: &RetirementBasis) -> Option<RetirementStep> {
        if let Some((_, since)) = self.confirmed.as_ref().filter(|(known, _)| known == basis)
            && let Some(left) = left_of(CONFIRMED_AFTER, *since)
        {
            return Some(RetirementStep::After(left));
        }
        let (_, since, held) = self.held.as_ref().filter(|(known, ..)| known == basis)?;
        let retry = Some(left_of(held.retry?, *since)?);
        Some(RetirementStep::Held(HeldWrite { retry, ..held.clone() }))
    }

    /// Notes the first answers, or uses the second ones.
    fn confirm(&mut self, basis: RetirementBasis) -> RetirementStep {
        self.held = None;
        // Once the bundle is written, it is another one. If the write fails, it is sent again.
        let is_confirmed = |(known, since): &(_, Instant)| *known == basis && since.elapsed() < CONFIRMED_FOR;
        if self.confirmed.as_ref().is_some_and(is_confirmed) {
            return RetirementStep::Now;
        }
        self.confirmed = Some((basis, Instant::now()));
        RetirementStep::After(CONFIRMED_AFTER)
    }

    fn hold(&mut self, basis: RetirementBasis, held: HeldWrite) -> RetirementStep {
        self.confirmed = None;
        if self.held.as_ref().is_none_or(|(.., known)| known.message != held.message) {
            info!(why = held.message, "a root stays in the bundle");
        }
        self.held = Some((basis, Instant::now(), held.clone()));
        RetirementStep::Held(held)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;
    use tokio::time::sleep;

    use super::*;

    fn declaration() -> Declaration {
        Declaration { uid: "1".into(), generation: 1 }
    }

    fn basis(bundle: &str) -> RetirementBasis {
        RetirementBasis { declaration: declaration(), bundle: bundle.to_owned() }
    }

    fn after(step: impl Into<Option<RetirementStep>>) -> Option<Duration> {
        match step.into() {
            Some(RetirementStep::After(time)) => Some(time),
            _ => None,
        }
    }

    fn held() -> HeldWrite {
        let (reason, message) = (TrustReason::RemovalHeld, "why".to_owned());
        HeldWrite { reason, message, retry: Some(RETRY), commands: Vec::new() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn roots_may_be_removed_after_two_answers_about_the_same_bundle_with_time_between() {
        let mut memory = RetirementMemory::default();
        assert!(memory.known(&basis("1")).is_none(), "nothing was asked");
        assert_eq!(after(memory.confirm(basis("1"))), Some(CONFIRMED_AFTER));
        sleep(CONFIRMED_AFTER / 4).await;
        assert_eq!(after(memory.known(&basis("1"))), Some(CONFIRMED_AFTER / 4 * 3));
        assert!(memory.known(&basis("2")).is_none(), "the bundle has changed");
        sleep(CONFIRMED_AFTER).await;
        assert!(memory.known(&basis("1")).is_none(), "the second question is due");
        assert!(matches!(memory.confirm(basis("1")), RetirementStep::Now));
        assert!(matches!(memory.confirm(basis("1")), RetirementStep::Now), "the write may have failed");
        assert_eq!(after(memory.confirm(basis("2"))), Some(CONFIRMED_AFTER), "it was about another bundle");
        sleep(CONFIRMED_FOR).await;
        assert_eq!(after(memory.confirm(basis("2"))), Some(CONFIRMED_AFTER), "it is too old");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answers_do_not_count_after_others_or_in_another_phase() {
        let others = |memory: &mut RetirementMemory| {
            memory.signed(&declaration(), &Signing::Others("why".to_owned()), at(0));
        };
        let left = |memory: &mut RetirementMemory| memory.note(false, None, &LeafSettings::of(None));
        let old = |memory: &mut RetirementMemory| memory.note(true, Some(at(0)), &LeafSettings::of(None));
        for change in [&others as &dyn Fn(&mut RetirementMemory), &left, &old] {
            let mut memory = RetirementMemory::default();
            memory.confirm(basis("1"));
            memory.note(true, None, &LeafSettings::of(None));
            sleep(CONFIRMED_AFTER).await;
            assert!(matches!(memory.confirm(basis("1")), RetirementStep::Now));
            change(&mut memory);
            assert_eq!(after(memory.confirm(basis("1"))), Some(CONFIRMED_AFTER));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_reason_why_not_everything_is_asked_again_and_at_most_once_a_minute() {
        const HALF_A_MINUTE: Duration = Duration::from_secs(30);
        let mut memory = RetirementMemory::default();
        memory.confirm(basis("1"));
        assert!(matches!(memory.hold(basis("1"), held()), RetirementStep::Held(_)));
        sleep(HALF_A_MINUTE).await;
        let Some(RetirementStep::Held(known)) = memory.known(&basis("1")) else { panic!("it is asked at once") };
        assert_eq!(known.retry, Some(HALF_A_MINUTE));
        assert!(memory.known(&basis("2")).is_none(), "the bundle has changed");
        sleep(HALF_A_MINUTE).await;
        assert!(memory.known(&basis("1")).is_none());
        assert_eq!(after(memory.confirm(basis("1"))), Some(CONFIRMED_AFTER), "the first answer does not count");
    }

    #[tokio::test(start_paused = true)]
    async fn kubelets_have_the_same_time_for_each_declaration_whose_issuer_is_written() {
        let mut memory = RetirementMemory::default();
        for generation in [1, 2] {
            let declaration = Declaration { generation, ..declaration() };
            assert_eq!(memory.until_issuer_is_used(&declaration), Some(CONFIRMED_AFTER));
            sleep(CONFIRMED_AFTER / 4).await;
            assert_eq!(memory.until_issuer_is_used(&declaration), Some(CONFIRMED_AFTER / 4 * 3));
            sleep(CONFIRMED_AFTER / 4 * 3).await;
            assert_eq!(memory.until_issuer_is_used(&declaration), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_identity_service_signs_only_declared_certificates_since_the_first_answer_without_a_gap() {
        let mut memory = RetirementMemory::default();
        let (declared, unknown) = (Signing::Declared, Signing::Unknown("why".to_owned()));
        memory.signed(&declaration(), &unknown, at(0));
        assert_eq!(memory.signing_since(&declaration()), None);
        for second in [10, 20] {
            memory.signed(&declaration(), &declared, at(second));
            memory.signed(&declaration(), &unknown, at(second));
            sleep(LONGEST_GAP / 2).await;
        }
        assert_eq!(memory.signing_since(&declaration()), Some(at(10)));
        assert_eq!(memory.signing_since(&Declaration { generation: 2, ..declaration() }), None);
        let skew = LeafSettings::of(None).clock_skew;
        memory.note(true, Some(at(10) - skew), &LeafSettings::of(None));
        assert_eq!(memory.signing_since(&declaration()), Some(at(10)), "the older certificate is from before");
        memory.note(true, Some(at(11) - skew), &LeafSettings::of(None));
        assert_eq!(memory.signing_since(&declaration()), None, "a replica has signed another one since");
        memory.signed(&declaration(), &declared, at(30));
        memory.signed(&declaration(), &Signing::Others("why".to_owned()), at(40));
        assert_eq!(memory.signing_since(&declaration()), None);
        memory.signed(&declaration(), &declared, at(50));
        sleep(LONGEST_GAP).await;
        assert_eq!(memory.signing_since(&declaration()), None, "it was not asked for too long");
        memory.signed(&declaration(), &declared, at(60));
        assert_eq!(memory.signing_since(&declaration()), Some(at(60)));
    }
}
