//! One other cluster, and its namespaces that views need.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use futures::FutureExt;
use kube::Client;
use parking_lot::{Mutex, RwLock};
use prometheus::IntCounterVec;
use tokio::{sync::watch as channel, time::Instant};
use tracing::{error, info};

use super::{
    observer::{KINDS, RemoteObserver},
    secrets::{REASON_BYTES, UsableLink, first_few},
};
use crate::{
    cluster::{
        Clients, Cluster, FAILURE_CLASSES, Observer, WatchMetrics,
        kinds::remote_kubeconfig::{HiddenText, TrustDomain},
    },
    destination::{observer::DestinationObserver, settings::DestinationSettings},
    tasks::Tasks,
    text::truncated,
};

/// The time for which a namespace is still watched when no view needs it any more. Proxies reconnect after an hour at
/// most, and their Services should not be listed again each time.
const UNUSED: Duration = Duration::from_secs(60);

pub(in crate::destination) struct RemoteCluster {
    pub(in crate::destination) name: Arc<str>,
    settings: Arc<RemoteSettings>,
    clients: channel::Sender<Option<Client>>,
    /// The kubeconfig of the client.
    kubeconfig: Mutex<Option<HiddenText>>,
    /// The problems of the Secrets of the cluster.
    secret_problems: Mutex<Vec<String>>,
    /// Why a watch was started again at the last sweep.
    fault: Mutex<Option<String>>,
    metrics: WatchMetrics,
    observer: Arc<DestinationObserver>,
    namespaces: Mutex<HashMap<Arc<str>, WatchedNamespace>>,
}

struct WatchedNamespace {
    namespace: Arc<RemoteNamespace>,
    /// Since when no view needs it.
    unused_since: Option<Instant>,
    tasks: Tasks,
}

/// The state of one namespace of another cluster. It is watched while a view has it.
pub(in crate::destination) struct RemoteNamespace {
    /// The name of the cluster.
    pub(in crate::destination) name: Arc<str>,
    pub(in crate::destination) cluster: Cluster,
    settings: Arc<RemoteSettings>,
}

/// The settings of this cluster, with the trust domain of the other one.
type RemoteSettings = RwLock<Arc<DestinationSettings>>;

// === impl RemoteCluster ===

impl RemoteCluster {
    /// A cluster without a link: it is not watched before [`RemoteCluster::use_link`].
    pub(super) fn new(
        name: &Arc<str>,
        observer: &Arc<DestinationObserver>,
        settings: &Arc<DestinationSettings>,
        metrics: WatchMetrics,
    ) -> Arc<Self> {
        // No endpoint is known before the trust domain is.
        let settings =
            DestinationSettings { identity_trust_domain: String::new(), ..DestinationSettings::clone(settings) };
        Arc::new(Self {
            name: Arc::clone(name),
            settings: Arc::new(RwLock::new(Arc::new(settings))),
            clients: channel::channel(None).0,
            kubeconfig: Mutex::default(),
            secret_problems: Mutex::default(),
            fault: Mutex::default(),
            metrics,
            observer: Arc::clone(observer),
            namespaces: Mutex::default(),
        })
    }

    /// Uses this link from now on. Returns whether the trust domain was another one.
    pub(super) fn use_link(&self, UsableLink { link, client }: &UsableLink) -> bool {
        // First the trust domain, so that no endpoint of the link has another identity.
        let is_renamed = self.use_trust_domain(&link.trust_domain);
        let before = self.kubeconfig.lock().replace(link.kubeconfig.clone());
        if before.as_ref() != Some(&link.kubeconfig) {
            self.clients.send_replace(Some(client.clone()));
        }
        if before.is_none() {
            info!(cluster = &*self.name, "a cluster is linked");
        }
        is_renamed
    }

    /// Uses this trust domain from now on. Returns whether it was another one.
    pub(super) fn use_trust_domain(&self, trust_domain: &TrustDomain) -> bool {
        let mut settings = self.settings.write();
        let differs = settings.identity_trust_domain != *trust_domain.as_str();
        if differs {
            let identity_trust_domain = trust_domain.as_str().to_owned();
            *settings =
                Arc::new(DestinationSettings { identity_trust_domain, ..DestinationSettings::clone(&settings) });
        }
        differs
    }

    pub(super) fn set_secret_problems(&self, problems: Vec<String>) {
        *self.secret_problems.lock() = problems;
    }

    /// Returns whether requests can be sent: a link could be used.
    pub(super) fn has_client(&self) -> bool {
        self.clients.borrow().is_some()
    }

    /// Returns a namespace, and watches it from now on.
    pub(super) fn namespace(&self, name: &Arc<str>) -> Arc<RemoteNamespace> {
        let mut namespaces = self.namespaces.lock();
        let watched = namespaces.entry(Arc::clone(name)).or_insert_with(|| self.watch(name));
        watched.unused_since = None;
        Arc::clone(&watched.namespace)
    }

    pub(super) fn watched(&self, name: &str) -> Option<Arc<RemoteNamespace>> {
        self.namespaces.lock().get(name).map(|watched| Arc::clone(&watched.namespace))
    }

    /// Returns the watched namespaces.
    pub(super) fn watched_namespaces(&self) -> Vec<(Arc<str>, Cluster)> {
        let namespaces = self.namespaces.lock();
        namespaces.iter().map(|(name, watched)| (Arc::clone(name), watched.namespace.cluster.clone())).collect()
    }

    fn watch(&self, name: &Arc<str>) -> WatchedNamespace {
        let mut tasks = Tasks::default();
        let observer = RemoteObserver::new(&self.name, name, &self.observer);
        let clients = Clients::from(self.clients.subscribe());
        let memory = self.settings.read().limits.memory.of_other_clusters();
        let reader = Arc::clone(&observer) as Arc<dyn Observer>;
        let cluster = Cluster::spawn_remote(&self.name, &clients, reader, &self.metrics, memory, &mut tasks);
        // A namespace without objects becomes known without a change.
        tasks.spawn("remote-namespace", observer.announce(cluster.clone()));
        let namespace =
            Arc::new(RemoteNamespace { name: Arc::clone(&self.name), cluster, settings: Arc::clone(&self.settings) });
        WatchedNamespace { namespace, unused_since: None, tasks }
    }

    /// Forgets the namespaces that no view has needed for a while, and the namespaces with a task that has ended, so
    /// that their views start them again. Returns whether a task has ended.
    pub(super) fn sweep(&self) -> bool {
        let mut fault = None;
        self.namespaces.lock().retain(|name, watched| {
            if let Some(ended) = watched.tasks.ended().now_or_never() {
                error!(cluster = &*self.name, namespace = &**name, ended, "a watch of another cluster ended");
                fault = Some(format!("namespace {name}: {ended}, and its watches are started again"));
                return false;
            }
            let is_used = Arc::strong_count(&watched.namespace) > 1;
            let since = if is_used { None } else { watched.unused_since.or_else(|| Some(Instant::now())) };
            watched.unused_since = since;
            let stays = since.is_none_or(|since| since.elapsed() < UNUSED);
            if !stays {
                info!(
                    cluster = &*self.name,
                    namespace = &**name,
                    "a namespace of another cluster is not needed any more"
                );
            }
            stays
        });
        let has_ended = fault.is_some();
        *self.fault.lock() = fault.map(|fault| truncated(fault, REASON_BYTES));
        has_ended
    }

    /// Returns why the state may be incomplete or out of date: causes before their effects, the first few of them, and
    /// the number of the others.
    pub(super) fn problems(&self) -> Vec<String> {
        let of_secrets = self.secret_problems.lock().clone();
        let fault = self.fault.lock().clone();
        let namespaces = self.namespaces.lock();
        let mut of_namespaces: Vec<_> = namespaces
            .iter()
            .flat_map(|(name, watched)| {
                let problems = watched.namespace.cluster.problems().into_iter();
                problems.map(move |problem| (!problem.is_failure, format!("namespace {name}: {}", problem.text)))
            })
            .collect();
        of_namespaces.sort_unstable();
        let of_namespaces = of_namespaces.into_iter().map(|(_, text)| text);
        first_few(of_secrets.into_iter().chain(fault).chain(of_namespaces).collect())
    }

    /// Returns the states of all watched namespaces.
    pub(super) fn states(&self) -> Vec<Cluster> {
        self.namespaces.lock().values().map(|watched| watched.namespace.cluster.clone()).collect()
    }

    #[cfg(test)]
    pub(super) fn insert(&self, name: &str, cluster: Cluster) {
        let settings = Arc::clone(&self.settings);
        let namespace = Arc::new(RemoteNamespace { name: Arc::clone(&self.name), cluster, settings });
        let watched = WatchedNamespace { namespace, unused_since: None, tasks: Tasks::default() };
        self.namespaces.lock().insert(name.into(), watched);
    }
}

/// Ends the series of a cluster that is not linked any more.
pub(super) fn forget_failures(failures: &IntCounterVec, cluster: &str) {
    for class in FAILURE_CLASSES {
        // Another link of the same cluster may have ended it.
        _ = failures.remove_label_values(&[cluster, class]);
    }
}

// === impl RemoteNamespace ===

impl RemoteNamespace {
    pub(in crate::destination) fn settings(&self) -> Arc<DestinationSettings> {
        Arc::clone(&self.settings.read())
    }

    /// Returns whether the state is complete, so that an object that it lacks does not exist. Once known, a namespace
    /// stays known.
    pub(in crate::destination) fn is_known(&self) -> bool {
        self.cluster.knows(KINDS)
    }
}

impl fmt::Debug for RemoteNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteNamespace")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::testing::Feed, destination::testing::settings};

    fn cluster() -> Arc<RemoteCluster> {
        let metrics = WatchMetrics::of_remotes().unwrap();
        RemoteCluster::new(&"east".into(), &DestinationObserver::new(), &settings().into(), metrics)
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_watched_until_a_minute_after_the_last_view_has_needed_it() {
        let cluster = cluster();
        cluster.insert("ns", Feed::default().cluster);
        let mut view = Some(cluster.namespace(&"ns".into()));
        let is_watched = |after: u64| {
            let cluster = Arc::clone(&cluster);
            async move {
                tokio::time::advance(Duration::from_secs(after)).await;
                assert!(!cluster.sweep());
                cluster.watched("ns").is_some()
            }
        };
        assert!(is_watched(600).await, "a view has it");
        view.take();
        assert!(is_watched(10).await && is_watched(50).await);
        view.replace(cluster.namespace(&"ns".into()));
        assert!(is_watched(50).await, "it is needed again");
        view.take();
        assert!(is_watched(10).await && is_watched(59).await);
        assert!(!is_watched(1).await);
    }

    #[tokio::test]
    async fn the_cause_is_the_first_problem_however_many_lists_wait_for_it() {
        let cluster = cluster();
        let observer = RemoteObserver::new(&"east".into(), &"ns".into(), &DestinationObserver::new());
        cluster.insert("ns", Feed::unlisted(KINDS, observer).cluster);
        cluster.set_secret_problems(vec!["Secret linkerd/east has no usable link".to_owned()]);
        let problems = cluster.problems();
        assert_eq!(problems.first().unwrap(), "Secret linkerd/east has no usable link");
        assert!(problems[1].starts_with("namespace ns: the first list of "), "{problems:?}");
        assert_eq!(problems.last().unwrap(), "and 1 more problem");
    }

    #[tokio::test]
    async fn a_watch_that_panics_is_started_again_and_costs_its_namespace_only() {
        let cluster = cluster();
        cluster.insert("broken", Feed::default().cluster);
        cluster.insert("whole", Feed::default().cluster);
        let mut tasks = Tasks::default();
        tasks.spawn("watch", async { panic!("out of ink") });
        cluster.namespaces.lock().get_mut("broken").unwrap().tasks = tasks;
        while !cluster.sweep() {
            tokio::task::yield_now().await;
        }
        assert!(cluster.watched("broken").is_none() && cluster.watched("whole").is_some());
        let problems = cluster.problems().join("\n");
        assert!(problems.starts_with("namespace broken: task watch ended"), "{problems}");
        cluster.namespace(&"broken".into());
        assert!(!cluster.sweep());
        assert!(!cluster.problems().join("\n").contains("ended"));
    }
}
