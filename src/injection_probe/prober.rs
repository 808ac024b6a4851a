//! Probes the replicas in a separate task until each is current.
//!
//! In: the newest [`ProbeRequest`]. Out: the answers of the replicas, each as it arrives; each change queues the
//! LinkerdConfig. Always holds: no replica is probed by a process that does not lead, or for a resource that is not
//! active; each answer has a deadline, and a replica that hangs delays no other; a current replica is probed again only
//! after the next write. Each round first reads which injectors are registered.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use prometheus::{
    Histogram, IntGaugeVec, Registry, register_histogram_with_registry, register_int_gauge_vec_with_registry,
};
use serde_json::{Value, json};
use strum::VariantNames;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::{
    admission_review::{self, ExpectedInjection, ProbeAnswer, Stale},
    answers::{CanaryProbe, ProbeAnswers, ProbeRequest},
    registration::{InjectorClients, InjectorOwner, InjectorServices},
    replica::Replica,
    webhook_client::{ANSWER_TIMEOUT, CallError, WebhookClient},
};
use crate::{
    api::{
        FIELD_MANAGER, INJECTOR_WEBHOOK, NamespacedName, OPERATOR_INJECTOR_WEBHOOK, linkerd_config::InjectorSyncMethod,
    },
    cluster::{Cluster, index::active_config},
    contain::{Work, contain_future},
    controller::ControllerDeps,
    lease::{Fence, Leadership},
    queue::WorkQueue,
    tasks::Tasks,
    write::WriteError,
};

/// The time between two probes of a replica that is not current.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time between two probes after [`SLOW_AFTER`].
const SLOW_INTERVAL: Duration = Duration::from_secs(5);
const SLOW_AFTER: Duration = Duration::from_secs(60);
/// The maximum number of replicas that are probed at the same time.
const MAX_CONCURRENT: usize = 16;
/// The number of concurrent dry runs that must agree, because the API server may choose another replica for each.
const DRY_RUNS: usize = 5;
/// A change of this annotation makes the kubelet refresh the volumes of the Pod.
const NUDGE_ANNOTATION: &str = "config.linkerd.io/nudge";
/// The metric label of a replica without an answer; the other labels are the variants of [`ProbeAnswer`].
const UNASKED: &str = "unasked";

/// The controller's handle to the prober.
pub(crate) struct Injectors {
    request: watch::Sender<Option<ProbeRequest>>,
    pub(super) answers: Arc<Mutex<ProbeAnswers>>,
    services: Arc<Mutex<InjectorServices>>,
}

struct Prober {
    request: watch::Receiver<Option<ProbeRequest>>,
    answers: Arc<Mutex<ProbeAnswers>>,
    /// The Services of the registered injectors, as they were read last.
    services: Arc<Mutex<InjectorServices>>,
    cluster: Cluster,
    queue: Arc<WorkQueue>,
    leadership: Leadership,
    fence: Fence,
    client: kube::Client,
    seconds: Histogram,
    replicas: IntGaugeVec,
}

// === impl Injectors ===

impl Injectors {
    /// # Errors
    /// When the metrics are registered already.
    pub(crate) fn spawn(
        deps: &ControllerDeps,
        queue: &Arc<WorkQueue>,
        fence: Fence,
        stop: CancellationToken,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let (sender, request) = watch::channel(None);
        let answers = Arc::<Mutex<ProbeAnswers>>::default();
        let services = Arc::<Mutex<InjectorServices>>::default();
        let (seconds, replicas) = register(&deps.registry)?;
        let prober = Prober {
            request,
            answers: Arc::clone(&answers),
            services: Arc::clone(&services),
            cluster: deps.cluster.clone(),
            queue: Arc::clone(queue),
            leadership: deps.leadership.clone(),
            fence,
            client: deps.client.clone(),
            seconds,
            replicas,
        };
        tasks.spawn("injector-prober", prober.run(stop));
        Ok(Self { request: sender, answers, services })
    }

    /// Returns a handle without a prober.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        Self { request: watch::channel(None).0, answers: Arc::default(), services: Arc::default() }
    }

    /// Records that all replicas are the operator's and are current or, if `is_denied`, that they accepted a Pod and
    /// now deny it. Returns whether the answers changed.
    #[cfg(test)]
    pub(crate) fn answer_for_test(&self, is_denied: bool) -> bool {
        let Some(request) = self.request.borrow().clone() else { return false };
        let mut answers = self.answers.lock();
        let known = answers.to(&request);
        let answer = if is_denied { ProbeAnswer::Denied("bad value".to_owned()) } else { ProbeAnswer::Current };
        for replica in &request.replicas {
            answers.note_program(replica, true);
            if is_denied {
                answers.record(&request, replica, ProbeAnswer::Stale(Stale::Configuration));
            }
            answers.record(&request, replica, answer.clone());
        }
        known != answers.to(&request)
    }

    /// Returns the Services of the registered injectors. Before the first probe, only Linkerd's counts as registered.
    pub(super) fn services(&self) -> InjectorServices {
        self.services.lock().clone()
    }

    /// Makes the prober probe the replicas of a request, and returns the answers so far.
    pub(super) fn request_probes(&self, request: ProbeRequest) -> Vec<(Replica, Option<ProbeAnswer>)> {
        let known = self.answers.lock().to(&request);
        self.request.send_if_modified(|current| {
            let is_new = current.as_ref() != Some(&request);
            if is_new {
                *current = Some(request);
            }
            is_new
        });
        known
    }

    /// Stops the probes for this LinkerdConfig.
    pub(crate) fn stop(&self, config: &str) {
        let is_stopped = |current: &mut Option<ProbeRequest>| current.take_if(|it| *it.config == *config).is_some();
        if self.request.send_if_modified(is_stopped) {
            self.answers.lock().forget();
        }
    }
}

// === impl Prober ===

impl Prober {
    async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = self.probe_until_current() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn probe_until_current(&mut self) {
        let mut current = None;
        let mut since = Instant::now();
        loop {
            let request = self.request.borrow_and_update().clone();
            let wanted =
                request.as_ref().map(|request| (request.expected.clone(), request.canary.clone(), request.written));
            if current != wanted {
                (current, since) = (wanted, Instant::now());
            }
            let mut changed = self.request.clone();
            let again = match &request {
                // A newer request, and the end of leadership, end the round.
                Some(request) if self.is_wanted(request) => tokio::select! {
                    is_complete = contain_future(Work::Probing, self.round(request)) => match is_complete {
                        Ok(is_complete) => !is_complete,
                        Err(panicked) => {
                            error!(config = %request.config, %panicked, "could not probe the proxy injectors, retrying");
                            true
                        }
                    },
                    _ = changed.changed() => true,
                    () = self.leadership.ended() => true,
                },
                // The process may become the leader, or the resource active, without a new request, so poll for that.
                Some(_) => {
                    self.set_gauges(&[]);
                    true
                }
                None => {
                    self.set_gauges(&[]);
                    false
                }
            };
            let pause = if since.elapsed() < SLOW_AFTER { INTERVAL } else { SLOW_INTERVAL };
            tokio::select! {
                changed = self.request.changed() => if changed.is_err() {
                    // The controller has ended, and the process is about to exit.
                    return std::future::pending().await;
                },
                () = sleep(pause), if again => {}
            }
        }
    }

    fn is_wanted(&self, request: &ProbeRequest) -> bool {
        let state = self.cluster.read();
        let is_active = active_config::is_active(&state.linkerd_configs, &request.target, &request.config);
        self.leadership.term().is_some() && is_active
    }

    /// Probes all replicas that are not current. Returns whether all are current now.
    async fn round(&self, request: &ProbeRequest) -> bool {
        let clients = self.clients(request).await;
        let known = self.answers.lock().to(request);
        self.set_gauges(&known);
        let due: Vec<Replica> = known
            .into_iter()
            .filter(|(_, answer)| *answer != Some(ProbeAnswer::Current))
            .map(|(replica, _)| replica)
            .collect();
        if due.is_empty() {
            // While no replica is ready, another injector may be registered.
            return !request.replicas.is_empty();
        }
        match request.spec.method {
            InjectorSyncMethod::Probe => self.probe(request, &clients, due).await,
            InjectorSyncMethod::DryRun => self.dry_run(request, due).await,
            InjectorSyncMethod::Delay => return true,
        }
        let answers = self.answers.lock().to(request);
        self.set_gauges(&answers);
        answers.iter().all(|(_, answer)| *answer == Some(ProbeAnswer::Current))
    }

    /// Returns clients of the registered injectors. If the registered injectors have changed, the resource is
    /// reconciled for their replicas.
    async fn clients(&self, request: &ProbeRequest) -> InjectorClients {
        let (clients, services) = InjectorClients::read(&self.client, &request.target.namespace).await;
        let mut known = self.services.lock();
        if *known != services {
            debug!(?services, "other injectors are registered");
            *known = services;
            self.queue.add([NamespacedName::new("", Arc::clone(&request.config))]);
        }
        clients
    }

    async fn probe(&self, request: &ProbeRequest, clients: &InjectorClients, due: Vec<Replica>) {
        let pod = &admission_review::pod(&request.target.namespace);
        let body = &Bytes::from(admission_review::review(pod).to_string());
        let probes = stream::iter(due).map(async |replica| {
            let begun = Instant::now();
            let once = async |endpoint| {
                let (answer, is_operators) =
                    probe_replica(endpoint, &replica, body.clone(), pod.clone(), &request.expected).await;
                if let Some(is_operators) = is_operators {
                    self.answers.lock().note_program(&replica, is_operators);
                }
                answer
            };
            let answer = match clients.to(replica.injector) {
                Ok(endpoint) => {
                    let answer = match once(endpoint).await {
                        // A replica that shuts down breaks the connection too, so retry once.
                        ProbeAnswer::Broken(_) => once(endpoint).await,
                        answer => answer,
                    };
                    match answer {
                        ProbeAnswer::Current => probe_canary(endpoint, &replica, request).await,
                        answer => answer,
                    }
                }
                Err(why) => ProbeAnswer::Unreachable(why.clone()),
            };
            self.seconds.observe(begun.elapsed().as_secs_f64());
            self.record(request, &replica, &answer);
            let needs_refresh = self.answers.lock().needs_refresh(&replica);
            if request.spec.nudge && needs_refresh {
                self.refresh_volume(request, &replica).await;
            }
        });
        probes.buffer_unordered(MAX_CONCURRENT).collect::<()>().await;
    }

    /// Records the result of dry runs through the API server as the answer of all replicas.
    async fn dry_run(&self, request: &ProbeRequest, due: Vec<Replica>) {
        let namespace = &request.spec.dry_run_namespace;
        let pods: &Api<DynamicObject> =
            &Api::namespaced_with(self.client.clone(), namespace, &kube::api::ApiResource::erase::<Pod>(&()));
        let runs = (0..DRY_RUNS).map(async |_| {
            let begun = Instant::now();
            let answer = timeout(ANSWER_TIMEOUT * 3, create(pods, namespace, &request.expected)).await;
            self.seconds.observe(begun.elapsed().as_secs_f64());
            answer.unwrap_or_else(|_| {
                ProbeAnswer::Unreachable("the API server did not answer a dry run in time".to_owned())
            })
        });
        let answers = futures::future::join_all(runs).await;
        let other = answers.into_iter().find(|answer| *answer != ProbeAnswer::Current);
        for replica in due {
            self.record(request, &replica, other.as_ref().unwrap_or(&ProbeAnswer::Current));
        }
    }

    fn record(&self, request: &ProbeRequest, replica: &Replica, answer: &ProbeAnswer) {
        if self.answers.lock().record(request, replica, answer.clone()) {
            debug!(replica = replica.name(), ?answer, "an injector answered");
            self.queue.add([NamespacedName::new("", Arc::clone(&request.config))]);
        }
    }

    /// Annotates the Pod of a replica, so that its kubelet refreshes the mounted file immediately. Without the
    /// annotation, the refresh takes longer.
    async fn refresh_volume(&self, request: &ProbeRequest, replica: &Replica) {
        // The operator's injector watches the ConfigMaps, so it has no file to refresh.
        let Some(pod) = replica.pod.as_ref().filter(|_| replica.injector == InjectorOwner::Linkerd) else { return };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &request.target.namespace);
        let ExpectedInjection { injection_hash, trust_roots } = &request.expected;
        let roots = trust_roots.as_deref().and_then(|hash| hash.get(..8)).unwrap_or_default();
        // The value identifies the content, so that annotating again for the same content has no effect.
        let written = request.written.map(Timestamp::as_second).unwrap_or_default();
        let patch =
            json!({"metadata": {"annotations": {NUDGE_ANNOTATION: format!("{injection_hash}.{roots}.{written}")}}});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match self.fence.send(async { pods.patch_metadata(pod, &params, &Patch::Merge(&patch)).await }).await {
            Ok(_) => self.answers.lock().note_refresh(request, replica),
            Err(WriteError::NotLeading) => {}
            Err(WriteError::Refused(status)) if status.is_not_found() => {}
            Err(error) => {
                info!(%pod, %error, "could not annotate a Pod of the injector; its kubelet refreshes the volume later");
                // The permission is optional. Without it, each probe of a replica that lags would be denied again.
                if matches!(&error, WriteError::Refused(status) if status.is_forbidden()) {
                    self.answers.lock().note_refresh(request, replica);
                }
            }
        }
    }

    fn set_gauges(&self, answers: &[(Replica, Option<ProbeAnswer>)]) {
        for state in states() {
            let count = answers.iter().filter(|(_, answer)| state_label(answer.as_ref()) == state).count();
            self.replicas.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

async fn probe_replica(
    endpoint: &WebhookClient,
    replica: &Replica,
    body: Bytes,
    pod: Value,
    expected: &ExpectedInjection,
) -> (ProbeAnswer, Option<bool>) {
    let answer = match timeout(ANSWER_TIMEOUT, endpoint.post(replica.address, body)).await {
        Ok(Ok(answer)) => {
            return (admission_review::answer(&answer, pod, expected), admission_review::is_operators(&answer));
        }
        Ok(Err(CallError::Unreachable(why))) => ProbeAnswer::Unreachable(admission_review::line(&why)),
        Ok(Err(CallError::Broken(why))) => ProbeAnswer::Broken(admission_review::line(&why)),
        Err(_) => ProbeAnswer::Unreachable(format!("it did not answer within {ANSWER_TIMEOUT:?}")),
    };
    (answer, None)
}

/// Probes a replica that uses the configuration of all other namespaces for that of the canary, if the request has one.
async fn probe_canary(endpoint: &WebhookClient, replica: &Replica, request: &ProbeRequest) -> ProbeAnswer {
    let Some(CanaryProbe { namespaces, injection_hash }) = &request.canary else { return ProbeAnswer::Current };
    let expected = ExpectedInjection { injection_hash: injection_hash.clone(), ..request.expected.clone() };
    for namespace in namespaces {
        let pod = admission_review::pod(namespace);
        let body = Bytes::from(admission_review::review(&pod).to_string());
        // A denial may be caused by an annotation of the namespace. It counts neither against the configuration nor
        // against the document of all others.
        let answer = probe_replica(endpoint, replica, body, pod, &expected).await.0;
        if matches!(answer, ProbeAnswer::Current | ProbeAnswer::Unreachable(_)) {
            return answer;
        }
    }
    ProbeAnswer::Stale(Stale::Canary)
}

/// Creates the probe Pod in a dry run, and evaluates the answer of the API server.
async fn create(pods: &Api<DynamicObject>, namespace: &str, expected: &ExpectedInjection) -> ProbeAnswer {
    let mut pod = admission_review::pod(namespace);
    let metadata = pod.as_object_mut().and_then(|pod| pod.remove("metadata")).unwrap_or_default();
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
    let pod = DynamicObject { types: None, metadata, data: pod };
    let params = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
    match pods.create(&params, &pod).await {
        Ok(pod) => admission_review::injected(&serde_json::to_value(pod).unwrap_or_default(), expected),
        Err(kube::Error::Api(status)) => refused(namespace, &status.message, status.code),
        Err(error) => {
            let error = crate::client::describe(&error);
            ProbeAnswer::Unreachable(admission_review::line(&format!(
                "a dry run in namespace {namespace} failed: {error}"
            )))
        }
    }
}

/// Evaluates an error of the API server. An error of another webhook or a quota is not an answer of the injector.
fn refused(namespace: &str, message: &str, code: u16) -> ProbeAnswer {
    let webhooks = [INJECTOR_WEBHOOK, OPERATOR_INJECTOR_WEBHOOK];
    let of_injector = |what: &str| webhooks.iter().any(|webhook| message.contains(&format!("{what} \"{webhook}\"")));
    let broke = ["EOF", "connection reset", "could not unmarshal", "expected webhook response"];
    let line = admission_review::line(message);
    if of_injector("admission webhook") && message.contains("denied the request") {
        ProbeAnswer::Denied(line)
    } else if of_injector("failed calling webhook") && broke.iter().any(|what| message.contains(what)) {
        ProbeAnswer::Broken(line)
    } else {
        ProbeAnswer::Unreachable(admission_review::line(&format!(
            "a dry run in namespace {namespace} failed with {code}: {message}"
        )))
    }
}

fn states() -> impl Iterator<Item = &'static str> {
    ProbeAnswer::VARIANTS.iter().copied().chain([UNASKED])
}

fn state_label(answer: Option<&ProbeAnswer>) -> &'static str {
    answer.map_or(UNASKED, Into::into)
}

fn register(registry: &Registry) -> prometheus::Result<(Histogram, IntGaugeVec)> {
    let seconds = register_histogram_with_registry!(
        "linkerd_operator_linkerdconfig_injector_probe_seconds",
        "Time until a probe of a proxy injector replica was answered or failed, in seconds",
        vec![0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0],
        registry
    )?;
    let replicas = register_int_gauge_vec_with_registry!(
        "linkerd_operator_linkerdconfig_injector_replicas",
        "Ready replicas of the proxy injector, by the result of their last probe",
        &["state"],
        registry
    )?;
    for state in states() {
        replicas.with_label_values(&[state]);
    }
    Ok((seconds, replicas))
}
