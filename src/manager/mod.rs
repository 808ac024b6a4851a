//! The composition root, the only module that connects all others.
//!
//! ```text
//! run: arguments ─▶ Parts ─▶ each job starts ─▶ admin ─▶ Process: until a signal arrives or a task ends
//! ```
//!
//! In: the arguments. Out: a process that runs the enabled jobs. Always holds: addresses are bound before anything
//! starts; all jobs share one set of watches.

mod elections;
mod jobs;
mod process;
mod webhooks;

use std::sync::Arc;

use anyhow::Context;
use kube::Client;
use prometheus::Registry;
use tokio::net::TcpListener;
use tracing::{info, warn};

use self::{
    elections::Elections,
    jobs::Observers,
    process::{Process, StopSignals, Wait},
};
use crate::{
    admin::{self, Admin, MetricsAccess, Scrapes},
    api::NamespacedName,
    args::ManagerArgs,
    client,
    cluster::Cluster,
    dashboard::{self, Dashboard, DashboardParts},
    drop_in::DropIn,
    events::{self, Events, EventsApi},
    listen::listen,
    metrics,
    resources::{self, Resources},
    version, webhook,
};

/// The parts that all jobs share.
struct Parts {
    args: ManagerArgs,
    client: Client,
    registry: Registry,
    resources: Resources,
    /// The unique name of this process.
    identity: String,
    /// `None` if no job needs it.
    operator_namespace: Option<String>,
    /// `None` if no job watches objects.
    cluster: Option<Cluster>,
    /// `None` if no job writes Events. The writing task ends when the last handle is dropped.
    events: Option<Events>,
}

/// The addresses that this process serves; `None` for a job that is disabled.
struct Listeners {
    admin: TcpListener,
    destination: Option<TcpListener>,
    identity: Option<TcpListener>,
    webhook: Option<TcpListener>,
}

/// Runs until a signal arrives or a task ends.
///
/// # Errors
/// Fails if the kubeconfig cannot be read, if an address cannot be bound, or if a task ended unexpectedly.
pub async fn run(args: ManagerArgs) -> anyhow::Result<()> {
    let signals = StopSignals::listen()?;
    if let Err(error) = resources::raise_open_files() {
        warn!(%error, "could not raise the limit of open files");
    }
    let mut process = Process::default();
    let shutdown_delay = args.shutdown_delay;
    let (mut parts, listeners) = Parts::new(args)?;
    info!(
        version = version::VERSION,
        commit = version::COMMIT,
        identity = parts.identity,
        admin = %parts.args.admin_addr,
        "starting"
    );
    for notice in &parts.args.notices {
        warn!("{notice}");
    }
    let observers = Observers::new(&parts.args, &parts.registry)?;
    parts.connect(&observers, &mut process)?;
    let mut elections = Elections::new(&parts.registry)?;
    let own_destination = listeners.destination.as_ref().map(TcpListener::local_addr).transpose()?;

    let multicluster = observers.start_destination(&parts, listeners.destination, &mut process)?;
    let identity = jobs::start_identity(&parts, listeners.identity, &mut process)?;
    let injector = observers.start_proxy_injector(&parts, &mut process)?;
    let certificate = webhooks::start(&parts, injector, listeners.webhook, &mut elections, &mut process)?;
    observers.start_external_workload(&parts, &mut elections, &mut process)?;
    observers.start_linkerd_config(&parts, &mut elections, &mut process)?;
    observers.start_issuer_writer(&parts, &mut elections, &mut process)?;

    let leases = elections.leases.clone();
    process.check(move || leases.iter().filter_map(|lease| lease.leadership.problem()).map(Wait::note).collect());
    if let Some(remotes) = multicluster.clone() {
        process.check(move || remotes.problems().into_iter().map(Wait::note).collect());
    }
    let dashboard = DashboardParts {
        access: parts.args.dashboard,
        cluster_domain: parts.args.destination.cluster_domain.clone(),
        identity: parts.identity.clone(),
        pod: client::pod_namespace().map(|namespace| NamespacedName::new(namespace, host())),
        events: parts.events.as_ref().map(Events::recent),
        cluster: parts.cluster.clone(),
        multicluster,
        certificate,
        issuer: identity.as_ref().map(|shown| Arc::clone(&shown.issuer)),
        destination: own_destination.map(dashboard::own_address),
        leases: elections.leases,
    };
    let config_namespace = parts.operator_namespace.as_deref().filter(|_| parts.args.enable_linkerd_config);
    let admin = Admin {
        dashboard: Dashboard::new(dashboard, &parts.client, config_namespace),
        metrics_access: parts.args.metrics_authentication.then(|| MetricsAccess::new(&parts.client)),
        readiness: process.readiness(),
        scrapes: Scrapes::new(parts.registry.clone()),
        issued: identity.map(|shown| shown.issued),
    };
    process.readers.spawn("admin", admin::serve(listeners.admin, Arc::new(admin)));
    // The last handle to the queue of Events, besides those of the jobs.
    drop(parts);
    process.run(signals, shutdown_delay).await
}

// === impl Parts ===

impl Parts {
    /// Reads the kubeconfig and the limits of the process, and binds the addresses of the enabled jobs.
    fn new(args: ManagerArgs) -> anyhow::Result<(Self, Listeners)> {
        let (registry, resources) = (metrics::registry()?, Resources::of_this_process());
        if let Some(limit) = resources.memory_limit() {
            metrics::register_memory_limit(&registry, limit)?;
        }
        let config = match args.replaces == Some(DropIn::SpValidator) && !args.metrics_authentication {
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
        let listeners = Listeners::bind(&args)?;
        let identity = args.leader_election_identity.clone().unwrap_or_else(identity);
        let (cluster, events) = (None, None);
        Ok((Self { args, client, registry, resources, identity, operator_namespace, cluster, events }, listeners))
    }

    /// Starts what the jobs share: the watches of the kinds that the observers read, and the queue of Events.
    fn connect(&mut self, observers: &Observers, process: &mut Process) -> anyhow::Result<()> {
        let all = observers.all();
        if !all.is_empty() {
            let cluster = Cluster::spawn(&self.client, &all, &self.registry, &mut process.readers)?;
            self.cluster = Some(cluster.clone());
            process.check(move || cluster.problems().into_iter().map(jobs::wait_for_watch).collect());
        }
        let args = &self.args;
        let writes_events = args.enable_external_workload
            || args.enable_identity
            || args.enable_issuer_writer
            || args.enable_linkerd_config
            || args.enable_proxy_injector
            || args.webhook_certificate_secret.is_some();
        if writes_events {
            // In place of these containers, Linkerd's Roles permit only Events of the core.
            let api = match args.replaces {
                Some(DropIn::Identity | DropIn::ProxyInjector) => EventsApi::Core,
                _ => EventsApi::Events,
            };
            self.events = Some(events::spawn(&self.client, api, &self.identity, &self.registry, &mut process.support)?);
        }
        Ok(())
    }
}

// === impl Listeners ===

impl Listeners {
    fn bind(args: &ManagerArgs) -> anyhow::Result<Self> {
        let admin = listen(args.admin_addr, Some(admin::SEND_BUFFER), "probes and metrics", "--admin-addr")?;
        let destination = match args.enable_destination {
            true => Some(listen(args.destination.destination_addr, None, "proxies", "--destination-addr")?),
            false => None,
        };
        let identity = match args.enable_identity {
            true => Some(listen(args.identity.identity_addr, None, "certificates", "--identity-addr")?),
            false => None,
        };
        let replaces_validator = args.replaces == Some(DropIn::SpValidator);
        let webhook = match args.enable_proxy_injector || args.enable_webhooks || replaces_validator {
            true => Some(listen(args.webhook_addr, Some(webhook::SEND_BUFFER), "admission reviews", "--webhook-addr")?),
            false => None,
        };
        Ok(Self { admin, destination, identity, webhook })
    }
}

/// Returns a unique name of this process. The host's name is not unique, even in a pod: with `spec.hostname` or
/// `hostNetwork` several replicas have the same one, and all of them would lead. client-go adds a suffix, too.
fn identity() -> String {
    format!("{}_{:016x}", host(), rand::random::<u64>())
}

/// Returns the name of the host, which in a Pod is that of the Pod by default.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
