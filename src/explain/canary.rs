//! The canary of a resource: the namespaces that get the declared configuration first, and how to promote it. Pure.
//!
//! In: the resource with its status, and the plan that holds the declared document back. Out: the JSON, and lines of
//! the text. Always holds: the phase is the one in the status, which the operator wrote; no decision about the canary
//! is made here.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{LabelSelector, Time},
    jiff::SignedDuration,
};
use serde::Serialize;

use super::{output::PodChange, print::changes_text};
use crate::{
    api::linkerd_config::{CanaryPhase, CanaryPromotion, CanarySpec, CanaryStatus},
    cluster::kinds::linkerd_config::LinkerdConfig,
    linkerd_config::{kept_canary, plan::ConfigPlan},
    values::Document,
};

/// The number of namespaces from which the status may leave some out.
const MAX_LISTED: usize = 10;

/// A declared configuration that only the canary namespaces get.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CanaryOutput {
    /// Absent if the operator has not begun to try the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<CanaryPhase>,
    /// Whether the canary namespaces have the configuration now.
    pub active: bool,
    /// The injection hash of the configuration.
    pub hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The message of the phase.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The first canary namespaces by name; empty before the canary begins.
    pub namespaces: Vec<String>,
    pub namespace_selector: LabelSelector,
    pub soak: String,
    /// The end of the soak, while it takes place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soaks_until: Option<Time>,
    pub promotion: CanaryPromotion,
    /// Whether the annotation that promotes the configuration is ignored, because it is from before the canary.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub promote_ignored: bool,
    /// The command that promotes the configuration, or that removes the ignored annotation; absent if nothing promotes
    /// it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promote_command: Option<String>,
    /// The changes that only Pods of the canary namespaces get so far.
    pub changes: Vec<PodChange>,
}

// === impl CanaryOutput ===

impl CanaryOutput {
    /// Returns the canary of a plan that holds the declared document back; `None` for any other plan.
    pub fn new(config: &LinkerdConfig, plan: &ConfigPlan) -> Option<Self> {
        let (spec, document) = (config.spec.canary.as_ref()?, plan.canary.as_ref()?);
        let known = known(config, &document.hash);
        let phase = known.as_ref().map(|known| known.phase);
        let since = known.as_ref().and_then(|known| known.since.clone());
        let in_force = plan.effective.clone().unwrap_or_default();
        let declared = Document::parse(&document.values).unwrap_or_default();
        let is_promotable = phase.is_some_and(|phase| !matches!(phase, CanaryPhase::Failed | CanaryPhase::Promoted));
        let hash = &document.hash;
        let is_ignored = known.as_ref().is_some_and(|known| known.promote_ignored == Some(true));
        Some(Self {
            phase,
            active: phase.is_some_and(CanaryPhase::is_active),
            hash: hash.clone(),
            soaks_until: since.as_ref().filter(|_| phase == Some(CanaryPhase::Soaking)).and_then(|it| ends(it, spec)),
            since,
            message: known.as_ref().map(|known| known.message.clone()).unwrap_or_default(),
            namespaces: known.map(|known| known.namespaces).unwrap_or_default(),
            namespace_selector: spec.namespace_selector.clone(),
            soak: spec.soak.clone(),
            promotion: spec.promotion,
            promote_ignored: is_ignored,
            promote_command: is_promotable.then(|| promote_command(&config.name)),
            changes: PodChange::between(&in_force, &declared),
        })
    }

    /// Returns the lines of the text, each with its name.
    pub fn lines(&self) -> [(&'static str, String); 3] {
        [("Canary", self.state()), ("Canary Pods", self.pods()), ("Promotion", self.promoted())]
    }

    fn state(&self) -> String {
        let Some(phase) = self.phase else {
            let labels = selector_text(&self.namespace_selector);
            return format!("not begun: the configuration would be tried first in namespaces with the labels {labels}");
        };
        let since = self.since.as_ref().map(|since| format!(" since {}", since.0)).unwrap_or_default();
        format!("{phase:?}{since}: {}", self.message)
    }

    fn pods(&self) -> String {
        let changes = changes_text(&self.changes);
        match self.phase {
            None => format!("their new Pods would get: {changes}; all other namespaces would keep the values in LIVE"),
            Some(_) if self.active => {
                let more = if self.namespaces.len() < MAX_LISTED { "" } else { ", and perhaps more" };
                let namespaces = self.namespaces.join(", ");
                format!(
                    "only new Pods in {namespaces}{more} get: {changes}; all other namespaces have the values in LIVE"
                )
            }
            Some(_) => "no namespace has the configuration; all have the values in LIVE".to_owned(),
        }
    }

    fn promoted(&self) -> String {
        let Self { phase, promotion, soak, .. } = self;
        let after = match (phase, &self.soaks_until) {
            (Some(CanaryPhase::Promoted), _) => return "done: the operator writes it for all namespaces".to_owned(),
            (Some(CanaryPhase::Failed), _) => return "none, unless the configuration is retried".to_owned(),
            (Some(CanaryPhase::AwaitingPromotion), _) if *promotion == CanaryPromotion::Automatic => {
                "automatic, once spec.rollout.paused is false".to_owned()
            }
            (Some(CanaryPhase::AwaitingPromotion), _) => "by hand".to_owned(),
            (_, Some(end)) => match promotion {
                CanaryPromotion::Automatic => format!("automatic, not before {}", end.0),
                CanaryPromotion::Manual => format!("by hand; the soak ends at {}", end.0),
            },
            _ => {
                let how = match promotion {
                    CanaryPromotion::Automatic => "automatic, once",
                    CanaryPromotion::Manual => "by hand, after",
                };
                format!("{how} every selected workload of the canary namespaces has run with it for {soak}")
            }
        };
        match &self.promote_command {
            Some(command) if self.promote_ignored => {
                format!("{after}; the annotation is from before the canary and is ignored; at once with: {command}")
            }
            Some(command) => format!("{after}; at once with: {command}"),
            None => after,
        }
    }
}

fn promote_command(name: &str) -> String {
    format!("linkerd-operator rollout promote {name}")
}

/// Returns the status of the canary if it is about this document, and if the operator does not begin again.
pub(super) fn known(config: &LinkerdConfig, hash: &str) -> Option<CanaryStatus> {
    kept_canary(config, &config.status).filter(|known| known.hash == hash)
}

fn ends(since: &Time, spec: &CanarySpec) -> Option<Time> {
    since.0.checked_add(SignedDuration::try_from(spec.soak()).ok()?).ok().map(Time)
}

/// Returns the selector as kubectl accepts it.
fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|requirement| {
        let key = &requirement.key;
        let values = requirement.values.iter().flatten().cloned().collect::<Vec<_>>().join(",");
        match &*requirement.operator {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    equal.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
#[path = "canary_tests.rs"]
mod tests;
