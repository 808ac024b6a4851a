//! What the replicas answered to the question that is asked now. Pure but for the clock.
//!
//! In: answers, as they come. Out: what is known of each replica. Always holds: an answer to another question is none; a replica
//! that denies what it denied before the document was another is not taken to deny the new one, for as long as its file may be
//! old.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Replica,
    review::{Answer, Expected, Stale},
};
use crate::{api::linkerd_config::InjectorSyncSpec, cluster::object::NamespacedName};

/// So long a replica may go on denying what it had before. Without a nudge kubelets take up to a minute and a half.
const NUDGED_REFRESH: Duration = Duration::from_secs(15);
const REFRESH: Duration = Duration::from_secs(100);
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
    to: Option<(Expected, Option<Timestamp>)>,
    since: Option<Instant>,
    of: HashMap<Replica, Answer>,
    /// What they denied until then with: the file of a replica may be that old for a while, and its denial is no answer.
    denied: HashMap<Replica, Answer>,
}

// === impl Answers ===

impl Answers {
    /// The answers to a question; those to another are forgotten.
    pub(super) fn to(&mut self, question: &Question) -> Vec<(Replica, Option<Answer>)> {
        let to = Some((question.expected.clone(), question.written));
        if self.to != to {
            let denied = std::mem::take(&mut self.of).into_iter().filter(|(_, answer)| denies(answer));
            let denied = denied.chain(std::mem::take(&mut self.denied)).collect();
            *self = Self { to, since: Some(Instant::now()), of: HashMap::new(), denied };
        }
        self.denied.retain(|replica, _| question.replicas.contains(replica));
        self.of.retain(|replica, _| question.replicas.contains(replica));
        let answer = |replica: &Replica| (replica.clone(), self.of.get(replica).cloned());
        question.replicas.iter().map(answer).collect()
    }

    pub(super) fn of(&self, replica: &Replica) -> Option<&Answer> {
        self.of.get(replica)
    }

    /// Whether it is news.
    pub(super) fn note(&mut self, question: &Question, replica: &Replica, answer: Answer) -> bool {
        if self
            .to
            .as_ref()
            .is_none_or(|(expected, written)| (expected, written) != (&question.expected, &question.written))
        {
            return false;
        }
        let refresh = if question.spec.nudge { NUDGED_REFRESH } else { REFRESH };
        let is_fresh = self.since.is_some_and(|since| since.elapsed() < refresh);
        let answer = match self.denied.get(replica) {
            Some(before) if *before == answer && is_fresh => Answer::Stale(Stale::Denying),
            _ => {
                self.denied.remove(replica);
                answer
            }
        };
        self.of.insert(replica.clone(), answer.clone()) != Some(answer)
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

    #[tokio::test(start_paused = true)]
    async fn a_denial_of_what_was_there_before_is_no_answer_for_a_while() {
        let mut answers = Answers::default();
        let denied = || Answer::Denied("bad value".to_owned());
        let mut told = |question: &Question, answer: Answer| {
            let known = answers.to(question).remove(0).1;
            let news = answers.note(question, &question.replicas[0], answer);
            (known, news, answers.to(question).remove(0).1)
        };
        let (bad, next) = (question("bad"), question("next"));
        assert_eq!(told(&bad, denied()), (None, true, Some(denied())), "it is to blame");
        assert_eq!(told(&bad, denied()), (Some(denied()), false, Some(denied())));
        let still = Some(Answer::Stale(Stale::Denying));
        assert_eq!(told(&next, denied()), (None, true, still.clone()));
        // In other words, it is about the other document.
        assert_eq!(told(&next, Answer::Denied("worse".to_owned())).2, Some(Answer::Denied("worse".to_owned())));

        let last = question("last");
        assert_eq!(told(&last, Answer::Denied("worse".to_owned())).2, still);
        tokio::time::advance(NUDGED_REFRESH).await;
        assert_eq!(told(&last, Answer::Denied("worse".to_owned())).2, Some(Answer::Denied("worse".to_owned())));
        assert_eq!(told(&last, Answer::Current).2, Some(Answer::Current));
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
