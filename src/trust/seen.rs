//! What was read of a cluster about its trust.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    accepted::AcceptedWorkloads,
    distrusted::DistrustedRoots,
    obstacle::RestartObstacle,
    words::{in_time, minute_of},
};

use crate::{
    api::{TRUST_ROOTS, linkerd_trust::TrustReason},
    go::duration,
    values::{Document, Path},
    x509::{
        anchor_set::{AnchorSet, Fingerprint},
        anchors::{AnchorBundle, RootCertificate},
        certificate::ChainCertificate,
        chain,
    },
};

/// The maximum number of different sets of roots of proxies. Injectors write a few; tenants may write any number by hand.
const MAX_BUNDLES: usize = 500;
/// How long a proxy may take from a change of the issuer until its next request, beside the lifetime of its certificate.
const SPARE: SignedDuration = SignedDuration::from_mins(3);
/// The lifetime of a leaf in Linkerd's chart.
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// The clock skew in Linkerd's chart.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(20);
/// The maximum number of workloads that are remembered for each bundle.
const MAX_WORKLOADS: usize = 1_000;
/// The maximum number of workloads in a command.
const SHOWN: usize = 10;

/// What was seen.
#[derive(Debug)]
pub struct SeenTrust {
    /// The namespace of the control plane.
    pub namespace: String,
    /// The LinkerdTrust that declares the roots; `None` if those of the bundle are meant.
    pub(crate) desired: Option<DeclaredRoots>,
    /// `linkerd-identity-trust-roots`.
    pub bundle: Result<SeenBundle, NotSeen>,
    pub issuer: Result<SeenIssuer, NotSeen>,
    /// What proxies present, which also shows the issuer; `None` if they were not asked. Then the file of the issuer and
    /// time decide.
    pub leaves: Option<SeenLeaves>,
    /// Whether the operator has observed that the certificate of each proxy reaches a declared root.
    pub is_renewed: bool,
    /// Since when each replica of the identity service was seen to sign only certificates that need a declared root.
    pub(crate) signing_since: Option<Timestamp>,
    /// Why the operator does not write the bundle, by the status of the LinkerdTrust.
    pub held: Option<String>,
    /// What the process that writes the issuer says, by the same status.
    pub issuer_condition: Option<Condition>,
    /// Whether that process has said nothing about the present spec.
    pub is_writer_silent: bool,
    /// Whether the identity service holds an issuer that proxies refuse.
    pub is_guarded: bool,
    pub proxies: SeenProxies,
    /// The root that cert-manager renews by itself, if it does.
    pub renewed_root: Option<RenewedRoot>,
    pub settings: LeafSettings,
    /// The names of the clusters whose proxies talk to those of this one.
    pub linked_clusters: BTreeSet<String>,
    pub now: Timestamp,
}

/// The declared roots of a mesh.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredRoots {
    /// The name of the LinkerdTrust, which is a DNS name.
    pub(crate) resource: String,
    pub(crate) bundle: AnchorBundle,
    /// Certificates with the name and the key of one of these roots, which another root has signed.
    pub(crate) bridges: Vec<ChainCertificate>,
    /// The roots that have signed them, beside the declared ones.
    pub(crate) signers: Vec<RootCertificate>,
    /// Whether the operator writes the bundle.
    pub(crate) is_enforced: bool,
    /// Whether the operator writes the issuer.
    pub(crate) manages_issuer: bool,
    /// The workloads for which nothing waits.
    pub(crate) accepted: AcceptedWorkloads,
    pub(crate) distrusted: DistrustedRoots,
}

/// Why an object is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSeen {
    /// The user may not read it, or the API server did not answer.
    Unread(String),
    /// It does not exist, or does not have what it must have.
    Missing(String),
}

impl NotSeen {
    /// Why the bundle of the mesh is not known.
    pub(crate) fn no_bundle(namespace: &str, why: &str) -> Self {
        Self::Missing(format!("ConfigMap {namespace}/{TRUST_ROOTS} {why}"))
    }
}

/// The bundle of the mesh.
#[derive(Debug)]
pub struct SeenBundle {
    pub pem: String,
    pub written: Option<Timestamp>,
    /// Whether the operator wrote it last.
    pub is_by_operator: bool,
    /// The Bundle from which trust-manager writes it, if it does.
    pub source: Option<String>,
}

/// The issuer, without its key.
#[derive(Clone, Debug)]
pub struct SeenIssuer {
    /// Its certificate, and then the ones that are sent beside it.
    pub(crate) chain: Vec<ChainCertificate>,
    /// When it was written. Older leaves may be of another issuer.
    pub written: Option<Timestamp>,
}

/// The certificates that proxies present, by the chain that they send.
#[derive(Debug, Default)]
pub struct SeenLeaves {
    pub(super) chains: Vec<PresentedChain>,
    /// Proxies whose certificate was not observed, or has ended.
    pub unobserved: usize,
    /// Those whose certificate has ended.
    pub ended: usize,
}

/// The proxies that send one chain beside their certificate.
#[derive(Debug)]
pub(super) struct PresentedChain {
    pub(super) chain: Vec<ChainCertificate>,
    pub(super) proxies: usize,
    pub(super) newest: Timestamp,
}

/// What Linkerd's configuration says about leaves.
#[derive(Clone, Debug)]
pub struct LeafSettings {
    pub trust_domain: String,
    /// How long a leaf is valid.
    pub lifetime: SignedDuration,
    /// How long a leaf may be valid that was signed before the configuration changed, as far as this process has seen it: at
    /// least that of Linkerd's chart.
    pub longest_lifetime: SignedDuration,
    pub clock_skew: SignedDuration,
}

/// A root that cert-manager replaces on a date.
#[derive(Debug)]
pub struct RenewedRoot {
    /// The namespace and the name of the Certificate.
    pub certificate: String,
    pub renewal: Option<Timestamp>,
    /// Whether the operator writes the issuer, which then stays that of the root before.
    pub is_managed: bool,
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
    /// By the digest of the bundle.
    pub(super) bundles: BTreeMap<Fingerprint, BundleProxies>,
    /// Proxies that read their bundle when they start, as those of the control plane do.
    pub from_config_map: usize,
    /// The workloads of the control plane that read the bundle before it was written last.
    pub(crate) behind_config_map: BTreeSet<MeshedWorkload>,
    /// The workloads whose Pods a restart does not replace, or replaces with ones that are no better.
    pub(crate) obstacles: BTreeMap<MeshedWorkload, RestartObstacle>,
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

// === impl SeenTrust ===

impl SeenTrust {
    /// Returns a time for people: from now on, but in a status, which must not change without a change, as it is.
    pub(super) fn when(&self, time: Timestamp) -> String {
        match &self.leaves {
            Some(_) => format!("at {}", minute_of(time)),
            None => in_time(time, self.now),
        }
    }

    /// Why the operator does not write the next issuer, although people should do something.
    pub(super) fn unwritten_issuer(&self) -> Option<&str> {
        let condition = self.issuer_condition.as_ref().filter(|condition| condition.status != "True")?;
        let is_problem = TrustReason::UNWRITTEN.iter().any(|reason| condition.reason == reason.as_str());
        is_problem.then_some(&condition.message)
    }

    /// The command that restarts the workloads of the control plane that read the bundle before it was written last.
    pub(crate) fn control_plane_restart(&self) -> Option<String> {
        let behind = &self.proxies.behind_config_map;
        let names = behind.iter().map(|workload| format!("{}/{}", workload.kind.to_ascii_lowercase(), workload.name));
        let names: Vec<_> = names.take(SHOWN).collect();
        (!names.is_empty()).then(|| format!("kubectl -n {} rollout restart {}", self.namespace, names.join(" ")))
    }

    pub(crate) fn is_distrusting(&self) -> bool {
        self.desired.as_ref().is_some_and(|declared| !declared.distrusted.is_empty())
    }

    /// Whether the process that writes the issuer has written the next one.
    pub(super) fn is_issuer_written(&self) -> bool {
        self.issuer_condition.as_ref().is_some_and(|condition| condition.status == "True")
    }

    /// Whether others may have changed the bundle while certificates needed what it had. The operator does not.
    pub(super) fn may_be_too_early(&self) -> bool {
        let is_early = |written: Timestamp| self.settings.renewed(written) > self.now;
        self.bundle.as_ref().map_or(true, |bundle| !bundle.is_by_operator && bundle.written.is_none_or(is_early))
    }

    /// When all older certificates have ended, also those of proxies that were not observed.
    pub(super) fn older_end(&self) -> Option<Timestamp> {
        self.signing_since.map(|since| self.settings.older_ended(since))
    }

    /// The name of the identity service. The names of other leaves are as valid or invalid.
    pub(crate) fn identity_service(&self) -> String {
        self.settings.identity_service(&self.namespace)
    }
}

// === impl DeclaredRoots ===

impl DeclaredRoots {
    /// Only these roots are declared.
    pub(crate) fn only(resource: &str, bundle: AnchorBundle) -> Self {
        Self {
            resource: resource.to_owned(),
            bundle,
            bridges: Vec::new(),
            signers: Vec::new(),
            is_enforced: false,
            manages_issuer: false,
            accepted: AcceptedWorkloads::default(),
            distrusted: DistrustedRoots::default(),
        }
    }

    /// Returns the declared certificates that a bundle lacks. For proxies a root that was issued again with the same key is
    /// the same one. It counts as missing, because Linkerd's identity does not use a root that has ended.
    pub(crate) fn missing_in(&self, bundle: &[RootCertificate]) -> Vec<&RootCertificate> {
        let has = |root: &RootCertificate| bundle.iter().any(|it| it.sha256 == root.sha256);
        self.bundle.roots().iter().filter(|root| !has(root)).collect()
    }

    /// Whether this root is declared, by any certificate.
    pub(crate) fn has_anchor(&self, root: &RootCertificate) -> bool {
        self.bundle.roots().iter().any(|it| it.id == root.id)
    }

    /// Whether exactly this certificate is declared.
    pub(crate) fn has(&self, root: &RootCertificate) -> bool {
        self.bundle.roots().iter().any(|it| it.sha256 == root.sha256)
    }
}

// === impl SeenIssuer ===

impl SeenIssuer {
    /// Reads the file of an issuer.
    pub fn read(pem: &str, written: Option<Timestamp>) -> Result<Self, NotSeen> {
        let unreadable = |why| NotSeen::Missing(format!("the file of the issuer {why}"));
        let (own, others) = chain::read(pem.as_bytes()).map_err(unreadable)?;
        Ok(Self { chain: [vec![own], others].concat(), written })
    }
}

// === impl SeenLeaves ===

impl SeenLeaves {
    /// Adds proxies that send this chain beside their certificates, the newest of which was issued at this time.
    pub(crate) fn add(&mut self, chain: &[ChainCertificate], proxies: usize, newest: Timestamp) {
        self.chains.push(PresentedChain { chain: chain.to_vec(), proxies, newest });
    }

    /// Whether most proxies have only certificates that have ended. A tenant can have a few of these, and of others.
    pub(super) fn has_ended(&self) -> bool {
        let observed: usize = self.chains.iter().map(|presented| presented.proxies).sum();
        self.ended * 2 > self.unobserved + observed
    }

    /// The chains, and how many proxies send each.
    #[cfg(test)]
    pub(crate) fn chains(&self) -> Vec<(&[ChainCertificate], usize)> {
        self.chains.iter().map(|presented| (&*presented.chain, presented.proxies)).collect()
    }
}

// === impl LeafSettings ===

impl LeafSettings {
    /// Reads Linkerd's configuration. A value that is missing is that of Linkerd's chart.
    pub fn of(values: Option<&Document>) -> Self {
        let text = |path: &[&str]| values.and_then(|values| values.get(&Path::from(path))?.as_str());
        let issuer = |field: &str| {
            let nanos = duration::parse(text(&["identity", "issuer", field])?)?;
            Some(SignedDuration::from_nanos(nanos)).filter(SignedDuration::is_positive)
        };
        let domain = text(&["identityTrustDomain"]).filter(|domain| !domain.is_empty());
        let lifetime = issuer("issuanceLifetime").unwrap_or(DAY);
        Self {
            trust_domain: domain.unwrap_or("cluster.local").to_owned(),
            lifetime,
            longest_lifetime: lifetime.max(DAY),
            clock_skew: issuer("clockSkewAllowance").unwrap_or(CLOCK_SKEW),
        }
    }

    /// The name of the identity service of this control plane.
    pub(crate) fn identity_service(&self, control_plane: &str) -> String {
        self.identity_of(control_plane, control_plane, "linkerd-identity")
    }

    /// The identity of the control plane, and that of a workload: name constraints may permit only one of them.
    pub(super) fn tested_names(&self, control_plane: &str) -> [String; 2] {
        [self.identity_service(control_plane), self.identity_of(control_plane, "any", "workload")]
    }

    pub(crate) fn identity_of(&self, control_plane: &str, namespace: &str, account: &str) -> String {
        format!("{account}.{namespace}.serviceaccount.identity.{control_plane}.{}", self.trust_domain)
    }

    /// Returns when all proxies have renewed their certificates after a change of the issuer.
    pub(super) fn renewed(&self, switched: Timestamp) -> Timestamp {
        self.ended(switched, self.lifetime)
    }

    /// Returns when all certificates that were signed before have ended, also those of former settings.
    fn older_ended(&self, switched: Timestamp) -> Timestamp {
        self.ended(switched, self.longest_lifetime)
    }

    fn ended(&self, switched: Timestamp, lifetime: SignedDuration) -> Timestamp {
        switched.checked_add(lifetime + self.clock_skew * 2 + SPARE).unwrap_or(Timestamp::MAX)
    }
}

// === impl SeenProxies ===

impl SeenProxies {
    /// Adds Pods of a workload with these anchors in the environment of their proxies; `None` if it is a reference.
    pub fn add(&mut self, workload: MeshedWorkload, anchors: Option<&AnchorSet>, pods: usize) {
        let Some(anchors) = anchors else {
            self.from_config_map += pods;
            return;
        };
        let key = anchors.digest();
        if !self.bundles.contains_key(&key) {
            if self.bundles.len() == MAX_BUNDLES {
                self.others += pods;
                return;
            }
            self.bundles.insert(key, BundleProxies { roots: anchors.roots(), pods: 0, workloads: BTreeMap::new() });
        }
        let Some(found) = self.bundles.get_mut(&key) else { return };
        found.pods += pods;
        if found.workloads.len() < MAX_WORKLOADS || found.workloads.contains_key(&workload) {
            *found.workloads.entry(workload).or_default() += pods;
        }
    }
}
