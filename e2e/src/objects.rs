//! Many objects of a kind: creates and patches them concurrently, and watches them.

use std::fmt::Debug;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use kube::{
    Api, Client,
    api::{
        ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The number of concurrent requests.
const WRITES: usize = 32;

/// A kind, by its `apiVersion` and name.
pub fn kind(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Creates the objects with their statuses, and keeps existing ones unchanged. An object without a namespace of its own
/// is created in `namespace`, or in none.
///
/// # Errors
/// Fails at the first object that is refused.
pub async fn create_all(
    client: &Client,
    kind: &ApiResource,
    namespace: Option<&str>,
    objects: impl IntoIterator<Item = Value>,
) -> Result<()> {
    stream::iter(objects)
        .map(|mut object| async move {
            let mut status = None;
            // The API server derives built-in kinds from the path, but requires both fields for custom resources.
            if let Some(fields) = object.as_object_mut() {
                fields.insert("apiVersion".to_owned(), json!(kind.api_version));
                fields.insert("kind".to_owned(), json!(kind.kind));
                status = fields.remove("status");
            }
            let object: DynamicObject = serde_json::from_value(object)?;
            let api: Api<DynamicObject> = match object.metadata.namespace.as_deref().or(namespace) {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
                None => Api::all_with(client.clone(), kind),
            };
            let created = match api.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => return Ok(()),
                created => created.with_context(|| format!("creating {} {:?}", kind.kind, object.metadata.name))?,
            };
            if let (Some(status), Some(name)) = (status, created.metadata.name) {
                let patch = Patch::Merge(json!({ "status": status }));
                api.patch_status(&name, &PatchParams::default(), &patch).await?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(WRITES)
        .try_collect()
        .await
}

/// Applies a merge patch to each of the named objects.
///
/// # Errors
/// Fails at the first patch that is refused.
pub async fn patch_all(
    client: &Client,
    kind: &ApiResource,
    namespace: &str,
    patches: impl IntoIterator<Item = (String, Value)>,
) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, kind);
    stream::iter(patches)
        .map(|(name, patch)| {
            let api = &api;
            async move {
                let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                patched.map(drop).with_context(|| format!("patching {name}"))
            }
        })
        .buffer_unordered(WRITES)
        .try_collect()
        .await
}

/// Watches all changes from now on.
///
/// # Errors
/// Fails when the API server does not answer.
pub async fn watch_from_now<K>(
    api: &Api<K>,
    params: &WatchParams,
) -> Result<BoxStream<'static, kube::Result<WatchEvent<K>>>>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let now = api.list(&ListParams::default().limit(1)).await?;
    let version = now.metadata.resource_version.context("a list without resourceVersion")?;
    Ok(api.watch(params, &version).await?.boxed())
}
