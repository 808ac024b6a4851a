//! Our `LinkerdConfig`: the proxy configuration that a mesh shall have.
//!
//! * The group, kind and names of fields are those of the project of 2020 with the same name, whose resources are
//!   accepted as they are.
//! * Unset means "not ours": only what a resource names is put over what the installer of Linkerd wrote. So nothing of
//!   [`ProxySpec`] has a default here.
//! * The schema, its rules and its documentation are generated from these types into `crd/linkerdconfigs.yaml`.
//! * Reading is lenient: what an older schema let in decodes, and what the schema refuses today is judged by whoever
//!   uses it.

mod duration;
mod global;
mod injector_sync;
mod proxy;
mod rollout;
mod rollout_status;
mod schema;
mod status;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use global::{GlobalSpec, IdentityContextSpec, TrustAnchorsPolicy};
pub use injector_sync::{InjectorSyncMethod, InjectorSyncSpec, OnTimeout};
pub use proxy::{EnvVar, ImageSpec, ProxySpec, ResourceAmounts, ResourceSpec};
pub use rollout::{
    AllowedWindow, DeniedWindow, OnFailure, OptIn, RolloutKind, RolloutMethod, RolloutPolicy, RolloutSpec,
    RolloutTrigger, WindowSpec,
};
pub use rollout_status::{
    RolloutFailure, RolloutPods, RolloutSkipped, RolloutStatus, RolloutWorkload, RolloutWorkloads,
};
pub use status::{
    DriftStatus, DriftWindow, InjectorStatus, LinkerdConfigStatus, RevisionsStatus, TargetStatus, TrustAnchorsStatus,
};

/// The configuration that is declared, and how firmly it is kept.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "config.linkerd.io",
    version = "v1alpha1",
    kind = "LinkerdConfig",
    plural = "linkerdconfigs",
    shortname = "lcfg",
    category = "linkerd",
    status = "LinkerdConfigStatus",
    derive = "PartialEq",
    doc = "LinkerdConfig declares the configuration that the proxies of a Linkerd mesh are injected with. The operator puts it over what the installer of Linkerd wrote into the ConfigMap linkerd-config, keeps it there, and says in status and Events what it did. What a resource does not name stays as the installer wrote it."
)]
#[kube(
    printcolumn = r#"{"name": "Control Plane Namespace", "type": "string", "jsonPath": ".spec.global.linkerdNamespace", "description": "The namespace of the control plane that is configured"}"#,
    printcolumn = r#"{"name": "ConfigMap", "type": "string", "jsonPath": ".spec.global.configMap", "description": "The ConfigMap that is configured"}"#,
    printcolumn = r#"{"name": "Active", "type": "boolean", "jsonPath": ".status.active", "description": "Whether this is the resource that configures it"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether what is declared is in effect"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".status.proxyVersion", "description": "The version of proxies that are injected now"}"#,
    printcolumn = r#"{"name": "Updated", "type": "string", "jsonPath": ".status.rollout.summary", "description": "The selected workloads that run with it, of all that are selected"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.rollout.phase", "description": "What is done about the others"}"#,
    printcolumn = r#"{"name": "Hash", "type": "string", "jsonPath": ".status.configHash", "priority": 1, "description": "The hash of the effective configuration"}"#,
    printcolumn = r#"{"name": "Drift", "type": "integer", "jsonPath": ".status.drift.count", "priority": 1, "description": "How often somebody else changed the ConfigMap"}"#,
    printcolumn = r#"{"name": "Injector", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"InjectorSynced\")].status", "priority": 1, "description": "Whether all replicas of the proxy-injector use it"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "How old the resource is"}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy)]
pub struct LinkerdConfigSpec {
    /// What the operator does about a difference between what is declared here and what the ConfigMap holds. Enforce
    /// writes and keeps it. Observe computes what would be written and reports it in status and Events, and writes
    /// nothing. Suspend leaves the ConfigMap alone and computes nothing; whoever changes it meanwhile is not noticed.
    /// The default is Enforce.
    pub mode: Mode,
    /// Which of several resources for the same ConfigMap is the one in effect: the highest priority, then the oldest,
    /// then the first by name. The others say in their condition Accepted which one won, and take over when it goes.
    /// The default is 0.
    pub priority: i32,
    /// What happens to the ConfigMap when this resource is deleted. Retain leaves it as it is, so that deleting a
    /// resource changes nothing in the mesh. RestoreBase writes back what the installer of Linkerd wrote last; the
    /// resource then has a finalizer, and its deletion waits for the operator. If another resource takes over, both do
    /// nothing. The default is Retain.
    pub deletion_policy: DeletionPolicy,
    /// Which control plane this is about, and those of its settings that are not the proxy's alone.
    pub global: GlobalSpec,
    /// The settings of injected proxies that have a name of their own here. Each is optional, and sets the named path
    /// of Linkerd's Helm values. Pods that run already keep what they were injected with until they are restarted.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub proxy: ProxySpec,
    /// Any other part of Linkerd's Helm values, put over the installer's as a JSON merge patch (RFC 7386): objects are
    /// merged, everything else replaces what was there, and null removes a key. Names are spelled as Linkerd spells
    /// them. A path that global or proxy sets as well, a private key, a value of a type that Linkerd does not read, and
    /// more than 128 KiB are refused in the condition Accepted. Note that kubectl apply without --server-side drops a
    /// null from a resource that exists already.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::free_object")]
    pub values: Option<Map<String, Value>>,
    /// What is done about changes that others make to the ConfigMap.
    pub drift: DriftSpec,
    /// How it is found out that the injectors use what was written.
    pub injector_sync: InjectorSyncSpec,
    /// How running proxies come to the configuration: which workloads are restarted for it, and how carefully.
    pub rollout: RolloutSpec,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Mode {
    #[default]
    Enforce,
    Observe,
    Suspend,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum DeletionPolicy {
    #[default]
    Retain,
    RestoreBase,
}

/// What is done about changes that others make.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftSpec {
    /// How much of the document is protected. Document is all of the ConfigMap's key `values`: any change by somebody
    /// who is not trusted is drift. Declared is only what this resource sets: everything else may be edited by hand,
    /// and such an edit stays. The default is Document, because one stray edit can stop every Pod of the cluster from
    /// being created.
    pub scope: DriftScope,
    /// What is done about drift. Revert puts the configuration back, at a growing distance in time when somebody keeps
    /// on changing it. Report leaves the change where it is and names it in status and Events. The default is Revert.
    pub action: DriftAction,
    /// The field managers whose changes are not drift: what they write is a new version of what the installer wrote,
    /// and this resource is put over it anew. The default names the installers of Linkerd: helm, helm-controller
    /// (Flux), argocd-controller, kustomize-controller and kubectl-client-side-apply, which is `linkerd upgrade |
    /// kubectl apply`. People who use kubectl apply by hand look the same as the last; leave it out where that matters.
    #[schemars(schema_with = "schema::managers")]
    pub trusted_managers: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum DriftScope {
    #[default]
    Document,
    Declared,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum DriftAction {
    #[default]
    Revert,
    Report,
}

// === impl DriftSpec ===

impl Default for DriftSpec {
    fn default() -> Self {
        let installers =
            ["helm", "helm-controller", "argocd-controller", "kustomize-controller", "kubectl-client-side-apply"];
        Self {
            scope: DriftScope::default(),
            action: DriftAction::default(),
            trusted_managers: installers.map(str::to_owned).to_vec(),
        }
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
