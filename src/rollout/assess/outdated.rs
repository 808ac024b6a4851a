//! Decides whether a running Pod is out of date. Pure.
//!
//! In: a Pod, the [`InjectionContext`] of its workload, the [`RolloutTarget`]. Out: its [`PodClass`], or `None` for a
//! Pod that is not part of the mesh. Always holds: only the injected values of a Pod and its creation time make it out
//! of date; a Pod that lacks this information is not out of date.
//!
//! A proxy reads its configuration only when it starts. Its variable `LINKERD_CONFIG_HASH` has the injection hash of
//! that configuration, which is called the marker. A marker is only as reliable as the document that it was in. So a
//! Pod that was created while the document had changes by other writers is out of date with any marker. Pods without a
//! marker are assumed to run with the document before the operator's first write, and later Pods with the installer's
//! present document.

use super::coverage::{InjectionContext, lacks_proxy, other_shape};
use crate::{
    api::linkerd_config::RolloutTrigger,
    cluster::kinds::pod::{Pod, PodPhase},
    rollout::target::RolloutTarget,
    values::Hash,
};

/// How a Pod compares with the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodClass {
    Current,
    Outdated(OutdatedCauses),
    /// The Pod selects its own proxy version or image with an annotation; all other values are current.
    Pinned,
    /// The Pod does not show which configuration it runs with.
    Unknown,
    /// The Pod should have a proxy, and has none.
    Uninjected,
    /// The Pod has a proxy, and has succeeded or failed.
    Completed,
}

/// Why a Pod is out of date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutdatedCauses {
    pub configuration: bool,
    pub version: bool,
    pub trust_roots: bool,
    /// The proxy has another shape. Set only with the trigger for it: otherwise the Pod counts as up to date.
    pub shape: bool,
}

// === impl OutdatedCauses ===

impl OutdatedCauses {
    fn any(self) -> bool {
        self.configuration || self.version || self.trust_roots || self.shape
    }

    /// Whether the policy restarts workloads for any of these causes.
    pub fn trigger(self, target: &RolloutTarget) -> bool {
        self.shape || self.is_other_configuration(target)
    }

    /// Whether the policy restarts workloads for any of these causes but the shape of the proxy.
    pub fn is_other_configuration(self, target: &RolloutTarget) -> bool {
        self.configuration && target.is_trigger(RolloutTrigger::ProxyConfig)
            || self.version && target.is_trigger(RolloutTrigger::ProxyVersion)
            || self.trust_roots && target.is_trigger(RolloutTrigger::TrustRoots)
    }
}

/// Returns the class of a Pod.
pub fn classify(pod: &Pod, context: InjectionContext<'_>, target: &RolloutTarget) -> Option<PodClass> {
    if pod.is_control_plane() || pod.terminating {
        return None;
    }
    let desired = &target.proxies;
    let finished = pod.phase == PodPhase::Finished;
    let Some(injected) = &pod.injected else {
        return lacks_proxy(pod, context, target).then_some(PodClass::Uninjected);
    };
    if pod.control_plane_namespace() != Some(&*target.config.config_map.namespace) {
        return None;
    }
    if finished {
        return Some(PodClass::Completed);
    }
    let Some(created) = pod.created else { return Some(PodClass::Unknown) };
    let differs =
        |wanted: Option<&str>, is: Option<&str>| matches!((wanted, is), (Some(wanted), Some(is)) if wanted != is);
    let is_another_version = differs(desired.proxy_version.as_deref(), injected.proxy_version.as_deref());
    let mut causes = OutdatedCauses {
        trust_roots: desired.trust.differs_from(injected.trust_anchors.as_deref()),
        shape: target.is_trigger(RolloutTrigger::ProxyShape) && other_shape(injected, context, target).is_some(),
        ..OutdatedCauses::default()
    };
    let wanted = desired.injection_hash.as_deref();
    let is_another_document = match (wanted, injected.marker.as_deref()) {
        // Injectors set no marker: only the version and the trust anchors can be compared.
        (None, _) => false,
        (Some(wanted), Some(marker)) => wanted != marker,
        (Some(wanted), None) => match &desired.baseline {
            None => return Some(if causes.any() { PodClass::Outdated(causes) } else { PodClass::Unknown }),
            // The Pod was created after the adoption, with an installer's document. Creation times are whole seconds:
            // the same second is not later.
            Some(baseline) if baseline.adopted.is_some_and(|adopted| created > adopted) => {
                baseline.installed.as_deref() != Some(wanted)
            }
            Some(baseline) => {
                if !Hash::is_comparable(&baseline.hash, wanted) && baseline.installed.as_ref() != Some(&baseline.hash) {
                    // Another version of the operator computed the hash, of a document that is no longer saved.
                    return Some(if causes.any() { PodClass::Outdated(causes) } else { PodClass::Unknown });
                }
                *baseline.hash != *wanted
            }
        },
    };
    // A Pod with the marker has the declared version, even if another webhook rewrote its image.
    let has_marker = wanted.is_some() && wanted == injected.marker.as_deref();
    causes.version = is_another_version && !has_marker && !injected.pinned;
    causes.configuration = is_another_document && !causes.version || wanted.is_some() && desired.is_in_drift(created);
    Some(match causes.any() {
        true => PodClass::Outdated(causes),
        false if injected.pinned => PodClass::Pinned,
        false => PodClass::Current,
    })
}
