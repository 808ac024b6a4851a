//! The trust anchors of running proxies, compared with the bundle in effect. Pure.
//!
//! In: the bundle in effect, the anchors in the environment of live Pods. Out: whether a Pod is out of date, and the
//! [`Gate`] that holds all restarts. Always holds: without an approval of exactly this bundle, no Pod is restarted while
//! a live Pod of the mesh trusts none of its anchors; nothing is remembered, because the environment of a Pod holds the
//! certificates themselves, and cannot be changed.
//!
//! Everyone who can create a Pod can write a proxy with any anchors into it. So the Pods of the mesh are those that can
//! connect to most others: a proxy with anchors of its own connects to nobody, and holds nothing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

use super::gate::Gate;
use crate::{
    api::{
        TRUST_ROOTS,
        linkerd_config::{ConditionReason, annotations::APPROVE_ANNOTATION},
    },
    text::{counted, sha256},
    x509::anchor_set::{AnchorSet, Fingerprint},
};

/// Number of digits of a hash in a message.
const SHOWN: usize = 12;

/// The number of live Pods with each set of trust anchors.
pub type TrustCounts = BTreeMap<Arc<AnchorSet>, i64>;

/// The bundle of trust anchors that new proxies are injected with.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustBundle {
    /// The SHA-256 of its text.
    pub hash: Arc<str>,
    pub anchors: AnchorSet,
    /// When it was written.
    pub written: Option<Timestamp>,
}

/// The trust anchors that proxies must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredTrust {
    /// `None` if the mesh has no bundle.
    pub wanted: Option<TrustBundle>,
    /// Whether a user approved this bundle.
    pub is_approved: bool,
}

// === impl TrustBundle ===

impl TrustBundle {
    pub fn new(pem: &str, written: Option<Timestamp>) -> Self {
        Self { hash: sha256(pem).into(), anchors: AnchorSet::of(pem), written }
    }
}

// === impl DesiredTrust ===

impl DesiredTrust {
    /// Returns the part of the key of a rollout.
    pub fn key(&self) -> Option<&str> {
        self.wanted.as_ref().map(|wanted| &*wanted.hash)
    }

    /// Whether a proxy with these anchors is out of date; not if the Pod does not show them.
    pub fn differs_from(&self, carried: Option<&AnchorSet>) -> bool {
        let Some(wanted) = &self.wanted else { return false };
        carried.is_some_and(|carried| *carried != wanted.anchors)
    }

    /// Returns the hash of the bundle in effect, and the number of Pods of the mesh that trust none of its anchors, if
    /// there are such Pods.
    pub fn replaced(&self, carried: &TrustCounts) -> Option<(&str, i64)> {
        let wanted = self.wanted.as_ref()?;
        let is_cut_off = |anchors: &AnchorSet| !anchors.is_empty() && !anchors.shares_anchor(&wanted.anchors);
        // Nearly always there is none, and the groups need not be found.
        if !carried.keys().any(|anchors| is_cut_off(anchors)) {
            return None;
        }
        let of_mesh = largest_groups(carried);
        let pods = of_mesh.filter(|(anchors, _)| is_cut_off(anchors)).map(|(_, pods)| pods).sum();
        (pods > 0).then_some((&*wanted.hash, pods))
    }

    /// Returns the gate that is closed until a user approves the bundle, or restores a missing one.
    pub fn gate(&self, carried: &TrustCounts) -> Option<Gate> {
        let Some(wanted) = &self.wanted else {
            let message = format!(
                "ConfigMap {TRUST_ROOTS} is missing or has no key ca-bundle.crt, so it is unknown what restarted proxies \
                 would trust: restore it"
            );
            let reason = ConditionReason::WaitingForConfigMap;
            return (!carried.is_empty()).then_some(Gate { reason, message });
        };
        let (hash, pods) = self.replaced(carried).filter(|_| !self.is_approved)?;
        let shown = hash.get(..SHOWN).unwrap_or_default();
        let pods = counted(usize::try_from(pods).unwrap_or_default(), "Pod");
        let message = format!(
            "the bundle {shown} has none of the trust anchors of {pods}, so restarted proxies could not connect to them; \
             to continue, annotate the resource with {APPROVE_ANNOTATION}: {}",
            wanted.hash
        );
        Some(Gate { reason: ConditionReason::AwaitingApproval, message })
    }
}

/// Returns the sets of the largest group of Pods, with the number of Pods of each. Two sets are in one group if they share
/// an anchor, or if other sets connect them. Groups of the same size are returned together.
fn largest_groups(carried: &TrustCounts) -> impl Iterator<Item = (&AnchorSet, i64)> {
    // Proxies without anchors connect to nobody, and so they are no group.
    let can_connect = carried.iter().filter(|(anchors, _)| !anchors.is_empty());
    let sets: Vec<(&AnchorSet, i64)> = can_connect.map(|(anchors, pods)| (&**anchors, *pods)).collect();
    // A set belongs to the group of the set that it leads to, and leads a group if it leads to itself.
    let mut leads_to: Vec<usize> = (0..sets.len()).collect();
    let mut first_with: HashMap<&Fingerprint, usize> = HashMap::new();
    for (at, (anchors, _)) in sets.iter().enumerate() {
        for fingerprint in anchors.fingerprints() {
            let other = *first_with.entry(fingerprint).or_insert(at);
            let (one, other) = (leader(&mut leads_to, at), leader(&mut leads_to, other));
            // The smaller number leads, so that no two sets lead to each other.
            if let Some(led) = leads_to.get_mut(one.max(other)) {
                *led = one.min(other);
            }
        }
    }
    let leaders: Vec<usize> = (0..sets.len()).map(|at| leader(&mut leads_to, at)).collect();
    let mut pods_of_group: HashMap<usize, i64> = HashMap::new();
    for (leader, (_, pods)) in leaders.iter().zip(&sets) {
        *pods_of_group.entry(*leader).or_default() += pods;
    }
    let most = pods_of_group.values().copied().max().unwrap_or_default();
    let is_of_mesh = move |leader: &usize| pods_of_group.get(leader) == Some(&most);
    sets.into_iter().zip(leaders).filter(move |(_, leader)| is_of_mesh(leader)).map(|(set, _)| set)
}

/// Returns the number of the set that leads the group of a set, and shortens the way to it: tenants may write sets that
/// form one long chain.
fn leader(leads_to: &mut [usize], mut at: usize) -> usize {
    while let Some(next) = leads_to.get(at).copied().filter(|next| *next != at) {
        let after = leads_to.get(next).copied().unwrap_or(next);
        if let Some(shortened) = leads_to.get_mut(at) {
            *shortened = after;
        }
        at = after;
    }
    at
}

#[cfg(test)]
mod tests;
