//! Linkerd's `ExternalWorkload`: a workload outside the cluster, such as a virtual machine, that takes part in the
//! mesh.
//!
//! The CRD is Linkerd's (`crd/linkerd/externalworkloads.yaml`); these types have the fields that become endpoints.
//! Decoding is as lenient as that of Linkerd's controller: a missing `ip`, `status: {}` and unknown condition values
//! are accepted. An object that was stored under an older CRD decodes, too.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::{lean_metadata, resource::namespaced_resource};

/// `externalworkloads.workload.linkerd.io/v1beta1`, as the API server sends it.
#[derive(Clone, Debug, Deserialize)]
pub struct ExternalWorkload {
    #[serde(deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Option<ExternalWorkloadSpec>,
    #[serde(default)]
    pub status: Option<ExternalWorkloadStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalWorkloadSpec {
    #[serde(default)]
    pub ports: Option<Vec<ExternalWorkloadPort>>,
    #[serde(default, rename = "workloadIPs")]
    pub workload_ips: Option<Vec<WorkloadIp>>,
    #[serde(default, rename = "meshTLS")]
    pub mesh_tls: Option<MeshTls>,
}

/// The identity of the workload in the mesh.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MeshTls {
    pub identity: Option<String>,
    pub server_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ExternalWorkloadPort {
    #[serde(default)]
    pub name: Option<String>,
    /// The CRD allows 1 to 65535; any other value matches no Service port.
    #[serde(default)]
    pub port: i64,
    #[serde(default)]
    pub protocol: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct WorkloadIp {
    #[serde(default)]
    pub ip: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ExternalWorkloadStatus {
    #[serde(default)]
    pub conditions: Option<Vec<Condition>>,
}

/// A condition. The list is not keyed by type, so a type may occur more than once.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Condition {
    #[serde(default, rename = "type")]
    pub type_: String,
    #[serde(default)]
    pub status: String,
}

namespaced_resource!(ExternalWorkload, "workload.linkerd.io", "v1beta1", "externalworkloads");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> ExternalWorkload {
        serde_json::from_value(value).expect("the type decodes every object that the API server may hold")
    }

    #[test]
    fn every_shape_of_an_old_or_handwritten_object_decodes() {
        for spec_and_status in [
            json!({}),
            json!({"spec": {}}),
            json!({"spec": null, "status": null}),
            json!({"spec": {"workloadIPs": [{}], "ports": null}, "status": {}}),
            json!({"spec": {"meshTls": {"identity": "a", "serverName": "b"}}, "status": {"conditions": null}}),
            json!({"spec": {"ports": [{"port": 99999}, {}]}, "status": {"conditions": [{"type": "Ready", "status": "Perhaps"}]}}),
        ] {
            let mut object = json!({"metadata": {"name": "vm", "namespace": "ns"}});
            object.as_object_mut().unwrap().extend(spec_and_status.as_object().unwrap().clone());
            read(object);
        }
    }

    #[test]
    fn only_the_newest_update_time_of_managed_fields_is_kept() {
        let object = read(json!({"metadata": {"name": "vm", "namespace": "ns", "managedFields": [
            {"operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
            {"operation": "Apply", "time": "2026-01-03T00:00:00Z", "fieldsV1": {"f:spec": {}}},
            {"operation": "Update", "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:spec": {}}},
        ]}}));
        let kept = object.metadata.managed_fields.unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].time.as_ref().unwrap().0.to_string(), "2026-01-02T00:00:00Z");
        assert!(kept[0].fields_v1.is_none());
    }
}
