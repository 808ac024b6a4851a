//! The composition root, the only module that connects all others. The code of [`run`] is in the order of the life of
//! the process: start, serve, stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    admin::{self, Admin, MetricsAccess, Readiness, Scrapes},
    api::NamespacedName,
    args::ManagerArgs,
    client,
    cluster::{Cluster, Observer},
    controller::ControllerDeps,
    dashboard::{self, Dashboard, DashboardParts, ElectedLease},
    destination::{self, DestinationObserver, LinksObserver},
    events::{self, EventsApi},
    external_workload::{self, ExternalWorkloadObserver, ExternalWorkloadValidator},
    lease,
    linkerd_config::{self, LinkerdConfigObserver, LinkerdConfigValidator, RolloutObserver},
    listen::listen,
    metrics,
    proxy_injector::{self, InjectorObserver},
    resources::{self, Resources},
    service_profile_validator::{DropInHandler, ServiceProfileValidator},
    tasks::Tasks,
    version,
    webhook::{
        self, Handler, Routes, ServingCertificate, ValidationHandler, ValidationMetrics, Validator, WebhookServer,
    },
    webhook_certificates,
};

/// The deadline for streams to end.
const STOP_SERVING: Duration = Duration::from_secs(4);
/// The deadline for the end of the webhook server, after the delay.
const STOP_REVIEWING: Duration = WebhookServer::DRAIN_TIME.saturating_add(Duration::from_secs(1));
/// The deadline for writes that are in progress at shutdown; each write has a shorter timeout.
const STOP_WRITING: Duration = Duration::from_secs(12);
/// The deadline for handing over Leases and writing the last Events.
const STOP_REST: Duration = Duration::from_secs(4);

/// Runs until a signal arrives or a task ends.
///
/// # Errors
/// Fails if the kubeconfig cannot be read, if an address cannot be bound, or if a task ended unexpectedly.
pub async fn run(args: ManagerArgs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    if let Err(error) = resources::raise_open_files() {
        warn!(%error, "could not raise the limit of open files");
    }
    let (registry, resources) = (metrics::registry()?, Resources::of_this_process());
    if let Some(limit) = resources.memory_limit() {
        metrics::register_memory_limit(&registry, limit)?;
    }
    let config = match args.replaces_sp_validator && !args.metrics_authentication {
        // It sends no request, so it needs neither a kubeconfig nor a ServiceAccount.
        true => client::unused(),
        false => client::config(args.kubeconfig.as_deref())?,
    };
    let operator_namespace = match args.enable_linkerd_config || args.webhook_certificate_secret.is_some() {
        true => Some(args.operator_namespace.clone().or_else(client::pod_namespace).context(
            "the operator's namespace is unknown outside a pod: set --operator-namespace, for example to \
             linkerd-operator-system, or --enable-linkerd-config=false without --webhook-certificate-secret",
        )?),
        false => None,
    };
    let client = client::client(config, &registry)?;
    let admin_listener = listen(args.admin_addr, Some(admin::SEND_BUFFER), "probes and metrics", "--admin-addr")?;
    let destination_listener = match args.enable_destination {
        true => Some(listen(args.destination.destination_addr, None, "proxies", "--destination-addr")?),
        false => None,
    };
    let own_destination = destination_listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let webhook_listener = match args.enable_proxy_injector || args.enable_webhooks || args.replaces_sp_validator {
        true => Some(listen(args.webhook_addr, Some(webhook::SEND_BUFFER), "admission reviews", "--webhook-addr")?),
        false => None,
    };
    let identity = args.leader_election_identity.clone().unwrap_or_else(identity);
    info!(version = version::VERSION, commit = version::COMMIT, identity, admin = %args.admin_addr, "starting");
    for notice in &args.notices {
        warn!("{notice}");
    }

    // The tasks, in the order in which they stop: servers and writers, then Leases, then webhooks, then Events, then
    // readers.
    let (mut servers, mut writers, mut reviewers) = (Tasks::default(), Tasks::default(), Tasks::default());
    let (mut support, mut readers) = (Tasks::default(), Tasks::default());
    let (stop, stop_leases) = (CancellationToken::new(), CancellationToken::new());

    // All jobs share one set of watches; a kind that no job reads is not watched.
    let destination_observer = args.enable_destination.then(DestinationObserver::new);
    let external_workload_observer =
        args.enable_external_workload.then(|| ExternalWorkloadObserver::new(&registry)).transpose()?;
    let linkerd_config_observers = match args.enable_linkerd_config {
        true => Some((LinkerdConfigObserver::new(&args.controller_namespace, &registry)?, RolloutObserver::new())),
        false => None,
    };
    let mut observers: Vec<Arc<dyn Observer>> = Vec::new();
    observers.extend(external_workload_observer.clone().map(|observer| observer as Arc<dyn Observer>));
    observers.extend(destination_observer.clone().map(|observer| observer as Arc<dyn Observer>));
    if let Some((configs, rollouts)) = &linkerd_config_observers {
        observers.push(Arc::clone(configs) as Arc<dyn Observer>);
        observers.push(Arc::clone(rollouts) as Arc<dyn Observer>);
    }
    let enable_multicluster = args.enable_destination && args.enable_multicluster.unwrap_or(false);
    let links = enable_multicluster.then(|| LinksObserver::new(&args.controller_namespace));
    observers.extend(links.clone().map(|observer| observer as Arc<dyn Observer>));
    let injector_observer = args.enable_proxy_injector.then(|| {
        let config_maps = args.replaced_injector.is_none().then_some(args.controller_namespace.as_str());
        InjectorObserver::new(config_maps)
    });
    observers.extend(injector_observer.clone().map(|observer| observer as Arc<dyn Observer>));
    let cluster = match observers.is_empty() {
        true => None,
        false => Some(Cluster::spawn(&client, &observers, &registry, &mut readers)?),
    };
    let mut multicluster = None;
    if let (Some(cluster), Some(observer), Some(listener)) = (&cluster, destination_observer, destination_listener) {
        let deps = destination::DestinationDeps { cluster, observer, registry: &registry, listener, links };
        let settings = args.destination.settings(&args.controller_namespace, resources);
        multicluster = destination::spawn(deps, settings, stop.clone(), &mut servers, &mut readers)?;
    }
    // This task ends when the last sender of Events is dropped, which is after the controllers and the webhook have
    // stopped. In place of Linkerd's injector, Linkerd's Role permits only Events of the core.
    let api = if args.replaced_injector.is_some() { EventsApi::Core } else { EventsApi::Events };
    let writes_events = args.enable_external_workload
        || args.enable_linkerd_config
        || args.enable_proxy_injector
        || args.webhook_certificate_secret.is_some();
    let events = writes_events.then(|| events::spawn(&client, api, &identity, &registry, &mut support)).transpose()?;
    let (mut routes, mut webhooks, mut injector) = (Routes::default(), None::<Arc<dyn Handler>>, None);
    if let (Some(cluster), Some(observer), Some(events)) = (&cluster, injector_observer, &events) {
        let deps = proxy_injector::InjectorDeps { client: &client, cluster, observer, registry: &registry, events };
        let settings = proxy_injector::InjectorSettings {
            controller_namespace: args.controller_namespace.clone(),
            version: args.replaced_injector.clone().unwrap_or_else(|| version::whole().to_owned()),
            folder: args.webhook_folder.clone(),
        };
        let (handler, configuration) = proxy_injector::spawn(deps, settings, &mut readers)?;
        injector = Some(configuration);
        match args.replaced_injector {
            // Linkerd's container answers on every path.
            Some(_) => webhooks = Some(handler),
            None => routes.add(proxy_injector::PATH, handler),
        }
    }
    if args.replaces_sp_validator {
        webhooks = Some(Arc::new(DropInHandler::new(ValidationMetrics::register(&registry)?)));
    }
    if args.enable_webhooks {
        let validators: Vec<Arc<dyn Validator>> = vec![
            Arc::new(LinkerdConfigValidator::new(&client, cluster.clone(), &args.controller_namespace)),
            Arc::new(ExternalWorkloadValidator),
            Arc::new(ServiceProfileValidator::new(&client, args.enable_destination, &args.destination.cluster_domain)),
        ];
        let handler = ValidationHandler::new(validators, ValidationMetrics::register(&registry)?);
        routes.add(webhook::VALIDATION_PATH, Arc::new(handler));
    }
    if !routes.is_empty() {
        webhooks = Some(Arc::new(routes));
    }
    let certificates =
        args.webhook_certificate_secret.as_deref().zip(operator_namespace.as_deref()).map(|(secret, namespace)| {
            webhook_certificates::CertificateSettings::new(namespace, secret, &args.webhook_service)
        });
    let (mut followed, mut serving, mut from_files) = (None, None, None);
    if let (Some(handler), Some(listener)) = (webhooks, webhook_listener) {
        let certificate = match &certificates {
            Some(settings) => {
                let certificate = Arc::<ServingCertificate>::default();
                followed = Some(webhook_certificates::follow(&client, &settings.secret, &certificate, &mut readers));
                certificate
            }
            None => {
                let tls = args.webhook_folder.join(webhook::TLS_FOLDER);
                let certificate = ServingCertificate::from_folder(&tls)?;
                from_files = Some((Arc::clone(&certificate), tls.clone()));
                readers.spawn("webhook-certificate", Arc::clone(&certificate).follow(tls));
                certificate
            }
        };
        webhook_certificates::publish_expiry(&certificate, &registry)?;
        serving = Some(Arc::clone(&certificate));
        let server = WebhookServer { listener, certificate, handler, resources, shutdown_delay: args.shutdown_delay };
        reviewers.spawn("webhook", server.serve(stop.clone()));
    }
    let elections = lease::ElectionMetrics::register(&registry)?;
    let mut leases = Vec::new();
    let mut elect = |namespace: &str, name, required: Option<lease::Leadership>, metrics: &lease::ElectionMetrics| {
        let election = lease::ElectionSettings {
            namespace: namespace.to_owned(),
            name,
            identity: identity.clone(),
            duration: args.leader_election_lease_duration,
            renew_deadline: args.leader_election_renew_deadline,
            retry_period: args.leader_election_retry_period,
        };
        let leadership = lease::spawn(&client, election, required, metrics, stop_leases.clone(), &mut support);
        leases.push(ElectedLease { namespace: namespace.to_owned(), name, leadership: leadership.clone() });
        leadership
    };
    let mut contest = None;
    if let (Some(settings), Some(events), true) = (certificates, &events, followed.is_some()) {
        let namespace = settings.secret.namespace.to_string();
        let leadership = elect(&namespace, webhook_certificates::LEASE, None, &elections);
        let deps = webhook_certificates::CertificateDeps {
            client: client.clone(),
            leadership: leadership.clone(),
            events: events.clone(),
            registry: registry.clone(),
        };
        contest = Some(webhook_certificates::spawn(deps, settings, stop.clone(), &mut writers)?);
    }
    if let (Some(cluster), Some(events)) = (&cluster, &events) {
        let deps = |leadership: &lease::Leadership| ControllerDeps {
            client: client.clone(),
            cluster: cluster.clone(),
            leadership: leadership.clone(),
            events: events.clone(),
            registry: registry.clone(),
        };
        if let Some(observer) = &external_workload_observer {
            let leadership = elect(&args.controller_namespace, external_workload::LEASE, None, &elections);
            let settings = external_workload::ExternalWorkloadSettings {
                concurrency: args.external_workload_concurrency,
                full_pass_interval: args.full_pass_interval,
            };
            external_workload::spawn(&deps(&leadership), observer, settings, stop.clone(), &mut writers)?;
        }
        if let Some(((observer, rollout_observer), operator_namespace)) =
            linkerd_config_observers.as_ref().zip(operator_namespace.as_deref())
        {
            // Earlier versions hold the Lease in the operator's namespace. During an upgrade they must not lead at the
            // same time, so this one is acquired first. It decides nothing else, and has no metrics.
            let former = (*operator_namespace != args.controller_namespace)
                .then(|| anyhow::Ok(lease::ElectionMetrics::register(&prometheus::Registry::new())?))
                .transpose()?
                .map(|metrics| elect(operator_namespace, linkerd_config::LEASE, None, &metrics));
            let leadership = elect(&args.controller_namespace, linkerd_config::LEASE, former, &elections);
            let namespaces = linkerd_config::Namespaces {
                control_plane: args.controller_namespace.as_str().into(),
                operator: operator_namespace.into(),
            };
            let (deps, rollout_observer) = (deps(&leadership), Arc::clone(rollout_observer));
            linkerd_config::spawn(&deps, observer, rollout_observer, namespaces, stop.clone(), &mut writers)?;
        }
    }
    // The writing task ends when the last handle to the queue is dropped.
    let recent_events = events.map(|events| events.recent());
    let parts = DashboardParts {
        access: args.dashboard,
        identity,
        pod: client::pod_namespace().map(|namespace| NamespacedName::new(namespace, host())),
        events: recent_events,
        cluster: cluster.clone(),
        multicluster: multicluster.clone(),
        certificate: serving,
        destination: own_destination.map(dashboard::own_address),
        leases: leases.clone(),
    };
    let config_namespace = operator_namespace.as_deref().filter(|_| args.enable_linkerd_config);
    let dashboard = Dashboard::new(parts, &client, config_namespace);
    let stopping = stop.clone();
    let refuses_unsupported =
        args.enable_destination && !enable_multicluster && !args.allow_unsupported_services.unwrap_or(true);
    let has_been_ready = AtomicBool::new(false);
    let readiness = Box::new(move || {
        let problems = cluster.as_ref().map(Cluster::problems).unwrap_or_default();
        let leadership = leases.iter().filter_map(|lease| lease.leadership.problem());
        let remotes = multicluster.as_ref().map(|it| it.problems()).unwrap_or_default();
        let unsupported = cluster.as_ref().filter(|_| refuses_unsupported).and_then(destination::unsupported_services);
        let injector_waits = injector.as_ref().is_some_and(|injector| !injector.is_ready());
        let configuration = injector.as_ref().and_then(proxy_injector::ConfigurationStatus::problem);
        let certificate = followed.as_ref().and_then(webhook_certificates::FollowedSecret::problem);
        let files = from_files.as_ref().and_then(|(certificate, folder)| certificate.expired(folder.display()));
        let contest = contest.as_ref().and_then(webhook_certificates::BundleContest::problem);
        let certificate_waits = followed.as_ref().is_some_and(|followed| !followed.is_ready());
        let kinds_wait = problems.iter().any(|problem| problem.blocks_readiness);
        // This stops an installation that would lose traffic. Later, a tenant who creates such a Service must not take
        // discovery from the whole mesh.
        let unsupported_waits = unsupported.is_some() && !has_been_ready.load(Ordering::Relaxed);
        let waits = unsupported_waits || injector_waits || certificate_waits || kinds_wait;
        has_been_ready.fetch_or(!waits, Ordering::Relaxed);
        let texts = problems.into_iter().map(|problem| problem.text).chain(unsupported).chain(configuration);
        let texts = texts.chain(certificate).chain(files).chain(contest);
        Readiness {
            ready: !stopping.is_cancelled() && !waits,
            waiting_for: texts.chain(leadership).chain(remotes).collect(),
        }
    });
    let metrics_access = args.metrics_authentication.then(|| MetricsAccess::new(&client));
    let admin = Admin { scrapes: Scrapes::new(registry), metrics_access, readiness, dashboard };
    readers.spawn("admin", admin::serve(admin_listener, Arc::new(admin)));

    let died = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = servers.ended() => Some(ended),
        ended = writers.ended() => Some(ended),
        ended = reviewers.ended() => Some(ended),
        ended = support.ended() => Some(ended),
        ended = readers.ended() => Some(ended),
    };

    info!(
        "stopping: streams are closed, writes in progress are finished, then Leases are handed over; webhooks are served \
         until other replicas are called"
    );
    stop.cancel();
    let orderly = async {
        let hand_over = async {
            tokio::join!(servers.finish(STOP_SERVING), writers.finish(STOP_WRITING));
            stop_leases.cancel();
        };
        tokio::join!(hand_over, reviewers.finish(args.shutdown_delay + STOP_REVIEWING));
        support.finish(STOP_REST).await;
    };
    tokio::select! {
        () = orderly => info!("stopped"),
        _ = terminate.recv() => bail!("a second signal arrived: stopped immediately"),
        _ = interrupt.recv() => bail!("a second signal arrived: stopped immediately"),
    }
    match died {
        Some(ended) => bail!("{ended}, so the process exits"),
        None => Ok(()),
    }
}

/// Returns a unique name of this process. The host's name is not unique, even in a pod: with `spec.hostname` or
/// `hostNetwork` several replicas have the same one, and all of them would lead. client-go adds a suffix, too.
fn identity() -> String {
    format!("{}_{:016x}", host(), rand::random::<u64>())
}

/// Returns the name of the host, which in a Pod is that of the Pod by default.
fn host() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}
