//! The phase of a rotation to the declared roots, and what leads to the next one. Pure.
//!
//! In: the roots, the issuer, the proxies and their certificates. Out: a [`TrustPhase`], and the step. Always holds: the
//! phase is computed, and never stored, so a root that is declared again leads back from each phase.

use super::{
    next_step::RotationStep,
    report::{in_time, named, proxies, rounded},
    roots::{MeshRoots, pods},
    seen::SeenTrust,
};
use crate::{api::linkerd_trust::TrustPhase, text::and_more, x509::anchors::RootCertificate};

/// The maximum number of roots in a sentence.
const SHOWN: usize = 5;

/// How far the mesh is on the way to the declared roots.
#[derive(Debug, PartialEq)]
pub struct RotationProgress {
    pub phase: TrustPhase,
    /// The proxies that trust none of the declared roots.
    pub untrusting: usize,
    /// Whether new certificates reach a declared root, and these proxies accept them all the same.
    pub is_bridged: bool,
    /// The proxies that present certificates which reach none of the declared roots.
    pub not_renewed: usize,
    /// The proxies whose certificates were not observed.
    pub unobserved: usize,
}

// === impl RotationProgress ===

impl RotationProgress {
    pub(super) fn of(seen: &SeenTrust, roots: &MeshRoots<'_>) -> Self {
        let untrusting = pods(roots.mesh().filter(|group| group.trusts.is_disjoint(&roots.desired)));
        let reached = roots.reached();
        let refusing = roots.mesh().filter(|group| group.trusts.is_disjoint(&reached));
        let is_bridged = !reached.is_disjoint(&roots.desired) && pods(refusing) == 0;
        let leaves = roots.leaves.as_ref();
        let not_renewed = leaves.map_or(0, |leaves| leaves.without(&roots.desired));
        let unobserved = leaves.map_or(0, |leaves| leaves.unobserved);
        let progress = Self { phase: TrustPhase::Unknown, untrusting, is_bridged, not_renewed, unobserved };
        Self { phase: progress.phase_of(seen, roots), ..progress }
    }

    fn phase_of(&self, seen: &SeenTrust, roots: &MeshRoots<'_>) -> TrustPhase {
        if roots.in_bundle.is_empty() {
            return TrustPhase::Unknown;
        }
        if !roots.desired.is_subset(&roots.in_bundle) {
            return TrustPhase::Adding;
        }
        let Ok(issuer) = &roots.issuer else { return TrustPhase::Unknown };
        if issuer.home.is_none_or(|home| !roots.desired.contains(&home)) {
            return if self.untrusting > 0 { TrustPhase::Spreading } else { TrustPhase::AwaitingIssuer };
        }
        let has_others = roots.in_bundle != roots.desired;
        let renewed = issuer.written.map(|written| seen.settings.renewed(written));
        // Where certificates are not observed, time decides.
        let may_be_old = match seen.leaves {
            Some(_) => self.unobserved > 0,
            None => renewed.is_some_and(|renewed| renewed > seen.now),
        };
        if self.not_renewed > 0 || has_others && may_be_old {
            return TrustPhase::Renewing;
        }
        if has_others {
            return TrustPhase::Retiring;
        }
        match roots.mesh().any(|group| group.trusts != roots.desired) {
            true => TrustPhase::Complete,
            false => TrustPhase::Steady,
        }
    }
}

/// Returns the step to the next phase; `None` at the end.
pub(super) fn toward(seen: &SeenTrust, roots: &MeshRoots<'_>, progress: &RotationProgress) -> Option<RotationStep> {
    let desired: Vec<_> = roots.all.iter().filter(|root| roots.desired.contains(&root.id)).collect();
    let list =
        |roots: &[&&RootCertificate]| and_more(roots.iter().take(SHOWN).map(|root| named(root)), roots.len(), ", ");
    let sentence = match progress.phase {
        TrustPhase::Adding => {
            let missing: Vec<_> = desired.iter().copied().filter(|root| !roots.in_bundle.contains(&root.id)).collect();
            format!(
                "add {} to the bundle in ConfigMap linkerd-identity-trust-roots, and keep the roots that it has",
                list(&missing)
            )
        }
        TrustPhase::Spreading => format!(
            "write an issuer of {}, and after it the bridge, into the Secret linkerd-identity-issuer: with a bridge nothing \
             has to restart. Without one, first restart the workloads below and the control plane: {} do not trust it yet",
            list(&desired),
            proxies(progress.untrusting)
        ),
        TrustPhase::AwaitingIssuer => format!(
            "write an issuer of {} into the Secret linkerd-identity-issuer. Without a bridge, first restart the control \
             plane, whose proxies do not show what they trust",
            list(&desired)
        ),
        TrustPhase::Renewing => match (progress.not_renewed, progress.unobserved) {
            (0, 0) => {
                let written = roots.issuer.as_ref().ok().and_then(|issuer| issuer.written);
                let renewed = written.map(|written| seen.settings.renewed(written));
                let at_the_latest = renewed
                    .map_or_else(String::new, |renewed| format!(", at the latest {}", in_time(renewed, seen.now)));
                format!("wait until all proxies have renewed their certificates{at_the_latest}")
            }
            (0, unobserved) => format!(
                "wait until the certificates of {} are observed: it is not known whether they need a root that leaves",
                proxies(unobserved)
            ),
            (1, _) => {
                format!("wait until 1 proxy has renewed its certificate, within {}", rounded(seen.settings.lifetime))
            }
            (old, _) => format!(
                "wait until {} have renewed their certificates, within {}",
                proxies(old),
                rounded(seen.settings.lifetime)
            ),
        },
        TrustPhase::Retiring => {
            let others: Vec<_> = roots
                .all
                .iter()
                .filter(|root| roots.in_bundle.contains(&root.id) && !roots.desired.contains(&root.id))
                .collect();
            format!(
                "remove {} from the bundle in ConfigMap linkerd-identity-trust-roots: no certificate needs it. New Pods then \
                 do not trust it any more",
                list(&others)
            )
        }
        TrustPhase::Complete | TrustPhase::Steady | TrustPhase::Unknown => return None,
    };
    Some(RotationStep { sentence, commands: Vec::new() })
}
