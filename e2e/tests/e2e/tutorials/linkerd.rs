//! A stand-in for Linkerd and for its command line, which this repository does not have.
//!
//! * In: a version. Out: the objects of Linkerd on which the operator depends, and a script `linkerd` for the shell.
//! * Always: `linkerd upgrade` prints the objects of the current version, as Linkerd's prints its manifest; `linkerd
//!   check` prints its last line. Any other command fails.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use e2e::shipped::in_repository;
use serde::Deserialize;
use serde_json::{Value, json};

/// The arguments that the script knows.
pub(super) const COMMANDS: [&str; 3] = ["check", "upgrade", "upgrade --crds"];
/// The version in config/samples/linkerd.yaml.
pub(super) const CURRENT: &str = "edge-26.8.3";
/// The last version whose proxy is no native sidecar by default.
pub(super) const PREVIOUS: &str = "edge-25.10.7";
/// The Deployments that proxies depend on.
const COMPONENTS: [&str; 3] = ["destination", "identity", "proxy-injector"];

/// The manifest of a version.
pub(super) fn manifest(version: &str) -> Result<String> {
    let mut text = fs::read_to_string(in_repository("config/samples/linkerd.yaml"))?.replace(CURRENT, version);
    if version == PREVIOUS {
        text = text.replace("nativeSidecar: true", "nativeSidecar: false");
    }
    let documents = serde_yaml::Deserializer::from_str(&text).map(Value::deserialize);
    let mut items = documents.collect::<Result<Vec<_>, _>>().context("config/samples/linkerd.yaml")?;
    items.extend(COMPONENTS.map(|component| deployment(component, version)));
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())
}

fn deployment(component: &str, version: &str) -> Value {
    let name = format!("linkerd-{component}");
    let image = format!("cr.l5d.io/linkerd/controller:{version}");
    let pod = json!({"app": name, "linkerd.io/control-plane-component": component});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "linkerd",
            "labels": {"linkerd.io/control-plane-component": component, "app.kubernetes.io/version": version}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": pod, "annotations": {"linkerd.io/inject": "disabled"}},
            "spec": {"serviceAccountName": "default", "containers": [{"name": component, "image": image}]},
        }},
    })
}

/// The script, with what it prints in this directory.
pub(super) fn script(directory: &Path) -> Result<String> {
    let mut crds = String::new();
    for file in fs::read_dir(in_repository("crd/linkerd"))? {
        let file = file?;
        if file.file_name() != "kustomization.yaml" {
            crds += &format!("---\n{}\n", fs::read_to_string(file.path())?);
        }
    }
    let [crds_path, manifest_path] = ["linkerd-crds.yaml", "linkerd.json"].map(|name| directory.join(name));
    fs::write(&crds_path, crds)?;
    fs::write(&manifest_path, manifest(CURRENT)?)?;
    Ok(format!(
        "case \"$*\" in\n\
         'upgrade --crds') cat '{}' ;;\n\
         upgrade) cat '{}' ;;\n\
         check) echo 'Status check results are √' ;;\n\
         *) echo \"unknown to the stand-in: linkerd $*\" >&2; exit 1 ;;\n\
         esac\n",
        crds_path.display(),
        manifest_path.display()
    ))
}
