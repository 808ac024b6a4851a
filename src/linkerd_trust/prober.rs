//! Asks proxies for their certificates, in a separate task.
//!
//! In: the running proxies, as the state has them. Out: what each presented, in [`SharedLeaves`]; news queues the resource.
//! Always holds: only a process that leads asks, and only while a LinkerdTrust is in effect; each handshake has a
//! deadline, and at most [`PER_ROUND`] begin in a round; nothing is sent to a proxy after its certificate was received.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use prometheus::{IntCounterVec, register_int_counter_vec_with_registry};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    leaves::{LeafBook, ObservedLeaf, ProbedProxy},
    observer::LinkerdTrustObserver,
    seen::TrustSettings,
};
use crate::{
    api::NamespacedName,
    cluster::{
        Cluster,
        kinds::pod::{Pod, PodPhase},
    },
    contain::{Work, contain_future},
    controller::ControllerDeps,
    lease::Leadership,
    queue::WorkQueue,
    x509::{certificate::ChainCertificate, handshake::presented},
};

/// The time between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// The maximum number of proxies that are asked in a round: about 5 % of a core.
const PER_ROUND: usize = 50;
/// The maximum number of proxies that are asked at the same time.
const MAX_CONCURRENT: usize = 50;
const DEADLINE: Duration = Duration::from_secs(5);
/// The maximum number of certificates that are read after that of the proxy.
const LONGEST_CHAIN: usize = 16;
const RESULTS: [&str; 2] = ["observed", "failed"];

/// What proxies presented, for the prober and the controller.
#[derive(Default)]
pub(super) struct SharedLeaves(Mutex<LeafBook>);

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
    /// Returns what proxies presented, once each was asked; `None` before that.
    pub(super) fn known(&self) -> Option<MutexGuard<'_, LeafBook>> {
        Some(self.0.lock()).filter(|book| book.is_complete())
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
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(ROUND) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                // What a round found before a panic is kept, and the proxies that are left are asked in the next one.
                _ = contain_future(Work::Probing, self.round()) => {}
            }
        }
    }

    async fn round(&self) {
        let Some((name, running)) = self.running() else {
            // The next term begins without knowledge: certificates are renewed meanwhile.
            *self.leaves.0.lock() = LeafBook::default();
            return;
        };
        let due = self.leaves.0.lock().due(running, PER_ROUND, Timestamp::now());
        stream::iter(due)
            .for_each_concurrent(MAX_CONCURRENT, async |proxy| {
                let leaf = ask(&proxy).await;
                self.probes.with_label_values(&[if leaf.is_some() { RESULTS[0] } else { RESULTS[1] }]).inc();
                let is_news = self.leaves.0.lock().note(&proxy.uid, leaf, Timestamp::now());
                if is_news {
                    self.queue.add_after(&name, ROUND);
                }
            })
            .await;
    }

    /// Returns the resource in effect, and the proxies that can be asked; `None` if this process must not ask.
    fn running(&self) -> Option<(NamespacedName, Vec<ProbedProxy>)> {
        self.leadership.term()?;
        let state = self.cluster.read();
        let trust = state.linkerd_trusts.in_effect(&self.control_plane)?;
        let domain = self.settings.of(&state, &self.control_plane).trust_domain;
        let running = state.pods.iter().filter_map(|pod| probed(pod, &self.control_plane, &domain));
        Some((NamespacedName::cluster_scoped(&trust.name), running.collect()))
    }
}

/// Returns the proxy of a Pod, if it runs and has an address of its own.
fn probed(pod: &Pod, control_plane: &str, domain: &str) -> Option<ProbedProxy> {
    if pod.control_plane_namespace() != Some(control_plane) || pod.terminating || pod.phase != PodPhase::Running {
        return None;
    }
    let address = pod.addresses.first().filter(|_| !pod.host_network)?;
    let (account, namespace) = (&pod.service_account, &pod.key.namespace);
    Some(ProbedProxy {
        uid: pod.uid.clone()?,
        address: SocketAddr::new(*address, pod.proxy?.admin),
        identity: format!("{account}.{namespace}.serviceaccount.identity.{control_plane}.{domain}"),
    })
}

/// Returns what the proxy presents; `None` if it does not answer as a proxy does.
async fn ask(proxy: &ProbedProxy) -> Option<ObservedLeaf> {
    let chain = timeout(DEADLINE, async {
        let stream = TcpStream::connect(proxy.address).await.ok()?;
        presented(stream, &proxy.identity).await.ok()
    });
    let chain = chain.await.ok()??;
    let (leaf, sent) = chain.split_first()?;
    let leaf = ChainCertificate::parse(leaf)?;
    let chain: Option<Vec<_>> = sent.iter().take(LONGEST_CHAIN).map(|der| ChainCertificate::parse(der)).collect();
    Some(ObservedLeaf { not_before: leaf.not_before, not_after: leaf.not_after, chain: chain? })
}
