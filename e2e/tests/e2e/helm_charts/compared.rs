//! The charts and the kustomizations contain the same objects, for the default values and for each component.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use e2e::{ControlPlane, shipped::OPERATOR_NAMESPACE};
use serde_json::{Value, json};

use super::{CRDS, Helm, IMAGE, OPERATOR};
use crate::manifests::id;

/// Labels of an installer.
const LABELS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"];
/// The fields whose white space has no meaning.
const FOLDED: [&str; 3] = ["description", "expression", "message"];
/// Helm does not create the namespace, and the CRDs are in the other chart.
const NOT_IN_THE_CHART: [&str; 3] = [
    "CustomResourceDefinition//linkerdconfigs.config.linkerd.io",
    "CustomResourceDefinition//linkerdtrusts.config.linkerd.io",
    "Namespace//linkerd-operator-system",
];
/// Only the webhook of the validation uses this role. The chart has it only if the job is enabled.
const OF_VALIDATION: [&str; 2] =
    ["ClusterRole//linkerd-operator-validation", "ClusterRoleBinding//linkerd-operator-validation"];

struct ComparedCase {
    /// Components for an overlay of `config/default`.
    default: &'static [&'static str],
    /// Components for an overlay of `config/control-plane`.
    control_plane: &'static [&'static str],
    values: &'static [&'static str],
}

const fn case(
    default: &'static [&'static str],
    control_plane: &'static [&'static str],
    values: &'static [&'static str],
) -> ComparedCase {
    ComparedCase { default, control_plane, values }
}

const CASES: &[ComparedCase] = &[
    case(&[], &[], &[]),
    case(&["webhook-server", "webhooks"], &[], &["jobs.validation.enabled=true"]),
    case(
        &["webhook-server", "proxy-injector"],
        &["proxy-injector/control-plane"],
        &["jobs.proxyInjector.enabled=true"],
    ),
    case(
        &["separate-destination", "webhook-server", "proxy-injector", "webhooks"],
        &["proxy-injector/control-plane"],
        &["jobs.destination.separate=true", "jobs.proxyInjector.enabled=true", "jobs.validation.enabled=true"],
    ),
    case(&["separate-destination"], &[], &["jobs.destination.separate=true"]),
    case(
        &["separate-external-workloads"],
        &["separate-external-workloads/control-plane"],
        &["jobs.externalWorkload.separate=true"],
    ),
    case(
        &["separate-destination", "separate-external-workloads", "multicluster"],
        &[
            "separate-external-workloads/control-plane",
            "multicluster/control-plane",
            "separate-destination/control-plane",
        ],
        &[
            "jobs.destination.separate=true",
            "jobs.externalWorkload.separate=true",
            "jobs.destination.multicluster=true",
        ],
    ),
    // The component binds its role to the accounts of all Deployments, and the chart to those that exist.
    case(
        &["separate-destination", "separate-external-workloads", "issuer-writer", "metrics-authentication"],
        &["separate-external-workloads/control-plane", "issuer-writer/control-plane"],
        &[
            "jobs.destination.separate=true",
            "jobs.externalWorkload.separate=true",
            "jobs.issuerWriter.enabled=true",
            "metrics.authentication=true",
        ],
    ),
    case(&["multicluster"], &["multicluster/control-plane"], &["jobs.destination.multicluster=true"]),
    case(&[], &["identity"], &["jobs.identity.enabled=true"]),
    case(&[], &["identity", "identity/watch"], &["jobs.identity.enabled=true", "jobs.identity.watch=true"]),
    case(&["without-external-workloads"], &["without-external-workloads"], &["jobs.externalWorkload.enabled=false"]),
    case(&["without-linkerd-config"], &["without-linkerd-config"], &["jobs.linkerdConfig.enabled=false"]),
    case(&["without-rollouts"], &[], &["jobs.linkerdConfig.rollouts.enabled=false"]),
    case(&[], &["without-nudge"], &["jobs.linkerdConfig.nudge=false"]),
    case(&[], &["trust-anchors"], &["jobs.linkerdConfig.trustAnchors=true"]),
    case(&["issuer-writer"], &["issuer-writer/control-plane"], &["jobs.issuerWriter.enabled=true"]),
];

// === impl ComparedCase ===

impl ComparedCase {
    /// The objects that only kustomize has.
    fn only_in_kustomize(&self) -> BTreeSet<String> {
        let validates = self.values.contains(&"jobs.validation.enabled=true");
        let of_validation = OF_VALIDATION.iter().filter(|_| !validates);
        NOT_IN_THE_CHART.iter().chain(of_validation).map(|id| (*id).to_owned()).collect()
    }
}

fn components(names: &[&str]) -> String {
    let paths: Vec<_> = names.iter().map(|name| format!("../../config/components/{name}")).collect();
    format!("components: [{}]", paths.join(", "))
}

/// The objects by kind, namespace and name, without the labels of an installer and the order of lists whose order has no
/// meaning.
fn comparable(objects: Vec<Value>) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    // kustomize has no hooks.
    let is_hook = |object: &Value| object["metadata"]["annotations"]["helm.sh/hook"].is_string();
    for mut object in objects.into_iter().filter(|object| !is_hook(object)) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        // kustomize gives these cluster-scoped objects a namespace, which the API server ignores.
        if text(&object["kind"]).starts_with("ValidatingAdmissionPolicy") {
            object["metadata"].as_object_mut().context("metadata")?.remove("namespace");
        }
        let metadata = &object["metadata"];
        let id = format!("{}/{}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
        for path in ["/metadata/labels", "/spec/template/metadata/labels"] {
            if let Some(labels) = object.pointer_mut(path).and_then(Value::as_object_mut) {
                labels.retain(|key, _| !LABELS.contains(&key.as_str()));
            }
        }
        for (path, key) in [
            ("/spec/template/spec/containers/0/env", "name"),
            ("/spec/template/spec/containers/0/ports", "name"),
            ("/subjects", "name"),
        ] {
            if let Some(list) = object.pointer_mut(path).and_then(Value::as_array_mut) {
                list.sort_by_key(|item| item[key].to_string());
            }
        }
        normalize(&mut object);
        ensure!(all.insert(id.clone(), object).is_none(), "{id} occurs twice");
    }
    Ok(all)
}

/// Removes differences of notation: kustomize adds empty lines to folded texts, such as expressions of CEL, and writes
/// 65535.0 as 65535.
fn normalize(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                match field {
                    Value::String(text) if FOLDED.contains(&key.as_str()) => {
                        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    }
                    field => normalize(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Number(number) => *value = json!(number.as_f64()),
        _ => {}
    }
}

fn assert_equal(helm: &BTreeMap<String, Value>, kustomize: &BTreeMap<String, Value>, what: &str) -> Result<()> {
    let keys = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(helm), keys(kustomize), "{what}");
    for (id, object) in helm {
        let other = kustomize.get(id).context("an object")?;
        ensure!(object == other, "{what}: {id} differs\nHelm:      {object}\nkustomize: {other}");
    }
    Ok(())
}

async fn kustomized(control_plane: &ControlPlane, case: &ComparedCase) -> Result<BTreeMap<String, Value>> {
    let mut objects = control_plane.shipped_with("config/default", &components(case.default)).await?;
    objects.extend(control_plane.shipped_with("config/control-plane", &components(case.control_plane)).await?);
    let mut objects = comparable(objects)?;
    for id in case.only_in_kustomize() {
        ensure!(objects.remove(&id).is_some(), "kustomize has no {id}");
    }
    // The component has no Deployment of its own to select. Without discovery the variable has no effect.
    for deployment in objects.values_mut().filter(|object| object["kind"] == "Deployment") {
        let env = deployment.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut);
        let env = env.context("env")?;
        if env.contains(&json!({"name": "LINKERD_OPERATOR_ENABLE_DESTINATION", "value": "false"})) {
            env.retain(|variable| variable["name"] != "LINKERD_OPERATOR_ENABLE_MULTICLUSTER");
        }
    }
    Ok(objects)
}

#[tokio::test]
async fn the_chart_has_the_objects_of_kustomize_for_the_values_that_correspond_to_components() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let helm = Helm::new("helm4", control_plane).await?;
    for case in CASES {
        let what = format!("{:?} {:?} and {:?}", case.default, case.control_plane, case.values);
        let values = [&IMAGE[..], case.values].concat();
        let rendered = helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?;
        assert_equal(&comparable(rendered)?, &kustomized(control_plane, case).await?, &what)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_chart_has_the_monitoring_of_kustomize() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let helm = Helm::new("helm4", control_plane).await?;
    const SERVICE_MONITOR: &str = "service-monitor";
    const AUTHENTICATION: &str = "metrics-authentication";
    const IDENTITY: &str = "identity";
    let (pod, service) = ("podMonitor.enabled=true", "serviceMonitor.enabled=true");
    let (authentication, identity) = ("metrics.authentication=true", "jobs.identity.enabled=true");
    for (names, values, count) in [
        (&[][..], &[pod][..], 4),
        (&[SERVICE_MONITOR], &[service], 5),
        (&[AUTHENTICATION], &[pod, authentication], 7),
        (&[SERVICE_MONITOR, AUTHENTICATION], &[service, authentication], 8),
        (&[IDENTITY], &[pod, identity], 5),
        (&[IDENTITY, SERVICE_MONITOR], &[service, identity], 6),
        (&[IDENTITY, AUTHENTICATION], &[pod, identity, authentication], 8),
    ] {
        let paths: Vec<_> = names.iter().map(|name| format!("../../config/prometheus/{name}")).collect();
        let component = format!("components: [{}]", paths.join(", "));
        let objects = control_plane.shipped_with("config/prometheus", &component).await?;
        let ids: BTreeSet<_> = objects.iter().map(id).collect();
        assert_eq!(ids.len(), count, "{ids:?}");
        let values = [&IMAGE[..], &["prometheusRule.enabled=true", "dashboard.enabled=true"], values].concat();
        let mut rendered = helm.template(OPERATOR, OPERATOR_NAMESPACE, &values).await?;
        let is_monitor = |object: &Value| object["kind"].to_string().ends_with("Monitor\"");
        rendered.retain(|object| ids.contains(&id(object)) || is_monitor(object));
        assert_equal(&comparable(rendered)?, &comparable(objects)?, &component)?;
    }
    Ok(())
}

/// In a namespace of another name, beside a control plane in a namespace of another name.
#[tokio::test]
async fn the_chart_has_the_objects_of_the_overlays_for_other_namespaces() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let helm = Helm::new("helm4", control_plane).await?;
    // The lines that docs/src/install/kustomize.md gives, and the variable.
    let lines = r#"
namespace: mesh-operator
replacements:
  - source: {kind: ServiceAccount, name: linkerd-operator, fieldPath: metadata.namespace}
    targets:
      - select: {kind: ValidatingAdmissionPolicy}
        fieldPaths: ["spec.matchConditions.[name=account].expression"]
        options: {delimiter: ":", index: 2}
patches:
  - target: {kind: ValidatingAdmissionPolicy, name: linkerd-operator-(workloads|evictions)}
    patch: |-
      - {op: test, path: /spec/variables/0/name, value: linkerd}
      - {op: replace, path: /spec/variables/0/expression, value: '"mesh"'}
  - target: {kind: Deployment}
    patch: |-
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: LINKERD_OPERATOR_CONTROLLER_NAMESPACE, value: mesh}}
"#;
    let page = tokio::fs::read_to_string(e2e::shipped::in_repository("docs/src/install/kustomize.md")).await?;
    let (replacements, patches) = lines.split_once("patches:").context("no patches")?;
    let (of_policies, _) = patches.split_once("  - target: {kind: Deployment}").context("no patch of Deployments")?;
    ensure!(page.contains(replacements.trim()) && page.contains(of_policies.trim()), "the page has other lines");
    let linkerds = "
namespace: mesh
patches:
  - target: {kind: RoleBinding}
    patch: |-
      - {op: replace, path: /subjects/0/namespace, value: mesh-operator}
";
    let mut objects = control_plane.shipped_with("config/default", lines).await?;
    objects.extend(control_plane.shipped_with("config/control-plane", linkerds).await?);
    let mut objects = comparable(objects)?;
    for id in ["Namespace//mesh-operator", NOT_IN_THE_CHART[0], NOT_IN_THE_CHART[1], OF_VALIDATION[0], OF_VALIDATION[1]]
    {
        ensure!(objects.remove(id).is_some(), "kustomize has no {id}");
    }
    let values = [&IMAGE[..], &["controlPlane.namespace=mesh"]].concat();
    let rendered = helm.template(OPERATOR, "mesh-operator", &values).await?;
    assert_equal(&comparable(rendered)?, &objects, "mesh-operator")?;

    // With everything, no object is in a namespace of the kustomizations, and no text names one.
    let all = [&values[..], &super::rendered::EVERYTHING].concat();
    let mut everything = helm.template(OPERATOR, "mesh-operator", &all).await?;
    // The dashboard has a tag of this name.
    everything.retain(|object| object["kind"] != "ConfigMap");
    let text = json!(everything).to_string();
    for name in ["linkerd-operator-system", r#""namespace":"linkerd""#, r#"\"linkerd\""#, r#","linkerd"]"#] {
        let found = text.split_once(name).map(|(before, _)| before.chars().rev().take(200).collect::<Vec<_>>());
        ensure!(found.is_none(), "{name} occurs after {:?}", found.map(|found| found.iter().rev().collect::<String>()));
    }
    Ok(())
}

#[tokio::test]
async fn the_chart_of_the_crds_has_the_definitions_and_keeps_them() -> Result<()> {
    let control_plane = e2e::shared().await?;
    let helm = Helm::new("helm4", control_plane).await?;
    let own = control_plane.shipped("crd").await?;
    let linkerds = control_plane.shipped("crd/linkerd").await?;
    assert_eq!((own.len(), linkerds.len()), (2, 3));
    for (value, definitions) in
        [("linkerdCRDs.install=false", own.clone()), ("linkerdCRDs.install=true", [own, linkerds].concat())]
    {
        let mut rendered = helm.template(CRDS, OPERATOR_NAMESPACE, &[value]).await?;
        for definition in &mut rendered {
            assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        }
        assert_eq!(rendered.len(), definitions.len(), "{value}");
        let (rendered, definitions) = (comparable(rendered)?, comparable(definitions)?);
        for (id, definition) in definitions {
            let spec = &rendered.get(&id).with_context(|| format!("no {id}"))?["spec"];
            let (helm, kustomize) =
                (serde_json::to_string_pretty(spec)?, serde_json::to_string_pretty(&definition["spec"])?);
            let other = helm.lines().zip(kustomize.lines()).find(|(one, other)| one != other);
            ensure!(helm == kustomize, "{id} differs: {other:?}");
        }
    }
    Ok(())
}
