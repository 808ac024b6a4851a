//! The flags of Linkerd's containers, which are Go programs.
//!
//! In: arguments in Go's syntax. Out: arguments in clap's syntax, and values that Go's programs accept. Always holds: an
//! unknown flag is kept under [`UNKNOWN_FLAG`], because a newer chart may have it.

use std::{
    ffi::OsString,
    net::{Ipv6Addr, SocketAddr, ToSocketAddrs},
};

use clap::{Arg, ArgAction, Args as ClapArgs, ValueEnum};

use super::{
    Exit, LogFormat, ManagerArgs,
    linkerd_destination::{self, LinkerdDestinationArgs},
    linkerd_proxy_injector::{self, LinkerdProxyInjectorArgs},
    linkerd_sp_validator::{self, LinkerdSpValidatorArgs},
    switch,
};
use crate::{api::go_bool, version};

/// The variable of the environment with the version of the container.
const VERSION_VARIABLE: &str = "LINKERD_CONTAINER_VERSION_OVERRIDE";
/// The flag with which an unknown one is passed to clap, which would exit.
pub(super) const UNKNOWN_FLAG: &str = "unknown-flag";

/// The flags that several of Linkerd's containers have, and the operator's own flags for them. Values for which a
/// container exits with 1 are strings here, because clap exits with 2.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct SharedFlags {
    /// The kubeconfig; if empty, $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod
    #[arg(long, value_name = "FILE", default_value = "")]
    kubeconfig: String,

    /// No effect
    #[arg(long, default_value_t = false)]
    enable_pprof: bool,

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

/// Returns the flags of a container; `None` for a subcommand that does not replace one.
fn container(subcommand: &str) -> Option<clap::Command> {
    match subcommand {
        linkerd_destination::COMMAND => {
            Some(LinkerdDestinationArgs::augment_args(clap::Command::new(linkerd_destination::COMMAND)))
        }
        linkerd_proxy_injector::COMMAND => {
            Some(LinkerdProxyInjectorArgs::augment_args(clap::Command::new(linkerd_proxy_injector::COMMAND)))
        }
        linkerd_sp_validator::COMMAND => {
            Some(LinkerdSpValidatorArgs::augment_args(clap::Command::new(linkerd_sp_validator::COMMAND)))
        }
        _ => None,
    }
}

/// The error of a flag whose value is invalid.
pub(super) fn invalid(flag: &str, value: &str, reason: &str) -> Exit {
    Exit::failure(1, format!("error: invalid value {value:?} for flag -{flag}: {reason}\n"))
}

/// Rewrites Go's `-flag` and `-flag value` to `--flag` and `--flag=value` after the subcommand of a container: clap
/// accepts long flags only with two dashes, and would parse a separate value that begins with a dash as a flag. The
/// first argument that is not a flag ends the flags, as in Go. The argument after an unknown flag counts as its value,
/// unless it begins with a dash.
pub(super) fn with_double_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut rewritten: Vec<OsString> = arguments.by_ref().take(2).collect();
    let subcommand = rewritten.get(1).and_then(|subcommand| subcommand.to_str());
    if let Some(command) = subcommand.and_then(container) {
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
pub(super) fn go_switch(arg: Arg) -> Arg {
    match arg.get_action() {
        ArgAction::SetTrue => {
            switch(arg).value_parser(|text: &str| go_bool::parse(text).ok_or("it must be true or false"))
        }
        _ => arg,
    }
}

/// Returns the address of a flag.
pub(super) fn address(flag: &str, text: &str) -> Result<SocketAddr, Exit> {
    parse_address(text).map_err(|reason| invalid(flag, text, reason))
}

/// Parses an address. As Go, it listens on all addresses if only a port is given, and on one address of a host,
/// preferably IPv4.
fn parse_address(text: &str) -> Result<SocketAddr, &'static str> {
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

// === impl SharedFlags ===

impl SharedFlags {
    /// Applies the flags to the settings of the manager, and disables all of its jobs: a container has only its own,
    /// whatever the environment enables. Returns the version of the container.
    ///
    /// # Errors
    /// Returns the text to print and the exit code of Linkerd's container, if there is nothing to run.
    pub(super) fn apply(
        self,
        command: &'static str,
        manager: &mut ManagerArgs,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<String, Exit> {
        if let Some(flag) = self.unknown.first().filter(|_| self.strict_flags) {
            let usage = container(command).map(|mut command| command.render_usage().to_string()).unwrap_or_default();
            return Err(Exit::failure(2, format!("error: unexpected argument '-{flag}' found\n\n{usage}\n")));
        }
        let version = environment(VERSION_VARIABLE).filter(|text| !text.is_empty());
        let version = version.unwrap_or_else(|| version::whole().to_owned());
        if self.version {
            return Err(Exit::success(version + "\n"));
        }
        let unknown = self.unknown.iter().map(|flag| format!("-{flag} is unknown to linkerd-operator and is ignored"));
        manager.notices = unknown.collect();
        if self.enable_pprof {
            manager.notices.push("-enable-pprof has no effect in linkerd-operator and is ignored".to_owned());
        }
        manager.log_level =
            level(&self.log_level).map_err(|reason| invalid("log-level", &self.log_level, reason))?.to_owned();
        manager.log_format = <LogFormat as ValueEnum>::from_str(&self.log_format, false)
            .map_err(|_| invalid("log-format", &self.log_format, "it must be plain or json"))?;
        manager.kubeconfig = (!self.kubeconfig.is_empty()).then(|| self.kubeconfig.into());
        manager.enable_destination = false;
        manager.enable_external_workload = false;
        manager.enable_linkerd_config = false;
        manager.enable_proxy_injector = false;
        manager.enable_webhooks = false;
        // The container's certificate is in its files.
        manager.webhook_certificate_secret = None;
        Ok(version)
    }
}
