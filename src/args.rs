//! The command line: flags, each with an environment variable, parsed into typed settings. Nothing else in the process reads
//! the environment, except kube where it looks for a kubeconfig or a ServiceAccount.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use k8s_openapi::jiff::SignedDuration;

use crate::{
    cli::{EndpointsArgs, ExplainArgs, ProfileArgs},
    cluster::{object::Problems, port_ranges::PortRanges},
    destination::{
        Settings,
        settings::{Http2Params, Limits, TransportMode},
    },
    resources::Resources,
};

/// A control plane for the Linkerd service mesh.
#[derive(Debug, Parser)]
#[command(
    name = "linkerd-operator",
    version,
    about,
    max_term_width = 100,
    args_override_self = true,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    manager: ManagerArgs,
}

/// What the process is to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Watches the cluster and does the enabled jobs (the default)
    #[command(args_override_self = true)]
    Manager(Box<ManagerArgs>),
    /// Prints the endpoints that a proxy is told of
    #[command(visible_alias = "ep", args_override_self = true)]
    Endpoints(Box<EndpointsArgs>),
    /// Prints the profile that a proxy is told of, as linkerd diagnostics profile does
    #[command(args_override_self = true)]
    Profile(Box<ProfileArgs>),
    /// Prints what a LinkerdConfig would change, and where each value of the mesh's configuration is from; writes nothing
    #[command(args_override_self = true)]
    Explain(Box<ExplainArgs>),
}

#[derive(Clone, Debug, ClapArgs)]
pub struct ManagerArgs {
    /// The kubeconfig to use; else $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod, in this order
    #[arg(long, env = "LINKERD_OPERATOR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Where to serve /live, /ready, /ping and /metrics; [::] takes IPv4 too, and is 0.0.0.0 where there is no IPv6
    #[arg(long, env = "LINKERD_OPERATOR_ADMIN_ADDR", value_name = "IP:PORT", default_value = "[::]:9996")]
    pub admin_addr: SocketAddr,

    /// The namespace of Linkerd's control plane: its configuration and the Lease for EndpointSlice writes are there
    #[arg(long, env = "LINKERD_OPERATOR_CONTROLLER_NAMESPACE", value_name = "NAME", default_value = "linkerd", value_parser = NonEmptyStringValueParser::new())]
    pub controller_namespace: String,

    /// Write EndpointSlices for ExternalWorkloads
    #[arg(
        long,
        env = "LINKERD_OPERATOR_ENABLE_EXTERNAL_WORKLOAD",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub enable_external_workload: bool,

    /// Keep Linkerd's proxy configuration as LinkerdConfigs declare it
    #[arg(
        long,
        env = "LINKERD_OPERATOR_ENABLE_LINKERD_CONFIG",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
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
    #[arg(
        long,
        env = "LINKERD_OPERATOR_ENABLE_DESTINATION",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
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
}

/// What the destination server serves, and how. The defaults are those that Linkerd's charts install.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Destination")]
pub struct DestinationArgs {
    /// Where to serve the Destination API, in plain HTTP/2: the pod's own proxy adds TLS
    #[arg(long, env = "LINKERD_OPERATOR_DESTINATION_ADDR", value_name = "IP:PORT", default_value = "[::]:8086")]
    pub destination_addr: SocketAddr,

    /// The domain of the cluster's Services
    #[arg(long, env = "LINKERD_OPERATOR_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local", value_parser = NonEmptyStringValueParser::new())]
    pub cluster_domain: String,

    /// The trust domain of the mesh's identities
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_TRUST_DOMAIN",
        value_name = "DOMAIN",
        default_value = "cluster.local",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub identity_trust_domain: String,

    /// Ports and ranges that are opaque unless a workload says otherwise
    #[arg(
        long,
        env = "LINKERD_OPERATOR_DEFAULT_OPAQUE_PORTS",
        value_name = "PORTS",
        default_value = "25,587,3306,4444,5432,6379,9300,11211",
        value_parser = port_ranges
    )]
    pub default_opaque_ports: PortRanges,

    /// How traffic to meshed endpoints travels
    #[arg(
        long,
        env = "LINKERD_OPERATOR_OUTBOUND_TRANSPORT_MODE",
        value_name = "MODE",
        default_value = "transport-header"
    )]
    pub outbound_transport_mode: TransportMode,

    /// Have proxies carry HTTP/1 between meshed Pods over HTTP/2
    #[arg(
        long,
        env = "LINKERD_OPERATOR_ENABLE_H2_UPGRADE",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub enable_h2_upgrade: bool,

    /// Prefer a Pod's IPv6 address; off, IPv6 addresses of Pods are not served
    #[arg(
        long,
        env = "LINKERD_OPERATOR_ENABLE_IPV6",
        value_name = "BOOL",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub enable_ipv6: bool,

    /// Give endpoints in the client's zone ten times the weight
    #[arg(
        long,
        env = "LINKERD_OPERATOR_EXT_ENDPOINT_ZONE_WEIGHTS",
        value_name = "BOOL",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub ext_endpoint_zone_weights: bool,

    /// HTTP/2 settings for proxies' connections to meshed endpoints, as JSON; empty for none
    #[arg(
        long,
        env = "LINKERD_OPERATOR_MESHED_HTTP2_CLIENT_PARAMS",
        value_name = "JSON",
        default_value = r#"{"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}"#,
        value_parser = Http2Params::from_str
    )]
    pub meshed_http2_client_params: Http2Params,

    /// Say nothing about a Service without endpoints, as Linkerd's destination does, instead of that it has none
    #[arg(
        long,
        env = "LINKERD_OPERATOR_STRICT_UPSTREAM_PARITY",
        value_name = "BOOL",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub strict_upstream_parity: bool,

    /// How long a stream's client may take nothing although something waits for it, before the stream is reset; and how
    /// long after that before the connection is closed, if no stream on it took anything either
    #[arg(
        long,
        env = "LINKERD_OPERATOR_STREAM_STALL_TIMEOUT",
        value_name = "DURATION",
        default_value = "60s",
        value_parser = positive_duration
    )]
    pub stream_stall_timeout: Duration,

    /// How many connections there may be, others wait to be accepted [default: what a quarter of the container's memory
    /// limit and the limit of open files allow, at most 20000]
    #[arg(long, env = "LINKERD_OPERATOR_MAX_CONNECTIONS", value_name = "N")]
    pub max_connections: Option<NonZeroUsize>,

    /// How many streams there may be, others are refused [default: what half of the container's memory limit allows, at
    /// most 250000]
    #[arg(long, env = "LINKERD_OPERATOR_MAX_STREAMS", value_name = "N")]
    pub max_streams: Option<NonZeroUsize>,

    /// How many streams one connection may have: a proxy may ask for all clients of a cluster on one
    #[arg(long, env = "LINKERD_OPERATOR_MAX_STREAMS_PER_CONNECTION", value_name = "N", default_value = "100000")]
    pub max_streams_per_connection: NonZeroU32,

    /// How long a request may have waited for its turn before it is refused. Proxies give up after 3 s and ask again
    #[arg(
        long,
        env = "LINKERD_OPERATOR_MAX_STREAM_WAIT",
        value_name = "DURATION",
        default_value = "1500ms",
        value_parser = positive_duration
    )]
    pub max_stream_wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Plain,
    Json,
}

// === impl Args ===

impl Args {
    /// The settings of the process.
    ///
    /// # Errors
    /// A sentence for the user, when flags contradict each other.
    pub fn settings(self) -> Result<Command, String> {
        let args = match self.command {
            Some(Command::Manager(args)) => args,
            Some(command @ (Command::Endpoints(_) | Command::Profile(_) | Command::Explain(_))) => return Ok(command),
            None => Box::new(self.manager),
        };
        let (duration, deadline, retry) = (
            args.leader_election_lease_duration,
            args.leader_election_renew_deadline,
            args.leader_election_retry_period,
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
        Ok(Command::Manager(args))
    }
}

impl DestinationArgs {
    /// `resources` bounds what no flag does.
    pub fn settings(&self, controller_namespace: &str, resources: Resources) -> Settings {
        Settings {
            controller_namespace: controller_namespace.into(),
            cluster_domain: self.cluster_domain.clone(),
            identity_trust_domain: self.identity_trust_domain.clone(),
            default_opaque_ports: self.default_opaque_ports.clone(),
            outbound_transport_mode: self.outbound_transport_mode,
            enable_h2_upgrade: self.enable_h2_upgrade,
            enable_ipv6: self.enable_ipv6,
            ext_endpoint_zone_weights: self.ext_endpoint_zone_weights,
            meshed_http2_client_params: self.meshed_http2_client_params.clone(),
            strict_upstream_parity: self.strict_upstream_parity,
            limits: Limits {
                connections: self.max_connections.map_or_else(|| resources.connections(), NonZeroUsize::get),
                streams: self.max_streams.map_or_else(|| resources.streams(), NonZeroUsize::get),
                streams_per_connection: self.max_streams_per_connection.get(),
                stream_wait: self.max_stream_wait,
                stream_stall_timeout: self.stream_stall_timeout,
            },
        }
    }
}

/// Ports and ranges; on the command line a mistake is an error, not something to leave out.
fn port_ranges(text: &str) -> Result<PortRanges, String> {
    let mut problems = Problems::default();
    let ranges = PortRanges::parse(text, [], &mut problems);
    if problems.is_empty() { Ok(ranges) } else { Err(problems.to_string()) }
}

/// A duration with a unit, as Kubernetes and Go write it: `90s`, `10m`, `1h30m`.
fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = SignedDuration::from_str(text).map_err(|error| error.to_string())?;
    match Duration::try_from(duration) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("it has to be longer than nothing".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Output;

    fn parsed(args: &[&str]) -> Result<Command, String> {
        let args = std::iter::once("linkerd-operator").chain(args.iter().copied());
        Args::try_parse_from(args).map_err(|error| error.to_string())?.settings()
    }

    fn settings(args: &[&str]) -> Result<ManagerArgs, String> {
        match parsed(args)? {
            Command::Manager(args) => Ok(*args),
            other => panic!("{args:?} are {other:?}"),
        }
    }

    fn endpoints(args: &[&str]) -> Result<EndpointsArgs, String> {
        match parsed(&[&["endpoints"], args].concat())? {
            Command::Endpoints(args) => Ok(*args),
            other => panic!("{args:?} are {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn manager_is_the_default_subcommand() {
        assert_eq!(settings(&["--admin-addr", "127.0.0.1:1"]).unwrap().admin_addr.port(), 1);
        assert_eq!(settings(&["manager", "--admin-addr", "127.0.0.1:2"]).unwrap().admin_addr.port(), 2);
    }

    #[test]
    fn flags_before_the_subcommand_are_refused_instead_of_ignored() {
        assert!(settings(&["--admin-addr=127.0.0.1:1", "manager"]).is_err());
    }

    #[test]
    fn of_a_flag_that_is_given_twice_the_last_counts() {
        let settings = settings(&["manager", "--admin-addr=127.0.0.1:1", "--admin-addr=127.0.0.1:2"]).unwrap();
        assert_eq!(settings.admin_addr.port(), 2);
    }

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
    }

    #[test]
    fn endpoints_are_asked_of_linkerds_destination_unless_told_otherwise() {
        let args = endpoints(&["web.prod.svc.cluster.local:80"]).unwrap();
        assert_eq!(args.authorities, ["web.prod.svc.cluster.local:80"]);
        assert_eq!((args.watch, args.output, args.token.as_str()), (false, Output::Table, ""));
        assert_eq!((args.connect.addr, args.connect.namespace.as_str()), (None, "linkerd"));
        assert_eq!(args.connect.selector, "linkerd.io/control-plane-component=destination");
    }

    #[test]
    fn endpoints_take_several_authorities_and_flags_anywhere() {
        let args =
            endpoints(&["a:1", "--watch", "-o", "json", "b:2", "--token", "{}", "--addr=localhost:8086"]).unwrap();
        assert_eq!(args.authorities, ["a:1", "b:2"]);
        assert_eq!((args.watch, args.output, args.token.as_str()), (true, Output::Json, "{}"));
        assert_eq!(args.connect.addr.as_deref(), Some("localhost:8086"));
    }

    #[test]
    fn endpoints_without_an_authority_or_with_a_bad_flag_are_refused() {
        for bad in [&[][..], &["a", "-o", "yaml"], &["a", "--addr", "localhost"], &["a", "--admin-addr=127.0.0.1:1"]] {
            assert!(endpoints(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_profile_is_of_one_authority() {
        let profile = |args: &[&str]| match parsed(&[&["profile"], args].concat())? {
            Command::Profile(args) => Ok(*args),
            other => Err(format!("{other:?}")),
        };
        let args = profile(&["10.0.0.1:80", "-w", "--token", "{}", "--addr=localhost:8086"]).unwrap();
        assert_eq!((args.authority.as_str(), args.watch, args.token.as_str()), ("10.0.0.1:80", true, "{}"));
        assert_eq!(args.connect.addr.as_deref(), Some("localhost:8086"));
        for bad in [&[][..], &["a", "b"], &["a", "-o", "json"]] {
            assert!(profile(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_explained_has_a_name_or_is_in_a_file_or_is_in_effect() {
        let explain = |args: &[&str]| match parsed(&[&["explain"], args].concat())? {
            Command::Explain(args) => Ok(*args),
            other => Err(format!("{other:?}")),
        };
        let args = explain(&[]).unwrap();
        assert_eq!((args.name, args.file, args.all, args.output), (None, None, false, Output::Table));
        let args = explain(&["mesh", "--all", "-o", "json", "--kubeconfig=k"]).unwrap();
        assert_eq!((args.name.as_deref(), args.all, args.output), (Some("mesh"), true, Output::Json));
        assert!(args.kubeconfig.is_some());
        assert_eq!(explain(&["-f", "-"]).unwrap().file.as_deref(), Some(std::path::Path::new("-")));
        for bad in [&["a", "b"][..], &["a", "-f", "b"], &["-o", "yaml"], &["--addr=localhost:1"]] {
            assert!(explain(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_empty_domain_is_refused_instead_of_switching_identities_or_discovery_off() {
        for flag in ["--cluster-domain=", "--identity-trust-domain=", "--controller-namespace="] {
            assert!(settings(&[flag]).is_err(), "{flag}");
        }
    }
}
