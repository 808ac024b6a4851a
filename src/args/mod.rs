//! The command line: flags, each with an environment variable, parsed into typed settings. Nothing else in the process reads
//! the environment, except kube where it looks for a kubeconfig or a ServiceAccount.

mod destination;
mod go_flags;
mod linkerd_destination;

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{Arg, ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use k8s_openapi::jiff::SignedDuration;

pub use self::destination::DestinationArgs;
use crate::{
    cli::{EndpointsArgs, ExplainArgs, ProfileArgs},
    version,
};

/// Bad usage, as in sysexits.h.
pub const USAGE: u8 = 64;

/// A control plane for the Linkerd service mesh.
#[derive(Debug, Parser)]
#[command(
    name = "linkerd-operator",
    version = version::whole(),
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
#[derive(Debug)]
pub enum Task {
    Manager(Box<ManagerArgs>),
    Endpoints(Box<EndpointsArgs>),
    Profile(Box<ProfileArgs>),
    Explain(Box<ExplainArgs>),
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Watches the cluster and does the enabled jobs (the default)
    #[command(args_override_self = true)]
    Manager(Box<ManagerArgs>),
    /// Takes the place of Linkerd's container destination, with that container's flags: see destination -help
    #[command(disable_help_flag = true)]
    Destination {
        #[arg(allow_hyphen_values = true, trailing_var_arg = true, value_name = "-FLAG=VALUE")]
        arguments: Vec<String>,
    },
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
#[command(mut_args = switch)]
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

    /// What to log once at the start.
    #[arg(skip)]
    pub notices: Vec<String>,
}

/// What there is to print instead of anything else to do, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: u8,
    /// With its last line's end.
    pub text: String,
    /// For stderr.
    pub is_error: bool,
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
    /// What to print instead, and how to end.
    pub fn settings(self) -> Result<Task, Ended> {
        match self.command {
            None => Ok(Task::Manager(Box::new(self.manager.checked()?))),
            Some(Command::Manager(args)) => Ok(Task::Manager(Box::new(args.checked()?))),
            Some(Command::Destination { arguments }) => {
                let parsed = linkerd_destination::parse(&arguments, self.manager, linkerd_destination::environment)?;
                let mut args = parsed.args.checked()?;
                args.notices = parsed.notices;
                Ok(Task::Manager(Box::new(args)))
            }
            Some(Command::Endpoints(args)) => Ok(Task::Endpoints(args)),
            Some(Command::Profile(args)) => Ok(Task::Profile(args)),
            Some(Command::Explain(args)) => Ok(Task::Explain(args)),
        }
    }
}

// === impl Ended ===

impl Ended {
    fn told(text: String) -> Self {
        Self { code: 0, text, is_error: false }
    }

    fn refused(code: u8, text: String) -> Self {
        Self { code, text, is_error: true }
    }
}

impl From<String> for Ended {
    fn from(sentence: String) -> Self {
        Self::refused(USAGE, format!("error: {sentence}\n"))
    }
}

// === impl ManagerArgs ===

impl ManagerArgs {
    /// Unless flags contradict each other.
    fn checked(self) -> Result<Self, String> {
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

/// One that is on or off: `--flag`, `--flag=true`, `--flag=false`, as Go's flags are.
fn switch(arg: Arg) -> Arg {
    match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => arg,
    }
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
    use crate::cli::OutputFormat;

    fn parsed(args: &[&str]) -> Result<Task, String> {
        let args = std::iter::once("linkerd-operator").chain(args.iter().copied());
        Args::try_parse_from(args).map_err(|error| error.to_string())?.settings().map_err(|ended| ended.text)
    }

    fn settings(args: &[&str]) -> Result<ManagerArgs, String> {
        match parsed(args)? {
            Task::Manager(args) => Ok(*args),
            other => panic!("{args:?} are {other:?}"),
        }
    }

    fn endpoints(args: &[&str]) -> Result<EndpointsArgs, String> {
        match parsed(&[&["endpoints"], args].concat())? {
            Task::Endpoints(args) => Ok(*args),
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
        assert!(!settings(&["manager", "--enable-h2-upgrade=false"]).unwrap().destination.enable_h2_upgrade);
        assert!(settings(&["--enable-ipv6"]).unwrap().destination.enable_ipv6);
        assert!(settings(&["--enable-ipv6", "false"]).is_err(), "a word that stands alone is no value");
    }

    #[test]
    fn endpoints_are_asked_of_linkerds_destination_unless_told_otherwise() {
        let args = endpoints(&["web.prod.svc.cluster.local:80"]).unwrap();
        assert_eq!(args.authorities, ["web.prod.svc.cluster.local:80"]);
        assert_eq!((args.watch, args.output, args.token.as_str()), (false, OutputFormat::Table, ""));
        assert_eq!((args.connect.addr, args.connect.namespace.as_str()), (None, "linkerd"));
        assert_eq!(args.connect.selector, "linkerd.io/control-plane-component=destination");
    }

    #[test]
    fn endpoints_take_several_authorities_and_flags_anywhere() {
        let args =
            endpoints(&["a:1", "--watch", "-o", "json", "b:2", "--token", "{}", "--addr=localhost:8086"]).unwrap();
        assert_eq!(args.authorities, ["a:1", "b:2"]);
        assert_eq!((args.watch, args.output, args.token.as_str()), (true, OutputFormat::Json, "{}"));
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
            Task::Profile(args) => Ok(*args),
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
            Task::Explain(args) => Ok(*args),
            other => Err(format!("{other:?}")),
        };
        let args = explain(&[]).unwrap();
        assert_eq!((args.name, args.file, args.all, args.output), (None, None, false, OutputFormat::Table));
        let args = explain(&["mesh", "--all", "-o", "json", "--kubeconfig=k"]).unwrap();
        assert_eq!((args.name.as_deref(), args.all, args.output), (Some("mesh"), true, OutputFormat::Json));
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
