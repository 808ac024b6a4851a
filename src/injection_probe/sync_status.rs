//! Evaluates the answers of the injectors. Pure.
//!
//! In: the last answer of each ready replica, the time of the last change, the policy. Out: the reason of the condition
//! InjectorSynced, and whether the document is denied. Always holds: one denial outweighs all other answers; a document
//! that was accepted before is never blamed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    admission_review::{ProbeAnswer, Stale},
    replica::Replica,
};
use crate::{
    api::linkerd_config::{ConditionReason, InjectorSyncMethod, InjectorSyncSpec, OnTimeout},
    text::and_more,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The maximum number of replicas that a message names.
const MAX_SHOWN: usize = 3;

pub(crate) struct SyncInput<'a> {
    pub(crate) spec: &'a InjectorSyncSpec,
    /// The ready replicas; `None` for one that has not answered yet.
    pub(crate) answers: &'a [(Replica, Option<ProbeAnswer>)],
    /// The time of the last change, at which the timeout or the delay starts.
    pub(crate) since: Timestamp,
    pub(crate) now: Timestamp,
    /// Whether all injectors accepted the document before. A failure then has another reason.
    pub(crate) is_proven: bool,
}

/// Whether the injectors use the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncStatus {
    pub(crate) reason: SyncReason,
    pub(crate) message: String,
    /// How many replicas are ready, and how many of them are current; `None` if they were not probed.
    pub(crate) counts: Option<(usize, usize)>,
    /// Whether the injectors deny Pods because of the document, so that it must be rolled back.
    pub(crate) is_denied: bool,
    /// The Pod templates of the replicas that deny Pods.
    pub(crate) denied_by: BTreeSet<Arc<str>>,
    /// The delay after which the reason changes without a new answer.
    pub(crate) recheck_after: Option<Duration>,
}

/// The reason of the condition InjectorSynced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncReason {
    AllReplicasCurrent,
    Propagating,
    NoReadyReplicas,
    ProbeFailed,
    Denied,
    Timeout,
    /// The replicas are not probed.
    ProbeDisabled,
}

// === impl SyncReason ===

impl From<SyncReason> for ConditionReason {
    fn from(reason: SyncReason) -> Self {
        match reason {
            SyncReason::AllReplicasCurrent => Self::AllReplicasCurrent,
            SyncReason::Propagating => Self::Propagating,
            SyncReason::NoReadyReplicas => Self::NoReadyReplicas,
            SyncReason::ProbeFailed => Self::ProbeFailed,
            SyncReason::Denied => Self::Denied,
            SyncReason::Timeout => Self::Timeout,
            SyncReason::ProbeDisabled => Self::ProbeDisabled,
        }
    }
}

// === impl SyncStatus ===

impl SyncStatus {
    fn new(reason: SyncReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            counts: None,
            is_denied: false,
            denied_by: BTreeSet::new(),
            recheck_after: None,
        }
    }

    /// The status right after a write.
    pub(crate) fn just_written() -> Self {
        Self::new(SyncReason::Propagating, "the configuration was just written")
    }

    /// The status for a ConfigMap that no injector reads.
    pub(crate) fn unread() -> Self {
        Self::new(SyncReason::ProbeDisabled, "no injector reads this ConfigMap")
    }

    /// Whether the injectors allow a rollout to proceed.
    pub(crate) fn is_satisfied(&self, spec: &InjectorSyncSpec) -> bool {
        match self.reason {
            SyncReason::AllReplicasCurrent | SyncReason::ProbeDisabled => true,
            SyncReason::Timeout => spec.on_timeout == OnTimeout::Proceed,
            SyncReason::Propagating | SyncReason::NoReadyReplicas | SyncReason::ProbeFailed | SyncReason::Denied => {
                false
            }
        }
    }
}

pub(crate) fn evaluate(input: &SyncInput<'_>) -> SyncStatus {
    let SyncInput { spec, answers, since, now, is_proven } = *input;
    let waited = Duration::try_from(now.duration_since(since).max(SignedDuration::ZERO)).unwrap_or_default();
    if spec.method == InjectorSyncMethod::Delay {
        return match spec.delay().checked_sub(waited).filter(|left| !left.is_zero()) {
            Some(left) => SyncStatus {
                recheck_after: Some(left),
                ..SyncStatus::new(
                    SyncReason::Propagating,
                    format!(
                        "waiting {:?} without probing the injectors, because injectorSync.method is Delay",
                        spec.delay()
                    ),
                )
            },
            None => SyncStatus::new(
                SyncReason::ProbeDisabled,
                "the delay has passed; the injectors are not probed, because injectorSync.method is Delay",
            ),
        };
    }
    if answers.is_empty() {
        let none = SyncStatus::new(SyncReason::NoReadyReplicas, "no replica of the proxy injector is ready");
        return SyncStatus { counts: Some((0, 0)), ..none };
    }
    let current = answers.iter().filter(|(_, answer)| *answer == Some(ProbeAnswer::Current)).count();
    let counts = Some((answers.len(), current));
    let found = |of: fn(&ProbeAnswer) -> Option<String>| -> Vec<String> {
        let found = answers.iter().filter_map(|(replica, answer)| Some((replica, of(answer.as_ref()?)?)));
        found.map(|(replica, text)| format!("{}: {text}", replica.name())).collect()
    };
    let denied = found(|answer| match answer {
        ProbeAnswer::Denied(text) => Some(format!("it denies Pods: {text}")),
        ProbeAnswer::Broken(text) => Some(text.clone()),
        _ => None,
    });
    if !denied.is_empty() {
        let denied = SyncStatus::new(SyncReason::Denied, list_replicas(&denied));
        return SyncStatus { counts, is_denied: !is_proven, ..denied };
    }
    if current == answers.len() {
        let message = format!("{current} of {current} replicas use the configuration");
        return SyncStatus { counts, ..SyncStatus::new(SyncReason::AllReplicasCurrent, message) };
    }
    let failed = found(|answer| match answer {
        ProbeAnswer::Unreachable(text) => Some(text.clone()),
        ProbeAnswer::Uninjected => Some("it accepts the Pod without a proxy".to_owned()),
        _ => None,
    });
    let mut late = found(|answer| match answer {
        ProbeAnswer::Stale(Stale::Configuration) => Some("it injects an older configuration".to_owned()),
        ProbeAnswer::Stale(Stale::TrustRoots) => Some("it injects older trust anchors".to_owned()),
        ProbeAnswer::Stale(Stale::Denying) => {
            Some("it denies Pods, perhaps because of an older configuration".to_owned())
        }
        ProbeAnswer::Stale(Stale::Canary) => {
            Some("it does not inject the configuration of the canary namespaces into their Pods".to_owned())
        }
        _ => None,
    });
    let unanswered = answers.iter().filter(|(_, answer)| answer.is_none());
    late.extend(unanswered.map(|(replica, _)| format!("{}: it has not answered yet", replica.name())));
    let reason = if failed.is_empty() { SyncReason::Propagating } else { SyncReason::ProbeFailed };
    let so_far = format!("{current} of {} replicas use the configuration", answers.len());
    let message = format!("{so_far}; {}", list_replicas(&[failed, late].concat()));
    match spec.timeout().checked_sub(waited).filter(|left| !left.is_zero()) {
        Some(left) => SyncStatus { counts, recheck_after: Some(left), ..SyncStatus::new(reason, message) },
        None => SyncStatus {
            counts,
            ..SyncStatus::new(SyncReason::Timeout, format!("timed out after {:?}: {message}", spec.timeout()))
        },
    }
}

fn list_replicas(texts: &[String]) -> String {
    and_more(texts.iter().take(MAX_SHOWN), texts.len(), "; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::injection_probe::registration::InjectorOwner;

    fn answers(all: &[Option<ProbeAnswer>]) -> Vec<(Replica, Option<ProbeAnswer>)> {
        let replica = |number| Replica {
            injector: InjectorOwner::Linkerd,
            namespace: "linkerd".into(),
            pod: Some(format!("injector-{number}").into()),
            address: std::net::SocketAddr::from(([10, 0, 0, number], 8443)),
        };
        (1..).zip(all).map(|(number, answer)| (replica(number), answer.clone())).collect()
    }

    fn after(seconds: i64, all: &[Option<ProbeAnswer>], spec: &InjectorSyncSpec) -> SyncStatus {
        let since = Timestamp::UNIX_EPOCH;
        let now = Timestamp::from_second(seconds).unwrap();
        evaluate(&SyncInput { spec, answers: &answers(all), since, now, is_proven: false })
    }

    const STALE: Option<ProbeAnswer> = Some(ProbeAnswer::Stale(Stale::Configuration));
    const CURRENT: Option<ProbeAnswer> = Some(ProbeAnswer::Current);

    fn reason(seconds: i64, all: &[Option<ProbeAnswer>]) -> (SyncReason, String) {
        let sync_status = after(seconds, all, &InjectorSyncSpec::default());
        (sync_status.reason, sync_status.message)
    }

    #[test]
    fn a_sync_status_is_satisfied_when_every_replica_is_current() {
        let all = after(1, &[CURRENT, CURRENT], &InjectorSyncSpec::default());
        assert_eq!((all.reason, all.counts, all.recheck_after), (SyncReason::AllReplicasCurrent, Some((2, 2)), None));
        assert!(all.is_satisfied(&InjectorSyncSpec::default()));
        for late in [STALE, None] {
            let sync_status = after(1, &[CURRENT, late], &InjectorSyncSpec::default());
            assert_eq!((sync_status.reason, sync_status.counts), (SyncReason::Propagating, Some((2, 1))));
            assert!(
                !sync_status.is_satisfied(&InjectorSyncSpec::default()) && sync_status.message.contains("injector-2")
            );
            assert_eq!(sync_status.recheck_after, Some(Duration::from_secs(179)));
        }
    }

    #[test]
    fn a_replica_that_lags_or_fails_is_named_and_is_late_after_the_timeout() {
        let away = Some(ProbeAnswer::Unreachable("connection refused".to_owned()));
        let (why, message) = reason(1, &[CURRENT, STALE, away.clone()]);
        assert_eq!(why, SyncReason::ProbeFailed);
        assert!(message.starts_with(
            "1 of 3 replicas use the configuration; Pod injector-3: connection refused; Pod injector-2: "
        ));
        let (why, message) = reason(180, &[CURRENT, STALE, away]);
        assert_eq!(why, SyncReason::Timeout);
        assert!(message.starts_with("timed out after 180s: 1 of 3") && message.contains("injector-2"), "{message}");
        assert_eq!(reason(1, &[Some(ProbeAnswer::Uninjected)]).0, SyncReason::ProbeFailed);
        assert_eq!(reason(9999, &[]).0, SyncReason::NoReadyReplicas);
        let many = vec![STALE; 7];
        assert!(reason(1, &many).1.ends_with("; and 4 more"));
    }

    #[test]
    fn after_the_timeout_only_the_policy_proceed_proceeds() {
        for (on_timeout, proceeds) in
            [(OnTimeout::Hold, false), (OnTimeout::RestartInjector, false), (OnTimeout::Proceed, true)]
        {
            let spec = InjectorSyncSpec { on_timeout, ..InjectorSyncSpec::default() };
            assert!(!after(179, &[STALE], &spec).is_satisfied(&spec));
            assert_eq!(after(180, &[STALE], &spec).is_satisfied(&spec), proceeds, "{on_timeout:?}");
            assert!(!after(180, &[], &spec).is_satisfied(&spec), "no replica injects");
        }
    }

    #[test]
    fn one_denial_is_enough_but_a_proven_document_is_not_rolled_back() {
        for bad in [ProbeAnswer::Denied("bad value".to_owned()), ProbeAnswer::Broken("it answered with 500".to_owned())]
        {
            let all = [CURRENT, STALE, Some(bad)];
            let sync_status = after(9999, &all, &InjectorSyncSpec::default());
            assert_eq!((sync_status.reason, sync_status.is_denied), (SyncReason::Denied, true));
            assert!(sync_status.message.starts_with("Pod injector-3: it "), "{}", sync_status.message);
            let (spec, answers) = (InjectorSyncSpec::default(), answers(&all));
            let now = Timestamp::UNIX_EPOCH;
            let proven = evaluate(&SyncInput { spec: &spec, answers: &answers, since: now, now, is_proven: true });
            assert_eq!((proven.reason, proven.is_denied), (SyncReason::Denied, false));
        }
    }

    #[test]
    fn with_method_delay_only_the_time_counts() {
        let spec = InjectorSyncSpec { method: InjectorSyncMethod::Delay, ..InjectorSyncSpec::default() };
        let sync_status = after(30, &[], &spec);
        assert_eq!(
            (sync_status.reason, sync_status.recheck_after),
            (SyncReason::Propagating, Some(Duration::from_secs(60)))
        );
        let sync_status = after(90, &[], &spec);
        assert!(sync_status.reason == SyncReason::ProbeDisabled && sync_status.is_satisfied(&spec));
        // A clock that is set back does not extend the delay.
        assert_eq!(after(-500, &[], &spec).recheck_after, Some(Duration::from_secs(90)));
    }
}
