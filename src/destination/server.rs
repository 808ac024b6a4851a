//! The gRPC server: its connections, and its shutdown.
//!
//! In: plain HTTP/2 connections (a Linkerd proxy in the Pod, if it has one, terminates TLS). Out: `Get` and
//! `GetProfile` streams, and the health service. tonic's server is not used, because it encodes every message for each
//! stream and cannot reset a single stream.
//!
//! Always holds: connections, requests and clients that do not read have deadlines; a connection has a permit only
//! after its client has sent the HTTP/2 preface; when the process stops, streams end with OK and the server waits for
//! all its tasks, up to a timeout.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::unconstrained,
    time::{interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic_health::server::HealthReporter;
use tracing::debug;

use super::{
    call::Calls,
    http2::{
        connection::{self, ConnectionEnd},
        handshakes::Handshakes,
        stall::Shortage,
        transport::Transport,
        wake_time::WakeTime,
    },
    metrics::SERVICE,
    permits::{ConnectionPermits, limited_peer},
    views::Views,
};
use crate::{listen, resources::shares::Taken};

/// The names of the services that the health service reports.
pub(super) const HEALTH_SERVICES: [&str; 2] = ["", SERVICE];

/// How long a connection waits for a permit before it is closed.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);
const PERMIT_RETRY: Duration = Duration::from_millis(100);
/// How often shortages are determined.
const SHORTAGE_CHECK: Duration = Duration::from_millis(100);
/// The time for clients to receive the ends of their streams.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct DestinationServer {
    views: Arc<Views>,
    calls: Arc<Calls>,
    reporter: HealthReporter,
    permits: ConnectionPermits,
    /// Each connection that waits for a permit has a clone.
    waiting: Arc<()>,
    /// The resources that the connections must give up.
    shortage: watch::Sender<Shortage>,
}

// === impl DestinationServer ===

impl DestinationServer {
    pub(super) fn new(views: Arc<Views>, reporter: HealthReporter) -> Self {
        let calls = Arc::new(Calls::new(Arc::clone(&views), reporter.clone()));
        let permits = ConnectionPermits::new(views.settings.limits.connections);
        Self { views, calls, reporter, permits, waiting: Arc::default(), shortage: watch::Sender::default() }
    }

    /// Serves until `stop` is cancelled, and then until the streams have ended or the drain timeout has passed.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        tokio::select! {
            () = self.accept(&listener, &tasks, &stop) => {}
            () = self.report_shortages() => {}
            () = stop.cancelled() => {}
        }
        // New connections and streams are refused from now on, so that their clients use another replica.
        drop(listener);
        for service in HEALTH_SERVICES {
            self.reporter.set_service_status(service, tonic_health::ServingStatus::NotServing).await;
        }
        self.views.close();
        tasks.close();
        if timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
            debug!("some clients did not receive the ends of their streams before the drain timeout");
        }
    }

    /// Accepts connections, forever.
    async fn accept(self: &Arc<Self>, listener: &TcpListener, tasks: &TaskTracker, stop: &CancellationToken) {
        let mut handshakes = Handshakes::default();
        loop {
            let (stream, peer) = listen::accept(listener, "discovery").await;
            handshakes.make_room().await;
            let client = stream.local_addr().ok().and_then(|local| limited_peer(peer.ip(), local.ip()));
            let handshake = Arc::clone(self).handshake(stream, peer, tasks.clone(), stop.clone());
            handshakes.push(client, tasks.spawn(handshake));
        }
    }

    /// Waits for the preface and for a permit, and then serves the connection in another task.
    async fn handshake(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) {
        let accepted = async {
            let local = stream.local_addr()?;
            Ok((Transport::accept(stream).await?, local))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = stop.cancelled() => return,
        };
        let (transport, local) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let error: std::io::Error = error;
                debug!(%error, "rejected a discovery connection");
                return;
            }
        };
        let permit = tokio::select! {
            permit = self.permit(peer, local) => permit,
            () = stop.cancelled() => return,
        };
        let permit = match permit {
            Ok(permit) => permit,
            Err(end) => return self.views.metrics.connection_ended(end),
        };
        let wake_time = WakeTime::new();
        let connection = self.connection(transport, permit, stop, Arc::clone(&wake_time));
        // The connection limits its own turns. Polling idle streams would use up tokio's budget.
        tasks.spawn(unconstrained(wake_time.track(connection)));
    }

    /// Acquires a permit for a connection. While it waits, connections without streams are asked to close.
    async fn permit(&self, peer: SocketAddr, local: SocketAddr) -> Result<Taken, ConnectionEnd> {
        if self.views.settings.limits.memory.is_exhausted() {
            return Err(ConnectionEnd::Memory);
        }
        if let Ok(permit) = self.permits.try_acquire(peer.ip(), local.ip()) {
            return Ok(permit);
        }
        let _waits = Arc::clone(&self.waiting);
        let taken = async {
            loop {
                sleep(PERMIT_RETRY).await;
                if let Ok(permit) = self.permits.try_acquire(peer.ip(), local.ip()) {
                    return permit;
                }
            }
        };
        timeout(PERMIT_TIMEOUT, taken).await.map_err(|_| ConnectionEnd::Full)
    }

    async fn connection(
        self: Arc<Self>,
        transport: Transport,
        _permit: Taken,
        stop: CancellationToken,
        wake_time: Arc<WakeTime>,
    ) {
        let metrics = &self.views.metrics;
        let _open = metrics.connection();
        let shares = Arc::new(self.calls.shares());
        let answer = |request| {
            let (calls, shares) = (Arc::clone(&self.calls), Arc::clone(&shares));
            async move { calls.answer(request, &shares).await }
        };
        let limits = &self.views.settings.limits;
        let end = connection::serve(transport, &wake_time, limits, &stop, self.shortage.subscribe(), answer).await;
        metrics.connection_ended(end);
    }

    /// Asks the connections for memory while too much is allocated, and for permits while connections wait for them.
    async fn report_shortages(&self) {
        let mut check = interval(SHORTAGE_CHECK);
        loop {
            check.tick().await;
            let of_memory = self.views.settings.limits.memory.is_exhausted();
            let of_connections = Arc::strong_count(&self.waiting) > 1;
            self.shortage.send_if_modified(|shortage| {
                shortage.of_memory += u64::from(of_memory);
                shortage.of_connections += u64::from(of_connections);
                of_memory || of_connections
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use tonic_health::{
        pb::{HealthCheckRequest, health_server::Health},
        server::HealthService,
    };

    use super::*;
    use crate::{
        cluster::testing::Feed,
        destination::{DestinationObserver, metrics::DiscoveryMetrics, testing::settings},
    };

    #[tokio::test]
    async fn a_server_that_stops_reports_not_serving_for_its_service_too() {
        let metrics = DiscoveryMetrics::register(&prometheus::Registry::new()).unwrap();
        let reporter = HealthReporter::new();
        for service in HEALTH_SERVICES {
            reporter.set_service_status(service, tonic_health::ServingStatus::Serving).await;
        }
        let service = HealthService::from_health_reporter(reporter.clone());
        let views = Views::new(Feed::default().cluster, &DestinationObserver::new(), settings().into(), metrics, None);
        let stop = CancellationToken::new();
        stop.cancel();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Arc::new(DestinationServer::new(views, reporter)).serve(listener, stop).await;
        for name in HEALTH_SERVICES {
            let request = tonic::Request::new(HealthCheckRequest { service: name.to_owned() });
            let status = service.check(request).await.unwrap().into_inner().status();
            assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::NotServing, "{name:?}");
        }
    }
}
