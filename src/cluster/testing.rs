//! A cluster whose watches a test plays: events as JSON, in any order, through the same code as real ones.

use std::{any::Any, collections::HashMap, sync::Arc};

use k8s_openapi::api::{apps::v1::ReplicaSet, batch::v1::Job};
use kube::runtime::watcher::Event;
use parking_lot::RwLock;
use prometheus::Registry;
use serde_json::Value;

use super::{
    Cluster, Kind, Projected, Readers, State,
    dirty::Dirty,
    kinds::{
        apps_workload::{AppsWorkloadOf, DaemonSetObject, DeploymentObject, StatefulSetObject},
        config_map::ConfigMap,
        disruption_budget::DisruptionBudget,
        endpoint_slice::Slice,
        external_workload::ExternalWorkload,
        linkerd_config::LinkerdConfig,
        namespace::Namespace,
        node::Node,
        owner::IntermediateOwner,
        pod::Pod,
        server::Server,
        service::Service,
        service_profile::ServiceProfile,
    },
    watch::{Context, Memory, Relist, guarded::Guarded, metrics::Metrics},
};
use crate::queue::DirtySet;

pub struct Feed {
    pub cluster: Cluster,
    pub dirty: Arc<Dirty>,
    pub dirty_workloads: Arc<DirtySet<crate::cluster::index::workload_key::WorkloadKey>>,
    context: Context,
    /// Of each kind its `(Relist, Memory)`.
    watches: HashMap<Kind, Box<dyn Any>>,
}

impl Default for Feed {
    fn default() -> Self {
        let state = Arc::new(RwLock::new(State { rolls: true, ..State::default() }));
        let (dirty, dirty_workloads) = (Dirty::new(), Arc::default());
        let context = Context {
            state: Arc::clone(&state),
            readers: Readers {
                destination: Some(Arc::clone(&dirty)),
                rollout: Some(Arc::clone(&dirty_workloads)),
                ..Readers::default()
            },
            relist: Arc::default(),
            metrics: Metrics::register(&Registry::new(), &state).unwrap(),
        };
        let cluster = Cluster { state, watches: Arc::new([]), relist: Arc::default() };
        Self { cluster, dirty, dirty_workloads, context, watches: HashMap::new() }
    }
}

impl Feed {
    pub fn apply(&mut self, kind: Kind, event: Event<Value>) {
        match kind {
            Kind::Service => self.apply_as::<Service>(event),
            Kind::EndpointSlice => self.apply_as::<Slice>(event),
            Kind::ExternalWorkload => self.apply_as::<ExternalWorkload>(event),
            Kind::Pod => self.apply_as::<Pod>(event),
            Kind::Server => self.apply_as::<Server>(event),
            Kind::ServiceProfile => self.apply_as::<ServiceProfile>(event),
            Kind::Node => self.apply_as::<Node>(event),
            Kind::ReplicaSet => self.apply_as::<IntermediateOwner<ReplicaSet>>(event),
            Kind::Job => self.apply_as::<IntermediateOwner<Job>>(event),
            Kind::LinkerdConfig => self.apply_as::<LinkerdConfig>(event),
            Kind::ConfigMap => self.apply_as::<ConfigMap>(event),
            Kind::Deployment => self.apply_as::<AppsWorkloadOf<DeploymentObject>>(event),
            Kind::StatefulSet => self.apply_as::<AppsWorkloadOf<StatefulSetObject>>(event),
            Kind::DaemonSet => self.apply_as::<AppsWorkloadOf<DaemonSetObject>>(event),
            Kind::Namespace => self.apply_as::<Namespace>(event),
            Kind::PodDisruptionBudget => self.apply_as::<DisruptionBudget>(event),
        }
    }

    fn apply_as<T: Projected>(&mut self, event: Event<Value>) {
        let read = |value: Value| serde_json::from_str::<Guarded<T::Wire>>(&value.to_string()).unwrap();
        let event = match event {
            Event::Init => Event::Init,
            Event::InitApply(object) => Event::InitApply(read(object)),
            Event::InitDone => Event::InitDone,
            Event::Apply(object) => Event::Apply(read(object)),
            Event::Delete(object) => Event::Delete(read(object)),
        };
        let new = || -> Box<dyn Any> { Box::new((Relist::<T>::default(), Memory::default())) };
        let watch = self.watches.entry(T::KIND).or_insert_with(new);
        let (relist, memory) = watch.downcast_mut::<(Relist<T>, Memory)>().unwrap();
        self.context.apply::<T>(event, relist, memory);
    }
}
