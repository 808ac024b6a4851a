//! The canary: a revision that is active for some namespaces first.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::duration;
use crate::api::schema;

const SOAK: &str = "10m";

/// The namespaces that get a changed configuration before all others. It needs the operator's own proxy injector and
/// injectorSync.method Probe: Linkerd's injector has one configuration for all namespaces.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["namespaceSelector"]))]
pub struct CanarySpec {
    /// The labels of the canary namespaces. Must not be empty. The namespace of the control plane is never one of them.
    #[serde(skip_serializing_if = "schema::is_default")]
    #[schemars(schema_with = "schema::some_label_selector")]
    pub namespace_selector: LabelSelector,
    /// The time that every selected workload of the canary namespaces must run with the configuration, without a
    /// failure, before the configuration is promoted. The default is 10m.
    #[schemars(schema_with = "schema::duration")]
    pub soak: String,
    /// Who promotes the configuration to all other namespaces. Automatic promotes it after the soak. Manual waits for
    /// the annotation config.linkerd.io/promote with the hash in status.canary. The annotation promotes with Automatic
    /// too. The default is Automatic.
    pub promotion: CanaryPromotion,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum CanaryPromotion {
    #[default]
    Automatic,
    Manual,
}

/// The phase of a canary.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum CanaryPhase {
    #[default]
    Waiting,
    Unsupported,
    Progressing,
    Soaking,
    AwaitingPromotion,
    Promoted,
    Failed,
}

/// The state of the last canary.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CanaryStatus {
    /// The phase of the canary. Waiting: a precondition is not met, and no namespace has the configuration. Unsupported:
    /// the proxy injector is not the operator's, so no namespace has it. Progressing: the canary namespaces get it. Soaking: their selected workloads run with it. AwaitingPromotion: the soak has
    /// passed, and the annotation config.linkerd.io/promote is missing. Promoted: all namespaces get it. Failed: it was
    /// taken back, and is not tried again until the declared values or the annotation config.linkerd.io/retry change.
    pub phase: CanaryPhase,
    /// The injection hash of the configuration.
    pub hash: String,
    /// The time when the phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub since: Option<Time>,
    /// The first canary namespaces by name, at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub namespaces: Vec<String>,
    /// Whether the annotation config.linkerd.io/promote is ignored, because it had this hash before the canary began: it
    /// promotes the canary after it was removed and set again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promote_ignored: Option<bool>,
    /// A description of the phase, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

// === impl CanarySpec ===

impl Default for CanarySpec {
    fn default() -> Self {
        Self {
            namespace_selector: LabelSelector::default(),
            soak: SOAK.to_owned(),
            promotion: CanaryPromotion::default(),
        }
    }
}

impl CanarySpec {
    pub fn soak(&self) -> Duration {
        duration(&self.soak, SOAK)
    }
}

// === impl CanaryPhase ===

impl CanaryPhase {
    /// Whether the canary namespaces have a configuration of their own.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Progressing | Self::Soaking | Self::AwaitingPromotion)
    }
}
