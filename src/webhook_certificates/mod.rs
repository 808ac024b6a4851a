//! The self-managed certificate of the webhooks: one authority and one leaf in a Secret.
//!
//! ```text
//!                 ┌──────── leader: controller ─ plan ─ issue ───────┐
//!                 ▼ watch, read                                write ▼
//!   Secret, webhook configurations              Secret: ca.crt, ca.key, tls.crt, tls.key
//!                                               webhook configurations: caBundle
//!   Secret ──watch──▶ every replica: follow ──▶ ServingCertificate ──▶ TLS handshakes
//! ```
//!
//! In: a Secret, and the webhook configurations with our label that call our Service. Out: a certificate that the API
//! servers trust, in each replica. Always holds: the order of a rotation is that of `plan`; only the leader writes;
//! a replica without a certificate waits, and one with a certificate keeps it until it has a new one.

mod controller;
mod follow;
mod issue;
mod metrics;
mod plan;
mod registration;
mod secret;
#[cfg(test)]
mod testing;
mod x509;

use std::sync::Arc;

use kube::Client;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;

use crate::{
    api::NamespacedName,
    events::Events,
    lease::{Fence, Leadership},
    tasks::Tasks,
    webhook::ServingCertificate,
};
pub use controller::BundleContest;
use controller::CertificateController;
pub use follow::FollowedSecret;
use metrics::CertificateMetrics;
pub use metrics::publish_expiry;

/// The Lease of the replica that writes the certificate, in the operator's namespace: the certificate must not depend on
/// the namespace of Linkerd.
pub const LEASE: &str = "linkerd-operator-webhook-certificate";

/// The parts of the process that the certificates use.
pub struct CertificateDeps {
    pub client: Client,
    pub leadership: Leadership,
    pub events: Events,
    pub registry: Registry,
}

/// The Secret with the certificate, and the Service that the API servers call. Both are in the operator's namespace.
#[derive(Clone, Debug)]
pub struct CertificateSettings {
    pub secret: NamespacedName,
    pub service: NamespacedName,
}

// === impl CertificateSettings ===

impl CertificateSettings {
    pub fn new(namespace: &str, secret: &str, service: &str) -> Self {
        Self { secret: NamespacedName::new(namespace, secret), service: NamespacedName::new(namespace, service) }
    }
}

/// Starts the task that hands the pair of the Secret to the server.
pub fn follow(
    client: &Client,
    secret: &NamespacedName,
    certificate: &Arc<ServingCertificate>,
    readers: &mut Tasks,
) -> FollowedSecret {
    let followed = FollowedSecret::new(secret.clone(), Arc::clone(certificate));
    readers.spawn("webhook-secret", followed.clone().follow(client.clone()));
    followed
}

/// Starts the controller that issues the certificates. When `stop` is cancelled, it finishes its pass and ends. Returns
/// the client that resets a `caBundle`, if there is one.
///
/// # Errors
/// When the metrics are registered already.
pub fn spawn(
    deps: CertificateDeps,
    settings: CertificateSettings,
    stop: CancellationToken,
    writers: &mut Tasks,
) -> prometheus::Result<BundleContest> {
    let CertificateDeps { client, leadership, events, registry } = deps;
    let CertificateSettings { secret, service } = settings;
    let contest = BundleContest::default();
    let controller = CertificateController {
        client,
        names: vec![format!("{}.{}.svc", service.name, service.namespace)],
        secret,
        service,
        fence: Fence::new(leadership.clone(), stop.clone()),
        leadership,
        events,
        metrics: CertificateMetrics::register(&registry)?,
        contest: contest.clone(),
    };
    writers.spawn("webhook-certificates", controller.run(stop));
    Ok(contest)
}
