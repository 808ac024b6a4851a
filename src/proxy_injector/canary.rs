//! The configuration of a canary: another revision of the values, for the Pods of some namespaces.
//!
//! In: the texts of the ConfigMap `linkerd-config-canary`, if it exists. Out: the configuration for a namespace. Always
//! holds: a document with which Pods cannot be injected is not used, and then the canary namespaces have the
//! configuration of all others; each refusal is logged once.

use std::sync::Arc;

use tracing::{info, warn};

use super::configuration::Configuration;
use crate::{
    api::KUBE_SYSTEM,
    cluster::index::{label_selector::LabelSelector, selector::Labels},
    contain::{Work, contain},
};

/// The texts of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CanaryTexts {
    pub(super) values: Arc<str>,
    pub(super) trust_anchors: Arc<str>,
    /// The label selector of the namespaces, as JSON.
    pub(super) namespaces: Arc<str>,
}

#[derive(Default)]
pub(super) struct CanaryConfiguration {
    texts: Option<CanaryTexts>,
    in_use: Option<(LabelSelector, Arc<Configuration>)>,
    problem: Option<String>,
}

// === impl CanaryConfiguration ===

impl CanaryConfiguration {
    /// Reads these texts. Without texts there is no canary.
    pub(super) fn new(texts: Option<CanaryTexts>) -> Self {
        let read = |texts: &CanaryTexts| {
            contain(Work::Configuring, || read(texts)).unwrap_or_else(|panicked| Err(panicked.to_string()))
        };
        let (in_use, problem) = match texts.as_ref().map(read) {
            None => {
                info!("the proxy injector uses one configuration for all namespaces");
                (None, None)
            }
            Some(Ok(in_use)) => {
                info!(hash = in_use.1.injection_hash, "the proxy injector uses a configuration for canary namespaces");
                (Some(in_use), None)
            }
            Some(Err(reason)) => {
                let problem = format!("the canary configuration of the proxy injector is refused: {reason}");
                warn!(problem, "the canary namespaces get the configuration of all others");
                (None, Some(problem))
            }
        };
        Self { texts, in_use, problem }
    }

    /// Whether these are its texts.
    pub(super) fn has(&self, texts: Option<&CanaryTexts>) -> bool {
        self.texts.as_ref() == texts
    }

    /// Returns the configuration of the canary if it includes a namespace with these labels.
    pub(super) fn of_labels(&self, labels: &Labels) -> Option<Arc<Configuration>> {
        let (namespaces, configuration) = self.in_use.as_ref()?;
        namespaces.matches(labels).then(|| Arc::clone(configuration))
    }

    /// Returns why the canary is not in use.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}

/// Returns whether a namespace has the configuration of all others, whatever its labels are. The operator probes for that
/// configuration in the namespace of the control plane.
pub(super) fn is_never_included(namespace: &str, controller_namespace: &str) -> bool {
    [KUBE_SYSTEM, controller_namespace].contains(&namespace)
}

/// Returns the namespaces and the configuration of a canary.
fn read(texts: &CanaryTexts) -> Result<(LabelSelector, Arc<Configuration>), String> {
    let selector = serde_json::from_str(&texts.namespaces).map_err(|error| error.to_string());
    let selector = selector.and_then(LabelSelector::parse);
    let namespaces = selector.map_err(|error| format!("its selector of namespaces is invalid: {error}"))?;
    // An empty selector would make everything the canary.
    if namespaces.is_empty() {
        return Err("its selector of namespaces is empty".to_owned());
    }
    let configuration = Configuration::read(&texts.values, &texts.trust_anchors);
    Ok((namespaces, Arc::new(configuration.map_err(|error| error.to_string())?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::testing::TRUST_ANCHORS;

    const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

    fn texts(values: &str, namespaces: &str) -> Option<CanaryTexts> {
        Some(CanaryTexts { values: values.into(), trust_anchors: TRUST_ANCHORS.into(), namespaces: namespaces.into() })
    }

    fn is_included(canary: &CanaryConfiguration, labels: &[(&str, &str)]) -> bool {
        canary.of_labels(&labels.iter().copied().collect()).is_some()
    }

    #[test]
    fn only_namespaces_with_the_labels_have_the_canary_and_only_while_it_exists() {
        let canary = CanaryConfiguration::default();
        assert!(!is_included(&canary, &[("canary", "yes")]));
        let canary = CanaryConfiguration::new(texts(INSTALLED, r#"{"matchLabels": {"canary": "yes"}}"#));
        assert!(is_included(&canary, &[("canary", "yes"), ("team", "a")]));
        assert!(!is_included(&canary, &[("canary", "no")]) && !is_included(&canary, &[]));
        let canary = CanaryConfiguration::new(texts(
            INSTALLED,
            r#"{"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]}"#,
        ));
        assert!(is_included(&canary, &[("team", "a")]) && !is_included(&canary, &[("canary", "yes")]));
        let canary = CanaryConfiguration::new(None);
        assert!(!is_included(&canary, &[("team", "a")]) && canary.problem().is_none());
    }

    #[test]
    fn a_canary_that_is_refused_is_not_used_and_its_predecessor_is_not_used_either() {
        let selector = r#"{"matchLabels": {"canary": "yes"}}"#;
        let without_mode = INSTALLED.replace("iptablesMode: nft", "iptablesMode: other");
        for (bad, why) in [
            (texts("{clusterDomain: a, proxy: {}}", selector), "lack a field that the injector requires"),
            (texts(&without_mode, selector), "must be one of nft, legacy"),
            (texts(INSTALLED, "{}"), "its selector of namespaces is empty"),
            (texts(INSTALLED, "["), "its selector of namespaces is invalid"),
            (texts(INSTALLED, r#"{"matchExpressions": [{"key": "a", "operator": "Like"}]}"#), "is invalid"),
        ] {
            let canary = CanaryConfiguration::new(texts(INSTALLED, selector));
            assert!(is_included(&canary, &[("canary", "yes")]));
            let canary = CanaryConfiguration::new(bad);
            assert!(!is_included(&canary, &[("canary", "yes")]), "{why}");
            assert!(canary.problem().unwrap().contains(why), "{:?}", canary.problem());
        }
    }

    #[test]
    fn the_control_plane_and_kube_system_never_have_the_canary() {
        for (namespace, is_never) in [("linkerd", true), ("kube-system", true), ("app", false), ("linkerd-viz", false)]
        {
            assert_eq!(is_never_included(namespace, "linkerd"), is_never, "{namespace}");
        }
    }
}
