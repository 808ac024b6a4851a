//! LinkerdTrusts.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{
        self, LinkerdTrustSpec, LinkerdTrustStatus, NamespacedName,
        linkerd_trust::{IssuerOrigin, TrustCondition},
    },
    cluster::{
        Problems, Projected,
        index::store::{Store, Stored},
    },
};

/// A LinkerdTrust.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkerdTrust {
    pub name: Arc<str>,
    pub uid: Arc<str>,
    pub version: Arc<str>,
    pub generation: i64,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    pub spec: Arc<LinkerdTrustSpec>,
    pub status: Arc<LinkerdTrustStatus>,
}

// === impl LinkerdTrust ===

impl Projected for LinkerdTrust {
    type Wire = api::LinkerdTrust;
    const IS_OPTIONAL: bool = true;

    fn project(wire: api::LinkerdTrust, _: &mut Problems) -> Self {
        let api::LinkerdTrust { metadata, spec, status } = wire;
        Self {
            name: metadata.name.unwrap_or_default().into(),
            uid: metadata.uid.unwrap_or_default().into(),
            version: metadata.resource_version.unwrap_or_default().into(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.map(|time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            spec: Arc::new(spec),
            status: Arc::new(status.unwrap_or_default()),
        }
    }
}

impl Stored for LinkerdTrust {
    type NamespaceIndex = ();
    type ClusterIndex = ();

    fn key(&self) -> NamespacedName {
        NamespacedName::cluster_scoped(&self.name)
    }

    /// Whether more than the resourceVersion and the part of the status that no other controller waits for differs. The identity
    /// service polls the rest.
    fn is_change(&self, known: &Self) -> bool {
        let read = |it: &Self| {
            let status = &it.status;
            let (generation, hash) = (status.observed_generation, status.trust_roots_sha256.clone());
            let (sufficient, required) = (status.sufficient_anchors.clone(), status.required_anchors.clone());
            let distrusted = (status.distrusted_anchors.clone(), status.must_restart_soon());
            let lists = (generation, hash, sufficient, required, distrusted, status.is_renewed());
            // What is between this controller and the one that writes the issuer.
            let conditions = [TrustCondition::ReadyToSwitch, TrustCondition::IssuerSynced];
            let conditions = conditions.map(|condition| status.condition(condition).cloned());
            let is_managed = it.spec.issuer.manage == IssuerOrigin::Secret;
            let issuer = is_managed.then(|| (status.phase, conditions, status.ready_to_switch_at.clone()));
            it.spec.anchors.as_ref().map(|_| (lists, issuer))
        };
        let (version, status) = (Arc::clone(&known.version), Arc::clone(&known.status));
        read(self) != read(known) || Self { version, status, ..self.clone() } != *known
    }
}

impl Store<LinkerdTrust> {
    /// The resource that is in effect for a control plane: the oldest one, then the first by name.
    pub fn in_effect(&self, control_plane: &str) -> Option<&Arc<LinkerdTrust>> {
        let of = self.iter().filter(|it| !it.deleting && it.spec.control_plane_namespace == control_plane);
        of.min_by_key(|it| (it.created.unwrap_or(Timestamp::MAX), Arc::clone(&it.name)))
    }
}
