//! Metric labels: those of the set, and those that identify an endpoint's Pod or workload.
//!
//! * Always: owners are looked up among the given objects, only as many levels up as the contract specifies.

use std::collections::HashMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::api::DynamicObject;

use super::{ApiState, authority::Authority};

pub(super) type Labels = HashMap<String, String>;

pub(super) const CONTROL_PLANE: &str = "linkerd.io/control-plane-ns";

const MIRRORED_CLUSTER: &str = "mirror.linkerd.io/cluster-name";
const MIRRORED_SERVICE: &str = "mirror.linkerd.io/remote-svc-fq-name";

/// The labels of the Service, and those of the original Service from the first mirrored slice.
pub(super) fn of_set(state: &ApiState, authority: &Authority) -> Labels {
    let mut labels = Labels::new();
    labels.insert("service".to_owned(), authority.service.clone());
    labels.insert("namespace".to_owned(), authority.namespace.clone());
    let slices = state.slices_of(&authority.namespace, &authority.service);
    let mirrored = slices.into_iter().find_map(|slice| {
        let cluster = slice.metadata.labels.as_ref()?.get(MIRRORED_CLUSTER)?;
        Some((cluster.clone(), slice.metadata.annotations.clone().unwrap_or_default()))
    });
    let Some((cluster, annotations)) = mirrored else { return labels };
    labels.insert("target_cluster".to_owned(), cluster);
    let name = annotations.get(MIRRORED_SERVICE).map_or("", String::as_str);
    let mut parts = name.split('.');
    if let (Some(service), Some(namespace)) = (parts.next(), parts.next()) {
        labels.insert("target_service".to_owned(), service.to_owned());
        labels.insert("target_service_namespace".to_owned(), namespace.to_owned());
    }
    labels
}

/// A later label replaces an earlier one with the same key. `zone_locality` is present only if `locality` is given.
pub(super) fn of_pod(
    state: &ApiState,
    namespace: &str,
    name: &str,
    pod: &Pod,
    zone: &str,
    locality: Option<&str>,
) -> Labels {
    let (kind, owner) = pod_owner(state, namespace, name, pod);
    let kind = if kind == "job" { "k8s_job".to_owned() } else { kind };
    let own = pod.metadata.labels.clone().unwrap_or_default();
    let mut labels = Labels::new();
    labels.insert("pod".to_owned(), name.to_owned());
    labels.insert(kind, owner);
    if let Some(control_plane) = own.get(CONTROL_PLANE).filter(|value| !value.is_empty()) {
        labels.insert("control_plane_ns".to_owned(), control_plane.clone());
    }
    if let Some(hash) = own.get("pod-template-hash").filter(|value| !value.is_empty()) {
        labels.insert("pod_template_hash".to_owned(), hash.clone());
    }
    labels.insert("serviceaccount".to_owned(), service_account(pod).to_owned());
    labels.insert("zone".to_owned(), zone.to_owned());
    labels.extend(locality.map(|locality| ("zone_locality".to_owned(), locality.to_owned())));
    labels
}

/// The owner of a workload is used directly, for any kind.
pub(super) fn of_workload(name: &str, workload: &DynamicObject, zone: &str, locality: Option<&str>) -> Labels {
    let mut labels = Labels::new();
    labels.insert("external_workload".to_owned(), name.to_owned());
    if let Some(owner) = only(workload.metadata.owner_references.as_deref()) {
        labels.insert(owner.kind.to_lowercase(), owner.name.clone());
    }
    labels.insert("zone".to_owned(), zone.to_owned());
    labels.extend(locality.map(|locality| ("zone_locality".to_owned(), locality.to_owned())));
    labels
}

pub(super) fn service_account(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
    if name.is_empty() { "default" } else { name }
}

/// The lowercase kind and the name of the top owner: the Deployment, not the ReplicaSet; or the Pod itself if it has no
/// single owner.
fn pod_owner(state: &ApiState, namespace: &str, name: &str, pod: &Pod) -> (String, String) {
    let Some(owner) = only(pod.metadata.owner_references.as_deref()) else {
        return ("pod".to_owned(), name.to_owned());
    };
    let place = (namespace.to_owned(), owner.name.clone());
    let above = match owner.kind.as_str() {
        "Job" => state.jobs.get(&place).and_then(|job| only(job.metadata.owner_references.as_deref())),
        "ReplicaSet" => {
            let set = state.replica_sets.get(&place);
            let above = set.and_then(|set| only(set.metadata.owner_references.as_deref()));
            let kinds = ["job", "statefulset", "daemonset", "deployment"];
            above.filter(|above| kinds.contains(&above.kind.to_lowercase().as_str()))
        }
        _ => None,
    };
    let owner = above.unwrap_or(owner);
    (owner.kind.to_lowercase(), owner.name.clone())
}

/// The only owner; `None` for an object without owners or with several.
fn only(owners: Option<&[OwnerReference]>) -> Option<&OwnerReference> {
    match owners {
        Some([owner]) => Some(owner),
        _ => None,
    }
}
