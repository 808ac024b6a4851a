//! Whether a proxy is injected.
//!
//! In: the annotation `linkerd.io/inject` of the namespace and of the Pod, and the Pod. Out: an [`InjectionDecision`].
//! Always holds: all reasons against an injection are named, in a fixed order.

use super::{annotations::AnnotationMap, reviewed::ReviewedSpec};
use crate::api::INJECT_ANNOTATION;

/// A reason why no proxy is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotInjected {
    HostNetwork,
    Windows,
    SidecarExists,
    UnsupportedKind,
    Disabled,
    NotEnabled,
    InvalidAtNamespace,
    InvalidAtWorkload,
    NoToken,
}

/// The decision about one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InjectionDecision {
    /// Empty if a proxy is injected.
    pub(super) skipped: Vec<NotInjected>,
    /// Which annotation decided: `namespace`, `workload`, or none.
    pub(super) annotation_at: &'static str,
}

// === impl NotInjected ===

impl NotInjected {
    /// The name of the reason in metrics.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::HostNetwork => "host_network_enabled",
            Self::Windows => "windows",
            Self::SidecarExists => "sidecar_already_exists",
            Self::UnsupportedKind => "unsupported_resource",
            Self::Disabled => "injection_disable_annotation_present",
            Self::NotEnabled => "injection_enable_annotation_absent",
            Self::InvalidAtNamespace => "invalid_inject_annotation_at_ns",
            Self::InvalidAtWorkload => "invalid_inject_annotation_at_workload",
            Self::NoToken => "disabled_automount_service_account_token_account",
        }
    }

    /// The reason in a warning.
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Self::HostNetwork => "hostNetwork is enabled",
            Self::Windows => "pod runs on Windows, and the proxy runs on Linux only",
            Self::SidecarExists => "pod has a sidecar injected already",
            Self::UnsupportedKind => "this resource kind is unsupported",
            Self::Disabled => "pod has the annotation \"linkerd.io/inject:disabled\"",
            Self::NotEnabled => "neither the namespace nor the pod have the annotation \"linkerd.io/inject:enabled\"",
            Self::InvalidAtNamespace => "invalid value for annotation \"linkerd.io/inject\" at namespace",
            Self::InvalidAtWorkload => "invalid value for annotation \"linkerd.io/inject\" at workload",
            Self::NoToken => {
                "automountServiceAccountToken set to \"false\", with Values.identity.serviceAccountTokenProjection set to \"false\""
            }
        }
    }
}

// === impl InjectionDecision ===

impl InjectionDecision {
    /// Decides about a Pod.
    pub(super) fn about_pod(
        namespace: &AnnotationMap,
        pod: &AnnotationMap,
        spec: &ReviewedSpec,
        has_projected_token: bool,
    ) -> Self {
        let mut skipped = Vec::new();
        if spec.host_network {
            skipped.push(NotInjected::HostNetwork);
        }
        if spec.is_for_windows() {
            skipped.push(NotInjected::Windows);
        }
        if spec.has_sidecar() {
            skipped.push(NotInjected::SidecarExists);
        }
        let (annotation_at, reason) = by_annotations(text(namespace), text(pod));
        skipped.extend(reason);
        // Without a projected token, the proxy uses the one of the first container.
        let has_token = spec.automount_service_account_token != Some(false) && spec.token_mount().is_some();
        if !has_projected_token && !has_token {
            skipped.push(NotInjected::NoToken);
        }
        Self { skipped, annotation_at }
    }

    /// The decision about a kind without Pods, such as a Service.
    pub(super) fn unsupported() -> Self {
        Self { skipped: vec![NotInjected::UnsupportedKind], annotation_at: "" }
    }

    pub(super) fn injects(&self) -> bool {
        self.skipped.is_empty()
    }

    /// Returns whether an annotation requests a proxy.
    pub(super) fn was_requested(&self) -> bool {
        !self.annotation_at.is_empty() && !self.skipped.contains(&NotInjected::Disabled)
    }
}

fn text(annotations: &AnnotationMap) -> &str {
    annotations.get(INJECT_ANNOTATION).map(String::as_str).unwrap_or_default()
}

fn enables(text: &str) -> bool {
    matches!(text, "enabled" | "ingress")
}

/// Returns whether a text of the annotation has a meaning.
pub(super) fn is_valid(text: &str) -> bool {
    enables(text) || matches!(text, "disabled" | "")
}

/// Returns which annotation decides, and the reason against an injection. An empty annotation is an absent one. Values
/// are compared exactly.
fn by_annotations(namespace: &str, pod: &str) -> (&'static str, Option<NotInjected>) {
    match (namespace, pod) {
        (namespace, _) if !is_valid(namespace) => ("", Some(NotInjected::InvalidAtNamespace)),
        (_, pod) if !is_valid(pod) => ("", Some(NotInjected::InvalidAtWorkload)),
        (namespace, "disabled") if enables(namespace) => ("workload", Some(NotInjected::Disabled)),
        (namespace, _) if enables(namespace) => ("namespace", None),
        (_, pod) if enables(pod) => ("workload", None),
        _ => ("", Some(NotInjected::NotEnabled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the specification: six values at the namespace, and at the Pod.
    #[test]
    fn the_annotations_of_namespace_and_pod_decide_together() {
        use NotInjected::{Disabled, InvalidAtNamespace, InvalidAtWorkload, NotEnabled};
        let pods = ["", "enabled", "ingress", "disabled", "yes"];
        for (namespace, expected) in [
            ("enabled", [None, None, None, Some(Disabled), Some(InvalidAtWorkload)]),
            ("ingress", [None, None, None, Some(Disabled), Some(InvalidAtWorkload)]),
            ("disabled", [Some(NotEnabled), None, None, Some(NotEnabled), Some(InvalidAtWorkload)]),
            ("", [Some(NotEnabled), None, None, Some(NotEnabled), Some(InvalidAtWorkload)]),
            ("Enabled", [Some(InvalidAtNamespace); 5]),
        ] {
            for (pod, expected) in pods.into_iter().zip(expected) {
                assert_eq!(by_annotations(namespace, pod).1, expected, "namespace {namespace:?}, Pod {pod:?}");
            }
        }
        let at = |namespace, pod| by_annotations(namespace, pod).0;
        assert_eq!((at("enabled", "enabled"), at("enabled", "disabled")), ("namespace", "workload"));
        assert_eq!((at("", "enabled"), at("", ""), at("disabled", "disabled")), ("workload", "", ""));
    }

    #[test]
    fn all_reasons_are_named_in_order() {
        let spec = serde_json::json!({"hostNetwork": true, "containers": [{"name": "linkerd-proxy"}]});
        let spec: ReviewedSpec = serde_json::from_value(spec).unwrap();
        let none = AnnotationMap::new();
        let decision = InjectionDecision::about_pod(&none, &none, &spec, false);
        let keys: Vec<_> = decision.skipped.iter().map(|reason| reason.key()).collect();
        assert_eq!(
            keys,
            [
                "host_network_enabled",
                "sidecar_already_exists",
                "injection_enable_annotation_absent",
                "disabled_automount_service_account_token_account",
            ]
        );
    }
}
