//! How one workload stands. Pure.
//!
//! In: a workload, its Pods, what stands around it, the [`Goal`]. Out: an [`Assessment`]. Always holds: what was done about the
//! workload before is read from its own annotations, so whoever looks comes to the same result; a workload that runs with what
//! is wanted is left alone.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::{
    census::Census,
    goal::Goal,
    injection::breaking_annotation,
    selection::{Candidate, NotSelected, Selection, selection},
    state::{Annotated, RolloutState},
};
use crate::{
    api::linkerd_config::{RolloutMethod, RolloutPods},
    cluster::{
        index::workload_key::WorkloadKey,
        kinds::{
            apps_workload::{AppsWorkload, Progress, UpdateStrategy, WorkloadKind},
            inject::Inject,
            namespace::Namespace,
            pod::Pod,
        },
    },
};

/// A workload that is out of date again and again for one key is given up: something else makes its Pods.
const ATTEMPTS: u32 = 5;
/// On a workload: `restart` or `evict`, whatever the resource says.
const METHOD_ANNOTATION: &str = "config.linkerd.io/rollout-method";

pub struct Facts<'a> {
    pub workload: &'a WorkloadKey,
    /// Of a Deployment, StatefulSet or DaemonSet.
    pub resource: Option<&'a AppsWorkload>,
    pub namespace: Option<&'a Namespace>,
    pub pods: &'a [Arc<Pod>],
    /// A PodDisruptionBudget over its Pods allows no disruption.
    pub is_blocked: bool,
}

/// How a workload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    pub pods: RolloutPods,
    /// How many of them were born while others had edited the document.
    pub suspects: i64,
    pub standing: Standing,
    /// Since when it rolls because of us, whatever for, and whatever is wanted of it by now.
    pub rolling: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is nothing of it that could be out of date.
    Unmeshed,
    Unselected(NotSelected),
    Observed,
    /// Selected, out of date, and nobody can restart it.
    Untouchable(Skip),
    /// Selected; so are the rest.
    UpToDate,
    Pending(Start),
    InFlight(Flight),
    Failed(Failure),
    Skipped(Skip),
}

/// How a restart begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// What its template gets.
    pub value: String,
    pub method: RolloutMethod,
    /// Pods have other trust anchors than the mesh.
    pub for_trust_roots: bool,
}

/// A restart under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    pub state: RolloutState,
    /// When it began; where Pods are evicted one after the other, when the last one came up.
    pub since: Option<Timestamp>,
    pub health: Health,
    /// A Pod that has to be evicted for it to go on.
    pub evict: Option<Arc<str>>,
    /// What its template gets if it has to be tried once more.
    pub retry: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not done yet: in a sentence, what is missing.
    Progressing(String),
    /// All there, and all current.
    Healthy,
    /// All there, and Pods have to be evicted still.
    Evicting,
    /// All there as far as its controller says, and Pods are out of date.
    StillOutdated,
    /// Somebody put back what our patch had changed.
    Reverted,
    /// A Pod came up without a proxy.
    Uninjected(Arc<str>),
    /// The configuration was taken back, and its template has to be.
    ToBeReverted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    pub message: String,
    pub started: Option<Timestamp>,
}

/// Why a workload is left alone that is out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Skip {
    Paused,
    OnDelete,
    Partition,
    NoController,
    Job,
    UnknownOwner,
    BlockedByPDB,
    Reverted,
    TooManyAttempts,
    NamespaceBreaksInjection,
    InjectionDisabled,
    Deleting,
}

pub fn assess(facts: &Facts<'_>, goal: &Goal) -> Assessment {
    let of_namespace = facts.namespace.map_or(Inject::Absent, |namespace| namespace.inject);
    let census = Census::of(facts.pods, of_namespace, goal);
    let standing = match facts.namespace {
        Some(namespace) => standing(facts, namespace, &census, goal),
        // Not heard of yet.
        None => Standing::Unmeshed,
    };
    let rolling = facts.resource.and_then(rolling);
    Assessment { pods: census.counts, suspects: census.suspects, standing, rolling }
}

fn rolling(resource: &AppsWorkload) -> Option<Timestamp> {
    let annotated = Annotated::of(resource);
    let is_moving = matches!(annotated.state, Some(RolloutState::Updating | RolloutState::Retrying));
    (is_moving && !is_complete(resource)).then(|| annotated.started.unwrap_or(Timestamp::MIN))
}

fn standing(facts: &Facts<'_>, namespace: &Namespace, census: &Census<'_>, goal: &Goal) -> Standing {
    let Facts { workload, resource, pods, .. } = *facts;
    let candidate = |labels, template, is_of_kind| Candidate {
        labels,
        template,
        is_of_kind,
        namespace,
        control_plane: &goal.target.namespace,
    };
    let is_meshed = census.counts.meshed > 0;
    let candidate = match (resource, pods.first()) {
        (Some(resource), _) => {
            let is_of_kind = goal.rollout().kinds.iter().any(|kind| kind.as_str() == resource.kind.as_str());
            candidate(&resource.labels, resource.template.reconcile.as_deref(), is_of_kind)
        }
        (None, Some(pod)) => candidate(&pod.labels, None, true),
        (None, None) => return Standing::Unmeshed,
    };
    match (selection(&candidate, &goal.scope), resource) {
        (_, None) if !is_meshed || WorkloadKind::ALL.iter().any(|kind| kind.as_str() == &*workload.kind) => {
            Standing::Unmeshed
        }
        (Selection::Not(reason), _) if is_meshed => Standing::Unselected(reason),
        (Selection::Observed, _) if is_meshed => Standing::Observed,
        (Selection::Not(_) | Selection::Observed, _) => Standing::Unmeshed,
        (Selection::Selected, Some(resource)) => of_selected(facts, resource, namespace, census, goal),
        (Selection::Selected, None) if census.outdated.is_empty() => Standing::Unmeshed,
        (Selection::Selected, None) => Standing::Untouchable(match &*workload.kind {
            // Static Pods are owned by their node.
            "Pod" | "Node" => Skip::NoController,
            "Job" | "CronJob" => Skip::Job,
            _ => Skip::UnknownOwner,
        }),
    }
}

fn of_selected(
    facts: &Facts<'_>,
    resource: &AppsWorkload,
    namespace: &Namespace,
    census: &Census<'_>,
    goal: &Goal,
) -> Standing {
    let annotated = Annotated::of(resource);
    let attempt = goal.key.attempt(annotated.hash);
    let outdated = reachable(resource, census);
    let is_complete = is_complete(resource);
    let is_moving = matches!(annotated.state, Some(RolloutState::Updating | RolloutState::Retrying));
    let is_in_template = resource.template.restarted_for.as_deref() == Some(annotated.hash);
    if goal.rolled_back.as_ref().is_some_and(|key| key.begins(annotated.hash)) && annotated.previous.is_some() {
        let flight = |health| flight(&annotated, goal, 0, health);
        match annotated.state {
            Some(RolloutState::Updating | RolloutState::Retrying | RolloutState::Failed) if is_in_template => {
                return Standing::InFlight(flight(Health::ToBeReverted));
            }
            Some(RolloutState::RolledBack) if !is_complete => {
                // Its controller waits for ever for a Pod of it that does not become ready:
                // https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
                let stuck = outdated.last().filter(|_| resource.kind == WorkloadKind::StatefulSet);
                let evict = stuck.map(|pod| Arc::clone(&pod.key.name));
                return Standing::InFlight(Flight { evict, ..flight(Health::Progressing(missing(resource))) });
            }
            _ => {}
        }
    }
    if is_moving && attempt > 0 {
        let is_restart = annotated.previous.is_some();
        if is_restart && !is_in_template && annotated.state == Some(RolloutState::Retrying) {
            return if census.outdated.is_empty() { Standing::UpToDate } else { Standing::Skipped(Skip::Reverted) };
        }
        let began = annotated.started.unwrap_or(Timestamp::MIN);
        let is_new = |pod: &&&Arc<Pod>| is_complete || pod.created.is_some_and(|created| created >= began);
        let health = if let Some(pod) = census.uninjected.iter().find(is_new) {
            Health::Uninjected(Arc::clone(&pod.key.name))
        } else if is_restart && !is_in_template {
            Health::Reverted
        } else if !is_complete || census.live != resource.progress.wanted {
            Health::Progressing(missing(resource))
        } else if outdated.is_empty() {
            Health::Healthy
        } else if is_restart {
            Health::StillOutdated
        } else {
            Health::Evicting
        };
        let mut flight = flight(&annotated, goal, attempt, health);
        if !is_restart {
            flight.since = facts.pods.iter().filter_map(|pod| pod.created).chain(flight.since).max();
            flight.evict = outdated.last().map(|pod| Arc::clone(&pod.key.name));
        }
        return Standing::InFlight(flight);
    }
    if annotated.state == Some(RolloutState::Failed) && attempt > 0 {
        let (reason, message) = annotated.message.split_once(": ").unwrap_or(("Failed", annotated.message));
        let (reason, message) = (reason.to_owned(), message.to_owned());
        return Standing::Failed(Failure { reason, message, started: annotated.started });
    }
    // Our restart cost it its proxies: it is not rid of us before it has them again.
    let has_failed = is_moving || annotated.state == Some(RolloutState::Failed);
    let is_to_be_mended = has_failed && !census.uninjected.is_empty();
    if census.counts.meshed == 0 && !is_to_be_mended {
        return Standing::Unmeshed;
    }
    if census.outdated.is_empty() && !is_to_be_mended {
        return Standing::UpToDate;
    }
    let method = method(resource, goal);
    let is_out_of_reach = outdated.is_empty() && !is_to_be_mended;
    if let Some(skip) = skip(facts, resource, namespace, method, is_out_of_reach) {
        return Standing::Skipped(skip);
    }
    let attempt = attempt.max(goal.key.attempt(resource.template.restarted_for.as_deref().unwrap_or_default()));
    if attempt >= ATTEMPTS {
        return Standing::Skipped(Skip::TooManyAttempts);
    }
    if facts.is_blocked && goal.rollout().respect_pdb {
        return Standing::Skipped(Skip::BlockedByPDB);
    }
    Standing::Pending(Start { value: goal.key.value(attempt + 1), method, for_trust_roots: census.other_trust_roots })
}

fn flight(annotated: &Annotated<'_>, goal: &Goal, attempt: u32, health: Health) -> Flight {
    Flight {
        state: annotated.state.unwrap_or(RolloutState::Updating),
        since: annotated.started,
        health,
        evict: None,
        retry: goal.key.value(attempt + 1),
    }
}

/// Those that a restart would replace: the last one first evicted, as StatefulSets do.
fn reachable<'a>(resource: &AppsWorkload, census: &Census<'a>) -> Vec<&'a Arc<Pod>> {
    let mut pods = census.outdated.clone();
    if let UpdateStrategy::Partition(partition) = resource.update {
        let ordinal = |pod: &Pod| pod.key.name.rsplit_once('-')?.1.parse::<i32>().ok();
        pods.retain(|pod| ordinal(pod).is_none_or(|ordinal| ordinal >= partition));
    }
    pods.sort_by_key(|pod| (pod.key.name.len(), Arc::clone(&pod.key.name)));
    pods
}

fn method(resource: &AppsWorkload, goal: &Goal) -> RolloutMethod {
    match resource.annotations.get(METHOD_ANNOTATION).map(|value| &**value) {
        Some("restart") => RolloutMethod::Restart,
        Some("evict") => RolloutMethod::Evict,
        _ => goal.rollout().method,
    }
}

fn skip(
    facts: &Facts<'_>,
    resource: &AppsWorkload,
    namespace: &Namespace,
    method: RolloutMethod,
    is_out_of_reach: bool,
) -> Option<Skip> {
    let wants_a_proxy = resource.template.inject.or(namespace.inject) == Inject::Enabled;
    // A webhook of somebody else may ask for it, Pod by Pod.
    let asked_for = facts.pods.iter().any(|pod| pod.inject == Inject::Enabled);
    let by_template = method == RolloutMethod::Restart;
    [
        (resource.deleting || namespace.deleting, Skip::Deleting),
        (breaking_annotation(namespace).is_some(), Skip::NamespaceBreaksInjection),
        (!wants_a_proxy && (!asked_for || resource.template.inject != Inject::Absent), Skip::InjectionDisabled),
        (resource.paused && by_template, Skip::Paused),
        (resource.update == UpdateStrategy::OnDelete && by_template, Skip::OnDelete),
        (is_out_of_reach, Skip::Partition),
    ]
    .into_iter()
    .find_map(|(is_so, skip)| is_so.then_some(skip))
}

/// Whether its controller has done all that it was asked for.
fn is_complete(resource: &AppsWorkload) -> bool {
    let Progress { observed, wanted, total, updated, available, .. } = resource.progress;
    let to_update = match resource.update {
        UpdateStrategy::Rolling | UpdateStrategy::Recreate => wanted,
        UpdateStrategy::Partition(partition) => wanted - i64::from(partition),
        // Its controller leaves that to who deletes Pods.
        UpdateStrategy::OnDelete => 0,
    };
    observed && total == wanted && available == wanted && updated >= to_update
}

/// In a sentence.
fn missing(resource: &AppsWorkload) -> String {
    let Progress { observed, wanted, updated, available, .. } = resource.progress;
    if !observed {
        return "its controller has not looked at it yet".to_owned();
    }
    let so_far = format!("{updated} of {wanted} Pods are updated, {available} are available");
    match &resource.failure {
        Some(failure) => format!("{so_far}: {failure}"),
        None => so_far,
    }
}

// === impl Skip ===

impl Skip {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "Paused",
            Self::OnDelete => "OnDelete",
            Self::Partition => "Partition",
            Self::NoController => "NoController",
            Self::Job => "Job",
            Self::UnknownOwner => "UnknownOwner",
            Self::BlockedByPDB => "BlockedByPDB",
            Self::Reverted => "Reverted",
            Self::TooManyAttempts => "TooManyAttempts",
            Self::NamespaceBreaksInjection => "NamespaceBreaksInjection",
            Self::InjectionDisabled => "InjectionDisabled",
            Self::Deleting => "Deleting",
        }
    }

    /// For a person: why, and what to do.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Paused => "the Deployment is paused: resume it",
            Self::OnDelete => {
                "its update strategy is OnDelete: delete its Pods, or annotate it with config.linkerd.io/rollout-method: evict"
            }
            Self::Partition => "all that are out of date are below its partition",
            Self::NoController => "nothing would make these Pods anew: delete them yourself",
            Self::Job => "a restart would lose its work: the next run has the new configuration",
            Self::UnknownOwner => "nothing is known of how its owner restarts it: restart it there",
            Self::BlockedByPDB => "a PodDisruptionBudget over its Pods allows no disruption",
            Self::Reverted => "somebody undoes the restart: annotate it with config.linkerd.io/rollout-method: evict",
            Self::TooManyAttempts => "its Pods are out of date again after each restart: see what makes them",
            Self::NamespaceBreaksInjection => "an annotation of its namespace keeps the injector from working",
            Self::InjectionDisabled => "its template asks for no proxy: a restart would take it out of the mesh",
            Self::Deleting => "it is being deleted",
        }
    }
}

#[cfg(test)]
#[path = "assess_tests.rs"]
mod tests;
