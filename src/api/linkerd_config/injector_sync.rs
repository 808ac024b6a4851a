//! How it is found out that the injectors use what was written.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{duration::duration, schema};

const TIMEOUT: &str = "3m";
const DELAY: &str = "90s";

/// How it is found out that the injectors use what was written. Every replica of Linkerd's proxy-injector reads the
/// ConfigMap from a file of its own, which the kubelet refreshes when it likes.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectorSyncSpec {
    /// Probe asks each ready replica of the proxy-injector to inject a Pod that is never made, until each one answers
    /// with what was written; one that denies it has the last good document put back. DryRun asks through the API
    /// server, which chooses the replicas, until several answers agree: for networks in which the operator cannot reach
    /// them. It may miss one that lags. Delay waits, and asks nobody. The default is Probe.
    pub method: InjectorSyncMethod,
    /// How long the replicas may take, since one of them came, went or caught up last. The default is 3m.
    #[schemars(schema_with = "schema::duration")]
    pub timeout: String,
    /// What follows when they take longer; they are asked all the same. Hold waits for them. RestartInjector restarts
    /// the Deployment linkerd-proxy-injector, once for each configuration. Proceed takes the configuration for one that
    /// is in effect. The default is Hold.
    pub on_timeout: OnTimeout,
    /// Whether the Pods of replicas that lag are annotated, which has the kubelet refresh their files at once. The
    /// default is true.
    pub nudge: bool,
    /// With the method Delay: how long after a write the configuration counts as in effect. The default is 90s.
    #[schemars(schema_with = "schema::duration")]
    pub delay: String,
    /// With the method DryRun: the namespace of the Pod that is never made. It has to be there, must not be exempt from
    /// Linkerd's admission webhooks, and its pod security has to allow a proxy. The default is default.
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
    fn durations_are_read_and_have_their_defaults() {
        let spec = InjectorSyncSpec { timeout: "1m30s".to_owned(), ..InjectorSyncSpec::default() };
        assert_eq!((spec.timeout(), spec.delay()), (Duration::from_secs(90), Duration::from_secs(90)));
        let spec = InjectorSyncSpec { timeout: "soon".to_owned(), delay: "1s".to_owned(), ..spec };
        assert_eq!((spec.timeout(), spec.delay()), (Duration::from_secs(180), Duration::from_secs(1)));
    }
}
