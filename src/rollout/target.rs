//! The target of a rollout: the configuration that proxies have to run with, and the policy of their restarts. Pure.
//!
//! In: what the controller derives from a LinkerdConfig in effect. Out: a [`RolloutTarget`], which the engine rolls
//! out. Always holds: the engine sees no status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    assess::selection::{LabelFilter, SelectionPolicy},
    gate::Gates,
    key::RolloutKey,
    trust::DesiredTrust,
};
use crate::{
    api::{
        KUBE_SYSTEM, NamespacedName,
        linkerd_config::{ProxyShapeStatus, RolloutSpec, RolloutTrigger, WindowSpec},
    },
    cluster::kinds::{linkerd_config::LinkerdConfig, namespace::Namespace},
};

/// While proxies trust a distrusted anchor, this part of the workloads may restart at the same time.
const URGENT: usize = 4;

/// The configuration that is rolled out, and the policy of the rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutTarget {
    pub config: ConfigReference,
    /// The leadership term in which the target was derived; the engine acts in no other term.
    pub term: u64,
    pub key: RolloutKey,
    /// The key that was rolled back, as [`RolloutKey::of`] returns it without a retry.
    pub rolled_back: Option<RolloutKey>,
    /// `spec.rollout`.
    pub rollout: RolloutSpec,
    pub selection: SelectionPolicy,
    pub proxies: DesiredProxies,
    pub gates: Gates,
    /// The target of the workloads in canary namespaces, instead of this one.
    pub canary: Option<Box<CanaryTarget>>,
}

/// The configuration of canary namespaces.
#[derive(Clone, Debug, PartialEq)]
pub struct CanaryTarget {
    pub namespaces: LabelFilter,
    pub target: RolloutTarget,
}

/// A configuration that is active for canary namespaces.
#[derive(Clone, Debug, PartialEq)]
pub struct ActiveCanary {
    pub namespaces: LabelFilter,
    pub injection_hash: Arc<str>,
    pub proxy_version: Option<Arc<str>>,
    pub shape: Option<ProxyShapeStatus>,
}

/// The LinkerdConfig that is rolled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigReference {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// The ConfigMap that it configures, in the namespace of the control plane.
    pub config_map: NamespacedName,
}

/// The values that the proxy of a Pod is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredProxies {
    /// The injection hash that Pods must have; `None` if injectors do not set one.
    pub injection_hash: Option<Arc<str>>,
    pub proxy_version: Option<Arc<str>>,
    /// The shape without annotations of Pods and namespaces; `None` if the document is unknown.
    pub shape: Option<ProxyShapeStatus>,
    pub trust: DesiredTrust,
    pub baseline: Option<Baseline>,
    /// When injectors may have used a document that other writers changed.
    pub drift: Vec<TimeRange>,
}

/// The injection hashes that are assumed for Pods without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The hash of the document before the first write, for Pods from before the adoption.
    pub hash: Arc<str>,
    /// The hash of the installer's present document, for later Pods: the installer wrote it over ours.
    pub installed: Option<Arc<str>>,
    /// The time since which every injected Pod has a hash; `None` before.
    pub adopted: Option<Timestamp>,
}

/// A range of time that includes both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    pub from: Timestamp,
    /// `None` while the range is open.
    pub to: Option<Timestamp>,
}

// === impl RolloutTarget ===

impl RolloutTarget {
    /// Returns the target of canary namespaces. `retry` is the value of the retry annotation.
    pub fn for_canary(&self, canary: &ActiveCanary, retry: Option<&str>) -> CanaryTarget {
        let target = Self {
            key: RolloutKey::of(&canary.injection_hash, self.proxies.trust.key(), retry),
            proxies: DesiredProxies {
                injection_hash: Some(Arc::clone(&canary.injection_hash)),
                proxy_version: canary.proxy_version.clone(),
                shape: canary.shape,
                ..self.proxies.clone()
            },
            // The gates are those of the whole target.
            gates: Gates::default(),
            ..self.clone()
        };
        CanaryTarget { namespaces: canary.namespaces.clone(), target }
    }

    /// Returns the target for the workloads of a namespace.
    pub fn of_namespace(&self, namespace: &Namespace) -> &Self {
        let is_included = |canary: &&CanaryTarget| {
            ![KUBE_SYSTEM, &self.config.config_map.namespace].contains(&&*namespace.name)
                && canary.namespaces.selects(&namespace.labels)
        };
        self.canary.as_deref().filter(is_included).map_or(self, |canary| &canary.target)
    }

    /// Whether every workload has the same assessment with both targets: only the gates may differ.
    pub fn assesses_like(&self, other: &Self) -> bool {
        *self == Self { gates: self.gates.clone(), ..other.clone() }
    }

    /// Returns the number of workloads that may restart at the same time.
    pub fn max_concurrent(&self, selected: usize) -> usize {
        let usual = self.rollout.max_concurrent(selected);
        if self.proxies.trust.is_urgent() { usual.max(selected.div_ceil(URGENT)) } else { usual }
    }

    pub fn max_concurrent_per_namespace(&self, selected: usize) -> usize {
        let usual = self.rollout.max_concurrent_per_namespace();
        if self.proxies.trust.is_urgent() { usual.max(self.max_concurrent(selected)) } else { usual }
    }

    /// Returns the time between the beginnings of two restarts.
    pub fn interval(&self) -> Duration {
        if self.proxies.trust.is_urgent() { Duration::ZERO } else { self.rollout.interval() }
    }

    /// Returns when restarts may begin.
    pub fn window(&self) -> Option<&WindowSpec> {
        self.rollout.window.as_ref().filter(|_| !self.proxies.trust.is_urgent())
    }

    pub fn is_trigger(&self, trigger: RolloutTrigger) -> bool {
        self.rollout.triggers.contains(&trigger)
    }
}

// === impl ConfigReference ===

impl ConfigReference {
    pub fn of(config: &LinkerdConfig) -> Self {
        let LinkerdConfig { name, uid, target, .. } = config;
        Self { name: Arc::clone(name), uid: Arc::clone(uid), config_map: target.clone() }
    }
}

// === impl DesiredProxies ===

impl DesiredProxies {
    /// Returns the end of the last drift, rounded up to the next second: a Pod that was created in the second in which
    /// the drift ended is suspect as well.
    pub fn drift_ends(&self) -> Option<Timestamp> {
        let ends = self.drift.iter().filter_map(|range| range.to).max()?;
        Timestamp::from_second(ends.as_second() + 1).ok()
    }

    /// Whether a Pod with this creation time may have been injected with a document that other writers changed.
    pub fn is_in_drift(&self, created: Timestamp) -> bool {
        // Creation times are whole seconds, and so is the start of a drift.
        self.drift.iter().any(|range| range.from <= created && range.to.is_none_or(|to| created <= to))
    }
}
