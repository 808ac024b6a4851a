//! What the cluster state says about the trust of the mesh.
//!
//! In: the state, what proxies presented. Out: [`SeenTrust`]. Always holds: the owners of Pods are looked up under the lock
//! for a bounded number of Pods at a time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use parking_lot::Mutex;

use super::observer::is_live;
use crate::{
    api::{FIELD_MANAGER, INJECTORS_CONFIG_MAP, TRUST_ROOTS},
    cluster::{
        Cluster, State,
        index::workload_key::WorkloadKey,
        kinds::{
            config_map::ConfigMap,
            pod::Pod,
            remote_kubeconfig::{LinkContent, RemoteKubeconfig},
        },
    },
    text::sha256,
    trust::{
        obstacle::RestartObstacle,
        seen::{DeclaredRoots, LeafSettings, MeshedWorkload, NotSeen, SeenBundle, SeenLeaves, SeenProxies, SeenTrust},
    },
    values::Document,
    x509::anchor_set::AnchorSet,
};

const JOB: &str = "Job";
/// The number of Pods that are looked at before the task yields.
const AT_ONCE: usize = 256;

/// The settings of leaves in Linkerd's configuration, which is parsed only when it changes.
#[derive(Default)]
pub(super) struct TrustSettings(Mutex<Option<(Option<Arc<str>>, LeafSettings)>>);

/// What was read of the state.
pub(super) struct SeenParts {
    namespace: Arc<str>,
    bundle: Result<SeenBundle, NotSeen>,
    settings: LeafSettings,
    proxies: SeenProxies,
    linked_clusters: BTreeSet<String>,
}

// === impl TrustSettings ===

impl TrustSettings {
    /// Returns the text that [`TrustSettings::of`] parses, so that this happens outside of the lock.
    pub(super) fn text(state: &State, control_plane: &str) -> Option<Arc<str>> {
        state.config_maps.find(control_plane, INJECTORS_CONFIG_MAP)?.values.clone()
    }

    pub(super) fn of(&self, values: Option<Arc<str>>) -> LeafSettings {
        let mut known = self.0.lock();
        match &*known {
            Some((text, settings)) if *text == values => settings.clone(),
            _ => {
                let document = values.as_deref().and_then(|text| Document::parse(text).ok());
                let mut settings = LeafSettings::of(document.as_ref());
                // Certificates of the former setting live on.
                let longest = known.as_ref().map_or(settings.longest_lifetime, |(_, known)| known.longest_lifetime);
                settings.longest_lifetime = settings.longest_lifetime.max(longest);
                *known = Some((values, settings.clone()));
                settings
            }
        }
    }
}

// === impl SeenParts ===

impl SeenParts {
    pub(super) async fn read(cluster: &Cluster, control_plane: &Arc<str>, settings: &TrustSettings) -> Self {
        let (bundle, values, linked_clusters, pods) = {
            let state = cluster.read();
            let is_of_mesh = |pod: &&Arc<Pod>| pod.control_plane_namespace() == Some(control_plane) && is_live(pod);
            let pods: Vec<_> = state.pods.iter().filter(is_of_mesh).cloned().collect();
            let link = |secret: &Arc<RemoteKubeconfig>| match &secret.content {
                LinkContent::Complete(link) => Some(link.cluster.to_string()),
                _ => None,
            };
            let links = state.remote_kubeconfigs.iter().filter_map(link);
            let bundle = bundle(control_plane, state.config_maps.find(control_plane, TRUST_ROOTS));
            (bundle, TrustSettings::text(&state, control_plane), links.collect(), pods)
        };
        let written = bundle.as_ref().ok().and_then(|bundle: &SeenBundle| bundle.written);
        let settings = settings.of(values);
        let (mut behind, mut obstacles) = (BTreeSet::new(), BTreeMap::new());
        let mut counted = HashMap::<(Option<&AnchorSet>, WorkloadKey), usize>::new();
        let mut staying = HashSet::new();
        for some in pods.chunks(AT_ONCE) {
            {
                let state = cluster.read();
                for pod in some {
                    let Some(injected) = &pod.injected else { continue };
                    let workload = restarted(&state, pod);
                    // Such a Pod of a tenant reads another ConfigMap.
                    let reads_bundle = injected.trust_anchors.is_none() && pod.key.namespace == *control_plane;
                    // A deleted Pod needs no restart, and the Pod that replaces it is counted itself.
                    if reads_bundle && !pod.terminating && pod.created.is_none_or(|created| Some(created) <= written) {
                        behind.insert(meshed(workload.clone()));
                    }
                    let key = (injected.trust_anchors.as_deref(), workload);
                    if !pod.terminating {
                        staying.insert(key.clone());
                    }
                    if let Some(count) = counted.get_mut(&key) {
                        *count += 1;
                        continue;
                    }
                    if let Some(obstacle) = state.apps_workload(&key.1).and_then(|known| RestartObstacle::of(known)) {
                        obstacles.insert(meshed(key.1.clone()), obstacle);
                    }
                    counted.insert(key, 1);
                }
            }
            tokio::task::yield_now().await;
        }
        // The workload has replaced these Pods already, so a restart would not help.
        let deleted = counted.keys().filter(|key| !staying.contains(*key));
        obstacles.extend(deleted.map(|(_, workload)| (meshed(workload.clone()), RestartObstacle::Deleted)));
        let mut proxies = SeenProxies::default();
        (proxies.behind_config_map, proxies.obstacles) = (behind, obstacles);
        let mut of_set = HashMap::<_, usize>::new();
        for ((anchors, _), pods) in &counted {
            *of_set.entry(*anchors).or_default() += pods;
        }
        let mut counted: Vec<_> = counted.into_iter().collect();
        // The sets of most proxies first, because tenants can make any number of others; and in a fixed order, so that the
        // same cluster has the same report.
        counted.sort_by_cached_key(|((anchors, workload), _)| {
            let most = std::cmp::Reverse(of_set.get(anchors).copied());
            (most, anchors.map(AnchorSet::digest), workload.clone())
        });
        for ((anchors, workload), pods) in counted {
            proxies.add(meshed(workload), anchors, pods);
        }
        Self { namespace: Arc::clone(control_plane), bundle, settings, proxies, linked_clusters }
    }

    /// The SHA-256 of the text of the bundle.
    pub(super) fn bundle_digest(&self) -> Option<String> {
        self.bundle.as_ref().ok().map(|bundle| sha256(&bundle.pem))
    }

    pub(super) fn trust_domain(&self) -> String {
        self.settings.trust_domain.clone()
    }

    pub(super) fn seen(
        self,
        desired: Option<DeclaredRoots>,
        leaves: SeenLeaves,
        signing_since: Option<Timestamp>,
        (issuer_condition, is_writer_silent): (Option<Condition>, bool),
        now: Timestamp,
    ) -> SeenTrust {
        let Self { namespace, bundle, settings, proxies, linked_clusters } = self;
        SeenTrust {
            namespace: namespace.to_string(),
            desired,
            bundle,
            issuer: Err(NotSeen::Unread("it is not read".to_owned())),
            leaves: Some(leaves),
            is_renewed: false,
            signing_since,
            held: None,
            issuer_condition,
            is_writer_silent,
            is_guarded: false,
            proxies,
            renewed_root: None,
            settings,
            linked_clusters,
            now,
        }
    }
}

/// Returns the workload that creates the Pod again. A CronJob creates another Job later, and its Job is what ends.
fn restarted(state: &State, pod: &Pod) -> WorkloadKey {
    match &pod.owner {
        Some(owner) if *owner.kind == *JOB => WorkloadKey::of_owner(&pod.key.namespace, owner),
        _ => state.workload_of(pod),
    }
}

fn meshed(workload: WorkloadKey) -> MeshedWorkload {
    let WorkloadKey { namespace, kind, name } = workload;
    let [namespace, kind, name] = [namespace, kind, name].map(|text| text.to_string());
    MeshedWorkload { namespace, kind, name }
}

fn bundle(namespace: &str, map: Option<&Arc<ConfigMap>>) -> Result<SeenBundle, NotSeen> {
    let map = map.ok_or_else(|| NotSeen::no_bundle(namespace, "does not exist"))?;
    let pem = map.bundle.as_deref().ok_or_else(|| NotSeen::no_bundle(namespace, "has no key ca-bundle.crt"))?;
    Ok(SeenBundle {
        pem: pem.to_owned(),
        written: map.bundle_written,
        is_by_operator: map.bundle_writer.as_deref() == Some(FIELD_MANAGER),
        source: map.trust_manager_source.as_deref().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    #[test]
    fn certificates_of_a_longer_lifetime_outlive_a_change_of_it() {
        let settings = TrustSettings::default();
        let of = |lifetime: &str| {
            let values = format!("identity:\n  issuer:\n    issuanceLifetime: {lifetime}\n");
            let LeafSettings { lifetime, longest_lifetime, .. } = settings.of(Some(values.into()));
            (lifetime, longest_lifetime)
        };
        let (hour, day) = (SignedDuration::from_hours(1), SignedDuration::from_hours(24));
        // Before this process began, it may have been that of Linkerd's chart.
        assert_eq!(of("1h"), (hour, day));
        assert_eq!(of("48h"), (day * 2, day * 2));
        assert_eq!(of("1h"), (hour, day * 2));
    }
}
