//! The flags of Linkerd's containers, which are Go programs.
//!
//! In: arguments in Go's syntax. Out: arguments in clap's syntax, and values that Go's programs accept. Always holds: an
//! unknown flag is kept under [`UNKNOWN_FLAG`], because a newer chart may have it.

use std::{
    ffi::OsString,
    net::{Ipv6Addr, SocketAddr, ToSocketAddrs},
};

use clap::{Arg, ArgAction, Args as ClapArgs};

use super::{
    linkerd_destination::{self, LinkerdDestinationArgs},
    linkerd_proxy_injector::{self, LinkerdProxyInjectorArgs},
    switch,
};

/// The flag with which an unknown one is passed to clap, which would exit.
pub(super) const UNKNOWN_FLAG: &str = "unknown-flag";

/// Returns the flags of a container; `None` if the subcommand is none of Linkerd's.
fn container(subcommand: &str) -> Option<clap::Command> {
    match subcommand {
        linkerd_destination::COMMAND => {
            Some(LinkerdDestinationArgs::augment_args(clap::Command::new(linkerd_destination::COMMAND)))
        }
        linkerd_proxy_injector::COMMAND => {
            Some(LinkerdProxyInjectorArgs::augment_args(clap::Command::new(linkerd_proxy_injector::COMMAND)))
        }
        _ => None,
    }
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
pub(super) fn address(text: &str) -> Result<SocketAddr, &'static str> {
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
pub(super) fn level(text: &str) -> Result<&'static str, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok("error"),
        "warn" | "warning" => Ok("warn"),
        "info" => Ok("info"),
        "debug" => Ok("debug"),
        "trace" => Ok("trace"),
        _ => Err("it must be panic, fatal, error, warn, info, debug or trace"),
    }
}
