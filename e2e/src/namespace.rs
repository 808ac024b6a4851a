//! A separate namespace for a test.
//!
//! * In: a prefix. Out: a namespace with a unique name and the harness's label.
//! * It is not removed automatically: it disappears with the control plane. On an existing cluster, run
//!   `kubectl delete namespace -l linkerd-operator-e2e`.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    core::NamespaceResourceScope,
};
use serde_json::json;

pub struct TestNamespace {
    name: String,
    client: Client,
}

impl TestNamespace {
    pub async fn create(client: &Client, prefix: &str) -> Result<Self> {
        let namespace: Namespace = serde_json::from_value(json!({
            // The API server adds five random characters.
            "metadata": {"generateName": format!("{prefix}-"), "labels": {"linkerd-operator-e2e": "test"}},
        }))?;
        let created = Api::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("creating a namespace {prefix}-*"))?;
        let name = created.metadata.name.context("the API server returned a namespace without a name")?;
        Ok(Self { name, client: client.clone() })
    }

    /// Creates a namespace with the name of another cluster's.
    pub async fn create_named(client: &Client, name: &str) -> Result<Self> {
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {"linkerd-operator-e2e": "test"}}}))?;
        let created = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
        created.with_context(|| format!("creating the namespace {name}"))?;
        Ok(Self { name: name.to_owned(), client: client.clone() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The objects of one kind in this namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Requests the deletion without waiting for its completion.
    pub async fn delete(self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client);
        namespaces.delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}
