//! Restarts one workload, as `kubectl rollout restart` does.

use std::{process::ExitCode, str::FromStr};

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    api::linkerd_config::RolloutKind,
    cli::terminal::{note, write},
};

/// The annotation of a Pod template with which kubectl restarts a workload.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// A workload that a person names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadName {
    namespace: String,
    kind: RolloutKind,
    name: String,
}

pub(super) async fn restart(client: &Client, workload: &WorkloadName, params: &PatchParams) -> Result<ExitCode> {
    let WorkloadName { namespace, kind, name } = workload;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", kind.as_str()));
    let workloads: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let patch = json!({"spec": {"template": {"metadata": {"annotations": { RESTARTED_AT: now }}}}});
    let patched = workloads.patch(name, params, &Patch::Merge(&patch)).await;
    let patched = patched.with_context(|| format!("cannot restart {} {namespace}/{name}", kind.as_str()))?;
    if patched.data.pointer("/spec/paused") == Some(&json!(true)) {
        note(format_args!("{} {namespace}/{name} is paused: its Pods are replaced once it is resumed", kind.as_str()));
    }
    let dry_run = if params.dry_run { " (dry run)" } else { "" };
    let kind = kind.as_str().to_lowercase();
    write(&format!("{kind}/{name} in {namespace}: annotation {RESTARTED_AT} of its Pod template: {now}{dry_run}\n"))?;
    Ok(ExitCode::SUCCESS)
}

impl FromStr for WorkloadName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let &[namespace, kind, name] = &*parts else {
            return Err("write NAMESPACE/KIND/NAME, such as shop/deployment/web".to_owned());
        };
        let kind = match &*kind.to_ascii_lowercase() {
            "deployment" | "deployments" | "deploy" => RolloutKind::Deployment,
            "statefulset" | "statefulsets" | "sts" => RolloutKind::StatefulSet,
            "daemonset" | "daemonsets" | "ds" => RolloutKind::DaemonSet,
            other => return Err(format!("{other:?} is not a Deployment, StatefulSet or DaemonSet")),
        };
        if namespace.is_empty() || name.is_empty() {
            return Err("the namespace and the name must not be empty".to_owned());
        }
        Ok(Self { namespace: namespace.to_owned(), kind, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_named_by_namespace_kind_and_name() {
        let named = |text: &str| text.parse::<WorkloadName>().map(|it| (it.namespace, it.kind.as_str(), it.name));
        let expected = ("shop".to_owned(), "Deployment", "web".to_owned());
        for text in ["shop/deployment/web", "shop/Deployment/web", "shop/deploy/web"] {
            assert_eq!(named(text).unwrap(), expected);
        }
        assert_eq!(named("shop/sts/db").unwrap().1, "StatefulSet");
        for bad in ["web", "deployment/web", "shop/pod/web", "shop/deployment/", "a/b/c/d", ""] {
            assert!(named(bad).is_err(), "{bad:?}");
        }
    }
}
