//! The destination server's flags, parsed into its [`DestinationSettings`].

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    str::FromStr,
    time::Duration,
};

use clap::{Args as ClapArgs, builder::NonEmptyStringValueParser};

use super::parse::positive_duration;
use crate::{
    cluster::{Problems, kinds::port_ranges::PortRanges},
    destination::{
        DestinationSettings,
        settings::{DestinationLimits, Http2Params, TransportMode},
    },
    resources::Resources,
};

/// The flags of the destination server. The defaults are those of Linkerd's charts.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Destination")]
pub struct DestinationArgs {
    /// Address of the Destination API, in plain HTTP/2: no TLS, unless the pod has a Linkerd proxy. Only port-forwards
    /// reach the default
    // Not `[::1]` as well: a port-forward dials `localhost`, first with IPv4, also in a cluster with IPv6 alone.
    #[arg(long, env = "LINKERD_OPERATOR_DESTINATION_ADDR", value_name = "IP:PORT", default_value = "127.0.0.1:8086")]
    pub destination_addr: SocketAddr,

    /// Domain of the cluster's Services
    #[arg(long, env = "LINKERD_OPERATOR_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local", value_parser = NonEmptyStringValueParser::new())]
    pub cluster_domain: String,

    /// Trust domain of the mesh's identities
    #[arg(
        long,
        env = "LINKERD_OPERATOR_IDENTITY_TRUST_DOMAIN",
        value_name = "DOMAIN",
        default_value = "cluster.local",
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub identity_trust_domain: String,

    /// Ports and ranges that are opaque unless a workload overrides them
    #[arg(
        long,
        env = "LINKERD_OPERATOR_DEFAULT_OPAQUE_PORTS",
        value_name = "PORTS",
        default_value = "25,587,3306,4444,5432,6379,9300,11211",
        value_parser = port_ranges
    )]
    pub default_opaque_ports: PortRanges,

    /// Transport to meshed endpoints
    #[arg(
        long,
        env = "LINKERD_OPERATOR_OUTBOUND_TRANSPORT_MODE",
        value_name = "MODE",
        default_value = "transport-header"
    )]
    pub outbound_transport_mode: TransportMode,

    /// Upgrade HTTP/1 between meshed Pods to HTTP/2
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_H2_UPGRADE", default_value_t = true)]
    pub enable_h2_upgrade: bool,

    /// Prefer a Pod's IPv6 address; if false, IPv6 addresses of Pods are not sent
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_IPV6", default_value_t = false)]
    pub enable_ipv6: bool,

    /// Give endpoints in the client's zone ten times the weight
    #[arg(long, env = "LINKERD_OPERATOR_EXT_ENDPOINT_ZONE_WEIGHTS", default_value_t = false)]
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

    /// Send no update for a Service without endpoints, as Linkerd does, instead of NoEndpoints
    #[arg(long, env = "LINKERD_OPERATOR_STRICT_UPSTREAM_PARITY", default_value_t = false)]
    pub strict_upstream_parity: bool,

    /// Time without reads by the client after which a stream with pending data is reset; after the same time again
    /// without reads on any of its streams, the connection is closed
    #[arg(
        long,
        env = "LINKERD_OPERATOR_STREAM_STALL_TIMEOUT",
        value_name = "DURATION",
        default_value = "60s",
        value_parser = positive_duration
    )]
    pub stream_stall_timeout: Duration,

    /// Maximum number of connections; further connections wait for up to 10 s [default: derived from the container's
    /// memory limit and from the limit of open files, at most 20000]
    #[arg(long, env = "LINKERD_OPERATOR_MAX_CONNECTIONS", value_name = "N")]
    pub max_connections: Option<NonZeroUsize>,

    /// Maximum number of streams; further streams are refused [default: derived from the container's memory limit, at
    /// most 250000]
    #[arg(long, env = "LINKERD_OPERATOR_MAX_STREAMS", value_name = "N")]
    pub max_streams: Option<NonZeroUsize>,

    /// Maximum number of streams on one connection; a proxy may open the streams for all clients in a cluster on one
    /// connection
    #[arg(long, env = "LINKERD_OPERATOR_MAX_STREAMS_PER_CONNECTION", value_name = "N", default_value = "100000")]
    pub max_streams_per_connection: NonZeroU32,

    /// Maximum time that a request waits in the queue before it is refused; proxies time out after 3 s and retry
    #[arg(
        long,
        env = "LINKERD_OPERATOR_MAX_STREAM_WAIT",
        value_name = "DURATION",
        default_value = "1500ms",
        value_parser = positive_duration
    )]
    pub max_stream_wait: Duration,
}

impl DestinationArgs {
    /// Returns the settings. `resources` determines the limits that no flag sets.
    pub fn settings(&self, controller_namespace: &str, resources: Resources) -> DestinationSettings {
        DestinationSettings {
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
            limits: DestinationLimits {
                memory: resources.memory_budget(),
                connections: self.max_connections.map_or_else(|| resources.connections(), NonZeroUsize::get),
                streams: self.max_streams.map_or_else(|| resources.streams(), NonZeroUsize::get),
                streams_per_connection: self.max_streams_per_connection.get(),
                stream_wait: self.max_stream_wait,
                stream_stall_timeout: self.stream_stall_timeout,
            },
        }
    }
}

/// Parses ports and ranges. Unlike in annotations, an invalid entry is an error and is not skipped.
fn port_ranges(text: &str) -> Result<PortRanges, String> {
    let mut problems = Problems::default();
    let ranges = PortRanges::parse(text, [], &mut problems);
    if problems.is_empty() { Ok(ranges) } else { Err(problems.to_string()) }
}
