//! The destination server's flags, parsed into its [`DestinationSettings`].

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    str::FromStr,
    time::Duration,
};

use clap::{Args as ClapArgs, builder::NonEmptyStringValueParser};

use super::positive_duration;
use crate::{
    cluster::{Problems, kinds::port_ranges::PortRanges},
    destination::{
        DestinationSettings,
        settings::{DestinationLimits, Http2Params, TransportMode},
    },
    resources::Resources,
};

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
    #[arg(long, env = "LINKERD_OPERATOR_ENABLE_H2_UPGRADE", default_value_t = true)]
    pub enable_h2_upgrade: bool,

    /// Prefer a Pod's IPv6 address; off, IPv6 addresses of Pods are not served
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

    /// Say nothing about a Service without endpoints, as Linkerd's destination does, instead of that it has none
    #[arg(long, env = "LINKERD_OPERATOR_STRICT_UPSTREAM_PARITY", default_value_t = false)]
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

impl DestinationArgs {
    /// `resources` bounds what no flag does.
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
