//! Applies a world to a real API server, and reads the objects back.
//!
//! * In: a client with all permissions; changes of a [valid](super::World::valid) world, in order.
//! * Out: writes as users and controllers send them; all objects as listed, for the oracle.
//! * Always: immutable fields (the spec of a Pod, a Job's template) are written only at creation. The status of a Pod
//!   is written in a second request, as a kubelet does: the server accepts it only for an existing Pod.
//! * Without the ServiceProfile CRD, ServiceProfiles are skipped.
//! * Use [`list`] instead of the world's objects for comparisons: the server sets its own timestamps, and returns an
//!   empty list of ports as an absent one.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams},
};
use serde_json::{Value, json};

use super::{Change, ELSEWHERE, KINDS, NAMESPACE, World, status};
use crate::oracle::{ApiState, Key, ObjectKind};

/// Longer than any test, so that a terminating Pod exists until it is deleted with grace period 0.
const GRACE_SECONDS: u32 = 3600;

/// Creates the namespaces and all objects of the world.
pub async fn begin(client: &Client, world: &World) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in [NAMESPACE, ELSEWHERE] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces.create(&PostParams::default(), &namespace).await.with_context(|| format!("namespace {name}"))?;
    }
    for (key, object) in world.json() {
        put(client, key, object).await?;
    }
    Ok(())
}

/// Applies one change.
pub async fn apply(client: &Client, change: &Change) -> Result<()> {
    match change {
        Change::Applied { key, object } => put(client, key, object).await,
        Change::Deleted { key, .. } => delete(client, key, 0).await,
    }
}

/// Lists all objects of the cluster that influence answers.
pub async fn list(client: &Client) -> Result<ApiState> {
    let mut state = ApiState::default();
    for kind in KINDS {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        let listed = match api.list(&ListParams::default()).await {
            Err(error) if is_not_served(kind, &error) => continue,
            listed => listed?,
        };
        for object in listed.items {
            let key = Key { kind, namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
            state.put(&key, &serde_json::to_value(object)?)?;
        }
    }
    Ok(state)
}

/// Creates an object with its status, or replaces it.
pub(crate) async fn put(client: &Client, key: &Key, object: &Value) -> Result<()> {
    let failed = || format!("writing {key:?}: {object}");
    let mut wanted: DynamicObject = serde_json::from_value(object.clone()).with_context(failed)?;
    let api = api(client, key);
    let status = wanted.data.get("status").cloned();
    let terminating = wanted.metadata.deletion_timestamp.take().is_some();
    let found = match api.get_opt(&key.name).await {
        Err(error) if is_not_served(key.kind, &error) => return Ok(()),
        found => found?,
    };
    let Some(mut current) = found else {
        wanted.metadata.uid = None;
        wanted.metadata.resource_version = None;
        wanted.metadata.creation_timestamp = None;
        wanted.metadata.deletion_grace_period_seconds = None;
        let mut current = api.create(&PostParams::default(), &wanted).await.with_context(failed)?;
        if terminating {
            delete(client, key, GRACE_SECONDS).await?;
            current = api.get(&key.name).await?;
        }
        return put_status(&api, key, current, status).await.with_context(failed);
    };
    if terminating && current.meta().deletion_timestamp.is_none() {
        delete(client, key, GRACE_SECONDS).await?;
        current = api.get(&key.name).await?;
    }
    current.metadata.labels = wanted.metadata.labels;
    current.metadata.annotations = wanted.metadata.annotations;
    current.metadata.owner_references = wanted.metadata.owner_references;
    match key.kind {
        ObjectKind::Pod | ObjectKind::Node | ObjectKind::ReplicaSet | ObjectKind::Job => {}
        ObjectKind::Service
        | ObjectKind::ServiceProfile
        | ObjectKind::EndpointSlice
        | ObjectKind::ExternalWorkload
        | ObjectKind::Server => {
            current.data = wanted.data;
        }
    }
    current = api.replace(&key.name, &PostParams::default(), &current).await.with_context(failed)?;
    put_status(&api, key, current, status).await.with_context(failed)
}

/// Writes those fields of a Pod's status that a world sets, and keeps the others.
async fn put_status(
    api: &Api<DynamicObject>,
    key: &Key,
    mut current: DynamicObject,
    wanted: Option<Value>,
) -> Result<()> {
    let (ObjectKind::Pod, Some(Value::Object(wanted)), Some(data)) = (key.kind, wanted, current.data.as_object_mut())
    else {
        return Ok(());
    };
    let status = data.entry("status").or_insert_with(|| json!({}));
    let before = status.clone();
    if let Some(status) = status.as_object_mut() {
        status.retain(|field, _| !status::FIELDS.contains(&field.as_str()));
        status.extend(wanted);
    }
    if *status != before {
        api.replace_status(&key.name, &PostParams::default(), &current).await?;
    }
    Ok(())
}

/// Returns whether the API server does not serve the kind, which it reports as 404 without a reason.
fn is_not_served(kind: ObjectKind, error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason != "NotFound")
        && kind == ObjectKind::ServiceProfile
}

async fn delete(client: &Client, key: &Key, grace_seconds: u32) -> Result<()> {
    let parameters = DeleteParams { grace_period_seconds: Some(grace_seconds), ..DeleteParams::default() };
    match api(client, key).delete(&key.name, &parameters).await {
        Err(error) if is_not_served(key.kind, &error) => Ok(()),
        deleted => deleted.map(drop).with_context(|| format!("deleting {key:?}")),
    }
}

fn api(client: &Client, key: &Key) -> Api<DynamicObject> {
    let resource = resource(key.kind);
    match key.kind {
        ObjectKind::Node => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), &key.namespace, &resource),
    }
}

fn resource(kind: ObjectKind) -> ApiResource {
    let (group, version, kind) = match kind {
        ObjectKind::Service => ("", "v1", "Service"),
        ObjectKind::EndpointSlice => ("discovery.k8s.io", "v1", "EndpointSlice"),
        ObjectKind::Pod => ("", "v1", "Pod"),
        ObjectKind::ExternalWorkload => ("workload.linkerd.io", "v1beta1", "ExternalWorkload"),
        ObjectKind::Server => ("policy.linkerd.io", "v1beta3", "Server"),
        ObjectKind::Node => ("", "v1", "Node"),
        ObjectKind::ReplicaSet => ("apps", "v1", "ReplicaSet"),
        ObjectKind::Job => ("batch", "v1", "Job"),
        ObjectKind::ServiceProfile => ("linkerd.io", "v1alpha2", "ServiceProfile"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}
