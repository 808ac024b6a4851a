//! What a LinkerdConfig is told about itself. Pure.
//!
//! In: how things stand, the status as it was. Out: the status as it is. Always holds: a condition's time changes only with its
//! status; what did not change is equal, so that nothing is written for nothing.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{
    drift::UNKNOWN,
    injector::{Barrier, Reason},
    overlay::{self, Source},
    plan::{Drift, Plan, Verdict},
    rollout::key::{RETRY_ANNOTATION, RolloutKey},
    sha256,
    values::Problem,
};
use crate::{
    api::{
        NamespacedName, TRUST_ROOTS,
        linkerd_config::{
            DriftStatus, DriftWindow, InjectorStatus, LinkerdConfigStatus, RevisionsStatus, RolloutStatus,
            TargetStatus, TrustAnchorsStatus,
        },
    },
    cluster::kinds::linkerd_config::LinkerdConfig,
};

/// Of the paths of a drift, and of the problems in a message.
const SHOWN: usize = 10;
/// Of the hashes of documents that were refused.
const FAILED: usize = 5;
/// In which Pods may have been injected with what others wrote.
const DRIFT_WINDOWS: usize = 5;
/// What a condition's message may have, in bytes.
const LONGEST_MESSAGE: usize = 2048;

/// One line of conditions: type, whether it holds (`None`: nobody knows), why, and a sentence.
pub(super) struct Told(pub(super) &'static str, pub(super) Option<bool>, pub(super) &'static str, pub(super) String);

/// What a verdict means, as conditions put it.
pub struct Judged {
    pub reason: &'static str,
    pub message: String,
}

/// What is known beside the plan.
pub(super) struct Facts<'a> {
    pub(super) config: &'a LinkerdConfig,
    /// Its status as it was written last.
    pub(super) before: &'a LinkerdConfigStatus,
    pub(super) plan: &'a Plan,
    /// ExternalWorkloads failed with what the plan left there: it goes.
    pub(super) takes_back: bool,
    /// What Pods without a marker run with, where that was not known.
    pub(super) baseline: Option<String>,
    /// Why what was planned was not written.
    pub(super) failure: Option<(&'static str, String)>,
    pub(super) target: TargetStatus,
    pub(super) base_revision: Option<i64>,
    /// How things stand with the injectors; `None` where that does not matter.
    pub(super) barrier: Option<&'a Barrier>,
    /// Of trust anchors.
    pub(super) bundle: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// Of the one in effect.
pub(super) fn of_winner(facts: Facts<'_>) -> LinkerdConfigStatus {
    let Facts { config, before, plan, takes_back, baseline, failure, target, base_revision, barrier, bundle, now } =
        facts;
    let bundle_hash = bundle.map(sha256);
    let drift = plan.drift.as_ref().map(|drift| drifted(drift, before.drift.as_ref(), now));
    let is_open = barrier.is_some_and(|barrier| barrier.is_open(&config.spec.injector_sync));
    let drift = drift.or_else(|| before.drift.clone()).map(|mut drift| {
        for window in drift.windows.iter_mut().filter(|window| is_open && window.to.is_none()) {
            window.to = Some(Time(now));
        }
        drift
    });
    let effective = plan.effective.as_ref();
    let anchors = effective.map(|_| anchors(plan.anchors, bundle, bundle_hash.as_deref(), before));
    let rolled_back = before.rollout.as_ref().and_then(|rollout| rollout.rolled_back.clone());
    let rolled_back = rolled_back.filter(|_| is_of_it(config, before)).or_else(|| {
        let marker = plan.marker.as_deref().filter(|_| takes_back)?;
        Some(RolloutKey::of(marker, bundle_hash.as_deref(), None).to_string())
    });
    let told = told(&config.target, &plan.verdict, plan.drift.as_ref(), failure);
    let told = with_injectors(told, config, before, &plan.verdict, barrier, rolled_back.as_deref());
    // Kept: that it was in effect once decides what is drift when it is again.
    let mut revisions = RevisionsStatus {
        base: base_revision.or_else(|| before.revisions.as_ref()?.base),
        ..judged_by_injectors(config, before, plan, base_revision, barrier)
    };
    if let Some(marker) = plan.marker.as_ref().filter(|_| takes_back) {
        refuse(&mut revisions.failed, marker);
    }
    let known = before.rollout.clone().unwrap_or_default();
    let rollout = RolloutStatus {
        adopted_at: known.adopted_at.clone().or_else(|| (is_open && plan.marker.is_some()).then_some(Time(now))),
        baseline_hash: known.baseline_hash.clone().or(baseline),
        rolled_back,
        retry: retry(config).map(str::to_owned),
        ..known
    };
    LinkerdConfigStatus {
        observed_generation: Some(config.generation),
        active: Some(plan.verdict != Verdict::Suspended),
        conditions: conditions(&told, before, config.generation, now),
        target: Some(target),
        config_hash: effective.map(|document| document.hash().to_string()).or_else(|| before.config_hash.clone()),
        trust_roots_sha256: bundle_hash,
        proxy_version: effective.and_then(overlay::proxy_version),
        revisions: Some(revisions).filter(|it| *it != RevisionsStatus::default()),
        injection_hash: plan.marker.clone().or_else(|| before.injection_hash.clone()),
        injector: barrier.and_then(|barrier| counted(barrier, before.injector.as_ref(), now)),
        drift,
        rollout: Some(rollout),
        deprecated_fields: overlay::deprecated(&config.spec),
        trust_anchors: anchors.or_else(|| before.trust_anchors.clone()),
    }
}

/// Which documents are good, and which are not, as far as injectors have said.
fn judged_by_injectors(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    plan: &Plan,
    base_revision: Option<i64>,
    barrier: Option<&Barrier>,
) -> RevisionsStatus {
    let mut failed = failed(config, before).to_vec();
    let known = before.revisions.as_ref();
    let mut last_known_good = known.and_then(|revisions| revisions.last_known_good);
    let mut last_known_good_hash = known.and_then(|revisions| revisions.last_known_good_hash.clone());
    let last_rolled_out = known.and_then(|revisions| revisions.last_rolled_out);
    if let (Some(barrier), Some(marker)) = (barrier, &plan.marker) {
        if barrier.is_refused {
            refuse(&mut failed, marker);
        }
        if barrier.reason == Reason::AllReplicasCurrent {
            failed.retain(|failed| failed != marker);
            if plan.verdict == Verdict::Synced {
                last_known_good = base_revision.or(last_known_good);
                last_known_good_hash = Some(marker.clone());
            }
        }
    }
    RevisionsStatus { base: None, last_known_good, last_known_good_hash, last_rolled_out, failed }
}

fn refuse(failed: &mut Vec<String>, marker: &String) {
    if !failed.contains(marker) {
        failed.push(marker.clone());
        failed.drain(..failed.len().saturating_sub(FAILED));
    }
}

/// What failed, and this generation of the resource asks for: none of it is tried again.
pub fn failed<'a>(config: &LinkerdConfig, status: &'a LinkerdConfigStatus) -> &'a [String] {
    let revisions = status.revisions.as_ref().filter(|_| is_of_it(config, status));
    revisions.map(|revisions| revisions.failed.as_slice()).unwrap_or_default()
}

/// The revisions with documents that may be gone back to, the best first.
pub fn good_revisions(before: &LinkerdConfigStatus) -> Vec<i64> {
    let revisions = before.revisions.as_ref();
    let rolled_out = revisions.and_then(|revisions| revisions.last_rolled_out);
    let good = revisions.and_then(|revisions| revisions.last_known_good).filter(|good| Some(*good) != rolled_out);
    rolled_out.into_iter().chain(good).collect()
}

/// Whether the status is about what the resource asks for now, at the try that it asks for.
fn is_of_it(config: &LinkerdConfig, status: &LinkerdConfigStatus) -> bool {
    let tried = status.rollout.as_ref().and_then(|rollout| rollout.retry.as_deref());
    status.observed_generation == Some(config.generation) && tried == retry(config)
}

fn retry(config: &LinkerdConfig) -> Option<&str> {
    config.annotations.get(RETRY_ANNOTATION).map(|retry| &**retry)
}

/// The status with a window in which Pods may be injected with what others wrote; `None` where it has one that is open.
pub(super) fn with_drift_window(before: &LinkerdConfigStatus, from: Timestamp) -> Option<LinkerdConfigStatus> {
    let mut status = before.clone();
    let windows = &mut status.drift.get_or_insert_default().windows;
    if windows.iter().any(|window| window.to.is_none()) {
        return None;
    }
    windows.push(DriftWindow { from: Some(Time(from)), to: None });
    // Too many: the oldest two become one that has all of both.
    if windows.len() > DRIFT_WINDOWS {
        let oldest = windows.remove(0);
        if let Some(next) = windows.first_mut() {
            next.from = oldest.from;
        }
    }
    Some(status)
}

/// Which anchors there are, and whether none of those that were there is left.
fn anchors(
    source: Option<Source>,
    bundle: Option<&str>,
    hash: Option<&str>,
    before: &LinkerdConfigStatus,
) -> TrustAnchorsStatus {
    let source = Some(anchors_source(source).to_owned());
    let known = before.trust_anchors.clone().unwrap_or_default();
    if !known.fingerprints.is_empty() && before.trust_roots_sha256.as_deref() == hash {
        return TrustAnchorsStatus { source, ..known };
    }
    let fingerprints = overlay::fingerprints(bundle.unwrap_or_default());
    let is_disjoint = !known.fingerprints.is_empty()
        && !fingerprints.is_empty()
        && !fingerprints.iter().any(|fingerprint| known.fingerprints.contains(fingerprint));
    TrustAnchorsStatus { source, replaced: hash.filter(|_| is_disjoint).map(str::to_owned), fingerprints }
}

fn counted(barrier: &Barrier, before: Option<&InjectorStatus>, now: Timestamp) -> Option<InjectorStatus> {
    let (ready, synced) = barrier.counts?;
    let number = |count| i64::try_from(count).ok();
    let (ready, synced) = (number(ready), number(synced));
    // Only with the counts, or each look would be a write.
    let same = before.filter(|before| (before.ready, before.synced) == (ready, synced));
    let last_probe_time = same.and_then(|same| same.last_probe_time.clone()).or(Some(Time(now)));
    Some(InjectorStatus { ready, synced, last_probe_time })
}

/// InjectorSynced after ConfigMapSynced, and what it means for Ready and Stalled.
fn with_injectors(
    mut told: Vec<Told>,
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    verdict: &Verdict,
    barrier: Option<&Barrier>,
    rolled_back: Option<&str>,
) -> Vec<Told> {
    const TYPE: &str = "InjectorSynced";
    let Some(barrier) = barrier else { return told };
    let injectors = match (verdict, barrier.reason) {
        // The document in their place works: what counts is what they said of the other one.
        (Verdict::Restored, _) if rolled_back.is_none() => {
            let known = before.conditions.iter().find(|it| it.type_ == TYPE && it.reason == Reason::Denied.as_str());
            let message = known.map_or("what is declared was refused", |known| &known.message);
            Told(TYPE, Some(false), Reason::Denied.as_str(), message.to_owned())
        }
        (_, reason) => {
            let holds = match reason {
                Reason::AllReplicasCurrent => Some(true),
                Reason::ProbeDisabled => None,
                _ => Some(false),
            };
            Told(TYPE, holds, reason.as_str(), barrier.message.clone())
        }
    };
    let is_denied = *verdict == Verdict::Restored && rolled_back.is_none();
    let is_open = !is_denied && barrier.is_open(&config.spec.injector_sync);
    let ready = told.iter_mut().find(|Told(type_, ..)| *type_ == "Ready");
    if let Some(ready) = ready.filter(|Told(_, holds, ..)| !is_open && *holds == Some(true)) {
        let Told(_, _, reason, message) = &injectors;
        *ready = Told("Ready", Some(false), reason, message.clone());
    }
    if *verdict == Verdict::Restored {
        let Told(_, _, _, denied) = &injectors;
        let failed = rolled_back.map(|hash| format!("workloads failed with {hash}"));
        let message = format!("{}; change the resource", failed.as_ref().unwrap_or(denied));
        told.push(Told("Stalled", Some(true), "RolledBack", message));
    }
    let after = told.iter().position(|Told(type_, ..)| *type_ == "ConfigMapSynced").map_or(0, |at| at + 1);
    told.insert(after, injectors);
    told
}

/// By the names that their places have.
fn anchors_source(anchors: Option<Source>) -> &'static str {
    match anchors {
        Some(Source::TrustRoots) => TRUST_ROOTS,
        Some(Source::Typed) => "spec.global.identityContext.trustAnchorsPEM",
        Some(Source::Base | Source::Values) | None => "identityTrustAnchorsPEM",
    }
}

/// Of one that is not.
pub(super) fn of_loser(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    winner: &str,
    now: Timestamp,
) -> LinkerdConfigStatus {
    let message =
        format!("LinkerdConfig {winner} is in effect for {}: it has a higher priority, or is older", config.target);
    let told = [
        Told("Accepted", Some(false), "Conflicted", message.clone()),
        Told("Ready", Some(false), "Conflicted", message),
    ];
    waiting(config, before, &told, now)
}

/// Of one whose ConfigMap is not ours to write.
pub(super) fn of_stranger(
    config: &LinkerdConfig,
    before: &LinkerdConfigStatus,
    namespace: &str,
    now: Timestamp,
) -> LinkerdConfigStatus {
    let message = format!(
        "this operator takes care of namespace {namespace} (--controller-namespace), and the resource names {}",
        config.target
    );
    let told = [
        Told("Accepted", Some(false), "TargetNotFound", message.clone()),
        Told("Ready", Some(false), "TargetNotFound", message),
    ];
    waiting(config, before, &told, now)
}

fn waiting(config: &LinkerdConfig, before: &LinkerdConfigStatus, told: &[Told], now: Timestamp) -> LinkerdConfigStatus {
    LinkerdConfigStatus {
        observed_generation: Some(config.generation),
        active: Some(false),
        conditions: conditions(told, before, config.generation, now),
        deprecated_fields: overlay::deprecated(&config.spec),
        revisions: before
            .revisions
            .clone()
            .map(|known| RevisionsStatus { failed: failed(config, before).to_vec(), ..known }),
        // What Pods without a marker run with is found out once.
        rollout: before.rollout.as_ref().map(|known| RolloutStatus {
            adopted_at: known.adopted_at.clone(),
            baseline_hash: known.baseline_hash.clone(),
            retry: retry(config).map(str::to_owned),
            ..RolloutStatus::default()
        }),
        ..LinkerdConfigStatus::default()
    }
}

/// What ConfigMapSynced would say of a plan that is carried out; of a resource that cannot be followed, Accepted.
pub fn judged(target: &NamespacedName, verdict: &Verdict, drift: Option<&Drift>) -> Judged {
    let told = told(target, verdict, drift, None);
    let of = told.into_iter().rfind(|Told(type_, ..)| matches!(*type_, "Accepted" | "ConfigMapSynced"));
    let (reason, message) = of.map(|Told(_, _, reason, message)| (reason, message)).unwrap_or_default();
    Judged { reason, message }
}

fn told(
    target: &NamespacedName,
    verdict: &Verdict,
    drift: Option<&Drift>,
    failure: Option<(&'static str, String)>,
) -> Vec<Told> {
    let accepted = || Told("Accepted", Some(true), "Accepted", "the resource is in effect".to_owned());
    let synced = match (verdict, failure) {
        (_, Some((reason, message))) => Told("ConfigMapSynced", Some(false), reason, message),
        (Verdict::Unknown, None) => {
            Told("ConfigMapSynced", Some(false), "WriteFailed", "it was not looked at".to_owned())
        }
        (Verdict::Synced, None) => {
            Told("ConfigMapSynced", Some(true), "Synced", "the ConfigMap holds what is declared".to_owned())
        }
        (Verdict::Restored, None) => {
            let message = "what is declared failed: the last good document is back";
            Told("ConfigMapSynced", Some(true), "Restored", message.to_owned())
        }
        (Verdict::Invalid(_) | Verdict::TargetNotFound | Verdict::UnsupportedLayout | Verdict::Suspended, None) => {
            return refused(target, verdict);
        }
        (Verdict::ValidationFailed(problems), None) => {
            let message = format!("the document is nothing that Linkerd can use: {}", listed(problems));
            Told("ConfigMapSynced", Some(false), "ValidationFailed", message)
        }
        (Verdict::Immutable, None) => {
            let message = "the ConfigMap is immutable: make another one, nobody can change it in its place";
            Told("ConfigMapSynced", Some(false), "Immutable", message.to_owned())
        }
        (Verdict::InvalidBase(error), None) => {
            let message = format!("the ConfigMap is left as it is: {error}");
            Told("ConfigMapSynced", Some(false), "InvalidBase", message)
        }
        (Verdict::Drifted, None) => {
            Told("ConfigMapSynced", Some(false), "Drifted", format!("{}; drift.action is Report", sentence(drift)))
        }
        (Verdict::RepeatedDrift, None) => Told(
            "ConfigMapSynced",
            Some(false),
            "Drifted",
            format!("{}; again and again, so it stays for a while", sentence(drift)),
        ),
        (Verdict::Observing(paths), None) => {
            let shown: Vec<String> = paths.iter().take(SHOWN).map(ToString::to_string).collect();
            let message = format!("mode is Observe: {} would change: {}", paths.len(), shown.join(", "));
            Told("ConfigMapSynced", Some(false), "Observing", message)
        }
    };
    let ready = match &synced {
        Told(_, Some(true), ..) => {
            Told("Ready", Some(true), "Reconciled", "all that is declared is in effect".to_owned())
        }
        Told(_, _, reason, message) => Told("Ready", Some(false), reason, message.clone()),
    };
    let mut told = vec![accepted(), synced, ready];
    match verdict {
        Verdict::InvalidBase(error) => told.push(Told("Stalled", Some(true), "InvalidBase", error.clone())),
        Verdict::RepeatedDrift => told.push(Told("Stalled", Some(true), "RepeatedDrift", sentence(drift))),
        _ => {}
    }
    told
}

/// Of a resource that cannot be followed at all.
fn refused(target: &NamespacedName, verdict: &Verdict) -> Vec<Told> {
    let (reason, message) = match verdict {
        Verdict::Invalid(problems) => ("Invalid", listed(problems)),
        Verdict::TargetNotFound => ("TargetNotFound", format!("there is no ConfigMap {target}: install Linkerd")),
        Verdict::UnsupportedLayout => {
            ("UnsupportedLayout", format!("ConfigMap {target} has no values: it is of a Linkerd before stable-2.9"))
        }
        _ => ("Suspended", "mode is Suspend: nothing is looked at".to_owned()),
    };
    vec![Told("Accepted", Some(false), reason, message.clone()), Told("Ready", Some(false), reason, message)]
}

fn sentence(drift: Option<&Drift>) -> String {
    let Some(drift) = drift else { return "the document was changed".to_owned() };
    format!("{} changed {}", drift.manager, shown(drift))
}

/// The paths, never their values.
pub(super) fn shown(drift: &Drift) -> String {
    let paths: Vec<String> = drift.paths.iter().take(SHOWN).map(ToString::to_string).collect();
    match drift.paths.len() {
        0 => "the document into one that cannot be read".to_owned(),
        more if more > SHOWN => format!("{} and {} more", paths.join(", "), more - SHOWN),
        _ => paths.join(", "),
    }
}

/// All of them at once, as far as a person reads.
pub(super) fn listed(problems: &[Problem]) -> String {
    let shown: Vec<String> = problems.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = problems.len().saturating_sub(SHOWN);
    if more > 0 { format!("{}; and {more} more", shown.join("; ")) } else { shown.join("; ") }
}

fn drifted(drift: &Drift, before: Option<&DriftStatus>, now: Timestamp) -> DriftStatus {
    let paths: Vec<String> = drift.paths.iter().take(SHOWN).map(ToString::to_string).collect();
    // One that stays is the same one as long as nobody changes it.
    let is_theirs = |before: &&DriftStatus| drift.manager == UNKNOWN || before.manager.as_ref() == Some(&drift.manager);
    let same = before.filter(|before| !drift.reverted && before.paths == paths).filter(is_theirs);
    let count = before.and_then(|before| before.count).unwrap_or_default();
    DriftStatus {
        last_time: same.and_then(|same| same.last_time.clone()).or(Some(Time(now))),
        count: Some(if same.is_some() { count } else { count + 1 }),
        manager: same.and_then(|same| same.manager.clone()).or_else(|| Some(drift.manager.clone())),
        paths,
        windows: before.map(|before| before.windows.clone()).unwrap_or_default(),
    }
}

fn conditions(told: &[Told], before: &LinkerdConfigStatus, generation: i64, now: Timestamp) -> Vec<Condition> {
    told.iter().map(|told| condition(told, before, generation, now)).collect()
}

pub(super) fn condition(
    Told(type_, holds, reason, message): &Told,
    before: &LinkerdConfigStatus,
    generation: i64,
    now: Timestamp,
) -> Condition {
    let status = match holds {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let known = before.conditions.iter().find(|known| known.type_ == *type_ && known.status == status);
    let mut message = message.clone();
    message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
    Condition {
        type_: (*type_).to_owned(),
        status: status.to_owned(),
        reason: (*reason).to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time: known.map_or(Time(now), |known| known.last_transition_time.clone()),
    }
}

/// The reason of a condition, for telling transitions.
pub(super) fn reason<'a>(status: &'a LinkerdConfigStatus, type_: &str) -> Option<&'a str> {
    status.conditions.iter().find(|condition| condition.type_ == type_).map(|condition| condition.reason.as_str())
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
