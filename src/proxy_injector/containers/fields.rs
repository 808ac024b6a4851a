//! The fields that several containers have, and the error of a value that cannot be rendered.

use serde_json::{Map, Value, json};

use crate::{
    text::truncate,
    values::{CapabilitiesValues, ConstraintsValues, ImageValues, MountValues, ProxyValues, ResourcesValues},
};

/// The maximum length of a value in an error, in bytes.
const LONGEST_VALUE: usize = 100;

/// The reason why no proxy can be injected: a value of the configuration or an annotation is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in crate::proxy_injector) struct NotRenderable(String);

// === impl NotRenderable ===

impl NotRenderable {
    pub(super) fn new(field: &str, value: &str, wanted: &str) -> Self {
        Self(format!("{field} is {:?}: it must be {wanted}", truncate(value, LONGEST_VALUE)))
    }

    pub(in crate::proxy_injector) fn too_long() -> Self {
        Self("the annotations of the Pod would be longer than 256 KiB with those of the proxy".to_owned())
    }

    pub(in crate::proxy_injector) fn missing(field: &str) -> Self {
        Self(format!("{field} is missing: the injector requires it"))
    }
}

/// The image of the proxy, of its init container and of the validator.
pub(super) fn image(values: &ProxyValues, image: &ImageValues, field: &str) -> Result<String, NotRenderable> {
    let version = values.version_of(image);
    if image.name.is_empty() {
        return Err(NotRenderable::missing(&format!("{field}.name")));
    }
    if version.is_empty() {
        return Err(NotRenderable::missing("linkerdVersion"));
    }
    Ok(format!("{}:{version}", image.name))
}

/// Adds the pull policy, unless the cluster's default applies.
pub(super) fn set_pull_policy(container: &mut Map<String, Value>, policy: &str) {
    if !policy.is_empty() {
        container.insert("imagePullPolicy".to_owned(), policy.into());
    }
}

pub(super) fn resources(resources: &ResourcesValues) -> Option<Value> {
    let kinds =
        [("cpu", &resources.cpu), ("memory", &resources.memory), ("ephemeral-storage", &resources.ephemeral_storage)];
    let mut all = Map::new();
    for (field, limits) in [("limits", true), ("requests", false)] {
        let quantity = |constraints: &ConstraintsValues| match limits {
            true => constraints.limit.clone(),
            false => constraints.request.clone(),
        };
        let quantities = kinds.map(|(kind, constraints)| (kind.to_owned(), quantity(constraints)));
        let set: Map<String, Value> = quantities
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(kind, text)| (kind, text.into()))
            .collect();
        if !set.is_empty() {
            all.insert(field.to_owned(), set.into());
        }
    }
    (!all.is_empty()).then(|| all.into())
}

/// The capabilities of the Pod's first container, for the proxy.
pub(super) fn capabilities(capabilities: &CapabilitiesValues) -> Option<Value> {
    let mut map = Map::new();
    for (name, list) in [("add", &capabilities.add), ("drop", &capabilities.drop)] {
        if !list.is_empty() {
            map.insert(name.to_owned(), json!(list));
        }
    }
    (!map.is_empty()).then(|| map.into())
}

pub(super) fn token_mount(mount: &MountValues) -> Value {
    json!({"mountPath": mount.mount_path, "name": mount.name, "readOnly": mount.read_only})
}

/// Checks that each item of a comma-separated list is a CIDR. Leading and trailing commas are ignored.
pub(super) fn check_networks(networks: &str) -> Result<(), NotRenderable> {
    let networks = networks.trim_matches(',');
    if networks.is_empty() {
        return Ok(());
    }
    let wanted = "a network such as 10.0.0.0/8";
    let wrong = networks.split(',').find(|item| item.parse::<ipnet::IpNet>().is_err());
    wrong.map_or(Ok(()), |item| Err(NotRenderable::new("an item of clusterNetworks", item, wanted)))
}
