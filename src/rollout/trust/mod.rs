//! The trust anchors of running proxies, compared with the bundle in effect. Pure.
//!
//! In: the bundle in effect, the observed bundles, the hashes that live Pods carry. Out: whether a Pod is out of date,
//! and the [`Gate`] that holds all restarts. Always holds: without an approval of exactly this bundle, no Pod is
//! restarted while a live Pod trusts none of its anchors.
//!
//! A hash that the operator has not observed holds only the workload of its Pods. Their certificates are unknown, so
//! a restart may disconnect them; but everyone who can change a Pod can give it such a hash.

pub mod bundles;

use std::{collections::BTreeMap, sync::Arc};

use self::bundles::{TrustBundle, TrustBundles};
use super::gate::Gate;
use crate::{
    api::linkerd_config::{ConditionReason, annotations::APPROVE_ANNOTATION},
    text::counted,
};

/// Number of digits of a hash in a message.
const SHOWN: usize = 12;

/// The number of live Pods with each observed hash of trust anchors.
pub type TrustCounts = BTreeMap<Arc<str>, i64>;

/// The trust anchors that proxies must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredTrust {
    /// The bundle in effect; `None` if none was observed yet.
    pub wanted: Option<TrustBundle>,
    pub known: TrustBundles,
    /// Whether a user approved this bundle.
    pub is_approved: bool,
}

/// How the trust anchors of a Pod compare with the bundle in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodTrust {
    /// The Pod trusts the same certificates, or does not show which ones.
    Current,
    Outdated,
    /// The Pod carries a hash that the operator has not observed.
    Unknown,
}

// === impl DesiredTrust ===

impl DesiredTrust {
    /// Returns the part of the key of a rollout.
    pub fn key(&self) -> Option<&str> {
        self.wanted.as_ref().map(|wanted| wanted.key.as_str())
    }

    /// Returns the comparison for the hash that a Pod carries.
    pub fn compare(&self, carried: Option<&str>) -> PodTrust {
        let (Some(wanted), Some(carried)) = (&self.wanted, carried) else { return PodTrust::Current };
        match self.known.find(carried) {
            _ if *wanted.hash == *carried => PodTrust::Current,
            Some(known) if known.has_same_anchors(wanted) => PodTrust::Current,
            Some(_) => PodTrust::Outdated,
            None => PodTrust::Unknown,
        }
    }

    /// Returns the hash of the bundle in effect, and the number of live Pods that trust none of its anchors, if there
    /// are such Pods. Pods without any anchor are not counted: they cannot connect to others in any case.
    pub fn replaced(&self, carried: &TrustCounts) -> Option<(&str, i64)> {
        let wanted = self.wanted.as_ref()?;
        let is_cut_off =
            |hash: &str| self.known.find(hash).is_some_and(|known| !known.is_empty() && !known.shares_anchor(wanted));
        let pods = carried.iter().filter(|(hash, _)| is_cut_off(hash)).map(|(_, count)| count).sum();
        (pods > 0).then_some((&*wanted.hash, pods))
    }

    /// Returns the gate that is closed until a user approves the bundle.
    pub fn gate(&self, carried: &TrustCounts) -> Option<Gate> {
        let wanted = self.wanted.as_ref().filter(|_| !self.is_approved)?;
        let why = match self.replaced(carried) {
            Some((_, pods)) => {
                let shown = wanted.hash.get(..SHOWN).unwrap_or_default();
                let pods = counted(usize::try_from(pods).unwrap_or_default(), "Pod");
                format!(
                    "the bundle {shown} has none of the trust anchors of {pods}, so restarted proxies could not connect to \
                     them"
                )
            }
            None if self.known.find(&wanted.hash).is_none() => {
                "Pods have too many different bundles of trust anchors to compare the new bundle with".to_owned()
            }
            None => return None,
        };
        let message = format!("{why}; to continue, annotate the resource with {APPROVE_ANNOTATION}: {}", wanted.hash);
        Some(Gate { reason: ConditionReason::AwaitingApproval, message })
    }
}

#[cfg(test)]
mod tests;
