//! Creates many objects of a kind concurrently.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::{Value, json};

/// The number of concurrent requests.
const WRITES: usize = 32;

/// Creates the objects, and keeps existing ones unchanged.
///
/// # Errors
/// Fails at the first object that is refused.
pub async fn create_all(
    api: &Api<DynamicObject>,
    kind: &ApiResource,
    objects: impl IntoIterator<Item = Value>,
) -> Result<()> {
    stream::iter(objects)
        .map(|mut object| async move {
            // The API server derives built-in kinds from the path, but requires both fields for custom resources.
            if let Some(fields) = object.as_object_mut() {
                fields.insert("apiVersion".to_owned(), json!(kind.api_version));
                fields.insert("kind".to_owned(), json!(kind.kind));
            }
            let object: DynamicObject = serde_json::from_value(object)?;
            match api.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                created => {
                    created.map(drop).with_context(|| format!("creating {} {:?}", kind.kind, object.metadata.name))
                }
            }
        })
        .buffer_unordered(WRITES)
        .try_collect()
        .await
}
