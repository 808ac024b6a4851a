//! Why a Pod has no proxy of its own, how its proxy runs, and what its network waits for.
//!
//! In: the containers of a Pod, their states, the annotations of a Pod, a template or a namespace. Out: flags, because
//! every Pod of the cluster has them.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

use crate::{
    api::{INIT_NAME, NATIVE_SIDECAR_ANNOTATIONS, NETWORK_VALIDATOR_NAME, PROXY_NAME},
    go,
};

/// The mount path of the token of a Pod's ServiceAccount.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The beginnings of images of sidecars, whatever the name of their container.
const SIDECAR_IMAGES: [&str; 2] = ["cr.l5d.io/linkerd/proxy:", "gcr.io/istio-release/proxyv2:"];
const SIDECAR_INIT_IMAGES: [&str; 2] = ["cr.l5d.io/linkerd/proxy-init:", "gcr.io/istio-release/proxy_init:"];

/// The obstacle to the injection of a proxy into a Pod, apart from its annotations and its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InjectionBarrier {
    #[default]
    None,
    /// The Pod has a sidecar already, of Linkerd or of another mesh.
    Sidecar,
    /// The first container has no token of the ServiceAccount. This is a barrier only if proxies get no token of their
    /// own.
    NoToken,
    /// The Pod runs on Windows.
    Windows,
}

/// How traffic of a Pod is redirected to its proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetworkSetup {
    #[default]
    Unknown,
    /// The init container `linkerd-init` redirects it.
    InitContainer,
    /// A CNI plugin redirects it; the init container `linkerd-network-validator` verifies that.
    CniPlugin,
}

/// The state of a Pod's init container `linkerd-network-validator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkValidation {
    /// It has succeeded, has not started, or does not exist.
    #[default]
    Quiet,
    Running,
    /// It has failed at least once.
    Failing,
}

/// The values of [`NATIVE_SIDECAR_ANNOTATIONS`] of an object, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NativeSidecarOverrides([BoolOverride; 3]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum BoolOverride {
    #[default]
    Absent,
    /// It hides the annotations after it, and leaves the configured value.
    Unparsable,
    Set(bool),
}

/// The mounts of a container: whether one of them is the token of the ServiceAccount.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cluster) struct HasToken(pub(in crate::cluster) bool);

/// The statuses of a Pod's init containers.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cluster) struct InitStatuses(pub(in crate::cluster) NetworkValidation);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitStatus<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(default)]
    restart_count: i64,
    #[serde(default)]
    state: Option<InitState>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct InitState {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i64,
}

// === impl InjectionBarrier ===

/// Whether the injector takes a container for a sidecar that exists already.
pub(in crate::cluster) fn is_sidecar(name: &str, image: Option<&str>, is_init: bool) -> bool {
    let starts = |prefixes: [&str; 2]| image.is_some_and(|image| prefixes.iter().any(|it| image.starts_with(it)));
    matches!(name, PROXY_NAME | "istio-proxy")
        || starts(SIDECAR_IMAGES)
        || is_init && (matches!(name, INIT_NAME | "istio-init") || starts(SIDECAR_INIT_IMAGES))
}

// === impl NetworkSetup ===

impl NetworkSetup {
    /// Reads the names of a Pod's init containers.
    pub(in crate::cluster) fn of<'a>(mut init_containers: impl Iterator<Item = &'a str>) -> Self {
        init_containers.find_map(Self::by).unwrap_or_default()
    }

    fn by(init_container: &str) -> Option<Self> {
        match init_container {
            INIT_NAME => Some(Self::InitContainer),
            NETWORK_VALIDATOR_NAME => Some(Self::CniPlugin),
            _ => None,
        }
    }
}

// === impl NativeSidecarOverrides ===

impl NativeSidecarOverrides {
    /// Reads the annotations of an object. `annotation` returns the value of one of them.
    pub fn of<'a>(annotation: impl Fn(&'static str) -> Option<&'a str>) -> Self {
        let read = |key| match annotation(key).map(go::bool::parse) {
            None => BoolOverride::Absent,
            Some(None) => BoolOverride::Unparsable,
            Some(Some(value)) => BoolOverride::Set(value),
        };
        Self(NATIVE_SIDECAR_ANNOTATIONS.map(read))
    }

    /// Returns the overrides of a Pod that inherits from its namespace. It does not inherit the beta annotation.
    #[must_use]
    pub fn inheriting(self, of_namespace: Self) -> Self {
        let Self([stable, beta, alpha]) = self;
        let Self([inherited_stable, _, inherited_alpha]) = of_namespace;
        Self([stable.or(inherited_stable), beta, alpha.or(inherited_alpha)])
    }

    /// Returns whether the proxy is a native sidecar. `configured` is the value of the mesh.
    pub fn resolve(self, configured: bool) -> bool {
        match self.0.into_iter().find(|it| *it != BoolOverride::Absent) {
            Some(BoolOverride::Set(value)) => value,
            _ => configured,
        }
    }
}

impl BoolOverride {
    fn or(self, inherited: Self) -> Self {
        if self == Self::Absent { inherited } else { self }
    }
}

// === impl HasToken ===

impl<'de> Deserialize<'de> for HasToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Mount<'a> {
            #[serde(borrow, default)]
            mount_path: Cow<'a, str>,
        }
        struct Mounts;
        impl<'de> Visitor<'de> for Mounts {
            type Value = HasToken;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("volume mounts")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(HasToken::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut mounts: A) -> Result<Self::Value, A::Error> {
                let mut found = HasToken::default();
                while let Some(Mount { mount_path }) = mounts.next_element()? {
                    found.0 |= mount_path == TOKEN_PATH;
                }
                Ok(found)
            }
        }
        deserializer.deserialize_any(Mounts)
    }
}

// === impl InitStatuses ===

impl<'de> Deserialize<'de> for InitStatuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Statuses;
        impl<'de> Visitor<'de> for Statuses {
            type Value = InitStatuses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("statuses of init containers")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(InitStatuses::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut statuses: A) -> Result<Self::Value, A::Error> {
                let mut found = InitStatuses::default();
                while let Some(status) = statuses.next_element::<InitStatus<'_>>()? {
                    if status.name == NETWORK_VALIDATOR_NAME {
                        found = InitStatuses(status.validation());
                    }
                }
                Ok(found)
            }
        }
        deserializer.deserialize_any(Statuses)
    }
}

impl InitStatus<'_> {
    fn validation(&self) -> NetworkValidation {
        let state = self.state.as_ref();
        let exit_code = state.and_then(|state| state.terminated.as_ref()).map(|terminated| terminated.exit_code);
        match (exit_code, self.restart_count) {
            (Some(0), _) => NetworkValidation::Quiet,
            (Some(_), _) | (None, 1..) => NetworkValidation::Failing,
            _ if state.is_some_and(|state| state.running.is_some()) => NetworkValidation::Running,
            _ => NetworkValidation::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn overrides(annotations: &Value) -> NativeSidecarOverrides {
        NativeSidecarOverrides::of(|key| annotations.get(key).and_then(Value::as_str))
    }

    #[test]
    fn the_first_annotation_decides_even_if_it_cannot_be_parsed_and_beta_is_not_inherited() {
        let [stable, beta, alpha] = NATIVE_SIDECAR_ANNOTATIONS;
        for (own, of_namespace, configured, expected, why) in [
            (json!({}), json!({}), true, true, "the configuration decides"),
            (json!({stable: "false"}), json!({}), true, false, "the Pod decides"),
            (json!({}), json!({stable: "true"}), false, true, "the namespace decides"),
            (json!({stable: "f"}), json!({stable: "true"}), true, false, "the Pod comes before the namespace"),
            (json!({stable: "no"}), json!({stable: "true"}), false, false, "an invalid value hides the namespace's"),
            (json!({stable: ""}), json!({stable: "true"}), false, false, "so does an empty one"),
            (json!({}), json!({beta: "true"}), false, false, "beta is not inherited"),
            (json!({beta: "true"}), json!({}), false, true, "a Pod may have beta"),
            (json!({}), json!({alpha: "1"}), false, true, "alpha is inherited"),
            (json!({beta: "false"}), json!({alpha: "true"}), true, false, "beta comes before alpha"),
            (json!({alpha: "true"}), json!({stable: "false"}), true, false, "an inherited one comes before alpha"),
            (json!({alpha: "true"}), json!({stable: "yes"}), false, false, "even an invalid one"),
        ] {
            let resolved = overrides(&own).inheriting(overrides(&of_namespace)).resolve(configured);
            assert_eq!(resolved, expected, "{why}: {own} in {of_namespace}");
        }
    }

    #[test]
    fn a_sidecar_is_found_by_the_names_and_images_that_the_injector_compares() {
        for (name, image, as_init, as_container) in [
            ("linkerd-proxy", None, true, true),
            ("istio-proxy", None, true, true),
            ("linkerd-init", None, true, false),
            ("istio-init", None, true, false),
            ("app", Some("cr.l5d.io/linkerd/proxy:edge-1"), true, true),
            ("app", Some("gcr.io/istio-release/proxyv2:1"), true, true),
            ("app", Some("cr.l5d.io/linkerd/proxy-init:v2"), true, false),
            ("app", Some("gcr.io/istio-release/proxy_init:1"), true, false),
            ("app", Some("cr.l5d.io/linkerd/proxy@sha256:0123"), false, false),
            ("linkerd-network-validator", None, false, false),
            ("linkerd-debug", None, false, false),
        ] {
            let found = (is_sidecar(name, image, true), is_sidecar(name, image, false));
            assert_eq!(found, (as_init, as_container), "{name} {image:?}");
        }
    }

    #[test]
    fn a_validator_that_has_not_succeeded_is_running_or_failing() {
        let validator = |restarts: i64, state: Value| json!([{"name": "linkerd-network-validator", "restartCount": restarts, "state": state}]);
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let terminated = |code: i64| json!({"terminated": {"exitCode": code, "reason": "any"}});
        let other = json!([{"name": "linkerd-init", "restartCount": 3, "state": terminated(1)}]);
        for (statuses, expected) in [
            (json!(null), NetworkValidation::Quiet),
            (json!([]), NetworkValidation::Quiet),
            (other, NetworkValidation::Quiet),
            (validator(0, waiting("PodInitializing")), NetworkValidation::Quiet),
            (validator(0, json!(null)), NetworkValidation::Quiet),
            (validator(0, json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})), NetworkValidation::Running),
            (validator(2, json!({"running": {}})), NetworkValidation::Failing),
            (validator(1, waiting("CrashLoopBackOff")), NetworkValidation::Failing),
            (validator(0, terminated(95)), NetworkValidation::Failing),
            (validator(0, terminated(0)), NetworkValidation::Quiet),
            (validator(4, terminated(0)), NetworkValidation::Quiet),
        ] {
            let InitStatuses(found) = serde_json::from_str(&statuses.to_string()).unwrap();
            assert_eq!(found, expected, "{statuses}");
        }
    }
}
