//! Which issuer the mesh should have. Pure.
//!
//! In: the present issuer, the next one and the previous one, as files; the declared roots, the bundle, and what the status
//! of the LinkerdTrust says. Out: the file to write, or why nothing is written. Always holds: what is written belongs to a
//! declared root, and the bundle has all declared ones; each proxy that accepts certificates of the present issuer accepts
//! those of the one to write, as long as it would accept those of the present one, or the status says of this bundle that all
//! proxies will; a bridge is kept until it ends.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use zeroize::Zeroizing;

use super::{
    seen::{DeclaredRoots, LeafSettings},
    words::{named, rounded},
};
use crate::{
    api::{
        LinkerdTrustStatus, NEXT_ISSUER, PREVIOUS_ISSUER,
        linkerd_trust::{TrustCondition, TrustPhase, TrustReason},
    },
    text::{and_more, hex, sha256},
    x509::{
        anchor_set::Fingerprint,
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
        chain::{self, LONGEST_SENT, UnsignedLeaf},
        ecdsa::{SigningKey, SubjectKey, UnusableKey},
        pem,
        verify::sentence,
    },
};

/// The maximum number of roots in a sentence.
const SHOWN: usize = 5;
/// The number of digits of a fingerprint in a sentence.
const SHOWN_DIGITS: usize = 8;
/// Injectors read the bundle from a file, which kubelets update up to 160 s after the ConfigMap; and a Pod that was reviewed
/// before is there a minute later.
pub(crate) const INJECTED_AFTER: SignedDuration = SignedDuration::from_secs(240);
/// How long the condition ReadyToSwitch counts. It is renewed each minute.
const READY_FOR: SignedDuration = SignedDuration::from_secs(180);
const UNREADABLE: &str = "the issuer in Secret linkerd-identity-issuer cannot be read: restore it, or write the issuer of a \
                          declared trust anchor into it";

/// The certificates of an issuer, and its key.
pub(crate) struct IssuerFile {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// The files of the Secrets; `None` for one that does not exist.
#[derive(Default)]
pub(crate) struct SeenIssuers {
    pub(crate) present: Option<IssuerFile>,
    pub(crate) next: Option<IssuerFile>,
    pub(crate) previous: Option<IssuerFile>,
}

/// Where an issuer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssuerPlace {
    Next,
    Previous,
}

#[derive(Debug, PartialEq)]
pub(crate) enum IssuerStep {
    /// The present issuer is the one that the mesh should have.
    Synced(String),
    /// The present issuer becomes this one.
    Write(NewIssuer),
    Held(TrustReason, String),
}

/// The issuer to write. Its key is that of its place.
#[derive(Debug, PartialEq)]
pub(crate) struct NewIssuer {
    pub(crate) place: IssuerPlace,
    pub(crate) certificates: String,
    /// For people.
    pub(crate) name: String,
    /// Whether the present issuer is saved before: it is usable, and the way back from the declared roots needs it.
    pub(crate) saves_present: bool,
}

/// What decides beside the issuers.
pub(crate) struct IssuerBasis<'a> {
    /// The namespace of the control plane.
    pub(crate) namespace: &'a str,
    pub(crate) settings: &'a LeafSettings,
    pub(crate) declared: &'a DeclaredRoots,
    /// The text of the bundle, and when it was written.
    pub(crate) bundle: &'a str,
    pub(crate) bundle_written: Option<Timestamp>,
    pub(crate) status: &'a LinkerdTrustStatus,
    pub(crate) generation: i64,
    pub(crate) now: Timestamp,
}

/// The certificates that are sent with each leaf, the issuer's first.
type Sent = Vec<ChainCertificate>;

/// Why an issuer must not be that of the mesh. The text continues a sentence about it.
struct RefusedIssuer {
    why: String,
    is_of_other_root: bool,
}

/// What the basis and the present issuer say about a candidate.
struct IssuerJudge<'a> {
    basis: &'a IssuerBasis<'a>,
    bundle: AnchorBundle,
    /// The roots of the bundle and of the declaration, each once.
    known: Vec<RootCertificate>,
    /// `None` if it cannot be read.
    present: Option<Sent>,
    has_present_key: bool,
}

// === impl IssuerPlace ===

impl IssuerPlace {
    /// Returns the name of the Secret.
    pub(crate) const fn secret(self) -> &'static str {
        match self {
            Self::Next => NEXT_ISSUER,
            Self::Previous => PREVIOUS_ISSUER,
        }
    }
}

// === impl NewIssuer ===

impl NewIssuer {
    /// Returns the certificate of the issuer, without those after it.
    pub(crate) fn own(&self) -> &str {
        self.certificates.split_inclusive("-----END CERTIFICATE-----").next().unwrap_or_default()
    }
}

// === impl IssuerBasis ===

impl IssuerBasis<'_> {
    /// Whether the status says that no proxy needs another issuer.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_end = matches!(self.status.phase, Some(TrustPhase::Complete | TrustPhase::Steady));
        let has_all = self.status.proxies.as_ref().is_some_and(|proxies| proxies.unobserved == 0);
        is_end && has_all && self.is_status_current()
    }

    /// Whether the status is about this bundle and this declaration.
    fn is_status_current(&self) -> bool {
        self.status.observed_generation == Some(self.generation)
            && self.status.trust_roots_sha256.as_ref() == Some(&sha256(self.bundle))
    }

    /// Returns the issuer that the mesh should have.
    pub(crate) fn step(&self, seen: &SeenIssuers) -> IssuerStep {
        let bundle = match AnchorBundle::parse(self.bundle.as_bytes()) {
            Ok(bundle) => bundle,
            Err(why) => return IssuerStep::Held(TrustReason::IssuerHeld, format!("the bundle cannot be used: {why}")),
        };
        let judge = IssuerJudge::new(self, bundle, seen.present.as_ref());
        let is_desired = judge.present.as_ref().is_some_and(|present| judge.belongs_to_declared(present));
        let has_previous = seen.previous.as_ref().is_some_and(|previous| judge.is_usable(previous));
        let next = seen.next.as_ref().map(|next| judge.candidate(next));
        // After the declaration has changed back, the next issuer may belong to the root that is not declared any more.
        if !is_desired
            && !matches!(next, Some(Ok(_)))
            && let Some(Ok(previous)) = seen.previous.as_ref().map(|previous| judge.candidate(previous))
        {
            return judge.step(&previous, IssuerPlace::Previous, has_previous);
        }
        match next {
            Some(Ok(next)) => judge.step(&next, IssuerPlace::Next, has_previous),
            _ if judge.present.is_none() => IssuerStep::Held(TrustReason::IssuerHeld, UNREADABLE.to_owned()),
            // After the way back, the next issuer is that of the root which is not declared any more.
            Some(Err(RefusedIssuer { is_of_other_root: true, .. })) if is_desired => IssuerStep::Synced(format!(
                "the issuer belongs to a declared trust anchor. That of Secret {NEXT_ISSUER} does not, and is not used"
            )),
            Some(Err(RefusedIssuer { why, .. })) => {
                IssuerStep::Held(TrustReason::IssuerRefused, format!("the issuer of Secret {NEXT_ISSUER} {why}"))
            }
            None if is_desired => IssuerStep::Synced("the issuer belongs to a declared trust anchor".to_owned()),
            None => IssuerStep::Held(
                TrustReason::IssuerAwaited,
                format!(
                    "write an issuer of {} into the Secret {NEXT_ISSUER}",
                    list(self.declared.bundle.roots().iter())
                ),
            ),
        }
    }
}

// === impl IssuerJudge ===

impl<'a> IssuerJudge<'a> {
    fn new(basis: &'a IssuerBasis<'a>, bundle: AnchorBundle, file: Option<&IssuerFile>) -> Self {
        let declared = basis.declared.bundle.roots().iter().chain(&basis.declared.signers);
        let mut ids = BTreeSet::new();
        let known = bundle.roots().iter().chain(declared).filter(|root| ids.insert(root.id)).cloned().collect();
        let read = file.and_then(|file| chain::read(&file.certificates).ok());
        let present = read.map(|(own, others)| chain::sent(own, others, basis.now));
        let own = present.as_ref().and_then(|present| present.first());
        let has_present_key = own.zip(file).is_some_and(|(own, file)| signing_key(own, file).is_ok());
        Self { basis, bundle, known, present, has_present_key }
    }

    /// Returns what is sent with leaves of this issuer: the certificates of its file, the declared bridges, and the bridges of
    /// the present issuer, which proxies with an older root may need.
    ///
    /// # Errors
    /// Why it must not be the issuer.
    fn candidate(&self, file: &IssuerFile) -> Result<Sent, RefusedIssuer> {
        let sent = self.sent(file).map_err(|why| RefusedIssuer { why, is_of_other_root: false })?;
        if self.belongs_to_declared(&sent) {
            return Ok(sent);
        }
        let roots = self.basis.declared.bundle.roots();
        let names = self.basis.settings.tested_names(self.basis.namespace);
        let tested = |name: &String| UnsignedLeaf::new(&sent, name, self.basis.now)?.reached(roots).err();
        // That no root has signed it is said by the list.
        let error = names.iter().find_map(tested).filter(|error| *error != webpki::Error::UnknownIssuer);
        let is_of_other_root = error.is_none();
        let error = error.map_or_else(String::new, |error| format!(" ({})", sentence(&error)));
        let why = format!("does not belong to a declared trust anchor{error}: declared is {}", list(roots.iter()));
        Err(RefusedIssuer { why, is_of_other_root })
    }

    fn sent(&self, file: &IssuerFile) -> Result<Sent, String> {
        let (own, mut others) = chain::read(&file.certificates)?;
        signing_key(&own, file)?;
        let (now, lifetime) = (self.basis.now, self.basis.settings.lifetime);
        if !own.is_authority() {
            return Err("is not a certificate authority (CA)".to_owned());
        }
        if now < own.not_before {
            return Err(format!("is valid only from {}", own.not_before));
        }
        if own.not_after.duration_since(now) <= lifetime {
            return Err(format!(
                "ends at {}, within the lifetime of a certificate ({})",
                own.not_after,
                rounded(lifetime)
            ));
        }
        let kept = self.present.iter().flatten().skip(1);
        for further in self.basis.declared.bridges.iter().chain(kept) {
            if !others.contains(further) {
                others.push(further.clone());
            }
        }
        let sent = chain::sent(own, others, now);
        if sent.len() > LONGEST_SENT {
            return Err(format!("would be sent with more than {LONGEST_SENT} certificates, with the bridges after it"));
        }
        Ok(sent)
    }

    fn step(&self, sent: &Sent, place: IssuerPlace, has_previous: bool) -> IssuerStep {
        let secret = place.secret();
        let name = sent.first().map(|own| {
            let digits = sha256(&own.der);
            format!("{} ({})", own.name(), digits.get(..SHOWN_DIGITS).unwrap_or_default())
        });
        let name = name.unwrap_or_default();
        if self.has_present_key && self.present.as_ref().is_some_and(|present| is_same(present, sent)) {
            return IssuerStep::Synced(format!("the issuer is that of Secret {secret}: {name}"));
        }
        let missing = self.basis.declared.missing_in(self.bundle.roots());
        if !missing.is_empty() {
            let message =
                format!("the issuer of Secret {secret} waits: the bundle lacks {}", list(missing.into_iter()));
            return IssuerStep::Held(TrustReason::IssuerHeld, message);
        }
        let accepted = match self.unknown_signer_lost(sent) {
            Some(lost) => Err(format!(
                "the present issuer is sent with {lost}, which an unknown root has signed, and proxies may trust only that root. \
                 Append this certificate and its root to spec.bridge, or write the issuer yourself"
            )),
            None if self.is_accepted_as_present(sent) => Ok(()),
            None => self.is_accepted_by_status(sent),
        };
        match accepted {
            Ok(()) => {
                let certificates = sent.iter().map(|certificate| pem::certificate(&certificate.der)).collect();
                // The issuer of the root before must survive a renewal of the present one, and another bridge after it.
                let present = self.present.as_deref().unwrap_or_default();
                let is_way_back = self.homes(present) != self.homes(sent) || !has_previous;
                let is_other = present.first() != sent.first();
                let saves_present = place == IssuerPlace::Next && self.has_present_key && is_other && is_way_back;
                IssuerStep::Write(NewIssuer { place, certificates, name, saves_present })
            }
            Err(why) => {
                IssuerStep::Held(TrustReason::IssuerHeld, format!("the issuer of Secret {secret} waits: {why}"))
            }
        }
    }

    /// Returns the name of a certificate of the present issuer that a root has signed which is not known here, if leaves of this
    /// issuer may not reach that root. No status is about such a root.
    fn unknown_signer_lost(&self, sent: &Sent) -> Option<String> {
        let present = self.present.as_ref()?;
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

    /// Whether each proxy that accepts certificates of the present issuer accepts those of this one, too, at any time until a
    /// leaf that is signed now has ended.
    fn is_accepted_as_present(&self, sent: &Sent) -> bool {
        let Some(present) = &self.present else { return false };
        // Proxies may also trust a root that has the name and the key of one of these certificates: one that another has signed.
        let is_root = |(at, certificate): &(usize, &ChainCertificate)| *at > 0 || certificate.is_signed_by(certificate);
        let own = present.iter().enumerate().filter(is_root).filter_map(|(_, it)| RootCertificate::parse(&it.der));
        let tested: Vec<_> = self.known.iter().cloned().chain(own).collect();
        let reached = |issuer: &Sent, time: Timestamp| self.reached_of(&tested, issuer, time);
        let is_kept = |time: Timestamp| reached(present, time).is_subset(&reached(sent, time));
        !self.reached(present, self.basis.now).is_empty()
            && self.times(&[present, sent].map(Vec::as_slice).concat()).into_iter().all(is_kept)
    }

    /// Verifies that the status says that all proxies accept what this issuer reaches.
    fn is_accepted_by_status(&self, sent: &Sent) -> Result<(), String> {
        let status = self.basis.status;
        if !self.basis.is_status_current() {
            return Err("the status is not about the present bundle and spec yet".to_owned());
        }
        // A status of an operator that has ended says nothing about later Pods.
        let is_fresh = |at: &Time| self.basis.now.duration_since(at.0) <= READY_FOR;
        if status.ready_to_switch_at.as_ref().is_some_and(|at| !is_fresh(at)) {
            return Err("the operator has not renewed the condition ReadyToSwitch for minutes".to_owned());
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
        if let Some(landed) = landed.filter(|landed| *landed > self.basis.now) {
            return Err(format!("until {landed}, new Pods may still get the previous bundle"));
        }
        let always = self.times(sent).into_iter().map(|time| self.reached(sent, time));
        let always = always.reduce(|one, other| &one & &other).unwrap_or_default();
        let declared = self.basis.declared;
        let all = self.bundle.roots().iter().chain(declared.bundle.roots()).chain(&declared.signers);
        let hashes: BTreeSet<_> = all.filter(|root| always.contains(&root.id)).map(|root| hex(root.sha256)).collect();
        let is_enough = !status.sufficient_anchors.is_empty();
        match is_enough && status.sufficient_anchors.iter().all(|needed| hashes.contains(needed)) {
            true => Ok(()),
            false => Err("for the lifetime of a certificate, its certificates do not reach all of \
                          status.sufficientAnchors: some proxies would refuse them"
                .to_owned()),
        }
    }

    /// Now, and the times within the lifetime of a leaf at which one of these certificates has ended.
    fn times(&self, certificates: &[ChainCertificate]) -> BTreeSet<Timestamp> {
        let now = self.basis.now;
        let end = now.checked_add(self.basis.settings.lifetime).unwrap_or(Timestamp::MAX);
        let ended = certificates.iter().filter_map(|it| it.not_after.checked_add(SignedDuration::from_secs(1)).ok());
        ended.filter(|time| (now..end).contains(time)).chain([now, end]).collect()
    }

    /// The known roots that leaves of the issuer reach at this time.
    fn reached(&self, sent: &[ChainCertificate], time: Timestamp) -> BTreeSet<Fingerprint> {
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

    /// Whether the file has an issuer with its key that has not ended.
    fn is_usable(&self, file: &IssuerFile) -> bool {
        let read = chain::read(&file.certificates);
        read.is_ok_and(|(own, _)| own.not_after > self.basis.now && signing_key(&own, file).is_ok())
    }

    /// Whether leaves of the issuer reach a declared root without a bridge.
    fn belongs_to_declared(&self, sent: &Sent) -> bool {
        let homes = self.homes(sent);
        self.basis.declared.bundle.roots().iter().any(|root| homes.contains(&root.id))
    }

    /// The known roots that leaves of the issuer reach without a bridge.
    fn homes(&self, sent: &[ChainCertificate]) -> BTreeSet<Fingerprint> {
        let is_bridge = |certificate: &ChainCertificate| {
            let is_of = |root: &RootCertificate| certificate.has_name_and_key_of(&root.anchor);
            self.known.iter().any(is_of) && !certificate.is_signed_by(certificate)
        };
        let alone: Vec<_> = sent.iter().filter(|certificate| !is_bridge(certificate)).cloned().collect();
        self.reached(&alone, self.basis.now)
    }
}

/// Whether both have the same issuer, and the same further certificates in any order.
fn is_same(one: &Sent, other: &Sent) -> bool {
    let has_all = one.iter().all(|certificate| other.contains(certificate));
    one.first() == other.first() && one.len() == other.len() && has_all
}

fn signing_key(own: &ChainCertificate, file: &IssuerFile) -> Result<SigningKey, String> {
    let public = SubjectKey::of_issuer(&own.key_info).map_err(|why| format!("has {why}"))?;
    SigningKey::from_pem(&file.key, &public).map_err(|unusable| match unusable {
        UnusableKey::File(why) => format!("has a key file that {why}"),
        UnusableKey::Mismatch => "has the key of another certificate".to_owned(),
    })
}

fn list<'a>(roots: impl ExactSizeIterator<Item = &'a RootCertificate>) -> String {
    let count = roots.len();
    and_more(roots.take(SHOWN).map(named), count, ", ")
}
