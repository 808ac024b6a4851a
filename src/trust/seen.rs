//! What was read of a cluster about its trust.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::x509::anchors::AnchorBundle;

/// The maximum number of different bundles of proxies. Injectors write a few; tenants may write any number by hand.
const MAX_BUNDLES: usize = 200;
/// The maximum number of workloads that are remembered for each bundle.
const MAX_WORKLOADS: usize = 1_000;

/// What was seen.
#[derive(Debug)]
pub struct SeenTrust {
    /// The namespace of the control plane.
    pub namespace: String,
    /// The text of `linkerd-identity-trust-roots`. The error says why it is not known.
    pub bundle: Result<String, String>,
    /// The error says why it is not known.
    pub issuer: Result<SeenIssuer, String>,
    pub proxies: SeenProxies,
    /// The root that cert-manager renews by itself, if it does.
    pub renewed_root: Option<RenewedRoot>,
    pub settings: LeafSettings,
    pub now: Timestamp,
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
    pub(super) bundles: BTreeMap<String, BundleProxies>,
    /// Proxies that read their bundle when they start, as those of the control plane do.
    pub from_config_map: usize,
    /// Proxies with other bundles than the ones that are remembered.
    pub others: usize,
}

/// The proxies with one bundle.
#[derive(Debug)]
pub(super) struct BundleProxies {
    /// `None` if no proxy could use it.
    pub(super) anchors: Option<AnchorBundle>,
    pub(super) pods: usize,
    /// The number of Pods of each workload.
    pub(super) workloads: BTreeMap<MeshedWorkload, usize>,
}

// === impl SeenProxies ===

impl SeenProxies {
    /// Adds the Pod of a workload with this bundle in the environment of its proxy; `None` if it is a reference.
    pub fn add(&mut self, workload: MeshedWorkload, bundle: Option<&str>) {
        let Some(bundle) = bundle else {
            self.from_config_map += 1;
            return;
        };
        // White space at the ends does not matter, and injectors differ in it.
        let bundle = bundle.trim();
        if !self.bundles.contains_key(bundle) {
            if self.bundles.len() == MAX_BUNDLES {
                self.others += 1;
                return;
            }
            let anchors = AnchorBundle::parse(bundle.as_bytes()).ok();
            self.bundles.insert(bundle.to_owned(), BundleProxies { anchors, pods: 0, workloads: BTreeMap::new() });
        }
        let Some(found) = self.bundles.get_mut(bundle) else { return };
        found.pods += 1;
        if found.workloads.len() < MAX_WORKLOADS || found.workloads.contains_key(&workload) {
            *found.workloads.entry(workload).or_default() += 1;
        }
    }
}
