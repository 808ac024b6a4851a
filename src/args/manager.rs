//! The flags of the manager.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, ValueEnum, builder::NonEmptyStringValueParser};

use super::{DestinationArgs, positive_duration, switch};

#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = switch)]
pub struct ManagerArgs {
    /// The kubeconfig to use; else $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod, in this order
    #[arg(long, env = "LINKERD_OPERATOR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Where to serve /live, /ready, /ping and /metrics; `[::]` takes IPv4 too, and is 0.0.0.0 where there is no IPv6
    #[arg(long, env = "LINKERD_OPERATOR_ADMIN_ADDR", value_name = "IP:PORT", default_value = "[::]:9996")]
    pub admin_addr: SocketAddr,

    /// The namespace of Linkerd's control plane: its configuration and the Lease for EndpointSlice writes are there
    #[arg(long, env = "LINKERD_OPERATOR_CONTROLLER_NAMESPACE", value_name = "NAME", default_value = "linkerd", value_parser = NonEmptyStringValueParser::new())]
    pub controller_namespace: String,

    /// Write EndpointSlices for ExternalWorkloads
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_EXTERNAL_WORKLOAD", default_value_t = true)]
    pub enable_external_workload: bool,

    /// Keep Linkerd's proxy configuration as LinkerdConfigs declare it
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_LINKERD_CONFIG", default_value_t = true)]
    pub enable_linkerd_config: bool,

    /// The namespace of the operator's own Lease, linkerd-operator; else the pod's, or the kubeconfig's
    #[arg(long, env = "LINKERD_OPERATOR_OPERATOR_NAMESPACE", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub operator_namespace: Option<String>,

    /// Services whose EndpointSlices are written at the same time
    #[arg(
        long,
        env = "LINKERD_OPERATOR_EXTERNAL_WORKLOAD_CONCURRENCY",
        value_name = "NUMBER",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub external_workload_concurrency: u16,

    /// Serve discovery to Linkerd's proxies
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_DESTINATION", default_value_t = true)]
    pub enable_destination: bool,

    #[command(flatten)]
    pub destination: DestinationArgs,

    /// How often every Service is compared with its EndpointSlices though nothing happened
    #[arg(
        long,
        env = "LINKERD_OPERATOR_FULL_PASS_INTERVAL",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = positive_duration
    )]
    pub full_pass_interval: Duration,

    /// Tells this replica from others in Leases and Events; else the pod's name, or the host's with a random suffix.
    /// Pods with host network share their node's name: set it for them
    #[arg(long, env = "LINKERD_OPERATOR_LEADER_ELECTION_IDENTITY", value_name = "NAME")]
    pub leader_election_identity: Option<String>,

    /// How long other replicas wait for a leader that does not renew its Lease
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LEADER_ELECTION_LEASE_DURATION",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = positive_duration
    )]
    pub leader_election_lease_duration: Duration,

    /// How long a leader that cannot renew its Lease goes on writing
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LEADER_ELECTION_RENEW_DEADLINE",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = positive_duration
    )]
    pub leader_election_renew_deadline: Duration,

    /// How often a leader renews its Lease; others look twice as often
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LEADER_ELECTION_RETRY_PERIOD",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = positive_duration
    )]
    pub leader_election_retry_period: Duration,

    /// What to log: error, warn, info, debug, trace, or directives such as info,linkerd_operator=debug
    #[arg(long, env = "LINKERD_OPERATOR_LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    pub log_level: String,

    /// How to log
    #[arg(long, env = "LINKERD_OPERATOR_LOG_FORMAT", value_name = "FORMAT", default_value = "plain")]
    pub log_format: LogFormat,

    /// Messages to log once at the start.
    #[arg(skip)]
    pub notices: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Plain,
    Json,
}

// === impl ManagerArgs ===

impl ManagerArgs {
    /// Returns the settings, or an error if flags contradict each other.
    pub(super) fn checked(self) -> Result<Self, String> {
        let (duration, deadline, retry) = (
            self.leader_election_lease_duration,
            self.leader_election_renew_deadline,
            self.leader_election_retry_period,
        );
        if duration.subsec_nanos() != 0 {
            return Err(
                "--leader-election-lease-duration has to be whole seconds: a Lease records nothing finer".to_owned()
            );
        }
        if deadline >= duration {
            return Err(format!(
                "--leader-election-renew-deadline ({deadline:?}) has to be shorter than --leader-election-lease-duration ({duration:?}): \
                 else two replicas could write at the same time"
            ));
        }
        if retry.saturating_mul(2) > deadline {
            return Err(format!(
                "--leader-election-retry-period ({retry:?}) has to be at most half of --leader-election-renew-deadline ({deadline:?}): \
                 else one failed renewal ends a leadership"
            ));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::testing::manager as settings;

    #[test]
    fn the_defaults_of_the_lease_are_linkerds() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.leader_election_lease_duration, Duration::from_secs(30));
        assert_eq!(settings.leader_election_renew_deadline, Duration::from_secs(10));
        assert_eq!(settings.leader_election_retry_period, Duration::from_secs(2));
        assert!(settings.enable_external_workload);
    }

    #[test]
    fn flags_that_would_let_two_replicas_write_are_refused_with_a_reason() {
        let error = settings(&["--leader-election-renew-deadline", "30s"]).unwrap_err();
        assert!(error.contains("two replicas could write"), "{error}");
        let error = settings(&["--leader-election-retry-period", "6s"]).unwrap_err();
        assert!(error.contains("one failed renewal"), "{error}");
        assert!(settings(&["--full-pass-interval", "0s"]).is_err());
        assert!(settings(&["--full-pass-interval", "soon"]).is_err());
    }

    #[test]
    fn a_job_is_switched_off_by_its_flag() {
        assert!(!settings(&["--enable-external-workload=false"]).unwrap().enable_external_workload);
        assert!(settings(&["--enable-external-workload"]).unwrap().enable_external_workload);
        assert!(!settings(&["manager", "--enable-h2-upgrade=false"]).unwrap().destination.enable_h2_upgrade);
        assert!(settings(&["--enable-ipv6"]).unwrap().destination.enable_ipv6);
        assert!(settings(&["--enable-ipv6", "false"]).is_err(), "a word that stands alone is no value");
    }

    #[test]
    fn an_empty_domain_is_refused_instead_of_switching_identities_or_discovery_off() {
        for flag in ["--cluster-domain=", "--identity-trust-domain=", "--controller-namespace="] {
            assert!(settings(&[flag]).is_err(), "{flag}");
        }
    }
}
