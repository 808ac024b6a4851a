//! The flags of the manager.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{
    Parser, ValueEnum,
    builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser},
};

use super::{
    destination::DestinationArgs,
    identity::IdentityArgs,
    parse::{duration, log_filter, positive_duration},
};
use crate::{dashboard::DashboardAccess, drop_in::DropIn, go::flags::switch, identity::check_names, version};

#[derive(Clone, Debug, Parser)]
#[command(mut_args = switch)]
pub struct ManagerArgs {
    /// Path of the kubeconfig; if unset, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod, in this order
    // An empty path is as an unset one.
    #[arg(long, env = "LINKERD_OPERATOR_KUBECONFIG", value_name = "FILE", value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,

    /// Address of /live, /ready, /ping, /metrics and /dashboard/; `[::]` includes IPv4, and is 0.0.0.0 on a host without
    /// IPv6
    #[arg(long, env = "LINKERD_OPERATOR_ADMIN_ADDR", value_name = "IP:PORT", default_value = "[::]:9996")]
    pub admin_addr: SocketAddr,

    /// Serve /metrics only to port-forwards and to clients whose bearer token may `get` the path /metrics, by a TokenReview
    /// and a SubjectAccessReview
    #[arg(long, env = "LINKERD_OPERATOR_METRICS_AUTHENTICATION", default_value_t = false)]
    pub metrics_authentication: bool,

    /// Clients that can open the dashboard, a read-only page at /dashboard/ of --admin-addr
    #[arg(long, env = "LINKERD_OPERATOR_DASHBOARD", value_name = "ACCESS", default_value = "port-forward")]
    pub dashboard: DashboardAccess,

    /// Namespace of Linkerd's control plane, with its configuration and the Leases of both controllers
    #[arg(long, env = "LINKERD_OPERATOR_CONTROLLER_NAMESPACE", value_name = "NAME", default_value = "linkerd", value_parser = NonEmptyStringValueParser::new())]
    pub controller_namespace: String,

    /// Write EndpointSlices for ExternalWorkloads
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_EXTERNAL_WORKLOAD", default_value_t = true)]
    pub enable_external_workload: bool,

    /// Enforce the proxy configuration that LinkerdConfigs declare
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_LINKERD_CONFIG", default_value_t = true)]
    pub enable_linkerd_config: bool,

    /// Write the next issuer of the mesh, for LinkerdTrusts with `spec.issuer.manage: Secret`. The process then reads the keys
    /// of issuers, so it should have no other job
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_ISSUER_WRITER", default_value_t = false)]
    pub enable_issuer_writer: bool,

    /// Namespace of the operator, in which no workload is restarted; if unset, the namespace of the pod. Outside a pod
    /// it is required, unless LinkerdConfigs are disabled
    #[arg(long, env = "LINKERD_OPERATOR_OPERATOR_NAMESPACE", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub operator_namespace: Option<String>,

    /// File with a token of the operator's ServiceAccount for the audience identity.l5d.io. With it the operator asks the
    /// identity service for a certificate, to see its issuer before it removes a trust anchor
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_TOKEN_FILE",
        value_name = "FILE",
        default_value = "/var/run/secrets/tokens/linkerd-identity-token"
    )]
    pub identity_token_file: PathBuf,

    /// Maximum number of Services whose EndpointSlices are written at the same time
    #[arg(
        long,
        env = "LINKERD_OPERATOR_EXTERNAL_WORKLOAD_CONCURRENCY",
        value_name = "NUMBER",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    pub external_workload_concurrency: u16,

    /// Serve the Destination API, from which Linkerd's proxies receive endpoints
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_DESTINATION", default_value_t = true)]
    pub enable_destination: bool,

    /// Serve Services of other clusters: read the Secrets of `linkerd multicluster link`, and watch the namespaces that
    /// clients ask for in the clusters that they name [default: false, for `destination` true]
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_MULTICLUSTER")]
    pub enable_multicluster: Option<bool>,

    /// Become ready while Services of other clusters exist that are not served, because --enable-multicluster is false
    /// [default: true, for `destination` false]
    #[arg(long, env = "LINKERD_OPERATOR_ALLOW_UNSUPPORTED_SERVICES")]
    pub allow_unsupported_services: Option<bool>,

    /// Serve the Identity API, from which Linkerd's proxies receive their certificates. The process then has the key of the
    /// issuer, so it should have no other right
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_IDENTITY", default_value_t = false)]
    pub enable_identity: bool,

    /// Serve the admission webhook that injects proxies into Pods, with the configuration in Linkerd's ConfigMaps
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_PROXY_INJECTOR", default_value_t = false)]
    pub enable_proxy_injector: bool,

    /// Serve the admission webhook that validates LinkerdConfigs, ExternalWorkloads and ServiceProfiles
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_WEBHOOKS", default_value_t = false)]
    pub enable_webhooks: bool,

    /// Address of the admission webhooks
    #[arg(long, env = "LINKERD_OPERATOR_WEBHOOK_ADDR", value_name = "IP:PORT", default_value = "[::]:9443")]
    pub webhook_addr: SocketAddr,

    /// Time after SIGTERM in which the admission webhooks are still served, until all nodes and API servers use another
    /// replica. At least 10 s less than the Pod's terminationGracePeriodSeconds
    #[arg(
        long,
        env = "LINKERD_OPERATOR_SHUTDOWN_DELAY",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration
    )]
    pub shutdown_delay: Duration,

    /// Folder with the certificate of the admission webhooks: tls/tls.crt and tls/tls.key
    #[arg(long, env = "LINKERD_OPERATOR_WEBHOOK_FOLDER", value_name = "FOLDER", default_value = "/var/run/linkerd")]
    pub webhook_folder: PathBuf,

    /// Name of the Secret, in the operator's namespace, in which the operator keeps the certificate of its webhooks. It
    /// issues and renews the certificate. If unset, the certificate is read from --webhook-folder
    #[arg(long, env = "LINKERD_OPERATOR_WEBHOOK_CERTIFICATE_SECRET", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub webhook_certificate_secret: Option<String>,

    /// Name of the Service of the webhooks, in the operator's namespace, for the certificate that the operator issues
    #[arg(
        long,
        env = "LINKERD_OPERATOR_WEBHOOK_SERVICE",
        value_name = "NAME",
        default_value = "linkerd-operator-webhook",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub webhook_service: String,

    /// Interval of the full resync, which compares every Service with its EndpointSlices
    #[arg(
        long,
        env = "LINKERD_OPERATOR_FULL_PASS_INTERVAL",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = positive_duration
    )]
    pub full_pass_interval: Duration,

    /// Unique name of this replica in Leases and Events; if unset, the host's name with a random suffix. The shipped
    /// Deployment sets it to the pod's name
    #[arg(long, env = "LINKERD_OPERATOR_LEADER_ELECTION_IDENTITY", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub leader_election_identity: Option<String>,

    /// Time that other replicas wait before they take over the Lease of a leader that does not renew it
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LEADER_ELECTION_LEASE_DURATION",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = positive_duration
    )]
    pub leader_election_lease_duration: Duration,

    /// Time after which a leader that cannot renew its Lease stops writing
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LEADER_ELECTION_RENEW_DEADLINE",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = positive_duration
    )]
    pub leader_election_renew_deadline: Duration,

    /// Interval at which a leader renews its Lease; other replicas check it twice as often
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LEADER_ELECTION_RETRY_PERIOD",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = positive_duration
    )]
    pub leader_election_retry_period: Duration,

    /// Log filter: error, warn, info, debug, trace, or directives such as info,linkerd_operator=debug
    #[arg(
        long,
        env = "LINKERD_OPERATOR_LOG_LEVEL",
        value_name = "FILTER",
        default_value = "info",
        value_parser = log_filter
    )]
    pub log_level: String,

    /// Log format
    #[arg(long, env = "LINKERD_OPERATOR_LOG_FORMAT", value_name = "FORMAT", default_value = "plain")]
    pub log_format: LogFormat,

    // These are last: the headings that they set are also those of all flags after them.
    #[command(flatten)]
    pub destination: DestinationArgs,

    #[command(flatten)]
    pub identity: IdentityArgs,

    /// The container of Linkerd that the process replaces.
    #[arg(skip)]
    pub replaces: Option<DropIn>,

    /// The version of the process, or of the container that it replaces.
    #[arg(skip = version::whole())]
    pub version: String,

    /// Messages that are logged once at startup.
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
            return Err("--leader-election-lease-duration must be a whole number of seconds, the precision of a Lease"
                .to_owned());
        }
        if deadline >= duration {
            return Err(format!(
                "--leader-election-renew-deadline ({deadline:?}) must be shorter than --leader-election-lease-duration ({duration:?}): \
                 otherwise two replicas could write at the same time"
            ));
        }
        if retry.saturating_mul(2) > deadline {
            return Err(format!(
                "--leader-election-retry-period ({retry:?}) must be at most half of --leader-election-renew-deadline ({deadline:?}): \
                 otherwise one failed renewal would end the leadership"
            ));
        }
        if self.enable_identity {
            check_names(&self.controller_namespace, &self.destination.identity_trust_domain)?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::testing::manager as settings;

    #[test]
    fn the_defaults_of_the_lease_are_those_of_linkerd() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.leader_election_lease_duration, Duration::from_secs(30));
        assert_eq!(settings.leader_election_renew_deadline, Duration::from_secs(10));
        assert_eq!(settings.leader_election_retry_period, Duration::from_secs(2));
        assert!(settings.enable_external_workload);
    }

    #[test]
    fn flags_that_would_let_two_replicas_write_are_rejected_with_a_reason() {
        let error = settings(&["--leader-election-renew-deadline", "30s"]).unwrap_err();
        assert!(error.contains("two replicas could write"), "{error}");
        let error = settings(&["--leader-election-retry-period", "6s"]).unwrap_err();
        assert!(error.contains("one failed renewal"), "{error}");
        assert!(settings(&["--full-pass-interval", "0s"]).is_err());
        assert_eq!(settings(&["--shutdown-delay", "0s"]).unwrap().shutdown_delay, Duration::ZERO);
        assert!(settings(&["--shutdown-delay", "-1s"]).is_err());
        for filter in ["warn", "INFO", "info,linkerd_operator=debug", "warn, linkerd_operator::destination", "off"] {
            assert_eq!(settings(&["--log-level", filter]).unwrap().log_level, filter);
        }
        for filter in ["warning", "verbose", "info,debgu", "info;linkerd_operator=debug", "info,kube=inf"] {
            let error = settings(&["--log-level", filter]).unwrap_err();
            assert!(error.contains("is neither a level (error, warn, info, debug, trace, off) nor"), "{error}");
        }
        assert!(settings(&["--full-pass-interval", "soon"]).is_err());
    }

    #[test]
    fn discovery_listens_on_loopback_by_default() {
        assert_eq!(settings(&[]).unwrap().destination.destination_addr, "127.0.0.1:8086".parse().unwrap());
        let served = settings(&["--destination-addr=[::]:8086"]).unwrap();
        assert_eq!(served.destination.destination_addr, "[::]:8086".parse().unwrap());
    }

    #[test]
    fn a_flag_disables_its_job() {
        assert!(!settings(&["--enable-external-workload=false"]).unwrap().enable_external_workload);
        assert!(settings(&["--enable-external-workload"]).unwrap().enable_external_workload);
        assert!(!settings(&["--enable-h2-upgrade=false"]).unwrap().destination.enable_h2_upgrade);
        assert!(settings(&["--enable-ipv6"]).unwrap().destination.enable_ipv6);
        assert!(
            settings(&["--enable-ipv6", "false"]).is_err(),
            "a separate argument is not the value of a boolean flag"
        );
    }

    #[test]
    fn an_empty_name_is_rejected_because_it_would_disable_identities_or_discovery_or_be_that_of_two_replicas() {
        let flags =
            ["--cluster-domain=", "--identity-trust-domain=", "--controller-namespace=", "--leader-election-identity="];
        for flag in flags {
            assert!(settings(&[flag]).is_err(), "{flag}");
        }
    }
}
