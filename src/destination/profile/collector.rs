//! Linkerd's metrics of profiles. They are collected when Prometheus scrapes, and each series ends with its object.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{request::ProfileTarget, views::ProfileViews};
use crate::api::NamespacedName;

pub(in crate::destination) struct ProfilesCollector {
    views: Arc<ProfileViews>,
    /// Serializes scrapes: metrics are reset and filled again during collection.
    scraping: Mutex<()>,
    profiles: GaugeVec,
    services: GaugeVec,
    workloads: Gauge,
    profile_updates: CounterVec,
    workload_updates: Counter,
    profile_overflow: CounterVec,
    endpoint_overflow: Counter,
}

impl ProfilesCollector {
    pub(in crate::destination) fn new(views: &Arc<ProfileViews>) -> prometheus::Result<Self> {
        let by_profile = ["namespace", "profile"];
        let it = Self {
            views: Arc::clone(views),
            scraping: Mutex::default(),
            profiles: GaugeVec::new(
                Opts::new("profile_subscribers", "Streams that a ServiceProfile applies to, or would apply to"),
                &by_profile,
            )?,
            services: GaugeVec::new(
                Opts::new("service_subscribers", "Streams that subscribe to the profile of a Service"),
                &["namespace", "name"],
            )?,
            workloads: Gauge::new("workload_subscribers", "Streams that subscribe to the profile of an endpoint")?,
            profile_updates: CounterVec::new(
                Opts::new("profile_updates", "How often a write of a ServiceProfile was observed"),
                &by_profile,
            )?,
            workload_updates: Counter::new("workload_updates", "How often the profile of an endpoint was published")?,
            // Linkerd's destination ends a stream whose queue is full and counts it here. This server has no queues,
            // but keeps the metrics so that existing alerts stay valid.
            profile_overflow: CounterVec::new(
                Opts::new("profile_updates_queue_overflow", "Always 0: streams have no queue"),
                &["fqn", "port"],
            )?,
            endpoint_overflow: Counter::new(
                "endpoint_profile_updates_queue_overflow",
                "Always 0: streams have no queue",
            )?,
        };
        it.profile_overflow.with_label_values(&["", ""]);
        Ok(it)
    }

    fn collectors(&self) -> [&dyn Collector; 7] {
        let Self {
            views: _,
            scraping: _,
            profiles,
            services,
            workloads,
            profile_updates,
            workload_updates,
            profile_overflow,
            endpoint_overflow,
        } = self;
        [profiles, services, workloads, profile_updates, workload_updates, profile_overflow, endpoint_overflow]
    }
}

impl Collector for ProfilesCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn collect(&self) -> Vec<MetricFamily> {
        let _scraping = self.scraping.lock();
        let updates: Vec<(NamespacedName, u64)> = {
            let state = self.views.cluster.read();
            state.service_profiles.iter().map(|profile| (profile.key.clone(), profile.updates)).collect()
        };
        let mut profiles: BTreeMap<NamespacedName, usize> = updates.iter().map(|(key, _)| (key.clone(), 0)).collect();
        let mut services: HashMap<NamespacedName, usize> = HashMap::new();
        let mut workloads = 0;
        // Not inlined into the loop, which would then hold the lock.
        let clients = self.views.registry.index().clients();
        for (target, clients) in clients {
            match &target {
                ProfileTarget::Service(service) | ProfileTarget::ClusterIp(_, service) => {
                    *services.entry(service.service.clone()).or_default() += clients;
                    for profile in service.profiles(&self.views.settings.cluster_domain) {
                        // A ServiceProfile in the client's namespace counts only if it exists, because clients choose
                        // the namespace freely.
                        if profile.namespace == service.service.namespace {
                            *profiles.entry(profile).or_default() += clients;
                        } else if let Some(known) = profiles.get_mut(&profile) {
                            *known += clients;
                        }
                    }
                }
                ProfileTarget::Instance { .. } | ProfileTarget::InstanceAt { .. } | ProfileTarget::Endpoint(_) => {
                    workloads += clients;
                }
            }
        }
        self.profiles.reset();
        self.services.reset();
        self.profile_updates.reset();
        for (NamespacedName { namespace, name }, clients) in &profiles {
            self.profiles.with_label_values(&[&**namespace, &**name]).set(*clients as f64);
        }
        for (NamespacedName { namespace, name }, clients) in &services {
            self.services.with_label_values(&[&**namespace, &**name]).set(*clients as f64);
        }
        for (NamespacedName { namespace, name }, updates) in &updates {
            self.profile_updates.with_label_values(&[&**namespace, &**name]).inc_by(*updates as f64);
        }
        self.workloads.set(workloads as f64);
        self.workload_updates.reset();
        self.workload_updates.inc_by(self.views.endpoint_updates.load(Ordering::Relaxed) as f64);
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}
