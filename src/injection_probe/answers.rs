//! The answers of the replicas to the current probe request. Pure except for the clock.
//!
//! In: answers, in any order. Out: the last answer of each replica. Always holds: an answer to an earlier request is
//! dropped; a denial counts against the document only if the replica accepted Pods before, or has certainly read the
//! new file; an answer that repeats the last one, or is reworded too often, is not a change.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    admission_review::{ExpectedInjection, ProbeAnswer, Stale},
    replica::Replica,
};
use crate::api::{
    NamespacedName,
    linkerd_config::{InjectorSyncMethod, InjectorSyncSpec},
};

/// The maximum age of the mounted file after the Pod was annotated.
const FAST_REFRESH: Duration = Duration::from_secs(10);
/// The maximum age of the mounted file otherwise: a kubelet takes up to a minute and a half.
const REFRESH: Duration = Duration::from_secs(100);
/// The maximum number of rewordings of a replica's answer that count as changes. Each change writes the status.
const MAX_WORDINGS: u8 = 10;

/// A request to probe the replicas for a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProbeRequest {
    /// The LinkerdConfig that is reconciled for each changed answer.
    pub(super) config: Arc<str>,
    pub(super) target: NamespacedName,
    pub(super) expected: ExpectedInjection,
    pub(super) canary: Option<CanaryProbe>,
    /// The time of the last write of the document, by any writer. Earlier answers do not count.
    pub(super) written: Option<Timestamp>,
    pub(super) replicas: Vec<Replica>,
    pub(super) spec: InjectorSyncSpec,
}

/// The configuration that replicas are expected to inject into Pods of canary namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CanaryProbe {
    /// The namespaces to probe, in this order, until the Pod of one of them has the configuration.
    pub(crate) namespaces: Vec<Arc<str>>,
    pub(crate) injection_hash: String,
}

/// The parts of a request that the answers of the replicas depend on.
type RequestKey = (ExpectedInjection, Option<CanaryProbe>, Option<Timestamp>, InjectorSyncMethod);

/// The last answers of the replicas to the current request.
#[derive(Default)]
pub(super) struct ProbeAnswers {
    to: Option<RequestKey>,
    since: Option<Instant>,
    of: HashMap<Replica, ProbeAnswer>,
    wordings: HashMap<Replica, u8>,
    refreshed: HashSet<Replica>,
    /// The replicas whose last answer, even to an earlier request, accepted a Pod.
    allowing: HashSet<Replica>,
    /// Whether each replica is the operator's, by its last answer to any request.
    are_operators: HashMap<Replica, bool>,
}

// === impl ProbeRequest ===

impl ProbeRequest {
    fn key(&self) -> RequestKey {
        (self.expected.clone(), self.canary.clone(), self.written, self.spec.method)
    }
}

// === impl ProbeAnswers ===

impl ProbeAnswers {
    /// Returns the answers to a request, and drops the answers to an earlier request.
    pub(super) fn to(&mut self, request: &ProbeRequest) -> Vec<(Replica, Option<ProbeAnswer>)> {
        let to = Some(request.key());
        if self.to != to {
            let mut allowing = mem::take(&mut self.allowing);
            allowing.retain(|replica| !self.of.get(replica).is_some_and(denies));
            let are_operators = mem::take(&mut self.are_operators);
            *self = Self { to, since: Some(Instant::now()), allowing, are_operators, ..Self::default() };
        }
        self.are_operators.retain(|replica, _| request.replicas.contains(replica));
        self.of.retain(|replica, _| request.replicas.contains(replica));
        self.allowing.retain(|replica| request.replicas.contains(replica));
        let answer = |replica: &Replica| (replica.clone(), self.of.get(replica).cloned());
        request.replicas.iter().map(answer).collect()
    }

    /// Records an answer. Returns whether it is a change.
    pub(super) fn record(&mut self, request: &ProbeRequest, replica: &Replica, answer: ProbeAnswer) -> bool {
        if self.to.as_ref() != Some(&request.key()) {
            return false;
        }
        let refresh = if self.refreshed.contains(replica) { FAST_REFRESH } else { REFRESH };
        let is_current = self.since.is_some_and(|since| since.elapsed() >= refresh);
        let answer = match answer {
            denial if denies(&denial) && !is_current && !self.allowing.contains(replica) => {
                ProbeAnswer::Stale(Stale::Denying)
            }
            ProbeAnswer::Current | ProbeAnswer::Stale(_) | ProbeAnswer::Uninjected => {
                self.allowing.insert(replica.clone());
                answer
            }
            answer => answer,
        };
        if let Some(known) =
            self.of.get(replica).filter(|known| mem::discriminant(*known) == mem::discriminant(&answer))
        {
            let wordings = self.wordings.entry(replica.clone()).or_default();
            if eq_ignoring_digits(known, &answer) || *wordings >= MAX_WORDINGS {
                return false;
            }
            *wordings += 1;
        }
        self.of.insert(replica.clone(), answer);
        true
    }

    /// Notes whether a replica is the operator's.
    pub(super) fn note_program(&mut self, replica: &Replica, is_operators: bool) {
        self.are_operators.insert(replica.clone(), is_operators);
    }

    /// Whether a replica is the operator's; `None` if it has not answered yet.
    pub(super) fn is_operators(&self, replica: &Replica) -> Option<bool> {
        self.are_operators.get(replica).copied()
    }

    /// Returns the answer of a replica to a request about this canary.
    pub(super) fn about_canary(&self, replica: &Replica, injection_hash: &str) -> Option<&ProbeAnswer> {
        let (_, canary, ..) = self.to.as_ref()?;
        canary.as_ref().filter(|canary| canary.injection_hash == injection_hash)?;
        self.of.get(replica)
    }

    /// Forgets all answers. While no replica is probed, each may read a document that was not checked. So a later
    /// denial does not count against the next document at once.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Whether the volume of the replica must be refreshed: it injects an older document, or denies Pods because of
    /// one.
    pub(super) fn needs_refresh(&self, replica: &Replica) -> bool {
        // No replica has a file with the configuration of a canary.
        let is_stale = |answer: &ProbeAnswer| matches!(answer, ProbeAnswer::Stale(stale) if *stale != Stale::Canary);
        let needs_refresh = |answer: &ProbeAnswer| is_stale(answer) || denies(answer);
        self.of.get(replica).is_some_and(needs_refresh) && !self.refreshed.contains(replica)
    }

    pub(super) fn note_refresh(&mut self, request: &ProbeRequest, replica: &Replica) {
        if self.to.as_ref() == Some(&request.key()) {
            self.refreshed.insert(replica.clone());
        }
    }
}

/// Compares answers without their digits, which may come from a clock.
fn eq_ignoring_digits(one: &ProbeAnswer, other: &ProbeAnswer) -> bool {
    fn words(text: &str) -> impl Iterator<Item = char> {
        text.chars().filter(|it| !it.is_ascii_digit())
    }
    match (one, other) {
        (ProbeAnswer::Denied(one), ProbeAnswer::Denied(other))
        | (ProbeAnswer::Broken(one), ProbeAnswer::Broken(other))
        | (ProbeAnswer::Unreachable(one), ProbeAnswer::Unreachable(other)) => words(one).eq(words(other)),
        _ => one == other,
    }
}

/// Whether the API server would reject the Pod.
pub(super) fn denies(answer: &ProbeAnswer) -> bool {
    matches!(answer, ProbeAnswer::Denied(_) | ProbeAnswer::Broken(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::injection_probe::registration::InjectorOwner;

    fn request(injection_hash: &str) -> ProbeRequest {
        ProbeRequest {
            config: "mesh".into(),
            target: NamespacedName::new("linkerd", "linkerd-config"),
            expected: ExpectedInjection { injection_hash: injection_hash.to_owned(), trust_roots: None },
            canary: None,
            written: None,
            replicas: vec![Replica {
                injector: InjectorOwner::Linkerd,
                namespace: "linkerd".into(),
                pod: Some("injector".into()),
                address: ([10, 0, 0, 1], 8443).into(),
            }],
            spec: InjectorSyncSpec::default(),
        }
    }

    fn denied(text: &str) -> ProbeAnswer {
        ProbeAnswer::Denied(text.to_owned())
    }

    /// Records an answer of the only replica. Returns its last answer, and whether it changed.
    fn after(answers: &mut ProbeAnswers, request: &ProbeRequest, answer: ProbeAnswer) -> (Option<ProbeAnswer>, bool) {
        answers.to(request);
        let changed = answers.record(request, &request.replicas[0], answer);
        (answers.to(request).remove(0).1, changed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_counts_against_a_document_only_if_the_replica_has_read_that_document() {
        let mut answers = ProbeAnswers::default();
        let still = Some(ProbeAnswer::Stale(Stale::Denying));
        let [first, bad, next] = ["first", "bad", "next"].map(request);
        // The replica has not answered before.
        assert_eq!(after(&mut answers, &first, denied("a")), (still.clone(), true));
        assert_eq!(after(&mut answers, &first, ProbeAnswer::Current).0, Some(ProbeAnswer::Current));
        assert_eq!(
            after(&mut answers, &bad, denied("b")),
            (Some(denied("b")), true),
            "the replica accepted Pods before"
        );
        assert_eq!(after(&mut answers, &next, denied("b")).0, still);
        // An unreachable replica does not show whether it accepts Pods.
        assert!(after(&mut answers, &next, ProbeAnswer::Unreachable("away".to_owned())).1);
        assert_eq!(after(&mut answers, &next, denied("c")).0, still);
        tokio::time::advance(FAST_REFRESH).await;
        assert_eq!(after(&mut answers, &next, denied("c")).0, still, "its volume was not refreshed");
        assert!(answers.needs_refresh(&next.replicas[0]));
        answers.note_refresh(&next, &next.replicas[0]);
        assert!(!answers.needs_refresh(&next.replicas[0]));
        assert_eq!(after(&mut answers, &next, denied("c")).0, Some(denied("c")));
        let last = request("last");
        assert_eq!(after(&mut answers, &last, denied("c")).0, still);
        tokio::time::advance(REFRESH).await;
        assert_eq!(after(&mut answers, &last, denied("c")).0, Some(denied("c")));
    }

    #[test]
    fn after_a_pause_a_denial_does_not_count_at_once() {
        let mut answers = ProbeAnswers::default();
        let [good, corrected] = ["good", "corrected"].map(request);
        after(&mut answers, &good, ProbeAnswer::Current);
        // In the meantime the installer wrote a document with which the injector denies Pods.
        answers.forget();
        let answer = after(&mut answers, &corrected, denied("by the broken document")).0;
        assert_eq!(answer, Some(ProbeAnswer::Stale(Stale::Denying)));
    }

    #[test]
    fn a_repeated_answer_and_one_that_is_reworded_too_often_are_not_changes() {
        let (mut answers, request) = (ProbeAnswers::default(), request("a"));
        let away = |text: &str| ProbeAnswer::Unreachable(text.to_owned());
        assert!(after(&mut answers, &request, away("expired 12 seconds ago")).1);
        assert!(!after(&mut answers, &request, away("expired 13 seconds ago")).1);
        let changes = (0..100u8).filter(|number| {
            let word = "x".repeat(usize::from(*number));
            after(&mut answers, &request, away(&word)).1
        });
        assert_eq!(changes.count(), usize::from(MAX_WORDINGS));
        assert!(after(&mut answers, &request, ProbeAnswer::Current).1);
    }

    #[test]
    fn an_answer_to_an_earlier_request_is_dropped() {
        let mut answers = ProbeAnswers::default();
        let (old, new) = (request("old"), request("new"));
        answers.to(&new);
        assert!(!answers.record(&old, &old.replicas[0], ProbeAnswer::Current));
        assert_eq!(answers.to(&new).remove(0).1, None);
    }

    #[test]
    fn an_answer_is_about_a_canary_only_if_the_request_was() {
        let mut answers = ProbeAnswers::default();
        let plain = request("a");
        let replica = plain.replicas[0].clone();
        let canary = CanaryProbe { namespaces: vec!["app".into()], injection_hash: "b".to_owned() };
        let with_canary = ProbeRequest { canary: Some(canary), ..plain.clone() };
        answers.to(&plain);
        answers.note_program(&replica, true);
        assert!(answers.record(&plain, &replica, ProbeAnswer::Current));
        assert_eq!(answers.about_canary(&replica, "b"), None);
        assert_eq!(answers.to(&with_canary), [(replica.clone(), None)], "the replica is probed again");
        assert!(answers.record(&with_canary, &replica, ProbeAnswer::Stale(Stale::Canary)));
        assert_eq!(answers.about_canary(&replica, "b"), Some(&ProbeAnswer::Stale(Stale::Canary)));
        assert_eq!(answers.about_canary(&replica, "c"), None, "the answer is about another document");
        assert!(!answers.needs_refresh(&replica), "no file has the configuration of a canary");
        assert_eq!(answers.is_operators(&replica), Some(true), "the program does not depend on the request");
        answers.to(&ProbeRequest { replicas: Vec::new(), ..with_canary });
        assert_eq!(answers.is_operators(&replica), None);
    }
}
