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
    overlay::{self, Source},
    plan::{Drift, Plan, Verdict},
    values::Problem,
};
use crate::{
    api::{
        TRUST_ROOTS,
        linkerd_config::{DriftStatus, LinkerdConfigStatus, RevisionsStatus, TargetStatus, TrustAnchorsStatus},
    },
    cluster::{linkerd_config::LinkerdConfig, object::NamespacedName},
};

/// Of the paths of a drift, and of the problems in a message.
const SHOWN: usize = 10;
/// What a condition's message may have, in bytes.
const LONGEST_MESSAGE: usize = 2048;

/// One line of conditions: type, whether it holds, why, and a sentence.
struct Told(&'static str, bool, &'static str, String);

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
    /// Why what was planned was not written.
    pub(super) failure: Option<(&'static str, String)>,
    pub(super) target: TargetStatus,
    pub(super) base_revision: Option<i64>,
    pub(super) bundle_hash: Option<String>,
    pub(super) now: Timestamp,
}

/// Of the one in effect.
pub(super) fn of_winner(facts: Facts<'_>) -> LinkerdConfigStatus {
    let Facts { config, before, plan, failure, target, base_revision, bundle_hash, now } = facts;
    let drift = plan.drift.as_ref().map(|drift| drifted(drift, before.drift.as_ref(), now));
    let effective = plan.effective.as_ref();
    let anchors = effective.map(|_| TrustAnchorsStatus { source: Some(anchors_source(plan.anchors).to_owned()) });
    LinkerdConfigStatus {
        observed_generation: Some(config.generation),
        active: Some(plan.verdict != Verdict::Suspended),
        conditions: conditions(
            &told(&config.target, &plan.verdict, plan.drift.as_ref(), failure),
            before,
            config.generation,
            now,
        ),
        target: Some(target),
        config_hash: effective.map(|document| document.hash().to_string()).or_else(|| before.config_hash.clone()),
        trust_roots_sha256: bundle_hash,
        proxy_version: effective.and_then(overlay::proxy_version),
        // Kept: that it was in effect once decides what is drift when it is again.
        revisions: base_revision.map(|base| RevisionsStatus { base: Some(base) }).or_else(|| before.revisions.clone()),
        drift: drift.or_else(|| before.drift.clone()),
        deprecated_fields: overlay::deprecated(&config.spec),
        trust_anchors: anchors.or_else(|| before.trust_anchors.clone()),
    }
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
    let told = [Told("Accepted", false, "Conflicted", message.clone()), Told("Ready", false, "Conflicted", message)];
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
    let told =
        [Told("Accepted", false, "TargetNotFound", message.clone()), Told("Ready", false, "TargetNotFound", message)];
    waiting(config, before, &told, now)
}

fn waiting(config: &LinkerdConfig, before: &LinkerdConfigStatus, told: &[Told], now: Timestamp) -> LinkerdConfigStatus {
    LinkerdConfigStatus {
        observed_generation: Some(config.generation),
        active: Some(false),
        conditions: conditions(told, before, config.generation, now),
        deprecated_fields: overlay::deprecated(&config.spec),
        revisions: before.revisions.clone(),
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
    let accepted = || Told("Accepted", true, "Accepted", "the resource is in effect".to_owned());
    let synced = match (verdict, failure) {
        (_, Some((reason, message))) => Told("ConfigMapSynced", false, reason, message),
        (Verdict::Unknown, None) => Told("ConfigMapSynced", false, "WriteFailed", "it was not looked at".to_owned()),
        (Verdict::Synced, None) => {
            Told("ConfigMapSynced", true, "Synced", "the ConfigMap holds what is declared".to_owned())
        }
        (Verdict::Invalid(_) | Verdict::TargetNotFound | Verdict::UnsupportedLayout | Verdict::Suspended, None) => {
            return refused(target, verdict);
        }
        (Verdict::ValidationFailed(problems), None) => {
            let message = format!("the document is nothing that Linkerd can use: {}", listed(problems));
            Told("ConfigMapSynced", false, "ValidationFailed", message)
        }
        (Verdict::Immutable, None) => {
            let message = "the ConfigMap is immutable: make another one, nobody can change it in its place";
            Told("ConfigMapSynced", false, "Immutable", message.to_owned())
        }
        (Verdict::InvalidBase(error), None) => {
            let message = format!("the ConfigMap is left as it is: {error}");
            Told("ConfigMapSynced", false, "InvalidBase", message)
        }
        (Verdict::Drifted, None) => {
            Told("ConfigMapSynced", false, "Drifted", format!("{}; drift.action is Report", sentence(drift)))
        }
        (Verdict::RepeatedDrift, None) => Told(
            "ConfigMapSynced",
            false,
            "Drifted",
            format!("{}; again and again, so it stays for a while", sentence(drift)),
        ),
        (Verdict::Observing(paths), None) => {
            let shown: Vec<String> = paths.iter().take(SHOWN).map(ToString::to_string).collect();
            let message = format!("mode is Observe: {} would change: {}", paths.len(), shown.join(", "));
            Told("ConfigMapSynced", false, "Observing", message)
        }
    };
    let ready = match &synced {
        Told(_, true, ..) => Told("Ready", true, "Reconciled", "all that is declared is in effect".to_owned()),
        Told(_, false, reason, message) => Told("Ready", false, reason, message.clone()),
    };
    let mut told = vec![accepted(), synced, ready];
    match verdict {
        Verdict::InvalidBase(error) => told.push(Told("Stalled", true, "InvalidBase", error.clone())),
        Verdict::RepeatedDrift => told.push(Told("Stalled", true, "RepeatedDrift", sentence(drift))),
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
    vec![Told("Accepted", false, reason, message.clone()), Told("Ready", false, reason, message)]
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
    }
}

fn conditions(told: &[Told], before: &LinkerdConfigStatus, generation: i64, now: Timestamp) -> Vec<Condition> {
    let condition = |Told(type_, holds, reason, message): &Told| {
        let status = if *holds { "True" } else { "False" };
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
    };
    told.iter().map(condition).collect()
}

/// The reason of a condition, for telling transitions.
pub(super) fn reason<'a>(status: &'a LinkerdConfigStatus, type_: &str) -> Option<&'a str> {
    status.conditions.iter().find(|condition| condition.type_ == type_).map(|condition| condition.reason.as_str())
}
