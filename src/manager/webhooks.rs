//! The webhook server: which reviews it answers, and with which certificate.
//!
//! In: the arguments, the handler of the injector. Out: a server, and the controller of its certificate. Always holds:
//! in place of a container of Linkerd, one handler answers on every path; a certificate is followed, so that a renewal
//! needs no restart.

use std::sync::Arc;

use tokio::net::TcpListener;

use super::{
    Parts,
    elections::Elections,
    process::{Process, Wait},
};
use crate::{
    drop_in::DropIn,
    external_workload::ExternalWorkloadValidator,
    linkerd_config::LinkerdConfigValidator,
    proxy_injector,
    service_profile_validator::{DropInHandler, ServiceProfileValidator},
    webhook::{
        self, Handler, Routes, ServingCertificate, ValidationHandler, ValidationMetrics, Validator, WebhookServer,
    },
    webhook_certificates::{self, CertificateDeps, CertificateSettings},
};

/// Starts the server if anything is to be answered. Returns its certificate.
pub(super) fn start(
    parts: &Parts,
    injector: Option<Arc<dyn Handler>>,
    listener: Option<TcpListener>,
    elections: &mut Elections,
    process: &mut Process,
) -> anyhow::Result<Option<Arc<ServingCertificate>>> {
    let (Some(handler), Some(listener)) = (handler(parts, injector)?, listener) else { return Ok(None) };
    let args = &parts.args;
    let certificate = match args.webhook_certificate_secret.as_deref().zip(parts.operator_namespace.as_deref()) {
        Some((secret, namespace)) => {
            let settings = CertificateSettings::new(namespace, secret, &args.webhook_service);
            start_certificates(parts, settings, elections, process)?
        }
        None => follow_files(parts, process)?,
    };
    webhook_certificates::publish_expiry(&certificate, &parts.registry)?;
    let server = WebhookServer {
        listener,
        certificate: Arc::clone(&certificate),
        handler,
        resources: parts.resources,
        shutdown_delay: args.shutdown_delay,
    };
    process.reviewers.spawn("webhook", server.serve(process.stop.clone()));
    Ok(Some(certificate))
}

/// Returns what answers reviews; `None` if nothing does.
fn handler(parts: &Parts, injector: Option<Arc<dyn Handler>>) -> anyhow::Result<Option<Arc<dyn Handler>>> {
    let Parts { args, client, registry, .. } = parts;
    if args.replaces == Some(DropIn::SpValidator) {
        return Ok(Some(Arc::new(DropInHandler::new(ValidationMetrics::register(registry)?))));
    }
    let mut routes = Routes::default();
    if args.enable_webhooks {
        let validators: Vec<Arc<dyn Validator>> = vec![
            Arc::new(LinkerdConfigValidator::new(client, parts.cluster.clone(), &args.controller_namespace)),
            Arc::new(ExternalWorkloadValidator),
            Arc::new(ServiceProfileValidator::new(client, args.enable_destination, &args.destination.cluster_domain)),
        ];
        let handler = ValidationHandler::new(validators, ValidationMetrics::register(registry)?);
        routes.add(webhook::VALIDATION_PATH, Arc::new(handler));
    }
    match injector {
        // Linkerd's container answers on every path.
        Some(injector) if args.replaces == Some(DropIn::ProxyInjector) => return Ok(Some(injector)),
        Some(injector) => routes.add(proxy_injector::PATH, injector),
        None => {}
    }
    Ok((!routes.is_empty()).then(|| Arc::new(routes) as Arc<dyn Handler>))
}

/// Follows the Secret with the certificate, and issues and renews it while this process leads.
fn start_certificates(
    parts: &Parts,
    settings: CertificateSettings,
    elections: &mut Elections,
    process: &mut Process,
) -> anyhow::Result<Arc<ServingCertificate>> {
    let certificate = Arc::<ServingCertificate>::default();
    let followed = webhook_certificates::follow(&parts.client, &settings.secret, &certificate, &mut process.readers);
    process.check(move || Wait::of(followed.problem(), followed.is_ready()));
    let Some(events) = &parts.events else { return Ok(certificate) };
    let namespace = settings.secret.namespace.to_string();
    let deps = CertificateDeps {
        client: parts.client.clone(),
        leadership: elections.elect(parts, &namespace, webhook_certificates::LEASE, None, process),
        events: events.clone(),
        registry: parts.registry.clone(),
    };
    let contest = webhook_certificates::spawn(deps, settings, process.stop.clone(), &mut process.writers)?;
    process.check(move || contest.problem().map(Wait::note).into_iter().collect());
    Ok(certificate)
}

fn follow_files(parts: &Parts, process: &mut Process) -> anyhow::Result<Arc<ServingCertificate>> {
    let folder = parts.args.webhook_folder.join(webhook::TLS_FOLDER);
    let certificate = ServingCertificate::from_folder(&folder)?;
    process.readers.spawn("webhook-certificate", Arc::clone(&certificate).follow(folder.clone()));
    let followed = Arc::clone(&certificate);
    process.check(move || followed.expired(folder.display()).map(Wait::note).into_iter().collect());
    Ok(certificate)
}
