//! Whether a running Pod is out of date. Pure.
//!
//! In: a Pod, whether its namespace asks for proxies, the [`Goal`]. Out: its [`Class`], or `None` for one that is not of the mesh.
//! Always holds: nothing but what a Pod was injected with, and when, makes it out of date; what cannot be told is not out of
//! date.
//!
//! A proxy reads its configuration only when it is born, and carries the hash of it: the marker. The marker is as honest as the
//! document that it was in, so a Pod from a time when others had edited that is out of date whatever it says. Pods from before
//! the operator have no marker: they are taken to run with what was there then.

use crate::{
    api::linkerd_config::RolloutTrigger,
    cluster::kinds::{
        inject::Inject,
        pod::{Phase, Pod},
    },
};

use super::goal::Goal;

/// What a Pod is to the mesh's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Current,
    Outdated(Causes),
    /// Its own annotation chooses another version of the proxy; everything else is current.
    Pinned,
    /// Nobody can tell.
    Unknown,
    /// It should have a proxy, and has none.
    Uninjected,
    /// It has a proxy, and succeeded or failed.
    Completed,
}

/// Why a Pod is out of date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    pub configuration: bool,
    pub version: bool,
    pub trust_roots: bool,
}

// === impl Causes ===

impl Causes {
    fn any(self) -> bool {
        self.configuration || self.version || self.trust_roots
    }

    /// Whether the resource has workloads restarted for any of them.
    pub fn trigger(self, goal: &Goal) -> bool {
        self.configuration && goal.is_trigger(RolloutTrigger::ProxyConfig)
            || self.version && goal.is_trigger(RolloutTrigger::ProxyVersion)
            || self.trust_roots && goal.is_trigger(RolloutTrigger::TrustRoots)
    }
}

/// `of_namespace`: what the annotation of its namespace says.
pub fn class(pod: &Pod, of_namespace: Inject, goal: &Goal) -> Option<Class> {
    if pod.is_control_plane() || pod.terminating {
        return None;
    }
    let finished = pod.phase == Phase::Finished;
    let Some(injected) = &pod.injected else {
        let wants_a_proxy = pod.inject.or(of_namespace) == Inject::Enabled && !pod.host_network;
        return (wants_a_proxy && !finished).then_some(Class::Uninjected);
    };
    if pod.control_plane_namespace() != Some(&*goal.target.namespace) {
        return None;
    }
    if finished {
        return Some(Class::Completed);
    }
    let Some(created) = pod.created else { return Some(Class::Unknown) };
    let differs =
        |wanted: Option<&str>, is: Option<&str>| matches!((wanted, is), (Some(wanted), Some(is)) if wanted != is);
    let is_another_version = differs(goal.proxy_version.as_deref(), injected.proxy_version.as_deref());
    let mut causes = Causes {
        trust_roots: differs(goal.trust_roots.as_deref(), injected.trust_roots.as_deref()),
        ..Causes::default()
    };
    let wanted = goal.marker.as_deref();
    let is_another_document = match (wanted, injected.marker.as_deref()) {
        // Nobody is given a marker: its version and its trust anchors are all there is to see.
        (None, _) => false,
        (Some(wanted), Some(marker)) => wanted != marker,
        (Some(wanted), None) => match &goal.baseline {
            None => return Some(if causes.any() { Class::Outdated(causes) } else { Class::Unknown }),
            // Born while a document of the installer was there. Times are told in whole seconds: one of the same is not later.
            Some(baseline) if baseline.adopted.is_some_and(|adopted| created > adopted) => true,
            Some(baseline) => *baseline.hash != *wanted,
        },
    };
    // A Pod with the marker has the version that was declared, whatever others made of the image.
    let has_marker = wanted.is_some() && wanted == injected.marker.as_deref();
    causes.version = is_another_version && !has_marker && !injected.pinned;
    causes.configuration = is_another_document && !causes.version || wanted.is_some() && goal.is_in_drift(created);
    Some(match causes.any() {
        true => Class::Outdated(causes),
        false if injected.pinned => Class::Pinned,
        false => Class::Current,
    })
}
