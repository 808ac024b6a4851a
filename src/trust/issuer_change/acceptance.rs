//! Whether proxies accept the certificates of an issuer that is not written yet. Pure.
//!
//! In: the present issuer, another one, the known roots, the status of a LinkerdTrust. Out: yes, or why not. Always holds: a
//! root that is not known here counts as one that some proxies trust; what ends within the lifetime of a leaf helps nothing.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{IssuerFile, IssuerJudge, Sent};
use crate::{
    api::{
        NEXT_ISSUER,
        linkerd_trust::{TrustCondition, TrustPhase, TrustRootStatus},
    },
    text::hex,
    trust::words::proxies_trust,
    x509::{
        anchor_set::Fingerprint,
        anchors::RootCertificate,
        certificate::ChainCertificate,
        chain::{self, UnsignedLeaf},
    },
};

/// Injectors read the bundle from a file, which kubelets update up to 160 s after the ConfigMap; and a Pod that was reviewed
/// before is there a minute later.
pub(crate) const INJECTED_AFTER: SignedDuration = SignedDuration::from_secs(240);
/// How long the condition ReadyToSwitch counts. It is renewed each minute.
const READY_FOR: SignedDuration = SignedDuration::from_secs(180);

// === impl IssuerJudge ===

impl IssuerJudge<'_> {
    /// Returns the name of a certificate of the present issuer that a root has signed which is not known here, if leaves of this
    /// issuer may not reach that root. No status is about such a root; but no proxy needs it if each trusts the same root of this
    /// issuer. One that seems to be cut off may trust only the unknown root, unless each proxy refuses the present issuer.
    pub(super) fn unknown_signer_lost(&self, sent: &Sent) -> Option<String> {
        let cut_off = self.basis.status.proxies.as_ref().map_or(0, |proxies| proxies.cut_off);
        let is_needless = self.is_present_refused_by_all(sent) || cut_off == 0 && self.is_trusted_by_all(sent);
        let present = self.present.as_ref().filter(|_| !is_needless)?;
        let is_of_unknown = |certificate: &ChainCertificate| {
            let known = self.known.iter().filter_map(|root| ChainCertificate::parse(&root.der));
            !known.chain(present.iter().cloned()).any(|by| certificate.is_signed_by(&by))
        };
        // At most all others are below it.
        let below = u32::try_from(sent.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let is_kept = |it: &ChainCertificate| sent.contains(it) && it.path_length().is_none_or(|most| most >= below);
        let lost = present.iter().find(|certificate| !is_kept(certificate) && is_of_unknown(certificate))?;
        Some(lost.name())
    }

    /// Whether the present issuer reaches no root that is known here, and each proxy trusts the same root of this one.
    pub(super) fn is_present_refused_by_all(&self, sent: &Sent) -> bool {
        let is_unknown = |present: &Sent| self.reached(present, self.basis.now).is_empty();
        self.present.as_ref().is_some_and(is_unknown) && self.is_trusted_by_all(sent)
    }

    /// Whether each proxy trusts the same root of this issuer.
    fn is_trusted_by_all(&self, sent: &Sent) -> bool {
        self.basis.is_status_current() && self.all_trust(&self.hashes(sent), |_| true)
    }

    /// Whether each proxy that accepts certificates of the present issuer accepts those of this one, too, at any time until a
    /// leaf that is signed now has ended.
    pub(super) fn is_accepted_as_present(&self, sent: &Sent) -> bool {
        let Some(present) = &self.present else { return false };
        // Proxies may also trust a root that has the name and the key of one of these certificates: one that another has signed.
        let is_root = |(at, certificate): &(usize, &ChainCertificate)| *at > 0 || certificate.is_signed_by(certificate);
        let own = present.iter().enumerate().filter(is_root).filter_map(|(_, it)| RootCertificate::parse(&it.der));
        let tested: Vec<_> = self.known.iter().cloned().chain(own).collect();
        let reached = |issuer: &Sent, time: Timestamp| self.reached_of(&tested, issuer, time);
        let is_kept = |time: Timestamp| reached(present, time).is_subset(&reached(sent, time));
        !self.reached(present, self.basis.now).is_empty() && self.times(sent, present).into_iter().all(is_kept)
    }

    /// Verifies that the status says that all proxies accept what this issuer reaches.
    pub(super) fn is_accepted_by_status(&self, sent: &Sent) -> Result<(), String> {
        let status = self.basis.status;
        let declared = self.basis.declared;
        if !self.basis.is_status_current() {
            return Err(format!(
                "the status of LinkerdTrust {} is not about the present bundle and spec yet",
                declared.resource
            ));
        }
        let hashes = self.hashes(sent);
        match declared.manages_issuer {
            true => self.is_ready()?,
            // The way back, to an issuer of a root that is not declared.
            false if self.all_trust_another(&hashes) => return Ok(()),
            false => self.may_be_written(sent)?,
        }
        let is_enough = !status.sufficient_anchors.is_empty();
        match is_enough && status.sufficient_anchors.iter().all(|needed| hashes.contains(needed)) {
            true => Ok(()),
            false => Err("for the lifetime of a certificate, its certificates do not reach all of \
                          status.sufficientAnchors: some proxies would refuse them"
                .to_owned()),
        }
    }

    /// The SHA-256 of each root that leaves of the issuer reach until one that is signed now has ended.
    fn hashes(&self, sent: &Sent) -> BTreeSet<String> {
        let declared = self.basis.declared;
        let always = self.times(sent, &[]).into_iter().map(|time| self.reached(sent, time));
        let always = always.reduce(|one, other| &one & &other).unwrap_or_default();
        let all = self.bundle.roots().iter().chain(declared.bundle.roots()).chain(&declared.signers);
        all.filter(|root| always.contains(&root.id)).map(|root| hex(root.sha256)).collect()
    }

    /// Verifies that proxies do not certainly refuse this issuer, by the status: in the phase Spreading, some trust none of its
    /// roots, and no proxy presents a certificate of a declared root yet, so it has not signed before. An issuer of a root that is
    /// not declared, or not known, is used.
    pub(super) fn is_refused_by_none(&self, sent: &Sent) -> Result<(), String> {
        let status = self.basis.status;
        let has_ended = |end: &Time| end.0 <= self.basis.now;
        let is_over = status.issuer.as_ref().and_then(|issuer| issuer.expires.as_ref()).is_some_and(has_ended);
        if status.phase != Some(TrustPhase::Spreading)
            || status.presents_declared()
            || is_over
            || self.basis.declared.distrusted.is_cut
        {
            return Ok(());
        }
        let parsed: Vec<_> = self.known.iter().filter_map(|root| ChainCertificate::parse(&root.der)).collect();
        let is_known = |it: &ChainCertificate| parsed.iter().chain(sent).any(|by| it.is_signed_by(by));
        if !self.basis.is_status_current() || !self.belongs_to_declared(sent) || !sent.iter().all(is_known) {
            return Ok(());
        }
        let hashes = self.hashes(sent);
        let trusting = status.anchors.iter().filter(|anchor| hashes.contains(&anchor.sha256));
        let trusting = trusting.map(|anchor| anchor.trusted_by).sum::<i64>();
        let accepted = status.proxies.as_ref().map_or(0, |proxies| proxies.accepted);
        match self.showing_proxies().map(|shown| shown - accepted - trusting).and_then(|it| usize::try_from(it).ok()) {
            None | Some(0) => Ok(()),
            Some(refusing) => {
                let trust = proxies_trust(refusing, true);
                Err(format!("{trust} no root of it, by the status of LinkerdTrust {}", self.basis.declared.resource))
            }
        }
    }

    /// The number of proxies of the mesh that show their roots, by the status.
    fn showing_proxies(&self) -> Option<i64> {
        let proxies = self.basis.status.proxies.as_ref()?;
        Some(proxies.total - proxies.from_config_map - proxies.cut_off)
    }

    /// Whether each proxy trusts the same one of these roots, by the status, also those of Pods that are created now. What reads
    /// the bundle when it starts has read the present one.
    fn all_trust(&self, hashes: &BTreeSet<String>, is_meant: impl Fn(&str) -> bool) -> bool {
        let status = self.basis.status;
        let has_control_plane = status.proxies.as_ref().is_some_and(|proxies| proxies.before_bundle == 0);
        let landed = status.trust_roots_written.as_ref().and_then(|written| written.0.checked_add(INJECTED_AFTER).ok());
        let Some(shown) = self.showing_proxies().filter(|shown| *shown > 0 && has_control_plane) else { return false };
        let trusted = |anchor: &TrustRootStatus| anchor.trusted_by >= shown && anchor.in_bundle;
        let mut trusted = status.anchors.iter().filter(|anchor| trusted(anchor));
        landed.is_some_and(|landed| landed <= self.basis.now)
            && trusted.any(|anchor| hashes.contains(&anchor.sha256) && is_meant(&anchor.sha256))
    }

    /// Whether each proxy that shows its roots trusts the same one of these, by the status, and it is neither declared nor
    /// distrusted.
    fn all_trust_another(&self, hashes: &BTreeSet<String>) -> bool {
        let declared = self.basis.declared;
        let is_other = |sha256: &str| {
            let root = self.known.iter().find(|root| hex(root.sha256) == sha256);
            root.is_some_and(|root| !declared.has_anchor(root) && !declared.distrusted.mean(root))
        };
        self.all_trust(hashes, is_other)
    }

    /// Verifies that people may write this issuer, by the phase.
    fn may_be_written(&self, sent: &Sent) -> Result<(), String> {
        if let Some(lost) = self.unknown_signer_lost(sent) {
            return Err(format!(
                "it lacks {lost} of the present one, which an unknown root has signed, and proxies may trust only that root. It \
                 waits until each proxy trusts the root of the next one; or append it, or declare it in spec.bridge"
            ));
        }
        match self.basis.status.phase.unwrap_or(TrustPhase::Unknown) {
            TrustPhase::AwaitingIssuer => self.is_ready(),
            phase @ (TrustPhase::Unknown | TrustPhase::Adding | TrustPhase::Spreading) => Err(format!(
                "not all proxies accept its certificates yet: LinkerdTrust {} is in the phase {}. Do what status.nextStep says, or \
                 put the previous issuer back",
                self.basis.declared.resource,
                phase.as_str()
            )),
            _ => Ok(()),
        }
    }

    /// Verifies that the next issuer may be written, by the condition ReadyToSwitch.
    fn is_ready(&self) -> Result<(), String> {
        let status = self.basis.status;
        // A status of an operator that has ended says nothing about later Pods.
        let is_fresh = |at: &Time| self.basis.now.duration_since(at.0) <= READY_FOR;
        if status.ready_to_switch_at.as_ref().is_some_and(|at| !is_fresh(at)) {
            return Err(
                "by the clock here, the operator has not renewed the condition ReadyToSwitch for minutes".to_owned()
            );
        }
        let condition = status
            .condition(TrustCondition::ReadyToSwitch)
            .filter(|condition| condition.status != "True" || status.ready_to_switch_at.is_some());
        match condition.map(|condition| (condition.status.as_str(), &condition.message)) {
            Some(("True", _)) => {}
            Some((_, why)) => return Err(why.clone()),
            None => {
                let phase = status.phase.map_or("Unknown", TrustPhase::as_str);
                return Err(format!(
                    "it is not known yet that all proxies accept its certificates (the phase is {phase})"
                ));
            }
        }
        // The status may be about the same text before another one was there for a while.
        let landed = self.basis.bundle_written.and_then(|written| written.checked_add(INJECTED_AFTER).ok());
        match landed.filter(|landed| *landed > self.basis.now) {
            Some(landed) => Err(format!("until {landed}, new Pods may still get the previous bundle")),
            None => Ok(()),
        }
    }

    /// Returns that the next issuer is a root, with whose key every issuer can be signed. The present and the previous one may
    /// be, as that of `linkerd install`.
    pub(super) fn refused_root(&self, next: &IssuerFile) -> Option<String> {
        let (own, _) = chain::read(&next.certificates).ok()?;
        let is_present = self.present.as_ref().is_some_and(|present| present.first() == Some(&own));
        let is_root = self.known.iter().any(|root| *root.der == *own.der);
        (is_root && !is_present).then(|| {
            format!(
                "the issuer of Secret {NEXT_ISSUER} is a trust anchor itself: write an issuer that it has signed, and keep its \
                 key off the cluster"
            )
        })
    }

    /// Whether the present issuer belongs to a distrusted root, and connections may be cut.
    pub(super) fn is_cut(&self) -> bool {
        let distrusted = &self.basis.declared.distrusted;
        let is_of_distrusted = |present: &[ChainCertificate]| {
            let homes = self.homes(present);
            self.known.iter().any(|root| homes.contains(&root.id) && distrusted.mean(root))
        };
        distrusted.is_cut && self.present.as_deref().is_some_and(is_of_distrusted)
    }

    /// Verifies that new Pods accept this issuer. While connections are cut, nothing waits for the others.
    pub(super) fn is_accepted_by_bundle(&self, sent: &Sent) -> Result<(), String> {
        let reached = self.reached(sent, self.basis.now);
        match self.bundle.roots().iter().any(|root| reached.contains(&root.id)) {
            true => Ok(()),
            false => Err("the bundle does not have its root yet".to_owned()),
        }
    }

    /// Now, and the times within the lifetime of a leaf of this issuer at which one of its certificates, or of the others, has
    /// ended.
    fn times(&self, sent: &[ChainCertificate], others: &[ChainCertificate]) -> BTreeSet<Timestamp> {
        let now = self.basis.now;
        let end = now.checked_add(self.basis.settings.lifetime).unwrap_or(Timestamp::MAX);
        // No leaf is valid for longer than its issuer.
        let end = sent.first().map_or(end, |own| own.not_after.clamp(now, end));
        let ended =
            sent.iter().chain(others).filter_map(|it| it.not_after.checked_add(SignedDuration::from_secs(1)).ok());
        ended.filter(|time| (now..end).contains(time)).chain([now, end]).collect()
    }

    /// The known roots that leaves of the issuer reach at this time.
    pub(super) fn reached(&self, sent: &[ChainCertificate], time: Timestamp) -> BTreeSet<Fingerprint> {
        self.reached_of(&self.known, sent, time)
    }

    /// A root is reached by the certificates of the control plane and by those of workloads: name constraints may permit one of
    /// them only.
    fn reached_of(
        &self,
        roots: &[RootCertificate],
        sent: &[ChainCertificate],
        time: Timestamp,
    ) -> BTreeSet<Fingerprint> {
        let names = self.basis.settings.tested_names(self.basis.namespace);
        let leaves: Vec<_> = names.iter().filter_map(|name| UnsignedLeaf::new(sent, name, time)).collect();
        let reaches = |root: &&RootCertificate| !leaves.is_empty() && leaves.iter().all(|leaf| leaf.reaches(root));
        roots.iter().filter(reaches).map(|root| root.id).collect()
    }
}
