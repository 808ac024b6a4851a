//! The rules for values, against recorded answers of Linkerd's injector about every field. `make e2e-linkerd` shows
//! whether an injector still answers so, and records its answers.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Document, Path, Problem, manifest, model::VALUES, testing::fixture};
use crate::go::types::GoType;

const RECORDED: &str = include_str!("testdata/injector-answers.json");
/// The end of the reason for a value of a wrong type.
const OF_TYPES: &str = "otherwise the injector denies every Pod";

#[derive(Deserialize)]
struct Recording {
    /// As YAML.
    values: Vec<String>,
    classes: Vec<Class>,
}

/// The fields that refuse the same values. In a path, `[]` is the item of a list, and `*` any key.
#[derive(Deserialize)]
struct Class {
    refuses: Vec<String>,
    fields: Vec<String>,
}

/// Returns the value of each field in each case, and whether the injector refused it.
fn cases() -> Vec<(String, String, bool)> {
    let Recording { values, classes } = serde_json::from_str(RECORDED).unwrap();
    let of_field = |field: &String, refuses: &[String]| -> Vec<_> {
        values.iter().map(|value| (field.clone(), value.clone(), refuses.contains(value))).collect()
    };
    classes.iter().flat_map(|class| class.fields.iter().flat_map(|field| of_field(field, &class.refuses))).collect()
}

/// Returns the problems of the installed document with this value; `None` if it cannot be read.
fn problems(document: &Document, field: &str, yaml: &str) -> Option<Vec<Problem>> {
    let value = manifest(&format!("value: {yaml}\n")).ok()?.remove("value")?;
    let keys: Vec<&str> = field.split('.').map(|key| if key == "*" { "any" } else { key }).collect();
    let list = keys.iter().position(|key| *key == "[]").unwrap_or(keys.len());
    let (above, below) = keys.split_at(list);
    let mut document = document.clone();
    document.set(&Path::from(above), nested(below, value));
    Some(document.problems())
}

/// Returns lists and maps with the value at this path. A variable of the environment gets a name.
fn nested(path: &[&str], value: Value) -> Value {
    match path {
        [] => value,
        ["[]"] => json!([value]),
        ["[]", rest @ ..] => {
            let mut item = nested(rest, value);
            if let Some(map) = item.as_object_mut() {
                map.entry("name").or_insert(json!("A"));
            }
            json!([item])
        }
        [key, rest @ ..] => json!({*key: nested(rest, value)}),
    }
}

fn paths(above: &str, holds: &GoType, found: &mut BTreeSet<String>) {
    let path = |key: &str| if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") };
    let mut add = |key: &str, holds: &GoType| {
        found.insert(path(key));
        paths(&path(key), holds, found);
    };
    match holds {
        GoType::Struct(fields) => fields.iter().for_each(|field| add(field.name, &field.holds)),
        GoType::Embedded(inner) => paths(above, inner, found),
        GoType::List(GoType::Any) | GoType::Map(GoType::Any) => {}
        GoType::List(item) => add("[]", item),
        GoType::Map(item) => add("*", item),
        _ => {}
    }
}

#[test]
fn every_field_of_the_mirror_is_recorded() {
    let mut mirrored = BTreeSet::new();
    paths("", &VALUES, &mut mirrored);
    let recorded: BTreeSet<String> = cases().into_iter().map(|(field, ..)| field).collect();
    assert_eq!(mirrored.difference(&recorded).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(recorded.difference(&mirrored).collect::<Vec<_>>(), [""; 0]);
}

/// The fields are refused by this injector and accepted by the rules.
fn is_not_checked(field: &str, value: &str) -> bool {
    // The injectors of earlier releases take a document without it. No patch may remove it.
    (field, value) == ("proxyInit.iptablesMode", "null")
}

/// The fields are unknown to this injector. It ignores them, other releases do not.
fn is_of_other_releases(field: &str) -> bool {
    let other = [
        "controlPlaneTracing",
        "controlPlaneTracingNamespace",
        "networkValidator.enableSecurityContext",
        "policyController.image",
        "proxy.runtime.workers.maximumByRatioOfAvailableCPUs",
        "proxyInit.image",
    ];
    other.iter().any(|other| field.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// The fields with values that this injector takes, and with which the API server rejects the Pods, or a container does
/// not start, or a key becomes public.
const STRICTER: [&str; 121] = [
    "clusterDomain",
    "debugContainer",
    "debugContainer.image",
    "debugContainer.image.name",
    "debugContainer.image.pullPolicy",
    "debugContainer.image.version",
    "identity.issuer.clockSkewAllowance",
    "identity.issuer.issuanceLifetime",
    "identity.issuer.tls.keyPEM",
    "identityTrustDomain",
    "imagePullPolicy",
    "linkerdVersion",
    "networkValidator.connectAddr",
    "networkValidator.listenAddr",
    "networkValidator.logFormat",
    "networkValidator.logLevel",
    "networkValidator.timeout",
    "policyValidator.keyPEM",
    "profileValidator.keyPEM",
    "proxy.additionalEnv",
    "proxy.additionalEnv.[]",
    "proxy.additionalEnv.[].name",
    "proxy.additionalEnv.[].valueFrom",
    "proxy.additionalEnv.[].valueFrom.configMapKeyRef",
    "proxy.additionalEnv.[].valueFrom.configMapKeyRef.key",
    "proxy.additionalEnv.[].valueFrom.configMapKeyRef.name",
    "proxy.additionalEnv.[].valueFrom.configMapKeyRef.optional",
    "proxy.additionalEnv.[].valueFrom.fieldRef",
    "proxy.additionalEnv.[].valueFrom.fieldRef.apiVersion",
    "proxy.additionalEnv.[].valueFrom.fieldRef.fieldPath",
    "proxy.additionalEnv.[].valueFrom.fileKeyRef",
    "proxy.additionalEnv.[].valueFrom.fileKeyRef.key",
    "proxy.additionalEnv.[].valueFrom.fileKeyRef.optional",
    "proxy.additionalEnv.[].valueFrom.fileKeyRef.path",
    "proxy.additionalEnv.[].valueFrom.fileKeyRef.volumeName",
    "proxy.additionalEnv.[].valueFrom.resourceFieldRef",
    "proxy.additionalEnv.[].valueFrom.resourceFieldRef.containerName",
    "proxy.additionalEnv.[].valueFrom.resourceFieldRef.divisor",
    "proxy.additionalEnv.[].valueFrom.resourceFieldRef.resource",
    "proxy.additionalEnv.[].valueFrom.secretKeyRef",
    "proxy.additionalEnv.[].valueFrom.secretKeyRef.key",
    "proxy.additionalEnv.[].valueFrom.secretKeyRef.name",
    "proxy.additionalEnv.[].valueFrom.secretKeyRef.optional",
    "proxy.control.streams.idleTimeout",
    "proxy.control.streams.initialTimeout",
    "proxy.control.streams.lifetime",
    "proxy.cores",
    "proxy.defaultInboundPolicy",
    "proxy.experimentalEnv",
    "proxy.experimentalEnv.[]",
    "proxy.experimentalEnv.[].name",
    "proxy.experimentalEnv.[].valueFrom",
    "proxy.experimentalEnv.[].valueFrom.configMapKeyRef",
    "proxy.experimentalEnv.[].valueFrom.configMapKeyRef.key",
    "proxy.experimentalEnv.[].valueFrom.configMapKeyRef.name",
    "proxy.experimentalEnv.[].valueFrom.configMapKeyRef.optional",
    "proxy.experimentalEnv.[].valueFrom.fieldRef",
    "proxy.experimentalEnv.[].valueFrom.fieldRef.apiVersion",
    "proxy.experimentalEnv.[].valueFrom.fieldRef.fieldPath",
    "proxy.experimentalEnv.[].valueFrom.fileKeyRef",
    "proxy.experimentalEnv.[].valueFrom.fileKeyRef.key",
    "proxy.experimentalEnv.[].valueFrom.fileKeyRef.optional",
    "proxy.experimentalEnv.[].valueFrom.fileKeyRef.path",
    "proxy.experimentalEnv.[].valueFrom.fileKeyRef.volumeName",
    "proxy.experimentalEnv.[].valueFrom.resourceFieldRef",
    "proxy.experimentalEnv.[].valueFrom.resourceFieldRef.containerName",
    "proxy.experimentalEnv.[].valueFrom.resourceFieldRef.divisor",
    "proxy.experimentalEnv.[].valueFrom.resourceFieldRef.resource",
    "proxy.experimentalEnv.[].valueFrom.secretKeyRef",
    "proxy.experimentalEnv.[].valueFrom.secretKeyRef.key",
    "proxy.experimentalEnv.[].valueFrom.secretKeyRef.name",
    "proxy.experimentalEnv.[].valueFrom.secretKeyRef.optional",
    "proxy.gid",
    "proxy.image",
    "proxy.image.name",
    "proxy.image.pullPolicy",
    "proxy.image.version",
    "proxy.inboundConnectTimeout",
    "proxy.inboundDiscoveryCacheUnusedTimeout",
    "proxy.livenessProbe.initialDelaySeconds",
    "proxy.livenessProbe.timeoutSeconds",
    "proxy.opaquePorts",
    "proxy.outboundConnectTimeout",
    "proxy.outboundDiscoveryCacheUnusedTimeout",
    "proxy.ports",
    "proxy.ports.admin",
    "proxy.ports.control",
    "proxy.ports.inbound",
    "proxy.ports.outbound",
    "proxy.readinessProbe.initialDelaySeconds",
    "proxy.readinessProbe.timeoutSeconds",
    "proxy.requireIdentityOnInboundPorts",
    "proxy.resources.cpu.limit",
    "proxy.resources.cpu.request",
    "proxy.resources.ephemeral-storage.limit",
    "proxy.resources.ephemeral-storage.request",
    "proxy.resources.memory.limit",
    "proxy.resources.memory.request",
    "proxy.runtime.workers.maximum",
    "proxy.runtime.workers.maximumCPURatio",
    "proxy.runtime.workers.minimum",
    "proxy.saMountPath",
    "proxy.saMountPath.mountPath",
    "proxy.saMountPath.name",
    "proxy.saMountPath.readOnly",
    "proxy.shutdownGracePeriod",
    "proxy.startupProbe.failureThreshold",
    "proxy.startupProbe.initialDelaySeconds",
    "proxy.startupProbe.periodSeconds",
    "proxy.uid",
    "proxyInit.ignoreInboundPorts",
    "proxyInit.ignoreOutboundPorts",
    "proxyInit.kubeAPIServerPorts",
    "proxyInit.logFormat",
    "proxyInit.logLevel",
    "proxyInit.runAsGroup",
    "proxyInit.runAsUser",
    "proxyInit.skipSubnets",
    "proxyInit.xtMountPath",
    "proxyInit.xtMountPath.mountPath",
    "proxyInjector.keyPEM",
];

/// The numbers that parsers of YAML read differently.
const UNREADABLE: [&str; 2] = ["010", ".inf"];

#[test]
fn the_rules_agree_with_the_injector_except_where_they_are_stricter() {
    let document = fixture();
    let (mut missed, mut types, mut stricter) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (field, value, is_refused) in cases() {
        let Some(problems) = problems(&document, &field, &value) else {
            assert!(UNREADABLE.contains(&value.as_str()), "{field}: {value} cannot be read");
            continue;
        };
        if is_refused && problems.is_empty() && !is_not_checked(&field, &value) {
            missed.push((field, value));
        } else if !is_refused && problems.iter().any(|problem| problem.reason.ends_with(OF_TYPES)) {
            types.extend(Some((field, value)).filter(|(field, _)| !is_of_other_releases(field)));
        } else if !is_refused && !problems.is_empty() {
            stricter.insert(field);
        }
    }
    assert_eq!(missed, [], "the injector refuses these values, and no rule does");
    assert_eq!(types, [], "the injector takes these values, and they are said to have a wrong type");
    assert_eq!(stricter.iter().map(String::as_str).collect::<Vec<_>>(), STRICTER);
}
