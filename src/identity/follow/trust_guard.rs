//! Whether proxies accept the next issuer.
//!
//! In: the LinkerdTrust in effect, as the cluster state has it. Out: why a new issuer is held, and whether proxies should renew
//! their certificates soon. Always holds: nothing is held without a LinkerdTrust that declares trust anchors; it does not matter
//! who has written the issuer; a renewal that each proxy accepts as the present one is not held, whatever the status says; the first issuer of a process is held only if some proxies certainly refuse it.

use std::sync::Arc;

use jiff::Timestamp;

use super::files::IssuerFileContents;
use crate::{
    api::linkerd_trust::TrustPhase,
    cluster::kinds::linkerd_trust::LinkerdTrust,
    identity::validity::LeafLifetime,
    trust::{
        declared::declared_roots,
        issuer_change::IssuerBasis,
        seen::{DeclaredRoots, LeafSettings},
    },
    x509::anchors::AnchorBundle,
};

/// Returns the LinkerdTrust in effect, if there is one.
type TrustSource = Box<dyn Fn() -> Option<Arc<LinkerdTrust>> + Send>;

/// Follows the LinkerdTrust in effect.
pub(in crate::identity) struct TrustGuard {
    source: TrustSource,
    control_plane: Arc<str>,
    settings: LeafSettings,
    trust: Option<Arc<LinkerdTrust>>,
}

// === impl TrustGuard ===

impl TrustGuard {
    pub(in crate::identity) fn new(source: TrustSource, control_plane: &str, settings: LeafSettings) -> Self {
        Self { source, control_plane: control_plane.into(), settings, trust: None }
    }

    /// Whether there is another LinkerdTrust, or another status, than at the last call.
    pub(super) fn has_changed(&mut self) -> bool {
        let trust = (self.source)();
        let is_same = trust.as_ref().map(Arc::as_ptr) == self.trust.as_ref().map(Arc::as_ptr);
        self.trust = trust;
        !is_same
    }

    /// Returns why this issuer must not replace the present one, whose file has these certificates; or why it must not be used
    /// at the start of a process, which knows of no present one.
    pub(super) fn refusal(&self, present: Option<&[u8]>, next: &IssuerFileContents, now: Timestamp) -> Option<String> {
        let trust = self.trust.as_ref()?;
        let bundle = str::from_utf8(&next.trust_roots).ok()?;
        let (declared, invalid) = match declared_roots(&trust.name, &trust.spec) {
            // What the operator has written satisfies the same conditions, and later phases follow its write.
            Ok(declared) => (DeclaredRoots { manages_issuer: false, ..declared? }, None),
            // What proxies accept is not known then.
            Err(why) => {
                let bundle = AnchorBundle::parse(bundle.as_bytes()).ok()?;
                (
                    DeclaredRoots::only(&trust.name, bundle),
                    Some(format!("LinkerdTrust {} is invalid: {why}", trust.name)),
                )
            }
        };
        let basis = IssuerBasis {
            namespace: &self.control_plane,
            settings: &self.settings,
            declared: &declared,
            bundle,
            bundle_written: trust.status.trust_roots_written.as_ref().map(|written| written.0),
            status: &trust.status,
            generation: trust.generation,
            now,
        };
        let checked = match present {
            Some(present) => basis.check_written(present, &next.certificates),
            None => basis.check_first(&next.certificates),
        };
        checked.err().map(|why| invalid.unwrap_or(why))
    }

    /// Whether a rotation waits for certificates, or will.
    pub(super) fn is_rotating(&self) -> bool {
        use TrustPhase::{Adding, AwaitingIssuer, Renewing, Spreading};
        let declares = self.trust.as_ref().filter(|trust| trust.spec.anchors.is_some());
        let phase = declares.and_then(|trust| trust.status.phase);
        matches!(phase, Some(Adding | Spreading | AwaitingIssuer | Renewing))
    }

    /// Whether an issuer with this end is too near to it for two lifetimes of certificates.
    pub(super) fn is_near(&self, end: Timestamp, now: Timestamp) -> bool {
        let lifetime = LeafLifetime::new(self.settings.lifetime, self.settings.clock_skew);
        let once = lifetime.at(now).not_after;
        end < lifetime.at(once).not_after
    }
}
