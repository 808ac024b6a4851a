//! The `LinkerdConfig` resource: the declared proxy configuration of a mesh.
//!
//! * The group, the kind and the names of fields are those of the project of 2020 with the same name, whose resources
//!   are accepted unchanged.
//! * An unset field is not managed: only the fields that a resource sets override the installer's values. So no field
//!   of [`ProxySpec`] has a default here.
//! * The schema, its rules and its documentation in `crd/linkerdconfigs.yaml` are generated from these types.
//! * Decoding is lenient: what an older schema accepted still decodes. The code that uses a value validates it.

pub mod annotations;
mod canary;
mod conditions;
mod duration;
mod global;
mod injector_sync;
mod proxy;
mod rollout;
mod rollout_status;
mod state;
mod status;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::schema;

pub use canary::{CanaryPhase, CanaryPromotion, CanarySpec, CanaryStatus};
pub use conditions::{ConditionReason, ConditionType};
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
pub use state::ConfigState;
pub use status::{
    DeniedDocument, DriftStatus, DriftWindow, InjectorStatus, LinkerdConfigStatus, ProxyShapeStatus, RevisionsStatus,
    TargetStatus, TrustAnchorsStatus,
};

/// The declared configuration, and how the operator enforces it.
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
    doc = "LinkerdConfig declares the configuration that the proxies of a Linkerd mesh are injected with. The operator applies it on top of the values that the installer of Linkerd wrote into the ConfigMap linkerd-config, keeps it there, and reports its actions in status and Events. A value that a resource does not set stays as the installer wrote it."
)]
#[kube(
    printcolumn = r#"{"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "description": "Whether the operator writes the ConfigMap (Enforce), only compares it (Observe), or does neither (Suspend)"}"#,
    printcolumn = r#"{"name": "Active", "type": "boolean", "jsonPath": ".status.active", "description": "Whether this resource is the one in effect for the ConfigMap"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "description": "Whether the operator does what the resource declares; absent for a resource in reserve"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "description": "The reason of Ready"}"#,
    printcolumn = r#"{"name": "Updated", "type": "string", "jsonPath": ".status.rollout.summary", "description": "The selected workloads that run with the configuration, of all selected workloads"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.rollout.phase", "description": "The phase of the rollout"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".status.proxyVersion", "priority": 1, "description": "The version of the proxies that are injected now"}"#,
    printcolumn = r#"{"name": "ConfigMap", "type": "string", "jsonPath": ".status.target.name", "priority": 1, "description": "The configured ConfigMap"}"#,
    printcolumn = r#"{"name": "Hash", "type": "string", "jsonPath": ".status.configHash", "priority": 1, "description": "The hash of the effective configuration"}"#,
    printcolumn = r#"{"name": "Drift", "type": "integer", "jsonPath": ".status.drift.count", "priority": 1, "description": "The number of changes to the ConfigMap by other field managers"}"#,
    printcolumn = r#"{"name": "Injector", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"InjectorSynced\")].status", "priority": 1, "description": "Whether all replicas of the proxy injector use the configuration"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "The age of the resource"}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = schema::tidy)]
pub struct LinkerdConfigSpec {
    /// How the operator handles a difference between the declared configuration and the ConfigMap. Enforce writes the
    /// declared configuration and keeps it in place. Observe computes the changes and reports them in status and
    /// Events, but writes nothing. Suspend leaves the ConfigMap alone and computes nothing; changes to it are not
    /// detected. The default is Enforce.
    pub mode: Mode,
    /// The priority among resources for the same ConfigMap. The resource in effect is the one with the highest
    /// priority, then the oldest, then the first by name. The condition Accepted of the other resources names it, and
    /// the next one takes over when it is deleted. The default is 0.
    pub priority: i32,
    /// The action on the ConfigMap when this resource is deleted. Retain leaves it as it is, so that deleting a
    /// resource changes nothing in the mesh. RestoreBase restores what the installer of Linkerd wrote last; the
    /// resource then has a finalizer, and its deletion waits for the operator. If another resource takes over, both do
    /// nothing. The default is Retain.
    pub deletion_policy: DeletionPolicy,
    /// The target control plane, and the settings that its components share with the proxies.
    pub global: GlobalSpec,
    /// The settings of injected proxies. Each is optional, and sets the named path of Linkerd's Helm values. Running
    /// Pods keep the settings that they were injected with until they are restarted.
    #[serde(skip_serializing_if = "schema::is_default")]
    pub proxy: ProxySpec,
    /// Any other part of Linkerd's Helm values, applied to the installer's values as a JSON merge patch (RFC 7386):
    /// objects are merged, any other value replaces the existing one, and null removes a key. Names are spelled as
    /// Linkerd spells them. The resource is not accepted if values contains a path that global or proxy also sets, a
    /// private key, a value of a type that Linkerd does not read, or more than 128 KiB; the condition Accepted has the
    /// reason. Note that kubectl apply drops a null, also when it creates the resource: use kubectl apply --server-side.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::free_object")]
    pub values: Option<Map<String, Value>>,
    /// How the operator handles changes to the ConfigMap by other field managers.
    pub drift: DriftSpec,
    /// How the operator verifies that the proxy injector uses the written configuration.
    pub injector_sync: InjectorSyncSpec,
    /// How running proxies get the configuration: which workloads are restarted for it, and at what pace.
    pub rollout: RolloutSpec,
    /// The namespaces that get a changed configuration before all others. If unset, which is the default, a
    /// configuration is active for all namespaces at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
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

/// The default of `spec.drift.trustedManagers`.
const INSTALLERS: [&str; 9] = [
    "helm*",
    "kustomize-controller",
    "argocd-*",
    "terraform-provider-helm*",
    "pulumi-*",
    "fleetagent",
    "fleet-agent",
    "kubectl-client-side-apply",
    "kubectl",
];
/// The default of earlier schemas, from before the list had patterns.
const FORMER_INSTALLERS: [&str; 5] =
    ["helm", "helm-controller", "argocd-controller", "kustomize-controller", "kubectl-client-side-apply"];

/// How the operator handles changes to the ConfigMap by other field managers.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftSpec {
    /// The protected part of the document. Document is all of the ConfigMap's key `values`: any change by a field
    /// manager that is not trusted is drift. Declared is only what this resource sets: everything else may be edited by
    /// hand, and such an edit stays. The default is Document, because one stray edit can stop every Pod of the cluster
    /// from being created.
    pub scope: DriftScope,
    /// The action on drift. Revert restores the configuration, at growing intervals if another field manager changes it
    /// repeatedly. Report leaves the change in place and names it in status and Events. The default is Revert.
    pub action: DriftAction,
    /// The field managers whose changes are not drift: they write new values of the installer, and this resource is
    /// applied on top of them again. In a name, * matches any number of characters. The default names the installers of
    /// Linkerd: Helm and Flux (helm*, kustomize-controller), Argo CD (argocd-*), Terraform (terraform-provider-helm*),
    /// Pulumi (pulumi-*), Fleet (fleetagent, fleet-agent), and `linkerd upgrade | kubectl apply`, client-side and
    /// server-side (kubectl-client-side-apply, kubectl). A document of the last two is drift all the same if it is a
    /// copy of what the operator wrote, or lacks a top-level key of the installer's document. A stored list that equals
    /// the default of an older version has the meaning of the present default.
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

impl DriftSpec {
    /// Returns the patterns of the trusted field managers. The API server stores the default of the schema in each
    /// resource that does not set the list. So a list that equals a former default means the present one.
    pub fn trusted_patterns(&self) -> Vec<&str> {
        if self.trusted_managers == FORMER_INSTALLERS {
            return INSTALLERS.to_vec();
        }
        self.trusted_managers.iter().map(String::as_str).collect()
    }
}

impl Default for DriftSpec {
    fn default() -> Self {
        Self {
            scope: DriftScope::default(),
            action: DriftAction::default(),
            trusted_managers: INSTALLERS.map(str::to_owned).to_vec(),
        }
    }
}

#[cfg(test)]
#[path = "mod_tests.rs"]
mod tests;
