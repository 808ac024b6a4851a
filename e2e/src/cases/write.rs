//! Writes the objects of cases to a real API server.
//!
//! * In: a client with all permissions for a cluster without other objects; cases that are
//!   [side by side](super::cases_side_by_side). Out: the objects, with their status.
//! * Always: fails at the first object that the API server refuses.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use super::Case;
use crate::{oracle::Key, world::api};

/// The number of concurrent requests.
const WRITES: usize = 32;

/// Writes all objects, each once.
///
/// # Errors
/// Fails when the API server refuses an object.
pub async fn write(client: &Client, cases: &[Case]) -> Result<()> {
    let objects: BTreeMap<&Key, &Value> =
        cases.iter().flat_map(|case| &case.objects).map(|(key, object)| (key, object)).collect();
    let namespaces: BTreeSet<&str> = objects.keys().map(|key| key.namespace.as_str()).collect();
    let create = async |name: &str| {
        let namespace = serde_json::from_value(json!({"metadata": { "name": name }}))?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        match namespaces.create(&PostParams::default(), &namespace).await {
            // That of the control plane.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop).with_context(|| format!("creating the namespace {name}")),
        }
    };
    let namespaces = namespaces.into_iter().filter(|name| !name.is_empty());
    stream::iter(namespaces.map(create)).buffer_unordered(WRITES).try_collect::<()>().await?;
    // Services with an address come first: the API server could give it to another Service.
    let has_address = |object: &Value| object.pointer("/spec/clusterIP").is_some();
    let (first, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(|(_, object)| has_address(object));
    for objects in [first, others] {
        let puts = objects.into_iter().map(|(key, object)| api::put(client, key, object));
        stream::iter(puts).buffer_unordered(WRITES).try_collect::<()>().await?;
    }
    Ok(())
}
