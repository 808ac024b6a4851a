use std::{collections::BTreeSet, fs, path::Path};

use kube::CustomResourceExt;
use serde_json::json;

use super::*;
use crate::{api::schema::testing::document_fields, values::manifest};

const HEADER: &str = "# Generated from src/api/linkerd_config: UPDATE_CRD=1 cargo test --lib api::linkerd_config\n";
/// A resource with the fields that later schemas lacked. They still have an effect.
const OLDER: &str = r#"
global: {clusterNetworks: ["10.0.0.0/8"], disableIPv6: false}
proxy: {accessLog: apache, defaultInboundPolicy: deny, opaquePorts: ["9999"]}
injectorSync: {method: Delay, timeout: 10s}
rollout: {soak: 1s, interval: 1s, progressDeadline: 15s}
"#;
const SAMPLES: [&str; 5] = ["minimal", "observe", "full", "canary", "2020"];

#[test]
fn the_crd_is_the_one_that_the_types_generate() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crd/linkerdconfigs.yaml");
    // kubectl reads an unquoted Off as false.
    let generated = serde_yaml::to_string(&LinkerdConfig::crd()).unwrap().replace("- Off\n", "- 'Off'\n");
    let generated = format!("{HEADER}{generated}");
    if std::env::var_os("UPDATE_CRD").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == generated,
        "crd/linkerdconfigs.yaml is out of date; generate it: UPDATE_CRD=1 cargo test --lib api::linkerd_config"
    );
    let read_by_kubectl = manifest(&stored).unwrap();
    assert!(
        serde_json::to_value(LinkerdConfig::crd()).unwrap() == Value::Object(read_by_kubectl),
        "crd/linkerdconfigs.yaml has another meaning in YAML 1.1"
    );
}

#[test]
fn every_field_is_documented_and_every_field_of_the_spec_is_in_a_sample_or_an_older_resource() {
    let definition = serde_json::to_value(LinkerdConfig::crd()).unwrap();
    let properties = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    document_fields(&properties["status"], "status", &mut BTreeSet::new());
    let (mut declared, mut sampled) = (BTreeSet::new(), BTreeSet::new());
    document_fields(&properties["spec"], "spec", &mut declared);
    for sample in SAMPLES {
        paths(&read_sample(sample)["spec"], "spec", &mut sampled);
    }
    paths(&serde_yaml::from_str(OLDER).unwrap(), "spec", &mut sampled);
    let unsampled: Vec<_> = declared.difference(&sampled).collect();
    assert!(unsampled.is_empty(), "no sample sets {unsampled:?}");
}

#[test]
fn the_sample_of_2020_decodes_into_the_current_fields() {
    let config: LinkerdConfig = serde_json::from_value(read_sample("2020")).unwrap();
    let (global, proxy) = (&config.spec.global, &config.spec.proxy);
    assert_eq!((global.version.as_deref(), global.omit_webhook_side_effects), (Some("edge-19.12.3"), Some(false)));
    let identity = &global.identity_context;
    assert!(identity.trust_anchors_pem.as_deref().is_some_and(|pem| pem.ends_with("-----END CERTIFICATE-----\n")));
    assert_eq!(identity.issuance_life_time.as_deref(), Some("86400s"));
    assert_eq!(
        (proxy.proxy_uid, proxy.admin_port, proxy.disable_external_profiles),
        (Some(2102), Some(4191), Some(false))
    );
    assert_eq!(proxy.ignore_inbound_ports.as_deref(), Some(["8888".to_owned(), "9999".to_owned()].as_slice()));
    assert_eq!(proxy.proxy_init_image.name.as_deref(), Some("gcr.io/linkerd-io/proxy-init"));
    assert_eq!(proxy.resource.limits.cpu.as_ref().map(|cpu| cpu.0.as_str()), Some("1"));
}

#[test]
fn the_fields_of_an_older_resource_are_kept() {
    let older: Value = serde_yaml::from_str(OLDER).unwrap();
    let spec: LinkerdConfigSpec = serde_json::from_value(older.clone()).unwrap();
    let decoded = serde_json::to_value(&spec).unwrap();
    let (mut expected, mut found) = (BTreeSet::new(), BTreeSet::new());
    paths(&older, "spec", &mut expected);
    paths(&decoded, "spec", &mut found);
    assert!(found.is_superset(&expected), "{:?} are lost", expected.difference(&found));
    assert_eq!(decoded["proxy"]["defaultInboundPolicy"], "deny");
}

#[test]
fn a_stored_former_default_of_the_trusted_managers_means_the_present_one() {
    let drift = |managers: &[&str]| DriftSpec {
        trusted_managers: managers.iter().map(|&manager| manager.to_owned()).collect(),
        ..DriftSpec::default()
    };
    let former = ["helm", "helm-controller", "argocd-controller", "kustomize-controller", "kubectl-client-side-apply"];
    let present = [
        "helm*",
        "kustomize-controller",
        "argocd-*",
        "terraform-provider-helm*",
        "pulumi-*",
        "fleetagent",
        "fleet-agent",
        "kubectl-client-side-apply",
        "kubectl",
    ];
    assert_eq!(drift(&former).trusted_patterns(), present);
    assert_eq!(DriftSpec::default().trusted_patterns(), present);
    // A list that differs from the former default was declared.
    assert_eq!(drift(&former[..4]).trusted_patterns(), former[..4]);
    assert_eq!(drift(&[]).trusted_patterns(), [""; 0]);
}

#[test]
fn an_undeclared_field_is_not_managed() {
    let spec: LinkerdConfigSpec = serde_json::from_value(json!({})).unwrap();
    assert_eq!(spec, LinkerdConfigSpec::default());
    assert_eq!(spec.proxy, ProxySpec::default());
    assert_eq!(serde_json::to_value(&spec.proxy).unwrap(), json!({}));
    assert_eq!((spec.mode, spec.deletion_policy), (Mode::Enforce, DeletionPolicy::Retain));
    assert_eq!((spec.drift.scope, spec.drift.action), (DriftScope::Document, DriftAction::Revert));
    // The minimal sample sets only one value.
    let config: LinkerdConfig = serde_json::from_value(read_sample("minimal")).unwrap();
    let set = ProxySpec { access_log: Some("apache".to_owned()), ..ProxySpec::default() };
    assert_eq!(config.spec, LinkerdConfigSpec { proxy: set, ..spec });
    // An empty list is not the same as an absent one.
    let none: ProxySpec = serde_json::from_value(json!({"skipSubnets": []})).unwrap();
    assert_eq!(none.skip_subnets.as_deref(), Some([].as_slice()));
}

#[test]
fn every_shape_that_an_older_schema_accepted_decodes() {
    for (spec, status) in [
        (json!({}), json!(null)),
        // A resource without settings as the project of 2020 stored it, and its status.
        (
            json!({
                "global": {"version": ""},
                "proxy": {"adminPort": 4_294_967_295_u64, "proxyImage": {"name": "", "pullPolicy": ""}},
            }),
            json!({"injected": [{"kind": "Pod", "name": "web"}], "uninjected": []}),
        ),
        (json!({"proxy": {"resource": {"limits": {"cpu": 1}}, "additionalEnv": [{"name": "A"}]}}), json!({})),
        (
            json!({"proxy": {"logLevel": null}, "global": {"version": null}, "values": null}),
            json!({"drift": {}, "target": {}}),
        ),
        (
            json!({"injectorSync": {}, "rollout": {"policy": "Auto"}}),
            json!({"conditions": [], "revisions": {"base": null}}),
        ),
    ] {
        let object = json!({"apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
            "metadata": {"name": "mesh"}, "spec": spec, "status": status});
        serde_json::from_value::<LinkerdConfig>(object.clone()).unwrap_or_else(|error| panic!("{object}: {error}"));
    }
}

#[test]
fn unknown_fields_of_the_status_are_absent() {
    assert_eq!(serde_json::to_value(LinkerdConfigStatus::default()).unwrap(), json!({}));
}

fn read_sample(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("config/samples/linkerdconfig-{name}.yaml"));
    serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Adds the paths that an object sets.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        paths(value, &path, found);
        found.insert(path);
    }
    value.as_array().into_iter().flatten().for_each(|value| paths(value, path, found));
}
