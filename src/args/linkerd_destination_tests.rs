use std::collections::HashMap;

use clap::Parser;

use super::*;
use crate::args::{Args, Task};

/// What Linkerd's chart passes with its default values (edge-26.8), and what it passes besides if tracing, a log format and
/// `destinationController.additionalArgs` are set.
const CHART: [&str; 13] = [
    "-addr=:8086",
    "-controller-namespace=linkerd",
    "-outbound-transport-mode=transport-header",
    "-enable-h2-upgrade=true",
    "-log-level=info",
    "-log-format=plain",
    "-enable-endpoint-slices=true",
    "-cluster-domain=cluster.local",
    "-identity-trust-domain=cluster.local",
    "-default-opaque-ports=25,587,3306,4444,5432,6379,9300,11211",
    "-enable-ipv6=false",
    "-enable-pprof=false",
    r#"--meshed-http2-client-params={"keep_alive":{"interval":{"seconds":10},"timeout":{"seconds":3},"while_idle":true}}"#,
];

fn manager(arguments: &[&str]) -> ManagerArgs {
    let arguments = ["linkerd-operator", "manager"].iter().chain(arguments);
    match Args::try_parse_from(arguments).unwrap().settings() {
        Ok(Task::Manager(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn parsed_in(environment: &[(&str, &str)], arguments: &[&str]) -> Result<Parsed, Ended> {
    let environment: HashMap<_, _> = environment.iter().copied().collect();
    let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
    parse(&arguments, manager(&[]), |name| environment.get(name).map(|value| (*value).to_owned()))
}

fn parsed(arguments: &[&str]) -> Parsed {
    parsed_in(&[], arguments).unwrap()
}

fn refused(arguments: &[&str]) -> (u8, String) {
    let ended = parsed_in(&[], arguments).unwrap_err();
    assert!(ended.is_error, "{arguments:?}: {ended:?}");
    (ended.code, ended.text)
}

#[test]
fn what_linkerds_chart_passes_means_our_own_defaults() {
    let Parsed { args, notices } = parsed(&CHART);
    let ours = manager(&["--enable-linkerd-config=false"]);
    assert_eq!(format!("{args:?}"), format!("{ours:?}"));
    assert_eq!(notices, [] as [&str; 0]);
}

#[test]
fn what_is_not_passed_means_what_it_means_to_linkerds_container() {
    let Parsed { args, notices } = parsed(&[]);
    assert_eq!(args.destination.destination_addr, "[::]:8086".parse().unwrap());
    assert_eq!(args.admin_addr, "[::]:9996".parse().unwrap());
    assert_eq!(args.destination.outbound_transport_mode, TransportMode::Transparent);
    assert!(args.destination.enable_ipv6);
    assert_eq!(args.destination.meshed_http2_client_params, Http2Params::default());
    assert!(!args.destination.default_opaque_ports.contains(25));
    assert_eq!((args.destination.cluster_domain.as_str(), notices.len()), ("cluster.local", 2), "{notices:?}");
    assert!(args.enable_destination && args.enable_external_workload && !args.enable_linkerd_config);
}

#[test]
fn flags_without_meaning_are_checked_and_named() {
    let domains = ["-cluster-domain=a", "-identity-trust-domain=b"];
    let ignored = ["-enable-pprof", "-stream-queue-capacity=7", "-trace-collector", "collector:55678"];
    let Parsed { notices, .. } = parsed(&[&domains[..], &ignored].concat());
    assert_eq!(notices.len(), 3, "{notices:?}");
    for (notice, flag) in notices.iter().zip(["-enable-pprof", "-stream-queue-capacity", "-trace-collector"]) {
        assert!(notice.starts_with(flag), "{notice}");
    }
    assert_eq!(refused(&["-stream-queue-capacity=0"]).0, 1);
    assert_eq!(refused(&["-stream-queue-capacity=some"]).0, 2);
}

#[test]
fn an_unknown_flag_ends_with_the_usage_and_2() {
    let (code, text) = refused(&["-addr=:8086", "-no-such-flag"]);
    assert_eq!(code, 2);
    assert!(text.starts_with("flag provided but not defined: -no-such-flag\nUsage of destination:\n  -addr string\n"));
}

#[test]
fn what_linkerds_container_ends_of_is_refused_with_1_and_a_reason() {
    for (argument, reason) in [
        ("-enable-endpoint-slices=false", "EndpointSlices"),
        ("-meshed-http2-client-params={", "-meshed-http2-client-params"),
        ("-addr=nowhere", "IP:PORT"),
        ("-metrics-addr=:many", "IP:PORT"),
        ("-log-level=loud", "panic"),
        ("-log-format=yaml", "json"),
    ] {
        let (code, text) = refused(&[argument]);
        assert!(code == 1 && text.contains(reason), "{argument}: {code} {text}");
    }
}

#[test]
fn what_linkerds_container_warns_of_is_left_out_and_named() {
    let domains = ["-cluster-domain=a", "-identity-trust-domain=b"];
    let odd = ["-default-opaque-ports=25,x,3000-3002", "-outbound-transport-mode=quantum"];
    let Parsed { args, notices } = parsed(&[&domains[..], &odd].concat());
    let ports = &args.destination.default_opaque_ports;
    assert!(ports.contains(25) && ports.contains(3001) && !ports.contains(80));
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].contains("quantum") && notices[1].contains("\"x\""), "{notices:?}");
}

#[test]
fn levels_of_logrus_are_ours() {
    for (theirs, ours) in [("panic", "error"), ("fatal", "error"), ("warning", "warn"), ("TRACE", "trace")] {
        assert_eq!(parsed(&["-log-level", theirs]).args.log_level, ours);
    }
}

#[test]
fn the_pods_name_is_what_the_lease_says() {
    let hostname = [("HOSTNAME", "linkerd-destination-5d9c-x7k2p")];
    let identity = parsed_in(&hostname, &CHART).unwrap().args.leader_election_identity;
    assert_eq!(identity.as_deref(), Some(hostname[0].1));
}

#[test]
fn the_version_is_what_linkerds_environment_says_or_ours() {
    let said = |environment| {
        let ended = parsed_in(environment, &["-version"]).unwrap_err();
        assert_eq!((ended.code, ended.is_error), (0, false));
        ended.text
    };
    assert_eq!(said(&[("LINKERD_CONTAINER_VERSION_OVERRIDE", "edge-26.8.3")]), "edge-26.8.3\n");
    assert!(said(&[]).starts_with(version::VERSION));
}
