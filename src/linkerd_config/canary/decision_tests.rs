use serde_json::{Value, json};

use super::*;

const HASH: &str = "0123456789abcdef";
const NOON: i64 = 1_767_268_800;

/// The facts of a canary that is written and adopted, whose two workloads run with it.
struct Facts {
    spec: Value,
    rollout: Value,
    known: Option<(CanaryPhase, i64)>,
    /// The hash of the declared document; that of `known` is [`HASH`].
    hash: &'static str,
    is_retried: bool,
    written: WrittenCanary,
    injectors: InjectorKind,
    namespaces: Vec<&'static str>,
    /// Why the injectors cannot be probed for these namespaces.
    obstacle: Option<&'static str>,
    adoption: CanaryAdoption,
    /// Selected, updated, failures, without a proxy.
    workloads: Option<[i64; 4]>,
    promote: Option<&'static str>,
    /// `status.canary.promoteIgnored`.
    is_ignored: bool,
    now: i64,
}

impl Facts {
    fn complete() -> Self {
        Self {
            spec: json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}, "soak": "60s"}),
            rollout: json!({}),
            known: Some((CanaryPhase::Progressing, NOON - 500)),
            hash: HASH,
            is_retried: false,
            written: WrittenCanary::Current,
            injectors: InjectorKind::Operators,
            namespaces: vec!["app"],
            obstacle: None,
            adoption: CanaryAdoption::Adopted,
            workloads: Some([2, 2, 0, 0]),
            promote: None,
            is_ignored: false,
            now: NOON,
        }
    }

    fn decide(&self) -> CanaryDecision {
        let spec = serde_json::from_value(self.spec.clone()).unwrap();
        let rollout = serde_json::from_value(self.rollout.clone()).unwrap();
        let known = self.known.map(|(phase, since)| CanaryStatus {
            phase,
            hash: HASH.to_owned(),
            since: Some(Time(Timestamp::from_second(since).unwrap())),
            promote_ignored: self.is_ignored.then_some(true),
            ..CanaryStatus::default()
        });
        let namespaces: Vec<Arc<str>> = self.namespaces.iter().map(|name| Arc::from(*name)).collect();
        let workloads = self.workloads.map(|[selected, updated, failures, uninjected]| CanaryWorkloads {
            totals: CanaryTotals { selected, updated, failures, uninjected },
            failure: (failures > 0).then(|| "Deployment app/web: ProgressDeadlineExceeded: late".to_owned()),
        });
        decide(&CanaryFacts {
            spec: &spec,
            rollout: &rollout,
            hash: self.hash,
            known: known.as_ref(),
            is_retried: self.is_retried,
            written: self.written,
            injectors: self.injectors.clone(),
            namespaces: &namespaces,
            probed: match (self.obstacle, &*namespaces) {
                (Some(why), _) => Err(why.to_owned()),
                (None, []) => Err("no namespace".to_owned()),
                (None, some) => Ok(some.to_vec()),
            },
            adoption: self.adoption.clone(),
            workloads,
            promote: self.promote,
            now: Timestamp::from_second(self.now).unwrap(),
        })
    }

    /// The action, and the phase with the time since noon when it began.
    fn result(&self) -> (CanaryAction, CanaryPhase, i64) {
        let CanaryDecision { action, status, .. } = self.decide();
        // A failed canary keeps the hash that failed.
        assert_eq!(status.hash, if status.phase == Failed { HASH } else { self.hash });
        (action, status.phase, status.since.unwrap().0.as_second() - NOON)
    }

    fn message(&self) -> String {
        self.decide().status.message
    }
}

use CanaryAction::{Hold, Promote, TakeBack, Write};
use CanaryPhase::{AwaitingPromotion, Failed, Progressing, Promoted, Soaking, Unsupported, Waiting};

#[test]
fn a_canary_is_written_only_for_the_operators_injectors_and_for_an_existing_namespace() {
    let absent = || Facts { known: None, written: WrittenCanary::Absent, workloads: None, ..Facts::complete() };
    assert_eq!(absent().result(), (Write, Progressing, 0));
    assert_eq!(Facts { written: WrittenCanary::Outdated, ..absent() }.result(), (Write, Progressing, 0));
    let unknown = Facts { injectors: InjectorKind::Unknown, ..absent() };
    assert_eq!(unknown.result(), (Hold, Waiting, 0));
    let linkerds = Facts { injectors: InjectorKind::Other("Pod injector-1".to_owned()), ..absent() };
    assert_eq!(linkerds.result(), (Hold, Unsupported, 0));
    let message = linkerds.message();
    assert!(message.contains("needs the operator's own proxy injector") && message.contains("Pod injector-1"));
    assert!(message.contains("enable the operator's injector, or remove spec.canary"), "{message}");
    assert_eq!(Facts { namespaces: Vec::new(), ..absent() }.result(), (Hold, Waiting, 0));
    let foreign = Facts { written: WrittenCanary::Foreign, ..Facts::complete() };
    assert_eq!(foreign.result(), (Hold, Waiting, 0));
    assert!(foreign.message().contains("linkerd-config-canary"), "{}", foreign.message());
    // A change of the injector while the ConfigMap exists is judged by what the replicas inject.
    let other = InjectorKind::Other("Pod injector-1".to_owned());
    assert_eq!(Facts { injectors: other.clone(), ..Facts::complete() }.result(), (Hold, Soaking, 0));
    let refused = CanaryAdoption::Refused("Pod injector-1".to_owned());
    assert_eq!(Facts { injectors: other, adoption: refused, ..Facts::complete() }.result(), (TakeBack, Unsupported, 0));
}

#[test]
fn the_soak_begins_when_every_selected_workload_is_up_to_date_and_begins_again_when_one_is_not() {
    assert_eq!(Facts::complete().result(), (Hold, Soaking, 0));
    let soaking = |since, workloads| Facts { known: Some((Soaking, NOON - since)), workloads, ..Facts::complete() };
    assert_eq!(soaking(59, Some([2, 2, 0, 0])).result(), (Hold, Soaking, -59));
    assert_eq!(soaking(59, Some([2, 2, 0, 0])).decide().recheck_after, Duration::from_secs(1));
    assert_eq!(soaking(60, Some([2, 2, 0, 0])).result(), (Promote, Promoted, 0));
    let late = soaking(600, Some([3, 2, 0, 0]));
    assert_eq!(late.result(), (Hold, Progressing, 0));
    assert!(late.message().starts_with("2 of 3 selected workloads"), "{}", late.message());
    // A clock that is set back does not end the soak.
    assert_eq!(soaking(-500, Some([2, 2, 0, 0])).result(), (Hold, Soaking, 500));
    let at_once = Facts { spec: json!({"soak": "0s"}), ..Facts::complete() };
    assert_eq!(at_once.result(), (Promote, Promoted, 0));
}

#[test]
fn without_evidence_nothing_is_promoted_and_a_soak_that_has_begun_continues() {
    for no_evidence in [
        Facts { workloads: None, ..Facts::complete() },
        Facts { adoption: CanaryAdoption::Waiting, ..Facts::complete() },
        Facts { namespaces: Vec::new(), ..Facts::complete() },
    ] {
        assert_eq!(no_evidence.result(), (Hold, Progressing, -500));
        let soaking = Facts { known: Some((Soaking, NOON - 900)), ..no_evidence };
        assert_eq!(soaking.result(), (Hold, Soaking, -900));
    }
    let nothing_selected = Facts { workloads: Some([0; 4]), ..Facts::complete() };
    assert_eq!(nothing_selected.result(), (Hold, Progressing, -500));
    assert!(nothing_selected.message().contains("config.linkerd.io/promote"));
}

#[test]
fn a_manual_canary_waits_for_the_annotation_with_its_hash() {
    let manual = json!({"soak": "60s", "promotion": "Manual"});
    let soaked =
        |promote| Facts { spec: manual.clone(), known: Some((Soaking, NOON - 60)), promote, ..Facts::complete() };
    assert_eq!(soaked(None).result(), (Hold, AwaitingPromotion, 0));
    assert_eq!(soaked(Some("fedcba9876543210")).result(), (Hold, AwaitingPromotion, 0));
    assert_eq!(soaked(Some(HASH)).result(), (Promote, Promoted, 0));
    let waiting = Facts { known: Some((AwaitingPromotion, NOON - 7000)), ..soaked(None) };
    assert_eq!(waiting.result(), (Hold, AwaitingPromotion, -7000));
    let paused = Facts { rollout: json!({"paused": true}), known: Some((Soaking, NOON - 60)), ..Facts::complete() };
    assert_eq!(paused.result(), (Hold, AwaitingPromotion, 0));
    // The annotation promotes before the end of the soak too.
    assert_eq!(Facts { promote: Some(HASH), ..Facts::complete() }.result(), (Promote, Promoted, 0));
}

/// Otherwise the same values would be promoted without a soak when they are declared again later.
#[test]
fn an_annotation_from_before_the_canary_promotes_it_only_after_it_was_removed_and_set_again() {
    let result = |facts: &Facts| (facts.result().0, facts.result().1, facts.decide().status.promote_ignored);
    let begins = || Facts { known: None, promote: Some(HASH), ..Facts::complete() };
    assert_eq!(result(&Facts { written: WrittenCanary::Absent, ..begins() }), (Write, Progressing, Some(true)));
    let retried = Facts { known: Some((Failed, NOON - 99)), is_retried: true, ..begins() };
    assert_eq!(result(&retried), (Hold, Soaking, Some(true)));
    let ignored = |promote| Facts { known: Some((Soaking, NOON - 9)), promote, is_ignored: true, ..Facts::complete() };
    assert_eq!(result(&ignored(Some(HASH))), (Hold, Soaking, Some(true)));
    for other in [None, Some("fedcba9876543210")] {
        assert_eq!(result(&ignored(other)), (Hold, Soaking, None));
        // Also while nothing else is known.
        let no_evidence = Facts { workloads: None, ..ignored(other) };
        assert_eq!(result(&no_evidence), (Hold, Soaking, None));
        let absent = Facts { written: WrittenCanary::Absent, ..no_evidence };
        assert_eq!(result(&absent), (Hold, Soaking, None));
    }
    assert_eq!(result(&Facts { is_ignored: false, ..ignored(Some(HASH)) }), (Promote, Promoted, None));
    let manual = Facts { spec: json!({"soak": "0s", "promotion": "Manual"}), ..ignored(Some(HASH)) };
    assert_eq!(result(&manual), (Hold, AwaitingPromotion, Some(true)));
    assert!(
        manual.message().ends_with(
            "to promote it, remove the annotation config.linkerd.io/promote, which is from before the canary, and set it again \
             to its hash"
        ),
        "{}",
        manual.message()
    );
    // The soak promotes it nevertheless.
    let soaked = Facts { known: Some((Soaking, NOON - 60)), ..ignored(Some(HASH)) };
    assert_eq!(result(&soaked), (Promote, Promoted, Some(true)));
}

#[test]
fn failures_take_the_canary_back_unless_the_policy_is_to_continue() {
    let failed = |rollout: Value, workloads| Facts { rollout, workloads: Some(workloads), ..Facts::complete() };
    for policy in ["Halt", "Rollback"] {
        let failed = failed(json!({"onFailure": policy}), [3, 1, 1, 0]);
        assert_eq!(failed.result(), (TakeBack, Failed, 0));
        let message = failed.message();
        assert!(message.contains("1 of 3, the first is Deployment app/web"), "{message}");
        assert!(message.contains("config.linkerd.io/retry"), "{message}");
    }
    assert_eq!(failed(json!({"maxFailures": 2}), [3, 1, 1, 0]).result(), (Hold, Progressing, -500));
    assert_eq!(failed(json!({"maxFailures": "50%"}), [4, 1, 2, 0]).result(), (TakeBack, Failed, 0));
    assert_eq!(failed(json!({"onFailure": "Continue"}), [3, 2, 1, 0]).result(), (Hold, Progressing, -500));
    // The record of the failure is on the workload, so a canary that a crash left out of the status is taken back too.
    let unwritten = Facts { written: WrittenCanary::Absent, ..failed(json!({}), [3, 1, 1, 0]) };
    assert_eq!(unwritten.result(), (TakeBack, Failed, 0));
}

#[test]
fn a_pod_without_a_proxy_holds_the_canary_and_takes_nothing_back() {
    for policy in ["Halt", "Rollback", "Continue"] {
        let rollout = json!({"onFailure": policy});
        let held = Facts { rollout, workloads: Some([3, 2, 1, 1]), ..Facts::complete() };
        assert_eq!(held.result(), (Hold, Progressing, -500));
        assert!(held.message().contains("a proxy: Deployment app/web"), "{}", held.message());
    }
}

#[test]
fn a_failed_canary_is_not_tried_again_over_another_document_of_the_installer() {
    let failed = Facts { known: Some((Failed, NOON - 9)), hash: "fedcba9876543210", ..Facts::complete() };
    assert_eq!(failed.result(), (TakeBack, Failed, -9));
    let retried = Facts { is_retried: true, written: WrittenCanary::Outdated, ..failed };
    assert_eq!(retried.result(), (Write, Progressing, 0));
}

#[test]
fn the_next_leader_does_not_write_again_what_the_former_one_may_have_taken_back() {
    let deleted = || Facts { known: Some((Soaking, NOON - 9)), written: WrittenCanary::Absent, ..Facts::complete() };
    // The new leader has neither answers of the injectors nor assessments of the workloads.
    let unknown = Facts { injectors: InjectorKind::Unknown, workloads: None, ..deleted() };
    assert_eq!(unknown.result(), (Hold, Soaking, -9));
    assert_eq!(Facts { workloads: None, ..deleted() }.result(), (Hold, Soaking, -9));
    assert_eq!(Facts { workloads: Some([2, 1, 1, 0]), ..deleted() }.result(), (TakeBack, Failed, 0));
    let other = InjectorKind::Other("Pod injector-1".to_owned());
    assert_eq!(Facts { injectors: other, workloads: None, ..deleted() }.result(), (Hold, Unsupported, 0));
}

#[test]
fn a_config_map_that_was_deleted_or_edited_by_hand_is_written_again_and_the_soak_begins_again() {
    for written in [WrittenCanary::Absent, WrittenCanary::Outdated] {
        let edited = Facts { known: Some((Soaking, NOON - 9)), written, ..Facts::complete() };
        assert_eq!(edited.result(), (Write, Progressing, 0), "{written:?}");
    }
    // Without any namespace there is nothing to wait for.
    let known = Some((Progressing, NOON - 9));
    let empty =
        Facts { known, written: WrittenCanary::Absent, workloads: None, namespaces: vec![], ..Facts::complete() };
    assert_eq!(empty.result(), (Hold, Waiting, 0));
}

#[test]
fn a_replica_that_does_not_use_the_canary_in_time_takes_it_back() {
    let refused = CanaryAdoption::Refused("Pod injector-1".to_owned());
    let refused = Facts { adoption: refused, ..Facts::complete() };
    assert_eq!(refused.result(), (TakeBack, Failed, 0));
    assert_eq!(
        refused.message(),
        "Pod injector-1 does not inject the configuration into Pods of these canary namespaces: app; see its log, and the \
         annotations of these namespaces; it was taken back; to retry, change the declared values or the \
         annotation config.linkerd.io/retry"
    );
}

#[test]
fn a_canary_whose_namespaces_all_prevent_injection_waits_and_names_the_annotation() {
    let blocked = || Facts { obstacle: Some("the annotation of namespace app"), ..Facts::complete() };
    let new = Facts { known: None, written: WrittenCanary::Absent, workloads: None, ..blocked() };
    assert_eq!((new.result(), &*new.message()), ((Hold, Waiting, 0), "the annotation of namespace app"));
    let refused = CanaryAdoption::Refused("Pod injector-1".to_owned());
    let late = Facts { adoption: refused, ..blocked() };
    assert_eq!((late.result(), &*late.message()), ((Hold, Progressing, -500), "the annotation of namespace app"));
    let soaking = Facts { known: Some((Soaking, NOON - 900)), ..blocked() };
    assert_eq!(soaking.result(), (Hold, Soaking, -900), "nothing is promoted without evidence");
}

#[test]
fn a_failed_canary_stays_failed_until_it_is_retried() {
    let failed = || Facts { known: Some((Failed, NOON - 99)), written: WrittenCanary::Absent, ..Facts::complete() };
    assert_eq!(failed().result(), (TakeBack, Failed, -99));
    assert_eq!(Facts { promote: Some(HASH), ..failed() }.result(), (TakeBack, Failed, -99));
    assert_eq!(Facts { is_retried: true, ..failed() }.result(), (Write, Progressing, 0));
    // A retry of another phase begins nothing again.
    let soaking = Facts { known: Some((Soaking, NOON - 9)), is_retried: true, ..Facts::complete() };
    assert_eq!(soaking.result(), (Hold, Soaking, -9));
}

#[test]
fn only_some_namespaces_are_listed() {
    let names = (0..99).map(|number| -> &'static str { Box::leak(format!("n{number}").into_boxed_str()) }).collect();
    assert_eq!(Facts { namespaces: names, ..Facts::complete() }.decide().status.namespaces.len(), 10);
}

#[test]
fn a_canary_whose_document_is_in_force_is_promoted_and_any_other_is_forgotten() {
    let now = Timestamp::from_second(NOON).unwrap();
    let known = |phase| CanaryStatus { phase, hash: HASH.to_owned(), ..CanaryStatus::default() };
    let next = |phase, in_force| without_held_document(Some(&known(phase)), in_force, now).map(|status| status.phase);
    for phase in [Progressing, Soaking, AwaitingPromotion, Promoted, Waiting] {
        assert_eq!(next(phase, Some(HASH)), Some(Promoted), "{phase:?}");
        assert_eq!(next(phase, Some("fedcba9876543210")), None);
        assert_eq!(next(phase, None), None);
    }
    assert_eq!(next(Failed, Some(HASH)), None, "spec.canary was removed and set again");
    assert!(without_held_document(None, Some(HASH), now).is_none());
}
