//! Linkerd's `Server`: a port of some workloads, and what is known about its traffic.
//!
//! The CRD is Linkerd's (`crd/linkerd/servers.yaml`); this is the part of it that discovery reads, leniently.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

use super::{LabelSelectorObject, lean_metadata};

/// `servers.policy.linkerd.io/v1beta3`, as the API server sends it.
#[derive(Clone, Debug, Deserialize)]
pub struct Server {
    #[serde(deserialize_with = "lean_metadata")]
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

// === impl Server ===

impl kube::Resource for Server {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Cow::Borrowed("Server")
    }

    fn group((): &()) -> Cow<'_, str> {
        Cow::Borrowed("policy.linkerd.io")
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed("v1beta3")
    }

    fn plural((): &()) -> Cow<'_, str> {
        Cow::Borrowed("servers")
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
