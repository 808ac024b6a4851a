//! Finds declared values without effect. Pure.
//!
//! In: a spec, the bundle of the mesh's trust anchors. Out: sentences that name these values. Always holds: the
//! resource is accepted nevertheless, because a newer Linkerd may know more; no sentence shows a secret.

use serde_json::Value;

use crate::{
    api::{TRUST_ROOTS, linkerd_config::LinkerdConfigSpec},
    linkerd_config::documents::overlay::Overlay,
    text::and_more,
    values::{
        Document, MODEL_VERSION, Path, control_plane_keys, meant_key, shown, unknown_keys, unusable_trust_anchors,
    },
};

/// The maximum number of paths in one sentence.
const MAX_SHOWN: usize = 10;
/// The maximum length of a value in a sentence.
const LONGEST: usize = 40;

/// Returns the sentences that name values without effect.
pub fn ineffective_values(spec: &LinkerdConfigSpec, bundle: Option<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let unknown = spec.values.as_ref().map(unknown_keys).unwrap_or_default();
    if !unknown.is_empty() {
        let keys = and_more(unknown.iter().take(MAX_SHOWN).map(unknown_key), unknown.len(), ", ");
        found.push(format!(
            "spec.values has keys that Linkerd does not have up to {MODEL_VERSION}, so no Pod gets them: {keys}"
        ));
    }
    let control_plane = spec.values.as_ref().map(control_plane_keys).unwrap_or_default();
    if !control_plane.is_empty() {
        let keys = and_more(control_plane.iter().take(MAX_SHOWN), control_plane.len(), ", ");
        found.push(format!(
            "spec.values has keys that only the installer of Linkerd reads, for the control plane, so no Pod gets them: \
             {keys}: set them there"
        ));
    }
    if let Ok(overlay) = Overlay::new(spec, None, None) {
        let declared = overlay.apply_to(&Document::default());
        let ignored = declared.ineffective_values();
        found.extend(ignored.iter().take(MAX_SHOWN).map(|problem| format!("{problem}: otherwise it has no effect")));
        found.extend(templates(&declared));
    }
    if let Some(reason) = bundle.and_then(unusable_trust_anchors) {
        found.push(format!(
            "no proxy can use the bundle of trust anchors, key ca-bundle.crt of the ConfigMap {TRUST_ROOTS}: {reason}"
        ));
    }
    found
}

/// Returns the path, with the known path that the author may mean.
fn unknown_key(path: &Path) -> String {
    match meant_key(path) {
        Some(meant) => format!("{path} (did you mean {meant}?)"),
        None => path.to_string(),
    }
}

/// Returns a sentence about texts in which a tool should have replaced a template. A variable may have such a text on
/// purpose.
fn templates(declared: &Document) -> Option<String> {
    let injected = declared.injection_subset();
    let is_template = |text: &str| ["${", "{{"].iter().any(|begin| text.contains(begin));
    let texts = injected.leaves().filter(|(_, value)| value.as_str().is_some_and(is_template));
    let texts: Vec<String> =
        texts.map(|(path, value): (_, &Value)| format!("{path} {}", shown(&path, value, LONGEST))).collect();
    let listed = and_more(texts.iter().take(MAX_SHOWN), texts.len(), ", ");
    (!texts.is_empty()).then(|| format!("values look like templates that no tool has replaced: {listed}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::values::testing::TRUST_ANCHORS;

    fn sentences(values: &Value, bundle: &str) -> Vec<String> {
        let spec: LinkerdConfigSpec = serde_json::from_value(json!({"values": values})).unwrap();
        ineffective_values(&spec, Some(bundle))
    }

    #[test]
    fn what_has_no_effect_has_one_sentence_that_names_it() {
        let garbage = format!("{TRUST_ANCHORS}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let with_key = format!("{TRUST_ANCHORS}-----BEGIN EC PRIVATE KEY-----\nSECRET\n-----END EC PRIVATE KEY-----\n");
        for (values, bundle, expected) in [
            (json!({"proxy": {"logLevel": "warn,linkerd=info", "accessLog": "apache"}}), TRUST_ANCHORS, None),
            (json!({"proxy": {"additionalEnv": [{"name": "A", "value": "${B}"}]}}), TRUST_ANCHORS, None),
            (
                json!({"proxy": {"resources": {"requests": {"cpu": "1"}}, "ignoreOutboundPorts": "443"}}),
                TRUST_ANCHORS,
                Some(
                    "so no Pod gets them: proxy.ignoreOutboundPorts (did you mean proxyInit.ignoreOutboundPorts?), \
                     proxy.resources.requests",
                ),
            ),
            (
                json!({"proxy": {"logLevl": "debug", "proxyImage": "a", "kubeAPIServerPorts": "443", "odd.key": 1}}),
                TRUST_ANCHORS,
                Some(
                    "so no Pod gets them: proxy.kubeAPIServerPorts (did you mean proxyInit.kubeAPIServerPorts?), \
                     proxy.logLevl (did you mean proxy.logLevel?), proxy[\"odd.key\"], proxy.proxyImage",
                ),
            ),
            (
                json!({
                    "controllerReplicas": 3, "heartbeatSchedule": null, "kubeAPI": {"clientQPS": 1},
                    "policyController": {"logLevel": "debug"}, "proxy": {"outboundTransportMode": "x", "cores": 2},
                    "identity": {"issuer": {"scheme": "x"}, "serviceAccountTokenProjection": true},
                    "proxyInit": {"resources": {"cpu": {"limit": "1"}}, "kubeAPIServerPorts": "443"},
                }),
                TRUST_ANCHORS,
                Some(
                    "spec.values has keys that only the installer of Linkerd reads, for the control plane, so no Pod gets \
                     them: controllerReplicas, identity.issuer, kubeAPI, policyController, proxy.outboundTransportMode, \
                     proxyInit.kubeAPIServerPorts, proxyInit.resources: set them there",
                ),
            ),
            (
                json!({"proxy": {"accessLog": "combined"}}),
                TRUST_ANCHORS,
                Some("proxy.accessLog (\"combined\"): must be one of"),
            ),
            (
                json!({"proxy": {"logLevel": "warn,linkerd=inf"}}),
                TRUST_ANCHORS,
                Some("proxy.logLevel (\"warn,linkerd=inf\")"),
            ),
            (
                json!({"proxy": {"logFormat": "yaml"}}),
                TRUST_ANCHORS,
                Some("proxy.logFormat (\"yaml\"): must be one of plain"),
            ),
            (
                json!({"identityTrustDomain": "${DOMAIN}"}),
                TRUST_ANCHORS,
                Some("templates that no tool has replaced: identityTrustDomain \"${DOMAIN}\""),
            ),
            (json!({}), "\u{feff}x", Some("ConfigMap linkerd-identity-trust-roots: it has a byte order mark")),
            (json!({}), &garbage, Some("ConfigMap linkerd-identity-trust-roots: certificate 2 of 2 is not a valid")),
            (json!({}), &with_key, Some("it has a private key")),
        ] {
            let found = sentences(&values, bundle);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            assert!(found.iter().all(|it| it.contains(expected.unwrap()) && !it.contains("SECRET")), "{found:?}");
        }
    }
}
