//! A control plane for one test, with the CRDs, the namespaces and the nodes that the test needs.
//!
//! ```text
//!   Rig::linkerd().crds("crd").start() ──▶ Rig: ControlPlane, Client ◀── ManagerOptions::new(&[…]).ready(&rig)
//! ```
//!
//! * Out: a [`Rig`], which dereferences to its [`ControlPlane`]. Additions of one test belong in the file of that test.
//! * Always: everything is in the cluster when `start` returns, and ends with the rig.

use std::ops::{Deref, DerefMut};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use crate::{
    control_plane::{ControlPlane, Options},
    shipped::{OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, in_repository},
};

/// The nodes of a rig with all components, each in a zone of its own.
const NODES: [&str; 2] = ["node-a", "node-b"];

pub struct Rig {
    pub control_plane: ControlPlane,
    pub client: Client,
}

/// The options of a [`Rig`], and the objects that exist when it has started.
#[must_use]
#[derive(Default)]
pub struct RigBuilder {
    options: Options,
    crds: Vec<&'static str>,
    namespaces: Vec<&'static str>,
}

// === impl RigBuilder ===

impl RigBuilder {
    /// Adds the CRDs in a folder of the repository.
    pub fn crds(mut self, folder: &'static str) -> Self {
        self.crds.push(folder);
        self
    }

    pub fn namespace(mut self, name: &'static str) -> Self {
        self.namespaces.push(name);
        self
    }

    /// Changes the components of the control plane and their flags.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// # Errors
    /// Fails if the control plane does not start, or refuses an object.
    pub async fn start(self) -> Result<Rig> {
        let runs_pods = self.options.kwok;
        let control_plane = ControlPlane::start(self.options).await?;
        if runs_pods {
            for node in NODES {
                control_plane.add_node(node, node).await?;
            }
        }
        control_plane.create_namespaces(&self.namespaces).await?;
        for folder in self.crds {
            control_plane.install_crds(folder).await?;
        }
        let client = control_plane.client().await?;
        Ok(Rig { control_plane, client })
    }
}

// === impl Rig ===

impl Rig {
    /// An API server without Linkerd: without its CRDs and namespace.
    pub fn bare() -> RigBuilder {
        RigBuilder::default()
    }

    /// An API server with Linkerd's CRDs and namespace.
    pub fn linkerd() -> RigBuilder {
        Self::bare().crds("crd/linkerd").namespace("linkerd")
    }

    /// All components without Linkerd: Deployments get Pods, which run on two nodes.
    pub fn full() -> RigBuilder {
        Self::bare().options(Options::full())
    }
}

impl Deref for Rig {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.control_plane
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// # Errors
    /// Fails if a namespace exists.
    pub async fn create_namespaces(&self, names: &[&str]) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client().await?);
        for name in names {
            let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            let created = namespaces.create(&PostParams::default(), &namespace).await;
            created.with_context(|| format!("creating the namespace {name}"))?;
        }
        Ok(())
    }

    /// Runs `kubectl get` with these arguments, and returns the object or the list.
    pub async fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat()).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The Deployments of the operator's namespace.
    pub async fn operator_deployments(&self) -> Result<Vec<Value>> {
        let mut list = self.get(&["-n", OPERATOR_NAMESPACE, "deployments"]).await?;
        list.pointer_mut("/items").and_then(Value::as_array_mut).map(std::mem::take).context("a list without items")
    }

    /// The kubeconfig of the ServiceAccount in the manifests.
    pub async fn operator_kubeconfig(&self) -> Result<std::path::PathBuf> {
        self.kubeconfig_for_service_account(OPERATOR_NAMESPACE, OPERATOR_ACCOUNT).await
    }

    /// Applies the objects of Linkerd on which the operator depends, as Helm does.
    pub async fn install_linkerd(&self) -> Result<()> {
        let sample = in_repository("config/samples/linkerd.yaml");
        self.kubectl(&["apply", "--server-side", "--field-manager=helm", "-f", &sample]).await.map(drop)
    }

    /// Returns whether RBAC permits this to a ServiceAccount; `scope` is a flag of `kubectl auth can-i`.
    pub async fn may(&self, namespace: &str, account: &str, verb: &str, resource: &str, scope: &str) -> bool {
        let account = format!("--as=system:serviceaccount:{namespace}:{account}");
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let subresource = format!("--subresource={subresource}");
        // kubectl exits with 1 for "no".
        self.kubectl(&["auth", "can-i", verb, resource, &subresource, scope, &account]).await.is_ok()
    }
}
