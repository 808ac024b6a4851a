//! Findings about workloads, and the object references for Events. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    api::{EXTERNAL_WORKLOAD_KIND, NamespacedName},
    cluster::kinds::{external_workload::ExternalWorkload, service::Service},
    events::{Notice, Reason, object_reference},
};

/// A problem with a workload as an endpoint of a Service, which the workload's owner must correct.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Finding {
    workload: NamespacedName,
    uid: Arc<str>,
    reason: Reason,
    /// A text of bounded length, whatever the workload contains.
    text: String,
}

// === impl Finding ===

impl Finding {
    pub(super) fn new(workload: &ExternalWorkload, reason: Reason, text: String) -> Self {
        Self { workload: workload.key.clone(), uid: Arc::clone(&workload.uid), reason, text }
    }

    pub(super) fn notice(&self, service: &Service) -> Notice {
        let note = format!("As an endpoint of Service {}: {}", service.key.name, self.text);
        Notice {
            reason: self.reason,
            regarding: workload_reference(&self.workload, &self.uid),
            related: Some(service_reference(service)),
            note,
        }
    }
}

pub(super) fn service_reference(service: &Service) -> ObjectReference {
    object_reference("v1", "Service", &service.key, &service.uid)
}

pub(super) fn workload_reference(workload: &NamespacedName, uid: &str) -> ObjectReference {
    object_reference("workload.linkerd.io/v1beta1", EXTERNAL_WORKLOAD_KIND, workload, uid)
}
