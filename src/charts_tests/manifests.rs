//! The templates that are the manifests of `config` and `crd`, with the release's namespace, labels and accounts.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{assert_generated, read};
use crate::testing::{files, repository};

const CHART: &str = "charts/linkerd-operator";
const CRD_CHART: &str = "charts/linkerd-operator-crds";
const OPERATOR_NAMESPACE: &str = "linkerd-operator-system";
const POLICIES: &str = "$.Values.admissionPolicies.enabled";
const AUTHENTICATION: &str = "$.Values.metrics.authentication";
const WEBHOOKS: &str = r#"include "linkerd-operator.servesWebhooks" $"#;

/// A manifest in `config`, and the template that is generated from it.
struct Generated {
    manifest: &'static str,
    template: &'static str,
    /// The condition under which the chart has the objects; empty for always.
    condition: &'static str,
    /// The jobs whose accounts are the subjects of bindings.
    jobs: &'static [&'static str],
    /// The value with the namespaces to which the writes of a ClusterRole can be limited.
    namespaces: Option<&'static str>,
}

const fn generated(
    manifest: &'static str,
    template: &'static str,
    condition: &'static str,
    jobs: &'static [&'static str],
) -> Generated {
    Generated { manifest, template, condition, jobs, namespaces: None }
}

const fn limited(
    manifest: &'static str,
    template: &'static str,
    condition: &'static str,
    jobs: &'static [&'static str],
    namespaces: &'static str,
) -> Generated {
    Generated { manifest, template, condition, jobs, namespaces: Some(namespaces) }
}

const DESTINATION: &[&str] = &["destination"];
const EXTERNAL_WORKLOAD: &[&str] = &["externalWorkload"];
const LINKERD_CONFIG: &[&str] = &["linkerdConfig"];
const PROXY_INJECTOR: &[&str] = &["proxyInjector"];
const IDENTITY: &[&str] = &["identity"];
const ISSUER_WRITER: &[&str] = &["issuerWriter"];
const VALIDATION: &[&str] = &["validation"];
const WITH_EVENTS: &[&str] = &["linkerdConfig", "proxyInjector", "externalWorkload"];
const ALL: &[&str] =
    &["destination", "externalWorkload", "issuerWriter", "linkerdConfig", "proxyInjector", "validation"];
const WITH_WEBHOOKS: &[&str] = &["proxyInjector", "validation"];

const MANIFESTS: &[Generated] = &[
    generated("rbac/destination_role", "rbac/destination", "$.Values.jobs.destination.enabled", DESTINATION),
    limited(
        "rbac/external_workload_role",
        "rbac/external_workload",
        "$.Values.jobs.externalWorkload.enabled",
        EXTERNAL_WORKLOAD,
        "$.Values.jobs.externalWorkload.namespaces",
    ),
    generated("rbac/linkerd_config_role", "rbac/linkerd_config", "$.Values.jobs.linkerdConfig.enabled", LINKERD_CONFIG),
    limited(
        "rbac/rollout_role",
        "rbac/rollout",
        "and $.Values.jobs.linkerdConfig.enabled $.Values.jobs.linkerdConfig.rollouts.enabled",
        LINKERD_CONFIG,
        "$.Values.jobs.linkerdConfig.rollouts.namespaces",
    ),
    generated(
        "rbac/leader_election_role",
        "rbac/leader_election",
        "$.Values.jobs.linkerdConfig.enabled",
        LINKERD_CONFIG,
    ),
    generated(
        "rbac/event_role",
        "rbac/event",
        "or $.Values.jobs.linkerdConfig.enabled $.Values.jobs.proxyInjector.enabled $.Values.jobs.externalWorkload.enabled",
        WITH_EVENTS,
    ),
    generated("rbac/validation_role", "rbac/validation", "$.Values.jobs.validation.enabled", VALIDATION),
    generated("rbac/linkerdconfig_editor_role", "rbac/linkerdconfig_editor", "", &[]),
    generated("rbac/linkerdconfig_viewer_role", "rbac/linkerdconfig_viewer", "", &[]),
    generated(
        "components/proxy-injector/proxy_injector_role",
        "rbac/proxy_injector",
        "$.Values.jobs.proxyInjector.enabled",
        PROXY_INJECTOR,
    ),
    generated("components/identity/identity_role", "rbac/identity", "$.Values.jobs.identity.enabled", IDENTITY),
    generated(
        "components/identity/watch/watch_role",
        "rbac/identity_watch",
        "and $.Values.jobs.identity.enabled $.Values.jobs.identity.watch",
        IDENTITY,
    ),
    generated(
        "components/issuer-writer/issuer_writer_role",
        "rbac/issuer_writer",
        "$.Values.jobs.issuerWriter.enabled",
        ISSUER_WRITER,
    ),
    generated(
        "components/metrics-authentication/authentication_role",
        "rbac/metrics_authentication",
        AUTHENTICATION,
        ALL,
    ),
    generated("components/metrics-authentication/reader_role", "rbac/metrics_reader", AUTHENTICATION, &[]),
    generated("components/webhook-server/certificate_role", "rbac/webhook_certificate", WEBHOOKS, WITH_WEBHOOKS),
    generated(
        "control-plane/external_workload_role",
        "control-plane/external_workload",
        "and $.Values.controlPlane.roles $.Values.jobs.externalWorkload.enabled",
        EXTERNAL_WORKLOAD,
    ),
    generated(
        "control-plane/linkerd_config_role",
        "control-plane/linkerd_config",
        "and $.Values.controlPlane.roles $.Values.jobs.linkerdConfig.enabled",
        LINKERD_CONFIG,
    ),
    generated(
        "control-plane/nudge_role",
        "control-plane/nudge",
        "and $.Values.controlPlane.roles $.Values.jobs.linkerdConfig.enabled $.Values.jobs.linkerdConfig.nudge",
        LINKERD_CONFIG,
    ),
    generated(
        "components/trust-anchors/trust_anchors_role",
        "control-plane/trust_anchors",
        "and $.Values.controlPlane.roles $.Values.jobs.linkerdConfig.enabled $.Values.jobs.linkerdConfig.trustAnchors",
        LINKERD_CONFIG,
    ),
    generated(
        "components/issuer-writer/control-plane/issuer_writer_role",
        "control-plane/issuer_writer",
        "and $.Values.controlPlane.roles $.Values.jobs.issuerWriter.enabled",
        ISSUER_WRITER,
    ),
    generated(
        "components/proxy-injector/control-plane/proxy_injector_role",
        "control-plane/proxy_injector",
        "and $.Values.controlPlane.roles $.Values.jobs.proxyInjector.enabled",
        PROXY_INJECTOR,
    ),
    generated(
        "components/multicluster/control-plane/multicluster_role",
        "control-plane/multicluster",
        "and $.Values.controlPlane.roles $.Values.jobs.destination.enabled $.Values.jobs.destination.multicluster",
        DESTINATION,
    ),
    generated("components/webhook-server/service", "webhooks/service", WEBHOOKS, &[]),
    generated(
        "components/proxy-injector/mutating_webhook",
        "webhooks/proxy_injector",
        "$.Values.jobs.proxyInjector.enabled",
        PROXY_INJECTOR,
    ),
    generated(
        "components/webhooks/validating_webhook",
        "webhooks/validation",
        "$.Values.jobs.validation.enabled",
        VALIDATION,
    ),
    generated("admission-policy/config_map", "admission-policy/config_map", POLICIES, &[]),
    generated("admission-policy/controller_revisions", "admission-policy/controller_revisions", POLICIES, &[]),
    generated("admission-policy/endpoint_slices", "admission-policy/endpoint_slices", POLICIES, &[]),
    generated("admission-policy/evictions", "admission-policy/evictions", POLICIES, &[]),
    generated("admission-policy/leases", "admission-policy/leases", POLICIES, &[]),
    generated("admission-policy/linkerd_configs", "admission-policy/linkerd_configs", POLICIES, &[]),
    generated("admission-policy/linkerd_trusts", "admission-policy/linkerd_trusts", POLICIES, &[]),
    generated("admission-policy/pods", "admission-policy/pods", POLICIES, &[]),
    generated("admission-policy/rollout_annotations", "admission-policy/rollout_annotations", POLICIES, &[]),
    generated("admission-policy/secrets", "admission-policy/secrets", POLICIES, &[]),
    generated("admission-policy/workloads", "admission-policy/workloads", POLICIES, &[]),
];

/// The manifests for which the chart has a template that is not generated.
const WRITTEN: [&str; 15] = [
    "components/identity/network_policy",
    "components/identity/service_account",
    "components/issuer-writer/service_account",
    "components/separate-destination/service",
    "components/separate-destination/service_account",
    "components/separate-external-workloads/service_account",
    "manager/deployment",
    "manager/pod_disruption_budget",
    "network-policy/network_policy",
    "prometheus/identity/pod_monitor",
    "prometheus/metrics-authentication/metrics_reader",
    "prometheus/pod_monitor",
    "prometheus/service-monitor/service",
    "prometheus/service-monitor/service_monitor",
    "rbac/service_account",
];
/// The manifests whose templates include a generated file, and the namespace, which Helm does not manage.
const OTHERS: [&str; 3] = ["manager/namespace", "prometheus/alerts", "prometheus/recording_rules"];

// === impl Generated ===

impl Generated {
    fn text(&self) -> String {
        let path = format!("config/{}.yaml", self.manifest);
        let manifest = read(&path);
        assert!(!manifest.contains("{{"), "{path} contains the delimiter of templates");
        let documents: Vec<_> = manifest.split("---\n").collect();
        let body = match self.namespaces {
            Some(namespaces) => self.limited(&documents, namespaces),
            None => documents.iter().map(|document| self.document(document)).collect::<Vec<_>>().join("---\n"),
        };
        let comment = format!("{{{{- /* Generated from {path}: UPDATE_CHARTS=1 cargo test --lib charts */ -}}}}\n");
        match self.condition {
            "" => comment + &body,
            condition => format!("{comment}{{{{- if {condition} }}}}\n{body}{{{{- end }}}}\n"),
        }
    }

    /// A ClusterRole and its binding. If the value names namespaces, the reads of the role are bound in the cluster, and
    /// the whole role in each of these namespaces.
    fn limited(&self, documents: &[&str], namespaces: &str) -> String {
        let [role, binding] = documents else { panic!("{}: expected a role and its binding", self.manifest) };
        let (role_text, binding_text) = (self.document(role), self.document(binding));
        let role: Value = serde_yaml::from_str(role).unwrap();
        let name = role["metadata"]["name"].as_str().unwrap();
        let reader = format!("{name}-reader");
        let rules = serde_yaml::to_string(&json!({"rules": reads(&role["rules"])})).unwrap();
        let named = |kind: &str, name: &str, lines: &str| {
            format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{lines}{LABELS}"
            )
        };
        let refers = |name: &str| {
            let reference =
                format!("roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: ClusterRole\n  name: {name}\n");
            reference + &self.subjects()
        };
        let namespace = "  namespace: {{ . | quote }}\n";
        [
            role_text,
            format!("{{{{- if not {namespaces} }}}}\n---\n{binding_text}{{{{- else }}}}\n"),
            format!("---\n{}{rules}", named("ClusterRole", &reader, "")),
            format!("---\n{}{}", named("ClusterRoleBinding", &reader, ""), refers(&reader)),
            format!("{{{{- range {namespaces} }}}}\n---\n{}{}", named("RoleBinding", name, namespace), refers(name)),
            "{{- end }}\n{{- end }}\n".to_owned(),
        ]
        .concat()
    }

    fn document(&self, document: &str) -> String {
        let mut text = String::new();
        let mut lines = document.lines().peekable();
        while let Some(line) = lines.next() {
            let mut block = Vec::new();
            if matches!(line, "metadata:" | "subjects:") {
                while let Some(nested) = lines.next_if(|line| line.starts_with(' ')) {
                    block.push(nested);
                }
            }
            match line {
                "metadata:" => text.push_str(&metadata(&block)),
                "subjects:" => text.push_str(&self.subjects()),
                line => {
                    let policy = self
                        .jobs
                        .first()
                        .map(|job| format!("failurePolicy: {{{{ $.Values.jobs.{job}.failurePolicy }}}}"));
                    let line = policy.map_or(line.to_owned(), |policy| line.replace("failurePolicy: Ignore", &policy));
                    text.push_str(&(placed(&line) + "\n"));
                }
            }
        }
        let left: Vec<_> = text.lines().filter(|line| line.contains(OPERATOR_NAMESPACE)).collect();
        assert!(left.is_empty(), "{}: {left:?}", self.manifest);
        text
    }

    fn subjects(&self) -> String {
        let jobs: Vec<_> = self.jobs.iter().map(|job| format!("{job:?}")).collect();
        let jobs = format!("(dict \"root\" $ \"jobs\" (list {}))", jobs.join(" "));
        format!("subjects:\n  {{{{- include \"linkerd-operator.subjects\" {jobs} | trim | nindent 2 }}}}\n")
    }
}

const LABELS: &str = "  labels:\n    {{- include \"linkerd-operator.labels\" $ | nindent 4 }}\n";

/// The metadata of an object, with the labels of the chart instead of those of kustomize.
fn metadata(block: &[&str]) -> String {
    let is_label = |line: &&&str| line.starts_with("    ");
    let (labels, fields): (Vec<&str>, Vec<&str>) = block.iter().partition(|line| is_label(line));
    let fields = fields.iter().filter(|line| **line != "  labels:").map(|line| placed(line) + "\n");
    let labels =
        labels.iter().filter(|line| !line.trim().starts_with("app.kubernetes.io/")).map(|line| format!("{line}\n"));
    format!("metadata:\n{}{LABELS}{}", fields.collect::<String>(), labels.collect::<String>())
}

/// A line with the values for both namespaces.
fn placed(line: &str) -> String {
    const RELEASE: &str = "{{ $.Release.Namespace | quote }}";
    const LINKERD: &str = "{{ $.Values.controlPlane.namespace | quote }}";
    let line = line
        .replace("namespace: linkerd-operator-system", &format!("namespace: {RELEASE}"))
        .replace("linkerd-operator-system, linkerd]", &format!("{RELEASE}, {LINKERD}]"))
        .replace("serviceaccount:linkerd-operator-system:", "serviceaccount:{{ $.Release.Namespace }}:")
        .replace(r#"'"linkerd"'"#, r#"'"{{ $.Values.controlPlane.namespace }}"'"#);
    match line.strip_suffix("namespace: linkerd") {
        Some(start) => format!("{start}namespace: {LINKERD}"),
        None => line,
    }
}

/// The rules without the verbs that write.
fn reads(rules: &Value) -> Vec<Value> {
    let mut reads = Vec::new();
    for rule in rules.as_array().unwrap() {
        let mut rule = rule.clone();
        let verbs = rule["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| ["get", "list", "watch"].map(Value::from).contains(verb));
        if !verbs.is_empty() {
            reads.push(rule);
        }
    }
    assert!(!reads.is_empty());
    reads
}

#[test]
fn the_templates_of_roles_webhooks_and_policies_are_generated_from_the_manifests() {
    for source in MANIFESTS {
        assert_generated(&format!("{CHART}/templates/{}.yaml", source.template), &source.text());
    }
}

#[test]
fn each_manifest_has_a_template() {
    let config = repository().join("config");
    let manifests: BTreeSet<_> = files("config", "yaml")
        .iter()
        .map(|file| file.strip_prefix(&config).unwrap().with_extension("").to_str().unwrap().to_owned())
        .filter(|name| !name.ends_with("kustomization"))
        .filter(|name| !name.starts_with("samples/") && !name.starts_with("prometheus/tests/"))
        .collect();
    let listed = MANIFESTS.iter().map(|source| source.manifest).chain(WRITTEN).chain(OTHERS);
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), manifests);
}

#[test]
fn the_templates_of_the_crds_are_generated_from_them() {
    let crds = [
        ("linkerdconfigs", ""),
        ("linkerdtrusts", ""),
        ("linkerd/externalworkloads", LINKERDS),
        ("linkerd/servers", LINKERDS),
        ("linkerd/serviceprofiles", LINKERDS),
    ];
    for (name, condition) in crds {
        let path = format!("crd/{name}.yaml");
        let text = read(&path);
        assert!(!text.contains("{{") && !text.contains("\n---\n"), "{path}");
        let head = text.split_once("spec:\n").unwrap().0;
        assert!(!head.contains("labels:") && !head.contains("annotations:"), "{path}: {head}");
        let metadata = "  {{- include \"linkerd-operator-crds.metadata\" . | nindent 2 }}\nspec:\n";
        let text = text.replacen("spec:\n", metadata, 1);
        // The comment at the beginning says how the definition is generated, or where it comes from.
        let comment = format!("{{{{- /* Generated from {path}: UPDATE_CHARTS=1 cargo test --lib charts */ -}}}}\n");
        let text = match condition {
            "" => comment + &text,
            condition => format!("{comment}{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"),
        };
        assert_generated(&format!("{CRD_CHART}/templates/{name}.yaml"), &text);
    }
    assert_eq!(files("crd", "yaml").len(), crds.len() + 2, "crd has another file besides its kustomizations");
}

const LINKERDS: &str = ".Values.linkerdCRDs.install";

/// Their expressions contain the delimiter of templates, so they are files that a template includes.
#[test]
fn the_rules_and_the_dashboard_of_the_chart_are_copies() {
    for name in ["alerts", "recording_rules"] {
        let path = format!("config/prometheus/{name}.yaml");
        let rules = read(&path);
        let (_, spec) = rules.split_once("\nspec:\n").unwrap();
        let comment = format!("# Generated from {path}: UPDATE_CHARTS=1 cargo test --lib charts\n");
        assert_generated(&format!("{CHART}/files/{name}.yaml"), &format!("{comment}spec:\n{spec}"));
    }
    assert_generated(&format!("{CHART}/files/dashboard.json"), &read("config/prometheus/dashboard.json"));
}
