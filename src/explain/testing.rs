//! A LinkerdConfig, its ConfigMap and its base, for tests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ExplainInput;
use crate::{
    api,
    cluster::{
        Problems, Projected,
        kinds::{config_map::ConfigMap, linkerd_config::LinkerdConfig},
    },
    linkerd_config::documents::base::Base,
    values::Document,
};

/// The values that the chart renders and that Linkerd requires.
pub(crate) const INSTALLED: &str = include_str!("../values/testdata/installed.yaml");

pub(crate) fn config(name: &str, spec: &Value) -> Arc<LinkerdConfig> {
    let object: api::LinkerdConfig = serde_json::from_value(json!({
        "apiVersion": "config.linkerd.io/v1alpha1", "kind": "LinkerdConfig",
        "metadata": {"name": name, "uid": name}, "spec": spec, "status": {"revisions": {"base": 1}},
    }))
    .unwrap();
    Arc::new(LinkerdConfig::project(object, &mut Problems::default()))
}

pub(crate) fn config_map(manager: &str, values: &str) -> Arc<ConfigMap> {
    let object = serde_json::from_value(json!({
        "metadata": {"name": "linkerd-config", "namespace": "linkerd", "managedFields": [
            {"manager": manager, "operation": "Update", "fieldsV1": {"f:data": {"f:values": {}}}},
        ]},
        "data": {"values": values},
    }));
    Arc::new(ConfigMap::project(object.unwrap(), &mut Problems::default()))
}

/// A resource that is in effect, with the installed document.
pub(crate) fn input(spec: &Value) -> ExplainInput {
    let config = config("mesh", spec);
    ExplainInput {
        winner: Some(Arc::clone(&config)),
        config,
        applied: true,
        live: Some(config_map("helm", &with_injection_hash(&Document::parse(INSTALLED).unwrap()))),
        base: Ok(Some(Base::new(1, INSTALLED, None).unwrap())),
        bundle: None,
        trust: None,
        predecessor: None,
        workloads: None,
        now: "2026-11-25T12:00:00Z".parse().unwrap(),
    }
}

/// The document after the operator has written it.
pub(crate) fn with_injection_hash(document: &Document) -> String {
    document.with_injection_hash(&document.injection_hash().to_string()).to_yaml()
}
