//! Applies the manifests of the repository as a user does.
//!
//! * In: a folder with a `kustomization.yaml`. Out: its objects, applied or returned.
//! * Always: tests use the output of kustomize, not the files of the folder.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::control_plane::ControlPlane;

/// The namespace and the ServiceAccount of the operator in the manifests.
pub const OPERATOR_NAMESPACE: &str = "linkerd-operator-system";
pub const OPERATOR_ACCOUNT: &str = "linkerd-operator";

/// The ClusterRoles bound to that ServiceAccount.
pub const CLUSTER_ROLES: [&str; 6] = [
    "linkerd-operator-destination",
    "linkerd-operator-events",
    "linkerd-operator-external-workload",
    "linkerd-operator-linkerd-config",
    "linkerd-operator-rollout",
    "linkerd-operator-validation",
];

/// Removes the variables of the make that runs the tests, so that they do not apply to a make that a test runs.
pub fn remove_makes_variables(command: &mut Command) {
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        command.env_remove(variable);
    }
}

static APPLIED: AtomicUsize = AtomicUsize::new(0);

impl ControlPlane {
    /// The output of kustomize for a folder of the repository.
    pub async fn shipped(&self, folder: &str) -> Result<Vec<Value>> {
        self.kustomize(&in_repository(folder)).await
    }

    /// The output of kustomize for an overlay of a folder of the repository, which `lines` changes. Paths in `lines` begin
    /// with `../..`, the repository.
    pub async fn shipped_with(&self, folder: &str, lines: &str) -> Result<Vec<Value>> {
        let overlay = tempfile::Builder::new().prefix("overlay-").tempdir_in(self.directory())?;
        let repository = path_to_repository(overlay.path())?;
        let text = format!("resources: [../../{folder}]\n{lines}\n").replace("../..", &repository);
        tokio::fs::write(overlay.path().join("kustomization.yaml"), text).await?;
        self.kustomize(&overlay.path().display().to_string()).await
    }

    async fn kustomize(&self, folder: &str) -> Result<Vec<Value>> {
        let text = self.kubectl(&["kustomize", folder]).await?;
        let documents = serde_yaml::Deserializer::from_str(&text).map(Value::deserialize);
        documents.collect::<Result<_, _>>().with_context(|| format!("kustomize printed invalid YAML for {folder}"))
    }

    /// Applies a folder of the repository.
    pub async fn apply_folder(&self, folder: &str) -> Result<()> {
        self.kubectl(&["apply", "--server-side", "-k", &in_repository(folder)]).await.map(drop)
    }

    pub async fn apply(&self, objects: &[Value]) -> Result<()> {
        let number = APPLIED.fetch_add(1, Ordering::Relaxed);
        let file = self.directory().join(format!("applied-{number}.json"));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        tokio::fs::write(&file, list.to_string()).await?;
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file.display().to_string()]).await?;
        Ok(())
    }

    /// Applies the objects of `make deploy` to a cluster that has the namespace `linkerd`, except the Deployment: the
    /// manager is a child process of the test. Only the given ClusterRoles are bound.
    pub async fn deploy_without_manager(&self, bound: &[&str]) -> Result<()> {
        let mut objects = self.shipped("config/default").await?;
        objects.retain(|object| match object["kind"].as_str() {
            Some("Deployment") => false,
            Some("ClusterRoleBinding") => bound.iter().any(|name| is_named(object, name)),
            _ => true,
        });
        self.apply(&objects).await?;
        self.apply_folder("config/control-plane").await
    }

    /// A token of the operator's ServiceAccount, which must exist.
    pub async fn operator_token(&self) -> Result<String> {
        self.service_account_token(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT).await
    }
}

/// The shipped admission policies that limit the operator, for an operator in the namespace of Linkerd's control plane.
/// Their names contain the namespace, so that installations in one cluster have separate policies. The policy that
/// keeps other users from writing the operator's annotations is not included, because it would apply to all of them.
pub fn policies_for(namespace: &str, policies: Vec<Value>) -> Result<Vec<Value>> {
    let mut limits = Vec::new();
    for policy in policies {
        let name = policy.pointer("/metadata/name").and_then(Value::as_str).context("a policy without a name")?;
        if name.starts_with("linkerd-operator-rollout-annotations") {
            continue;
        }
        let suffixed = format!("{name}-{namespace}");
        let quoted = |namespace: &str| json!(format!("\"{namespace}\"")).to_string();
        let text = policy.to_string().replace(OPERATOR_NAMESPACE, namespace);
        let mut policy: Value = serde_json::from_str(&text.replace(&quoted("linkerd"), &quoted(namespace)))?;
        for field in ["/metadata/name", "/spec/policyName"] {
            if let Some(value) = policy.pointer_mut(field) {
                *value = json!(suffixed);
            }
        }
        limits.push(policy);
    }
    Ok(limits)
}

/// Returns whether the object has this name.
pub fn is_named(object: &Value, name: &str) -> bool {
    object.pointer("/metadata/name").is_some_and(|it| it == name)
}

/// The relative path from a directory to the repository, because a kustomization has no absolute paths.
pub fn path_to_repository(directory: &Path) -> Result<String> {
    let real = |path: &Path| path.canonicalize().with_context(|| format!("resolving {}", path.display()));
    let (directory, repository) = (real(directory)?, real(Path::new(&in_repository("")))?);
    let up = "../".repeat(directory.components().count().saturating_sub(1));
    Ok(format!("{up}{}", repository.strip_prefix("/")?.display()))
}

/// The path of a file or folder of the repository.
pub fn in_repository(folder: &str) -> String {
    format!("{}/../{folder}", env!("CARGO_MANIFEST_DIR"))
}
