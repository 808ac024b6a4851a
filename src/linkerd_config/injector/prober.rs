//! Asks the replicas, in a task of its own, until each is current.
//!
//! In: the newest [`Question`]. Out: the replicas' answers, each as it comes, and the LinkerdConfig looked at for it. Always
//! holds: nobody is asked by who does not lead, or for who is not in effect any more; each answer has a deadline, and one that
//! hangs holds up no other; who was found to be current is not asked again before something was written.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use k8s_openapi::{
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use prometheus::{Histogram, HistogramOpts, IntGaugeVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    Replica,
    answers::{Answers, Question},
    connection::{Endpoint, Failure},
    review::{self, Answer, Expected},
};
use crate::{
    api::{
        INJECTOR, INJECTOR_WEBHOOK, INJECTOR_WEBHOOK_CONFIGURATION, NamespacedName, linkerd_config::InjectorSyncMethod,
    },
    cluster::Cluster,
    controller::ControllerDeps,
    lease::{Fence, Leadership},
    linkerd_config::{active, drift::FIELD_MANAGER},
    queue::WorkQueue,
    tasks::Tasks,
    write::WriteError,
};

/// Between two requests to a replica that is not current.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same once it has taken long.
const SLOW_INTERVAL: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);
/// What the API server grants the injector is twice as long; the injector needs 12 ms.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Replicas that are asked at the same time.
const AT_ONCE: usize = 16;
/// So many answers of the API server have to agree that are asked for at the same time: it may choose a replica for each.
const AGREEING: usize = 5;
/// Has the kubelet refresh the files of the Pod that has it, because the Pod changed.
const NUDGE_ANNOTATION: &str = "config.linkerd.io/nudge";
const STATES: [&str; 7] = ["current", "stale", "denied", "broken", "uninjected", "unreachable", "unasked"];

/// The prober, as the controller sees it.
pub(in crate::linkerd_config) struct Injectors {
    question: watch::Sender<Option<Question>>,
    answers: Arc<Mutex<Answers>>,
}

struct Prober {
    question: watch::Receiver<Option<Question>>,
    answers: Arc<Mutex<Answers>>,
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
    pub(in crate::linkerd_config) fn spawn(
        deps: &ControllerDeps,
        queue: &Arc<WorkQueue>,
        fence: Fence,
        stop: CancellationToken,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let (sender, question) = watch::channel(None);
        let answers = Arc::<Mutex<Answers>>::default();
        let (seconds, replicas) = register(&deps.registry)?;
        let prober = Prober {
            question,
            answers: Arc::clone(&answers),
            cluster: deps.cluster.clone(),
            queue: Arc::clone(queue),
            leadership: deps.leadership.clone(),
            fence,
            client: deps.client.clone(),
            seconds,
            replicas,
        };
        tasks.spawn("injector-prober", prober.run(stop));
        Ok(Self { question: sender, answers })
    }

    /// Has it found out, and returns what is known already.
    pub(super) fn ask(&self, question: Question) -> Vec<(Replica, Option<Answer>)> {
        let known = self.answers.lock().to(&question);
        self.question.send_if_modified(|asked| {
            let is_new = asked.as_ref() != Some(&question);
            if is_new {
                *asked = Some(question);
            }
            is_new
        });
        known
    }

    /// Has nobody asked any more for this LinkerdConfig.
    pub(in crate::linkerd_config) fn rest(&self, config: &str) {
        self.question.send_if_modified(|asked| asked.take_if(|asked| *asked.config == *config).is_some());
    }
}

// === impl Prober ===

impl Prober {
    async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = self.ask_on() => {}
            () = stop.cancelled() => {}
        }
    }

    async fn ask_on(&mut self) {
        let mut asked = None;
        let mut since = Instant::now();
        loop {
            let question = self.question.borrow_and_update().clone();
            let wanted = question.as_ref().map(|question| (question.expected.clone(), question.written));
            if asked != wanted {
                (asked, since) = (wanted, Instant::now());
            }
            let mut changed = self.question.clone();
            let again = match &question {
                // What was to be found out may be something else by now, or somebody else's to find out.
                Some(question) if self.is_wanted(question) => tokio::select! {
                    is_complete = self.round(question) => !is_complete,
                    _ = changed.changed() => true,
                    () = self.leadership.ended() => true,
                },
                // Whoever leads again, or is in effect again, may have nothing new to ask: it is looked at all the same.
                Some(_) => {
                    self.count(&[]);
                    true
                }
                None => {
                    self.count(&[]);
                    false
                }
            };
            let pause = if since.elapsed() < LONG { INTERVAL } else { SLOW_INTERVAL };
            tokio::select! {
                changed = self.question.changed() => if changed.is_err() {
                    // The controller is gone, and the process about to be.
                    return std::future::pending().await;
                },
                () = sleep(pause), if again => {}
            }
        }
    }

    fn is_wanted(&self, question: &Question) -> bool {
        let state = self.cluster.read();
        let winner = active::of(&state.linkerd_configs, &question.target);
        self.leadership.term().is_some() && winner.is_some_and(|winner| winner.name == question.config)
    }

    /// Asks all that are not known to be current. Whether all are.
    async fn round(&self, question: &Question) -> bool {
        let known = self.answers.lock().to(question);
        self.count(&known);
        let due: Vec<Replica> = known
            .into_iter()
            .filter(|(_, answer)| *answer != Some(Answer::Current))
            .map(|(replica, _)| replica)
            .collect();
        if due.is_empty() {
            return true;
        }
        match question.spec.method {
            InjectorSyncMethod::Probe => self.probe(question, due).await,
            InjectorSyncMethod::DryRun => self.dry_run(question, due).await,
            InjectorSyncMethod::Delay => return true,
        }
        let answers = self.answers.lock().to(question);
        self.count(&answers);
        answers.iter().all(|(_, answer)| *answer == Some(Answer::Current))
    }

    async fn probe(&self, question: &Question, due: Vec<Replica>) {
        let endpoint = &self.endpoint(&question.target.namespace).await;
        let pod = &review::pod(&question.target.namespace);
        let body = &Bytes::from(review::review(pod).to_string());
        let probes = stream::iter(due).map(async |replica| {
            let begun = Instant::now();
            let once = async |endpoint| ask(endpoint, &replica, body.clone(), pod.clone(), &question.expected).await;
            let answer = match endpoint {
                Ok(endpoint) => match once(endpoint).await {
                    // One that was just replaced breaks off too: it has another chance.
                    Answer::Broken(_) => once(endpoint).await,
                    answer => answer,
                },
                Err(why) => Answer::Unreachable(why.clone()),
            };
            self.seconds.observe(begun.elapsed().as_secs_f64());
            self.note(question, &replica, &answer);
            let is_late = self.answers.lock().is_late(&replica);
            if question.spec.nudge && is_late {
                self.nudge(question, &replica).await;
            }
        });
        probes.buffer_unordered(AT_ONCE).collect::<()>().await;
    }

    /// The API server's answers are the answers of all.
    async fn dry_run(&self, question: &Question, due: Vec<Replica>) {
        let namespace = &question.spec.dry_run_namespace;
        let pods: &Api<DynamicObject> =
            &Api::namespaced_with(self.client.clone(), namespace, &kube::api::ApiResource::erase::<Pod>(&()));
        let runs = (0..AGREEING).map(async |_| {
            let begun = Instant::now();
            let answer = timeout(ANSWER_TIMEOUT * 3, create(pods, namespace, &question.expected)).await;
            self.seconds.observe(begun.elapsed().as_secs_f64());
            answer.unwrap_or_else(|_| Answer::Unreachable("the API server did not answer a dry run in time".to_owned()))
        });
        let answers = futures::future::join_all(runs).await;
        let other = answers.into_iter().find(|answer| *answer != Answer::Current);
        for replica in due {
            self.note(question, &replica, other.as_ref().unwrap_or(&Answer::Current));
        }
    }

    fn note(&self, question: &Question, replica: &Replica, answer: &Answer) {
        if self.answers.lock().note(question, replica, answer.clone()) {
            debug!(replica = replica.name(), ?answer, "an injector answered");
            self.queue.add([NamespacedName::new("", Arc::clone(&question.config))]);
        }
    }

    /// How replicas are called: as the webhook's configuration says that the API server has to.
    async fn endpoint(&self, namespace: &str) -> Result<Endpoint, String> {
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let name = INJECTOR_WEBHOOK_CONFIGURATION;
        let configuration = match within(webhooks.get_opt(name)).await {
            Ok(Some(configuration)) => configuration,
            Ok(None) => return Err(format!("there is no MutatingWebhookConfiguration {name}")),
            Err(why) => return Err(format!("MutatingWebhookConfiguration {name} cannot be read: {why}")),
        };
        let mut hooks = configuration.webhooks.into_iter().flatten();
        let hook = hooks.find(|hook| hook.name == INJECTOR_WEBHOOK);
        let of_it = |why: &str| format!("webhook {INJECTOR_WEBHOOK} of MutatingWebhookConfiguration {name}: {why}");
        let client = hook.ok_or_else(|| of_it("there is none"))?.client_config;
        let service = client.service.filter(|service| service.name == INJECTOR && service.namespace == namespace);
        let service = service.ok_or_else(|| of_it(&format!("it is not served by Service {namespace}/{INJECTOR}")))?;
        let bundle = client.ca_bundle.map(|bundle| bundle.0).unwrap_or_default();
        let path = service.path.as_deref().unwrap_or("/");
        Endpoint::new(&service.name, &service.namespace, path, &bundle).map_err(|why| of_it(&why))
    }

    /// Without it a replica is current all the same, later.
    async fn nudge(&self, question: &Question, replica: &Replica) {
        let Some(pod) = &replica.pod else { return };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &question.target.namespace);
        let Expected { marker, trust_roots } = &question.expected;
        let roots = trust_roots.as_deref().and_then(|hash| hash.get(..8)).unwrap_or_default();
        // Of what has to be refreshed, so that a second nudge for the same is none.
        let written = question.written.map(Timestamp::as_second).unwrap_or_default();
        let patch = json!({"metadata": {"annotations": {NUDGE_ANNOTATION: format!("{marker}.{roots}.{written}")}}});
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match self.fence.send(async { pods.patch_metadata(pod, &params, &Patch::Merge(&patch)).await }).await {
            Ok(_) => self.answers.lock().nudged(question, replica),
            Err(WriteError::NotLeading) => {}
            Err(WriteError::Refused(status)) if status.is_not_found() => {}
            Err(error) => {
                info!(%pod, %error, "a Pod of the injector could not be annotated: its kubelet takes its time");
            }
        }
    }

    fn count(&self, answers: &[(Replica, Option<Answer>)]) {
        for state in STATES {
            let count = answers.iter().filter(|(_, answer)| state_of(answer.as_ref()) == state).count();
            self.replicas.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

async fn ask(endpoint: &Endpoint, replica: &Replica, body: Bytes, pod: Value, expected: &Expected) -> Answer {
    match timeout(ANSWER_TIMEOUT, endpoint.post(replica.address, body)).await {
        Ok(Ok(answer)) => review::answer(&answer, pod, expected),
        Ok(Err(Failure::Unreachable(why))) => Answer::Unreachable(review::line(&why)),
        Ok(Err(Failure::Broken(why))) => Answer::Broken(review::line(&why)),
        Err(_) => Answer::Unreachable(format!("it did not answer within {ANSWER_TIMEOUT:?}")),
    }
}

/// What the API server makes of the Pod that is never made.
async fn create(pods: &Api<DynamicObject>, namespace: &str, expected: &Expected) -> Answer {
    let mut pod = review::pod(namespace);
    let metadata = pod.as_object_mut().and_then(|pod| pod.remove("metadata")).unwrap_or_default();
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
    let pod = DynamicObject { types: None, metadata, data: pod };
    let params = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
    match pods.create(&params, &pod).await {
        Ok(pod) => review::injected(&serde_json::to_value(pod).unwrap_or_default(), expected),
        Err(kube::Error::Api(status)) => refused(namespace, &status.message, status.code),
        Err(error) => {
            let error = crate::client::describe(&error);
            Answer::Unreachable(review::line(&format!("a dry run in namespace {namespace} failed: {error}")))
        }
    }
}

/// What the API server says of a Pod that it does not make. Other webhooks, and quotas, have their own reasons.
fn refused(namespace: &str, message: &str, code: u16) -> Answer {
    let of_injector = |what: &str| message.contains(&format!("{what} \"{INJECTOR_WEBHOOK}\""));
    let broke = ["EOF", "connection reset", "could not unmarshal", "expected webhook response"];
    let line = review::line(message);
    if of_injector("admission webhook") && message.contains("denied the request") {
        Answer::Denied(line)
    } else if of_injector("failed calling webhook") && broke.iter().any(|what| message.contains(what)) {
        Answer::Broken(line)
    } else {
        Answer::Unreachable(review::line(&format!("a dry run in namespace {namespace} failed with {code}: {message}")))
    }
}

/// With a deadline, and the error in words.
async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(ANSWER_TIMEOUT, request).await {
        Ok(result) => result.map_err(|error| review::line(&crate::client::describe(&error))),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}

fn state_of(answer: Option<&Answer>) -> &'static str {
    match answer {
        Some(Answer::Current) => "current",
        Some(Answer::Stale(_)) => "stale",
        Some(Answer::Denied(_)) => "denied",
        Some(Answer::Broken(_)) => "broken",
        Some(Answer::Uninjected) => "uninjected",
        Some(Answer::Unreachable(_)) => "unreachable",
        None => "unasked",
    }
}

fn register(registry: &Registry) -> prometheus::Result<(Histogram, IntGaugeVec)> {
    let seconds = Histogram::with_opts(
        HistogramOpts::new(
            "linkerd_operator_linkerdconfig_injector_probe_seconds",
            "How long replicas of the proxy-injector took to answer, or not to",
        )
        .buckets(vec![0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0]),
    )?;
    let replicas = IntGaugeVec::new(
        Opts::new(
            "linkerd_operator_linkerdconfig_injector_replicas",
            "Ready replicas of the proxy-injector, by what they were last found to do",
        ),
        &["state"],
    )?;
    for state in STATES {
        replicas.with_label_values(&[state]);
    }
    registry.register(Box::new(seconds.clone()))?;
    registry.register(Box::new(replicas.clone()))?;
    Ok((seconds, replicas))
}
