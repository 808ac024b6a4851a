//! Warnings about what an injection adds to a Pod: the names, mounts and capabilities that do not fit the Pod, and the
//! strings with which no container starts.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{AuthorWarnings, shown};
use crate::{
    proxy_injector::{containers::AddedContainers, reviewed::ReviewedSpec},
    values::{unusable_fields, unusable_string},
};

/// Whether each volume of an injected Pod is an `emptyDir`, by its name.
type VolumeKinds<'a> = HashMap<&'a str, bool>;

/// Adds the warnings about the containers and volumes that are added to a Pod.
pub(in crate::proxy_injector) fn of_added(
    containers: &AddedContainers,
    volumes: &[Value],
    spec: &ReviewedSpec,
    warnings: &mut AuthorWarnings,
) {
    let of_pod: HashSet<&str> = spec.volume_names().collect();
    for name in volumes.iter().map(|volume| text(volume, "name")).filter(|name| of_pod.contains(name)) {
        warnings.add_rejection(format_args!("the Pod has a volume with the name {name:?}, which the injector adds"));
    }
    let is_empty_dir = |volume: &Value| volume.get("emptyDir").is_some();
    let all = volumes.iter().chain(&spec.volumes);
    let volumes: VolumeKinds<'_> = all.map(|volume| (text(volume, "name"), is_empty_dir(volume))).collect();
    for container in containers.iter() {
        let name = text(container, "name");
        if spec.all_containers().any(|it| it.name == name) {
            warnings
                .add_rejection(format_args!("the Pod has a container with the name {name:?}, which the injector adds"));
        }
        let context = container.get("securityContext").and_then(Value::as_object);
        for (field, reason) in context.map(unusable_fields).unwrap_or_default() {
            warnings.add_rejection(format_args!(
                "securityContext.{field} of the container {name}, which gets the capabilities of the first container, \
                 {reason}"
            ));
        }
        mounts(container, &volumes, warnings);
        variables(container, &volumes, warnings);
        for argument in list(container, "args").filter_map(Value::as_str) {
            if let Some(reason) = unusable_string(argument, 0) {
                warnings.add(format_args!("the argument {:?} of the container {name} {reason}", shown(argument)));
            }
        }
    }
}

fn mounts(container: &Value, volumes: &VolumeKinds<'_>, warnings: &mut AuthorWarnings) {
    let of_container = text(container, "name");
    let mut paths = HashSet::new();
    for mount in list(container, "volumeMounts") {
        let (name, path) = (text(mount, "name"), text(mount, "mountPath"));
        if !volumes.contains_key(name) {
            warnings.add_rejection(format_args!(
                "the container {of_container} mounts the volume {:?} of the value proxy.saMountPath, which the Pod lacks",
                shown(name)
            ));
        }
        if !paths.insert(path) {
            warnings.add_rejection(format_args!("the container {of_container} has two mounts at {:?}", shown(path)));
        }
    }
}

fn variables(container: &Value, volumes: &VolumeKinds<'_>, warnings: &mut AuthorWarnings) {
    let of_container = text(container, "name");
    for variable in list(container, "env") {
        let name = text(variable, "name");
        if let Some(reason) = unusable_string(text(variable, "value"), name.len() + 1) {
            warnings.add(format_args!("the variable {:?} of the container {of_container} {reason}", shown(name)));
        }
        let volume = variable.pointer("/valueFrom/fileKeyRef/volumeName").and_then(Value::as_str);
        if let Some(volume) = volume.filter(|volume| volumes.get(volume) != Some(&true)) {
            warnings.add_rejection(format_args!(
                "the variable {:?} of the container {of_container} is in a file of {:?}, which is not an emptyDir of the \
                 Pod",
                shown(name),
                shown(volume)
            ));
        }
    }
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}
