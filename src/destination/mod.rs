//! The destination server: for each Linkerd proxy, what there is at the Services it asks for, and every change of it.
//!
//! ```text
//! cluster ──observer──▶ DirtySet ──▶ views: State ─▶ Members ─▶ Snapshot ──watch──▶ stream ─▶ transport ─▶ proxy
//!                                  (members, view, endpoint, endpoint_set, snapshot: pure)
//!                  ▶ profile::views: State ─▶ Answer ─▶ frame ──watch──▶ stream
//! ```
//!
//! In: the cluster's state, requests. Out: `Get` and `GetProfile` streams of the Destination API. Always holds: a client's folded state is a
//! pure function of what the watches have said, whatever the order; live and fresh streams are told the same; a client
//! that does not read costs nobody but itself.

mod authority;
mod context_token;
mod endpoint;
mod frame;
mod get;
mod http2;
mod metrics;
mod multicluster;
mod observer;
#[cfg(test)]
mod oracle_tests;
mod profile;
mod registry;
mod server;
pub mod settings;
mod stream;

use std::{sync::Arc, time::Duration};

use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tonic_health::{
    ServingStatus::{NotServing, Serving},
    server::HealthReporter,
};

use crate::{cluster::Cluster, tasks::Tasks};
pub use observer::DestinationObserver;
pub use settings::Settings;
use {
    get::{collector::Groups, views::Views},
    metrics::Metrics,
    multicluster::OtherClusters,
    profile::collector::Subscribers,
    server::Server,
};

/// What the destination is made of; see [`spawn`].
pub struct Parts<'a> {
    pub cluster: &'a Cluster,
    pub observer: Arc<DestinationObserver>,
    pub registry: &'a Registry,
    pub listener: tokio::net::TcpListener,
}

/// Starts the destination: the publisher, and the server, which ends after its streams when `stop` is cancelled.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    parts: Parts<'_>,
    settings: Settings,
    stop: CancellationToken,
    servers: &mut Tasks,
    readers: &mut Tasks,
) -> prometheus::Result<()> {
    let Parts { cluster, observer, registry, listener } = parts;
    let metrics = Metrics::register(registry)?;
    let views = Views::new(cluster.clone(), settings, metrics);
    registry.register(Box::new(Groups::new(&views)?))?;
    registry.register(Box::new(Subscribers::new(&views)?))?;
    registry.register(Box::new(OtherClusters::new(cluster)?))?;
    let reporter = HealthReporter::new();
    let server = Server::new(Arc::clone(&views), reporter.clone());
    readers.spawn("discovery-publisher", views.publish(observer));
    servers.spawn("destination-server", Arc::new(server).serve(listener, stop));
    readers.spawn("other-clusters", multicluster::tell(cluster.clone()));
    readers.spawn("destination-health", report_health(cluster.clone(), reporter));
    Ok(())
}

/// Says that we serve, once we can.
async fn report_health(cluster: Cluster, reporter: HealthReporter) {
    for service in server::HEALTH_OF {
        reporter.set_service_status(service, NotServing).await;
    }
    discoverable(&cluster).await;
    for service in server::HEALTH_OF {
        reporter.set_service_status(service, Serving).await;
    }
    std::future::pending::<()>().await;
}

/// Once everything was listed; nobody has to be told to the millisecond.
async fn discoverable(cluster: &Cluster) {
    while !cluster.knows(observer::KINDS) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
