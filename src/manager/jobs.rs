//! The jobs: the watched objects that each reads, and how it starts.
//!
//! In: the arguments, [`Parts`]. Out: the tasks of the enabled jobs, in [`Process`]. Always holds: a kind that no
//! enabled job reads is not watched; a job that is disabled starts nothing.

use std::sync::Arc;

use prometheus::Registry;
use tokio::net::TcpListener;

use super::{
    Parts,
    elections::Elections,
    process::{Blocks, Process, Wait},
};
use crate::{
    args::ManagerArgs,
    cluster::{Observer, WatchProblem},
    controller::ControllerDeps,
    destination::{self, DestinationObserver, LinksObserver, Multicluster},
    drop_in::DropIn,
    external_workload::{self, ExternalWorkloadObserver},
    identity::{self, IdentityObserver, ShownIdentity},
    issuer_writer::{self, IssuerObserver},
    lease::Leadership,
    linkerd_config::{self, LinkerdConfigObserver},
    linkerd_trust::{self, LinkerdTrustObserver},
    proxy_injector::{self, InjectorObserver},
    rollout::RolloutObserver,
    webhook::Handler,
};

/// The observers of the enabled jobs.
pub(super) struct Observers {
    destination: Option<Arc<DestinationObserver>>,
    external_workload: Option<Arc<ExternalWorkloadObserver>>,
    identity: Option<Arc<IdentityObserver>>,
    issuer_writer: Option<Arc<IssuerObserver>>,
    linkerd_config: Option<(Arc<LinkerdConfigObserver>, Arc<RolloutObserver>)>,
    linkerd_trust: Option<Arc<LinkerdTrustObserver>>,
    links: Option<Arc<LinksObserver>>,
    proxy_injector: Option<Arc<InjectorObserver>>,
}

// === impl Observers ===

impl Observers {
    pub(super) fn new(args: &ManagerArgs, registry: &Registry) -> prometheus::Result<Self> {
        let namespace = &args.controller_namespace;
        let linkerd_config = match args.enable_linkerd_config {
            true => Some((LinkerdConfigObserver::new(namespace, registry)?, RolloutObserver::new())),
            false => None,
        };
        Ok(Self {
            destination: args.enable_destination.then(DestinationObserver::new),
            external_workload: args
                .enable_external_workload
                .then(|| ExternalWorkloadObserver::new(registry))
                .transpose()?,
            identity: watches_trust(args).then(|| Arc::new(IdentityObserver)),
            issuer_writer: args.enable_issuer_writer.then(|| IssuerObserver::new(namespace, registry)).transpose()?,
            linkerd_config,
            // It reads what LinkerdConfigs need anyway, and shares their Lease.
            linkerd_trust: args
                .enable_linkerd_config
                .then(|| LinkerdTrustObserver::new(namespace, registry))
                .transpose()?,
            links: enables_multicluster(args).then(|| LinksObserver::new(namespace)),
            proxy_injector: args.enable_proxy_injector.then(|| {
                let replaces_injector = args.replaces == Some(DropIn::ProxyInjector);
                let config_maps = (!replaces_injector).then_some(namespace.as_str());
                InjectorObserver::new(config_maps)
            }),
        })
    }

    pub(super) fn all(&self) -> Vec<Arc<dyn Observer>> {
        let mut all: Vec<Arc<dyn Observer>> = Vec::new();
        all.extend(self.external_workload.clone().map(|observer| observer as Arc<dyn Observer>));
        all.extend(self.destination.clone().map(|observer| observer as Arc<dyn Observer>));
        all.extend(self.identity.clone().map(|observer| observer as Arc<dyn Observer>));
        if let Some((configs, rollouts)) = &self.linkerd_config {
            all.push(Arc::clone(configs) as Arc<dyn Observer>);
            all.push(Arc::clone(rollouts) as Arc<dyn Observer>);
        }
        all.extend(self.linkerd_trust.clone().map(|observer| observer as Arc<dyn Observer>));
        all.extend(self.issuer_writer.clone().map(|observer| observer as Arc<dyn Observer>));
        all.extend(self.links.clone().map(|observer| observer as Arc<dyn Observer>));
        all.extend(self.proxy_injector.clone().map(|observer| observer as Arc<dyn Observer>));
        all
    }

    /// Starts the destination server. Returns the other clusters, if their Services are served.
    pub(super) fn start_destination(
        &self,
        parts: &Parts,
        listener: Option<TcpListener>,
        process: &mut Process,
    ) -> anyhow::Result<Option<Arc<Multicluster>>> {
        let args = &parts.args;
        let (Some(cluster), Some(observer), Some(listener)) = (&parts.cluster, &self.destination, listener) else {
            return Ok(None);
        };
        let refuses_unsupported = !enables_multicluster(args) && !args.allow_unsupported_services.unwrap_or(true);
        if refuses_unsupported {
            let cluster = cluster.clone();
            // This stops an installation that would lose traffic. Later, a tenant who creates such a Service must not
            // take discovery from the whole mesh.
            let wait = |text| Wait { text: Some(text), blocks: Blocks::FirstReadiness };
            process.check(move || destination::unsupported_services(&cluster).map(wait).into_iter().collect());
        }
        let deps = destination::DestinationDeps {
            cluster,
            observer: Arc::clone(observer),
            registry: &parts.registry,
            listener,
            links: self.links.clone(),
        };
        let settings = args.destination.settings(&args.controller_namespace, parts.resources);
        let stop = process.stop.clone();
        Ok(destination::spawn(deps, settings, stop, &mut process.servers, &mut process.readers)?)
    }

    /// Starts the proxy injector. Returns the handler of its reviews.
    pub(super) fn start_proxy_injector(
        &self,
        parts: &Parts,
        process: &mut Process,
    ) -> anyhow::Result<Option<Arc<dyn Handler>>> {
        let args = &parts.args;
        let (Some(cluster), Some(observer), Some(events)) = (&parts.cluster, &self.proxy_injector, &parts.events)
        else {
            return Ok(None);
        };
        let deps = proxy_injector::InjectorDeps {
            client: &parts.client,
            cluster,
            observer: Arc::clone(observer),
            registry: &parts.registry,
            events,
        };
        let settings = proxy_injector::InjectorSettings {
            controller_namespace: args.controller_namespace.clone(),
            version: args.version.clone(),
            folder: args.webhook_folder.clone(),
        };
        let (handler, configuration) = proxy_injector::spawn(deps, settings, &mut process.readers)?;
        process.check(move || Wait::of(configuration.problem(), configuration.is_ready()));
        Ok(Some(handler))
    }

    pub(super) fn start_external_workload(
        &self,
        parts: &Parts,
        elections: &mut Elections,
        process: &mut Process,
    ) -> anyhow::Result<()> {
        let args = &parts.args;
        let Some(observer) = &self.external_workload else { return Ok(()) };
        let leadership = elections.elect(parts, &args.controller_namespace, external_workload::LEASE, None, process);
        let settings = external_workload::ExternalWorkloadSettings {
            concurrency: args.external_workload_concurrency,
            full_pass_interval: args.full_pass_interval,
        };
        let Some(deps) = parts.controller_deps(&leadership) else { return Ok(()) };
        external_workload::spawn(&deps, observer, settings, process.stop.clone(), &mut process.writers)?;
        Ok(())
    }

    pub(super) fn start_linkerd_config(
        &self,
        parts: &Parts,
        elections: &mut Elections,
        process: &mut Process,
    ) -> anyhow::Result<()> {
        let namespace = &parts.args.controller_namespace;
        let (Some((observer, rollouts)), Some(own)) = (&self.linkerd_config, parts.operator_namespace.as_deref())
        else {
            return Ok(());
        };
        // Earlier versions hold the Lease in the operator's namespace. During an upgrade they must not lead at the same
        // time, so this one is acquired first.
        let former = match *own != **namespace {
            true => Some(elections.elect_without_metrics(parts, own, linkerd_config::LEASE, process)?),
            false => None,
        };
        let leadership = elections.elect(parts, namespace, linkerd_config::LEASE, former, process);
        let namespaces = linkerd_config::Namespaces { control_plane: namespace.as_str().into(), operator: own.into() };
        let Some(deps) = parts.controller_deps(&leadership) else { return Ok(()) };
        let (rollouts, stop) = (Arc::clone(rollouts), process.stop.clone());
        linkerd_config::spawn(&deps, observer, rollouts, namespaces, stop.clone(), &mut process.writers)?;
        if let Some(observer) = &self.linkerd_trust {
            let token = parts.args.identity_token_file.clone();
            linkerd_trust::spawn(&deps, observer, namespace, token, stop, &mut process.writers)?;
        }
        Ok(())
    }

    pub(super) fn start_issuer_writer(
        &self,
        parts: &Parts,
        elections: &mut Elections,
        process: &mut Process,
    ) -> anyhow::Result<()> {
        let namespace = &parts.args.controller_namespace;
        let Some(observer) = &self.issuer_writer else { return Ok(()) };
        let leadership = elections.elect(parts, namespace, issuer_writer::LEASE, None, process);
        let Some(deps) = parts.controller_deps(&leadership) else { return Ok(()) };
        issuer_writer::spawn(&deps, observer, namespace, process.stop.clone(), &mut process.writers)?;
        Ok(())
    }
}

// === impl Parts ===

impl Parts {
    /// Returns what a controller needs; `None` if no job watches objects or writes Events.
    fn controller_deps(&self, leadership: &Leadership) -> Option<ControllerDeps> {
        Some(ControllerDeps {
            client: self.client.clone(),
            cluster: self.cluster.clone()?,
            leadership: leadership.clone(),
            events: self.events.clone()?,
            registry: self.registry.clone(),
        })
    }
}

/// Starts the identity service.
pub(super) fn start_identity(
    parts: &Parts,
    listener: Option<TcpListener>,
    process: &mut Process,
) -> anyhow::Result<Option<ShownIdentity>> {
    let Some(listener) = listener else { return Ok(None) };
    let args = &parts.args;
    let deps = identity::IdentityDeps {
        client: &parts.client,
        cluster: parts.cluster.as_ref().filter(|_| watches_trust(args)),
        registry: &parts.registry,
        events: parts.events.clone(),
        listener,
        connections: parts.resources.connections(),
    };
    let settings = args.identity.settings(&args.controller_namespace, &args.destination.identity_trust_domain);
    let stop = process.stop.clone();
    let identity = identity::spawn(deps, settings, stop, &mut process.certifiers, &mut process.readers)?;
    let followed = Arc::clone(&identity.issuer);
    process.check(move || Wait::of(followed.problem(), followed.is_ready()));
    Ok(Some(identity))
}

/// Returns what `/ready` says about a watch.
pub(super) fn wait_for_watch(problem: WatchProblem) -> Wait {
    let blocks = if problem.blocks_readiness { Blocks::Always } else { Blocks::Never };
    Wait { text: Some(problem.text), blocks }
}

fn watches_trust(args: &ManagerArgs) -> bool {
    args.enable_identity && args.identity.identity_watch
}

fn enables_multicluster(args: &ManagerArgs) -> bool {
    args.enable_destination && args.enable_multicluster.unwrap_or(false)
}
