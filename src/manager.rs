//! The composition root: the only place where the modules meet. Read from top to bottom it is the life of the process.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    admin::{self, Admin, Readiness},
    args::ManagerArgs,
    client,
    cluster::{Cluster, trigger::Triggers},
    events, external_workload, lease, metrics,
    tasks::Tasks,
};

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
    let client = client::client(client::config(args.kubeconfig.as_deref()).await?)?;
    let admin_listener = admin::bind(args.admin_addr).await?;
    let identity = args.leader_election_identity.clone().unwrap_or_else(identity);
    info!(version = env!("CARGO_PKG_VERSION"), identity, admin = %args.admin_addr, "starting");

    let registry = metrics::registry()?;
    // By the order in which they stop: who writes, who permits and records it, who reads.
    let (mut writers, mut stewards, mut readers) = (Tasks::default(), Tasks::default(), Tasks::default());
    let (stop, stop_leases) = (CancellationToken::new(), CancellationToken::new());

    let mut followed = None;
    if args.enable_external_workload {
        // Ends when nobody can hand an Event in any more: with the controller.
        let events = events::spawn(&client, &identity, &registry, &mut stewards)?;
        let triggers = Triggers::new(&registry)?;
        let cluster = Cluster::spawn(&client, &triggers, &registry, &mut readers)?;
        let election = lease::Settings {
            namespace: args.controller_namespace.clone(),
            name: external_workload::LEASE,
            identity,
            duration: args.leader_election_lease_duration,
            renew_deadline: args.leader_election_renew_deadline,
            retry_period: args.leader_election_retry_period,
        };
        let leadership = lease::spawn(&client, election, &registry, stop_leases.clone(), &mut stewards)?;
        let settings = external_workload::Settings {
            concurrency: args.external_workload_concurrency,
            full_pass_interval: args.full_pass_interval,
        };
        let parts = external_workload::Parts {
            client: &client,
            cluster: &cluster,
            triggers: &triggers,
            leadership: &leadership,
            events: &events,
            registry: &registry,
        };
        external_workload::spawn(&parts, settings, stop.clone(), &mut writers)?;
        followed = Some((cluster, leadership));
    }
    let stopping = stop.clone();
    let readiness = Box::new(move || {
        let problems = followed.as_ref().map(|(cluster, _)| cluster.problems()).unwrap_or_default();
        let leadership = followed.as_ref().and_then(|(_, leadership)| leadership.problem());
        Readiness {
            ready: !stopping.is_cancelled() && !problems.iter().any(|problem| problem.blocks_readiness),
            waiting_for: problems.into_iter().map(|problem| problem.text).chain(leadership).collect(),
        }
    });
    readers.spawn("admin", admin::serve(admin_listener, Arc::new(Admin { registry, readiness })));

    let died = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = writers.ended() => Some(ended),
        ended = stewards.ended() => Some(ended),
        ended = readers.ended() => Some(ended),
    };

    info!("stopping: writes under way are finished, then Leases handed over");
    stop.cancel();
    let orderly = async {
        writers.finish(STOP_WRITING).await;
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
