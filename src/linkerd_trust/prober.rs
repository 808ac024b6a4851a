//! Asks proxies for their certificates, in a separate task.
//!
//! In: the running proxies, as the state has them. Out: what each presented, in [`SharedLeaves`]; news queues the resource.
//! Always holds: only a process that leads asks, and only while a LinkerdTrust is in effect; each handshake has a
//! deadline, and at most [`PER_ROUND`] begin in a round; nothing is sent to a proxy after its certificate was received.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, register_int_counter_vec_with_registry};
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    leaves::{LeafBasis, LeafBook, NextQuestion, ObservedLeaf},
    observer::{KINDS, LinkerdTrustObserver},
    seen::TrustSettings,
};
use crate::{
    api::{NamespacedName, Uid},
    cluster::{
        Cluster,
        kinds::pod::{Pod, PodPhase},
    },
    contain::{Work, contain_future},
    controller::ControllerDeps,
    lease::Leadership,
    queue::WorkQueue,
    trust::seen::SeenLeaves,
    x509::{anchor_set::readable_certificates, certificate::ChainCertificate, handshake::presented},
};

/// The time between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// The same after a round in which no proxy was due: a round takes time in proportion to all Pods.
const IDLE_ROUND: Duration = Duration::from_secs(5);
/// The maximum number of proxies that are asked in a round: about 5 % of a core.
const PER_ROUND: usize = 50;
/// The maximum number of proxies that are asked at the same time.
const MAX_CONCURRENT: usize = 50;
const DEADLINE: Duration = Duration::from_secs(5);
/// The maximum number of roots that are tried for a certificate without a chain.
const MAX_ROOTS: usize = 20;
const RESULTS: [&str; 2] = ["observed", "failed"];

/// What proxies presented, for the prober and the controller.
#[derive(Default)]
pub(super) struct SharedLeaves {
    book: Mutex<LeafBook>,
    /// Notified when proxies must be asked again.
    changed: Notify,
}

pub(super) struct LeafProber {
    cluster: Cluster,
    leadership: Leadership,
    queue: Arc<WorkQueue>,
    control_plane: Arc<str>,
    settings: Arc<TrustSettings>,
    leaves: Arc<SharedLeaves>,
    probes: IntCounterVec,
}

// === impl SharedLeaves ===

impl SharedLeaves {
    /// Returns what proxies present, once each was asked; `None` before that.
    pub(super) fn known(&self, now: Timestamp) -> Option<SeenLeaves> {
        let book = self.book.lock();
        book.is_complete().then(|| book.seen(now))
    }

    /// Has proxies asked again if what this is computed from changed.
    pub(super) fn ask_again(&self, basis: LeafBasis, now: Timestamp) -> NextQuestion {
        let next = self.book.lock().ask_again(basis, now);
        if next == NextQuestion::Now {
            self.changed.notify_one();
        }
        next
    }

    /// Has each proxy asked again.
    pub(super) fn ask_all(&self, now: Timestamp) {
        self.book.lock().ask_all(now);
        self.changed.notify_one();
    }
}

// === impl LeafProber ===

impl LeafProber {
    pub(super) fn new(
        deps: &ControllerDeps,
        observer: &LinkerdTrustObserver,
        control_plane: &Arc<str>,
        settings: &Arc<TrustSettings>,
        leaves: &Arc<SharedLeaves>,
    ) -> prometheus::Result<Self> {
        let probes = register_int_counter_vec_with_registry!(
            "linkerd_operator_trust_probes_total",
            "TLS handshakes with proxies that show their certificates, by result",
            &["result"],
            &deps.registry
        )?;
        for result in RESULTS {
            probes.with_label_values(&[result]);
        }
        Ok(Self {
            cluster: deps.cluster.clone(),
            leadership: deps.leadership.clone(),
            queue: Arc::clone(&observer.queue),
            control_plane: Arc::clone(control_plane),
            settings: Arc::clone(settings),
            leaves: Arc::clone(leaves),
            probes,
        })
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        // Before the first list, the state has no Pods, and each of none would have been asked.
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.cluster.synced(KINDS) => {}
        }
        let mut pause = ROUND;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
                () = self.leaves.changed.notified() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                // What a round found before a panic is kept, and the proxies that are left are asked in the next one.
                asked = contain_future(Work::Probing, self.round()) => {
                    pause = if asked == Ok(0) { IDLE_ROUND } else { ROUND };
                }
            }
        }
    }

    /// Returns the number of proxies that were asked.
    async fn round(&self) -> usize {
        let Some(running) = self.running() else {
            // The next term begins without knowledge: certificates are renewed meanwhile.
            *self.leaves.book.lock() = LeafBook::default();
            return 0;
        };
        let RunningProxies { name, domain, roots, pods, unreachable } = running;
        let (due, change) = {
            let mut book = self.leaves.book.lock();
            let due = book.due(&pods, unreachable, PER_ROUND, Timestamp::now());
            if book.has_forgotten() {
                self.queue.add_after(&name, ROUND);
            }
            (due, book.change())
        };
        let asked = due.len();
        stream::iter(due)
            .for_each_concurrent(MAX_CONCURRENT, async |(uid, pod)| {
                let leaf = match ProbedProxy::of(&pod, &self.control_plane, &domain) {
                    Some(proxy) => ask(&proxy, &roots).await,
                    None => None,
                };
                self.probes.with_label_values(&[if leaf.is_some() { RESULTS[0] } else { RESULTS[1] }]).inc();
                let is_news = self.leaves.book.lock().note((&uid, &pod.key.namespace), leaf, change, Timestamp::now());
                if is_news {
                    self.queue.add_after(&name, ROUND);
                }
            })
            .await;
        asked
    }

    /// Returns the running proxies; `None` if this process must not ask.
    fn running(&self) -> Option<RunningProxies> {
        self.leadership.term()?;
        let (mut pods, mut unreachable) = (Vec::new(), 0);
        let (trust, bundle, values) = {
            let state = self.cluster.read();
            let trust = Arc::clone(state.linkerd_trusts.in_effect(&self.control_plane)?);
            let of_mesh = |pod: &&Arc<Pod>| pod.control_plane_namespace() == Some(&*self.control_plane);
            for pod in state.pods.iter().filter(of_mesh).filter(|pod| may_have_leaf(pod)) {
                match pod.uid.clone().filter(|_| ProbedProxy::address(pod).is_some()) {
                    Some(uid) => pods.push((uid, Arc::clone(pod))),
                    None => unreachable += 1,
                }
            }
            let bundle = state.config_maps.trust_roots(&self.control_plane).and_then(|map| map.bundle.clone());
            (trust, bundle, TrustSettings::text(&state, &self.control_plane))
        };
        let declared = trust.spec.anchors.as_ref().map(|anchors| anchors.pem.as_str());
        let texts = [bundle.as_deref(), declared];
        let certificates = texts.into_iter().flatten().flat_map(readable_certificates).take(MAX_ROOTS);
        Some(RunningProxies {
            name: NamespacedName::cluster_scoped(&trust.name),
            domain: self.settings.of(values).trust_domain,
            roots: certificates.filter_map(|der| ChainCertificate::parse(&der)).collect(),
            pods,
            unreachable,
        })
    }
}

/// The proxies of the mesh that may have a certificate.
struct RunningProxies {
    /// The resource in effect.
    name: NamespacedName,
    domain: String,
    /// The roots of the bundle, and the declared ones.
    roots: Vec<ChainCertificate>,
    pods: Vec<(Uid, Arc<Pod>)>,
    /// The number of running proxies without an address of their own, or with unreadable ports.
    unreachable: usize,
}

/// A proxy that can be asked.
struct ProbedProxy {
    address: SocketAddr,
    identity: String,
}

/// Whether the Pod may have a proxy with a certificate. A proxy that is a sidecar container runs while its Pod is Pending, and
/// each one until its Pod has ended.
fn may_have_leaf(pod: &Pod) -> bool {
    let has_begun = pod.phase == PodPhase::Running || !pod.addresses.is_empty();
    pod.injected.is_some() && pod.phase != PodPhase::Finished && has_begun
}

// === impl ProbedProxy ===

impl ProbedProxy {
    fn of(pod: &Pod, control_plane: &str, domain: &str) -> Option<Self> {
        let (account, namespace) = (&pod.service_account, &pod.key.namespace);
        let identity = format!("{account}.{namespace}.serviceaccount.identity.{control_plane}.{domain}");
        Some(Self { address: Self::address(pod)?, identity })
    }

    fn address(pod: &Pod) -> Option<SocketAddr> {
        let address = pod.addresses.first().filter(|_| !pod.host_network)?;
        Some(SocketAddr::new(*address, pod.proxy?.admin))
    }
}

/// Returns what the proxy presents; `None` if it does not answer as a proxy does, with a valid certificate.
async fn ask(proxy: &ProbedProxy, roots: &[ChainCertificate]) -> Option<ObservedLeaf> {
    let chain = timeout(DEADLINE, async {
        let stream = TcpStream::connect(proxy.address).await.ok()?;
        presented(stream, &proxy.identity).await.ok()
    });
    let chain = chain.await.ok()??;
    let (der, sent) = chain.split_first()?;
    let sent: Vec<_> = sent.iter().map(AsRef::as_ref).collect();
    ObservedLeaf::read(der, &sent, &proxy.identity, roots, Timestamp::now())
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::cluster::{Kind, testing::Feed};

    fn prober(feed: &Feed, observer: &LinkerdTrustObserver, leaves: &Arc<SharedLeaves>) -> LeafProber {
        LeafProber {
            cluster: feed.cluster.clone(),
            leadership: Leadership::for_test(),
            queue: Arc::clone(&observer.queue),
            control_plane: "linkerd".into(),
            settings: Arc::default(),
            leaves: Arc::clone(leaves),
            probes: IntCounterVec::new(prometheus::Opts::new("probes", "probes"), &["result"]).unwrap(),
        }
    }

    #[tokio::test]
    async fn each_proxy_is_asked_that_may_have_a_certificate() {
        let observer = LinkerdTrustObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
        let mut feed = Feed::new([Arc::clone(&observer) as Arc<dyn crate::cluster::Observer>]);
        feed.apply(Kind::LinkerdTrust, Event::Apply(json!({"metadata": {"name": "mesh", "uid": "1"}, "spec": {}})));
        let mut number = 10;
        let mut pod = |phase: &str, ip: Option<&str>, deleted: Option<&str>| {
            number += 1;
            let at = |variable: &str, port: u16| json!({"name": format!("LINKERD2_PROXY_{variable}_LISTEN_ADDR"), "value": format!("0.0.0.0:{port}")});
            let env = [at("INBOUND", 4143), at("CONTROL", 4190), at("ADMIN", 4191)];
            let metadata = json!({"name": format!("web-{number}"), "namespace": "app", "deletionTimestamp": deleted,
                "uid": format!("00000000-0000-0000-0000-0000000000{number}"), "labels": {"linkerd.io/control-plane-ns": "linkerd"}});
            let ips: Vec<_> = ip.iter().map(|ip| json!({"ip": ip})).collect();
            let pod = json!({"metadata": metadata, "status": {"phase": phase, "podIP": ip, "podIPs": ips},
                "spec": {"containers": [{"name": "linkerd-proxy", "env": env}]}});
            feed.apply(Kind::Pod, Event::Apply(pod));
        };
        let (ip, deleted) = (Some("10.0.0.1"), Some("2026-01-01T00:00:00Z"));
        pod("Running", ip, None);
        // An init container that comes after the proxy still runs.
        pod("Pending", ip, None);
        pod("Running", ip, deleted);
        pod("Unknown", ip, None);
        // Without an address of its own.
        pod("Running", None, None);
        for (phase, ip) in [("Pending", None), ("Succeeded", ip), ("Failed", ip)] {
            pod(phase, ip, None);
        }
        let running = prober(&feed, &observer, &Arc::default()).running().unwrap();
        let mut names: Vec<_> = running.pods.iter().map(|(_, pod)| pod.key.name.to_string()).collect();
        names.sort();
        assert_eq!(
            (names, running.unreachable),
            (vec!["web-11".to_owned(), "web-12".to_owned(), "web-13".to_owned(), "web-14".to_owned()], 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_before_the_pods_are_listed() {
        let observer = LinkerdTrustObserver::new("linkerd", &prometheus::Registry::new()).unwrap();
        let mut feed = Feed::unlisted(KINDS, Arc::clone(&observer) as Arc<dyn crate::cluster::Observer>);
        let leaves = Arc::<SharedLeaves>::default();
        tokio::spawn(prober(&feed, &observer, &leaves).run(CancellationToken::new()));
        feed.list(Kind::LinkerdTrust, [json!({"metadata": {"name": "mesh", "uid": "1"}, "spec": {}})]);
        sleep(ROUND * 10).await;
        assert!(leaves.known(Timestamp::now()).is_none());
        for kind in KINDS.iter().filter(|kind| **kind != Kind::LinkerdTrust) {
            feed.list(*kind, []);
        }
        sleep(IDLE_ROUND * 3).await;
        assert!(leaves.known(Timestamp::now()).is_some(), "there is no proxy to ask");
    }
}
