//! The command line of the container `destination` of Linkerd's own Deployment, so that the operator's image can
//! replace it.
//!
//! * In: the arguments after the subcommand `destination`, the container's environment. Out: the settings of a manager
//!   with the two jobs of that container, discovery and EndpointSlices of ExternalWorkloads, and messages to log once.
//! * Always: flags, defaults and exit codes are those of Linkerd's `destination` (edge-26.8). A flag without effect is
//!   validated and named in the log; so is an unknown one, because a newer chart may have it. The operator's own
//!   settings come from `LINKERD_OPERATOR_…`, as for every subcommand.

use std::{
    ffi::OsString,
    net::{Ipv6Addr, SocketAddr, ToSocketAddrs},
    str::FromStr,
};

use clap::{Arg, ArgAction, Args as ClapArgs, ValueEnum};

use super::{Exit, LogFormat, ManagerArgs, switch};
use crate::{
    cluster::{Problems, kinds::port_ranges::PortRanges},
    destination::settings::{Http2Params, TransportMode},
    version,
};

/// The subcommand.
const COMMAND: &str = "destination";
const LOCAL: &str = "cluster.local";
const STREAM_QUEUE_CAPACITY: i64 = 100;
/// The flag with which an unknown one is passed to clap, which would exit.
const UNKNOWN_FLAG: &str = "unknown-flag";

/// The flags of Linkerd's container. Values for which that container exits with 1 are strings here, because clap exits
/// with 2.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdDestinationArgs {
    /// Address of the Destination API
    #[arg(long, value_name = "ADDR", default_value = ":8086")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9996")]
    metrics_addr: String,

    /// The kubeconfig; if empty, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,

    /// Namespace of Linkerd's control plane
    #[arg(long, value_name = "NAME", default_value = "linkerd")]
    controller_namespace: String,

    /// Transport to meshed endpoints: transparent or transport-header
    #[arg(long, value_name = "MODE", default_value = "transparent")]
    outbound_transport_mode: String,

    /// Upgrade HTTP/1 between meshed Pods to HTTP/2
    #[arg(long, default_value_t = true)]
    enable_h2_upgrade: bool,

    /// Must be true: discovery by Endpoints is not supported
    #[arg(long, default_value_t = true)]
    enable_endpoint_slices: bool,

    /// Prefer a Pod's IPv6 address
    #[arg(long, default_value_t = true)]
    enable_ipv6: bool,

    /// Trust domain of the mesh's identities; cluster.local if empty
    #[arg(long, value_name = "DOMAIN", default_value = "")]
    identity_trust_domain: String,

    /// Domain of the cluster's Services; cluster.local if empty
    #[arg(long, value_name = "DOMAIN", default_value = "")]
    cluster_domain: String,

    /// Ports and ranges that are opaque, unless a workload overrides them
    #[arg(long, value_name = "PORTS", default_value = "")]
    default_opaque_ports: String,

    /// Give endpoints in the client's zone ten times the weight
    #[arg(long, default_value_t = false)]
    ext_endpoint_zone_weights: bool,

    /// HTTP/2 settings for connections to meshed endpoints, as JSON
    #[arg(long, value_name = "JSON", default_value = "")]
    meshed_http2_client_params: String,

    /// No effect
    #[arg(long, default_value_t = false)]
    enable_pprof: bool,

    /// No effect: the metrics are always exported
    #[arg(long, default_value_t = true)]
    export_queue_metrics: bool,

    /// No effect: streams have no queue
    #[arg(long, value_name = "NUMBER", default_value_t = STREAM_QUEUE_CAPACITY)]
    stream_queue_capacity: i64,

    /// No effect
    #[arg(long, value_name = "ADDR", default_value = "")]
    trace_collector: String,

    /// Log level: panic, fatal, error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,

    /// Log format: plain or json
    #[arg(long, value_name = "FORMAT", default_value = "plain")]
    log_format: String,

    /// Exit with 2 if a flag is unknown, as Linkerd's container does; otherwise it is named in the log and ignored
    #[arg(long, default_value_t = false)]
    strict_flags: bool,

    /// Print the version and exit
    #[arg(long, default_value_t = false)]
    version: bool,

    /// The names of unknown flags.
    #[arg(long = UNKNOWN_FLAG, hide = true)]
    unknown: Vec<String>,

    /// Ignored: in Go, the first argument that is not a flag ends the flags.
    #[arg(hide = true, trailing_var_arg = true)]
    ignored: Vec<String>,
}

// === impl LinkerdDestinationArgs ===

impl LinkerdDestinationArgs {
    /// Returns the settings of the manager. `manager` has the operator's own settings from the environment, and no
    /// flags.
    ///
    /// # Errors
    /// Returns the text to print and the exit code of Linkerd's container, if there is nothing to run.
    pub(super) fn manager(
        self,
        mut manager: ManagerArgs,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<ManagerArgs, Exit> {
        if let Some(flag) = self.unknown.first().filter(|_| self.strict_flags) {
            let usage = LinkerdDestinationArgs::augment_args(clap::Command::new(COMMAND)).render_usage();
            return Err(Exit::failure(2, format!("error: unexpected argument '-{flag}' found\n\n{usage}\n")));
        }
        if self.version {
            let version = environment("LINKERD_CONTAINER_VERSION_OVERRIDE").filter(|text| !text.is_empty());
            return Err(Exit::success(version.unwrap_or_else(|| version::whole().to_owned()) + "\n"));
        }
        let invalid = |flag: &str, value: &str, reason: &str| {
            Exit::failure(1, format!("error: invalid value {value:?} for flag -{flag}: {reason}\n"))
        };
        if !self.enable_endpoint_slices {
            let reason = "discovery without EndpointSlices is not supported: remove the flag";
            return Err(invalid("enable-endpoint-slices", "false", reason));
        }
        if self.stream_queue_capacity <= 0 {
            let value = self.stream_queue_capacity.to_string();
            return Err(invalid("stream-queue-capacity", &value, "it must be greater than 0"));
        }

        let unknown = self.unknown.iter().map(|flag| format!("-{flag} is unknown to linkerd-operator and is ignored"));
        let mut notices: Vec<String> = unknown.collect();
        for (flag, is_given) in [
            ("enable-pprof", self.enable_pprof),
            ("export-queue-metrics", !self.export_queue_metrics),
            ("stream-queue-capacity", self.stream_queue_capacity != STREAM_QUEUE_CAPACITY),
            ("trace-collector", !self.trace_collector.is_empty()),
        ] {
            if is_given {
                notices.push(format!("-{flag} has no effect in linkerd-operator and is ignored"));
            }
        }
        let mut domain = |flag: &str, domain: String| {
            if !domain.is_empty() {
                return domain;
            }
            notices.push(format!("-{flag} is not set; using {LOCAL}"));
            LOCAL.to_owned()
        };
        let discovery = &mut manager.destination;
        discovery.identity_trust_domain = domain("identity-trust-domain", self.identity_trust_domain);
        discovery.cluster_domain = domain("cluster-domain", self.cluster_domain);
        discovery.destination_addr = address(&self.addr).map_err(|reason| invalid("addr", &self.addr, reason))?;
        discovery.outbound_transport_mode = match self.outbound_transport_mode.as_str() {
            "transport-header" => TransportMode::TransportHeader,
            "transparent" => TransportMode::Transparent,
            other => {
                notices.push(format!("-outbound-transport-mode={other} is unknown; using transparent"));
                TransportMode::Transparent
            }
        };
        discovery.enable_h2_upgrade = self.enable_h2_upgrade;
        discovery.enable_ipv6 = self.enable_ipv6;
        discovery.ext_endpoint_zone_weights = self.ext_endpoint_zone_weights;
        let mut problems = Problems::default();
        discovery.default_opaque_ports = PortRanges::parse(&self.default_opaque_ports, [], &mut problems);
        if !problems.is_empty() {
            notices.push(format!("-default-opaque-ports: {problems}; ignored"));
        }
        let params = &self.meshed_http2_client_params;
        discovery.meshed_http2_client_params =
            Http2Params::from_str(params).map_err(|reason| invalid("meshed-http2-client-params", params, &reason))?;

        manager.admin_addr =
            address(&self.metrics_addr).map_err(|reason| invalid("metrics-addr", &self.metrics_addr, reason))?;
        manager.kubeconfig = (!self.kubeconfig.is_empty()).then(|| self.kubeconfig.into());
        manager.controller_namespace = self.controller_namespace;
        manager.log_level =
            level(&self.log_level).map_err(|reason| invalid("log-level", &self.log_level, reason))?.to_owned();
        manager.log_format = <LogFormat as ValueEnum>::from_str(&self.log_format, false)
            .map_err(|_| invalid("log-format", &self.log_format, "it must be plain or json"))?;
        manager.enable_destination = true;
        // Linkerd's container serves the Services of other clusters. If that is disabled here, a rollout stops at the first
        // replica that refuses requests for such Services.
        manager.enable_multicluster.get_or_insert(true);
        manager.allow_unsupported_services.get_or_insert(false);
        manager.enable_external_workload = true;
        // Linkerd's ServiceAccount has no permission to write the configuration; the operator's own Deployment does
        // that.
        manager.enable_linkerd_config = false;
        manager.notices = notices;
        Ok(manager)
    }
}

/// Rewrites Go's `-flag` and `-flag value` to `--flag` and `--flag=value` after the subcommand `destination`: clap
/// accepts long flags only with two dashes, and would parse a separate value that begins with a dash as a flag. The
/// first argument that is not a flag ends the flags, as in Go. The argument after an unknown flag counts as its value,
/// unless it begins with a dash.
pub(super) fn with_double_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut rewritten: Vec<OsString> = arguments.by_ref().take(2).collect();
    if rewritten.get(1).is_some_and(|command| command == COMMAND) {
        let command = LinkerdDestinationArgs::augment_args(clap::Command::new(COMMAND));
        while let Some(argument) = arguments.next() {
            // A text that is not UTF-8 is a value or an unknown flag, which clap reports.
            let name = argument.to_str().and_then(|text| text.strip_prefix("--").or_else(|| text.strip_prefix('-')));
            // `-h` is clap's own flag; `-` and `--` are not flags.
            let Some(name) = name.filter(|name| name.len() > 1) else {
                let is_flag = argument == "-h";
                rewritten.push(argument);
                if is_flag { continue } else { break }
            };
            let mut flag = OsString::from(format!("--{name}"));
            let (bare, has_value) = name.split_once('=').map_or((name, false), |(bare, _)| (bare, true));
            match command.get_arguments().find(|known| known.get_long() == Some(bare) && !known.is_hide_set()) {
                Some(known) if !has_value && !known.is_require_equals_set() => {
                    if let Some(value) = arguments.next() {
                        flag.push("=");
                        flag.push(value);
                    }
                }
                Some(_) => {}
                // clap's own flag, or bad syntax.
                None if bare == "help" || bare.is_empty() || bare.starts_with('-') => {}
                None => {
                    flag = format!("--{UNKNOWN_FLAG}={bare}").into();
                    if !has_value {
                        arguments.next_if(|next| !next.as_encoded_bytes().starts_with(b"-"));
                    }
                }
            }
            rewritten.push(flag);
        }
    }
    rewritten.extend(arguments);
    rewritten
}

/// Makes a boolean flag accept the values of Go's `strconv.ParseBool`.
fn go_switch(arg: Arg) -> Arg {
    match arg.get_action() {
        ArgAction::SetTrue => switch(arg).value_parser(go_bool),
        _ => arg,
    }
}

fn go_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it must be true or false"),
    }
}

/// Parses an address. As Go, it listens on all addresses if only a port is given, and on one address of a host,
/// preferably IPv4.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    const INVALID: &str = "it must be :PORT, IP:PORT or HOST:PORT";
    let (host, port) = text.rsplit_once(':').ok_or(INVALID)?;
    let port: u16 = port.parse().map_err(|_| INVALID)?;
    if host.is_empty() {
        return Ok((Ipv6Addr::UNSPECIFIED, port).into());
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    // An IPv6 address without brackets is not a host.
    if host.contains([':', '[', ']']) {
        return Err(INVALID);
    }
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(|_| "its host cannot be resolved")?.collect();
    addresses.iter().find(|it| it.is_ipv4()).or(addresses.first()).copied().ok_or("its host has no address")
}

/// Returns the operator's log level for a level of logrus.
fn level(text: &str) -> Result<&'static str, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok("error"),
        "warn" | "warning" => Ok("warn"),
        "info" => Ok("info"),
        "debug" => Ok("debug"),
        "trace" => Ok("trace"),
        _ => Err("it must be panic, fatal, error, warn, info, debug or trace"),
    }
}

#[cfg(test)]
#[path = "linkerd_destination_tests.rs"]
mod tests;
