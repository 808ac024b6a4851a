//! Decides the next step of the certificates.
//!
//! In: the Secret, the webhook configurations, the time. Out: a [`Plan`].
//!
//! A new authority becomes effective in this order: it is in the Secret; it is in each `caBundle`; the API servers have
//! had time to read that; it signs the leaf. Nothing else is stored, so that any replica continues at any point.
//!
//! Always holds:
//! - the authority that signed a leaf that replicas may present stays in each `caBundle`;
//! - no leaf is signed by an authority that an API server may not trust yet, unless no API server trusts any other, or
//!   the present leaf is about to expire;
//! - after a bounded number of steps there is nothing to do, also if leaders take turns whose clocks differ by days.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    issue::{BACKDATE, SigningAuthority},
    registration::{BundlePatch, Registration},
    secret::{AUTHORITIES, SecretContent, SecretState},
    x509::{TrustCertificate, bundle},
};

/// The time that API servers get to read a webhook configuration.
pub(super) const PROPAGATION: Duration = Duration::from_secs(10);
/// The time for which authorities that are not in the Secret stay in a `caBundle` after a leaf was issued. Replicas use
/// a new leaf within seconds.
const HANDOVER: SignedDuration = SignedDuration::from_hours(1);
/// The time for which a missing leaf waits for a `caBundle` that cannot be written.
const PATIENCE: SignedDuration = SignedDuration::from_hours(1);
/// The maximum number of authorities in a `caBundle`.
const TRUSTED: usize = 8;
/// The longest time until the next pass.
const RECHECK: Duration = Duration::from_secs(600);

pub(super) struct Observation<'a> {
    pub(super) secret: &'a SecretState,
    pub(super) registrations: &'a [Registration],
    /// The DNS names of the leaf.
    pub(super) names: &'a [String],
    pub(super) now: Timestamp,
    /// The time for which this leader has seen the newest authority in each `caBundle`; `None` if a `caBundle` lacks
    /// it.
    pub(super) published_for: Option<Duration>,
}

/// The patches, and the next step. The step does not depend on whether the patches succeed.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) patches: Vec<BundlePatch>,
    pub(super) step: NextStep,
}

#[derive(Debug, PartialEq)]
pub(super) enum NextStep {
    /// The Secret is not ours.
    Refuse,
    /// Issue an authority, and keep these older ones beside it.
    IssueAuthority {
        kept: Vec<TrustCertificate>,
        why: &'static str,
    },
    IssueLeaf {
        authority: SigningAuthority,
        why: &'static str,
    },
    Wait(Duration),
}

// === impl Observation ===

impl Observation<'_> {
    pub(super) fn plan(&self) -> Plan {
        let issue = |kept, why| Plan { patches: Vec::new(), step: NextStep::IssueAuthority { kept, why } };
        let content = match self.secret {
            SecretState::Absent => return issue(Vec::new(), "the Secret does not exist"),
            SecretState::Foreign => return Plan { patches: Vec::new(), step: NextStep::Refuse },
            SecretState::Ours(content) => content,
        };
        let authority = match self.authority_in(content) {
            Ok(authority) => authority,
            Err(why) => return issue(self.kept(content), why),
        };
        let leaf_problem = self.leaf_problem(content, authority);
        let patches = self.patches(content, authority);
        let step = match leaf_problem {
            Some(why) if self.may_issue(content, authority) => {
                NextStep::IssueLeaf { authority: authority.clone(), why }
            }
            Some(_) => NextStep::Wait(self.published_for.map_or(RECHECK, |since| PROPAGATION.saturating_sub(since))),
            None => NextStep::Wait(self.until_next(content, authority)),
        };
        Plan { patches, step }
    }

    /// Whether each `caBundle` has the newest authority.
    pub(super) fn is_published(registrations: &[Registration], newest: &TrustCertificate) -> bool {
        registrations.iter().flat_map(|it| &it.webhooks).all(|webhook| webhook.trusted.contains(newest))
    }

    /// Returns the authority that signs, or why there must be another one.
    fn authority_in<'a>(&self, content: &'a SecretContent) -> Result<&'a SigningAuthority, &'static str> {
        let Some(authority) = &content.signing else { return Err("the Secret has no usable authority") };
        let certificate = &authority.certificate;
        // While a rotation is under way, another one would not help.
        let is_effective = content.leaf.as_ref().is_some_and(|leaf| leaf.is_signed_by(certificate));
        if certificate.is_expired(self.now) {
            Err("the authority has expired")
        } else if certificate.is_from_the_future(self.now) {
            // It begins to be valid later than any that is issued now, so this is not repeated: the new one is from the
            // future only for a clock that is behind this one by more than BACKDATE.
            Err("the authority is not valid yet")
        } else if certificate.is_due(self.now) && is_effective {
            Err("a third of the authority's life is left")
        } else {
            Ok(authority)
        }
    }

    /// Returns the authorities that stay beside a new one. The authority that signed the leaf always stays.
    fn kept(&self, content: &SecretContent) -> Vec<TrustCertificate> {
        let signer = |it: &TrustCertificate| content.leaf.as_ref().is_some_and(|leaf| leaf.is_signed_by(it));
        let mut kept: Vec<_> =
            content.authorities.iter().filter(|it| !it.is_expired(self.now) || signer(it)).cloned().collect();
        kept.sort_by_key(|it| !signer(it));
        kept.truncate(AUTHORITIES - 1);
        kept
    }

    /// Returns why the leaf must be replaced.
    fn leaf_problem(&self, content: &SecretContent, authority: &SigningAuthority) -> Option<&'static str> {
        let Some(leaf) = &content.leaf else { return Some("the Secret has no usable leaf") };
        if !leaf.is_signed_by(&authority.certificate) {
            Some("there is a new authority")
        } else if !self.names.iter().all(|name| leaf.is_for(name)) {
            Some("the leaf is for other names")
        } else if leaf.is_due(self.now) {
            Some("a third of the leaf's life is left")
        } else if leaf.is_from_the_future(self.now) {
            Some("the leaf is not valid yet")
        } else {
            None
        }
    }

    fn may_issue(&self, content: &SecretContent, authority: &SigningAuthority) -> bool {
        if self.published_for.is_some_and(|since| since >= PROPAGATION) {
            return true;
        }
        let others_are_trusted =
            self.registrations.iter().flat_map(|it| &it.webhooks).any(|webhook| {
                webhook.trusted.iter().any(|it| *it != authority.certificate && !it.is_expired(self.now))
            });
        match &content.leaf {
            // Without any other trusted authority, replicas present nothing that an API server accepts.
            None => !others_are_trusted || self.now >= after(issued(&authority.certificate), PATIENCE),
            Some(leaf) => self.now >= leaf.before_the_end(6),
        }
    }

    fn patches(&self, content: &SecretContent, authority: &SigningAuthority) -> Vec<BundlePatch> {
        let is_over = self.handover_end(content, authority).is_some_and(|end| self.now >= end);
        let wanted = |trusted: &[TrustCertificate]| {
            let mut wanted = content.authorities.clone();
            let others = trusted.iter().filter(|it| !is_over && !wanted.contains(it) && !it.is_expired(self.now));
            let others: Vec<_> = others.cloned().collect();
            wanted.extend(others);
            wanted.truncate(TRUSTED);
            bundle(&wanted)
        };
        self.registrations.iter().filter_map(|it| it.patch(|webhook| wanted(&webhook.trusted))).collect()
    }

    /// Returns when authorities that are not in the Secret are removed; `None` while the newest one has no leaf.
    fn handover_end(&self, content: &SecretContent, authority: &SigningAuthority) -> Option<Timestamp> {
        let leaf = content.leaf.as_ref().filter(|leaf| leaf.is_signed_by(&authority.certificate))?;
        Some(after(issued(leaf), HANDOVER))
    }

    /// Returns the time until the next step becomes necessary.
    fn until_next(&self, content: &SecretContent, authority: &SigningAuthority) -> Duration {
        let leaf = content.leaf.as_ref().map(TrustCertificate::renewal);
        let times = leaf.into_iter().chain([authority.certificate.renewal()]);
        let times = times.chain(self.handover_end(content, authority)).filter(|at| *at > self.now);
        let next = times.min().map(|at| at.duration_since(self.now).unsigned_abs());
        next.unwrap_or(RECHECK).min(RECHECK)
    }
}

/// Returns when a certificate was issued.
fn issued(certificate: &TrustCertificate) -> Timestamp {
    after(certificate.not_before, BACKDATE)
}

fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
