//! The trust anchors of running proxies, compared with the bundle in effect. Pure.
//!
//! In: the bundle in effect, a LinkerdTrust, the anchors in the environment of live Pods. Out: whether a Pod is out of date, and the
//! [`Gate`] that holds all restarts. Always holds: without an approval of exactly this bundle, no Pod is restarted while
//! a live Pod of the mesh trusts none of its anchors; nothing is remembered, because the environment of a Pod holds the
//! certificates themselves, and cannot be changed.
//!
//! A LinkerdTrust may distrust an anchor. Then Pods that trust it are out of date, too, and are restarted soon.
//!
//! A LinkerdTrust may know that proxies with fewer or other anchors accept each other, for example over a bridge. Then only
//! those are out of date that do not. They need no approval once all certificates were observed to reach the bundle.
//!
//! Everyone who can create a Pod can write a proxy with any anchors into it. So only anchors of the mesh count: those that
//! running Pods of two namespaces trust, or a tenth of all running Pods. No number of other Pods opens the gate.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;

use super::gate::Gate;
use crate::{
    api::{
        TRUST_ROOTS,
        linkerd_config::{ConditionReason, annotations::APPROVE_ANNOTATION},
        linkerd_trust::{DistrustConnections, TrustRestarts},
    },
    cluster::kinds::linkerd_trust::LinkerdTrust,
    text::{counted, sha256},
    x509::anchor_set::{AnchorSet, Fingerprint},
};

/// Number of digits of a hash in a message.
const SHOWN: usize = 12;

/// The part of all running Pods that makes an anchor one of the mesh, also within one namespace.
const SHARE: i64 = 10;

/// The number of running Pods with each set of trust anchors, in each namespace.
pub type TrustCounts = BTreeMap<(Arc<AnchorSet>, Arc<str>), i64>;

/// The bundle of trust anchors that new proxies are injected with.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustBundle {
    /// The SHA-256 of its text.
    pub hash: Arc<str>,
    pub anchors: AnchorSet,
    needed: NeededAnchors,
    /// When it was written.
    pub written: Option<Timestamp>,
}

/// Which trust anchors a proxy needs.
#[derive(Clone, Debug, PartialEq)]
struct NeededAnchors {
    /// Whether it needs exactly those of the bundle, and not only a sufficient one.
    is_exact: bool,
    /// Proxies that trust one of these accept each other, by a LinkerdTrust. Sorted. None if it is not known.
    sufficient: Vec<Fingerprint>,
    /// A proxy needs each of these, too.
    required: Vec<Fingerprint>,
    /// A proxy must have none of these.
    distrusted: Vec<Fingerprint>,
    /// Whether proxies have one of these, or must restart before they can lose one.
    is_urgent: bool,
    /// Whether proxies may refuse each other until all have restarted.
    is_cut: bool,
    /// Whether the certificates of all proxies were observed to reach the bundle.
    is_renewed: bool,
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
    /// `trust` is the LinkerdTrust in effect.
    pub fn new(pem: &str, trust: Option<&LinkerdTrust>, written: Option<Timestamp>) -> Self {
        let hash: Arc<str> = sha256(pem).into();
        let declares = trust.filter(|trust| trust.spec.anchors.is_some());
        let needed = declares.map_or_else(NeededAnchors::default, |trust| NeededAnchors::of(trust, &hash));
        Self { hash, anchors: AnchorSet::of(pem), needed, written }
    }

    /// Whether a proxy with these anchors and one with the bundle accept each other without a common anchor, or need not.
    fn is_bridged_to(&self, carried: &AnchorSet) -> bool {
        let is_accepted = self.needed.is_renewed && self.needed.has_one_in(carried);
        (is_accepted || self.needed.is_cut) && self.needed.has_one_in(&self.anchors)
    }
}

// === impl NeededAnchors ===

impl NeededAnchors {
    /// `bundle` is the hash of the bundle in effect. What was observed with another one, or for another declaration, says
    /// nothing: a client may replace the bundle by one that breaks the mesh, and all proxies are asked before the next status.
    fn of(trust: &LinkerdTrust, bundle: &str) -> Self {
        let (spec, status) = (&trust.spec, &trust.status);
        let is_exact = spec.restarts == TrustRestarts::Always;
        let is_urgent = spec.distrust.is_some() && status.must_restart_soon();
        let is_cut = spec.distrust.as_ref().is_some_and(|it| it.connections == DistrustConnections::Cut);
        if status.trust_roots_sha256.as_deref() != Some(bundle) || status.observed_generation != Some(trust.generation)
        {
            return Self { is_exact, is_urgent, ..Self::default() };
        }
        let read = |hashes: &[String]| hashes.iter().filter_map(|it| fingerprint(it)).collect::<Vec<_>>();
        let (mut sufficient, required) = (read(&status.sufficient_anchors), read(&status.required_anchors));
        sufficient.sort_unstable();
        let (distrusted, is_renewed) = (read(&status.distrusted_anchors), status.is_renewed());
        let is_cut = is_cut && !distrusted.is_empty();
        Self { is_exact, sufficient, required, distrusted, is_urgent, is_cut, is_renewed }
    }

    /// Whether a proxy with these anchors must restart to get the others.
    fn misses(&self, carried: &AnchorSet, bundle: &AnchorSet) -> bool {
        let lacks = |anchors: &AnchorSet, it: &Fingerprint| anchors.fingerprints().binary_search(it).is_err();
        let is_exposed = || self.distrusted.iter().any(|it| !lacks(carried, it) && lacks(bundle, it));
        // A restart would not help if the bundle did not have it either.
        self.has_one_in(bundle) && (!self.has_one_in(carried) || is_exposed())
            || self.required.iter().any(|it| lacks(carried, it) && !lacks(bundle, it))
    }

    fn has_one_in(&self, anchors: &AnchorSet) -> bool {
        anchors.fingerprints().iter().any(|it| self.sufficient.binary_search(it).is_ok())
    }
}

impl Default for NeededAnchors {
    /// Without a LinkerdTrust that declares anchors.
    fn default() -> Self {
        Self {
            is_exact: true,
            sufficient: Vec::new(),
            required: Vec::new(),
            distrusted: Vec::new(),
            is_urgent: false,
            is_cut: false,
            is_renewed: false,
        }
    }
}

// === impl DesiredTrust ===

impl DesiredTrust {
    /// Returns the part of the key of a rollout.
    pub fn key(&self) -> Option<&str> {
        self.wanted.as_ref().map(|wanted| &*wanted.hash)
    }

    /// Whether proxies trust a distrusted anchor, so that restarts must not take their time.
    pub fn is_urgent(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.needed.is_urgent)
    }

    /// Whether a proxy with these anchors is out of date; not if the Pod does not show them.
    pub fn differs_from(&self, carried: Option<&AnchorSet>) -> bool {
        let (Some(wanted), Some(carried)) = (&self.wanted, carried) else { return false };
        match wanted.needed.is_exact {
            true => *carried != wanted.anchors,
            false => wanted.needed.misses(carried, &wanted.anchors),
        }
    }

    /// Returns the hash of the bundle in effect, and the number of Pods of the mesh that trust none of its anchors, if
    /// there are such Pods.
    pub fn replaced(&self, carried: &TrustCounts) -> Option<(&str, i64)> {
        let wanted = self.wanted.as_ref()?;
        let is_cut_off = |anchors: &AnchorSet| {
            !anchors.is_empty() && !anchors.shares_anchor(&wanted.anchors) && !wanted.is_bridged_to(anchors)
        };
        let cut_off: Vec<_> = carried.iter().filter(|((anchors, _), _)| is_cut_off(anchors)).collect();
        // Nearly always there is none.
        if cut_off.is_empty() {
            return None;
        }
        let of_mesh = anchors_of_mesh(carried);
        let is_of_mesh = |anchors: &AnchorSet| anchors.fingerprints().iter().any(|it| of_mesh.contains(it));
        let pods = cut_off.iter().filter(|((anchors, _), _)| is_of_mesh(anchors)).map(|(_, pods)| **pods).sum();
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

/// Reads the SHA-256 of a certificate.
fn fingerprint(hex: &str) -> Option<Fingerprint> {
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..hex.len().div_ceil(2)).map(byte).collect();
    bytes?.try_into().ok()
}

/// Returns the anchors that running Pods of several namespaces trust, or a sizeable part of all running Pods.
fn anchors_of_mesh(carried: &TrustCounts) -> BTreeSet<&Fingerprint> {
    let mut trusted: HashMap<&Fingerprint, (BTreeSet<&str>, i64)> = HashMap::new();
    for ((anchors, namespace), pods) in carried {
        for fingerprint in anchors.fingerprints() {
            let (namespaces, count) = trusted.entry(fingerprint).or_default();
            namespaces.insert(namespace);
            *count += pods;
        }
    }
    let all: i64 = carried.values().sum();
    let is_of_mesh = |namespaces: &BTreeSet<&str>, count: i64| namespaces.len() > 1 || count * SHARE >= all;
    trusted.into_iter().filter(|(_, (namespaces, count))| is_of_mesh(namespaces, *count)).map(|(it, _)| it).collect()
}

#[cfg(test)]
mod tests;
