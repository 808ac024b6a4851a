//! The Leases for which this process is a candidate.
//!
//! In: the name of a Lease. Out: whether this process holds it. Always holds: all Leases of a process have one identity
//! and one timing.

use prometheus::Registry;

use super::{Parts, process::Process};
use crate::{
    dashboard::ElectedLease,
    lease::{self, ElectionMetrics, ElectionSettings, Leadership},
};

pub(super) struct Elections {
    metrics: ElectionMetrics,
    pub(super) leases: Vec<ElectedLease>,
}

// === impl Elections ===

impl Elections {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self { metrics: ElectionMetrics::register(registry)?, leases: Vec::new() })
    }

    /// Becomes a candidate; with `required`, only while this process holds that other Lease.
    pub(super) fn elect(
        &mut self,
        parts: &Parts,
        namespace: &str,
        name: &'static str,
        required: Option<Leadership>,
        process: &mut Process,
    ) -> Leadership {
        let metrics = self.metrics.clone();
        self.candidate(parts, (namespace, name), required, &metrics, process)
    }

    /// The same for a Lease that decides nothing but the order of an upgrade, so it has no metrics.
    pub(super) fn elect_without_metrics(
        &mut self,
        parts: &Parts,
        namespace: &str,
        name: &'static str,
        process: &mut Process,
    ) -> prometheus::Result<Leadership> {
        let unused = ElectionMetrics::register(&Registry::new())?;
        Ok(self.candidate(parts, (namespace, name), None, &unused, process))
    }

    fn candidate(
        &mut self,
        parts: &Parts,
        (namespace, name): (&str, &'static str),
        required: Option<Leadership>,
        metrics: &ElectionMetrics,
        process: &mut Process,
    ) -> Leadership {
        let args = &parts.args;
        let settings = ElectionSettings {
            namespace: namespace.to_owned(),
            name,
            identity: parts.identity.clone(),
            duration: args.leader_election_lease_duration,
            renew_deadline: args.leader_election_renew_deadline,
            retry_period: args.leader_election_retry_period,
        };
        let stop = process.stop_leases.clone();
        let leadership = lease::spawn(&parts.client, settings, required, metrics, stop, &mut process.support);
        self.leases.push(ElectedLease { namespace: namespace.to_owned(), name, leadership: leadership.clone() });
        leadership
    }
}
