//! The events that can happen to a LinkerdConfig, for the tests of its states.

use std::time::Duration;

use kube::runtime::watcher::Event as WatchEvent;
use serde_json::{Value, json};
use strum::{EnumIter, EnumString, IntoStaticStr};

use super::{
    workloads::Workloads,
    world::{Answers, World},
};
use crate::{api::linkerd_config::ConfigState, cluster::Kind};

/// One event. The name is that of the documentation.
#[derive(Clone, Copy, Debug, EnumIter, EnumString, IntoStaticStr, PartialEq, Eq)]
pub(super) enum Event {
    /// The resource declares other values, and enforces them without a canary.
    Declare,
    /// The resource declares a value that Linkerd cannot use.
    Mistype,
    Observe,
    Suspend,
    /// The resource has a canary.
    UseCanary,
    /// Another writer changes a declared value, and drift is only reported.
    ReportDrift,
    /// The rollout is switched off.
    SwitchOff,
    Pause,
    Retry,
    /// Another resource takes effect.
    Compete,
    /// That other resource is deleted.
    Withdraw,
    /// The installer writes another document.
    Install,
    /// Another writer changes a declared value.
    Edit,
    /// Another writer changes a declared value again and again.
    KeepEditing,
    /// The installer writes another document, and the ConfigMap becomes immutable.
    Freeze,
    /// The ConfigMap is created again, and can be changed.
    Thaw,
    Accept,
    /// The injectors deny the declared document only.
    DenyDeclared,
    /// The injectors deny every document.
    DenyAll,
    /// The resource declares other values, and the injectors do not answer.
    Silence,
    /// All workloads run with the document.
    Update,
    /// Workloads fail up to the limit.
    Fail,
    /// A Pod has no proxy.
    LoseProxy,
}

// === impl Event ===

impl Event {
    pub(super) fn as_str(self) -> &'static str {
        self.into()
    }
}

// === impl World ===

impl World {
    /// A mesh with a resource that was never reconciled.
    pub(super) async fn unchecked() -> Self {
        let mut world = Self::new().await;
        world.is_checked = false;
        world
    }

    pub(super) fn config_state(&self) -> ConfigState {
        let status = serde_json::from_value(self.api.objects().config["status"].clone()).unwrap_or_default();
        ConfigState::of(&status)
    }

    /// Lets an event happen, and the controller act on it until nothing changes.
    pub(super) async fn meet(&mut self, event: Event) -> Result<(), String> {
        tokio::time::advance(Duration::from_secs(3600)).await;
        let mut set = |key: &str, value: Value| self.declare(|spec| spec[key] = value);
        match event {
            Event::Declare => {
                self.declare_next();
                self.declare(|spec| {
                    let spec = spec.as_object_mut().unwrap();
                    for key in ["mode", "canary", "drift", "rollout"] {
                        spec.remove(key);
                    }
                    spec["values"]["proxy"].as_object_mut().unwrap().remove("uid");
                    spec.insert("rollout".to_owned(), json!({"onFailure": "Rollback", "maxFailures": 2}));
                });
            }
            Event::Mistype => self.declare(|spec| spec["values"]["proxy"]["uid"] = json!("many")),
            Event::Observe => set("mode", json!("Observe")),
            Event::Suspend => set("mode", json!("Suspend")),
            Event::UseCanary => {
                self.declare_next();
                let canary = json!({"namespaceSelector": {"matchLabels": {"canary": "yes"}}, "soak": "0s"});
                self.declare(|spec| spec["canary"] = canary);
            }
            Event::ReportDrift => {
                set("drift", json!({"action": "Report"}));
                self.edit();
            }
            Event::SwitchOff => self.declare(|spec| spec["rollout"]["policy"] = json!("Off")),
            Event::Pause => self.declare(|spec| spec["rollout"]["paused"] = json!(true)),
            Event::Retry => self.retry(),
            Event::Compete | Event::Withdraw => {
                let metadata = json!({"name": "other", "uid": "other", "resourceVersion": "1",
                    "creationTimestamp": "2026-01-01T00:00:00Z"});
                let other = json!({"metadata": metadata, "spec": {"priority": 7}});
                let change = if event == Event::Compete { WatchEvent::Apply } else { WatchEvent::Delete };
                self.feed.apply(Kind::LinkerdConfig, change(other));
            }
            Event::Install => self.install(1),
            Event::Edit => self.edit(),
            Event::KeepEditing => {
                for _ in 0..8 {
                    self.edit();
                    self.settle().await?;
                }
            }
            Event::Freeze => {
                self.install(1);
                self.api.objects().set_immutable(true);
            }
            Event::Thaw => self.api.objects().set_immutable(false),
            Event::Accept => {
                self.denied.clear();
                self.injectors = Answers::Accept;
            }
            Event::DenyDeclared => self.denied.push(self.spec.marker.clone()),
            Event::DenyAll => self.injectors = Answers::Deny,
            Event::Silence => {
                self.injectors = Answers::None;
                self.declare_next();
                self.declare(|_| {});
            }
            Event::Update => self.set_workloads(Workloads::Updated),
            Event::Fail => self.set_workloads(Workloads::Failed),
            Event::LoseProxy => self.set_workloads(Workloads::LostProxy),
        }
        self.settle().await
    }
}
