//! What the answers of the injectors mean. Pure.
//!
//! In: what each ready replica was found to do, since when it is waited for, how patiently. Out: the reason of the condition
//! InjectorSynced, and whether the document has to go. Always holds: one denial outweighs all else; a document that was seen to
//! work is never blamed.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    Replica,
    review::{Answer, Stale},
};
use crate::api::linkerd_config::{InjectorSyncMethod, InjectorSyncSpec, OnTimeout};

/// Of the replicas in a message.
const SHOWN: usize = 3;

pub(in crate::linkerd_config) struct Input<'a> {
    pub(in crate::linkerd_config) spec: &'a InjectorSyncSpec,
    /// All that are ready; `None`: not asked yet.
    pub(in crate::linkerd_config) answers: &'a [(Replica, Option<Answer>)],
    /// Since when they have something to catch up with.
    pub(in crate::linkerd_config) since: Timestamp,
    pub(in crate::linkerd_config) now: Timestamp,
    /// The document was seen to work: what fails now fails for another reason.
    pub(in crate::linkerd_config) is_proven: bool,
}

/// How things stand with the injectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::linkerd_config) struct Barrier {
    pub(in crate::linkerd_config) reason: Reason,
    pub(in crate::linkerd_config) message: String,
    /// How many replicas are ready, and how many of them are current; where they were asked.
    pub(in crate::linkerd_config) counts: Option<(usize, usize)>,
    /// The document has to go.
    pub(in crate::linkerd_config) is_refused: bool,
    /// When the reason becomes another one without any news.
    pub(in crate::linkerd_config) again: Option<Duration>,
}

/// Of the condition InjectorSynced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::linkerd_config) enum Reason {
    AllReplicasCurrent,
    Propagating,
    NoReadyReplicas,
    ProbeFailed,
    Denied,
    Timeout,
    /// Nobody is asked.
    ProbeDisabled,
}

// === impl Reason ===

impl Reason {
    pub(in crate::linkerd_config) const fn as_str(self) -> &'static str {
        match self {
            Self::AllReplicasCurrent => "AllReplicasCurrent",
            Self::Propagating => "Propagating",
            Self::NoReadyReplicas => "NoReadyReplicas",
            Self::ProbeFailed => "ProbeFailed",
            Self::Denied => "Denied",
            Self::Timeout => "Timeout",
            Self::ProbeDisabled => "ProbeDisabled",
        }
    }
}

// === impl Barrier ===

impl Barrier {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), counts: None, is_refused: false, again: None }
    }

    /// Of what was written just now.
    pub(in crate::linkerd_config) fn just_written() -> Self {
        Self::new(Reason::Propagating, "it was written just now")
    }

    /// Of a ConfigMap that no injector reads.
    pub(in crate::linkerd_config) fn unread() -> Self {
        Self::new(Reason::ProbeDisabled, "no injector reads this ConfigMap")
    }

    /// Whether what is declared is in effect as far as injectors are concerned.
    pub(in crate::linkerd_config) fn is_open(&self, spec: &InjectorSyncSpec) -> bool {
        match self.reason {
            Reason::AllReplicasCurrent | Reason::ProbeDisabled => true,
            Reason::Timeout => spec.on_timeout == OnTimeout::Proceed,
            Reason::Propagating | Reason::NoReadyReplicas | Reason::ProbeFailed | Reason::Denied => false,
        }
    }
}

pub(in crate::linkerd_config) fn judge(input: &Input<'_>) -> Barrier {
    let Input { spec, answers, since, now, is_proven } = *input;
    let waited = Duration::try_from(now.duration_since(since).max(SignedDuration::ZERO)).unwrap_or_default();
    if spec.method == InjectorSyncMethod::Delay {
        return match spec.delay().checked_sub(waited).filter(|left| !left.is_zero()) {
            Some(left) => Barrier {
                again: Some(left),
                ..Barrier::new(Reason::Propagating, format!("injectors may take {:?}: nobody is asked", spec.delay()))
            },
            None => Barrier::new(Reason::ProbeDisabled, "injectors had their time: nobody was asked"),
        };
    }
    if answers.is_empty() {
        let none = Barrier::new(Reason::NoReadyReplicas, "no replica of the proxy-injector is ready");
        return Barrier { counts: Some((0, 0)), ..none };
    }
    let current = answers.iter().filter(|(_, answer)| *answer == Some(Answer::Current)).count();
    let counts = Some((answers.len(), current));
    let found = |of: fn(&Answer) -> Option<String>| -> Vec<String> {
        let found = answers.iter().filter_map(|(replica, answer)| Some((replica, of(answer.as_ref()?)?)));
        found.map(|(replica, text)| format!("{}: {text}", replica.name())).collect()
    };
    let denied = found(|answer| match answer {
        Answer::Denied(text) => Some(format!("it denies Pods: {text}")),
        Answer::Broken(text) => Some(text.clone()),
        _ => None,
    });
    if !denied.is_empty() {
        let denied = Barrier::new(Reason::Denied, listed(&denied));
        return Barrier { counts, is_refused: !is_proven, ..denied };
    }
    if current == answers.len() {
        let message = format!("{current} of {current} replicas use it");
        return Barrier { counts, ..Barrier::new(Reason::AllReplicasCurrent, message) };
    }
    let failed = found(|answer| match answer {
        Answer::Unreachable(text) => Some(text.clone()),
        Answer::Uninjected => Some("it lets the Pod through without a proxy".to_owned()),
        _ => None,
    });
    let mut late = found(|answer| match answer {
        Answer::Stale(Stale::Configuration) => Some("it injects an older configuration".to_owned()),
        Answer::Stale(Stale::TrustRoots) => Some("it injects older trust anchors".to_owned()),
        Answer::Stale(Stale::Denying) => Some("it denies Pods as it did before".to_owned()),
        _ => None,
    });
    let unasked = answers.iter().filter(|(_, answer)| answer.is_none());
    late.extend(unasked.map(|(replica, _)| format!("{}: it has not answered yet", replica.name())));
    let reason = if failed.is_empty() { Reason::Propagating } else { Reason::ProbeFailed };
    let so_far = format!("{current} of {} replicas use it", answers.len());
    let message = format!("{so_far}; {}", listed(&[failed, late].concat()));
    match spec.timeout().checked_sub(waited).filter(|left| !left.is_zero()) {
        Some(left) => Barrier { counts, again: Some(left), ..Barrier::new(reason, message) },
        None => Barrier { counts, ..Barrier::new(Reason::Timeout, format!("after {:?} {message}", spec.timeout())) },
    }
}

fn listed(texts: &[String]) -> String {
    let shown = texts.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    match texts.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(all: &[Option<Answer>]) -> Vec<(Replica, Option<Answer>)> {
        let replica = |number| Replica {
            pod: Some(format!("injector-{number}").into()),
            address: std::net::SocketAddr::from(([10, 0, 0, number], 8443)),
        };
        (1..).zip(all).map(|(number, answer)| (replica(number), answer.clone())).collect()
    }

    fn after(seconds: i64, all: &[Option<Answer>], spec: &InjectorSyncSpec) -> Barrier {
        let since = Timestamp::UNIX_EPOCH;
        let now = Timestamp::from_second(seconds).unwrap();
        judge(&Input { spec, answers: &answers(all), since, now, is_proven: false })
    }

    const STALE: Option<Answer> = Some(Answer::Stale(Stale::Configuration));
    const CURRENT: Option<Answer> = Some(Answer::Current);

    fn reason(seconds: i64, all: &[Option<Answer>]) -> (Reason, String) {
        let barrier = after(seconds, all, &InjectorSyncSpec::default());
        (barrier.reason, barrier.message)
    }

    #[test]
    fn it_is_open_when_every_replica_is_current() {
        let all = after(1, &[CURRENT, CURRENT], &InjectorSyncSpec::default());
        assert_eq!((all.reason, all.counts, all.again), (Reason::AllReplicasCurrent, Some((2, 2)), None));
        assert!(all.is_open(&InjectorSyncSpec::default()));
        for late in [STALE, None] {
            let barrier = after(1, &[CURRENT, late], &InjectorSyncSpec::default());
            assert_eq!((barrier.reason, barrier.counts), (Reason::Propagating, Some((2, 1))));
            assert!(!barrier.is_open(&InjectorSyncSpec::default()) && barrier.message.contains("injector-2"));
            assert_eq!(barrier.again, Some(Duration::from_secs(179)));
        }
    }

    #[test]
    fn who_lags_or_fails_is_named_and_is_late_after_the_timeout() {
        let away = Some(Answer::Unreachable("connection refused".to_owned()));
        let (why, message) = reason(1, &[CURRENT, STALE, away.clone()]);
        assert_eq!(why, Reason::ProbeFailed);
        assert!(message.starts_with("1 of 3 replicas use it; Pod injector-3: connection refused; Pod injector-2: "));
        let (why, message) = reason(180, &[CURRENT, STALE, away]);
        assert_eq!(why, Reason::Timeout);
        assert!(message.starts_with("after 180s 1 of 3") && message.contains("injector-2"), "{message}");
        assert_eq!(reason(1, &[Some(Answer::Uninjected)]).0, Reason::ProbeFailed);
        assert_eq!(reason(9999, &[]).0, Reason::NoReadyReplicas);
        let many = vec![STALE; 7];
        assert!(reason(1, &many).1.ends_with("; and 4 more"));
    }

    #[test]
    fn after_the_timeout_only_who_said_so_proceeds() {
        for (on_timeout, opens) in
            [(OnTimeout::Hold, false), (OnTimeout::RestartInjector, false), (OnTimeout::Proceed, true)]
        {
            let spec = InjectorSyncSpec { on_timeout, ..InjectorSyncSpec::default() };
            assert!(!after(179, &[STALE], &spec).is_open(&spec));
            assert_eq!(after(180, &[STALE], &spec).is_open(&spec), opens, "{on_timeout:?}");
            assert!(!after(180, &[], &spec).is_open(&spec), "nobody injects");
        }
    }

    #[test]
    fn one_denial_is_enough_and_a_document_that_has_worked_is_not_blamed() {
        for bad in [Answer::Denied("bad value".to_owned()), Answer::Broken("it broke off".to_owned())] {
            let all = [CURRENT, STALE, Some(bad)];
            let barrier = after(9999, &all, &InjectorSyncSpec::default());
            assert_eq!((barrier.reason, barrier.is_refused), (Reason::Denied, true));
            assert!(barrier.message.starts_with("Pod injector-3: it "), "{}", barrier.message);
            let (spec, answers) = (InjectorSyncSpec::default(), answers(&all));
            let now = Timestamp::UNIX_EPOCH;
            let proven = judge(&Input { spec: &spec, answers: &answers, since: now, now, is_proven: true });
            assert_eq!((proven.reason, proven.is_refused), (Reason::Denied, false));
        }
    }

    #[test]
    fn with_a_delay_time_is_all_that_counts() {
        let spec = InjectorSyncSpec { method: InjectorSyncMethod::Delay, ..InjectorSyncSpec::default() };
        let barrier = after(30, &[], &spec);
        assert_eq!((barrier.reason, barrier.again), (Reason::Propagating, Some(Duration::from_secs(60))));
        let barrier = after(90, &[], &spec);
        assert!(barrier.reason == Reason::ProbeDisabled && barrier.is_open(&spec));
        // A clock that was set back waits no longer than once.
        assert_eq!(after(-500, &[], &spec).again, Some(Duration::from_secs(90)));
    }
}
