//! Other clusters, which have members of this cluster's federated Services.
//!
//! ```text
//! Secrets ──links──▶ Multicluster ─▶ RemoteCluster ─▶ RemoteNamespace: a State of its own ──RemoteObserver──▶ DirtySet
//! ```
//!
//! In: the Secrets with the kubeconfigs of other clusters; views that need Services of their namespaces. Out: the
//! states of these namespaces, and marked keys when they change. Always holds: only the namespaces that a view needs
//! are watched; a cluster that cannot be reached keeps its last known state, and costs only itself; a cluster is
//! unlinked only if no Secret names it any more; credentials are never printed.

pub(super) mod clusters;
pub(super) mod collector;
pub(super) mod links;
pub(super) mod observer;
pub(super) mod remote;
mod secrets;
pub(super) mod unsupported;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use prometheus::{IntCounterVec, Opts, Registry, register_int_counter_vec_with_registry};
use tokio::time::{Instant, sleep};

use super::{
    observer::{DestinationObserver, DirtyKey, RemoteChange},
    settings::DestinationSettings,
};
use crate::{
    client,
    cluster::{Cluster, WatchMetrics, kinds::remote_kubeconfig::RemoteKubeconfig},
};
use remote::{RemoteCluster, RemoteNamespace};
use secrets::{Connect, LinkSecrets};

/// Interval of the check for namespaces of other clusters that no view needs any more.
const SWEEP: Duration = Duration::from_secs(10);

/// The clusters that are linked to this one.
pub struct Multicluster {
    clusters: RwLock<BTreeMap<Arc<str>, Arc<RemoteCluster>>>,
    secrets: Mutex<LinkSecrets>,
    /// Whether the links were read once.
    known: AtomicBool,
    /// How often the endpoints of a federated Service were read. Locked while they are read.
    pub(super) federated_reads: Mutex<u64>,
    observer: Arc<DestinationObserver>,
    settings: Arc<DestinationSettings>,
    failures: IntCounterVec,
    metrics: WatchMetrics,
    connect: Connect,
}

/// The state of another cluster, for the dashboard.
pub struct RemoteReport {
    pub name: Arc<str>,
    pub problems: Vec<String>,
    /// The namespaces that views need, with their states.
    pub namespaces: Vec<(Arc<str>, Cluster)>,
}

// === impl Multicluster ===

impl Multicluster {
    /// # Errors
    /// When a metric is registered twice.
    pub(super) fn new(
        observer: Arc<DestinationObserver>,
        settings: Arc<DestinationSettings>,
        registry: &Registry,
    ) -> prometheus::Result<Arc<Self>> {
        Self::connecting(observer, settings, registry, client::embedded)
    }

    fn connecting(
        observer: Arc<DestinationObserver>,
        settings: Arc<DestinationSettings>,
        registry: &Registry,
        connect: Connect,
    ) -> prometheus::Result<Arc<Self>> {
        let failures = Opts::new(
            "linkerd_operator_remote_cluster_failures_total",
            "Failed lists and watches of another cluster, by class",
        );
        Ok(Arc::new(Self {
            clusters: RwLock::default(),
            secrets: Mutex::default(),
            known: AtomicBool::new(false),
            federated_reads: Mutex::default(),
            observer,
            settings,
            connect,
            metrics: WatchMetrics::of_remotes()?,
            failures: register_int_counter_vec_with_registry!(failures, &["cluster", "class"], registry)?,
        }))
    }

    /// Returns whether the Secrets of all links were read. Before that, a cluster that is missing here may be linked.
    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    pub(super) fn has(&self, cluster: &str) -> bool {
        self.clusters.read().contains_key(cluster)
    }

    /// Returns a namespace of a cluster, and watches it from now on; `None` if the cluster is not linked.
    pub(super) fn namespace(&self, cluster: &str, namespace: &Arc<str>) -> Option<Arc<RemoteNamespace>> {
        let cluster = self.clusters.read().get(cluster).cloned()?;
        Some(cluster.namespace(namespace))
    }

    /// Returns a namespace of a cluster if it is watched.
    pub(super) fn watched_namespace(&self, cluster: &str, namespace: &str) -> Option<Arc<RemoteNamespace>> {
        self.clusters.read().get(cluster)?.watched(namespace)
    }

    pub(super) fn clusters(&self) -> Vec<Arc<RemoteCluster>> {
        self.clusters.read().values().cloned().collect()
    }

    /// Returns the problems of the other clusters and of their Secrets, for `/ready`. None of them keeps the process
    /// from being ready.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.secrets.lock().problems();
        for cluster in self.clusters() {
            problems.extend(cluster.problems().into_iter().map(|it| format!("cluster {}: {it}", cluster.name)));
        }
        problems
    }

    /// Returns the state of each other cluster, for the dashboard.
    pub fn reports(&self) -> Vec<RemoteReport> {
        let report = |cluster: Arc<RemoteCluster>| RemoteReport {
            name: Arc::clone(&cluster.name),
            problems: cluster.problems(),
            namespaces: cluster.watched_namespaces(),
        };
        self.clusters().into_iter().map(report).collect()
    }

    fn new_cluster(&self, name: &Arc<str>) -> Arc<RemoteCluster> {
        let metrics = self.metrics.of_remote(name, &self.failures);
        RemoteCluster::new(name, &self.observer, &self.settings, metrics)
    }

    /// Links exactly the clusters that these Secrets name. A cluster whose link has changed keeps its state.
    fn link(&self, secrets: &[Arc<RemoteKubeconfig>]) {
        let links = {
            let mut known = self.secrets.lock();
            known.update(secrets, self.connect);
            known.clusters()
        };
        let mut changed = Vec::new();
        let mut gone: Vec<Arc<str>> =
            self.clusters.read().keys().filter(|name| !links.contains_key(*name)).cloned().collect();
        for (name, link) in links {
            let mut known = self.clusters.read().get(&name).cloned();
            if link.usable.is_none() && known.as_ref().is_some_and(|known| known.has_client()) {
                // Another Secret still names the cluster. The state is that of a Secret which was deleted.
                tracing::info!(cluster = &*name, "a cluster is not linked any more");
                known = None;
            }
            let is_new = known.is_none();
            let cluster = known.unwrap_or_else(|| self.new_cluster(&name));
            cluster.set_secret_problems(link.problems);
            let is_renamed = link.usable.is_some_and(|usable| cluster.use_link(&usable));
            if is_new {
                self.clusters.write().insert(Arc::clone(&name), cluster);
            }
            if is_new || is_renamed {
                changed.push(name);
            }
        }
        for name in &gone {
            self.clusters.write().remove(name);
            remote::forget_failures(&self.failures, name);
            tracing::info!(cluster = &**name, "a cluster is not linked any more");
        }
        self.known.store(true, Ordering::Release);
        changed.append(&mut gone);
        let whole = |cluster| DirtyKey::Remote(cluster, RemoteChange::Cluster);
        self.observer.dirty.mark(changed.into_iter().map(whole), Instant::now());
    }

    /// Ends the watches of namespaces that no view has needed for a while, forever.
    pub(super) async fn sweep(self: Arc<Self>) {
        loop {
            sleep(SWEEP).await;
            for cluster in self.clusters() {
                if cluster.sweep() {
                    // The views read the cluster again, and start the watches.
                    let change = DirtyKey::Remote(Arc::clone(&cluster.name), RemoteChange::Cluster);
                    self.observer.dirty.mark([change], Instant::now());
                }
            }
        }
    }
}

#[cfg(test)]
impl Multicluster {
    /// Links a cluster with these namespaces, whose states tests fill.
    pub(super) fn link_feeds<'a>(
        &self,
        name: &str,
        trust_domain: &crate::cluster::kinds::remote_kubeconfig::TrustDomain,
        namespaces: impl IntoIterator<Item = (&'a str, &'a crate::cluster::Cluster)>,
    ) {
        let cluster = self.new_cluster(&name.into());
        cluster.use_trust_domain(trust_domain);
        for (namespace, state) in namespaces {
            cluster.insert(namespace, state.clone());
        }
        self.clusters.write().insert(name.into(), cluster);
        let change = DirtyKey::Remote(name.into(), RemoteChange::Cluster);
        self.observer.dirty.mark([change], Instant::now());
    }

    /// The Secrets were listed.
    pub(super) fn know(&self) {
        self.known.store(true, Ordering::Release);
    }

    pub(super) fn unlink(&self, cluster: &str) {
        self.clusters.write().remove(cluster);
        self.observer.dirty.mark([DirtyKey::Remote(cluster.into(), RemoteChange::Cluster)], Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::NamespacedName,
        cluster::kinds::remote_kubeconfig::{Link, LinkContent, TrustDomain},
        destination::testing::settings,
    };

    const KUBECONFIG: &str = r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}]}"#;

    #[tokio::test]
    async fn a_panic_while_a_link_is_handled_costs_its_cluster_only() {
        let connect: Connect = |kubeconfig| match kubeconfig {
            "poison" => panic!("out of ink"),
            text => client::embedded(text),
        };
        let observer = DestinationObserver::new();
        let clusters = Multicluster::connecting(observer, settings().into(), &Registry::new(), connect).unwrap();
        let secret = |cluster: &str, kubeconfig: &str| {
            let trust_domain = TrustDomain::parse("trust").unwrap();
            let link = Link { cluster: cluster.into(), trust_domain, kubeconfig: kubeconfig.into() };
            let key = NamespacedName::new("linkerd", cluster);
            Arc::new(RemoteKubeconfig { key, content: LinkContent::Complete(link) })
        };
        clusters.link(&[secret("east", "poison"), secret("west", KUBECONFIG)]);
        assert!(clusters.is_known() && clusters.has("east") && clusters.has("west"));
        let problem = "the key kubeconfig cannot be used: it causes a panic of this program, which is in its log; correct it, \
                       or link the cluster again";
        let of_east = format!("cluster east: Secret linkerd/east has no usable link: {problem}");
        assert_eq!(clusters.problems(), [of_east]);
        clusters.link(&[secret("east", KUBECONFIG), secret("west", "poison")]);
        let kept = "so its last usable one stays in use";
        let of_west = format!("cluster west: Secret linkerd/west has no usable link, {kept}: {problem}");
        assert_eq!(clusters.problems(), [of_west]);
    }
}
