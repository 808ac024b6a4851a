//! The reasons of Events: a closed set that alerts and scripts may rely on.

use strum::{EnumIter, IntoStaticStr};

/// The component that an Event names as its reporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reporter {
    Controller,
    ProxyInjector,
    /// The identity service, about its issuer.
    Identity,
    /// The identity service, about the certificate of a workload.
    IdentityLeaf,
}

/// Why an Event is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumIter, IntoStaticStr)]
pub enum Reason {
    Published,
    Unpublished,
    BecameReady,
    BecameUnready,
    InvalidWorkloadIP,
    InvalidHostname,
    MissingZone,
    UnmatchedPort,
    EndpointSliceWriteFailed,
    LinkerdConfigUpdated,
    ConfigMapUpdated,
    DriftDetected,
    DriftReverted,
    InstallerReverts,
    BaseUpdated,
    BaseRestored,
    BaseNotRestored,
    TrustAnchorsReused,
    TrustRootsChanged,
    Conflicted,
    Activated,
    ValidationFailed,
    InjectorSynced,
    InjectorSyncTimeout,
    InjectorDenied,
    ConfigRolledBack,
    CanaryStarted,
    CanaryPromoted,
    CanaryFailed,
    RolloutStarted,
    RolloutCompleted,
    RolloutPaused,
    RolloutResumed,
    RolloutHalted,
    PodRestart,
    ProxyUpToDate,
    ProxyRolloutFailed,
    ProxyRolloutSkipped,
    Injected,
    InjectionSkipped,
    InjectionWarning,
    InjectionFailed,
    WebhookCertificateIssued,
    WebhookCertificateFailed,
    WebhookBundleContested,
    IssuedLeafCertificate,
    IssuerUpdated,
    IssuerUpdateSkipped,
    IssuerHeld,
    IssuerNotTaken,
    IssuerValidationFailed,
    IssuerExpiresSoon,
    IssuerIsTrustAnchor,
    TrustAnchorsUpdated,
    TrustAnchorExpired,
    TrustPhaseChanged,
    TrustBroken,
    TrustRepaired,
    TrustExpiresSoon,
    TrustAnchorAdded,
    TrustAnchorNotAdded,
    TrustAnchorRemoved,
    TrustAnchorNotRemoved,
    IssuerWritten,
    IssuerNotWritten,
}

// === impl Reporter ===

impl Reporter {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Controller => "linkerd-operator",
            // The name that Linkerd's injector has in its Events.
            Self::ProxyInjector => "linkerd-proxy-injector",
            // The same for Linkerd's identity service.
            Self::Identity | Self::IdentityLeaf => "linkerd-identity",
        }
    }

    pub(super) const fn action(self) -> &'static str {
        match self {
            Self::Controller => "Reconcile",
            Self::ProxyInjector => "Inject",
            Self::Identity | Self::IdentityLeaf => "Certify",
        }
    }
}

// === impl Reason ===

impl Reason {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub(super) const fn reporter(self) -> Reporter {
        match self {
            Self::Injected | Self::InjectionSkipped | Self::InjectionWarning | Self::InjectionFailed => {
                Reporter::ProxyInjector
            }
            Self::IssuedLeafCertificate => Reporter::IdentityLeaf,
            Self::IssuerUpdated
            | Self::IssuerUpdateSkipped
            | Self::IssuerHeld
            | Self::IssuerValidationFailed
            | Self::IssuerExpiresSoon
            | Self::IssuerIsTrustAnchor
            | Self::TrustAnchorsUpdated
            | Self::TrustAnchorExpired => Reporter::Identity,
            _ => Reporter::Controller,
        }
    }

    /// Returns the `type` of Events with this reason.
    pub const fn type_(self) -> &'static str {
        match self {
            Self::InvalidWorkloadIP
            | Self::InvalidHostname
            | Self::MissingZone
            | Self::UnmatchedPort
            | Self::EndpointSliceWriteFailed
            | Self::DriftDetected
            | Self::BaseNotRestored
            | Self::InstallerReverts
            | Self::Conflicted
            | Self::ValidationFailed
            | Self::InjectorSyncTimeout
            | Self::InjectorDenied
            | Self::ConfigRolledBack
            | Self::CanaryFailed
            | Self::RolloutHalted
            | Self::ProxyRolloutFailed
            | Self::InjectionWarning
            | Self::InjectionFailed
            | Self::WebhookCertificateFailed
            | Self::WebhookBundleContested
            | Self::IssuerUpdateSkipped
            | Self::IssuerHeld
            | Self::IssuerNotTaken
            | Self::IssuerValidationFailed
            | Self::IssuerExpiresSoon
            | Self::IssuerIsTrustAnchor
            | Self::TrustAnchorExpired
            | Self::TrustAnchorNotAdded
            | Self::TrustAnchorNotRemoved
            | Self::IssuerNotWritten
            | Self::TrustBroken
            | Self::TrustExpiresSoon => "Warning",
            _ => "Normal",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::IntoEnumIterator;

    use super::*;
    use crate::reasons::EVENTS;

    #[test]
    fn the_catalogue_explains_every_reason_with_its_type_and_no_other() {
        let explained = EVENTS.iter().flat_map(|group| group.reasons).map(|entry| (entry.reason, entry.status));
        let emitted = Reason::iter().map(|reason| (reason.as_str(), reason.type_()));
        assert_eq!(explained.collect::<BTreeSet<_>>(), emitted.collect());
    }
}
