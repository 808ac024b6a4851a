//! Linkerd's identity service: the certificates of all proxies.
//!
//! A proxy sends its name, the token of its ServiceAccount and a certificate signing request (CSR). The service verifies
//! all three, and signs a certificate, the leaf, with the key of the issuer.
//!
//! ```text
//! files or objects ──▶ anchors, issuer: what is trusted, the key, the chain that is sent
//! call  ──▶ csr: parse, check_name ──▶ TokenReview ──▶ username ──▶ rates ──▶ possession ──▶ issuer: issue ──▶ leaf
//! ```
//!
//! Always holds: the name in a leaf is the name of the ServiceAccount whose token was sent; the workload chooses nothing
//! else of its leaf but the public key, and it has the private key; no private key is printed.

mod access;
pub(crate) mod csr;
mod events;
mod follow;
mod issued;
pub(crate) mod issuer;
#[cfg(test)]
mod issuer_tests;
mod metrics;
mod observer;
mod possession;
mod rates;
#[cfg(test)]
mod recorded_tests;
pub(crate) mod refusal;
mod review;
mod server;
mod service;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod username;
pub(crate) mod validity;

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use self::{
    events::IdentityEvents,
    follow::{IssuerFollower, IssuerSource, objects::IssuerObjects, trust_guard::TrustGuard},
    metrics::IdentityMetrics,
    possession::ProvenRequests,
    rates::IssuanceRates,
    review::Reviewer,
    server::{IdentityServer, tls::OwnCertificate},
    service::CertifyService,
    username::IdentityDomain,
    validity::LeafLifetime,
};
pub use self::{
    follow::{
        FollowedIssuer,
        files::{IssuerFileNames, IssuerFiles},
    },
    issued::IssuedLeaves,
    observer::IdentityObserver,
    validity::{RenewWithin, SHORTEST_RENEW_WITHIN},
};
use crate::{
    cluster::{Cluster, Kind},
    events::Events,
    retry::ReportRate,
    tasks::Tasks,
};

/// The time for calls under way when the process stops.
pub const DRAIN_TIME: Duration = server::DRAIN_TIME;

/// How long the first issuer waits for the list of LinkerdTrusts. Without it, proxies need certificates all the same.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// What the service needs of the process.
pub struct IdentityDeps<'a> {
    pub client: &'a Client,
    /// Has LinkerdTrusts. `None` if they are not watched: then no new issuer is held.
    pub cluster: Option<&'a Cluster>,
    pub registry: &'a Registry,
    /// `None` if no Events are written.
    pub events: Option<Events>,
    pub listener: TcpListener,
    /// The maximum number of connections.
    pub connections: usize,
}

pub struct IdentitySettings {
    /// The namespace of Linkerd's control plane.
    pub controller_namespace: String,
    pub trust_domain: String,
    pub files: IssuerFiles,
    /// Whether the Secret and the ConfigMap are watched, in place of the files.
    pub watches_objects: bool,
    /// How long certificates are valid; zero is a year, as in Linkerd.
    pub issuance_lifetime: SignedDuration,
    /// How soon proxies renew their certificates.
    pub renew_within: RenewWithin,
    /// By how much the clocks of proxies may differ; zero is 10 s, as in Linkerd.
    pub clock_skew_allowance: SignedDuration,
    /// The maximum number of TokenReviews at the same time.
    pub max_token_reviews: usize,
    /// Whether a token without the audience of the identity service is accepted if it is one for the API server.
    pub allow_api_audience: bool,
    /// Whether there are Events about the certificates of ServiceAccounts.
    pub issued_events: bool,
    /// Whether the server terminates TLS itself, with a certificate of its own issuer.
    pub tls: bool,
}

/// Returns why no identities can be formed with these names.
///
/// # Errors
/// When the namespace is not a DNS label, or the trust domain not a DNS subdomain in lower case.
pub fn check_names(controller_namespace: &str, trust_domain: &str) -> Result<(), String> {
    IdentityDomain::new(controller_namespace, trust_domain).map(drop)
}

/// What the admin server shows of the service.
#[derive(Clone)]
pub struct ShownIdentity {
    pub issuer: Arc<FollowedIssuer>,
    pub issued: Arc<IssuedLeaves>,
}

/// Starts the service.
///
/// # Errors
/// When a metric is registered already, or a name is not valid.
pub fn spawn(
    deps: IdentityDeps<'_>,
    settings: IdentitySettings,
    stop: CancellationToken,
    servers: &mut Tasks,
    readers: &mut Tasks,
) -> anyhow::Result<ShownIdentity> {
    let domain =
        IdentityDomain::new(&settings.controller_namespace, &settings.trust_domain).map_err(anyhow::Error::msg)?;
    let metrics = IdentityMetrics::register(deps.registry)?;
    let events = IdentityEvents::new(deps.events, &settings.controller_namespace, settings.issued_events);
    let followed = FollowedIssuer::new();
    let source = match settings.watches_objects {
        true => {
            let objects = IssuerObjects::new(&settings.controller_namespace, settings.files.names);
            readers.spawn("identity-objects", objects.watch(deps.client, &settings.controller_namespace));
            IssuerSource::Objects(objects)
        }
        false => IssuerSource::Files(settings.files),
    };
    let lifetime = LeafLifetime::new(settings.issuance_lifetime, settings.clock_skew_allowance);
    let guard = deps.cluster.map(|cluster| {
        let (cluster, namespace) = (cluster.clone(), settings.controller_namespace.clone());
        let source = move || cluster.read().linkerd_trusts.in_effect(&namespace).cloned();
        TrustGuard::new(Box::new(source), &settings.controller_namespace, lifetime.settings(&settings.trust_domain))
    });
    let follower = IssuerFollower::new(source, domain.clone(), &followed, &metrics, events.clone()).guarded_by(guard);
    let access = access::warn_unless_permitted(deps.client.clone());
    // It has a handle to the queue of Events, which ends when the last one is dropped.
    let cluster = deps.cluster.cloned();
    let follow = async {
        // Whether proxies refuse the first issuer is said by the LinkerdTrust.
        if let Some(cluster) = cluster {
            _ = timeout(LISTED_WITHIN, cluster.known(&[Kind::LinkerdTrust])).await;
        }
        _ = tokio::join!(follower.follow(), access);
    };
    let stopped = stop.clone();
    servers.spawn("identity-issuer", async move { _ = stopped.run_until_cancelled(follow).await });
    let reviewer = Reviewer::new(deps.client, settings.max_token_reviews, settings.allow_api_audience, &metrics);
    let tls = match settings.tls {
        true => {
            let certificate = Arc::<OwnCertificate>::default();
            let renewed = Arc::clone(&certificate).renew(Arc::clone(&followed), domain.clone(), lifetime);
            readers.spawn("identity-certificate", renewed);
            Some(server::tls::acceptor(certificate)?)
        }
        false => None,
    };
    let issued = IssuedLeaves::new(Timestamp::now());
    let service = CertifyService {
        domain,
        lifetime,
        renew_within: settings.renew_within,
        issued: Arc::clone(&issued),
        followed: Arc::clone(&followed),
        reviewer,
        rates: Mutex::new(IssuanceRates::default()),
        proven: Mutex::new(ProvenRequests::default()),
        metrics,
        events,
        expired: ReportRate::new(service::REPORTS),
    };
    servers.spawn("identity", IdentityServer::new(service, tls, deps.connections).serve(deps.listener, stop));
    Ok(ShownIdentity { issuer: followed, issued })
}
