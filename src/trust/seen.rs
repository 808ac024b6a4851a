//! What was read of a cluster about its trust.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::x509::{
    anchor_set::Fingerprint,
    anchors::{AnchorBundle, RootCertificate},
};

/// The maximum number of different sets of roots of proxies. Injectors write a few; tenants may write any number by hand.
const MAX_BUNDLES: usize = 500;
/// The maximum number of roots of one proxy that are looked at.
const MAX_ROOTS: usize = 50;
/// The maximum length of an environment variable in Linux, in bytes.
const LONGEST_BUNDLE: usize = 128 << 10;
/// How long a proxy may take from a change of the issuer until its next request, beside the lifetime of its certificate.
const SPARE: SignedDuration = SignedDuration::from_mins(3);
/// The maximum number of workloads that are remembered for each bundle.
const MAX_WORKLOADS: usize = 1_000;

/// What was seen.
#[derive(Debug)]
pub struct SeenTrust {
    /// The namespace of the control plane.
    pub namespace: String,
    /// `linkerd-identity-trust-roots`.
    pub bundle: Result<SeenBundle, NotSeen>,
    pub issuer: Result<SeenIssuer, NotSeen>,
    pub proxies: SeenProxies,
    /// The root that cert-manager renews by itself, if it does.
    pub renewed_root: Option<RenewedRoot>,
    pub settings: LeafSettings,
    /// The names of the clusters whose proxies talk to those of this one.
    pub linked_clusters: BTreeSet<String>,
    pub now: Timestamp,
}

/// Why an object is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSeen {
    /// The user may not read it, or the API server did not answer.
    Unread(String),
    /// It does not exist, or does not have what it must have.
    Missing(String),
}

/// The bundle of the mesh.
#[derive(Debug)]
pub struct SeenBundle {
    pub pem: String,
    pub written: Option<Timestamp>,
}

/// The file of the issuer, without its key.
#[derive(Debug)]
pub struct SeenIssuer {
    /// The certificates that are sent with each leaf, in PEM.
    pub pem: String,
    /// When it was written. Older leaves may be of another issuer.
    pub written: Option<Timestamp>,
}

/// What Linkerd's configuration says about leaves.
#[derive(Debug)]
pub struct LeafSettings {
    pub trust_domain: String,
    /// How long a leaf is valid.
    pub lifetime: SignedDuration,
    pub clock_skew: SignedDuration,
}

/// A root that cert-manager replaces on a date.
#[derive(Debug)]
pub struct RenewedRoot {
    /// The namespace and the name of the Certificate.
    pub certificate: String,
    pub renewal: Option<Timestamp>,
}

/// A workload, or a Pod without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeshedWorkload {
    pub namespace: String,
    pub kind: String,
    pub name: String,
}

/// The proxies of the mesh, by the bundle in their environment.
#[derive(Debug, Default)]
pub struct SeenProxies {
    pub(super) bundles: BTreeMap<Vec<Fingerprint>, BundleProxies>,
    /// Proxies that read their bundle when they start, as those of the control plane do.
    pub from_config_map: usize,
    /// Proxies with other bundles than the ones that are remembered.
    pub others: usize,
}

/// The proxies with one bundle.
#[derive(Debug)]
pub(super) struct BundleProxies {
    /// None if no proxy could use the bundle.
    pub(super) roots: Vec<RootCertificate>,
    pub(super) pods: usize,
    /// The number of Pods of each workload.
    pub(super) workloads: BTreeMap<MeshedWorkload, usize>,
}

// === impl LeafSettings ===

impl LeafSettings {
    /// Returns when all proxies have renewed their certificates after a change of the issuer.
    pub(super) fn renewed(&self, switched: Timestamp) -> Timestamp {
        let longest = self.lifetime + self.clock_skew * 2 + SPARE;
        switched.checked_add(longest).unwrap_or(Timestamp::MAX)
    }
}

// === impl SeenProxies ===

impl SeenProxies {
    /// Adds the Pod of a workload with this bundle in the environment of its proxy; `None` if it is a reference.
    pub fn add(&mut self, workload: MeshedWorkload, bundle: Option<&str>) {
        let Some(bundle) = bundle else {
            self.from_config_map += 1;
            return;
        };
        let parsed = Some(bundle).filter(|bundle| bundle.len() <= LONGEST_BUNDLE);
        let parsed = parsed.and_then(|bundle| AnchorBundle::parse(bundle.as_bytes()).ok());
        let mut roots = parsed.map(AnchorBundle::into_roots).unwrap_or_default();
        // The order and the text between certificates do not matter, and injectors differ in them.
        roots.sort_by_key(|root| root.id);
        roots.dedup_by_key(|root| root.id);
        roots.truncate(MAX_ROOTS);
        let key: Vec<Fingerprint> = roots.iter().map(|root| root.id).collect();
        if self.bundles.len() == MAX_BUNDLES && !self.bundles.contains_key(&key) {
            self.others += 1;
            return;
        }
        let new = || BundleProxies { roots, pods: 0, workloads: BTreeMap::new() };
        let found = self.bundles.entry(key).or_insert_with(new);
        found.pods += 1;
        if found.workloads.len() < MAX_WORKLOADS || found.workloads.contains_key(&workload) {
            *found.workloads.entry(workload).or_default() += 1;
        }
    }
}
