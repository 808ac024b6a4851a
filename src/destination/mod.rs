//! The destination server, which sends each Linkerd proxy the endpoints and profiles of its targets, and their changes.
//!
//! ```text
//! cluster ──observer──▶ DirtySet ──▶ views: get::views     State ─▶ Members ─▶ Snapshot    ──┐
//!                                           profile::views State ─▶ EncodedProfile ──────────┴─watch──▶ stream ─▶ http2 ─▶ proxy
//! ```
//!
//! In: the cluster's state, and requests. Out: `Get` and `GetProfile` streams of the Destination API. Always holds: the
//! folded state of a client is a pure function of the objects that the watches have delivered, in any order; an open
//! stream and a new stream lead to the same state; a client that does not read does not delay other clients.

mod authority;
mod call;
#[cfg(test)]
mod cases_tests;
mod context_token;
mod endpoint;
mod frame;
mod get;
mod handshakes;
mod http2;
mod metrics;
mod multicluster;
mod object_group;
mod observer;
#[cfg(test)]
mod oracle_tests;
mod places;
mod profile;
mod publisher;
mod registry;
mod request_body;
mod response;
mod server;
pub mod settings;
mod stream;
#[cfg(test)]
mod testing;
mod views;

use std::{sync::Arc, time::Duration};

use prometheus::Registry as MetricsRegistry;
use tokio_util::sync::CancellationToken;
use tonic_health::{
    ServingStatus::{NotServing, Serving},
    server::HealthReporter,
};

use crate::{cluster::Cluster, tasks::Tasks};
pub use observer::DestinationObserver;
pub use settings::DestinationSettings;
use {
    get::collector::EndpointsCollector, metrics::DiscoveryMetrics, multicluster::MulticlusterCollector,
    profile::collector::ProfilesCollector, server::DestinationServer, views::Views,
};

/// The dependencies of the destination server; see [`spawn`].
pub struct DestinationDeps<'a> {
    pub cluster: &'a Cluster,
    pub observer: Arc<DestinationObserver>,
    pub registry: &'a MetricsRegistry,
    pub listener: tokio::net::TcpListener,
}

/// Starts the publisher and the server. When `stop` is cancelled, the server ends its streams and then stops.
///
/// # Errors
/// When a metric is registered twice.
pub fn spawn(
    deps: DestinationDeps<'_>,
    settings: DestinationSettings,
    stop: CancellationToken,
    servers: &mut Tasks,
    readers: &mut Tasks,
) -> prometheus::Result<()> {
    let DestinationDeps { cluster, observer, registry, listener } = deps;
    let metrics = DiscoveryMetrics::register(registry)?;
    let views = Views::new(cluster.clone(), settings, metrics);
    registry.register(Box::new(EndpointsCollector::new(&views)?))?;
    registry.register(Box::new(ProfilesCollector::new(&views)?))?;
    registry.register(Box::new(MulticlusterCollector::new(cluster)?))?;
    let reporter = HealthReporter::new();
    let server = DestinationServer::new(Arc::clone(&views), reporter.clone());
    readers.spawn("discovery-publisher", views.publish(observer));
    servers.spawn("destination-server", Arc::new(server).serve(listener, stop));
    readers.spawn("other-clusters", multicluster::warn_once(cluster.clone()));
    readers.spawn("destination-health", report_health(cluster.clone(), reporter));
    Ok(())
}

/// Reports SERVING once the caches have synced.
async fn report_health(cluster: Cluster, reporter: HealthReporter) {
    for service in server::HEALTH_SERVICES {
        reporter.set_service_status(service, NotServing).await;
    }
    wait_for_caches(&cluster).await;
    for service in server::HEALTH_SERVICES {
        reporter.set_service_status(service, Serving).await;
    }
    std::future::pending::<()>().await;
}

/// Waits until every kind that discovery reads was listed. Polling is precise enough.
async fn wait_for_caches(cluster: &Cluster) {
    while !cluster.knows(observer::KINDS) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
