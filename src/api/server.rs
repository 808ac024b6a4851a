//! Linkerd's `Server`: a port of the workloads that it selects, and the protocol of its traffic.
//!
//! The CRD is Linkerd's (`crd/linkerd/servers.yaml`); these types have the fields that discovery reads. Decoding is
//! lenient.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use serde::Deserialize;

use super::{LabelSelectorObject, metadata_without_annotations, resource::namespaced_resource};

/// `servers.policy.linkerd.io/v1beta3`, as the API server sends it.
#[derive(Clone, Debug, Deserialize)]
pub struct Server {
    #[serde(deserialize_with = "metadata_without_annotations")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Option<ServerSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerSpec {
    pub pod_selector: Option<LabelSelectorObject>,
    pub external_workload_selector: Option<LabelSelectorObject>,
    pub port: Option<IntOrString>,
    pub proxy_protocol: Option<String>,
}

namespaced_resource!(Server, "policy.linkerd.io", "v1beta3", "servers");
