//! What the replicas answered to the question that is asked now. Pure but for the clock.
//!
//! In: answers, as they come. Out: what is known of each replica. Always holds: an answer to another question is none; a document
//! is blamed for a denial only where the replica let Pods through until then, or its file cannot be older any more; what says the
//! same, or is said too often, is no news.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Replica,
    review::{Answer, Expected, Stale},
};
use crate::api::{
    NamespacedName,
    linkerd_config::{InjectorSyncMethod, InjectorSyncSpec},
};

/// After a nudge a file is older than this no more.
const NUDGED_REFRESH: Duration = Duration::from_secs(10);
/// Without one kubelets take up to a minute and a half.
const REFRESH: Duration = Duration::from_secs(100);
/// A replica may put the same into other words so often. Each time is a write of the status.
const WORDINGS: u8 = 10;

/// What is to be found out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    /// The LinkerdConfig that wants to know, and its ConfigMap.
    pub(super) config: Arc<str>,
    pub(super) target: NamespacedName,
    pub(super) expected: Expected,
    /// When the document was written last, by whomever: what was found before proves nothing.
    pub(super) written: Option<Timestamp>,
    pub(super) replicas: Vec<Replica>,
    pub(super) spec: InjectorSyncSpec,
}

/// Of the replicas that were asked, to the question that is asked now.
#[derive(Default)]
pub(super) struct Answers {
    to: Option<(Expected, Option<Timestamp>, InjectorSyncMethod)>,
    since: Option<Instant>,
    of: HashMap<Replica, Answer>,
    wordings: HashMap<Replica, u8>,
    nudged: HashSet<Replica>,
    /// Who let Pods through when asked last, whatever was asked.
    allowing: HashSet<Replica>,
}

// === impl Question ===

impl Question {
    fn key(&self) -> (Expected, Option<Timestamp>, InjectorSyncMethod) {
        (self.expected.clone(), self.written, self.spec.method)
    }
}

// === impl Answers ===

impl Answers {
    /// The answers to a question; those to another are forgotten.
    pub(super) fn to(&mut self, question: &Question) -> Vec<(Replica, Option<Answer>)> {
        let to = Some(question.key());
        if self.to != to {
            let mut allowing = mem::take(&mut self.allowing);
            allowing.retain(|replica| !self.of.get(replica).is_some_and(denies));
            *self = Self { to, since: Some(Instant::now()), allowing, ..Self::default() };
        }
        self.of.retain(|replica, _| question.replicas.contains(replica));
        self.allowing.retain(|replica| question.replicas.contains(replica));
        let answer = |replica: &Replica| (replica.clone(), self.of.get(replica).cloned());
        question.replicas.iter().map(answer).collect()
    }

    /// Whether it is news.
    pub(super) fn note(&mut self, question: &Question, replica: &Replica, answer: Answer) -> bool {
        if self.to.as_ref() != Some(&question.key()) {
            return false;
        }
        let refresh = if self.nudged.contains(replica) { NUDGED_REFRESH } else { REFRESH };
        let is_current = self.since.is_some_and(|since| since.elapsed() >= refresh);
        let answer = match answer {
            denial if denies(&denial) && !is_current && !self.allowing.contains(replica) => {
                Answer::Stale(Stale::Denying)
            }
            Answer::Current | Answer::Stale(_) | Answer::Uninjected => {
                self.allowing.insert(replica.clone());
                answer
            }
            answer => answer,
        };
        if let Some(known) =
            self.of.get(replica).filter(|known| mem::discriminant(*known) == mem::discriminant(&answer))
        {
            let wordings = self.wordings.entry(replica.clone()).or_default();
            if eq_ignoring_version(known, &answer) || *wordings >= WORDINGS {
                return false;
            }
            *wordings += 1;
        }
        self.of.insert(replica.clone(), answer);
        true
    }

    /// Whether a nudge is due: it lags, or denies, maybe for the sake of an older document.
    pub(super) fn is_late(&self, replica: &Replica) -> bool {
        let is_late = |answer: &Answer| matches!(answer, Answer::Stale(_)) || denies(answer);
        self.of.get(replica).is_some_and(is_late) && !self.nudged.contains(replica)
    }

    pub(super) fn nudged(&mut self, question: &Question, replica: &Replica) {
        if self.to.as_ref() == Some(&question.key()) {
            self.nudged.insert(replica.clone());
        }
    }
}

/// But for numbers, which may be those of a clock.
fn eq_ignoring_version(one: &Answer, other: &Answer) -> bool {
    fn words(text: &str) -> impl Iterator<Item = char> {
        text.chars().filter(|it| !it.is_ascii_digit())
    }
    match (one, other) {
        (Answer::Denied(one), Answer::Denied(other))
        | (Answer::Broken(one), Answer::Broken(other))
        | (Answer::Unreachable(one), Answer::Unreachable(other)) => words(one).eq(words(other)),
        _ => one == other,
    }
}

/// Whether an API server would have no Pod made.
pub(super) fn denies(answer: &Answer) -> bool {
    matches!(answer, Answer::Denied(_) | Answer::Broken(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(marker: &str) -> Question {
        Question {
            config: "mesh".into(),
            target: NamespacedName::new("linkerd", "linkerd-config"),
            expected: Expected { marker: marker.to_owned(), trust_roots: None },
            written: None,
            replicas: vec![Replica { pod: Some("injector".into()), address: ([10, 0, 0, 1], 8443).into() }],
            spec: InjectorSyncSpec::default(),
        }
    }

    fn denied(text: &str) -> Answer {
        Answer::Denied(text.to_owned())
    }

    /// What is known of the only replica once it has answered, and whether that was news.
    fn told(answers: &mut Answers, question: &Question, answer: Answer) -> (Option<Answer>, bool) {
        answers.to(question);
        let news = answers.note(question, &question.replicas[0], answer);
        (answers.to(question).remove(0).1, news)
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_is_blamed_only_where_its_denial_is_no_older_than_it() {
        let mut answers = Answers::default();
        let still = Some(Answer::Stale(Stale::Denying));
        let [first, bad, next] = ["first", "bad", "next"].map(question);
        // Nobody knows what it did before.
        assert_eq!(told(&mut answers, &first, denied("a")), (still.clone(), true));
        assert_eq!(told(&mut answers, &first, Answer::Current).0, Some(Answer::Current));
        assert_eq!(told(&mut answers, &bad, denied("b")), (Some(denied("b")), true), "it let Pods through until then");
        assert_eq!(told(&mut answers, &next, denied("b")).0, still);
        // Not to be reached is no answer to that.
        assert!(told(&mut answers, &next, Answer::Unreachable("away".to_owned())).1);
        assert_eq!(told(&mut answers, &next, denied("c")).0, still);
        tokio::time::advance(NUDGED_REFRESH).await;
        assert_eq!(told(&mut answers, &next, denied("c")).0, still, "nobody has nudged it");
        assert!(answers.is_late(&next.replicas[0]));
        answers.nudged(&next, &next.replicas[0]);
        assert!(!answers.is_late(&next.replicas[0]));
        assert_eq!(told(&mut answers, &next, denied("c")).0, Some(denied("c")));
        let last = question("last");
        assert_eq!(told(&mut answers, &last, denied("c")).0, still);
        tokio::time::advance(REFRESH).await;
        assert_eq!(told(&mut answers, &last, denied("c")).0, Some(denied("c")));
    }

    #[test]
    fn what_says_the_same_or_changes_its_words_for_ever_is_no_news() {
        let (mut answers, question) = (Answers::default(), question("a"));
        let away = |text: &str| Answer::Unreachable(text.to_owned());
        assert!(told(&mut answers, &question, away("expired 12 seconds ago")).1);
        assert!(!told(&mut answers, &question, away("expired 13 seconds ago")).1);
        let news = (0..100u8).filter(|number| {
            let word = "x".repeat(usize::from(*number));
            told(&mut answers, &question, away(&word)).1
        });
        assert_eq!(news.count(), usize::from(WORDINGS));
        assert!(told(&mut answers, &question, Answer::Current).1);
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let mut answers = Answers::default();
        let (old, new) = (question("old"), question("new"));
        answers.to(&new);
        assert!(!answers.note(&old, &old.replicas[0], Answer::Current));
        assert_eq!(answers.to(&new).remove(0).1, None);
    }
}
