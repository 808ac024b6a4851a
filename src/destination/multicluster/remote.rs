//! One other cluster, and its namespaces that views need.

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use futures::FutureExt;
use kube::Client;
use parking_lot::{Mutex, RwLock};
use prometheus::IntCounterVec;
use tokio::{sync::watch as channel, time::Instant};
use tracing::{error, info, warn};

use super::observer::{KINDS, RemoteObserver};
use crate::{
    client,
    cluster::{
        Clients, Cluster, FAILURE_CLASSES, Observer, WatchMetrics,
        kinds::remote_kubeconfig::{HiddenText, Link},
    },
    destination::{observer::DestinationObserver, settings::DestinationSettings},
    tasks::Tasks,
    text::truncated,
};

/// How long a namespace is watched after the last view has needed it. Proxies reconnect after an hour at most, and their
/// Services should not be listed again each time.
const UNUSED: Duration = Duration::from_secs(60);

/// The number of problems of a cluster that `/ready` names.
const PROBLEMS: usize = 5;
/// The maximum number of bytes of a reason.
const REASON_BYTES: usize = 1024;

pub(in crate::destination) struct RemoteCluster {
    pub(in crate::destination) name: Arc<str>,
    settings: Arc<RemoteSettings>,
    clients: channel::Sender<Option<Client>>,
    /// The last kubeconfig, and why it cannot be used.
    kubeconfig: Mutex<(Option<HiddenText>, Option<String>)>,
    /// Why a watch was started again at the last sweep.
    fault: Mutex<Option<String>>,
    metrics: WatchMetrics,
    observer: Arc<DestinationObserver>,
    namespaces: Mutex<HashMap<Arc<str>, WatchedNamespace>>,
}

/// Returns a client from the text of an untrusted kubeconfig.
pub(super) type Connect = fn(&str) -> anyhow::Result<Client>;

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
    pub(super) fn new(
        link: &Link,
        observer: &Arc<DestinationObserver>,
        settings: &Arc<DestinationSettings>,
        metrics: WatchMetrics,
    ) -> Arc<Self> {
        info!(cluster = &*link.cluster, "a cluster is linked");
        Arc::new(Self {
            name: Arc::clone(&link.cluster),
            settings: Arc::new(RwLock::new(with_trust_domain(settings, &link.trust_domain))),
            clients: channel::channel(None).0,
            kubeconfig: Mutex::default(),
            fault: Mutex::default(),
            metrics,
            observer: Arc::clone(observer),
            namespaces: Mutex::default(),
        })
    }

    /// Uses this trust domain from now on. Returns whether it was another one.
    pub(super) fn use_trust_domain(&self, trust_domain: &str) -> bool {
        let mut settings = self.settings.write();
        let differs = settings.identity_trust_domain != *trust_domain;
        if differs {
            *settings = with_trust_domain(&settings, trust_domain);
        }
        differs
    }

    /// Uses these credentials from now on. If they cannot be used, the old ones stay in use.
    pub(super) fn use_kubeconfig(&self, kubeconfig: &HiddenText, connect: Connect) {
        if self.kubeconfig.lock().0.as_ref() == Some(kubeconfig) {
            return;
        }
        // Whatever a Secret says, this costs its cluster only.
        let client = catch_unwind(AssertUnwindSafe(|| connect(kubeconfig.reveal())));
        let client = client.unwrap_or_else(|_| Err(anyhow!("it causes a panic of this program, which is in its log")));
        let why = client.as_ref().err().map(|error| client::describe(&**error));
        let problem = why.map(|why| format!("the kubeconfig cannot be used: {}", truncated(why, REASON_BYTES)));
        if let Some(problem) = &problem {
            warn!(cluster = &*self.name, problem, "keeping the last credentials of a cluster, if it had any");
        }
        if let Ok(client) = client {
            self.clients.send_replace(Some(client));
        }
        *self.kubeconfig.lock() = (Some(kubeconfig.clone()), problem);
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

    /// Forgets the namespaces that no view has needed for a while, and those of which a task has ended, so that their
    /// views start them again. Returns whether a task has ended.
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
        let kubeconfig = self.kubeconfig.lock().1.clone();
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
        let mut problems: Vec<String> = kubeconfig.into_iter().chain(fault).chain(of_namespaces).collect();
        let more = problems.len().saturating_sub(PROBLEMS);
        problems.truncate(PROBLEMS);
        if more > 0 {
            problems.push(format!("and {more} more problems"));
        }
        problems
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

fn with_trust_domain(settings: &DestinationSettings, trust_domain: &str) -> Arc<DestinationSettings> {
    Arc::new(DestinationSettings { identity_trust_domain: trust_domain.to_owned(), ..settings.clone() })
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

    /// Returns whether the state is complete, so that what it lacks does not exist. Then it stays so.
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
        let link = Link { cluster: "east".into(), trust_domain: "east.trust".into(), kubeconfig: "".into() };
        let metrics = WatchMetrics::of_remotes().unwrap();
        RemoteCluster::new(&link, &DestinationObserver::new(), &settings().into(), metrics)
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

    const USABLE: &str = r#"{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "a", "user": {}}]}"#;

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_used_is_a_problem_until_it_is_replaced() {
        let cluster = cluster();
        let problems = |kubeconfig: &str| {
            cluster.use_kubeconfig(&kubeconfig.into(), client::embedded);
            cluster.problems()
        };
        assert_eq!(problems("top-secret: ["), ["the kubeconfig cannot be used: it is not a kubeconfig"]);
        assert_eq!(problems(USABLE), [] as [&str; 0]);
        assert!(cluster.clients.borrow().is_some());
        let without_scheme = USABLE.replace("http://", "");
        let why = "the kubeconfig cannot be used: server of cluster \"a\" has no scheme: write https://HOST:PORT";
        assert_eq!(problems(&without_scheme), [why]);
        assert!(cluster.clients.borrow().is_some(), "the last usable credentials stay in use");
    }

    #[tokio::test]
    async fn the_cause_is_the_first_problem_however_many_lists_wait_for_it() {
        let cluster = cluster();
        let observer = RemoteObserver::new(&"east".into(), &"ns".into(), &DestinationObserver::new());
        cluster.insert("ns", Feed::unlisted(KINDS, observer).cluster);
        cluster.use_kubeconfig(&"top-secret: [".into(), client::embedded);
        let problems = cluster.problems();
        assert_eq!(problems.first().unwrap(), "the kubeconfig cannot be used: it is not a kubeconfig");
        assert!(problems[1].starts_with("namespace ns: the first list of "), "{problems:?}");
        assert_eq!(problems.last().unwrap(), "and 1 more problems");
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
