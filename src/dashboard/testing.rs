//! A dashboard without a process.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use kube::client::{Body, Client};
use serde_json::json;

use super::{Dashboard, DashboardAccess, DashboardParts};
use crate::{api::NamespacedName, cluster::Cluster};

/// Returns a dashboard of this cluster. Its API server has no saved bases.
pub(crate) fn dashboard(cluster: Option<&Cluster>, access: DashboardAccess) -> Dashboard {
    counted(cluster, access).0
}

/// Returns the dashboard, and the number of requests that it has sent to the API server.
pub(super) fn counted(cluster: Option<&Cluster>, access: DashboardAccess) -> (Dashboard, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    let service = tower::service_fn(move |_: Request<Body>| {
        counter.fetch_add(1, Ordering::Relaxed);
        let list = json!({"apiVersion": "apps/v1", "kind": "ControllerRevisionList", "metadata": {}, "items": []});
        async move { Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))) }
    });
    let parts = DashboardParts {
        access,
        cluster_domain: "cluster.local".to_owned(),
        identity: "operator-1".to_owned(),
        pod: Some(NamespacedName::new("operator", "operator-1")),
        events: None,
        cluster: cluster.cloned(),
        multicluster: None,
        leases: Vec::new(),
        certificate: None,
        issuer: None,
        destination: None,
    };
    (Dashboard::new(parts, &Client::new(service, "default"), cluster.map(|_| "operator")), requests)
}
