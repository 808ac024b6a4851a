//! Maps changes of the cluster state to the LinkerdTrusts that must be reconciled.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    api::{self, INJECTORS_CONFIG_MAP, NamespacedName, TRUST_ROOTS, linkerd_trust::TrustCondition},
    cluster::{
        Change, Diff, Kind, Observer, State, WatchScope,
        kinds::{
            linkerd_trust::LinkerdTrust,
            pod::{Pod, PodPhase},
        },
    },
    controller::ObjectNames,
    queue::WorkQueue,
    x509::anchor_set::Fingerprint,
};

/// The name of the queue in metrics.
const QUEUE: &str = "linkerdtrust_controller_workqueue";
/// The kinds that the controller reads.
pub(super) const KINDS: &[Kind] = &[Kind::LinkerdTrust, Kind::ConfigMap, Kind::Pod, Kind::ReplicaSet, Kind::Job];
/// Pods change often, and a report takes time in proportion to all of them. So it is made at most at this interval.
const PODS_INTERVAL: Duration = Duration::from_secs(3);

/// Adds the LinkerdTrusts that a change affects to the controller's queue.
pub struct LinkerdTrustObserver {
    pub(super) queue: Arc<WorkQueue>,
    pub(super) trusts: ObjectNames<api::LinkerdTrust>,
    /// ConfigMaps are watched in the control-plane namespace only.
    control_plane_namespace: Arc<str>,
}

impl LinkerdTrustObserver {
    /// # Errors
    /// When the metrics are registered already.
    pub fn new(control_plane_namespace: &str, registry: &prometheus::Registry) -> prometheus::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: WorkQueue::new(QUEUE, registry)?,
            trusts: ObjectNames::default(),
            control_plane_namespace: control_plane_namespace.into(),
        }))
    }
}

impl Observer for LinkerdTrustObserver {
    fn kinds(&self) -> &'static [Kind] {
        KINDS
    }

    fn scope(&self, kind: Kind) -> WatchScope {
        let namespace = (kind == Kind::ConfigMap).then(|| Arc::clone(&self.control_plane_namespace));
        WatchScope { namespace, ..WatchScope::default() }
    }

    fn blocks_readiness(&self) -> bool {
        false
    }

    fn changed(&self, state: &State, changes: &[Change], _: Instant) {
        let (mut at_once, mut soon) = (false, false);
        for change in changes {
            match change {
                Change::LinkerdTrust(diff) => {
                    let key = NamespacedName::cluster_scoped(&diff.latest().name);
                    self.trusts.update(&key, diff.old().map(|it| &*it.uid), diff.current().map(|it| &*it.uid));
                    if declared(diff.old()) == declared(diff.current()) {
                        continue;
                    }
                    at_once = true;
                    // A deleted resource is queued too, so that the controller forgets it.
                    self.queue.add([key]);
                }
                Change::ConfigMap(diff) => {
                    at_once |= [TRUST_ROOTS, INJECTORS_CONFIG_MAP].contains(&&*diff.latest().key.name);
                }
                Change::Pod(diff) => soon |= is_of_trust(diff, &self.control_plane_namespace),
                _ => {}
            }
        }
        if at_once {
            // Another resource may be in effect now.
            self.queue.add(state.linkerd_trusts.iter().map(|it| NamespacedName::cluster_scoped(&it.name)));
        } else if soon && let Some(trust) = state.linkerd_trusts.in_effect(&self.control_plane_namespace) {
            self.queue.add_after(&NamespacedName::cluster_scoped(&trust.name), PODS_INTERVAL);
        }
    }
}

/// Returns what decides about a LinkerdTrust: all but the part of the status that its own controller writes.
fn declared(trust: Option<&Arc<LinkerdTrust>>) -> Option<impl PartialEq> {
    let trust = trust?;
    let issuer = trust.status.condition(TrustCondition::IssuerSynced);
    let issuer = issuer.map(|issuer| (issuer.reason.clone(), issuer.message.clone()));
    Some((Arc::clone(&trust.uid), trust.generation, trust.created, trust.deleting, issuer))
}

/// Whether a proxy of the mesh begins, ends, or is replaced.
fn is_of_trust(diff: &Diff<Pod>, control_plane: &str) -> bool {
    let shown = |pod: Option<&Arc<Pod>>| -> Option<(Option<Fingerprint>, bool, bool)> {
        let pod = pod.filter(|pod| pod.control_plane_namespace() == Some(control_plane))?;
        let anchors = pod.injected.as_ref()?.trust_anchors.as_ref().map(|anchors| anchors.digest());
        Some((anchors, is_live(pod), pod.terminating))
    };
    shown(diff.old()) != shown(diff.current())
}

/// Whether the Pod has, or will have, a proxy that connects to others. One that is being deleted may drain connections for
/// hours, and open others.
pub(super) fn is_live(pod: &Pod) -> bool {
    pod.phase != PodPhase::Finished
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::{cluster::testing::Feed, x509::testing::anchors};

    fn pod(name: &str, letters: &str, phase: &str) -> Value {
        let env = json!([{"name": "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS", "value": anchors(letters)}]);
        json!({"metadata": {"name": name, "namespace": "app", "labels": {"linkerd.io/control-plane-ns": "linkerd"}},
            "spec": {"containers": [{"name": "linkerd-proxy", "env": env}]}, "status": {"phase": phase}})
    }

    #[tokio::test(start_paused = true)]
    async fn a_resource_is_reconciled_at_once_for_the_bundle_and_soon_for_proxies_that_begin_or_end() {
        let observer = LinkerdTrustObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
        let mut feed = Feed::new([Arc::clone(&observer) as Arc<dyn Observer>]);
        let mut affected = async |kind: Kind, event: Event<Value>| {
            feed.apply(kind, event);
            let at_once = observer.queue.drain();
            tokio::time::sleep(PODS_INTERVAL).await;
            drop(observer.queue.start(&NamespacedName::new("", "none")));
            let names: Vec<_> = at_once.iter().map(|key| key.name.to_string()).collect();
            names
        };
        let trust = |name: &str, created: &str| json!({"metadata": {"name": name, "uid": name, "creationTimestamp": created}, "spec": {}});
        let bundle = |name: &str, text: &str| json!({"metadata": {"name": name, "namespace": "linkerd"}, "data": {"ca-bundle.crt": text}});
        assert_eq!(affected(Kind::Pod, Event::Apply(pod("a", "a", "Running"))).await, [""; 0], "no resource exists");
        let old = "2026-01-01T00:00:00Z";
        assert_eq!(affected(Kind::LinkerdTrust, Event::Apply(trust("mesh", old))).await, ["mesh"]);
        let apply = |name: &str| Event::Apply(bundle(name, "pem"));
        assert_eq!(affected(Kind::ConfigMap, apply("linkerd-identity-trust-roots")).await, ["mesh"]);
        assert_eq!(affected(Kind::ConfigMap, apply("other")).await, [""; 0]);
        let first = "2025-01-01T00:00:00Z";
        assert_eq!(affected(Kind::LinkerdTrust, Event::Apply(trust("former", first))).await, ["former", "mesh"]);
        let observed = |hash: &str| {
            let mut object = trust("mesh", old);
            object["metadata"]["generation"] = json!(2);
            object["spec"] = json!({"anchors": {"pem": "declared"}});
            object["status"] = json!({"trustRootsSHA256": hash});
            Event::Apply(object)
        };
        assert_eq!(affected(Kind::LinkerdTrust, observed("00")).await, ["former", "mesh"], "the declaration changed");
        assert_eq!(affected(Kind::LinkerdTrust, observed("11")).await, [""; 0], "the status is the controller's own");
    }

    #[test]
    fn a_proxy_changes_the_trust_of_the_mesh_when_it_begins_ends_or_has_other_anchors() {
        use crate::cluster::{Problems, Projected};
        let read =
            |value: Value| Arc::new(Pod::project(serde_json::from_value(value).unwrap(), &mut Problems::default()));
        let running = || read(pod("a", "a", "Running"));
        let changed = |old: Arc<Pod>, new: Arc<Pod>| is_of_trust(&Diff::Modified { old, new }, "linkerd");
        assert!(is_of_trust(&Diff::Added(running()), "linkerd") && is_of_trust(&Diff::Deleted(running()), "linkerd"));
        assert!(!is_of_trust(&Diff::Added(running()), "other"));
        assert!(!changed(read(pod("a", "a", "Pending")), running()), "it counts from its creation on");
        assert!(changed(running(), read(pod("a", "a", "Succeeded"))));
        let mut deleted = pod("a", "a", "Running");
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(changed(running(), read(deleted)), "its workload cannot help any more");
        assert!(changed(running(), read(pod("a", "ab", "Running"))));
    }
}
