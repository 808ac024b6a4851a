//! Finds Pods that have no proxy, that wait for their network, or whose proxy has another shape than configured. Pure.
//!
//! In: a Pod, the [`InjectionContext`] of its workload, the [`RolloutTarget`]. Out: its [`CoverageGap`]s. Always holds:
//! a Pod that the injector skips for a reason that is known here has no gap; a Pod that waits for its network is only
//! reported, because a restart does not repair the network of its node; if the configured shape is unknown, the shape
//! of a proxy is never a gap.

use crate::{
    api::{CERT_MANAGER, KUBE_SYSTEM, linkerd_config::RolloutTrigger},
    cluster::kinds::{
        apps_workload::Template,
        inject::Inject,
        namespace::Namespace,
        pod::{Pod, PodPhase},
        proxy::Injected,
        sidecar::{InjectionBarrier, NativeSidecarOverrides, NetworkSetup, NetworkValidation},
    },
    rollout::target::RolloutTarget,
};

/// The objects that determine the proxies of a workload's new Pods, besides the configuration of the mesh.
#[derive(Clone, Copy, Default)]
pub struct InjectionContext<'a> {
    /// `None` if the watch has not delivered it yet.
    pub namespace: Option<&'a Namespace>,
    /// The Pod template; `None` unless the workload is a Deployment, a StatefulSet or a DaemonSet.
    pub template: Option<&'a Template>,
}

/// The reason why a Pod has no proxy that works as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverageGap {
    /// The Pod should have a proxy, and has none.
    Uninjected,
    /// Its init container `linkerd-network-validator` runs.
    NetworkValidatorRuns,
    /// Its init container `linkerd-network-validator` has failed.
    NetworkValidatorFails,
    /// Its proxy is a container, and a native sidecar is configured.
    NotNativeSidecar,
    /// Its proxy is a native sidecar, and a container is configured.
    NativeSidecar,
    /// `linkerd-init` set up its network, and a CNI plugin is configured.
    InitContainer,
    /// Its network is left to a CNI plugin, and `linkerd-init` is configured.
    CniPlugin,
}

/// Whether the Pod should have a proxy, has none, and no known reason of the injector to skip it applies.
pub(super) fn lacks_proxy(pod: &Pod, context: InjectionContext<'_>, target: &RolloutTarget) -> bool {
    let of_namespace = context.namespace.map_or(Inject::Absent, |namespace| namespace.inject);
    let projects_tokens = target.proxies.shape.is_none_or(|shape| shape.token_projection);
    let has_barrier = match pod.injection_barrier {
        InjectionBarrier::None => false,
        InjectionBarrier::Sidecar | InjectionBarrier::Windows => true,
        InjectionBarrier::NoToken => !projects_tokens,
    };
    // The annotations of a Pod can be changed at any time, so they prove nothing against its template.
    let of_template = context.template.map_or(pod.inject, |template| template.inject.or(pod.inject));
    pod.injected.is_none()
        && !pod.terminating
        && pod.phase != PodPhase::Finished
        && [pod.inject, of_template].iter().all(|inject| inject.requests_proxy(of_namespace))
        && !pod.host_network
        && !has_barrier
        && !pod.is_excluded_from_injection()
        && !context.namespace.is_some_and(is_exempt)
}

/// Returns how the proxy of a Pod differs from the one that a new Pod of the workload would have.
pub(super) fn other_shape(
    injected: &Injected,
    context: InjectionContext<'_>,
    target: &RolloutTarget,
) -> Option<CoverageGap> {
    let shape = target.proxies.shape?;
    let of_namespace = context.namespace.map_or_else(NativeSidecarOverrides::default, overrides);
    // The annotations of an injected Pod include copies of earlier annotations of its namespace, so its template comes
    // first.
    let own = context.template.map_or(injected.native_sidecar_overrides, |template| template.native_sidecar_overrides);
    let is_native = own.inheriting(of_namespace).resolve(shape.native_sidecar);
    match (injected.native_sidecar, injected.network) {
        (true, _) if !is_native => Some(CoverageGap::NativeSidecar),
        (false, _) if is_native => Some(CoverageGap::NotNativeSidecar),
        (_, NetworkSetup::InitContainer) if shape.cni_enabled => Some(CoverageGap::InitContainer),
        (_, NetworkSetup::CniPlugin) if !shape.cni_enabled => Some(CoverageGap::CniPlugin),
        _ => None,
    }
}

/// Returns the gap of a Pod that waits for its network.
pub(super) fn waits_for_network(pod: &Pod) -> Option<CoverageGap> {
    match pod.network_validation {
        NetworkValidation::Quiet => None,
        NetworkValidation::Running => Some(CoverageGap::NetworkValidatorRuns),
        NetworkValidation::Failing => Some(CoverageGap::NetworkValidatorFails),
    }
}

/// Returns the gaps of a Pod: at most two. `is_meshed` is whether it has a live proxy of this control plane.
pub fn gaps(
    pod: &Pod,
    is_meshed: bool,
    context: InjectionContext<'_>,
    target: &RolloutTarget,
) -> impl Iterator<Item = CoverageGap> {
    let injected = pod.injected.as_deref().filter(|_| is_meshed);
    let uninjected = lacks_proxy(pod, context, target).then_some(CoverageGap::Uninjected);
    let waiting = injected.and_then(|_| waits_for_network(pod));
    let shape = injected.and_then(|injected| other_shape(injected, context, target));
    [uninjected, waiting, shape].into_iter().flatten()
}

/// Whether Linkerd's webhook for injection excludes the namespace.
fn is_exempt(namespace: &Namespace) -> bool {
    namespace.admission_webhooks_disabled || [KUBE_SYSTEM, CERT_MANAGER].contains(&&*namespace.name)
}

fn overrides(namespace: &Namespace) -> NativeSidecarOverrides {
    NativeSidecarOverrides::of(|key| namespace.inherited_annotations.get(key).map(|value| &**value))
}

// === impl CoverageGap ===

impl CoverageGap {
    /// Returns the trigger that restarts workloads for the gap; `None` if no restart closes it.
    pub const fn trigger(self) -> Option<RolloutTrigger> {
        match self {
            Self::Uninjected => Some(RolloutTrigger::Uninjected),
            Self::NetworkValidatorRuns | Self::NetworkValidatorFails => None,
            Self::NotNativeSidecar | Self::NativeSidecar | Self::InitContainer | Self::CniPlugin => {
                Some(RolloutTrigger::ProxyShape)
            }
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uninjected => "Uninjected",
            Self::NetworkValidatorRuns | Self::NetworkValidatorFails => "WaitingForNetwork",
            Self::NotNativeSidecar | Self::NativeSidecar | Self::InitContainer | Self::CniPlugin => "ProxyShape",
        }
    }

    /// Returns the reason and what to do, for people.
    pub const fn why(self) -> &'static str {
        match self {
            Self::Uninjected => {
                "it requests a proxy and was created without one: the injector did not respond, or injection was enabled later"
            }
            Self::NetworkValidatorRuns => {
                "linkerd-network-validator runs: it waits until the CNI plugin has set up the Pod's network"
            }
            Self::NetworkValidatorFails => {
                "linkerd-network-validator fails: check Linkerd's CNI plugin on the Pod's node; once it works there, delete the Pod unless the repair controller does"
            }
            Self::NotNativeSidecar => "its proxy is a container, and a native sidecar is configured",
            Self::NativeSidecar => "its proxy is a native sidecar, and a container is configured",
            Self::InitContainer => "linkerd-init set up its network, and cniEnabled is true",
            Self::CniPlugin => "its network is left to a CNI plugin, and cniEnabled is false",
        }
    }
}

#[cfg(test)]
#[path = "coverage_tests.rs"]
mod tests;
