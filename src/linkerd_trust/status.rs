//! The status of a LinkerdTrust. Pure.
//!
//! In: a report, the last status. Out: the next status. Always holds: without a change both are equal; the transition time
//! of a condition changes only with its status; what tenants wrote is cut to a bounded length.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{bundle_writer::HeldWrite, switch::SwitchReadiness};
use crate::{
    api::{
        LinkerdTrustStatus,
        linkerd_trust::{
            IssuerOrigin, TrustCondition, TrustIssuerStatus, TrustPhase, TrustProxiesStatus, TrustReason,
            TrustRootStatus, TrustWorkloadStatus,
        },
    },
    cluster::kinds::linkerd_trust::LinkerdTrust,
    text::{and_more, truncated},
    trust::{
        RotationStep, TrustReport,
        problems::TrustVerdict,
        report::{ProxyTotals, RootRow},
        rotation::RotationProgress,
        words::{minute_of, proxies as counted_proxies, proxies_trust},
    },
};

/// The time until a reconcile that waits for the certificates of proxies.
const LEAVES_RETRY: Duration = Duration::from_secs(1);
/// The maximum number of problems.
const MAX_PROBLEMS: usize = 10;
/// The maximum number of roots in a sentence.
const SHOWN: usize = 5;
/// The maximum length of a text, in bytes.
const LONGEST: usize = 2048;

/// What one reconcile found out.
pub(super) enum TrustFacts {
    /// The other resource is in effect.
    Conflicted(String),
    /// What is declared cannot be used, for this reason.
    Invalid(String),
    Observed {
        report: Box<TrustReport>,
        later: LaterWrite,
    },
    /// Proxies must be asked before there is a report.
    Asking {
        held: Option<HeldWrite>,
    },
}

/// What is known about the next writes.
#[derive(Default)]
pub(super) struct LaterWrite {
    /// Since when the identity service signs only certificates that need declared roots.
    pub(super) signing_since: Option<Timestamp>,
    /// The time after which roots may be removed, or proxies are asked again.
    pub(super) due: Option<Duration>,
    pub(super) held: Option<HeldWrite>,
    /// While an issuer is awaited: whether all proxies accept it.
    pub(super) switch: Option<SwitchReadiness>,
}

/// A condition without its time. Without a status it is Unknown.
struct TrustRow(TrustCondition, Option<bool>, TrustReason, String);

// === impl TrustFacts ===

impl TrustFacts {
    /// Returns the time after which the resource must be reconciled without a change.
    pub(super) fn due(&self) -> Option<Duration> {
        match self {
            Self::Observed { later, .. } => {
                let write = later.held.as_ref().map_or(later.due, |held| held.retry);
                let switch = later.switch.as_ref().and_then(|switch| switch.retry);
                write.into_iter().chain(switch).min()
            }
            Self::Asking { .. } => Some(LEAVES_RETRY),
            _ => None,
        }
    }
}

/// Returns the next status.
pub(super) fn trust_status(trust: &LinkerdTrust, facts: &TrustFacts, now: Timestamp) -> LinkerdTrustStatus {
    let not_accepted = |reason, message: String| {
        let rows = [TrustCondition::Accepted, TrustCondition::Ready];
        let rows = rows.map(|condition| TrustRow(condition, Some(false), reason, message.clone()));
        (rows.into(), LinkerdTrustStatus::default())
    };
    let mut kept = None;
    let (rows, status): (Vec<_>, _) = match facts {
        TrustFacts::Conflicted(other) => not_accepted(
            TrustReason::Conflicted,
            format!("LinkerdTrust {other} is older, and in effect for the same control plane: delete one"),
        ),
        TrustFacts::Invalid(why) => not_accepted(TrustReason::Invalid, why.clone()),
        TrustFacts::Observed { report, later } => {
            let message = "the LinkerdTrust is in effect".to_owned();
            let mut rows = vec![TrustRow(TrustCondition::Accepted, Some(true), TrustReason::Accepted, message)];
            rows.extend(condition_rows(report, later));
            kept = written_issuer(trust).cloned();
            let ready_to_switch_at = later.switch.as_ref().filter(|it| it.is_ready).map(|_| Time(minute_of(now)));
            (rows, LinkerdTrustStatus { ready_to_switch_at, ..observed(report, later) })
        }
        TrustFacts::Asking { held } => return asking(trust, held.as_ref(), now),
    };
    let conditions = rows.into_iter().map(|row| row.condition(&trust.status, trust.generation, now));
    let conditions = conditions.chain(kept).collect();
    LinkerdTrustStatus { observed_generation: Some(trust.generation), conditions, ..status }
}

/// Returns the last status, with the reason why nothing is added: it must not wait while proxies are asked, for example
/// because the bundle changes all the time. Until they were asked, it is not known whether the issuer may change.
fn asking(trust: &LinkerdTrust, held: Option<&HeldWrite>, now: Timestamp) -> LinkerdTrustStatus {
    let mut status = (*trust.status).clone();
    status.conditions.retain(|it| it.type_ != TrustCondition::ReadyToSwitch.as_str());
    status.ready_to_switch_at = None;
    let Some(held) = held else { return status };
    let row = row(TrustCondition::BundleSynced, (Some(false), held.reason, held.message.clone()));
    let row = row.condition(&trust.status, trust.generation, now);
    match status.conditions.iter_mut().find(|it| it.type_ == row.type_) {
        Some(known) => *known = row,
        None => status.conditions.push(row),
    }
    status
}

/// Returns what the process that writes the issuer says about it, which only that process writes.
fn written_issuer(trust: &LinkerdTrust) -> Option<&Condition> {
    let is_managed = trust.spec.issuer.manage == IssuerOrigin::Secret;
    trust.status.condition(TrustCondition::IssuerSynced).filter(|_| is_managed)
}

/// Returns the next step. What holds a removal comes before it.
fn chosen_step(report: &TrustReport, later: &LaterWrite) -> RotationStep {
    let is_retiring = report.progress.phase == TrustPhase::Retiring;
    let is_first = |held: &&HeldWrite| match held.reason {
        TrustReason::RemovalHeld | TrustReason::IssuerNotTaken => true,
        TrustReason::WrittenByTrustManager => false,
        _ => is_retiring,
    };
    match later.held.as_ref().filter(is_first) {
        Some(held) => RotationStep { sentence: held.message.clone(), commands: held.commands.clone() },
        None => {
            let RotationStep { sentence, mut commands } = report.next_step.clone();
            if let Some(switch) = later.switch.as_ref().filter(|_| commands.is_empty()) {
                commands.clone_from(&switch.commands);
            }
            RotationStep { sentence, commands }
        }
    }
}

fn observed(report: &TrustReport, later: &LaterWrite) -> LinkerdTrustStatus {
    let needed = report.roots.iter().filter(|root| root.desired || root.in_bundle);
    let (held, step) = (later.held.as_ref(), chosen_step(report, later));
    let day = |time: Timestamp| time.to_string().get(..10).unwrap_or_default().to_owned();
    LinkerdTrustStatus {
        phase: Some(report.progress.phase),
        next_step: truncated(step.sentence, LONGEST),
        commands: step.commands,
        problems: held
            .map(|held| truncated(held.message.clone(), LONGEST))
            .into_iter()
            .chain(problems(report, TrustVerdict::Warning))
            .collect(),
        expires: needed.filter_map(|root| root.expires).min().map(day),
        anchors: report
            .roots
            .iter()
            .map(|root| TrustRootStatus {
                name: root.name.clone(),
                sha256: root.sha256.clone(),
                expires: root.expires.map(Time),
                desired: root.desired,
                in_bundle: root.in_bundle,
                trusted_by: number(root.trusted_by),
                presented_by: number(root.presented_by),
            })
            .collect(),
        trust_roots_sha256: report.bundle_sha256.clone(),
        trust_roots_written: report.bundle_written.map(Time),
        sufficient_anchors: report.sufficient.clone(),
        required_anchors: report.required.clone(),
        distrusted_anchors: report.distrusted.clone(),
        issuer: report.issuer.name.clone().map(|name| TrustIssuerStatus {
            name,
            expires: report.issuer.expires.map(Time),
            signing_since: later.signing_since.map(Time),
        }),
        proxies: Some(proxies(&report.proxies, &report.progress)),
        behind: report
            .behind
            .iter()
            .map(|row| TrustWorkloadStatus {
                namespace: row.namespace.clone(),
                kind: row.kind.clone(),
                name: row.name.clone(),
                pods: number(row.pods),
                state: row.state.as_str().to_owned(),
                what_to_do: row.what_to_do.clone(),
            })
            .collect(),
        workloads_behind: Some(number(report.workloads_behind)),
        ..LinkerdTrustStatus::default()
    }
}

fn proxies(totals: &ProxyTotals, progress: &RotationProgress) -> TrustProxiesStatus {
    let ProxyTotals {
        total,
        current,
        behind,
        refusing,
        from_config_map,
        cut_off,
        accepted,
        exposed,
        before_bundle,
        ..
    } = *totals;
    TrustProxiesStatus {
        summary: format!("{}/{}", progress.trusting, total.saturating_sub(from_config_map)),
        total: number(total),
        current: number(current),
        behind: number(behind),
        refusing: number(refusing),
        cut_off: number(cut_off),
        accepted: number(accepted),
        exposed: number(exposed),
        from_config_map: number(from_config_map),
        before_bundle: number(before_bundle),
        unobserved: number(progress.unobserved),
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the problems of at least this urgency.
fn problems(report: &TrustReport, least: TrustVerdict) -> Vec<String> {
    let found = report.problems.iter().filter(|problem| problem.verdict >= least).take(MAX_PROBLEMS);
    found.map(|problem| truncated(problem.message.clone(), LONGEST)).collect()
}

fn condition_rows(report: &TrustReport, later: &LaterWrite) -> Vec<TrustRow> {
    let not_taken = later.held.as_ref().filter(|held| held.reason == TrustReason::IssuerNotTaken);
    let held = later.held.as_ref().filter(|_| not_taken.is_none());
    let (progress, phase) = (&report.progress, report.progress.phase);
    let is_unknown = phase == TrustPhase::Unknown;
    let next = || chosen_step(report, later).sentence;
    let bundle_synced = match phase {
        _ if let Some(held) = held => (Some(false), held.reason, held.message.clone()),
        TrustPhase::Unknown if report.roots.iter().all(|root| !root.in_bundle) => {
            (None, TrustReason::NotObserved, next())
        }
        _ => match bundle_difference(report) {
            None if !progress.is_bundle_synced => {
                (Some(false), TrustReason::RootsDiffer, "the bundle has other trust anchors, too".to_owned())
            }
            None => (Some(true), TrustReason::Synced, "the bundle has exactly the declared trust anchors".to_owned()),
            Some(difference) => (Some(false), TrustReason::RootsDiffer, difference),
        },
    };
    let spread = match progress.untrusting {
        _ if report.proxies.unread > 0 => (None, TrustReason::NotObserved, next()),
        0 => {
            let all = "each proxy that shows its trust anchors trusts that of the issuer";
            let message = match report.proxies.accepted {
                0 => all.to_owned(),
                count => format!("{all}, but {}, as spec.accept permits", counted_proxies(count)),
            };
            (Some(true), TrustReason::Synced, message)
        }
        count if progress.is_bridged && !is_unknown => {
            let accepted = match progress.awaits_issuer {
                true => "will be accepted over the declared bridge",
                false => "are accepted over a bridge",
            };
            let message = format!(
                "{} the declared trust anchor of the issuer; its certificates {accepted}",
                proxies_trust(count, false)
            );
            (Some(true), TrustReason::OverBridge, message)
        }
        count => {
            let held = report.held_by.as_ref().map_or_else(String::new, |workloads| format!(": {workloads}"));
            let message = format!("{} the declared trust anchor of the issuer{held}", proxies_trust(count, false));
            (Some(false), TrustReason::ProxiesBehind, message)
        }
    };
    let renewed = match (progress.not_renewed, progress.unobserved) {
        _ if let Some(held) = not_taken => (Some(false), held.reason, held.message.clone()),
        (0, 0) if report.issuer.name.is_some() => {
            (Some(true), TrustReason::Synced, "each certificate reaches a declared trust anchor".to_owned())
        }
        (0, 0) => (None, TrustReason::NotObserved, "no proxy has shown a certificate of the mesh".to_owned()),
        (0, count) => {
            let message = format!("the certificates of {} were not observed", counted_proxies(count));
            (None, TrustReason::NotObserved, message)
        }
        (count, _) => {
            let message = format!("the certificates of {} reach no declared trust anchor", counted_proxies(count));
            (Some(false), TrustReason::OldLeaves, message)
        }
    };
    let ready = match (problems(report, TrustVerdict::Broken).first(), phase) {
        (Some(problem), _) => (Some(false), TrustReason::Broken, problem.clone()),
        (None, TrustPhase::Steady | TrustPhase::Complete) if report.is_exposed => {
            (Some(false), TrustReason::ProxiesExposed, next())
        }
        (None, TrustPhase::Steady | TrustPhase::Complete) => (Some(true), TrustReason::Synced, next()),
        (None, TrustPhase::Unknown) => (None, TrustReason::NotObserved, next()),
        (None, _) => (Some(false), TrustReason::RotationInProgress, format!("{}: {}", phase.as_str(), next())),
    };
    let mut rows = vec![
        row(TrustCondition::BundleSynced, bundle_synced),
        row(TrustCondition::TrustSpread, spread),
        row(TrustCondition::LeavesRenewed, renewed),
        row(TrustCondition::Ready, ready),
    ];
    rows.extend(later.switch.as_ref().map(|switch| {
        TrustRow(TrustCondition::ReadyToSwitch, Some(switch.is_ready), switch.reason, switch.message.clone())
    }));
    let ending = report.problems.iter().find(|problem| problem.is_end);
    rows.extend(ending.map(|problem| {
        TrustRow(TrustCondition::Expiring, Some(true), TrustReason::CertificateEnds, problem.message.clone())
    }));
    rows
}

/// Returns how the bundle differs from the declared trust anchors; `None` if it does not.
fn bundle_difference(report: &TrustReport) -> Option<String> {
    let named = |is_meant: &dyn Fn(&RootRow) -> bool| {
        let found: Vec<_> = report.roots.iter().filter(|root| is_meant(root)).map(RootRow::named).collect();
        (!found.is_empty()).then(|| and_more(found.iter().take(SHOWN), found.len(), ", "))
    };
    let lacks = report.progress.missing.as_ref().map(|names| format!("the bundle lacks {names}"));
    let has = named(&|root| root.in_bundle && !root.desired).map(|names| format!("the bundle also has {names}"));
    let parts: Vec<_> = [lacks, has].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn row(condition: TrustCondition, (status, reason, message): (Option<bool>, TrustReason, String)) -> TrustRow {
    TrustRow(condition, status, reason, message)
}

// === impl TrustRow ===

impl TrustRow {
    fn condition(self, before: &LinkerdTrustStatus, generation: i64, now: Timestamp) -> Condition {
        let Self(type_, status, reason, message) = self;
        let status = match status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let known = before.condition(type_).filter(|known| known.status == status);
        Condition {
            type_: type_.as_str().to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            message: truncated(message, LONGEST),
            observed_generation: Some(generation),
            last_transition_time: known.map_or(Time(now), |known| known.last_transition_time.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::IntoEnumIterator;

    use serde_json::json;

    use super::*;
    use crate::{
        cluster::{Problems, Projected},
        reasons::TRUST_CONDITIONS,
    };

    #[test]
    fn while_proxies_are_asked_the_reason_why_nothing_is_added_changes_and_no_issuer_may_change() {
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Synced", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"phase": "Steady", "nextStep": "nothing", "conditions": [condition("BundleSynced"), condition("ReadyToSwitch"), condition("Ready")]});
        for (before, expected) in [(status.clone(), vec!["WriteFailed", "Synced"]), (json!({}), vec!["WriteFailed"])] {
            let trust = json!({"metadata": {"name": "mesh"}, "spec": {}, "status": before});
            let trust = LinkerdTrust::project(serde_json::from_value(trust).unwrap(), &mut Problems::default());
            let held = HeldWrite {
                reason: TrustReason::WriteFailed,
                message: "forbidden".to_owned(),
                retry: None,
                commands: Vec::new(),
            };
            let facts = TrustFacts::Asking { held: Some(held) };
            let status = trust_status(&trust, &facts, Timestamp::UNIX_EPOCH);
            assert_eq!((status.phase, &status.next_step), (trust.status.phase, &trust.status.next_step));
            let reasons: Vec<_> = status.conditions.iter().map(|it| it.reason.as_str()).collect();
            assert_eq!(reasons, expected);
            let again = LinkerdTrust { status: status.clone().into(), ..trust };
            assert_eq!(trust_status(&again, &facts, Timestamp::now()), status, "without a change both are equal");
        }
    }

    #[test]
    fn the_catalogue_explains_every_condition_and_reason_and_no_other() {
        let conditions: BTreeSet<&str> = TRUST_CONDITIONS.iter().map(|it| it.condition).collect();
        assert_eq!(conditions, TrustCondition::iter().map(TrustCondition::as_str).collect());
        let reasons = TRUST_CONDITIONS.iter().flat_map(|it| it.reasons).map(|entry| entry.reason);
        assert_eq!(reasons.collect::<BTreeSet<_>>(), TrustReason::iter().map(TrustReason::as_str).collect());
    }
}
