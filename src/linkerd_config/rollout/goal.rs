//! What every proxy shall run, and how workloads are brought there. Pure.
//!
//! In: what the controller knows of the LinkerdConfig in effect. Out: a [`Goal`]. Always holds: two goals with one
//! [`RolloutKey`] want the same of every Pod, so a workload that was restarted for it is not restarted for it again.

use std::{fmt, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::verdict::DISABLED;
use crate::{
    api::{
        INJECTORS_CONFIG_MAP, LinkerdConfigSpec, LinkerdConfigStatus, NamespacedName,
        linkerd_config::{DriftWindow, Mode, OnTimeout, OptIn, RolloutPolicy, RolloutSpec, RolloutTrigger},
    },
    cluster::{
        index::{label_selector::LabelSelector, selector::Labels},
        kinds::linkerd_config::LinkerdConfig,
    },
    linkerd_config::sha256,
};

/// On a LinkerdConfig: another value has what failed tried once more.
pub const RETRY_ANNOTATION: &str = "config.linkerd.io/retry";
/// On a LinkerdConfig: the hash of a bundle that shares no trust anchor with the one before it.
pub const APPROVE_ANNOTATION: &str = "config.linkerd.io/approve-trust-roots";

/// Of a hash, in a key.
const SHOWN: usize = 8;

/// What workloads are restarted for, as their templates say it: the injection hash, a part of the trust anchors' hash, and, where
/// a person asked for another try, a part of that one's hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutKey(Arc<str>);

#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The LinkerdConfig.
    pub config: Arc<str>,
    pub uid: Arc<str>,
    /// Its ConfigMap; its namespace is the control plane's.
    pub target: NamespacedName,
    /// The term of leadership in which this was decided; it means nothing in another.
    pub term: u64,
    pub spec: Arc<LinkerdConfigSpec>,
    pub key: RolloutKey,
    /// The injection hash that Pods have to have; `None` where injectors are given none.
    pub marker: Option<Arc<str>>,
    pub proxy_version: Option<Arc<str>>,
    /// SHA-256 of the bundle of trust anchors, in hexadecimal.
    pub trust_roots: Option<Arc<str>>,
    /// When the bundle was written.
    pub roots_written: Option<Timestamp>,
    pub baseline: Option<Baseline>,
    pub drift: Vec<Span>,
    pub scope: Scope,
    /// Why nothing may begin, as far as the controller knows.
    pub closed: Option<Gate>,
    /// The key that was taken back, as [`RolloutKey::of`] makes it without a try.
    pub rolled_back: Option<RolloutKey>,
}

/// What decides beside a resource and its status.
#[derive(Clone, Debug)]
pub struct Around {
    /// Of leadership.
    pub term: u64,
    pub operator_namespace: Arc<str>,
    /// When the bundle of trust anchors was written.
    pub roots_written: Option<Timestamp>,
}

/// What Pods without a marker are taken to run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    pub hash: Arc<str>,
    /// Since when every injected Pod has a marker; `None` while that is not so.
    pub adopted: Option<Timestamp>,
}

/// When injectors may have used what others wrote. Both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: Timestamp,
    /// `None` while it lasts.
    pub to: Option<Timestamp>,
}

/// Something that has to come before any restart: the reason of the condition RolloutComplete, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub reason: &'static str,
    pub message: String,
}

/// Which workloads are meant.
#[derive(Clone, Debug, PartialEq)]
pub struct Scope {
    pub namespaces: Selector,
    pub workloads: Selector,
    pub opt_in: OptIn,
    pub operator_namespace: Arc<str>,
}

/// A selector of the resource, as far as it can be evaluated.
#[derive(Clone, Debug, PartialEq)]
pub enum Selector {
    All,
    Matching(LabelSelector),
    /// It makes no sense, and selects nothing.
    Nothing,
}

// === impl RolloutKey ===

impl RolloutKey {
    pub fn of(marker: &str, trust_roots: Option<&str>, retry: Option<&str>) -> Self {
        let roots = trust_roots.and_then(|hash| hash.get(..SHOWN)).unwrap_or("none");
        let retry = retry.map(|retry| format!("-r{}", short_hash(retry))).unwrap_or_default();
        Self(format!("{marker}-{roots}{retry}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As templates have it at the n-th attempt, from 1.
    pub fn value(&self, attempt: u32) -> String {
        if attempt <= 1 { self.0.to_string() } else { format!("{}.{attempt}", self.0) }
    }

    /// Which attempt for this key a value is; 0: one for another.
    pub fn attempt(&self, value: &str) -> u32 {
        match value.strip_prefix(&*self.0) {
            Some("") => 1,
            Some(rest) => rest.strip_prefix('.').and_then(|number| number.parse().ok()).unwrap_or_default(),
            None => 0,
        }
    }

    /// Whether it is this hash, whichever try of it.
    pub fn is_of(&self, hash: &str) -> bool {
        Self::from(hash).begins(&self.0)
    }

    /// Whether a value is one for this key, or for a later try of it.
    pub fn begins(&self, value: &str) -> bool {
        value.strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-']))
    }
}

impl fmt::Display for RolloutKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for RolloutKey {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// Annotations may say anything, and templates may not.
fn short_hash(text: &str) -> String {
    sha256(text).get(..SHOWN).unwrap_or_default().to_owned()
}

// === impl Goal ===

impl Goal {
    /// What a resource in effect wants, as its status says it.
    pub fn of(config: &LinkerdConfig, status: &LinkerdConfigStatus, around: &Around) -> Self {
        let rollout = status.rollout.clone().unwrap_or_default();
        let enforces = config.spec.mode == Mode::Enforce;
        let marker = status.injection_hash.as_deref().filter(|_| enforces);
        let trust_roots = status.trust_roots_sha256.as_deref();
        let retry = config.annotations.get(RETRY_ANNOTATION).map(|retry| &**retry);
        let adopted = rollout.adopted_at.map(|time| time.0);
        let windows = status.drift.iter().flat_map(|drift| &drift.windows);
        let span = |window: &DriftWindow| {
            let from = window.from.as_ref()?.0;
            Some(Span { from, to: window.to.as_ref().map(|to| to.0) })
        };
        let spec = &config.spec.rollout;
        Self {
            config: Arc::clone(&config.name),
            uid: Arc::clone(&config.uid),
            target: config.target.clone(),
            term: around.term,
            key: RolloutKey::of(marker.unwrap_or("none"), trust_roots, retry),
            marker: marker.map(Arc::from),
            // Of what is declared, which is not what is there.
            proxy_version: status.proxy_version.as_deref().filter(|_| rollout.rolled_back.is_none()).map(Arc::from),
            trust_roots: trust_roots.map(Arc::from),
            roots_written: around.roots_written,
            baseline: rollout.baseline_hash.map(|hash| Baseline { hash: hash.into(), adopted }),
            drift: windows.filter_map(span).collect(),
            scope: Scope {
                namespaces: Selector::of(spec.namespace_selector.as_ref()),
                workloads: Selector::of(spec.workload_selector.as_ref()),
                opt_in: spec.opt_in,
                operator_namespace: Arc::clone(&around.operator_namespace),
            },
            closed: closed(config, status),
            rolled_back: rollout.rolled_back.as_deref().map(RolloutKey::from),
            spec: Arc::clone(&config.spec),
        }
    }

    /// Whether workloads stand the same with both.
    pub fn judges_like(&self, other: &Self) -> bool {
        let but = |goal: &Self| Self { closed: None, roots_written: None, ..goal.clone() };
        but(self) == but(other)
    }

    pub fn rollout(&self) -> &RolloutSpec {
        &self.spec.rollout
    }

    pub fn is_trigger(&self, trigger: RolloutTrigger) -> bool {
        self.rollout().triggers.contains(&trigger)
    }

    /// When the last drift is over as far as Pods show it: one that is born in the second in which it ended is suspect, too.
    pub fn drift_ends(&self) -> Option<Timestamp> {
        let ends = self.drift.iter().filter_map(|span| span.to).max()?;
        Timestamp::from_second(ends.as_second() + 1).ok()
    }

    /// Whether a Pod that was created then may have been injected with what others wrote.
    pub fn is_in_drift(&self, created: Timestamp) -> bool {
        // Creation is told in whole seconds, and so is the beginning.
        self.drift.iter().any(|span| span.from <= created && span.to.is_none_or(|to| created <= to))
    }
}

/// Why nothing may begin.
fn closed(config: &LinkerdConfig, status: &LinkerdConfigStatus) -> Option<Gate> {
    let gate = |reason, message: String| Some(Gate { reason, message });
    let condition = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
    if config.spec.mode != Mode::Enforce {
        return gate(DISABLED, format!("mode is {:?}", config.spec.mode));
    }
    if config.spec.rollout.policy == RolloutPolicy::Off {
        return gate(DISABLED, "spec.rollout.policy is Off".to_owned());
    }
    if *config.target.name != *INJECTORS_CONFIG_MAP {
        return gate(DISABLED, "no injector reads this ConfigMap".to_owned());
    }
    if condition("ConfigMapSynced").is_none_or(|synced| synced.status != "True") {
        return gate("WaitingForConfigMap", "the ConfigMap does not hold what is declared".to_owned());
    }
    let rolled_back = status.rollout.as_ref().and_then(|rollout| rollout.rolled_back.as_deref());
    let marker = status.injection_hash.as_deref().unwrap_or_default();
    if rolled_back.is_some_and(|key| *key == *RolloutKey::of(marker, status.trust_roots_sha256.as_deref(), None).0) {
        return gate("WaitingForConfigMap", "the configuration is being taken back".to_owned());
    }
    let approved = config.annotations.get(APPROVE_ANNOTATION).map(|hash| &**hash);
    let replaced = status.trust_anchors.as_ref().and_then(|anchors| anchors.replaced.as_deref());
    if let Some(replaced) = replaced.filter(|replaced| approved != Some(replaced)) {
        let message = format!(
            "none of the trust anchors that were there is left, so restarted proxies could not talk to the others; to go on, annotate \
             the resource with {APPROVE_ANNOTATION}: {replaced}"
        );
        return gate("AwaitingApproval", message);
    }
    let synced = condition("InjectorSynced");
    let proceeds = config.spec.injector_sync.on_timeout == OnTimeout::Proceed;
    let is_open = |synced: &&Condition| synced.status != "False" || synced.reason == "Timeout" && proceeds;
    match synced.filter(is_open) {
        Some(_) => None,
        None => {
            let message = synced.map_or("nothing is known of the injectors", |synced| &synced.message);
            gate("WaitingForInjector", message.to_owned())
        }
    }
}

// === impl Selector ===

impl Selector {
    pub fn of<S: serde::Serialize>(selector: Option<&S>) -> Self {
        let Some(selector) = selector else { return Self::All };
        let object = serde_json::to_value(selector).and_then(serde_json::from_value);
        match object.map(LabelSelector::parse) {
            Ok(Ok(selector)) => Self::Matching(selector),
            _ => Self::Nothing,
        }
    }

    pub fn selects(&self, labels: &Labels) -> bool {
        match self {
            Self::All => true,
            Self::Matching(selector) => selector.matches(labels),
            Self::Nothing => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_of_its_values_which_attempt_they_are() {
        let key = RolloutKey::of("0123456789abcdef", Some(&"a".repeat(64)), None);
        assert_eq!(key.as_str(), "0123456789abcdef-aaaaaaaa");
        for attempt in [1, 2, 17] {
            assert_eq!(key.attempt(&key.value(attempt)), attempt);
        }
        let again = RolloutKey::of("0123456789abcdef", Some(&"a".repeat(64)), Some("monday"));
        for other in ["", "0123456789abcdef-aaaaaaab", "0123456789abcdef-aaaaaaaa.x", again.as_str()] {
            assert_eq!(key.attempt(other), 0, "{other}");
        }
        assert!(key.begins(&again.value(2)) && key.begins(&key.value(3)) && !again.begins(key.as_str()));
        assert_eq!(RolloutKey::of("m", None, None).as_str(), "m-none");
    }
}
