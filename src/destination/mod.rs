//! The destination server, which sends each Linkerd proxy the endpoints and profiles of its targets, and their changes.
//!
//! ```text
//! cluster ──observer──▶ DirtySet ──▶ publisher ─▶ get::queue:     State ─▶ Members ─▶ Snapshot ─┐
//!                                                 profile::queue: State ─▶ EncodedProfile ──────┴─watch─┐
//!                                                                  proxy ◀─ http2 ◀─ stream ◀───────────┘
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
#[cfg(any(test, fuzzing))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic of a target is what the fuzzer looks for"
)]
pub(crate) mod fuzzing;
mod get;
mod http2;
mod labels;
mod metrics;
mod multicluster;
#[cfg(test)]
mod multicluster_tests;
mod object_group;
mod observer;
#[cfg(test)]
mod oracle_tests;
mod permits;
mod profile;
mod publisher;
mod registry;
mod request_body;
mod response;
mod server;
pub mod settings;
mod stream;
#[cfg(any(test, fuzzing))]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "only tests and the fuzzer use it")]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzzer uses a part of it"))]
mod testing;
mod views;

use std::sync::Arc;

use prometheus::Registry as MetricsRegistry;
use tokio_util::sync::CancellationToken;
use tonic_health::{
    ServingStatus::{NotServing, Serving},
    server::HealthReporter,
};

use crate::{cluster::Cluster, tasks::Tasks};
pub use multicluster::{Multicluster, RemoteReport, links::LinksObserver, unsupported::unsupported_services};
pub use observer::DestinationObserver;
pub use settings::DestinationSettings;
use {
    get::collector::EndpointsCollector,
    metrics::DiscoveryMetrics,
    multicluster::{collector::RemoteClustersCollector, unsupported::UnsupportedCollector},
    profile::collector::ProfilesCollector,
    server::DestinationServer,
    views::Views,
};

/// The dependencies of the destination server; see [`spawn`].
pub struct DestinationDeps<'a> {
    pub cluster: &'a Cluster,
    pub observer: Arc<DestinationObserver>,
    pub registry: &'a MetricsRegistry,
    pub listener: tokio::net::TcpListener,
    /// `None` if the Services of other clusters are not served.
    pub links: Option<Arc<LinksObserver>>,
}

/// Starts the publisher and the server. When `stop` is cancelled, the server ends its streams and then stops. Returns
/// the other clusters, if their Services are served.
///
/// # Errors
/// When a metric is registered twice.
pub fn spawn(
    deps: DestinationDeps<'_>,
    settings: DestinationSettings,
    stop: CancellationToken,
    servers: &mut Tasks,
    readers: &mut Tasks,
) -> prometheus::Result<Option<Arc<Multicluster>>> {
    let DestinationDeps { cluster, observer, registry, listener, links } = deps;
    metrics::register_limits(registry, &settings.limits)?;
    let (metrics, settings) = (DiscoveryMetrics::register(registry)?, Arc::new(settings));
    let mut multicluster = None;
    match links {
        Some(links) => {
            let linked = Multicluster::new(Arc::clone(&observer), Arc::clone(&settings), registry)?;
            registry.register(Box::new(RemoteClustersCollector::new(&linked)?))?;
            readers.spawn("cluster-links", multicluster::links::follow(Arc::clone(&linked), cluster.clone(), links));
            readers.spawn("remote-clusters", Arc::clone(&linked).sweep());
            multicluster = Some(linked);
        }
        None => {
            registry.register(Box::new(UnsupportedCollector::new(cluster)?))?;
            readers.spawn("unsupported-services", multicluster::unsupported::warn_once(cluster.clone()));
        }
    }
    let views = Views::new(cluster.clone(), &observer, settings, metrics, multicluster.clone());
    registry.register(Box::new(EndpointsCollector::new(&views.endpoints)?))?;
    registry.register(Box::new(ProfilesCollector::new(&views.profiles)?))?;
    let reporter = HealthReporter::new();
    let server = DestinationServer::new(Arc::clone(&views), reporter.clone());
    readers.spawn("discovery-publisher", views.publisher().run(observer));
    servers.spawn("destination-server", Arc::new(server).serve(listener, stop));
    readers.spawn("destination-health", report_health(cluster.clone(), reporter));
    Ok(multicluster)
}

/// Reports SERVING once the caches have synced.
async fn report_health(cluster: Cluster, reporter: HealthReporter) {
    for service in server::HEALTH_SERVICES {
        reporter.set_service_status(service, NotServing).await;
    }
    cluster.known(observer::KINDS).await;
    for service in server::HEALTH_SERVICES {
        reporter.set_service_status(service, Serving).await;
    }
    std::future::pending::<()>().await;
}
