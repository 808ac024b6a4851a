//! Complete Kubernetes objects from the short forms of the files.
//!
//! * In: patches by kind and name (`Pod/web-0`); the defaults of each kind. Out: objects that an API server accepts.
//! * Always: what a patch sets is kept as it is.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::patch::patch;
use crate::oracle::{Key, ObjectKind};

/// The namespace of objects and of requests that have none.
pub(super) const NAMESPACE: &str = "case-ns";

/// Patches by kind and name. An object `null` does not exist.
pub(super) type ObjectPatches = BTreeMap<String, Value>;

/// Applies patches to objects, or to the defaults of their kind for objects that do not exist yet.
pub(super) fn with(
    mut objects: ObjectPatches,
    defaults: &Map<String, Value>,
    patches: &ObjectPatches,
) -> Result<ObjectPatches> {
    for (name, by) in patches {
        if by.is_null() {
            objects.remove(name).with_context(|| format!("{name} is removed, but does not exist"))?;
            continue;
        }
        let object = match objects.get_mut(name) {
            Some(object) => object,
            None => objects.entry(name.clone()).or_insert(new(name, defaults)?),
        };
        patch(object, by);
    }
    Ok(objects)
}

/// The default object of a kind.
fn new(name: &str, defaults: &Map<String, Value>) -> Result<Value> {
    let (kind, name) = name.split_once('/').with_context(|| format!("{name:?} is not KIND/NAME"))?;
    let mut object =
        defaults.get(kind).with_context(|| format!("base.yaml has no defaults of the kind {kind}"))?.clone();
    patch(&mut object, &json!({"kind": kind, "metadata": {"name": name.rsplit('/').next()}}));
    // The second of two objects with one name has another namespace: `Pod/case-other/web-0`.
    let namespace = name.rsplit_once('/').map_or(NAMESPACE, |(namespace, _)| namespace);
    if kind != "Node" {
        patch(&mut object, &json!({"metadata": {"namespace": namespace}}));
    }
    Ok(object)
}

/// Expands the short forms in an object.
pub(super) fn complete(mut object: Value) -> Result<(Key, Value)> {
    let key = Key::of(&object)?;
    for texts in ["/metadata/labels", "/metadata/annotations"] {
        if let Some(texts) = object.pointer_mut(texts).and_then(Value::as_object_mut) {
            texts.retain(|_, text| !text.is_null());
        }
    }
    if key.kind == ObjectKind::EndpointSlice
        && let Some(endpoints) = object.get_mut("endpoints").and_then(Value::as_array_mut)
    {
        for endpoint in endpoints {
            *endpoint = expand(endpoint.take(), &key.namespace)?;
        }
    }
    Ok((key, object))
}

/// Expands `ADDRESS` and `ADDRESS KIND/NAME`, also as the field `at` of an endpoint.
fn expand(endpoint: Value, namespace: &str) -> Result<Value> {
    let (short, mut fields) = match endpoint {
        Value::String(short) => (short, Map::new()),
        Value::Object(mut fields) => match fields.remove("at") {
            None => return Ok(Value::Object(fields)),
            Some(Value::String(short)) => (short, fields),
            Some(other) => bail!("the endpoint's `at` is {other}, not a text"),
        },
        other => bail!("the endpoint is {other}"),
    };
    let mut whole = match short.split_once(' ') {
        None => json!({"addresses": [short]}),
        Some((address, target)) => {
            let (kind, name) = target.split_once('/').with_context(|| format!("{target:?} is not KIND/NAME"))?;
            json!({"addresses": [address], "targetRef": {"kind": kind, "namespace": namespace, "name": name}})
        }
    };
    patch(&mut whole, &Value::Object(std::mem::take(&mut fields)));
    Ok(whole)
}
