use std::{collections::HashMap, ffi::OsString};

use clap::FromArgMatches;

use super::*;
use crate::{
    args::{
        Task,
        containers::ContainerArgs,
        testing::{manager, run},
    },
    go::flags::with_double_dashes,
    version,
};

const COMMAND: &str = "destination";

/// The arguments of Linkerd's chart with its default values (edge-26.8). The chart passes more with tracing or with
/// `destinationController.additionalArgs`.
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

fn parsed_in(environment: &[(&str, &str)], arguments: &[&str]) -> Result<ManagerArgs, Exit> {
    parsed_over(manager(&[]).unwrap(), environment, arguments)
}

/// As [`parsed_in`], with the settings that the operator's own variables give.
fn parsed_over(settings: ManagerArgs, environment: &[(&str, &str)], arguments: &[&str]) -> Result<ManagerArgs, Exit> {
    let environment: HashMap<_, _> = environment.iter().copied().collect();
    let arguments = ["linkerd-operator", COMMAND].iter().chain(arguments).map(OsString::from);
    let command = ContainerArgs::<LinkerdDestinationArgs>::augment_args(clap::Command::new(COMMAND));
    let containers = clap::Command::new("linkerd-operator").subcommand(command.clone());
    let arguments = with_double_dashes(arguments, &containers).split_off(1);
    let matches = command.args_override_self(true).try_get_matches_from(arguments).unwrap();
    let args = ContainerArgs::<LinkerdDestinationArgs>::from_arg_matches(&matches).unwrap();
    args.manager(settings, |name| environment.get(name).map(|value| (*value).to_owned()))
}

fn parsed(arguments: &[&str]) -> ManagerArgs {
    match run(&[&[COMMAND], arguments].concat()) {
        Ok(Task::Manager(args)) => *args,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn refused(arguments: &[&str]) -> (u8, String) {
    let exit = run(&[&[COMMAND], arguments].concat()).unwrap_err();
    assert!(exit.is_error, "{arguments:?}: {exit:?}");
    (exit.code, exit.text)
}

#[test]
fn a_container_has_only_its_own_jobs_whatever_the_environment_enables() {
    let others =
        ["--enable-linkerd-config", "--enable-proxy-injector", "--enable-webhooks", "--webhook-certificate-secret=tls"];
    let args = parsed_over(manager(&others).unwrap(), &[], &CHART).unwrap();
    assert!(args.enable_destination && args.enable_external_workload);
    assert!(!args.enable_linkerd_config && !args.enable_proxy_injector && !args.enable_webhooks);
    assert_eq!(args.webhook_certificate_secret, None);
}

#[test]
fn the_arguments_of_linkerds_chart_equal_the_operators_defaults() {
    let args = parsed(&CHART);
    assert_eq!(args.notices, [] as [&str; 0]);
    let flags = [
        // The Pod's proxy authenticates the clients.
        "--destination-addr=[::]:8086",
        "--enable-linkerd-config=false",
        "--enable-multicluster",
        "--allow-unsupported-services=false",
    ];
    let ours = ManagerArgs { replaces: Some(DropIn::Destination), ..manager(&flags).unwrap() };
    assert_eq!(format!("{args:?}"), format!("{ours:?}"));
}

#[test]
fn other_clusters_are_served_as_by_linkerds_container_unless_the_environment_says_otherwise() {
    let ours = manager(&[]).unwrap();
    assert_eq!((ours.enable_multicluster, ours.allow_unsupported_services), (None, None));
    let theirs = parsed(&CHART);
    assert_eq!((theirs.enable_multicluster, theirs.allow_unsupported_services), (Some(true), Some(false)));
    let environment = ["--enable-multicluster=false", "--allow-unsupported-services=true"];
    let args = parsed_over(manager(&environment).unwrap(), &[], &[]).unwrap();
    assert_eq!((args.enable_multicluster, args.allow_unsupported_services), (Some(false), Some(true)));
}

#[test]
fn absent_flags_have_the_defaults_of_linkerds_container() {
    let args = parsed(&[]);
    assert_eq!(args.destination.destination_addr, "[::]:8086".parse().unwrap());
    assert_eq!(args.admin_addr, "[::]:9996".parse().unwrap());
    assert_eq!(args.destination.outbound_transport_mode, TransportMode::Transparent);
    assert!(args.destination.enable_ipv6);
    assert_eq!(args.destination.meshed_http2_client_params, Http2Params::default());
    assert!(!args.destination.default_opaque_ports.contains(25));
    assert_eq!(
        (args.destination.cluster_domain.as_str(), args.notices.len()),
        ("cluster.local", 2),
        "{:?}",
        args.notices
    );
    assert!(args.enable_destination && args.enable_external_workload && !args.enable_linkerd_config);
}

#[test]
fn flags_without_effect_are_validated_and_named() {
    let domains = ["-cluster-domain=a", "-identity-trust-domain=b"];
    let ignored = ["-enable-pprof", "-stream-queue-capacity=7", "-trace-collector", "collector:55678"];
    let ManagerArgs { notices, .. } = parsed(&[&domains[..], &ignored].concat());
    assert_eq!(notices.len(), 3, "{notices:?}");
    for (notice, flag) in notices.iter().zip(["-enable-pprof", "-stream-queue-capacity", "-trace-collector"]) {
        assert!(notice.starts_with(flag), "{notice}");
    }
    assert_eq!(refused(&["-stream-queue-capacity=0"]).0, 1);
    assert_eq!(refused(&["-stream-queue-capacity=some"]).0, 2);
}

#[test]
fn an_unknown_flag_of_a_newer_chart_is_named_and_ignored() {
    let domains = ["-cluster-domain=a", "-identity-trust-domain=b"];
    let newer = ["-new-switch", "--new-text=some=text", "-new-number", "7", "-new-last", "-addr", ":2", "-new-end"];
    let args = parsed(&[&domains[..], &newer].concat());
    assert_eq!(args.destination.destination_addr.port(), 2);
    let named = ["-new-switch", "-new-text", "-new-number", "-new-last", "-new-end"];
    assert_eq!(args.notices, named.map(|flag| format!("{flag} is unknown to linkerd-operator and is ignored")));
}

#[test]
fn with_strict_flags_an_unknown_flag_exits_with_the_usage_and_code_2() {
    for arguments in
        [&["-strict-flags", "-addr=:8086", "-no-such-flag"][..], &["-no-such-flag=1", "-version", "-strict-flags=true"]]
    {
        let (code, text) = refused(arguments);
        assert_eq!(code, 2);
        assert!(text.contains("'-no-such-flag'") && text.contains("Usage: "), "{text}");
    }
    assert_eq!(run(&[COMMAND, "-strict-flags", "-addr=:1", "-version"]).unwrap_err().code, 0);
    assert_eq!(parsed(&["-strict-flags=false", "-no-such-flag"]).notices.len(), 3);
    assert_eq!(refused(&["-unknown-flag=a", "-strict-flags"]).0, 2, "the operator's own way to pass it is no flag");
}

#[test]
fn one_dash_equals_two_and_a_value_may_be_the_next_argument() {
    for arguments in [
        &["-addr=:2", "-enable-ipv6", "-ext-endpoint-zone-weights=true", "-kubeconfig=a=b"][..],
        &["--addr", ":2", "--enable-ipv6=1", "--ext-endpoint-zone-weights", "-kubeconfig", "a=b"],
        &[
            "-addr",
            ":1",
            "-addr",
            ":2",
            "-enable-ipv6=false",
            "-enable-ipv6=T",
            "-ext-endpoint-zone-weights=1",
            "-kubeconfig=a=b",
        ],
    ] {
        let args = parsed(arguments);
        assert_eq!(args.destination.destination_addr.port(), 2, "{arguments:?}");
        assert!(args.destination.enable_ipv6 && args.destination.ext_endpoint_zone_weights, "{arguments:?}");
        assert_eq!(args.kubeconfig.as_deref(), Some(std::path::Path::new("a=b")), "{arguments:?}");
    }
    assert!(!parsed(&["-enable-ipv6=F"]).destination.enable_ipv6);
    assert_eq!(parsed(&["-kubeconfig="]).kubeconfig, None);
}

#[test]
fn a_value_that_is_the_next_argument_may_begin_with_a_dash() {
    let args = parsed(&["-trace-collector", "-x", "-kubeconfig", "--", "-addr", ":2"]);
    assert_eq!(args.destination.destination_addr.port(), 2);
    assert_eq!(args.kubeconfig.as_deref(), Some(std::path::Path::new("--")));
    assert_eq!(refused(&["-stream-queue-capacity", "-3"]).0, 1, "Linkerd's container parses the value and exits");
    assert_eq!(refused(&["-addr", "-on"]).0, 1, "it is not an address");
}

#[test]
fn the_first_argument_that_is_not_a_flag_ends_the_flags() {
    for end in ["--", "-", "false"] {
        let args = parsed(&["-ext-endpoint-zone-weights", end, "-no-such-flag", "-enable-ipv6=false"]);
        assert!(args.destination.ext_endpoint_zone_weights && args.destination.enable_ipv6, "{end}");
    }
}

#[test]
fn a_value_that_go_cannot_parse_exits_with_code_2() {
    for arguments in [
        &["-enable-ipv6=yes"][..],
        &["-stream-queue-capacity=many"],
        &["-enable-ipv6", "-addr"],
        &["---addr=1"],
        &["-=1"],
    ] {
        assert_eq!(refused(arguments).0, 2, "{arguments:?}");
    }
}

#[test]
fn help_lists_the_flags_and_exits_with_code_0() {
    for help in ["-h", "-help", "--help"] {
        let exit = run(&[COMMAND, "-enable-ipv6", help]).unwrap_err();
        assert_eq!((exit.code, exit.is_error), (0, false), "{exit:?}");
        assert!(exit.text.contains("--meshed-http2-client-params"), "{exit:?}");
    }
}

#[test]
fn values_that_linkerds_container_rejects_exit_with_code_1_and_a_reason() {
    for (argument, reason) in [
        ("-enable-endpoint-slices=false", "EndpointSlices"),
        ("-meshed-http2-client-params={", "-meshed-http2-client-params"),
        ("-addr=nowhere", "HOST:PORT"),
        ("-metrics-addr=:many", "HOST:PORT"),
        ("-log-level=loud", "panic"),
        ("-log-format=yaml", "json"),
    ] {
        let (code, text) = refused(&[argument]);
        assert!(code == 1 && text.contains(reason), "{argument}: {code} {text}");
    }
}

#[test]
fn an_address_may_have_a_host_name() {
    let args = parsed(&["-addr=localhost:8086", "-metrics-addr=127.0.0.1:9996"]);
    // Of several addresses Go prefers IPv4.
    assert_eq!(args.destination.destination_addr, "127.0.0.1:8086".parse().unwrap());
    assert_eq!(args.admin_addr, "127.0.0.1:9996".parse().unwrap());
    assert_eq!(parsed(&["-addr=[::1]:8086"]).destination.destination_addr, "[::1]:8086".parse().unwrap());
    for bad in ["-addr=localhost", "-addr=localhost:70000", "-addr=::1:8086", "-addr=[::1:8086", "-addr=localhost:"] {
        let (code, text) = refused(&[bad]);
        assert!(code == 1 && text.contains("HOST:PORT"), "{bad}: {code} {text}");
    }
}

#[test]
fn values_that_linkerds_container_warns_about_are_ignored_and_named() {
    let domains = ["-cluster-domain=a", "-identity-trust-domain=b"];
    let odd = ["-default-opaque-ports=25,x,3000-3002", "-outbound-transport-mode=quantum"];
    let args = parsed(&[&domains[..], &odd].concat());
    let ports = &args.destination.default_opaque_ports;
    assert!(ports.contains(25) && ports.contains(3001) && !ports.contains(80));
    let notices = &args.notices;
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].contains("quantum") && notices[1].contains("\"x\""), "{notices:?}");
}

#[test]
fn levels_of_logrus_are_translated() {
    for (theirs, ours) in [("panic", "error"), ("fatal", "error"), ("warning", "warn"), ("TRACE", "trace")] {
        assert_eq!(parsed(&["-log-level", theirs]).log_level, ours);
    }
}

#[test]
fn replicas_that_share_a_host_name_do_not_share_an_identity() {
    let hostname = [("HOSTNAME", "node-1")];
    let identity = parsed_in(&hostname, &CHART).unwrap().leader_election_identity;
    assert_eq!(identity, None, "the process makes the host name unique");
}

#[test]
fn the_version_is_that_of_linkerds_environment_or_of_the_operator() {
    let printed = |environment| {
        let exit = parsed_in(environment, &["-version"]).unwrap_err();
        assert_eq!((exit.code, exit.is_error), (0, false));
        exit.text
    };
    assert_eq!(printed(&[("LINKERD_CONTAINER_VERSION_OVERRIDE", "edge-26.8.3")]), "edge-26.8.3\n");
    assert!(printed(&[]).starts_with(version::VERSION));
}
