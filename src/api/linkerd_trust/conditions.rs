//! The conditions of a LinkerdTrust: their types and reasons.
//!
//! Always holds: the names are part of the API and keep their meaning.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use strum::{EnumIter, IntoStaticStr};

use super::{LinkerdTrustStatus, TrustPhase};

/// The type of a condition.
#[derive(Clone, Copy, Debug, EnumIter, IntoStaticStr, PartialEq, Eq)]
#[strum(const_into_str)]
pub enum TrustCondition {
    Accepted,
    BundleSynced,
    Expiring,
    IssuerSynced,
    LeavesRenewed,
    Ready,
    ReadyToSwitch,
    TrustSpread,
}

/// The reason of a condition. `src/reasons` has the meaning and the remedy of each.
#[derive(Clone, Copy, Debug, EnumIter, IntoStaticStr, PartialEq, Eq)]
#[strum(const_into_str)]
pub enum TrustReason {
    Accepted,
    Broken,
    CertificateEnds,
    Conflicted,
    Contested,
    ControlPlaneBehind,
    Invalid,
    IssuerAwaited,
    IssuerHeld,
    IssuerNotTaken,
    IssuerRefAwaited,
    IssuerRefused,
    NotObserved,
    OldLeaves,
    OverBridge,
    ProxiesBehind,
    ProxiesExposed,
    ProxiesNotSeen,
    RemovalHeld,
    RootsDiffer,
    RotationInProgress,
    Synced,
    WriteFailed,
    WrittenByCertManager,
    WrittenByTrustManager,
}

// === impl TrustCondition ===

impl TrustCondition {
    /// Returns the name in the API.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

// === impl TrustReason ===

impl TrustReason {
    /// The reasons why the operator does not write the bundle, or its writes do not last.
    pub const HELD: [Self; 4] = [Self::Contested, Self::RemovalHeld, Self::WriteFailed, Self::WrittenByTrustManager];

    /// The reasons why the operator does not write the next issuer until people do something.
    pub const UNWRITTEN: [Self; 4] =
        [Self::Contested, Self::IssuerRefused, Self::WriteFailed, Self::WrittenByCertManager];

    /// Returns the name in the API.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

// === impl LinkerdTrustStatus ===

impl LinkerdTrustStatus {
    /// Whether the bundle has exactly the declared trust anchors, and each proxy was observed to present a certificate that
    /// reaches one.
    pub fn is_renewed(&self) -> bool {
        self.phase == Some(TrustPhase::Complete) && self.proxies.as_ref().is_some_and(|proxies| proxies.unobserved == 0)
    }

    /// Whether proxies trust a distrusted trust anchor, and restarts help.
    pub fn must_restart_soon(&self) -> bool {
        let is_exposed = self.proxies.as_ref().is_some_and(|proxies| proxies.exposed > 0);
        is_exposed && (self.phase == Some(TrustPhase::Spreading) || !self.distrusted_anchors.is_empty())
    }

    /// Whether the process that writes the issuer says about this generation that the next one is written.
    pub fn is_issuer_written(&self, generation: i64) -> bool {
        self.issuer_condition(Some(generation)).is_some_and(|condition| condition.status == "True")
    }

    /// Whether the condition has this reason.
    pub fn has(&self, condition: TrustCondition, reason: TrustReason) -> bool {
        self.condition(condition).is_some_and(|it| it.reason == reason.as_str())
    }

    /// Why the operator does not write the bundle.
    pub fn held(&self) -> Option<&str> {
        let condition = self.condition(TrustCondition::BundleSynced)?;
        let is_held = TrustReason::HELD.iter().any(|reason| condition.reason == reason.as_str());
        is_held.then_some(condition.message.as_str())
    }

    /// What the process that writes the issuer says about this generation, unless it waits for people to write the next one.
    pub fn issuer_condition(&self, generation: Option<i64>) -> Option<&Condition> {
        let condition = self.condition(TrustCondition::IssuerSynced)?;
        let is_current = condition.observed_generation == generation;
        (is_current && condition.reason != TrustReason::IssuerAwaited.as_str()).then_some(condition)
    }

    /// Whether a proxy presents a certificate that reaches a declared trust anchor.
    pub fn presents_declared(&self) -> bool {
        self.anchors.iter().any(|anchor| anchor.desired && anchor.presented_by > 0)
    }

    /// Whether the process that writes the issuer has said nothing about this generation.
    pub fn is_writer_silent(&self, generation: Option<i64>) -> bool {
        self.condition(TrustCondition::IssuerSynced).is_none_or(|it| it.observed_generation != generation)
    }

    pub fn condition(&self, condition: TrustCondition) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.type_ == condition.as_str())
    }
}
