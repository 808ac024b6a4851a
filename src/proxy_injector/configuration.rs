//! The configuration of the injector: one revision of the values and of the trust anchors.
//!
//! In: the text of the values document, the PEM of the trust anchors. Out: a [`Configuration`], or the reason why Pods
//! could not be injected with it. Always holds: a configuration in use has injected a probe Pod without an error or a
//! warning, breaks no rule with which no Pod could run, and has trust anchors that a proxy starts with. So the injection of
//! a Pod fails only for its annotations, for those of its namespace, or for a difference from the probe, such as a
//! container with a name that the injector uses.

use std::fmt;

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Container;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    annotations::AnnotationMap,
    inject::{Injector, ReviewTarget},
    reviewed::ReviewedObject,
};
use crate::{
    api::{TRUST_ROOTS, TRUST_ROOTS_KEY},
    text::{and_more, hex},
    values::{Document, Problem, ProxyValues, unusable_trust_anchors},
};

/// One revision of the configuration.
pub(super) struct Configuration {
    pub(super) values: ProxyValues,
    pub(super) trust_anchors: String,
    /// The SHA-256 of the exact bytes of the trust anchors.
    pub(super) trust_anchors_hash: String,
    /// The hash of everything that affects injected Pods: the one in the document if a LinkerdConfig wrote it.
    pub(super) injection_hash: String,
    /// The values that the programs in a Pod ignore.
    pub(super) ineffective: Vec<Problem>,
    /// The amounts with which no proxy can run.
    pub(super) doubtful: Vec<Problem>,
}

/// A Pod, with the token that the API server mounts into most Pods.
const PROBE: &str = r#"{"spec": {
    "containers": [{
        "name": "probe",
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
    }],
    "volumes": [{"name": "token"}]
}}"#;
/// The maximum number of problems in a reason.
const MAX_SHOWN: usize = 5;

/// Why a configuration is refused. No reason shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RefusedConfiguration {
    #[error("the values cannot be read: {0}")]
    Unreadable(String),
    #[error("no Pod can run with these values: {}", listed(.0))]
    Unusable(Vec<Problem>),
    #[error("the values lack a field that the injector requires: {0}")]
    Incomplete(String),
    #[error("a Pod cannot be injected with these values: {0}")]
    NotRenderable(String),
    #[error("no proxy can use the bundle of trust anchors, key {TRUST_ROOTS_KEY} of the ConfigMap {TRUST_ROOTS}: {0}")]
    TrustAnchors(String),
}

// === impl Configuration ===

impl Configuration {
    /// Reads a configuration, and tries it with a Pod.
    ///
    /// # Errors
    /// When the values cannot be read, or when Pods could not be injected with them.
    pub(super) fn read(document: &str, trust_anchors: &str) -> Result<Self, RefusedConfiguration> {
        let (document, of_writer) =
            Document::read(document).map_err(|error| RefusedConfiguration::Unreadable(error.to_string()))?;
        let problems = document.injection_problems();
        if !problems.is_empty() {
            return Err(RefusedConfiguration::Unusable(problems));
        }
        if let Some(reason) = unusable_trust_anchors(trust_anchors) {
            return Err(RefusedConfiguration::TrustAnchors(reason));
        }
        let values = ProxyValues::read(document.as_map());
        let configuration = Self {
            values: values.map_err(|error| RefusedConfiguration::Incomplete(error.to_string()))?,
            trust_anchors: trust_anchors.to_owned(),
            trust_anchors_hash: hex(Sha256::digest(trust_anchors.as_bytes())),
            injection_hash: of_writer
                .filter(|hash| !hash.is_empty())
                .unwrap_or_else(|| document.injection_hash().to_string()),
            ineffective: document.ineffective_values(),
            doubtful: document.doubtful_values(),
        };
        configuration.try_it()?;
        Ok(configuration)
    }

    fn try_it(&self) -> Result<(), RefusedConfiguration> {
        let injector = Injector { controller_namespace: "linkerd", version: "" };
        let none = AnnotationMap::new();
        let target = ReviewTarget { namespace: &none, namespace_name: "default", inject_label: None, workload: None };
        let probe: ReviewedObject =
            serde_json::from_str(PROBE).map_err(|error| RefusedConfiguration::NotRenderable(error.to_string()))?;
        let patch = injector.pod_patch(self, target, &probe);
        let (patch, warnings) = patch.map_err(|error| RefusedConfiguration::NotRenderable(error.to_string()))?;
        if !warnings.is_empty() {
            return Err(RefusedConfiguration::NotRenderable(warnings.into_texts().join("; ")));
        }
        // The rules should have found what Kubernetes cannot read.
        let containers = patch.into_iter().filter_map(added_container);
        let read = containers.map(serde_json::from_value::<Container>).find_map(Result::err);
        read.map_or(Ok(()), |error| Err(RefusedConfiguration::NotRenderable(error.to_string())))
    }
}

fn listed(problems: &[Problem]) -> String {
    and_more(problems.iter().take(MAX_SHOWN), problems.len(), "; ")
}

fn added_container(operation: PatchOperation) -> Option<Value> {
    let PatchOperation::Add(added) = operation else { return None };
    let path = added.path.as_str();
    let is_container = ["/spec/initContainers/", "/spec/containers/"].iter().any(|list| path.starts_with(list));
    is_container.then_some(added.value)
}

/// Shows no value.
impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Configuration({})", self.injection_hash)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::CONFIG_HASH_ENV,
        values::{InjectionHashes, Path, testing::TRUST_ANCHORS},
    };

    const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

    /// Returns why a document with another value at a path is refused.
    fn refused(changes: &[(&str, Value)]) -> String {
        let (mut document, _) = Document::read(INSTALLED).unwrap();
        for (at, value) in changes {
            document.set(&at.split('.').collect(), value.clone());
        }
        Configuration::read(&document.to_yaml(), TRUST_ANCHORS).unwrap_err().to_string()
    }

    #[test]
    fn a_document_with_which_the_api_server_or_a_container_rejects_every_pod_is_refused_with_the_path() {
        let cpu = json!({"cpu": {"request": "100 m"}});
        let memory = json!({"memory": {"request": "20Mi", "limit": "10Mi"}});
        for (at, value, path) in [
            ("proxy.resources", cpu, r#"proxy.resources.cpu.request ("100 m"): must be a quantity"#),
            ("proxy.resources", memory, r#"proxy.resources.memory.request ("20Mi"): must not exceed the limit"#),
            ("proxy.ports.admin", json!(70_000), "proxy.ports.admin (70000): must be a port"),
            ("proxy.ports.admin", json!(4143), "proxy.ports.inbound (4143): must differ from proxy.ports.admin"),
            ("proxy.image.pullPolicy", json!("Alway"), "proxy.image.pullPolicy (\"Alway\"): must be one of Always"),
            ("imagePullPolicy", json!("always"), "imagePullPolicy (\"always\"): must be one of Always"),
            ("proxy.gid", json!(5_000_000_000_i64), "proxy.gid (5000000000): must be at most 2147483647"),
            ("proxy.uid", json!(-1), "proxy.uid (-1): must be from 0"),
            ("proxy.additionalEnv", json!([{"name": "A=B", "value": "x"}]), "proxy.additionalEnv (not shown): entry 0"),
            (
                "proxy.additionalEnv",
                json!([{"name": "A", "valueFrom": {}}]),
                "proxy.additionalEnv (not shown): entry 0",
            ),
            ("proxy.securityContext", json!({"runAsUser": "x"}), "proxy.securityContext.runAsUser (\"x\"): must have"),
            ("proxy.securityContext", json!({"runAsUser": -1}), "proxy.securityContext.runAsUser (-1): must be from 0"),
            ("proxyInit.xtMountPath.mountPath", json!(""), "proxyInit.xtMountPath.mountPath (\"\"): must be a path"),
            ("proxyInit.runAsUser", json!(5_000_000_000_i64), "proxyInit.runAsUser (5000000000): must be from 0"),
            ("proxyInit.skipSubnets", json!("10.0.0.1"), "proxyInit.skipSubnets (\"10.0.0.1\"): must be"),
            ("proxyInit.logLevel", json!("off"), "proxyInit.logLevel (\"off\"): must be one of"),
            ("proxy.livenessProbe.timeoutSeconds", json!(5_000_000_000_i64), "proxy.livenessProbe.timeoutSeconds (5"),
            ("proxy.defaultInboundPolicy", json!("no"), "proxy.defaultInboundPolicy (\"no\"): must be one of"),
            ("proxy.opaquePorts", json!("mysql"), "proxy.opaquePorts (\"mysql\"): must be"),
            ("proxy.outboundConnectTimeout", json!("soon"), "proxy.outboundConnectTimeout (\"soon\"): must be"),
            ("proxy.image.version", json!("{{ .Values.x }}"), "proxy.image.version (\"{{ .Values.x }}\"): must be"),
            ("proxy.runtime.workers.maximumCPURatio", json!("0.5"), "maximumCPURatio (\"0.5\"): must be a number"),
            ("proxyInit.closeWaitTimeoutSecs", json!("0"), "proxyInit.closeWaitTimeoutSecs (\"0\"): must be a whole"),
            ("proxyInit.closeWaitTimeoutSecs", json!(""), "proxyInit.closeWaitTimeoutSecs (\"\"): must be a whole"),
            // Invalid value: "LINKERD2_PROXY_INBOUND_A=B_X_Y": a valid environment variable name must consist only of
            // printable ASCII characters other than '='.
            ("proxy.inbound", json!({"a=b": {"x": {"y": 1}}}), "proxy.inbound[\"a=b\"].x.y (1): must have keys"),
            // cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN
            ("proxy.capabilities", json!({"add": ["CAP_SYS_ADMIN"]}), "proxy.capabilities.add (a list): must not have"),
            // must not have leading or trailing whitespace
            ("linkerdVersion", json!("edge "), "linkerdVersion (\"edge \"): must be the tag of an image"),
            // iptables v1.8.9: invalid port/service `' specified
            (
                "proxyInit.ignoreOutboundPorts",
                json!("mysql"),
                "proxyInit.ignoreOutboundPorts (\"mysql\"): must be a list",
            ),
            // iptables v1.8.9: host/network `fd00::' not found
            ("proxyInit.skipSubnets", json!("fd00::/8"), "proxyInit.skipSubnets (\"fd00::/8\"): must be a comma"),
            // must be a relative path
            (
                "proxy.securityContext.seccompProfile",
                json!({"type": "Localhost", "localhostProfile": "/a"}),
                "proxy.securityContext.seccompProfile (a map): must have a localhostProfile that is a relative path",
            ),
            // windows options cannot be set for a linux pod
            (
                "proxy.securityContext.windowsOptions",
                json!({}),
                "proxy.securityContext.windowsOptions (a map): must be",
            ),
            // valueFrom.fileKeyRef.volumeName: Not found: "a"
            (
                "proxy.additionalEnv",
                json!([{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "a", "path": "b", "key": "c"}}}]),
                "entry 0 has no valid source: fileKeyRef.volumeName must be an emptyDir",
            ),
            // must be less than or equal to memory limit of 11E
            (
                "proxy.resources",
                json!({"memory": {"request": "12E", "limit": "11E"}}),
                "proxy.resources.memory.request (\"12E\"): must not exceed the limit",
            ),
            ("proxy.accessLog", json!("a\0"), "proxy.accessLog (\"a\\u0000\"): must not contain a NUL byte"),
            ("clusterNetworks", json!("10.0.0.0/8,".repeat(12_000)), "clusterNetworks ("),
        ] {
            let refused = refused(&[(at, value)]);
            assert!(refused.starts_with("no Pod can run with these values: ") && refused.contains(path), "{refused}");
        }
    }

    #[test]
    fn a_document_is_not_refused_for_values_that_no_injected_pod_needs() {
        for changes in [
            // Only the network validator needs them.
            &[
                ("cniEnabled", json!(true)),
                ("proxyInit.skipSubnets", json!("no")),
                ("proxyInit.logLevel", json!("off")),
            ][..],
            // This injector writes digits.
            &[("proxy.uid", json!(1_000_810_000)), ("proxy.gid", json!(1_000_810_000))],
            // linkerd-init ignores a port with a space, and starts.
            &[("proxyInit.ignoreOutboundPorts", json!("443, 8443"))],
            &[("proxy.logLevel", json!("warn,linkerd=inf")), ("proxy.accessLog", json!("combined"))],
            &[("debugContainer.image.pullPolicy", json!("always")), ("debugContainer.image.name", json!(" x"))],
            &[("proxyInit.skipSubnets", json!("10.0.0.0/8")), ("proxyInit.ignoreOutboundPorts", json!("mysql,443"))],
            &[
                ("cniEnabled", json!(true)),
                ("disableIPv6", json!(false)),
                ("proxyInit.skipSubnets", json!("fd00::/8")),
                ("proxyInit.ignoreOutboundPorts", json!("mysql")),
            ],
            &[("linkerdVersion", json!("edge ")), ("proxy.image.version", json!("edge-26.8.3"))],
            // A Pod with a token has another mount.
            &[("proxy.saMountPath", json!({"mountPath": "/x", "name": "nope"}))],
            &[("heartbeatResources", json!("x")), ("identity.issuer.issuanceLifetime", json!("1d"))],
            &[("proxy.unknown", json!({"a": [1]}))],
        ] {
            let (mut document, _) = Document::read(INSTALLED).unwrap();
            for (at, value) in changes {
                document.set(&at.split('.').collect(), value.clone());
            }
            let read = Configuration::read(&document.to_yaml(), TRUST_ANCHORS);
            assert!(read.is_ok(), "{changes:?}: {:?}", read.err());
        }
    }

    #[test]
    fn a_document_or_a_bundle_whose_texts_no_process_gets_is_refused() {
        let dual_stack = refused(&[("disableIPv6", json!(false)), ("proxyInit.skipSubnets", json!("10.0.0.0/8"))]);
        assert!(dual_stack.contains("proxyInit.skipSubnets (\"10.0.0.0/8\"): must be empty, unless"), "{dual_stack}");
        // All labels are in one variable.
        let labels: serde_json::Map<_, _> = (0..3).map(|at| (at.to_string(), json!("x".repeat(50_000)))).collect();
        let identity = json!({"namespace": "a", "serviceAccountName": "b"});
        let collector = json!({"endpoint": "a:4317", "meshIdentity": identity});
        let tracing = json!({"enabled": true, "collector": collector, "labels": labels});
        let reason = "the variable \"LINKERD2_PROXY_TRACE_EXTRA_ATTRIBUTES\" of the container linkerd-proxy must be \
                      shorter than 128 KiB";
        assert!(refused(&[("proxy.tracing", tracing)]).contains(reason));
        let long = format!("{}\n{TRUST_ANCHORS}", "#".repeat(128 << 10));
        let refused = Configuration::read(INSTALLED, &long).unwrap_err().to_string();
        assert!(
            refused.ends_with("no container starts with it") && refused.contains("trust anchors, key"),
            "{refused}"
        );
    }

    #[test]
    fn a_reason_names_five_problems_and_the_number_of_others() {
        let admin = json!({"admin": 0, "control": 70_000, "inbound": 70_001, "outbound": 70_002});
        let refused = refused(&[
            ("proxy.ports", admin),
            ("proxy.uid", json!(-1)),
            ("proxy.image.pullPolicy", json!("x")),
            ("imagePullPolicy", json!("x")),
        ]);
        assert!(refused.matches("must be").count() == 5 && refused.ends_with("; and 2 more"), "{refused}");
    }

    /// Returns the values of the hash in the proxy of a Pod with this annotation.
    fn stamped(document: &str, additional_env: Option<&str>) -> Vec<String> {
        variables(&Configuration::read(document, TRUST_ANCHORS).unwrap(), additional_env, CONFIG_HASH_ENV)
    }

    /// Returns the values of a variable in the proxy of a Pod with this annotation.
    fn variables(configuration: &Configuration, additional_env: Option<&str>, name: &str) -> Vec<String> {
        let annotation = |text: &str| ("config.linkerd.io/proxy-additional-env".to_owned(), text.to_owned());
        let mut pod = ReviewedObject::default();
        pod.metadata.annotations = additional_env.map(annotation).into_iter().collect();
        let (namespace, injector) = (AnnotationMap::new(), Injector { controller_namespace: "linkerd", version: "" });
        let target =
            ReviewTarget { namespace: &namespace, namespace_name: "default", inject_label: None, workload: None };
        let (patch, _) = injector.pod_patch(configuration, target, &pod).unwrap();
        let patch = json!(patch);
        let proxy = patch.as_array().unwrap().iter().find(|it| it["value"]["name"] == "linkerd-proxy").unwrap();
        let variables = proxy["value"]["env"].as_array().unwrap().iter().filter(|it| it["name"] == name);
        variables.map(|it| it["value"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_pod_has_the_hash_that_a_linkerd_config_computes_for_the_same_document() {
        let (document, _) = Document::read(INSTALLED).unwrap();
        let wanted = InjectionHashes::default().of(&document);
        assert_eq!(stamped(INSTALLED, None), [wanted.as_str()]);
        let changed = |keys: &[&str], value| {
            let mut changed = document.clone();
            changed.set(&Path::from(keys), value);
            stamped(&changed.to_yaml(), None)
        };
        assert_eq!(changed(&["controllerReplicas"], json!(3)), [wanted.as_str()], "only the control plane reads it");
        assert_ne!(changed(&["proxy", "logLevel"], json!("debug")), [wanted.as_str()]);
    }

    /// The template of Linkerd's injector is YAML, in which each line break becomes a line feed.
    #[test]
    fn a_bundle_with_the_line_breaks_of_windows_is_written_with_line_feeds() {
        let windows = TRUST_ANCHORS.replace('\n', "\r\n");
        let configuration = Configuration::read(INSTALLED, &windows).unwrap();
        assert_eq!(configuration.trust_anchors_hash, hex(Sha256::digest(&windows)));
        assert_eq!(variables(&configuration, None, "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS"), [TRUST_ANCHORS]);
    }

    #[test]
    fn the_hash_in_the_document_is_kept_once_and_a_pod_cannot_replace_it() {
        let (document, _) = Document::read(INSTALLED).unwrap();
        let written = document.with_injection_hash("v9_0123456789abcdef").to_yaml();
        let forged = r#"[{"name": "LINKERD_CONFIG_HASH", "value": "forged"}]"#;
        for annotation in [None, Some("[]"), Some(forged)] {
            assert_eq!(stamped(&written, annotation), ["v9_0123456789abcdef"], "{annotation:?}");
        }
        let computed = document.injection_hash().to_string();
        assert_eq!(stamped(INSTALLED, Some(forged)), [computed.as_str()]);
        assert_eq!(stamped(&document.with_injection_hash("").to_yaml(), None), [computed.as_str()]);
    }
}
