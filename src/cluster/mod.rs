//! What one API server says: every watched kind, reduced to what its readers need, with the lookups that join kinds.
//!
//! In: one watch per kind ([`watch`]). Out: the [`State`], and what a change affects, marked where it is waited for: on
//! [`WorkQueue`] for the controllers, on [`Dirty`] for discovery, on [`DirtySet`] for rollouts. Always holds: nobody but the watches writes
//! the state; the lock is held for the work of one event; and before a kind was listed nothing may be concluded from what
//! the state does not hold of it.

pub mod dirty;
pub mod index;
pub mod kinds;
mod problems;
pub(crate) mod quantity;
#[cfg(test)]
pub mod testing;
pub(crate) mod watch;

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use k8s_openapi::api::{apps::v1::ReplicaSet, batch::v1::Job};
use kube::{Api, Client, Resource, runtime::watcher};
use parking_lot::{RwLock, RwLockReadGuard};
use prometheus::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch as channel};

use crate::{api::INJECTOR, tasks::Tasks};
use crate::{
    api::NamespacedName,
    queue::{DirtySet, WorkQueue},
};
use index::address::NetworkAddress;
pub use kinds::{Kind, Reader};
pub use problems::Problems;
pub use watch::WatchProblem;
use {
    dirty::Dirty,
    index::{pods::Pods, workload_key::WorkloadKey},
    kinds::{
        apps_workload::{
            AppsWorkloadOf, AppsWorkloads, DaemonSetObject, DeploymentObject, StatefulSetObject, WorkloadKind,
        },
        config_map::{ConfigMap, ConfigMaps},
        disruption_budget::{DisruptionBudget, DisruptionBudgets},
        endpoint_slice::{Slice, Slices},
        external_workload::{ExternalWorkload, ExternalWorkloads},
        linkerd_config::{LinkerdConfig, LinkerdConfigs},
        namespace::{Namespace, Namespaces},
        node::{Node, Nodes, Zone},
        owner::{IntermediateOwner, IntermediateOwners, Owner},
        pod::Pod,
        server::{Server, Servers},
        service::{Service, Services},
        service_profile::{ServiceProfile, ServiceProfiles},
    },
    watch::guarded::Guarded,
};

/// What a change may change for those who read the state. Each once: a Server that selects a whole namespace concerns its
/// Services as often as they have endpoints, and a list may have thousands of such.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Affected {
    /// Services whose slices the ExternalWorkload controller may have to write.
    pub written: BTreeSet<NamespacedName>,
    /// LinkerdConfigs that their controller has to look at.
    pub configured: BTreeSet<Arc<str>>,
    /// Services of whose endpoints clients may have to be told something.
    pub discovered: BTreeSet<NamespacedName>,
    /// Services that themselves changed: their profiles may be others.
    pub services: BTreeSet<NamespacedName>,
    /// Where something else is reachable now: a Service, a Pod, an ExternalWorkload.
    pub addresses: BTreeSet<NetworkAddress>,
    /// ServiceProfiles that say something else.
    pub profiles: BTreeSet<NamespacedName>,
    /// Zones that a node has left.
    pub moved_from: BTreeSet<Zone>,
    /// ExternalWorkloads that rollouts have to look at.
    pub rolled: BTreeSet<WorkloadKey>,
}

/// A handle to the state of one cluster, and to how far it is known.
#[derive(Clone)]
pub struct Cluster {
    state: Arc<RwLock<State>>,
    watches: Arc<[channel::Receiver<watch::Status>]>,
    relist: Arc<Notify>,
}

/// What the watches have said so far.
#[derive(Default)]
pub struct State {
    /// Grows with every change: of two values made from the state, the one of the higher generation is newer.
    pub generation: u64,
    pub services: Services,
    pub slices: Slices,
    pub external_workloads: ExternalWorkloads,
    pub pods: Pods,
    pub servers: Servers,
    pub service_profiles: ServiceProfiles,
    pub nodes: Nodes,
    pub replica_sets: IntermediateOwners,
    pub jobs: IntermediateOwners,
    pub linkerd_configs: LinkerdConfigs,
    pub config_maps: ConfigMaps,
    pub apps_workloads: AppsWorkloads,
    pub namespaces: Namespaces,
    pub disruption_budgets: DisruptionBudgets,
    /// Somebody reads what a change means for rollouts: Pods change all the time, and it is worked out for nobody else.
    rolls: bool,
}

/// Who reads the state, and is told what changes in it. A kind that nobody reads is not watched.
#[derive(Clone, Default)]
pub struct Readers {
    pub external_workload: Option<Arc<WorkQueue>>,
    pub destination: Option<Arc<Dirty>>,
    pub linkerd_config: Option<Arc<WorkQueue>>,
    pub rollout: Option<Arc<DirtySet<WorkloadKey>>>,
}

/// A watched kind: how its objects are reduced, and what they change in the [`State`].
pub trait Projected: Sized + Send + 'static {
    /// The object as the API server sends it: only the fields that [`Projected::project`] reads.
    type Wire: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static;
    const KIND: Kind;

    /// Total: whatever decoded as [`Projected::Wire`] becomes an object. What in it cannot be used is left out, and named.
    fn project(wire: Self::Wire, problems: &mut Problems) -> Self;
    /// Puts the object in the place of the one with its key. An object that did not change affects nothing.
    fn apply(self, state: &mut State) -> Affected;
    fn remove(key: &NamespacedName, state: &mut State) -> Affected;
    /// The keys of all objects that the state holds.
    fn keys(state: &State) -> Vec<NamespacedName>;
    /// A list is complete.
    fn listed(_state: &mut State) {}
}

// === impl Affected ===

impl Affected {
    /// A Service that itself changed.
    fn service(service: NamespacedName) -> Self {
        let service = BTreeSet::from([service]);
        Self { written: service.clone(), discovered: service.clone(), services: service, ..Self::default() }
    }

    fn configured(config: Arc<str>) -> Self {
        Self { configured: [config].into(), ..Self::default() }
    }

    fn discovered(services: impl IntoIterator<Item = NamespacedName>) -> Self {
        Self { discovered: services.into_iter().collect(), ..Self::default() }
    }

    fn profile(profile: NamespacedName) -> Self {
        Self { profiles: [profile].into(), ..Self::default() }
    }

    fn moved_from(zone: Zone) -> Self {
        Self { moved_from: [zone].into(), ..Self::default() }
    }

    fn rolled(workloads: BTreeSet<WorkloadKey>) -> Self {
        Self { rolled: workloads, ..Self::default() }
    }

    fn extend(&mut self, more: Self) {
        let Self { written, configured, discovered, services, addresses, profiles, moved_from, rolled } = more;
        self.written.extend(written);
        self.configured.extend(configured);
        self.discovered.extend(discovered);
        self.services.extend(services);
        self.addresses.extend(addresses);
        self.profiles.extend(profiles);
        self.moved_from.extend(moved_from);
        self.rolled.extend(rolled);
    }
}

// === impl Readers ===

impl Readers {
    pub fn is_empty(&self) -> bool {
        let Self { external_workload, destination, linkerd_config, rollout } = self;
        external_workload.is_none() && destination.is_none() && linkerd_config.is_none() && rollout.is_none()
    }

    /// Whether proxies are served by what the state has of the kind.
    fn serve_with(&self, kind: Kind) -> bool {
        self.destination.is_some() && kind.is_read_by(Reader::Destination)
            || self.external_workload.is_some() && kind.is_read_by(Reader::ExternalWorkload)
    }
}

// === impl State ===

impl State {
    fn size(&self, kind: Kind) -> usize {
        match kind {
            Kind::Service => self.services.len(),
            Kind::EndpointSlice => self.slices.len(),
            Kind::ExternalWorkload => self.external_workloads.len(),
            Kind::Pod => self.pods.len(),
            Kind::Server => self.servers.len(),
            Kind::ServiceProfile => self.service_profiles.len(),
            Kind::Node => self.nodes.len(),
            Kind::ReplicaSet => self.replica_sets.len(),
            Kind::Job => self.jobs.len(),
            Kind::LinkerdConfig => self.linkerd_configs.len(),
            Kind::ConfigMap => self.config_maps.len(),
            Kind::Deployment => self.apps_workloads.of_kind(WorkloadKind::Deployment).count(),
            Kind::StatefulSet => self.apps_workloads.of_kind(WorkloadKind::StatefulSet).count(),
            Kind::DaemonSet => self.apps_workloads.of_kind(WorkloadKind::DaemonSet).count(),
            Kind::Namespace => self.namespaces.len(),
            Kind::PodDisruptionBudget => self.disruption_budgets.len(),
        }
    }

    /// Where endpoints of injectors changed, the LinkerdConfigs in effect there have to know.
    fn with_injectors(&self, mut affected: Affected) -> Affected {
        let changed = affected.discovered.iter().filter(|service| *service.name == *INJECTOR);
        let in_effect = |namespace| self.linkerd_configs.in_effect().filter(move |it| it.target.namespace == namespace);
        let configs = changed.flat_map(|service| in_effect(Arc::clone(&service.namespace)));
        affected.configured.extend(configs.map(|config| Arc::clone(&config.name)));
        affected
    }

    /// What has Pods whose workload is found through this ReplicaSet or Job, and the workloads that they moved between: it,
    /// and its owners before and after.
    fn affected_through(&self, kind: &str, key: &NamespacedName, owners: &[Option<Owner>; 2]) -> Affected {
        let itself = Owner { kind: kind.into(), name: Arc::clone(&key.name) };
        let mut affected = Affected::default();
        let mut any = false;
        for pod in self.pods.owned(&key.namespace, &itself) {
            any = true;
            affected.discovered.extend(self.slices.services_with_pod(&pod.key));
            affected.addresses.extend(pod.network_addresses());
        }
        // Most ReplicaSets are old and have no Pods: nobody has to know whose those are.
        if any && self.rolls {
            let workloads = owners.iter().flatten().chain([&itself]);
            affected.rolled.extend(workloads.map(|owner| WorkloadKey::of_owner(&key.namespace, owner)));
        }
        affected
    }
}

// === impl Cluster ===

impl Cluster {
    /// Starts the watches that the readers need: one task per kind. Of ConfigMaps only those of Linkerd's namespace are watched.
    pub fn spawn(
        client: &Client,
        readers: &Readers,
        controller_namespace: &str,
        registry: &Registry,
        tasks: &mut Tasks,
    ) -> prometheus::Result<Self> {
        let state = State { rolls: readers.rollout.is_some(), ..State::default() };
        let state = Arc::new(RwLock::new(state));
        let relist = Arc::new(Notify::new());
        let watch = watch::Context {
            state: Arc::clone(&state),
            readers: readers.clone(),
            relist: Arc::clone(&relist),
            metrics: watch::metrics::Metrics::register(registry, &state)?,
        };
        let every = watcher::Config::default;
        let (discovery, rollout) = (readers.destination.is_some(), readers.rollout.is_some());
        let mut watches = Vec::new();
        if discovery || readers.external_workload.is_some() {
            watches.extend([
                watch.spawn::<Service>(all(client), every(), tasks),
                watch.spawn::<ExternalWorkload>(all(client), every(), tasks),
            ]);
        }
        // Clients, and who looks for injectors, read the slices of all controllers.
        if discovery || readers.linkerd_config.is_some() {
            watches.push(watch.spawn::<Slice>(all(client), every(), tasks));
        } else if readers.external_workload.is_some() {
            watches.push(watch.spawn::<Slice>(
                all(client),
                every().labels(&kinds::endpoint_slice::managed_selector()),
                tasks,
            ));
        }
        if readers.linkerd_config.is_some() {
            let config_maps = Api::namespaced(client.clone(), controller_namespace);
            watches.push(watch.spawn::<ConfigMap>(config_maps, every(), tasks));
        }
        if readers.linkerd_config.is_some() || rollout {
            watches.push(watch.spawn::<LinkerdConfig>(all(client), every(), tasks));
        }
        if discovery || rollout {
            watches.extend([
                watch.spawn::<Pod>(all(client), every(), tasks),
                watch.spawn::<IntermediateOwner<ReplicaSet>>(all(client), every(), tasks),
                watch.spawn::<IntermediateOwner<Job>>(all(client), every(), tasks),
            ]);
        }
        if discovery {
            watches.extend([
                watch.spawn::<Server>(all(client), every(), tasks),
                watch.spawn::<ServiceProfile>(all(client), every(), tasks),
                watch.spawn::<Node>(all(client), every(), tasks),
            ]);
        }
        if rollout {
            watches.extend([
                watch.spawn::<AppsWorkloadOf<DeploymentObject>>(all(client), every(), tasks),
                watch.spawn::<AppsWorkloadOf<StatefulSetObject>>(all(client), every(), tasks),
                watch.spawn::<AppsWorkloadOf<DaemonSetObject>>(all(client), every(), tasks),
                watch.spawn::<Namespace>(all(client), every(), tasks),
                watch.spawn::<DisruptionBudget>(all(client), every(), tasks),
            ]);
        }
        Ok(Self { state, watches: watches.into(), relist })
    }

    /// The state as it is now. Hold the guard for a few lookups, never across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Resolves when every kind has been listed once that the reader reads.
    pub async fn synced(&self, reader: Reader) {
        self.all_watches(|status| status.synced || !status.kind.is_read_by(reader)).await;
    }

    /// Resolves when no watch is failing of a kind that the reader reads; one that is lists its kind anew at once, and so
    /// misses nothing.
    pub async fn recovered(&self, reader: Reader) {
        self.relist.notify_waiters();
        self.all_watches(|status| status.is_followed() || !status.kind.is_read_by(reader)).await;
    }

    /// Whether every kind that the reader reads is followed right now.
    pub fn follows(&self, reader: Reader) -> bool {
        let followed = |status: &watch::Status| status.is_followed() || !status.kind.is_read_by(reader);
        self.watches.iter().all(|watch| followed(&watch.borrow()))
    }

    /// Whether clients can be told what there is, and what there is not: every kind was listed once, or is not served.
    pub fn is_discoverable(&self) -> bool {
        let known = |status: &watch::Status| status.is_known() || !status.kind.is_read_by(Reader::Destination);
        self.watches.iter().all(|watch| known(&watch.borrow()))
    }

    async fn all_watches(&self, are: impl Fn(&watch::Status) -> bool) {
        for watch in self.watches.iter() {
            let ended = watch.clone().wait_for(&are).await.is_err();
            if ended {
                // It takes the process with it, so this wait does too.
                std::future::pending::<()>().await;
            }
        }
    }

    /// What is not known yet or no longer followed, each with a sentence for the reader of `/ready`, and whether
    /// readiness has to wait for it. A kind that the API server does not have is waited for by its job alone.
    pub fn problems(&self) -> Vec<WatchProblem> {
        self.watches.iter().filter_map(|watch| watch.borrow().problem()).collect()
    }
}

fn all<W: Resource<DynamicType = ()>>(client: &Client) -> Api<Guarded<W>> {
    Api::all(client.clone())
}
