//! A stand-in for Linkerd's proxy injector: replicas that answer AdmissionReviews from files, which a simulated kubelet
//! writes.
//!
//! ```text
//!   ConfigMaps ──▶ kubelet of each replica (lag, nudge) ──▶ its files ──▶ replica ◀──HTTPS── kube-apiserver: CREATE pods, services
//!                                                                            ▲────HTTPS── the operator, at the endpoint's address
//! ```
//!
//! * In: the ConfigMaps `linkerd-config` and `linkerd-identity-trust-roots` of a namespace, which may be missing at
//!   first; per replica a [lag](Injector::set_lag), a [`Behaviour`] and readiness, which can change at any time.
//! * Out: the answers of Linkerd's injector, as far as they show which configuration it uses; a Service,
//!   EndpointSlices, Pods and a webhook, through which clients find and call it; the number of requests to each
//!   replica. Only the Pod's own annotation `linkerd.io/inject` enables injection, not that of its namespace.
//! * Always: each replica has separate files and reads them for every request. A restarted replica has a new Pod, port
//!   and directory. Everything ends on drop, except the objects in the API server: see [`unregister`].
//! * The same replicas can run [Linkerd's own injector](Injector::start_linkerd) or the
//!   [operator's](Injector::start_operator), which only answer rightly.
//! * For a replica number that does not exist, changes fail, and request counts are 0.

mod admission;
mod caller;
mod injection;
mod kubelet;
mod operator_webhook;
mod overrides;
mod registration;
pub mod reviews;
mod server;
mod serving;
mod values;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Error, Result};
use bytes::Bytes;
use futures::StreamExt;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

pub use caller::Caller;
pub use operator_webhook::OperatorWebhook;
pub use registration::{FailurePolicy, WEBHOOK, machine_address, unregister};
pub use server::{Behaviour, CertificateKind};

use crate::{control_plane::ControlPlane, port};
use kubelet::{Kubelet, Published};
use registration::{COMPONENT, Registration};
use server::Certificates;
pub(crate) use serving::MOUNT;
use serving::{Program, Serving};

pub struct Injector {
    registration: Registration,
    program: Program,
    certificates: Certificates,
    namespaces: Vec<String>,
    published: Arc<Published>,
    replicas: Arc<InjectorReplicas>,
    next: AtomicUsize,
    /// The host's address, which all replicas share.
    address: IpAddr,
    directory: PathBuf,
    _watches: JoinSet<()>,
}

#[derive(Default)]
struct InjectorReplicas(Mutex<BTreeMap<usize, Arc<InjectorReplica>>>);

struct InjectorReplica {
    pod: String,
    uid: String,
    server: Serving,
    kubelet: Arc<Kubelet>,
    _syncs: JoinSet<()>,
    directory: TempDir,
}

impl Injector {
    /// Starts this number of replicas, numbered from 0, as the injector of the control plane in `namespace`, and waits
    /// until the API server calls them. They are called for Pods and Services of `namespace` and of `others`.
    pub async fn start(
        control_plane: &ControlPlane,
        namespace: &str,
        others: &[&str],
        replicas: usize,
    ) -> Result<Self> {
        let certificates = Certificates::make(namespace, CertificateKind::SignedByAuthority)?;
        Self::start_program(Program::StandIn, certificates, control_plane, namespace, others, replicas).await
    }

    /// As [`Injector::start`], but the replicas run Linkerd's own injector, from this binary of its controller.
    pub async fn start_linkerd(
        controller: &Path,
        certificate: CertificateKind,
        control_plane: &ControlPlane,
        namespace: &str,
        others: &[&str],
        replicas: usize,
    ) -> Result<Self> {
        let certificates = Certificates::make(namespace, certificate)?;
        let program = Program::linkerd(controller, control_plane);
        Self::start_program(program, certificates, control_plane, namespace, others, replicas).await
    }

    /// As [`Injector::start`], but the replicas run the operator: in place of Linkerd's container, or as a manager that
    /// watches the ConfigMaps itself.
    pub async fn start_operator(
        watches: bool,
        control_plane: &ControlPlane,
        namespace: &str,
        others: &[&str],
        replicas: usize,
    ) -> Result<Self> {
        let certificates = Certificates::make(namespace, CertificateKind::SignedByAuthority)?;
        Self::start_program(
            Program::operator(control_plane, watches)?,
            certificates,
            control_plane,
            namespace,
            others,
            replicas,
        )
        .await
    }

    async fn start_program(
        program: Program,
        certificates: Certificates,
        control_plane: &ControlPlane,
        namespace: &str,
        others: &[&str],
        replicas: usize,
    ) -> Result<Self> {
        // Never in an existing cluster, which may have a real Linkerd.
        control_plane.ca_pem()?;
        let client = control_plane.client().await?;
        let registration = Registration::new(&client, namespace);
        let published = Arc::new(Published::new(Api::namespaced(client, namespace)));
        let shared = Arc::<InjectorReplicas>::default();
        let mut watches = JoinSet::new();
        watches.spawn({
            let published = published.clone();
            async move { published.follow().await }
        });
        watches.spawn(follow_pods(registration.pods.clone(), shared.clone()));
        let injector = Self {
            program,
            certificates,
            namespaces: std::iter::once(&namespace).chain(others).map(|&name| name.to_owned()).collect(),
            registration,
            published,
            replicas: shared,
            next: AtomicUsize::new(0),
            address: machine_address()?,
            directory: control_plane.directory().to_owned(),
            _watches: watches,
        };
        injector.registration.put_service().await?;
        for _ in 0..replicas {
            injector.add_replica().await?;
        }
        injector.set_failure_policy(FailurePolicy::Ignore).await?;
        if replicas > 0 {
            let seen = || injector.replicas.all().iter().any(|replica| replica.server.requests() > 0);
            injector.registration.is_reached(seen).await?;
            injector.replicas.all().iter().for_each(|replica| replica.server.forget());
        }
        Ok(injector)
    }

    // === the replicas ===

    /// Adds a ready replica that has the current content of the ConfigMaps. Returns its number.
    pub async fn add_replica(&self) -> Result<usize> {
        let replica = self.new_replica(Duration::ZERO, Behaviour::Right).await?;
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.replicas.put(number, replica.clone());
        self.ready(&replica, true).await?;
        Ok(number)
    }

    /// Stops a replica, and deletes its Pod and EndpointSlice. The other numbers do not change.
    pub async fn remove_replica(&self, replica: usize) -> Result<()> {
        self.end(replica).await.map(drop)
    }

    /// Replaces a replica by a ready one with a new Pod and the same number, lag and behavior. It reads the ConfigMaps
    /// again, and its request count is 0.
    pub async fn restart_replica(&self, replica: usize) -> Result<()> {
        let old = self.end(replica).await?;
        let new = self.new_replica(old.kubelet.lag(), old.server.behaviour()).await?;
        self.replicas.put(replica, new.clone());
        self.ready(&new, true).await
    }

    /// Sets the delay after which its files follow the ConfigMaps; by default zero. [`Duration::MAX`]: only after a
    /// nudge.
    pub fn set_lag(&self, replica: usize, lag: Duration) -> Result<()> {
        self.replicas.get(replica)?.kubelet.set_lag(lag);
        Ok(())
    }

    /// Sets the behavior from the next connection on.
    pub async fn set_behaviour(&self, replica: usize, behaviour: Behaviour) -> Result<()> {
        self.replicas.get(replica)?.server.set_behaviour(behaviour).await
    }

    /// Sets the readiness of its Pod and its endpoint. An unready replica still answers.
    pub async fn set_ready(&self, replica: usize, ready: bool) -> Result<()> {
        self.ready(&self.replicas.get(replica)?.clone(), ready).await
    }

    /// Sets the failure policy of the webhook; [`FailurePolicy::Ignore`] at the start.
    pub async fn set_failure_policy(&self, policy: FailurePolicy) -> Result<()> {
        let (path, ca) = (self.program.path(), self.certificates.ca_pem());
        self.registration.put_webhook(path, ca, &self.namespaces, policy).await
    }

    // === observations ===

    /// The numbers of the existing replicas.
    pub fn replicas(&self) -> Vec<usize> {
        self.replicas.locked().keys().copied().collect()
    }

    /// The name of the replica's Pod.
    pub fn pod(&self, replica: usize) -> Result<String> {
        Ok(self.replicas.get(replica)?.pod.clone())
    }

    /// The address on which it listens, which is that of its endpoint.
    pub fn address(&self, replica: usize) -> Result<SocketAddr> {
        Ok(self.replicas.get(replica)?.server.address())
    }

    /// The number of requests it received, from any client.
    pub fn requests(&self, replica: usize) -> usize {
        self.replicas.get(replica).map_or(0, |replica| replica.server.requests())
    }

    /// The body of its last request. `None` if that was not JSON.
    pub fn last_review(&self, replica: usize) -> Option<Value> {
        self.replicas.get(replica).ok()?.server.last_review()
    }

    /// The directory that its kubelet fills: `/var/run/linkerd` in Linkerd's container.
    pub fn directory(&self, replica: usize) -> Result<PathBuf> {
        Ok(self.replicas.get(replica)?.directory.path().to_owned())
    }

    /// The number of observed changes of its Pod's annotations.
    pub fn nudges(&self, replica: usize) -> usize {
        self.replicas.get(replica).map_or(0, |replica| replica.kubelet.nudges())
    }

    /// The CA of its certificate, which is the webhook's `caBundle`.
    pub fn ca_pem(&self) -> &str {
        self.certificates.ca_pem()
    }

    /// Posts a body to the replica directly. Returns the status and body of the answer.
    pub async fn post(&self, replica: usize, body: impl Into<Bytes>) -> Result<(StatusCode, Bytes)> {
        server::post(self.address(replica)?, self.program.path(), &self.certificates, body.into()).await
    }

    /// Opens a connection to the replica, which is kept.
    pub async fn connect(&self, replica: usize) -> Result<Caller> {
        Caller::connect(self.address(replica)?, &self.certificates).await
    }

    /// The log of the replica's process.
    pub async fn log(&self, replica: usize) -> Result<String> {
        self.replicas.get(replica)?.server.log().await.context("the stand-in has no log")
    }

    /// The process of the replica; `None` for the stand-in, and after its end.
    pub async fn pid(&self, replica: usize) -> Result<Option<u32>> {
        Ok(self.replicas.get(replica)?.server.pid().await)
    }

    async fn new_replica(&self, lag: Duration, behaviour: Behaviour) -> Result<Arc<InjectorReplica>> {
        let directory = tempfile::Builder::new().prefix("injector-").tempdir_in(&self.directory)?;
        let address = SocketAddr::new(self.address, port::free_at(self.address)?);
        let pod = self.registration.put_pod(address).await?;
        let (name, uid) = (pod.name_any(), pod.uid().context("a Pod without uid")?);
        let kubelet = Arc::new(Kubelet::new(directory.path(), pod.annotations().clone(), lag));
        let mounted = kubelet.mount(&self.published).await?;
        let (certificates, namespace) = (&self.certificates, &self.registration.namespace);
        let server = self.program.start(address, certificates, kubelet.clone(), directory.path(), namespace).await?;
        server.set_behaviour(behaviour).await?;
        self.registration.put_slice(&name, &uid, address).await?;
        let mut syncs = JoinSet::new();
        syncs.spawn(kubelet.clone().run(self.published.clone(), mounted));
        Ok(Arc::new(InjectorReplica { pod: name, uid, server, kubelet, _syncs: syncs, directory }))
    }

    /// Stops a replica. On return its port is closed.
    async fn end(&self, number: usize) -> Result<Arc<InjectorReplica>> {
        let replica = self.replicas.get(number)?;
        replica.server.stop().await?;
        self.replicas.remove(number);
        self.registration.remove(&replica.pod).await?;
        Ok(replica)
    }

    async fn ready(&self, replica: &InjectorReplica, ready: bool) -> Result<()> {
        self.registration.set_ready(&replica.pod, &replica.uid, replica.server.address(), ready).await
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        // The Pod watch also holds the replicas until its cancelled task is dropped.
        self.replicas.locked().clear();
    }
}

// === impl InjectorReplicas ===

impl InjectorReplicas {
    fn get(&self, number: usize) -> Result<Arc<InjectorReplica>> {
        self.locked().get(&number).cloned().with_context(|| format!("replica {number} does not exist"))
    }

    fn all(&self) -> Vec<Arc<InjectorReplica>> {
        self.locked().values().cloned().collect()
    }

    fn put(&self, number: usize, replica: Arc<InjectorReplica>) {
        self.locked().insert(number, replica);
    }

    fn remove(&self, number: usize) {
        self.locked().remove(&number);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<InjectorReplica>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the namespace of a control plane with Linkerd's document and trust roots, and a namespace of workloads.
pub async fn install(control_plane: &ControlPlane, namespace: &str, workloads: &str) -> Result<()> {
    control_plane.create_namespaces(&[namespace, workloads]).await?;
    let values = format!("values={}", reviews::INSTALLED);
    let roots = format!("ca-bundle.crt={}", reviews::TRUST_ROOTS);
    for (name, content) in [("linkerd-config", values), ("linkerd-identity-trust-roots", roots)] {
        let content = format!("--from-literal={content}");
        control_plane.kubectl(&["-n", namespace, "create", "configmap", name, &content]).await?;
    }
    Ok(())
}

/// Answers the body of a request as the stand-in does, with these files, for a control plane in `namespace`. `None` if
/// it breaks the connection.
///
/// # Errors
/// When the body is not an AdmissionReview.
pub fn stand_in_answer(body: &[u8], values: &str, trust_roots: &str, namespace: &str) -> Result<Option<Value>> {
    let review = admission::AdmissionReview::parse(body).map_err(Error::msg)?.context("an empty body")?;
    let mounts = injection::Mounts { values: Ok(values.into()), trust_roots: Ok(trust_roots.into()) };
    Ok(server::answer(review, mounts, namespace))
}

/// Passes the Pods' annotations to the kubelets of the replicas, forever.
async fn follow_pods(pods: Api<Pod>, replicas: Arc<InjectorReplicas>) {
    let config = watcher::Config::default().labels(COMPONENT);
    let mut changes = std::pin::pin!(watcher(pods, config).default_backoff());
    while let Some(change) = changes.next().await {
        match change {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => {
                let its = replicas.all().into_iter().find(|replica| Some(&replica.uid) == pod.metadata.uid.as_ref());
                if let Some(replica) = its {
                    replica.kubelet.observe_pod(pod.annotations());
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("watching the Pods of the injector: {error}"),
        }
    }
}
