//! The composition root: the only place where the modules meet. Read from top to bottom it is the life of the process.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    admin::{self, Admin, Readiness},
    args::ManagerArgs,
    client,
    cluster::{Cluster, Readers, dirty::Dirty},
    controller, destination, events, external_workload, lease, linkerd_config,
    listen::listen,
    metrics,
    queue::WorkQueue,
    resources::Resources,
    tasks::Tasks,
    version,
};

/// For streams to end.
const STOP_SERVING: Duration = Duration::from_secs(4);
/// For the writes under way when the process is told to stop; each is bounded by less.
const STOP_WRITING: Duration = Duration::from_secs(12);
/// For handing Leases over and writing the last Events.
const STOP_REST: Duration = Duration::from_secs(4);

/// Runs until a signal, or until a task dies.
///
/// # Errors
/// When the kubeconfig cannot be read, the admin address cannot be bound, or a task ended by itself.
pub async fn run(args: ManagerArgs) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let registry = metrics::registry()?;
    let config = client::config(args.kubeconfig.as_deref()).await?;
    let operator_namespace = args.operator_namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = client::client(config, &registry)?;
    let admin_listener = listen(args.admin_addr, "probes and metrics", "--admin-addr")?;
    let destination_listener = match args.enable_destination {
        true => Some(listen(args.destination.destination_addr, "proxies", "--destination-addr")?),
        false => None,
    };
    let identity = args.leader_election_identity.clone().unwrap_or_else(identity);
    info!(version = version::VERSION, commit = version::COMMIT, identity, admin = %args.admin_addr, "starting");
    for notice in &args.notices {
        warn!("{notice}");
    }

    // By the order in which they stop: who serves and who writes, who permits and records it, who reads.
    let (mut servers, mut writers) = (Tasks::default(), Tasks::default());
    let (mut stewards, mut readers) = (Tasks::default(), Tasks::default());
    let (stop, stop_leases) = (CancellationToken::new(), CancellationToken::new());

    // One set of watches for all jobs; a kind that no job reads is not watched.
    let followed_by = Readers {
        external_workload: args
            .enable_external_workload
            .then(|| WorkQueue::new(external_workload::QUEUE, &registry))
            .transpose()?,
        destination: args.enable_destination.then(Dirty::new),
        linkerd_config: args
            .enable_linkerd_config
            .then(|| WorkQueue::new(linkerd_config::QUEUE, &registry))
            .transpose()?,
        rollout: args.enable_linkerd_config.then(Arc::default),
    };
    let cluster = match followed_by.is_empty() {
        true => None,
        false => Some(Cluster::spawn(&client, &followed_by, &args.controller_namespace, &registry, &mut readers)?),
    };
    if let (Some(cluster), Some(dirty), Some(listener)) = (&cluster, &followed_by.destination, destination_listener) {
        let parts = destination::Parts { cluster, dirty, registry: &registry, listener };
        let settings = args.destination.settings(&args.controller_namespace, Resources::of_this_process());
        destination::spawn(parts, settings, stop.clone(), &mut servers, &mut readers)?;
    }
    // Ends when nobody can hand an Event in any more: with the controllers.
    let controls = args.enable_external_workload || args.enable_linkerd_config;
    let events = controls.then(|| events::spawn(&client, &identity, &registry, &mut stewards)).transpose()?;
    let elections = lease::Metrics::register(&registry)?;
    let mut elect = |namespace: &str, name| {
        let election = lease::Settings {
            namespace: namespace.to_owned(),
            name,
            identity: identity.clone(),
            duration: args.leader_election_lease_duration,
            renew_deadline: args.leader_election_renew_deadline,
            retry_period: args.leader_election_retry_period,
        };
        lease::spawn(&client, election, &elections, stop_leases.clone(), &mut stewards)
    };
    let mut led = Vec::new();
    if let (Some(cluster), Some(events)) = (&cluster, &events) {
        let parts = |queue: &Arc<WorkQueue>, leadership: &lease::Leadership| controller::Parts {
            client: client.clone(),
            cluster: cluster.clone(),
            queue: Arc::clone(queue),
            leadership: leadership.clone(),
            events: events.clone(),
            registry: registry.clone(),
        };
        if let Some(queue) = &followed_by.external_workload {
            let leadership = elect(&args.controller_namespace, external_workload::LEASE);
            let settings = external_workload::Settings {
                concurrency: args.external_workload_concurrency,
                full_pass_interval: args.full_pass_interval,
            };
            external_workload::spawn(&parts(queue, &leadership), settings, stop.clone(), &mut writers)?;
            led.push(leadership);
        }
        if let (Some(queue), Some(dirty_workloads)) = (&followed_by.linkerd_config, &followed_by.rollout) {
            let leadership = elect(&operator_namespace, linkerd_config::LEASE);
            let parts = parts(queue, &leadership);
            let namespaces = linkerd_config::Namespaces {
                control_plane: args.controller_namespace.as_str().into(),
                operator: operator_namespace.as_str().into(),
            };
            linkerd_config::spawn(&parts, namespaces, Arc::clone(dirty_workloads), stop.clone(), &mut writers)?;
            led.push(leadership);
        }
    }
    drop(events);
    let stopping = stop.clone();
    let readiness = Box::new(move || {
        let problems = cluster.as_ref().map(Cluster::problems).unwrap_or_default();
        let leadership = led.iter().filter_map(lease::Leadership::problem);
        Readiness {
            ready: !stopping.is_cancelled() && !problems.iter().any(|problem| problem.blocks_readiness),
            waiting_for: problems.into_iter().map(|problem| problem.text).chain(leadership).collect(),
        }
    });
    readers.spawn("admin", admin::serve(admin_listener, Arc::new(Admin { registry, readiness })));

    let died = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = servers.ended() => Some(ended),
        ended = writers.ended() => Some(ended),
        ended = stewards.ended() => Some(ended),
        ended = readers.ended() => Some(ended),
    };

    info!("stopping: streams end, writes under way are finished, then Leases handed over");
    stop.cancel();
    let orderly = async {
        tokio::join!(servers.finish(STOP_SERVING), writers.finish(STOP_WRITING));
        stop_leases.cancel();
        stewards.finish(STOP_REST).await;
    };
    tokio::select! {
        () = orderly => info!("stopped"),
        _ = terminate.recv() => bail!("a second signal: stopped at once"),
        _ = interrupt.recv() => bail!("a second signal: stopped at once"),
    }
    match died {
        Some(ended) => bail!("{ended}, so the process ends too"),
        None => Ok(()),
    }
}

/// A pod's name, which Kubernetes sets as the host name; elsewhere the host's name does not tell processes apart.
fn identity() -> String {
    let host = gethostname::gethostname().to_string_lossy().into_owned();
    let in_pod = std::path::Path::new("/var/run/secrets/kubernetes.io/serviceaccount").is_dir();
    if in_pod { host } else { format!("{host}_{:08x}", rand::random::<u32>()) }
}
