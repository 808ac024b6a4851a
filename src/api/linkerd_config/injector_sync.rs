//! The verification that the proxy injector uses the written configuration.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::duration;
use crate::api::schema;

const TIMEOUT: &str = "3m";
const DELAY: &str = "90s";

/// How the operator verifies that the proxy injector uses the written configuration. Each replica of the proxy injector
/// reads its own copy of the ConfigMap from a file, which the kubelet refreshes at its own pace.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectorSyncSpec {
    /// The method of verification. Probe sends each ready replica of the proxy injector an admission request for a Pod
    /// that is never created, until every replica injects the written configuration. If a replica denies the request,
    /// the operator restores the document from before it. DryRun sends dry runs through the API server, which chooses the
    /// replicas, until several answers agree. It is for networks in which the operator cannot reach the replicas, and
    /// may miss a replica that lags. Delay waits, and sends no request. The default is Probe.
    pub method: InjectorSyncMethod,
    /// The timeout for the replicas to use the configuration. It starts again when a replica appears, disappears or
    /// catches up. The default is 3m.
    #[schemars(schema_with = "schema::duration")]
    pub timeout: String,
    /// The action after the timeout; verification continues in any case. Hold waits for the replicas. RestartInjector
    /// restarts the Deployment linkerd-proxy-injector, once for each configuration. Proceed treats the configuration as
    /// in effect. The default is Hold.
    pub on_timeout: OnTimeout,
    /// Whether the operator annotates the Pods of replicas that lag, so that the kubelet refreshes their files
    /// immediately. The default is true.
    pub nudge: bool,
    /// For the method Delay: the time after a write until the configuration counts as in effect. The default is 90s.
    #[schemars(schema_with = "schema::duration")]
    pub delay: String,
    /// For the method DryRun: the namespace of the Pod in the dry runs. It must exist, must not be exempt from
    /// Linkerd's admission webhooks, and its Pod Security Standard must allow a proxy. The default is default.
    #[schemars(schema_with = "schema::namespace")]
    pub dry_run_namespace: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum InjectorSyncMethod {
    #[default]
    Probe,
    DryRun,
    Delay,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum OnTimeout {
    #[default]
    Hold,
    RestartInjector,
    Proceed,
}

// === impl InjectorSyncSpec ===

impl Default for InjectorSyncSpec {
    fn default() -> Self {
        Self {
            method: InjectorSyncMethod::default(),
            timeout: TIMEOUT.to_owned(),
            on_timeout: OnTimeout::default(),
            nudge: true,
            delay: DELAY.to_owned(),
            dry_run_namespace: "default".to_owned(),
        }
    }
}

impl InjectorSyncSpec {
    pub fn timeout(&self) -> Duration {
        duration(&self.timeout, TIMEOUT)
    }

    pub fn delay(&self) -> Duration {
        duration(&self.delay, DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_invalid_ones_are_the_defaults() {
        let spec = InjectorSyncSpec { timeout: "1m30s".to_owned(), ..InjectorSyncSpec::default() };
        assert_eq!((spec.timeout(), spec.delay()), (Duration::from_secs(90), Duration::from_secs(90)));
        let spec = InjectorSyncSpec { timeout: "soon".to_owned(), delay: "1s".to_owned(), ..spec };
        assert_eq!((spec.timeout(), spec.delay()), (Duration::from_secs(180), Duration::from_secs(1)));
    }
}
