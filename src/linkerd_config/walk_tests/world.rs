//! The controller with its surroundings, and a model of what must be in the ConfigMap.

use std::{collections::HashMap, time::Duration};

use kube::runtime::watcher::Event;
use prometheus::{IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    api_server::ApiServer,
    step::Step,
    workloads::{Workloads, schedule},
};
use crate::{
    api::{NamespacedName, linkerd_config::ConditionReason},
    cluster::{Kind, testing::Feed},
    controller::{LeaderGate, Reconciler},
    events::Events,
    injection_probe::Injectors,
    lease::{Fence, Leadership},
    linkerd_config::{
        LinkerdConfigReconciler, Namespaces, reconcile_cache::ReconcileCache, status::consistency::contradiction,
        writer::ConfigWriter,
    },
    rollout::{Rollouts, gate::Gate, progress::rollout_progress, target::RolloutTarget},
    values::{Document, Path},
};

const POLICIES: [&str; 3] = ["deny", "all-authenticated", "cluster-authenticated"];
/// The policy and the marker of the installer's document.
const INSTALLED: (&str, &str) = ("all-unauthenticated", "warn");

/// A declared document: its security value, and the log level that identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declared {
    policy: String,
    pub(super) marker: String,
}

pub(super) struct World {
    pub(super) api: ApiServer,
    pub(super) feed: Feed,
    reconciler: LinkerdConfigReconciler,
    workloads: HashMap<String, Workloads>,
    /// The markers of the documents that the injectors deny.
    pub(super) denied: Vec<String>,
    /// The answers of the injectors.
    pub(super) injectors: Answers,
    /// Whether the documents that are written are compared with the model.
    pub(super) is_checked: bool,
    number: u64,
    base: u64,
    pub(super) spec: Declared,
    model: Model,
}

/// The answers of the injectors about documents that no step denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Answers {
    #[default]
    Accept,
    Deny,
    /// They have not answered.
    None,
}

/// The model of the content of the ConfigMap.
#[derive(Clone, Debug, Default)]
struct Model {
    /// The last declared document that was in force for the whole mesh and was not rejected.
    in_force: Option<Declared>,
    /// The one before it.
    before: Option<Declared>,
    /// Whether the status says that the present document failed.
    is_rejected: bool,
    /// Whether a failure may still be blamed on the document in force: it is new, and nothing else changed since.
    on_trial: bool,
    /// Whether the declared document was written since its values were declared or retried, and whether another one
    /// replaced it. It is not written a second time then, whichever leader has written the others.
    is_written: bool,
    is_taken_back: bool,
    /// Whether the injectors have accepted the document in force. Until then, the one before it stays the predecessor.
    is_accepted: bool,
}

// === impl Model ===

impl Model {
    /// Other declared values, or a retry.
    fn begin_attempt(&mut self) {
        (self.is_rejected, self.is_written, self.is_taken_back) = (false, false, false);
    }
}

// === impl World ===

impl World {
    pub(super) async fn new() -> Self {
        let api = ApiServer::new(&installed(0));
        let mut feed = Feed::default();
        let reconciler = reconciler(&api, &feed);
        let injector =
            json!({"metadata": {"name": "injector", "namespace": "linkerd", "labels": {"pod-template-hash": "one"}}});
        feed.apply(Kind::Pod, Event::Apply(injector));
        for (name, labels) in [("linkerd", json!({})), ("first", json!({"canary": "yes"}))] {
            feed.apply(Kind::Namespace, Event::Apply(json!({"metadata": {"name": name, "labels": labels}})));
        }
        let slice = json!({
            "metadata": {"name": "injector", "namespace": "linkerd",
                "labels": {"kubernetes.io/service-name": "linkerd-proxy-injector"}},
            "addressType": "IPv4",
            "ports": [{"name": "proxy-injector", "port": 8443, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": "injector", "namespace": "linkerd"}}],
        });
        feed.apply(Kind::EndpointSlice, Event::Apply(slice));
        let spec = Declared { policy: INSTALLED.0.to_owned(), marker: INSTALLED.1.to_owned() };
        let mut world = Self {
            api,
            feed,
            reconciler,
            workloads: HashMap::new(),
            denied: Vec::new(),
            injectors: Answers::default(),
            is_checked: true,
            number: 0,
            base: 0,
            spec,
            model: Model::default(),
        };
        world.take(Step::Declare).await.unwrap();
        world
    }

    /// 0 is synced, 1 restored, 2 a canary, 3 anything else.
    pub(super) fn state(&self) -> usize {
        ["Synced", "Restored", "Canary"].iter().position(|it| *it == self.reason("ConfigMapSynced")).unwrap_or(3)
    }

    pub(super) fn describe(&self) -> String {
        let objects = self.api.objects();
        let (status, values) = (&objects.config["status"], &objects.config_map["data"]["values"]);
        format!("{:#?}\ndeclared: {:?}\n{status:#}\n{}", self.model, self.spec, values.as_str().unwrap_or_default())
    }

    /// Returns the resource whose rollout the engine has as its target.
    pub(super) fn rolled_out(&self) -> Option<String> {
        self.reconciler.rollouts.target_for_test().map(|target| target.config.name.to_string())
    }

    /// Marks the resource as deleted, or removes it, and lets the controller act on that.
    pub(super) async fn delete(&mut self, is_finalized: bool) {
        let mut object = self.api.objects().config.clone();
        let name = NamespacedName::new("", "mesh");
        if is_finalized {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            self.feed.apply(Kind::LinkerdConfig, Event::Apply(object));
            self.reconciler.reconcile(&name).await.unwrap();
        } else {
            self.feed.apply(Kind::LinkerdConfig, Event::Delete(object));
            self.reconciler.forget(&name);
        }
    }

    pub(super) async fn take(&mut self, step: Step) -> Result<(), String> {
        // Each step is long after the one before it, so that no backoff delays a write.
        tokio::time::advance(Duration::from_secs(3600)).await;
        match step {
            Step::Declare => {
                self.declare_next();
                self.declare(|_| {});
            }
            Step::DeclareAgain => {
                let known = [self.model.before.clone(), self.model.in_force.clone()].into_iter().flatten();
                if let Some(known) = known.into_iter().find(|known| *known != self.spec) {
                    self.spec = known;
                    self.declare(|_| {});
                }
            }
            Step::SetCanary(true) => self.declare(|spec| {
                spec["canary"] = json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}, "soak": "0s"});
            }),
            Step::SetCanary(false) => self.declare(|spec| {
                spec.as_object_mut().unwrap().remove("canary");
            }),
            Step::Retry => {
                self.model.begin_attempt();
                self.retry();
            }
            Step::Pace => self.declare(|spec| {
                let paced = spec["rollout"]["maxConcurrent"].as_i64().unwrap_or_default();
                spec["rollout"]["maxConcurrent"] = json!(paced % 3 + 1);
            }),
            Step::Observe => self.interrupt(|spec| spec["mode"] = json!("Observe")).await?,
            Step::Suspend => self.interrupt(|spec| spec["mode"] = json!("Suspend")).await?,
            Step::Mistype => self.interrupt(|spec| spec["values"]["proxy"]["uid"] = json!("many")).await?,
            Step::Upgrade => self.install(1),
            Step::ExtendEnvironment => self.install(1000),
            Step::Edit => self.edit(),
            Step::Complete => self.set_workloads(Workloads::Updated),
            Step::FailOne => self.set_workloads(Workloads::OneFailed),
            Step::Fail => self.set_workloads(Workloads::Failed),
            Step::LoseProxy => self.set_workloads(Workloads::LostProxy),
            Step::Deny(true) => self.denied.push(self.spec.marker.clone()),
            Step::Deny(false) => self.denied.clear(),
            Step::Kill(writes) => self.api.objects().dies_after = Some(writes),
        }
        let was_accepted = self.reason("InjectorSynced") == "AllReplicasCurrent";
        if matches!(step, Step::Upgrade | Step::ExtendEnvironment) && was_accepted {
            self.model.on_trial = false;
        }
        self.settle().await?;
        self.check()
    }

    /// Chooses another document to declare.
    pub(super) fn declare_next(&mut self) {
        self.number += 1;
        let policy = POLICIES[usize::try_from(self.number).unwrap() % POLICIES.len()].to_owned();
        self.spec = Declared { policy, marker: format!("warn,linkerd=d{}", self.number) };
    }

    pub(super) fn retry(&self) {
        let mut objects = self.api.objects();
        let version = objects.next_version();
        let annotations = json!({"config.linkerd.io/retry": version});
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        json_patch::merge(&mut objects.config["metadata"], &metadata);
    }

    /// Lets the installer write another document.
    pub(super) fn install(&mut self, more: u64) {
        self.base += more;
        self.api.write_values("helm", &installed(self.base));
    }

    /// Lets a person edit the declared security value.
    pub(super) fn edit(&self) {
        let mut document = self.document();
        document.set(&policy_path(), json!("all-unauthenticated"));
        self.api.write_values("kubectl-edit", &document.to_yaml());
    }

    /// Changes the resource, lets the controller act on it, and takes the change back.
    async fn interrupt(&mut self, change: impl FnOnce(&mut Value)) -> Result<(), String> {
        self.declare(change);
        self.settle().await?;
        self.declare(|spec| {
            spec.as_object_mut().unwrap().remove("mode");
            spec["values"]["proxy"].as_object_mut().unwrap().remove("uid");
        });
        Ok(())
    }

    pub(super) fn declare(&mut self, change: impl FnOnce(&mut Value)) {
        let mut objects = self.api.objects();
        let values = |spec: &Value| ["global", "proxy", "values"].map(|field| spec[field].clone());
        let before = values(&objects.config["spec"]);
        let generation = objects.config["metadata"]["generation"].as_i64().unwrap() + 1;
        let version = objects.next_version();
        let spec = json!({
            "proxy": {"logLevel": self.spec.marker, "additionalEnv": [{"name": "MINE", "value": self.spec.marker}]},
            "values": {"proxy": {"defaultInboundPolicy": self.spec.policy}},
            "rollout": {"onFailure": "Rollback", "maxFailures": 2},
        });
        json_patch::merge(&mut objects.config["spec"], &spec);
        change(&mut objects.config["spec"]);
        if values(&objects.config["spec"]) != before {
            self.model.begin_attempt();
        }
        let metadata = json!({"generation": generation, "resourceVersion": version});
        json_patch::merge(&mut objects.config["metadata"], &metadata);
    }

    /// Reconciles until nothing changes, and checks every write.
    pub(super) async fn settle(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..60 {
            self.deliver();
            let before = self.api.objects().next_version();
            let result = self.reconciler.reconcile_resource("mesh").await;
            self.check_writes()?;
            if self.api.objects().dies_after == Some(0) {
                // The next leader has only what the API server has.
                self.api.objects().dies_after = None;
                self.reconciler = reconciler(&self.api, &self.feed);
                quiet = 0;
                continue;
            }
            result.map_err(|error| format!("the reconcile failed: {error}"))?;
            let answered = self.answer_probes() | self.assess();
            let is_quiet = self.api.objects().next_version() == next(&before) && !answered;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == 3 {
                return Ok(());
            }
        }
        Err("it does not settle".to_owned())
    }

    /// Delivers all objects to the caches.
    fn deliver(&mut self) {
        let objects = self.api.objects();
        let (config, map, canary) = (objects.config.clone(), objects.config_map.clone(), objects.canary.clone());
        drop(objects);
        self.feed.apply(Kind::LinkerdConfig, Event::Apply(config));
        self.feed.apply(Kind::ConfigMap, Event::Apply(map));
        let name = json!({"metadata": {"name": "linkerd-config-canary", "namespace": "linkerd"}});
        self.feed.apply(Kind::ConfigMap, canary.map_or(Event::Delete(name), Event::Apply));
    }

    fn answer_probes(&self) -> bool {
        if self.injectors == Answers::None {
            return false;
        }
        let is_denied =
            self.injectors == Answers::Deny || self.denied.contains(&self.declared_in(&self.document()).marker);
        self.reconciler.injectors.answer_for_test(is_denied)
    }

    /// Gives the controller the progress that the engine would give it. Returns whether it is another one.
    fn assess(&self) -> bool {
        let Some(target) = self.reconciler.rollouts.target_for_test() else { return false };
        let states = self.workloads.get(target.key.as_str()).copied().unwrap_or_default();
        let canary = target
            .canary
            .as_ref()
            .map(|canary| self.workloads.get(canary.target.key.as_str()).copied().unwrap_or_default());
        let schedule = schedule(states, canary);
        let paused = || Gate { reason: ConditionReason::Paused, message: "paused".to_owned() };
        let gate = target.gates.closed.clone().or_else(|| target.rollout.paused.then(paused));
        let progress = rollout_progress(&schedule, &target, gate.as_ref(), None);
        self.reconciler.rollouts.set_progress_for_test(progress)
    }

    /// Sets the state of the workloads for the configuration that is being rolled out: that of the canary, if any.
    pub(super) fn set_workloads(&mut self, workloads: Workloads) {
        let Some(target) = self.reconciler.rollouts.target_for_test() else { return };
        let of = |target: &RolloutTarget| target.key.as_str().to_owned();
        let key = target.canary.as_ref().map_or_else(|| of(&target), |canary| of(&canary.target));
        self.workloads.insert(key, workloads);
    }

    // === the checks ===

    fn document(&self) -> Document {
        let objects = self.api.objects();
        Document::parse(objects.config_map["data"]["values"].as_str().unwrap()).unwrap().split_injection_hash().0
    }

    fn declared_in(&self, document: &Document) -> Declared {
        let text = |path: &Path| document.get(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        Declared { policy: text(&policy_path()), marker: text(&Path::from(&["proxy", "logLevel"][..])) }
    }

    fn reason(&self, type_: &str) -> String {
        self.of_condition(type_, "reason")
    }

    pub(super) fn message(&self, type_: &str) -> String {
        self.of_condition(type_, "message")
    }

    fn of_condition(&self, type_: &str, field: &str) -> String {
        let objects = self.api.objects();
        let conditions = objects.config["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.iter().find(|condition| condition["type"] == type_);
        condition.and_then(|condition| condition[field].as_str()).unwrap_or_default().to_owned()
    }

    /// Whether a document has exactly the values of a declared one, over the installer's present document.
    fn has(&self, document: &Document, declared: Option<&Declared>) -> bool {
        let mut expected = Document::parse(&installed(self.base)).unwrap();
        if let Some(Declared { policy, marker }) = declared {
            expected.set(&policy_path(), json!(policy));
            expected.set(&Path::from(&["proxy", "logLevel"][..]), json!(marker));
            let path = Path::from(&["proxy", "additionalEnv"][..]);
            let mut variables = expected.get(&path).and_then(Value::as_array).cloned().unwrap_or_default();
            variables.push(json!({"name": "MINE", "value": marker}));
            expected.set(&path, Value::Array(variables));
        }
        *document == expected
    }

    /// Each written document is the declared one, or the one in force before it.
    fn check_writes(&mut self) -> Result<(), String> {
        let written = std::mem::take(&mut self.api.objects().written);
        if !self.is_checked {
            return Ok(());
        }
        for text in written {
            let document = Document::parse(&text).unwrap().split_injection_hash().0;
            let is_declared = !self.model.is_rejected && self.has(&document, Some(&self.spec));
            if is_declared && self.model.is_taken_back {
                return Err("wrote a document again that was rolled back".to_owned());
            }
            self.model.is_taken_back |= self.model.is_written && !is_declared;
            self.model.is_written |= is_declared;
            let of_model = [&self.model.in_force, &self.model.before];
            if !is_declared && !of_model.into_iter().any(|known| self.has(&document, known.as_ref())) {
                return Err(format!("wrote {:?}", self.declared_in(&document)));
            }
        }
        Ok(())
    }

    /// Compares the status with the ConfigMap and the model.
    fn check(&mut self) -> Result<(), String> {
        let status = serde_json::from_value(self.api.objects().config["status"].clone()).unwrap();
        if let Some(rule) = contradiction(&status) {
            return Err(format!("the conditions contradict each other: {rule}"));
        }
        let is_in_force = self.model.in_force.as_ref() == Some(&self.spec);
        match self.reason("ConfigMapSynced").as_str() {
            "Synced" if self.model.is_rejected => return Err("a rejected document was written again".to_owned()),
            "Synced" => {
                // Also at an earlier time: the injectors then fail for another reason.
                let status = self.api.objects().config["status"].clone();
                let is_accepted = status["revisions"]["lastKnownGoodHash"] == status["injectionHash"];
                if !is_in_force {
                    let known = self.model.in_force.replace(self.spec.clone());
                    if self.model.is_accepted {
                        self.model.before = known;
                    }
                    self.model.is_accepted = false;
                }
                self.model.is_accepted |= is_accepted;
                let is_denied = self.reason("InjectorSynced") == "Denied";
                if is_denied && !self.model.is_accepted && self.model.on_trial {
                    return Err("a document that was never accepted is denied and stays".to_owned());
                }
                let is_complete = self.reason("RolloutComplete") == "UpToDate";
                self.model.on_trial = !is_complete && (!is_in_force || self.model.on_trial);
            }
            "Restored" if !self.model.is_rejected => {
                // If it was never in force, the injectors denied it at once.
                if is_in_force && !self.model.on_trial {
                    return Err("rolled back what was proven, or after a change of the installer".to_owned());
                }
                if is_in_force {
                    self.model.in_force = self.model.before.take();
                }
                (self.model.is_rejected, self.model.on_trial, self.model.is_accepted) = (true, false, true);
            }
            "Restored" | "Canary" => {}
            other => return Err(format!("ConfigMapSynced is {other:?}")),
        }
        let document = self.document();
        match self.has(&document, self.model.in_force.as_ref()) {
            true => Ok(()),
            false => Err(format!("{:?} is in the ConfigMap", self.declared_in(&document))),
        }
    }
}

fn next(version: &str) -> String {
    (version.parse::<u64>().unwrap() + 1).to_string()
}

fn policy_path() -> Path {
    Path::from(&["proxy", "defaultInboundPolicy"][..])
}

/// The installer's document. Thousands of the number are variables in its list, the rest is its version.
fn installed(number: u64) -> String {
    let variables: Vec<_> = (0..number / 1000 % 3).map(|it| format!("{{name: OF_{it}, value: '1'}}")).collect();
    let list = variables.join(", ");
    let list = if list.is_empty() { list } else { format!("  additionalEnv: [{list}]\n") };
    let (policy, marker) = INSTALLED;
    format!(
        "linkerdVersion: edge-26.8.{}\nproxy:\n  defaultInboundPolicy: {policy}\n  logLevel: {marker}\n{list}",
        number % 1000
    )
}

fn reconciler(api: &ApiServer, feed: &Feed) -> LinkerdConfigReconciler {
    let fence = Fence::new(Leadership::for_test(), CancellationToken::new());
    LinkerdConfigReconciler {
        gate: LeaderGate::for_test(feed.cluster.clone()),
        writer: ConfigWriter::new(&api.client(), "linkerd", fence, &Registry::new()).unwrap(),
        injectors: Injectors::for_test(),
        rollouts: Rollouts::for_test(),
        events: Events::for_test(),
        namespaces: Namespaces { control_plane: "linkerd".into(), operator: "operator".into() },
        cache: ReconcileCache::default(),
        drifts: IntCounterVec::new(Opts::new("drifts", "drifts"), &["manager", "action"]).unwrap(),
    }
}
