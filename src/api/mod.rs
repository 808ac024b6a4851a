//! The custom resources, and the names of labels that Kubernetes, Linkerd and this operator agree on.
//!
//! Types here read what the API server holds, however odd: a field that a schema would refuse, or that an older
//! version of it never had, is read as absent. Whether a value makes sense is decided where it is used.

mod external_workload;

pub use external_workload::{
    Condition, ExternalWorkload, ExternalWorkloadPort, ExternalWorkloadSpec, ExternalWorkloadStatus, WorkloadIp,
};

/// Names the Service that a slice belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Names the controller that owns a slice's content; nobody else writes it.
pub const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Linkerd's value of [`MANAGED_BY_LABEL`]. Ours is the same, so that either controller takes over the other's slices;
/// another value would publish every workload twice.
pub const MANAGED_BY: &str = "linkerd-external-workloads-controller";
/// Present, and empty, on the slices of a headless Service.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// The zone of a workload, as on nodes.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The `kind` of a slice's `targetRef` that names an ExternalWorkload.
pub const EXTERNAL_WORKLOAD_KIND: &str = "ExternalWorkload";
/// Its Services are left alone: what runs there must not depend on the mesh.
pub const KUBE_SYSTEM: &str = "kube-system";
