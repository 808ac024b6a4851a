//! The flags of the container `destination` of Linkerd's own Deployment.

use std::str::FromStr;

use clap::Args as ClapArgs;

use super::{
    containers::{ContainerFlags, address, invalid},
    exit::Exit,
    manager::ManagerArgs,
};
use crate::{
    cluster::{Problems, kinds::port_ranges::PortRanges},
    destination::settings::{Http2Params, TransportMode},
    drop_in::DropIn,
    go::flags::go_switch,
};

const LOCAL: &str = "cluster.local";
const STREAM_QUEUE_CAPACITY: i64 = 100;

/// The flags that only this container has.
#[derive(Clone, Debug, ClapArgs)]
#[command(mut_args = go_switch)]
pub(super) struct LinkerdDestinationArgs {
    /// Address of the Destination API
    #[arg(long, value_name = "ADDR", default_value = ":8086")]
    addr: String,

    /// Address of /metrics, /ping and /ready
    #[arg(long, value_name = "ADDR", default_value = ":9996")]
    metrics_addr: String,

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

    /// No effect: the metrics are always exported
    #[arg(long, default_value_t = true)]
    export_queue_metrics: bool,

    /// No effect: streams have no queue
    #[arg(long, value_name = "NUMBER", default_value_t = STREAM_QUEUE_CAPACITY)]
    stream_queue_capacity: i64,

    /// No effect
    #[arg(long, value_name = "ADDR", default_value = "")]
    trace_collector: String,
}

// === impl LinkerdDestinationArgs ===

impl ContainerFlags for LinkerdDestinationArgs {
    const DROP_IN: DropIn = DropIn::Destination;

    fn apply(self, manager: &mut ManagerArgs) -> Result<(), Exit> {
        if !self.enable_endpoint_slices {
            let reason = "discovery without EndpointSlices is not supported: remove the flag";
            return Err(invalid("enable-endpoint-slices", "false", reason));
        }
        if self.stream_queue_capacity <= 0 {
            let value = self.stream_queue_capacity.to_string();
            return Err(invalid("stream-queue-capacity", &value, "it must be greater than 0"));
        }

        let notices = &mut manager.notices;
        for (flag, is_given) in [
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
        discovery.destination_addr = address("addr", &self.addr)?;
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

        manager.admin_addr = address("metrics-addr", &self.metrics_addr)?;
        manager.controller_namespace = self.controller_namespace;
        manager.enable_destination = true;
        // Linkerd's container serves the Services of other clusters. If that is disabled here, a rollout stops at the
        // first replica that refuses requests for such Services.
        manager.enable_multicluster.get_or_insert(true);
        manager.allow_unsupported_services.get_or_insert(false);
        manager.enable_external_workload = true;
        Ok(())
    }
}

#[cfg(test)]
#[path = "linkerd_destination_tests.rs"]
mod tests;
