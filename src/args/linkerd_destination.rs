//! The command line of the container `destination` of Linkerd's own Deployment, so that our image can take its place.
//!
//! * In: what follows the word `destination`, the container's environment. Out: a manager that does that container's two jobs,
//!   discovery and slices of ExternalWorkloads, and what to say of it once in the log.
//! * Always: flags and defaults are those of Linkerd's `destination` (edge-26.8); what has no meaning here is checked as Go
//!   checks it, and named. Settings that only we have come from `LINKERD_OPERATOR_…`, as everywhere.

use std::{env, net::SocketAddr, str::FromStr};

use super::{
    Ended, LogFormat, ManagerArgs,
    go_flags::{Flag, Kind, Unread, Values, usage},
};
use crate::{
    cluster::{Problems, kinds::port_ranges::PortRanges},
    destination::settings::{Http2Params, TransportMode},
    version,
};

/// The word.
pub(super) const COMMAND: &str = "destination";
const LOCAL: &str = "cluster.local";

/// What Linkerd's container does, and we do not or do otherwise.
const WITHOUT_MEANING: [&str; 4] = ["enable-pprof", "export-queue-metrics", "stream-queue-capacity", "trace-collector"];

const FLAGS: &[Flag] = &[
    text("addr", ":8086", "where to serve the Destination API"),
    text("metrics-addr", ":9996", "where to serve /metrics, /ping and /ready"),
    text("kubeconfig", "", "the kubeconfig to use; else $KUBECONFIG, ~/.kube/config, or the ServiceAccount of the pod"),
    text("controller-namespace", "linkerd", "the namespace of Linkerd's control plane"),
    text(
        "outbound-transport-mode",
        "transparent",
        "how traffic to meshed endpoints travels: transparent or transport-header",
    ),
    switch("enable-h2-upgrade", true, "have proxies carry HTTP/1 between meshed Pods over HTTP/2"),
    switch("enable-endpoint-slices", true, "only true: there is no discovery by Endpoints"),
    switch("enable-ipv6", true, "prefer a Pod's IPv6 address"),
    text("identity-trust-domain", "", "the trust domain of the mesh's identities"),
    text("cluster-domain", "", "the domain of the cluster's Services"),
    text("default-opaque-ports", "", "ports and ranges that are opaque unless a workload says otherwise"),
    switch("ext-endpoint-zone-weights", false, "give endpoints in the client's zone ten times the weight"),
    text("meshed-http2-client-params", "", "HTTP/2 settings for connections to meshed endpoints, as JSON"),
    switch("enable-pprof", false, "without meaning here"),
    switch("export-queue-metrics", true, "without meaning here: they are always exported"),
    Flag {
        name: "stream-queue-capacity",
        kind: Kind::Number,
        default: "100",
        help: "without meaning here: streams have no queue",
    },
    text("trace-collector", "", "without meaning here"),
    text("log-level", "info", "what to log: panic, fatal, error, warn, info, debug or trace"),
    text("log-format", "plain", "how to log: plain or json"),
    switch("version", false, "print the version and exit"),
];

/// A manager in the place of Linkerd's container.
#[derive(Debug)]
pub(super) struct Parsed {
    pub args: ManagerArgs,
    /// For the log, once.
    pub notices: Vec<String>,
}

/// `manager` is one without any flag: what the environment says of settings that only we have.
///
/// # Errors
/// What to print, and the exit code that Linkerd's container would end with.
pub(super) fn parse(
    arguments: &[String],
    mut manager: ManagerArgs,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Parsed, Ended> {
    let values = match Values::read(FLAGS, arguments) {
        Ok(values) => values,
        Err(Unread::Help) => return Err(Ended::told(usage(COMMAND, FLAGS))),
        Err(Unread::Mistake(sentence)) => {
            return Err(Ended::refused(2, format!("{sentence}\n{}", usage(COMMAND, FLAGS))));
        }
    };
    if values.is_on("version") {
        let said = environment("LINKERD_CONTAINER_VERSION_OVERRIDE").filter(|text| !text.is_empty());
        return Err(Ended::told(said.unwrap_or_else(|| version::whole().to_owned()) + "\n"));
    }
    let refused = |flag: &str, why: String| {
        Ended::refused(1, format!("error: invalid value {:?} for flag -{flag}: {why}\n", values.text(flag)))
    };
    if !values.is_on("enable-endpoint-slices") {
        let why = "discovery without EndpointSlices is not there any more: leave the flag out".to_owned();
        return Err(refused("enable-endpoint-slices", why));
    }
    if values.number("stream-queue-capacity") <= 0 {
        return Err(refused("stream-queue-capacity", "it has to be more than 0".to_owned()));
    }

    let mut notices = Vec::new();
    for flag in WITHOUT_MEANING {
        let default = FLAGS.iter().find(|it| it.name == flag).map(|it| it.default);
        if default != Some(values.text(flag)) {
            notices.push(format!("-{flag} has no meaning here and is ignored"));
        }
    }
    let mut domain = |flag| match values.text(flag) {
        "" => {
            notices.push(format!("-{flag} is not given: {LOCAL} is taken"));
            LOCAL.to_owned()
        }
        domain => domain.to_owned(),
    };
    let discovery = &mut manager.destination;
    discovery.identity_trust_domain = domain("identity-trust-domain");
    discovery.cluster_domain = domain("cluster-domain");
    discovery.destination_addr = address(values.text("addr")).map_err(|why| refused("addr", why))?;
    discovery.outbound_transport_mode = match values.text("outbound-transport-mode") {
        "transport-header" => TransportMode::TransportHeader,
        "transparent" => TransportMode::Transparent,
        other => {
            notices.push(format!("-outbound-transport-mode={other} is not known: transparent is taken"));
            TransportMode::Transparent
        }
    };
    discovery.enable_h2_upgrade = values.is_on("enable-h2-upgrade");
    discovery.enable_ipv6 = values.is_on("enable-ipv6");
    discovery.ext_endpoint_zone_weights = values.is_on("ext-endpoint-zone-weights");
    let mut problems = Problems::default();
    discovery.default_opaque_ports = PortRanges::parse(values.text("default-opaque-ports"), [], &mut problems);
    if !problems.is_empty() {
        notices.push(format!("-default-opaque-ports: {problems}, and is left out"));
    }
    discovery.meshed_http2_client_params = Http2Params::from_str(values.text("meshed-http2-client-params"))
        .map_err(|why| refused("meshed-http2-client-params", why))?;

    manager.admin_addr = address(values.text("metrics-addr")).map_err(|why| refused("metrics-addr", why))?;
    manager.kubeconfig = Some(values.text("kubeconfig")).filter(|path| !path.is_empty()).map(Into::into);
    values.text("controller-namespace").clone_into(&mut manager.controller_namespace);
    manager.log_level = level(values.text("log-level")).map_err(|why| refused("log-level", why))?.to_owned();
    manager.log_format = match values.text("log-format") {
        "plain" => LogFormat::Plain,
        "json" => LogFormat::Json,
        _ => return Err(refused("log-format", "it has to be plain or json".to_owned())),
    };
    // Who holds the Lease that both know: Linkerd's container writes the pod's name there.
    let pod = environment("HOSTNAME").filter(|name| !name.is_empty());
    manager.leader_election_identity = manager.leader_election_identity.or(pod);
    manager.enable_destination = true;
    manager.enable_external_workload = true;
    // Linkerd's ServiceAccount may not write its configuration; that is for an operator of its own.
    manager.enable_linkerd_config = false;
    Ok(Parsed { args: manager, notices })
}

/// The environment of this process.
pub(super) fn environment(name: &str) -> Option<String> {
    env::var(name).ok()
}

const fn text(name: &'static str, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind: Kind::Text, default, help }
}

const fn switch(name: &'static str, is_on: bool, help: &'static str) -> Flag {
    Flag { name, kind: Kind::Switch, default: if is_on { "true" } else { "false" }, help }
}

/// Go listens on all addresses where none is said.
fn address(text: &str) -> Result<SocketAddr, String> {
    let whole = match text.strip_prefix(':') {
        Some(port) => format!("[::]:{port}"),
        None => text.to_owned(),
    };
    whole.parse().map_err(|_| "it has to be :PORT or IP:PORT".to_owned())
}

/// Ours for those of logrus.
fn level(text: &str) -> Result<&'static str, String> {
    match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Ok("error"),
        "warn" | "warning" => Ok("warn"),
        "info" => Ok("info"),
        "debug" => Ok("debug"),
        "trace" => Ok("trace"),
        _ => Err("it has to be panic, fatal, error, warn, info, debug or trace".to_owned()),
    }
}

#[cfg(test)]
#[path = "linkerd_destination_tests.rs"]
mod tests;
