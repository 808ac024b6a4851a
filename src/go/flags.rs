//! The flags of Go programs, in the syntax of clap.
//!
//! In: arguments in Go's syntax. Out: arguments in clap's syntax, and values that Go's programs accept. Always holds:
//! an unknown flag is kept under `UNKNOWN_FLAG`, because a newer chart may have it.

use std::{
    any::TypeId,
    ffi::OsString,
    net::{Ipv6Addr, SocketAddr, ToSocketAddrs},
};

use clap::{Arg, ArgAction, Command};

use super::bool;

/// The flag under which an unknown flag is passed to clap, which would exit otherwise.
pub(crate) const UNKNOWN_FLAG: &str = "unknown-flag";

/// Rewrites Go's `-flag` and `-flag value` to `--flag` and `--flag=value` after the subcommand of a container: clap
/// accepts long flags only with two dashes, and would parse a separate value that begins with a dash as a flag. The
/// first argument that is not a flag ends the flags, as in Go. The argument after an unknown flag counts as its value,
/// unless it begins with a dash. `containers` has a subcommand for each container.
pub(crate) fn with_double_dashes(arguments: impl IntoIterator<Item = OsString>, containers: &Command) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut rewritten: Vec<OsString> = arguments.by_ref().take(2).collect();
    let subcommand = rewritten.get(1).and_then(|subcommand| subcommand.to_str());
    if let Some(command) = subcommand.and_then(|name| containers.find_subcommand(name)) {
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

/// Makes a boolean flag take an optional value, as in Go: `--flag`, `--flag=true`, `--flag=false`.
pub(crate) fn switch(arg: Arg) -> Arg {
    let is_switch =
        matches!(arg.get_action(), ArgAction::SetTrue) || arg.get_value_parser().type_id() == TypeId::of::<bool>();
    if !is_switch {
        return arg;
    }
    arg.action(ArgAction::Set).value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
}

/// Makes a boolean flag accept the values of Go's `strconv.ParseBool`.
pub(crate) fn go_switch(arg: Arg) -> Arg {
    match arg.get_action() {
        ArgAction::SetTrue => {
            switch(arg).value_parser(|text: &str| bool::parse(text).ok_or("it must be true or false"))
        }
        _ => arg,
    }
}

/// Parses an address. As Go, it listens on all addresses if only a port is given, and on one address of a host,
/// preferably IPv4.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, &'static str> {
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
