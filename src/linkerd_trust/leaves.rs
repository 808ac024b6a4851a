//! What each proxy presented when it was asked for its certificate. Pure.
//!
//! In: the running proxies, the certificates that they presented. Out: the proxies to ask next, and [`SeenLeaves`]. Always
//! holds: at rest, a proxy is asked again only when it must have renewed its certificate; what was seen before a change is
//! not believed after it; a proxy that was not asked, or did not answer, is not observed; a proxy that does not answer is
//! asked less and less; a stopped Pod is forgotten.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    api::Uid,
    cluster::kinds::pod::Pod,
    trust::seen::SeenLeaves,
    x509::{
        anchors::RootCertificate,
        certificate::ChainCertificate,
        chain::LONGEST_SENT,
        verify::{ALGORITHMS, TestedLeaf},
    },
};

/// The maximum number of different chains. A mesh has a few; tenants may present any.
const MAX_CHAINS: usize = 20;
/// The same within a namespace, so that one tenant cannot have all the places.
const MAX_CHAINS_OF_NAMESPACE: usize = 4;
/// A proxy renews its certificate when this part of its validity is over, in percent.
const RENEWED_AT: i32 = 70;
/// But at the latest after this time.
const LONGEST_RENEWAL: SignedDuration = SignedDuration::from_hours(24);
/// The time that a proxy has for the renewal, and the shortest time until it is asked again. If certificates are short, a
/// tenth of their validity.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);
const SHORTEST: SignedDuration = SignedDuration::from_secs(5);
/// The number of doublings of the time until a proxy that does not answer is asked again.
const MAX_DOUBLINGS: u32 = 5;

/// What a proxy presented.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedLeaf {
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
    /// The certificates that the proxy sent after its own.
    pub(super) chain: Vec<ChainCertificate>,
}

/// What is known about all proxies.
#[derive(Default)]
pub(super) struct LeafBook {
    entries: HashMap<Uid, LeafEntry>,
    chains: HashSet<Arc<[ChainCertificate]>>,
    /// The running proxies that were not asked yet, or cannot be.
    unasked: usize,
    /// Whether each proxy that ran at some time was asked once, since the last change of anything but the issuer.
    has_begun: bool,
    /// Whether each of these was asked since the last [`LeafBook::ask_all`].
    is_complete: bool,
    has_forgotten: bool,
    /// What must not change while knowledge is gathered, as of the last [`LeafBook::ask_again`].
    basis: Option<(LeafBasis, Timestamp)>,
    /// The number of times that all proxies had to be asked again.
    change: u64,
}

/// What decides about the certificates of proxies, and what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeafBasis {
    /// The resource, and its generation.
    pub(super) uid: Arc<str>,
    pub(super) generation: i64,
    /// The identities of proxies end with it.
    pub(super) trust_domain: String,
    /// The SHA-256 of the bundle.
    pub(super) bundle: Option<String>,
    /// The SHA-256 of the issuer of the newest certificate.
    pub(super) issuer: Option<String>,
}

/// When each proxy is asked again because of what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextQuestion {
    Now,
    /// Unless something changes before.
    After(Duration),
    OnChange,
}

struct LeafEntry {
    namespace: Arc<str>,
    /// `None` if the last question had no answer: it was asked because its certificate may have changed.
    known: Option<KnownLeaf>,
    /// Whether the answer was a certificate that has ended, with which a proxy has no connections.
    has_ended: bool,
    failures: u32,
    due: Timestamp,
    /// Whether it has to be asked again.
    is_stale: bool,
}

struct KnownLeaf {
    not_before: Timestamp,
    not_after: Timestamp,
    chain: Arc<[ChainCertificate]>,
}

// === impl ObservedLeaf ===

impl ObservedLeaf {
    /// Reads a certificate and the ones that are sent after it; `None` if the issuer did not sign it for this identity, or
    /// they cannot be read. A certificate that is sent alone is one of a root. Everyone who can create a Pod can present any
    /// certificate.
    pub(super) fn read(
        der: &[u8],
        sent: &[&[u8]],
        identity: &str,
        roots: &[ChainCertificate],
        now: Timestamp,
    ) -> Option<Self> {
        let leaf = ChainCertificate::parse(der)?;
        // Without a part of it, the chain would be another one.
        if sent.len() > LONGEST_SENT {
            return None;
        }
        let sent: Vec<_> = sent.iter().map(|der| ChainCertificate::parse(der)).collect::<Option<_>>()?;
        // An expired certificate is read, too: `LeafBook` counts these apart from proxies that do not answer.
        let valid = leaf.not_after.checked_sub(SignedDuration::from_secs(1)).unwrap_or(now).min(now);
        let tested = TestedLeaf { der, chain: &[], name: identity, now: valid };
        let is_issuer = |certificate: &&ChainCertificate| {
            let anchor = RootCertificate::parse(&certificate.der);
            anchor.is_some_and(|anchor| tested.reaches(&anchor, ALGORITHMS))
        };
        let chain = match sent.first() {
            Some(issuer) => is_issuer(&issuer).then_some(sent)?,
            None => vec![roots.iter().find(is_issuer)?.clone()],
        };
        Some(Self { not_before: leaf.not_before, not_after: leaf.not_after, chain })
    }
}

// === impl LeafBook ===

impl LeafBook {
    /// Returns the Pods whose proxies must be asked now, at most `limit`, those that wait for the longest time. Forgets those
    /// that do not run anymore. `unreachable` is the number of proxies that cannot be asked at all.
    pub(super) fn due(
        &mut self,
        running: &[(Uid, Arc<Pod>)],
        unreachable: usize,
        limit: usize,
        now: Timestamp,
    ) -> Vec<(Uid, Arc<Pod>)> {
        let uids: HashSet<&Uid> = running.iter().map(|(uid, _)| uid).collect();
        let known = self.entries.len();
        self.entries.retain(|uid, _| uids.contains(uid));
        self.has_forgotten |= self.entries.len() < known;
        self.chains.retain(|chain| Arc::strong_count(chain) > 1);
        let due = |uid: &Uid| self.entries.get(uid).map_or(Timestamp::MIN, |entry| entry.due);
        let mut all: Vec<_> = running.iter().map(|it| (due(&it.0), it)).filter(|(due, _)| *due <= now).collect();
        let unasked = running.len().saturating_sub(self.entries.len());
        // A tenant whose proxies must be asked all the time must not keep the others from being asked.
        all.sort_by_key(|(due, _)| *due);
        all.truncate(limit);
        self.unasked = unreachable + unasked;
        let is_settled = self.entries.values().all(|entry| !entry.is_stale);
        self.has_begun |= is_settled && unasked == 0;
        // New Pods may come at any time, so these are not waited for again.
        self.is_complete |= is_settled && self.has_begun;
        all.into_iter().map(|(_, it)| it.clone()).collect()
    }

    /// Whether stopped Pods were forgotten since the last call.
    pub(super) fn has_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.has_forgotten)
    }

    /// Has each proxy asked again if this is another basis than before: what was seen before a change of the declared roots,
    /// of the bundle or of the issuer may have changed with it. Until a proxy was asked, it is not observed.
    pub(super) fn ask_again(&mut self, basis: LeafBasis, now: Timestamp) -> NextQuestion {
        let Some((known, since)) = &self.basis else {
            self.basis = Some((basis, now));
            return NextQuestion::OnChange;
        };
        let is_declared = LeafBasis { issuer: known.issuer.clone(), ..basis.clone() } != *known;
        if !is_declared && known.issuer == basis.issuer {
            return NextQuestion::OnChange;
        }
        // Two issuers at the same time would otherwise change it all the time, and the answers are complete only after
        // each proxy was asked.
        let left = AGAIN - now.duration_since(*since);
        if !is_declared && left.is_positive() {
            return NextQuestion::After(left.unsigned_abs());
        }
        if !is_declared && self.entries.values().any(|entry| entry.is_stale) {
            return NextQuestion::OnChange;
        }
        self.basis = Some((basis, now));
        // A resource that was just declared gets no conclusion from a few answers.
        self.has_begun &= !is_declared;
        self.ask_all(now);
        NextQuestion::Now
    }

    /// Has each proxy asked again. Nothing is concluded before.
    pub(super) fn ask_all(&mut self, now: Timestamp) {
        self.change += 1;
        self.is_complete = false;
        for entry in self.entries.values_mut() {
            (entry.due, entry.is_stale) = (now, true);
        }
    }

    /// The number of the last change, for [`LeafBook::note`].
    pub(super) fn change(&self) -> u64 {
        self.change
    }

    /// Notes what a proxy presented, or that it did not answer with a valid certificate. `change` is the number of the last
    /// change when it was asked: an answer that was on its way during another one is not believed. Returns whether it is
    /// news.
    pub(super) fn note(
        &mut self,
        (uid, namespace): (&Uid, &Arc<str>),
        leaf: Option<ObservedLeaf>,
        change: u64,
        now: Timestamp,
    ) -> bool {
        let has_ended = leaf.as_ref().is_some_and(|leaf| leaf.not_after <= now);
        let known = leaf.filter(|_| !has_ended).and_then(|leaf| {
            let chain: Arc<[ChainCertificate]> = leaf.chain.into();
            let chain = match self.chains.get(&chain) {
                Some(known) => Arc::clone(known),
                None if self.may_have_another_chain(namespace) => chain,
                // Tenants may have all the places. Then it is not known what this proxy presents.
                None => return None,
            };
            self.chains.insert(Arc::clone(&chain));
            Some(KnownLeaf { not_before: leaf.not_before, not_after: leaf.not_after, chain })
        });
        let before = self.entries.get(uid);
        let failures = match (&known, before) {
            (None, Some(before)) => before.failures.saturating_add(1),
            _ => 0,
        };
        let is_news = match (&known, before) {
            (Some(known), Some(LeafEntry { known: Some(before), is_stale: false, .. })) => {
                // What has ended was counted as not observed.
                !Arc::ptr_eq(&before.chain, &known.chain) || before.not_after <= now
            }
            (None, Some(before)) => before.known.is_some() || before.is_stale || before.has_ended != has_ended,
            _ => true,
        };
        if before.is_none() {
            self.unasked = self.unasked.saturating_sub(1);
        }
        let is_stale = change != self.change;
        let due = if is_stale { now } else { due(known.as_ref(), failures, now) };
        let namespace = Arc::clone(namespace);
        self.entries.insert(uid.clone(), LeafEntry { namespace, known, has_ended, failures, due, is_stale });
        is_news
    }

    fn may_have_another_chain(&self, namespace: &str) -> bool {
        let of_namespace = self.entries.values().filter(|entry| *entry.namespace == *namespace);
        let chains: HashSet<_> = of_namespace.filter_map(|it| Some(Arc::as_ptr(&it.known.as_ref()?.chain))).collect();
        self.chains.len() < MAX_CHAINS && chains.len() < MAX_CHAINS_OF_NAMESPACE
    }

    /// Whether each proxy that ran at some time was asked. Before that, nothing is concluded.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns what the proxies present.
    pub(super) fn seen(&self, now: Timestamp) -> SeenLeaves {
        let mut proxies = HashMap::<&Arc<[ChainCertificate]>, (usize, Timestamp)>::new();
        let mut leaves = SeenLeaves::default();
        leaves.unobserved = self.unasked;
        for entry in self.entries.values() {
            match &entry.known {
                Some(known) if known.not_after > now && !entry.is_stale => {
                    let (count, newest) = proxies.entry(&known.chain).or_insert((0, Timestamp::MIN));
                    *count += 1;
                    *newest = known.not_before.max(*newest);
                }
                _ => {
                    leaves.unobserved += 1;
                    leaves.ended += usize::from(entry.has_ended && !entry.is_stale);
                }
            }
        }
        let mut chains: Vec<_> = proxies.into_iter().map(|(chain, (count, newest))| (newest, chain, count)).collect();
        // In a fixed order, so that the same certificates have the same report.
        chains.sort_by_cached_key(|(newest, chain, _)| {
            (*newest, chain.iter().map(|it| it.der.clone()).collect::<Vec<_>>())
        });
        for (newest, chain, count) in chains {
            leaves.add(chain, count, newest);
        }
        leaves
    }
}

/// Returns when a proxy is asked again.
fn due(known: Option<&KnownLeaf>, failures: u32, now: Timestamp) -> Timestamp {
    let delay = match known {
        Some(leaf) => {
            let validity = leaf.not_after.duration_since(leaf.not_before);
            let again = (validity / 10).clamp(SHORTEST, AGAIN);
            let part = (validity / 100 * RENEWED_AT).min(LONGEST_RENEWAL);
            let renewed = leaf.not_before.checked_add(part).unwrap_or(now);
            (renewed.duration_since(now) + again).max(again)
        }
        None => AGAIN * 2_i32.pow(failures.min(MAX_DOUBLINGS)),
    };
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
#[path = "leaves_tests.rs"]
mod tests;
