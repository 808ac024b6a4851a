//! Which issuer the mesh should have. Pure.
//!
//! In: the files of the present, the next and the previous issuer; the declared roots, the bundle, the status of the
//! LinkerdTrust. Out: the file to write, or why not. Always holds: what is written is no new root, and belongs to a declared
//! one, of which the bundle lacks none, or it is the present issuer renewed; a proxy that accepts certificates of the present issuer
//! accepts those of the one to write, or the status says of this bundle that all proxies will; only while connections are cut,
//! the root of the issuer in the bundle is enough; bridges are kept until they end; cert-manager's Secret is not written.

pub(crate) mod acceptance;
#[cfg(test)]
mod renewal_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use jiff::Timestamp;
use zeroize::Zeroizing;

use super::{
    seen::{DeclaredRoots, LeafSettings},
    words::{named, rounded},
};
use crate::{
    api::{
        ISSUER, LinkerdTrustStatus, NEXT_ISSUER, PREVIOUS_ISSUER,
        linkerd_trust::{TrustPhase, TrustReason},
    },
    text::{and_more, sha256},
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
const UNREADABLE: &str = "the issuer in Secret linkerd-identity-issuer cannot be read: restore it, or write the issuer of a \
                          declared trust anchor into it";

/// The certificates of an issuer, and its key.
#[derive(Default)]
pub(crate) struct IssuerFile {
    pub(crate) certificates: Vec<u8>,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

/// The files of the Secrets; `None` for one that does not exist. Without the present one there is no mesh.
#[derive(Default)]
pub(crate) struct SeenIssuers {
    pub(crate) present: IssuerFile,
    pub(crate) next: Option<IssuerFile>,
    pub(crate) previous: Option<IssuerFile>,
    /// The Certificates from which cert-manager writes the present and the next issuer, by their annotations.
    pub(crate) present_certificate: Option<String>,
    pub(crate) next_certificate: Option<String>,
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
    /// The certificate of the root that it belongs to.
    pub(crate) root: String,
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
        let judge = IssuerJudge::new(self, bundle, &seen.present);
        match judge.next_step(seen) {
            IssuerStep::Write(_) if let Some(certificate) = &seen.present_certificate => {
                self.written_by_cert_manager(certificate, seen)
            }
            // Otherwise the operator could only watch.
            IssuerStep::Held(TrustReason::IssuerAwaited, _) | IssuerStep::Synced(_)
                if seen.next.is_none()
                    && let Some(certificate) = &seen.present_certificate =>
            {
                self.written_by_cert_manager(certificate, seen)
            }
            step => step,
        }
    }

    /// Verifies that no proxy refuses this issuer, which people have written in place of the present one. Both are files of
    /// certificates.
    ///
    /// # Errors
    /// The reason why some may.
    pub(crate) fn check_written(&self, present: &[u8], next: &[u8]) -> Result<(), String> {
        let bundle = AnchorBundle::parse(self.bundle.as_bytes())?;
        let file = IssuerFile { certificates: present.to_vec(), ..IssuerFile::default() };
        let (own, others) = chain::read(next).map_err(|why| format!("it {why}"))?;
        let sent = chain::sent(own, others, self.now);
        let judge = IssuerJudge::new(self, bundle, &file);
        if judge.is_cut() && judge.belongs_to_declared(&sent) {
            return judge.is_accepted_by_bundle(&sent);
        }
        let is_accepted = judge.unknown_signer_lost(&sent).is_none() && judge.is_accepted_as_present(&sent);
        match is_accepted || judge.is_present_refused_by_all(&sent) {
            true => Ok(()),
            false => judge.is_accepted_by_status(&sent),
        }
    }

    /// Verifies that no running proxy refuses this file of an issuer for certain, if the present issuer is not known.
    ///
    /// # Errors
    /// How many do.
    pub(crate) fn check_first(&self, first: &[u8]) -> Result<(), String> {
        let bundle = AnchorBundle::parse(self.bundle.as_bytes())?;
        let (own, others) = chain::read(first).map_err(|why| format!("it {why}"))?;
        let sent = chain::sent(own, others, self.now);
        IssuerJudge::new(self, bundle, &IssuerFile::default()).is_refused_by_none(&sent)
    }

    fn written_by_cert_manager(&self, certificate: &str, seen: &SeenIssuers) -> IssuerStep {
        let namespace = self.namespace;
        let message = match seen.next_certificate.as_deref() == Some(certificate) {
            true => format!(
                "the Certificate {certificate} writes the Secret {NEXT_ISSUER}, and {ISSUER} still has its annotation. Remove \
                 it: kubectl -n {namespace} patch secret {ISSUER} --type=merge -p '{{\"metadata\":{{\"annotations\":\
                 {{\"cert-manager.io/certificate-name\":null}},\"ownerReferences\":null}}}}'"
            ),
            false => format!(
                "cert-manager writes the Secret {ISSUER} from the Certificate {certificate}, so the operator does not. Let it \
                 write the next issuer: kubectl -n {namespace} patch certificate {certificate} --type=merge -p \
                 '{{\"spec\":{{\"secretName\":\"{NEXT_ISSUER}\"}}}}'"
            ),
        };
        IssuerStep::Held(TrustReason::WrittenByCertManager, message)
    }
}

// === impl IssuerJudge ===

impl<'a> IssuerJudge<'a> {
    fn new(basis: &'a IssuerBasis<'a>, bundle: AnchorBundle, file: &IssuerFile) -> Self {
        let declared = basis.declared.bundle.roots().iter().chain(&basis.declared.signers);
        let declared = declared.chain(basis.declared.distrusted.roots());
        let mut ids = BTreeSet::new();
        let known = bundle.roots().iter().chain(declared).filter(|root| ids.insert(root.id)).cloned().collect();
        let present = chain::read(&file.certificates).ok().map(|(own, others)| chain::sent(own, others, basis.now));
        let own = present.as_ref().and_then(|present| present.first());
        let has_present_key = own.is_some_and(|own| signing_key(own, file).is_ok());
        Self { basis, bundle, known, present, has_present_key }
    }

    /// Returns the issuer that the mesh should have.
    fn next_step(&self, seen: &SeenIssuers) -> IssuerStep {
        let is_desired = self.present.as_ref().is_some_and(|present| self.belongs_to_declared(present));
        let has_previous = seen.previous.as_ref().is_some_and(|previous| self.is_usable(previous));
        if let Some(why) = seen.next.as_ref().and_then(|next| self.refused_root(next)) {
            return IssuerStep::Held(TrustReason::IssuerRefused, why);
        }
        let next = match seen.next.as_ref().map(|next| self.candidate(next)) {
            Some(Ok(next)) => return self.step(&next, IssuerPlace::Next, has_previous),
            Some(Err(refused)) => Some(refused),
            None => None,
        };
        // After the declaration has changed back, the next issuer may belong to the root that is not declared any more.
        if !is_desired && let Some(Ok(previous)) = seen.previous.as_ref().map(|previous| self.candidate(previous)) {
            return self.step(&previous, IssuerPlace::Previous, has_previous);
        }
        // While the issuer of the next root is awaited, the present one must not run out.
        if let Some(renewed) = seen.next.as_ref().and_then(|next| self.renewed(next)) {
            return match self.step(&renewed, IssuerPlace::Next, has_previous) {
                IssuerStep::Synced(_) => self.awaited(seen),
                step => step,
            };
        }
        match next {
            _ if self.present.is_none() => IssuerStep::Held(TrustReason::IssuerHeld, UNREADABLE.to_owned()),
            // After the way back, the next issuer is that of the root which is not declared any more.
            Some(RefusedIssuer { is_of_other_root: true, .. }) if is_desired && seen.next_certificate.is_none() => {
                IssuerStep::Synced(format!(
                    "the issuer belongs to a declared trust anchor. That of Secret {NEXT_ISSUER} does not, and is not used"
                ))
            }
            // Then the present one is not renewed.
            Some(RefusedIssuer { why, .. }) => {
                IssuerStep::Held(TrustReason::IssuerRefused, format!("the issuer of Secret {NEXT_ISSUER} {why}"))
            }
            None if is_desired => IssuerStep::Synced("the issuer belongs to a declared trust anchor".to_owned()),
            None => self.awaited(seen),
        }
    }

    fn awaited(&self, seen: &SeenIssuers) -> IssuerStep {
        let declared = list(self.basis.declared.bundle.roots().iter());
        match &seen.next_certificate {
            Some(certificate) => IssuerStep::Held(
                TrustReason::IssuerRefAwaited,
                format!(
                    "change the issuerRef of the Certificate {certificate}, from which cert-manager writes the Secret \
                     {NEXT_ISSUER}, to an issuer of {declared}"
                ),
            ),
            None => {
                let present = match seen.next {
                    Some(_) => ": that which it has belongs to the trust anchor of the present one",
                    None => "",
                };
                let message = format!("write an issuer of {declared} into the Secret {NEXT_ISSUER}{present}");
                IssuerStep::Held(TrustReason::IssuerAwaited, message)
            }
        }
    }

    /// Returns what is sent with leaves of this issuer: the certificates of its file, the declared bridges, and the bridges of
    /// the present issuer, which proxies with an older root may need.
    ///
    /// # Errors
    /// Why it must not be the issuer.
    fn candidate(&self, file: &IssuerFile) -> Result<Sent, RefusedIssuer> {
        let bridges = &self.basis.declared.bridges;
        let sent = self.sent(file, bridges).map_err(|why| RefusedIssuer { why, is_of_other_root: false })?;
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

    /// Returns what is sent with leaves of this issuer, if it belongs to the roots of the present one, and can be used.
    fn renewed(&self, file: &IssuerFile) -> Option<Sent> {
        self.sent(file, &[]).ok().filter(|sent| self.has_roots_of_present(sent))
    }

    fn has_roots_of_present(&self, sent: &Sent) -> bool {
        let homes = self.homes(sent);
        !homes.is_empty() && self.present.as_ref().is_some_and(|present| self.homes(present) == homes)
    }

    fn sent(&self, file: &IssuerFile, bridges: &[ChainCertificate]) -> Result<Sent, String> {
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
        // Which names proxies have is not seen here.
        let known: Vec<_> = self.present.iter().flatten().filter_map(ChainCertificate::excluded_names).collect();
        let has_others = |it: &ChainCertificate| it.excluded_names().is_some_and(|names| !known.contains(&names));
        if has_others(&own) || others.iter().any(has_others) {
            return Err(
                "excludes names by its name constraints, and proxies with these names would be refused".to_owned()
            );
        }
        let kept = self.present.iter().flatten().skip(1);
        for further in bridges.iter().chain(kept) {
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
        // One of several may be one that cannot be added.
        let is_cut = self.is_cut() && self.belongs_to_declared(sent);
        if !missing.is_empty() && !is_cut && !self.has_roots_of_present(sent) {
            let message =
                format!("the issuer of Secret {secret} waits: the bundle lacks {}", list(missing.into_iter()));
            return IssuerStep::Held(TrustReason::IssuerHeld, message);
        }
        let accepted = match self.unknown_signer_lost(sent) {
            _ if is_cut => self.is_accepted_by_bundle(sent),
            Some(lost) => Err(format!(
                "an unknown root has signed a certificate of the present issuer ({lost}), and proxies may trust only that root. It \
                 waits until each proxy trusts the root of the next issuer: restart the others"
            )),
            _ if self.is_present_refused_by_all(sent) => Ok(()),
            None if self.is_accepted_as_present(sent) => Ok(()),
            None if self.belongs_to_another_declared(sent) => {
                let message = format!(
                    "the issuer of Secret {secret} belongs to another declared trust anchor than the present one, and not all \
                     proxies that accept the present one accept it. Declare only the trust anchor of the next issuer"
                );
                return IssuerStep::Held(TrustReason::IssuerRefused, message);
            }
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
                let homes = self.homes(sent);
                let root = self.known.iter().find(|root| homes.contains(&root.id));
                let root = root.map(|root| pem::certificate(&root.der)).unwrap_or_default();
                IssuerStep::Write(NewIssuer { place, certificates, root, name, saves_present })
            }
            Err(why) => {
                IssuerStep::Held(TrustReason::IssuerHeld, format!("the issuer of Secret {secret} waits: {why}"))
            }
        }
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

    /// Whether the present issuer, and this one, belong to declared roots, and to none in common.
    fn belongs_to_another_declared(&self, sent: &Sent) -> bool {
        let Some(present) = self.present.as_ref().filter(|present| self.belongs_to_declared(present)) else {
            return false;
        };
        self.belongs_to_declared(sent) && self.homes(present).is_disjoint(&self.homes(sent))
    }

    /// The known roots that leaves of the issuer reach without a bridge.
    fn homes(&self, sent: &[ChainCertificate]) -> BTreeSet<Fingerprint> {
        self.reached(&self.without_bridges(sent), self.basis.now)
    }

    fn without_bridges(&self, sent: &[ChainCertificate]) -> Sent {
        let is_bridge = |certificate: &ChainCertificate| {
            let is_of = |root: &RootCertificate| certificate.has_name_and_key_of(&root.anchor);
            self.known.iter().any(is_of) && !certificate.is_signed_by(certificate)
        };
        sent.iter().filter(|certificate| !is_bridge(certificate)).cloned().collect()
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
